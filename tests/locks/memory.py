"""Locks in memory, with sessions that can be lost: what stands for ZooKeeper where none runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from sluice.locks.port import LockLostError, LocksAwayError, LockWaitError


@dataclass
class Ensemble:
    """What all processes see."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    queues: dict[str, list[MemoryLock]] = field(default_factory=dict)
    #: By lock, the announced seconds.
    markers: dict[str, float] = field(default_factory=dict)
    is_away: bool = False

    def expire(self, owner: MemoryLocks) -> None:
        """A process' session ends."""
        with self.changed:
            for queue in self.queues.values():
                queue[:] = [lock for lock in queue if lock.owner is not owner]
            self.changed.notify_all()


class MemoryLocks:
    """Of one process."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble

    def acquire(self, name: str, seconds: float) -> MemoryLock:
        ensemble = self.ensemble
        if ensemble.is_away:
            raise LocksAwayError("nobody answers")
        ends_at = time.monotonic() + seconds
        lock = MemoryLock(self, name)
        with ensemble.changed:
            queue = ensemble.queues.setdefault(name, [])
            queue.append(lock)
            first = ensemble.changed.wait_for(
                lambda: lock not in queue or queue[0] is lock, timeout=seconds
            )
            if lock not in queue:
                raise LockLostError(name)
            if not first:
                queue.remove(lock)
                raise LockWaitError(f"others are before us at {name}")
            marker = ensemble.markers.get(name, 0.0)
        read_at = time.monotonic()
        patience = ends_at - read_at
        time.sleep(max(0.0, min(marker, patience)))
        if marker > patience:
            with ensemble.changed:
                lock.require()
                ensemble.markers[name] = marker - (time.monotonic() - read_at)
                queue.remove(lock)
                ensemble.changed.notify_all()
            raise LockWaitError(f"something may be under way to {name}")
        return lock

    def close(self) -> None:
        self.ensemble.expire(self)


class MemoryLock:
    def __init__(self, owner: MemoryLocks, name: str) -> None:
        self.owner = owner
        self.name = name

    def require(self) -> None:
        if self not in self.owner.ensemble.queues[self.name]:
            raise LockLostError(f"the lock of {self.name} was lost")

    def announce(self, seconds: float) -> None:
        with self.owner.ensemble.changed:
            self.require()
            self.owner.ensemble.markers[self.name] = seconds

    def release(self, *, is_over: bool) -> bool:
        ensemble = self.owner.ensemble
        with ensemble.changed:
            if self not in ensemble.queues[self.name]:
                return False
            ensemble.queues[self.name].remove(self)
            if is_over:
                ensemble.markers.pop(self.name, None)
            ensemble.changed.notify_all()
        return True
