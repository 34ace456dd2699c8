"""The insert lock of a table, where the server takes one quorum insert at a time.

Such a server refuses an insert (286) as long as another one waits for its quorum. Loaders that
queue for the table spare it the refusals, and themselves the pauses after them. No row depends on
it: where nobody can be asked for the lock, the insert is unlocked.
"""

from __future__ import annotations

import logging
import time

from sluice.clickhouse.reactions import InDoubtServerError
from sluice.core.errors import SluiceError
from sluice.core.receipts import Queueing
from sluice.locks.port import HeldLock, Locks, LocksAwayError, LockWaitError

#: What was sent may arrive at a server so long after its time: it keeps a connection for 10 s,
#: and stores what it has within 5 s.
LATE_SECONDS = 15.0

_logger = logging.getLogger("sluice.spark")


class InsertLock:
    """The insert lock for one block, from the first server that wants it to the block's end.

    :param locks: None: nobody queues.
    :param table: what is queued for; the same text for all who load it.
    """

    def __init__(self, locks: Locks | None, table: str) -> None:
        self._locks = locks
        self._table = table
        self._lock: HeldLock | None = None
        self._ends_at = 0.0
        self._is_sending = False
        self._is_unanswered = False
        #: For the receipt; None where nobody queued.
        self.queueing: Queueing | None = None

    def take(self, seconds: float) -> None:
        """Wait for the lock; once for each block.

        :param seconds: at most so long.
        :raises LockWaitError: it did not come in time. Nothing was sent.
        :raises LockLostError: our place in the queue was lost. Nothing was sent.
        """
        if self._locks is None or self.queueing is not None:
            return
        began = time.monotonic()
        try:
            self._lock = self._locks.acquire(self._table, seconds)
        except LocksAwayError as error:
            _logger.warning(
                "%s: blocks for %s are sent without the insert lock", error, self._table
            )
        self.queueing = Queueing(
            wait_ms=int((time.monotonic() - began) * 1000), held=self._lock is not None
        )

    def before_sending(self, seconds: float) -> float:
        """To be called directly before a POST: the lock is still ours, and whoever comes after us
        if we are lost knows for how long it may go on.

        :param seconds: that it may take, from now on.
        :returns: what is left of them.
        :raises LockLostError: it is not. Nothing was sent.
        :raises LockWaitError: nothing is left of them. Nothing was sent.
        """
        if self._lock is not None:
            now = _boot_seconds()
            ends_at = now + seconds
            # What another server was sent before may still be under way, and ends with it.
            self._ends_at = max(self._ends_at, ends_at)
            self._lock.announce(self._ends_at - now + LATE_SECONDS)
            seconds = ends_at - _boot_seconds()
            if seconds <= 0:
                raise LockWaitError(
                    f"ZooKeeper took too long to say who has the lock {self._table}"
                )
        self._is_sending = True
        return seconds

    def failed(self, error: SluiceError) -> None:
        """A server did not take the block: without a word of its own it may still be at it."""
        has_no_word = isinstance(error, InDoubtServerError) and error.code == 0
        self._is_unanswered |= self._is_sending and has_no_word
        self._is_sending = False

    def end(self, *, is_stored: bool) -> None:
        """The block's end in this task: the next one may have the lock.

        :param is_stored: a server has acknowledged it: what another may still do with it changes
            nothing.
        """
        if self._lock is None or self.queueing is None:
            return
        is_over = is_stored or not (self._is_unanswered or self._is_sending)
        kept = self._lock.release(is_over=is_over)
        self._lock = None
        if not kept:
            self.queueing = Queueing(self.queueing.wait_ms, held=True, lost=True)


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
