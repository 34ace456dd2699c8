"""How parts come from one replica to the others, and what becomes of those that never do; insert
locks of tables whose servers take one quorum insert at a time, and who loses them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sluice.locks.port import LockLostError, LocksAwayError, LockWaitError
from sluice.testbed.simulate.clickhouse import Block, Host, Part, Table
from sluice.testbed.simulate.faults import LOCKS
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.world import World

#: How often a replica tries to fetch what it lacks.
_AGAIN_MS = 700
#: How often the only replica that has a part goes away before another one has it.
_DIES_SHARE = 0.05


@dataclass(slots=True, eq=False)
class _Open:
    """A part that only one replica has, and whose insert waits for another one."""

    table: Table
    part: Part
    holder: Host


class Quorums:
    """The replicas' queues of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[_Open] = []
        #: How many parts of all tables were lost, and of each, by its path.
        self.lost = 0
        self.lost_of = Counter[str]()

    def is_open(self, table: Table) -> bool:
        """Whether an insert into this table waits for its quorum."""
        return any(each.table is table for each in self._open)

    def holds(self, table: Table, token: str | None, block: Block) -> bool:
        """Whether a part of this block waits for its quorum."""
        rows = set(block.rows)
        return any(each.table is table and rows & set(each.part.rows) for each in self._open)

    def has(self, table: Table, block: Block, host: Host) -> bool:
        """Whether a server has all parts of this block that wait for their quorum."""
        rows = set(block.rows)
        open_of = [e for e in self._open if e.table is table and rows & set(e.part.rows)]
        return all(each.holder is host for each in open_of)

    def fetch_later(
        self, table: Table, host: Host, holder: Host, parts: list[Part], quorum: int
    ) -> None:
        """A replica fetches parts that another one has just stored."""
        world = self._world
        table.unfetched.setdefault(host.url, []).extend(parts)
        waiting = [_Open(table, part, holder) for part in parts] if quorum > 1 else []
        self._open += waiting
        strikes = waiting and world.faults.is_on and world.faults.rate > 0
        if strikes and world.rng.random() < _DIES_SHARE:
            holder.down_until = world.now + world.rng.randrange(10_000, 60_000)
        lag_ms = world.rng.randrange(
            world.rng.choice((20, 4_000, world.plan.lag_ms, world.plan.lag_ms))
        )

        def fetch() -> None:
            lacking = table.unfetched[host.url]
            left = [part for part in parts if part in lacking]
            if not left:
                return
            if host.down_until > world.now or holder.down_until > world.now:
                self._maybe_lose(waiting)
                world.scheduler.at(_AGAIN_MS, fetch)
                return
            for part in left:
                lacking.remove(part)
            for each in waiting:
                if each in self._open:
                    self._open.remove(each)

        world.scheduler.at(lag_ms, fetch)

    def _maybe_lose(self, waiting: list[_Open]) -> None:
        """Where the only replica that has a part is away, the others give it up. Nobody was told
        that it is stored."""
        world = self._world
        for each in waiting:
            is_away = each.holder.down_until > world.now
            if each in self._open and is_away and world.faults.is_on and world.rng.random() < 0.2:
                world.faults.note("part lost before its quorum came")
                world.say(f"loses {each.part.identity}")
                self._open.remove(each)
                each.table.lose(each.part)
                self.lost += 1
                self.lost_of[each.table.path] += 1


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
