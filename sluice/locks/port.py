"""The insert lock of a table: what a loader asks for. `sluice.locks.zookeeper` gives it for real.

The lock spares the server and the loaders refusals (286); it is not what keeps rows from being
stored twice. So a loader that cannot have it at all goes on without.
"""

from __future__ import annotations

from typing import Protocol

from sluice.core.errors import TransientError


class LockWaitError(TransientError):
    """The insert lock did not come in time. Nothing was sent."""

    hint = "Other loaders hold this table's insert lock; the block is sent again later."


class LockLostError(TransientError):
    """The lock was lost before anything was sent."""

    hint = "Look at the ZooKeeper of [clickhouse] zookeeper; the block is sent again later."


class LocksAwayError(TransientError):
    """Nobody can be asked for a lock now. Nothing was sent."""

    hint = "Look at the ZooKeeper of [clickhouse] zookeeper; blocks are sent without it meanwhile."


class HeldLock(Protocol):
    """A lock that this process has."""

    def announce(self, seconds: float) -> None:
        """To be called directly before something is sent: whoever gets the lock after us without
        our release lets so many seconds pass first, whatever the clocks say.

        :param seconds: from now on until nothing of what is sent can be under way any more.
        :raises LockLostError: the lock is not ours any more, or nobody says that it is.
        """

    def release(self, *, is_over: bool) -> bool:
        """Let the next one have it.

        :param is_over: nothing of what was sent is under way; else the next one waits for the
            end that was announced.
        :returns: False if it was lost before.
        """


class Locks(Protocol):
    """Locks by name, each held by one process at a time; who asks first gets it first."""

    def acquire(self, name: str, seconds: float) -> HeldLock:
        """Wait for the lock. One at a time for each process, so that nobody waits in a circle.

        :param name: any text.
        :param seconds: at most so long.
        :raises LockWaitError: others still have it, or what one of them has sent may be under
            way.
        :raises LockLostError: the place in the queue was lost.
        :raises LocksAwayError: there is nobody to ask.
        """

    def close(self) -> None:
        """Give everything back. Harmless when repeated."""
