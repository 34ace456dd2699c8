"""Locks in ZooKeeper: a queue of ephemeral nodes, and a marker of what may still be under way.

Below `/sluice/locks/NAME`:

* `queue/NUMBER`, ephemeral: the lowest number has the lock. It goes with its owner's session.
* `sending`: a number of seconds, written by the owner directly before it sends, in one
  transaction with a check that its place is still there. When the marker was written, nothing of
  what that owner sends, or has sent, could be under way for longer than so many seconds.
  It is deleted with the place when all is over.

So an owner whose session ended cannot announce any more, and what it announced last ends so many
seconds after the write at the latest. A successor that finds a marker lets as many seconds pass
since it read it: it cannot have read it before it was written, so no clock is compared with
another. Who sees a place gone sees all that was written while it was there. One whose patience
ends before takes the seconds that it has waited off the marker, so that the next one does not
begin anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from sluice.locks.port import LockLostError, LocksAwayError, LockWaitError

ROOT = "/sluice/locks"
SESSION_SECONDS = 10.0
CONNECT_SECONDS = 5.0
#: ZooKeeper answers in milliseconds; a server of it that is lost is replaced within this.
ANSWER_SECONDS = 5.0
#: After nobody answered, nobody is asked for so long.
AWAY_SECONDS = 30.0

_FAILURES = (KazooException, KazooTimeoutError)
_NUMBERS = 1 << 32

_logger = logging.getLogger("sluice.locks.kazoo")
# What it says is in our own errors.
_logger.setLevel(logging.CRITICAL)


def places_before(places: Sequence[str], mine: str) -> list[str]:
    """The places in a queue before ours, the nearest last; pure.

    ZooKeeper's numbers begin anew below zero after 2,147,483,647; a queue is never so long.
    """
    own = int(mine)
    ahead = {place: (int(place) - own + _NUMBERS // 2) % _NUMBERS for place in places}
    return sorted((p for p in places if ahead[p] < _NUMBERS // 2), key=ahead.__getitem__)


class _Session:
    """A connection whose places in queues go when it ends."""

    def __init__(self, hosts: str, session_seconds: float) -> None:
        self.process = os.getpid()
        self.lost = False
        self.changed = threading.Event()
        self._client = KazooClient(hosts, timeout=session_seconds, logger=_logger)
        self._client.add_listener(self._listen)
        try:
            self._client.start(timeout=CONNECT_SECONDS)
        except BaseException:
            self.end()
            raise

    def _listen(self, state: str) -> None:
        """Called in the client's own thread. SUSPENDED decides nothing: our places stand until
        ZooKeeper ends the session, and before anything is sent it is asked."""
        if state == KazooState.LOST:
            self.lost = True
        self.changed.set()

    def ask(self, question: str, *parts: Any, **options: Any) -> Any:
        """The answer to a question of the client.

        :raises KazooException: ZooKeeper's refusal.
        :raises KazooTimeoutError: there is no answer; what was asked may be done later.
        """
        asked = getattr(self._client, f"{question}_async")(*parts, **options)
        return asked.get(timeout=ANSWER_SECONDS)

    def together(self, *steps: tuple[Any, ...]) -> None:
        """Several changes, all or none.

        :raises KazooException: none was made, or nobody knows.
        """
        transaction = self._client.transaction()
        for name, *parts in steps:
            getattr(transaction, name)(*parts)
        for result in transaction.commit_async().get(timeout=ANSWER_SECONDS):
            if isinstance(result, Exception):
                raise result

    def end(self) -> None:
        """In a thread of its own: with a connection that is cut it takes 10 s."""
        if self.process != os.getpid():
            return  # a parent's; its threads are not here

        def end() -> None:
            with contextlib.suppress(Exception):
                self._client.stop()
                self._client.close()

        self.lost = True
        threading.Thread(target=end, name="lock-session-end", daemon=True).start()


class ZooKeeperLocks:
    """Locks of one process in one ensemble; see `Locks`. Connects late, and again after a fork.

    Its threads do not keep a process alive. Not for several threads at once.

    :param hosts: host:port, several separated by commas, and a path below which all nodes are
        made if need be.
    :param session_seconds: so long after its last word, a process loses its places.
    """

    def __init__(self, hosts: str, session_seconds: float = SESSION_SECONDS) -> None:
        # Not as the client's own root, which would have to exist.
        self._hosts, slash, path = hosts.partition("/")
        self._root = slash + path + ROOT
        self._session_seconds = session_seconds
        self._kept: _Session | None = None
        self._away_until = 0.0

    def acquire(self, name: str, seconds: float) -> HeldZooKeeperLock:
        """See `Locks`."""
        ends_at = time.monotonic() + seconds
        session = self._session()
        folder = f"{self._root}/{quote(name, safe='')}"
        with self._lost_if_broken(session, name):
            who = f"{socket.gethostname()} {os.getpid()}".encode()
            place = session.ask(
                "create", f"{folder}/queue/", who, ephemeral=True, sequence=True, makepath=True
            )
            lock = HeldZooKeeperLock(self, session, name, folder, place)
            try:
                self._queue(session, lock, ends_at)
                self._let_pass(session, lock, ends_at)
            except LockWaitError:
                session.ask("delete", place)
                raise
        return lock

    def close(self) -> None:
        """See `Locks`."""
        if self._kept is not None:
            self._kept.end()
            self._kept = None

    def _session(self) -> _Session:
        kept = self._kept
        if kept is not None and not kept.lost and kept.process == os.getpid():
            return kept
        self.close()
        if time.monotonic() < self._away_until:
            raise LocksAwayError(f"ZooKeeper at {self._hosts} did not answer lately")
        try:
            self._kept = _Session(self._hosts, self._session_seconds)
        except (*_FAILURES, OSError) as error:
            self._away_until = time.monotonic() + AWAY_SECONDS
            raise LocksAwayError(f"ZooKeeper at {self._hosts}: {_why(error)}") from None
        return self._kept

    @contextlib.contextmanager
    def _lost_if_broken(self, session: _Session, name: str) -> Iterator[None]:
        """After a failure nobody knows which of our nodes are there: all go with the session."""
        try:
            yield
        except _FAILURES as error:
            session.end()
            raise LockLostError(
                f"the lock of {name} in ZooKeeper at {self._hosts} was lost: {_why(error)}"
            ) from None
        except BaseException as error:
            if not isinstance(error, LockWaitError):
                session.end()
            raise

    def _queue(self, session: _Session, lock: HeldZooKeeperLock, ends_at: float) -> None:
        """Wait until all who came before us are gone. Each waits for the one directly before it,
        so that only one wakes."""
        folder, _, mine = lock.place.rpartition("/")
        while True:
            before = places_before(session.ask("get_children", folder), mine)
            if not before:
                return
            session.changed.clear()
            watch = session.ask(
                "exists", f"{folder}/{before[-1]}", watch=lambda _: session.changed.set()
            )
            left = ends_at - time.monotonic()
            if watch is not None and not session.changed.wait(max(0.0, left)):
                raise LockWaitError(f"{len(before)} loaders are before us at {lock.name}")
            if session.lost:
                raise LockLostError(f"the session ended while we waited for {lock.name}")

    def _let_pass(self, session: _Session, lock: HeldZooKeeperLock, ends_at: float) -> None:
        """Wait for the end of what a predecessor that was lost may have sent."""
        try:
            data, stat = session.ask("get", lock.marker)
        except NoNodeError:
            return
        lock.is_marked = True
        seen_at, seconds = time.monotonic(), float(data)
        patience = ends_at - seen_at
        time.sleep(max(0.0, min(seconds, patience)))
        if seconds <= patience:
            return
        rest = max(0.0, seconds - (time.monotonic() - seen_at))
        session.together(
            ("check", lock.place, -1), ("set_data", lock.marker, _written(rest), stat.version)
        )
        raise LockWaitError(
            f"what a loader that was lost has sent to {lock.name} may be under way for "
            f"{rest:.0f} s more"
        )


class HeldZooKeeperLock:
    """See `HeldLock`."""

    def __init__(
        self, locks: ZooKeeperLocks, session: _Session, name: str, folder: str, place: str
    ) -> None:
        self.name = name
        self.place = place
        self.marker = f"{folder}/sending"
        self.is_marked = False
        self._locks = locks
        self._session = session

    def announce(self, seconds: float) -> None:
        """See `HeldLock`."""
        step = "set_data" if self.is_marked else "create"
        if self._session.lost:
            raise LockLostError(f"the session that had the lock of {self.name} has ended")
        with self._locks._lost_if_broken(self._session, self.name):
            self._session.together(
                ("check", self.place, -1), (step, self.marker, _written(seconds))
            )
        self.is_marked = True

    def release(self, *, is_over: bool) -> bool:
        """See `HeldLock`."""
        steps: list[tuple[Any, ...]] = [("delete", self.place)]
        if is_over and self.is_marked:
            steps.append(("delete", self.marker))
        if self._session.lost:
            return False
        try:
            with self._locks._lost_if_broken(self._session, self.name):
                self._session.together(*steps)
        except LockLostError:
            return False
        return True


def _written(seconds: float) -> bytes:
    """Rounded up: what is too short would be no bound."""
    return f"{seconds + 0.001:.3f}".encode()


def _why(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
