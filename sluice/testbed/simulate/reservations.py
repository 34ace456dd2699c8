"""What must hold whenever a driver reserves entries of a window (R10), and whenever a member of a
fleet may, beside what others hold (R24): seen by somebody who knows what all of them hold.

A mistake there doubles a row only once a window is overrun while a range waits, which takes long in
a world as in life. What the rules rest on breaks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluice.core.fleet.floors import FLOOR_SHARE, STARTS
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.testbed.simulate.clickhouse import Table
from sluice.testbed.simulate.inserters import Inserters
from sluice.testbed.simulate.processes import DriverProcess
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


def driver_of(world: World, record: Record) -> DriverProcess | None:
    """The driver that a record names, if it lives."""
    return next((driver for driver in world.drivers if driver.owner == record.owner), None)


class ReservationRules:
    """Of one world.

    :param backgrounds: what each range is remembered by, as recorded; the caller's own mapping.
    :param violate: told what rule is broken, and where.
    """

    def __init__(
        self,
        world: World,
        inserters: Inserters,
        looks: Looks,
        backgrounds: Mapping[TopicPartition, Mapping[str, Any]],
        violate: Callable[[TopicPartition, str], None],
    ) -> None:
        self._world, self._inserters, self._looks = world, inserters, looks
        self._backgrounds, self._violate = backgrounds, violate

    def check(self, source: TopicPartition, records: Mapping[TopicPartition, Record]) -> None:
        """A new range reserves no more than what is left of half of a window: by all of its driver
        that may still insert, and by what came into it since the oldest of them (R10)."""
        world, owner = self._world, records[source].owner
        if not world.plan.members:
            records = {of: each for of, each in records.items() if each.owner == owner}
        for table in world.clickhouse.tables():
            key = " and ".join(table.target_shards)
            insert_counters = {of: self._insert_counters(of, table) for of in self._backgrounds}
            held = {
                of: record.reservation * len(insert_counters[of])
                for of, record in records.items()
                if record.in_doubt and record.deadline_ms > world.now and insert_counters.get(of)
            }
            if source not in held or held.keys() & world.excused.keys():
                continue
            # The members of a bundle have one block.
            holds = {records[of].bundle or of: reservation for of, reservation in held.items()}
            driver = driver_of(world, records[source])
            planned_at = records[source].deadline_ms - int(world.plan.lease_seconds * 1000)
            told = self._looks.told(driver, table)
            # The last one may be part of a look that was not over yet, and one may have fallen; one
            # that came while the driver slept in its round, after its lease was counted from, too.
            seen = [insert_counter for at, insert_counter in told if at <= planned_at][-3:]
            later = [insert_counter for at, insert_counter in told if at > planned_at]
            reading = min([*seen, *later], default=0)
            if world.plan.members and driver is not None:
                oldest = {of: min(insert_counters[of]) for of in held}
                self._check_share(table, driver, records, oldest, holds, reading)
            created = reading - min(min(insert_counters[of]) for of in held)
            usable = table.shape.window_blocks // 2
            if max(0, created) + sum(holds.values()) > usable:
                self._violate(
                    source,
                    f"{holds} are reserved, and {created} entries came into {key} since the oldest "
                    f"insert counter: more than {usable} (R10)",
                )

    def check_floors(self, driver: DriverProcess) -> None:
        """A member of a fleet knows what others hold (R24)."""
        world, loop = self._world, driver.connector_run.loop
        if loop is None or not world.plan.members:
            return
        held = {
            source: record
            for source in world.sources()
            if source not in world.excused and (record := world.recorded(source)) is not None
            if record.in_doubt and record.deadline_ms > world.now
        }
        for table in world.clickhouse.tables():
            counters = {of: self._insert_counters(of, table) for of in held}
            oldest = {of: min(found) for of, found in counters.items() if found}
            holds = {
                held[of].bundle or of: held[of].reservation * len(counters[of])
                for of in oldest.keys() - loop.states.keys()
            }
            self._check_floor(table, driver, oldest, holds)

    def _insert_counters(self, of: TopicPartition, table: Table) -> list[int]:
        """What a range is remembered by, of the windows that a table is."""
        marks = self._backgrounds[of]["insert_counters"] if of in self._backgrounds else {}
        return [marks[name] for name in table.target_shards if name in marks]

    def _check_share(
        self,
        table: Table,
        driver: DriverProcess,
        records: Mapping[TopicPartition, Record],
        oldest: Mapping[TopicPartition, int],
        holds: Mapping[TopicPartition | str, int],
        reading: int,
    ) -> None:
        """A driver has reserved entries of a table's window.

        :param oldest: by partition, the insert counter of what is in doubt under a lease; `holds`:
            what is reserved, of each bundle once.
        :param reading: the insert counter by which the driver has reserved.
        """
        of = self._oldest_of_others(table, driver, oldest)
        loop = driver.connector_run.loop
        if of is None or loop is None:
            return
        own = loop.states.keys() & oldest.keys()
        reserved = sum(holds[key] for key in {records[s].bundle or s for s in own})
        blocks, came = table.shape.window_blocks, reading - of[1]
        if STARTS * self._world.plan.members * reserved > blocks // FLOOR_SHARE - max(0, came):
            self._world.violate(
                f"{driver.owner} reserves {reserved} of {blocks} entries of {table.shape.name}, of "
                f"which {came} came since what {of[0]} holds for another one (R24)"
            )

    def _check_floor(
        self,
        table: Table,
        driver: DriverProcess,
        oldest: Mapping[TopicPartition, int],
        holds: Mapping[TopicPartition | str, int],
    ) -> None:
        """Who may reserve knows of no floor that is above what another one holds, and no others
        have reserved more than all shares: whether it does so just now or not. Only who was fenced
        may be wrong.

        :param oldest: see `_check_share`; `holds`: the same of what the driver does not have.
        """
        loop = driver.connector_run.loop
        of = self._oldest_of_others(table, driver, oldest)
        if of is None or loop is None or driver.is_inherited:
            return
        blocks, reserved = table.shape.window_blocks, sum(holds.values())
        for target_shard, window in loop.windows.items():
            share = window.state.share
            if target_shard.key not in table.target_shards or (share and share.floor is None):
                continue
            if share is None or share.floor is None or share.floor > of[1]:
                known = "nobody" if share is None else f"the floor {share.floor}"
                self._world.violate(
                    f"{driver.owner} knows of {known} when it may reserve entries of "
                    f"{table.shape.name}, and {of[0]} holds {of[1]} for another one (R24)"
                )
                return
            if reserved > blocks // FLOOR_SHARE:
                self._world.violate(
                    f"{driver.owner} may reserve entries of {table.shape.name}, of whose {blocks} "
                    f"others have reserved {reserved} (R24)"
                )
                return

    def _oldest_of_others(
        self, table: Table, driver: DriverProcess, oldest: Mapping[TopicPartition, int]
    ) -> tuple[TopicPartition, int] | None:
        """The oldest insert counter of what others may still insert, settled or not; None: they
        may insert nothing."""
        loop = driver.connector_run.loop
        if loop is None:
            return None
        own = loop.states.keys()
        excused = self._world.excused.keys()
        others = [(of, counter) for of, counter in oldest.items() if of not in own]
        others += [
            (source, each.insert_counters[name])
            for each in self._inserters.all_of()
            for name in table.target_shards
            for source in each.records
            if name in each.insert_counters
            and each.reaches(table)
            and not each.records.keys() & (excused | own)
        ]
        return min(others, key=lambda found: found[1], default=None)
