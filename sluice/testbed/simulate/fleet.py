"""Several drivers that share the partitions of a connector, in some worlds: what they report to
each other, and how wrong that may be."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sluice.core.fleet.floors import FLOOR_SHARE, STARTS
from sluice.core.fleet.records import Gone, Report
from sluice.core.fleet.view import Member, View
from sluice.core.ranges import TopicPartition
from sluice.driver.fleet import FleetMember
from sluice.driver.inheriting import Heir
from sluice.kafka.fleet import Message
from sluice.testbed.simulate.kafka import Transaction, record_of
from sluice.testbed.simulate.plan import Plan
from sluice.testbed.simulate.world import VirtualEvent, World

REPORT_EVERY_MS = 2_000
#: For so long a view is wrong in whatever it says, or does not go on.
WRONG_MS = 30_000
#: A share of a window is so many entries: a block takes one, and of a partitioned table several.
ENTRIES_OF_SHARE, ENTRIES_OF_PARTITIONED = (2, 3, 6), (10, 16)


def draw_fleet(rng: random.Random, plan: Plan) -> None:
    """What a world with a fleet is like.

    :param rng: of fleets alone.
    """
    plan.members = rng.choice((1, 2, 2, 3, 3, 4, 5))
    plan.wrong = rng.choice((0.0, 0.02, 0.1, 0.3))
    # Some leases are over before anybody counts as silent, and some long after that.
    plan.lease_seconds = rng.choice((8.0, 15.0, 30.0, 60.0))
    plan.inserts_take_ms = 0
    # Where each member is struck as often as a driver alone, no two of them ever load together.
    plan.is_calm = plan.is_calm or rng.random() < 0.6
    plan.partitions = {topic: rng.choice((2, 3, 5)) for topic in plan.partitions}
    # A column that one member adds is between another one's look and its insert.
    plan.dynamic = plan.dynamic if plan.tokens else None
    # Where blocks take one entry each windows are filled soon.
    is_flat = rng.random() < 0.7
    ways = len(plan.entries) - len(plan.tables) + 1
    share = ways * rng.choice(ENTRIES_OF_SHARE if is_flat else ENTRIES_OF_PARTITIONED)
    window: dict[str, Any] = {"window_blocks": share * FLOOR_SHARE * STARTS * plan.members}
    window |= {"partition_divisor": 0} if is_flat else {}
    plan.tables = tuple(
        replace(
            shape,
            **window,
            view=shape.view and replace(shape.view, **window),
            seconds=shape.seconds and max(shape.seconds, int(6 * plan.lease_seconds)),
        )
        for shape in plan.tables
    )


class Reports:
    """The topic of one world: what is written comes late, or not at all."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        #: Messages by offset; those that were compacted away are missing.
        self.log: dict[int, tuple[int, Report | Gone]] = {}
        self.end = 0
        #: Raised when the topic is made anew.
        self.life = 0
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
        if owner == world.driver.owner:
            return
        for driver in world.drivers:
            driver.is_inherited |= driver.owner == owner
        if not self.strikes("heir hesitates", 2.0):
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

    def write(self, message: Report | Gone) -> None:
        """It arrives some time later."""
        if self.strikes("report lost", 1.0):
            return
        late_ms = 20_000 if self.strikes("report late", 0.5) else 300
        self.world.scheduler.at(self.rng.randrange(5, late_ms), lambda: self._arrived(message))
        if self.strikes("fleet's topic made anew", 0.1):
            self.log, self.end, self.life = {}, 0, self.life + 1

    def _arrived(self, message: Report | Gone) -> None:
        self.log[self.end] = self.world.now, message
        self.end += 1

    def compact(self) -> None:
        """Of each id the last message is left, and nothing of those that are gone."""
        last = {message.owner: offset for offset, (_, message) in self.log.items()}
        self.log = {
            offset: self.log[offset]
            for offset in sorted(last.values())
            if not isinstance(self.log[offset][1], Gone)
        }


class SimulatedTopic:
    """The topic as one driver reads and writes it."""

    unreadable = 0

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._world = reports.world
        self._position, self._life, self._stands_until = 0, reports.life, 0
        if self._world.faults.is_on and reports.rng.random() < 0.3:
            reports.compact()

    @property
    def end(self) -> int:
        """See `FleetTopic`."""
        return self._reports.end

    @property
    def caught_up(self) -> bool:
        """See `FleetTopic`."""
        return self._position >= self._reports.end

    def poll(self, timeout_seconds: float) -> list[Message]:
        """What has come; looks are rare, since each is a step."""
        world, reports, rng = self._world, self._reports, self._reports.rng
        world.sleep(REPORT_EVERY_MS // 4 + rng.randrange(REPORT_EVERY_MS // 4))
        if reports.strikes("view stands still", 0.1):
            self._stands_until = world.now + rng.randrange(WRONG_MS)
        if world.faults.is_on and world.now < self._stands_until:
            return []
        if self._life != reports.life:
            self._position, self._life = 0, reports.life
        begin, self._position = self._position, reports.end
        found = range(begin, self._position)
        return [Message(n, *reports.log[n]) for n in found if n in reports.log]

    def send(self, report: Report) -> None:
        """See `FleetTopic`."""
        self._reports.write(report)

    def bury(self, owner: str) -> None:
        """See `FleetTopic`."""
        self._world.faults.note("owner id written off")
        self._reports.write(Gone(owner))

    def flush(self, timeout_seconds: float) -> bool:
        """See `FleetTopic`."""
        return True

    def close(self) -> None:
        """See `FleetTopic`."""


class SimulatedMember(FleetMember):
    """The real member; its thread is an actor of the driver. What it sees is wrong at times."""

    reports: Reports

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        world = self.reports.world
        self._ended = VirtualEvent(world)
        self._blank = replace(self._blank, slots=self.reports.rng.choice((1, 1, 2)))
        self._wrong_until, self._wrong_view = 0, self._view
        self._ever: dict[str, Member] = {}
        world.driver.owner, world.driver.fenced_at = self._owner, 0
        world.driver.is_inherited = False
        world.faults.note("member of a fleet joins")

    def _begin(self) -> None:
        self.reports.world.scheduler.spawn(self.reports.world.process, self._run)

    def _publish(self) -> None:
        super()._publish()
        reports, world = self.reports, self.reports.world
        self._ever |= {each.owner: each for each in self._view.living}
        if reports.strikes("view is wrong", 0.3):
            self._wrong_until = world.now + reports.rng.randrange(WRONG_MS)
        self._wrong_view = self._wrong()

    def view(self) -> View:
        world = self.reports.world
        is_wrong = world.faults.is_on and world.now < self._wrong_until
        return self._wrong_view if is_wrong else self._view

    def _wrong(self) -> View:
        """Who looks lives, and anybody else who ever reported may, or may not."""
        rng, view = self.reports.rng, self._view
        own = [each for each in view.living if each.owner == self._owner]
        others = [each for each in self._ever.values() if each.owner != self._owner]
        living = own + [
            replace(each, slots=rng.choice((1, 1, 4))) for each in others if rng.random() < 0.5
        ]
        silent = [each.owner for each in others if each not in living and rng.random() < 0.5]
        # By dice of their own: whatever else is drawn stays as it was.
        levels = random.Random(f"{self._owner} {view.number}")
        busy = {source: levels.randrange(4) for source in self.reports.world.sources()}
        return replace(
            view,
            living=tuple(sorted(living, key=lambda each: each.owner)),
            silent=tuple(sorted({*silent, *view.silent})),
            is_suspecting=rng.random() < 0.8,
            busy={source: level for source, level in busy.items() if level},
        )


def member_in(reports: Reports) -> type[FleetMember]:
    """The members of one world."""
    return type("Member", (SimulatedMember,), {"reports": reports})


def topic_in(reports: Reports) -> Callable[..., SimulatedTopic]:
    """Opens the topic of one world."""
    return lambda *_, **__: SimulatedTopic(reports)


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
