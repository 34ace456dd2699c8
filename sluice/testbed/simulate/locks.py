"""Insert locks of tables whose servers take one quorum insert at a time, and who loses them."""

from __future__ import annotations

from sluice.locks.port import LockLostError, LocksAwayError, LockWaitError
from sluice.testbed.simulate.faults import LOCKS
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.world import World

#: Who is gone loses its lock after so long.
SESSION_MS = 10_000
_LOOK_EVERY_MS = 200


class HeldTurn:
    """See `sluice.locks.port.HeldLock`."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._process: Process = world.process
        self._is_lost = False
        self._is_released = False
        #: When nothing can be under way any more of what was sent.
        self._over_at = 0
        self._seen_at = world.now

    def holds_up(self) -> bool:
        """Whether the next one still has to wait."""
        now, process = self._world.now, self._process
        if now < self._over_at:
            return True
        is_there = not process.is_dead and process.paused_until <= now
        if is_there:
            self._seen_at = now
        self._is_lost |= now - self._seen_at > SESSION_MS
        return not (self._is_released or self._is_lost)

    def announce(self, seconds: float) -> None:
        self._is_lost |= self._world.call("announce", LOCKS) == "lock is lost"
        if self._is_lost:
            raise LockLostError("simulated: the lock is lost")
        self._over_at = self._world.now + int(seconds * 1000)

    def release(self, *, is_over: bool) -> bool:
        self._is_released = True
        self._over_at = 0 if is_over else self._over_at
        return not self._is_lost


class SimulatedLocks:
    """See `sluice.locks.port.Locks`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[str, HeldTurn] = {}

    def acquire(self, name: str, seconds: float) -> HeldTurn:
        world = self._world
        fault = world.call("acquire a lock", LOCKS)
        if fault == "locks are away":
            raise LocksAwayError("simulated: ZooKeeper is away")
        until = world.now + int(seconds * 1000)
        while name in self._held and self._held[name].holds_up():
            if fault == "lock is lost":
                raise LockLostError("simulated: the place in the queue is lost")
            if world.now >= until:
                world.faults.note("an insert lock does not come in time")
                raise LockWaitError("simulated: another loader holds the insert lock")
            world.sleep(_LOOK_EVERY_MS)
        self._held[name] = HeldTurn(world, name)
        world.faults.note("an insert lock of a table")
        return self._held[name]

    def close(self) -> None:
        """Nothing is given back: who is gone loses its lock by itself."""
