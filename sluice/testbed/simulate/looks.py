"""What processes were told of deduplication windows, and when (R10)."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.testbed.simulate.clickhouse import Table
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.world import World


class Looks:
    """What processes were told of windows, and when (R10)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._answered: dict[tuple[Process, int], int] = {}
        #: When a process was told a table's insert counter last.
        self._told_at: dict[tuple[Process, int], int] = {}
        #: The insert counters of a table that a process was told, and when by its clock.
        self._told: dict[tuple[Process | None, int], list[tuple[int, int]]] = {}

    def told_at(self, process: Process, table: Table, before: int) -> int:
        """When a process was told a table's insert counter last.

        :param before: if it never was.
        """
        return self._told_at.get((process, id(table)), before)

    def told(self, process: Process | None, table: Table) -> Sequence[tuple[int, int]]:
        """What insert counters of a table a process was told, each with the time by its clock."""
        return self._told.get((process, id(table)), ())

    def insert_counter_answered(self, table: Table) -> None:
        """An insert counter is read for the running process."""
        key = (self._world.process, id(table))
        self._answered[key] = self._world.wall_ms()
        self._told_at[key] = self._world.now
        self._told.setdefault(key, []).append(
            (self._world.wall_ms(), table.insert_counter - table.fallen)
        )

    def check_stamp(self, table: Table, read_started_ms: int) -> None:
        """A look is as old as its question: what came after that may be missing in it."""
        answered_ms = self._answered.get((self._world.process, id(table)), read_started_ms)
        if read_started_ms > answered_ms:
            late_ms = read_started_ms - answered_ms
            name = table.shape.name
            self._world.violate(f"a look at {name} is {late_ms} ms younger than its insert counter")
