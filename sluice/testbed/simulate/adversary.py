"""Who knows everything, and strikes when it does most harm, within what the rules allow.

Chance alone seldom brings the last moment before a comparison together with a window that is full
to the last entry it may have. What is allowed is used up exactly there.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.testbed.simulate.clickhouse import Block, Table
from sluice.testbed.simulate.registry import Registry
from sluice.testbed.simulate.world import World

_Key = tuple[int, object]


class Adversary:
    """Of one world."""

    def __init__(self, world: World, registry: Registry) -> None:
        self._world = world
        self._registry = registry
        self._waiting: dict[_Key, list[Callable[[], None]]] = {}
        self._written: dict[int, list[tuple[int, int]]] = {}

    # Foreign writers

    def allowance(self, table: Table) -> int:
        """As much as others may write now: within one lease less than half of the window."""
        since = self._world.now - self._world.plan.quiet_ms
        written = self._written.setdefault(id(table), [])
        written[:] = [item for item in written if item[0] > since]
        recent = sum(count for _, count in written)
        return table.shape.window_blocks // 2 - 1 - recent

    def write_foreign(self, table: Table, count: int) -> None:
        """Somebody else writes, as much as is allowed."""
        count = min(count, self.allowance(table))
        if count > 0:
            self._written[id(table)].append((self._world.now, count))
            table.write_foreign(count)

    def fill_window(self) -> None:
        """As much as others may write within one lease: less than half of the window."""
        world = self._world
        table = world.rng.choice(world.clickhouse.with_views())
        self.write_foreign(table, world.rng.randrange(1, 8))

    def flood_windows(self) -> None:
        """More than a window: only while nobody looked at it for longer than any lease."""
        world = self._world
        if world.now - world.active_at > world.plan.quiet_ms:
            world.faults.note("window overrun")
            every = world.clickhouse.with_views()
            for table in every if world.rng.random() < 0.5 else [world.rng.choice(every)]:
                blocks = table.shape.window_blocks
                # Beyond half of it the loader has to look, although the token is still known.
                table.write_foreign(world.rng.choice((blocks // 2 + 1, 2 * blocks)))

    def load_elsewhere(self) -> None:
        """Another pipeline loads the same messages into the same table: one entry of its window."""
        world, rng = self._world, self._world.rng
        table = rng.choice(list(world.clickhouse.tables()))
        source = rng.choice(world.sources())
        end = world.broker.log(source).end
        for offset in range(rng.randrange(end + 1), end):
            table.others[source, offset] += 1
        self.write_foreign(table, 1)

    def load_as_others(self, table: Table, block: Block) -> None:
        """What Sluice may not have loaded, another pipeline has: it says so in each row."""
        world = self._world
        if world.faults.is_on and world.rng.random() < world.plan.malice / 2:
            world.faults.note("rows of another pipeline")
            for row in block.rows:
                table.others[row.source, row.offset] += 1
            self.write_foreign(table, 1)

    def forget_schemas(self) -> None:
        """What a block was made with, the registry may not know when it is made again."""
        world = self._world
        if world.faults.is_on and world.rng.random() < world.plan.malice:
            world.faults.note("registry forgets for a while")
            patience_ms = int(world.plan.patience_seconds * 1000)
            self._registry.forget(world.rng.choice((2, 4, 8)) * patience_ms)

    def before_store(self, table: Table, token: str) -> None:
        """A block is about to be stored: if it is a repeat, others may push it out just now."""
        world = self._world
        if not world.faults.is_on or world.rng.random() > world.plan.malice:
            return
        needed = table.entries_until_forgotten(token)
        if needed is None:
            return
        seconds = table.shape.seconds
        if seconds is not None and table.seconds_of(token) > seconds:
            needed = 1
        if needed <= self.allowance(table):
            world.say(f"{needed} foreign entries push {token} out of {table.shape.name}")
            self.write_foreign(table, needed)

    # Late landings

    def wait(self, table: Table, token: str | None, strike: Callable[[], None]) -> None:
        """Something strikes as soon as this token is forgotten."""
        self._waiting.setdefault((id(table), token), []).append(strike)

    def end(self, table: Table, token: str | None, strike: Callable[[], None]) -> None:
        """It does not wait any more."""
        waiting = self._waiting.get((id(table), token), [])
        if strike in waiting:
            waiting.remove(strike)

    def forgotten(self, table: Table, identity: object) -> None:
        """A window has forgotten a part: who may still insert its block does so now."""
        if type(identity) is tuple:
            for strike in self._waiting.pop((id(table), identity[-1]), []):
                self._world.scheduler.at(0, strike)
