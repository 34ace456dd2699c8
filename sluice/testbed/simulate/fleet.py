"""Several drivers that share the partitions of a connector, in some worlds: what they report to
each other, and how wrong that may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.core.fleet.view import SILENT_REPORTS, Member, View
from sluice.core.ranges import TopicPartition
from sluice.driver.inheriting import Heir
from sluice.driver.ports import Membership
from sluice.testbed.simulate.kafka import Transaction, record_of
from sluice.testbed.simulate.plan import Plan
from sluice.testbed.simulate.processes import DriverProcess
from sluice.testbed.simulate.world import World

REPORT_EVERY_MS = 2_000
#: Who has not gone round for so long does not report.
HUNG_MS = 8_000
#: Many entries, so that members that do not know each other's holds never fill half of a window.
WINDOW_BLOCKS = 400
#: For so long a view is wrong in whatever it says, or does not go on.
WRONG_MS = 30_000
#: Nobody is suspected for so many reports after many fell silent at once.
CALM_REPORTS = 15


def draw_fleet(rng: random.Random, plan: Plan) -> None:
    """What a world with a fleet is like.

    :param rng: of fleets alone.
    """
    plan.members = rng.choice((1, 2, 2, 3, 3, 4, 5))
    plan.wrong = rng.choice((0.0, 0.02, 0.1, 0.3))
    plan.lease_seconds = min(plan.lease_seconds, rng.choice((8.0, 15.0, 30.0)))
    plan.inserts_take_ms = 0
    plan.partitions = {topic: rng.choice((2, 3, 5)) for topic in plan.partitions}
    # A column that one member adds is between another one's look and its insert.
    plan.dynamic = plan.dynamic if plan.tokens else None
    plan.tables = tuple(
        replace(
            shape,
            window_blocks=WINDOW_BLOCKS,
            view=shape.view and replace(shape.view, window_blocks=WINDOW_BLOCKS),
            seconds=shape.seconds and max(shape.seconds, int(6 * plan.lease_seconds)),
        )
        for shape in plan.tables
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What a member says of itself."""

    member: Member


class Reports:
    """The topic of one world: what was written comes late, or not at all."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.log: list[Report] = []
        #: Writes so many messages.
        self.produce: Callable[[TopicPartition, int], None] = lambda source, count: None

    def strikes(self, kind: str, share: float) -> bool:
        """Whether this goes wrong now."""
        strikes = self.world.faults.is_on and self.rng.random() < share * self.world.plan.wrong
        if strikes:
            self.world.faults.note(kind)
        return strikes

    def before_fencing(self, identity: str) -> None:
        """Who is taken for dead gets something to do, while its heir hesitates."""
        world, owner = self.world, identity.rpartition(".")[2]
        if owner == world.driver.owner or not self.strikes("heir hesitates", 2.0):
            return
        for source in world.sources():
            if world.owner_of(source) == owner:
                self.produce(source, 2)
        world.sleep(self.rng.randrange(5_000))

    def before_commit(self, transaction: Transaction) -> None:
        """The coordinator hears nothing of a hand-over, and its driver waits for it."""
        found = [record_of(offset) for offset in transaction.offsets.values()]
        records = [record for record in found if record is not None]
        is_new = any(r.in_doubt and r.owner == transaction.writer for r in records)
        hands_over = any(r.owner != transaction.writer for r in records)
        if is_new and hands_over and self.strikes("hand-over hangs", 10.0):
            world = self.world
            world.process.paused_until = world.now + self.rng.randrange(60_000)
            world.hang()

    def write(self, report: Report) -> None:
        """It arrives some time later."""
        if self.strikes("report lost", 1.0):
            return
        late_ms = 20_000 if self.strikes("report late", 0.5) else 300
        delay_ms = self.rng.randrange(5, late_ms)
        self.world.scheduler.at(delay_ms, lambda: self.log.append(report))


class SimulatedFleet:
    """What one incarnation of a member knows of the others."""

    def __init__(self, reports: Reports, driver: DriverProcess, member: Member) -> None:
        self._reports, self._world = reports, reports.world
        self._driver, self._member = driver, member
        self._position = 0
        self._number = 0
        #: By owner id, the last report, and how many of the own ones had come before it.
        self._seen: dict[str, tuple[int, Member]] = {}
        self._view = View(member.owner, 0, ())
        self._calm_until = 0
        self._stands_until = self._wrong_until = 0
        self.has_ended = False

    def view(self) -> View:
        """See `sluice.driver.ports.Fleet`."""
        return self._view

    def run(self) -> None:
        """An actor of the driver: report, and read what others report."""
        world, rng = self._world, self._reports.rng
        while not self.has_ended:
            loop = self._driver.connector_run.loop
            if loop is not None and world.wall_ms() - loop.round_at_ms < HUNG_MS:
                self._member = replace(self._member, spec=loop.planner.digest)
                self._reports.write(Report(self._member))
            world.sleep(REPORT_EVERY_MS // 2 + rng.randrange(REPORT_EVERY_MS // 2))
            self._read()
            world.sleep(REPORT_EVERY_MS // 4 + rng.randrange(REPORT_EVERY_MS // 2))
            self._read()

    def _read(self) -> None:
        world, reports = self._world, self._reports
        if reports.strikes("view stands still", 0.2):
            self._stands_until = world.now + reports.rng.randrange(WRONG_MS)
        if reports.strikes("view is wrong", 0.3):
            self._wrong_until = world.now + reports.rng.randrange(WRONG_MS)
        if world.faults.is_on and world.now < self._stands_until:
            return
        before = {each.owner for each in self._view.living}
        for report in reports.log[self._position :]:
            self._number += report.member.owner == self._member.owner
            self._seen[report.member.owner] = self._number, report.member
        self._position = len(reports.log)
        living = {
            owner: member
            for owner, (number, member) in self._seen.items()
            if self._number - number < SILENT_REPORTS
        }
        silent = before - living.keys()
        if len(silent) >= 2 and 3 * len(silent) >= len(before):
            self._calm_until = self._number + CALM_REPORTS
        is_suspecting = self._number >= self._calm_until
        if world.faults.is_on and world.now < self._wrong_until:
            living, is_suspecting = self._wrong()
        ordered = tuple(member for _, member in sorted(living.items()))
        self._view = View(self._member.owner, self._number, ordered, is_suspecting)

    def _wrong(self) -> tuple[dict[str, Member], bool]:
        """Who looks lives, and anybody else who ever reported may, or may not."""
        rng = self._reports.rng
        known = {owner: member for owner, (_, member) in self._seen.items() if rng.random() < 0.5}
        slots = {o: replace(each, slots=rng.choice((1, 1, 4))) for o, each in known.items()}
        return {**slots, self._member.owner: self._member}, rng.random() < 0.8


def membership(reports: Reports, driver: DriverProcess, name: str) -> Membership:
    """That of a driver; each time that it joins it has another owner id."""
    joined: list[SimulatedFleet] = []

    def join(owner: str) -> SimulatedFleet:
        world = reports.world
        if joined and driver.owner == owner:
            return joined[-1]
        for each in joined:
            each.has_ended = True
        driver.owner, driver.fenced_at = owner, 0
        world.faults.note("member of a fleet joins")
        member = Member(owner, name, "", slots=reports.rng.choice((1, 1, 2)))
        fleet = SimulatedFleet(reports, driver, member)
        joined.append(fleet)
        world.scheduler.spawn(driver, fleet.run)
        return fleet

    return Membership(name, join)


class SimulatedHeir(Heir):
    """The real heir; each look is an actor of the driver."""

    world: World

    def look(
        self,
        held: Mapping[Any, Any],
        view: View,
        batch: int,
        finished: Any,
    ) -> None:
        self.world.scheduler.spawn(
            self.world.process, lambda: self._run(held, view, batch, finished)
        )
