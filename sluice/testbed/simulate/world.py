"""One seed's world: everything around the real code, and the order in which it breaks."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping

from sluice.clickhouse.insert import InsertPlan
from sluice.config import Configuration
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.testbed.simulate.adversary import Adversary
from sluice.testbed.simulate.checks import Checks
from sluice.testbed.simulate.claim_rules import ClaimRules
from sluice.testbed.simulate.claims import Events, Kept, draw_claims
from sluice.testbed.simulate.clickhouse import ClickHouse, Host, Table, TableShape
from sluice.testbed.simulate.clients import AbandonedError
from sluice.testbed.simulate.decoding import make_message
from sluice.testbed.simulate.driver import Driver, make_configuration
from sluice.testbed.simulate.faults import ANYWHERE, INSERT, Faults
from sluice.testbed.simulate.invariants import Invariants
from sluice.testbed.simulate.kafka import Broker, Log, Transaction
from sluice.testbed.simulate.locks import SimulatedLocks
from sluice.testbed.simulate.nemesis import Nemesis
from sluice.testbed.simulate.plan import draw_plan
from sluice.testbed.simulate.quorums import Quorums
from sluice.testbed.simulate.registry import Registry, schema_of
from sluice.testbed.simulate.scheduler import START_MS, Actor, KilledError, Process, Scheduler
from sluice.testbed.simulate.spark import Worker

#: A drain that takes longer is no drain.
DRAIN_MS_MAX = 4 * 3600 * 1000
DRAIN_STEPS_MAX = 40_000
#: How often the drain looks whether it is done, in events.
LOOK_EVERY = 40

#: Faults of a calm world, compared with the others.
CALM_RATE = 0.25

_ANYWHERE = frozenset(ANYWHERE)


def make_clickhouse(world: World) -> ClickHouse:
    def make(shape: TableShape, shard: str) -> Table:
        entries = tuple(e for e, name in world.plan.entries.items() if name == shape.name)
        table = Table(shape, shard, lambda: world.scheduler.now, world.plan.tokens, entries)
        table.forgotten = world.adversary.forgotten
        if shape.view is not None:
            table.views.append(make(shape.view, shard))
        return table

    shards = {
        shard: {shape.name: make(shape, shard) for shape in world.plan.tables}
        for shard in world.plan.shards
    }
    return ClickHouse(
        shards,
        [
            Host(url, shard, tables, world.draw_skew_ms())
            for shard, tables in shards.items()
            for url in world.plan.replicas(shard)
        ],
    )


class World:
    """Everything that a run needs; `checks.violations` says what went wrong.

    :param steps: with faults; afterwards everything is healed and must drain.
    :param rate: probability that a fault of weight 1 strikes at a step.
    :param late_ms: see `Plan.late_ms_max`.
    :param is_shown: let the loader's log through.
    """

    def __init__(
        self, seed: int, steps: int, rate: float, late_ms: int, *, is_shown: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.is_shown = is_shown
        self.faults = Faults(self.rng, rate)
        self.plan = draw_plan(self.rng)
        self.plan.late_ms_max = late_ms
        #: Chance of all that is about claims: worlds without them are the same as ever.
        claims_rng = random.Random(f"{seed}/claims")
        claims = draw_claims(seed, claims_rng, self.plan)
        if self.plan.is_calm:
            self.faults.rate *= CALM_RATE
        self.scheduler = Scheduler(self._is_over)
        self.scheduler.on_crash = self._crashed
        self.broker = Broker(self.scheduler.at, lambda: self.rng.randrange(1, 40))
        self.broker.timed_out = lambda transaction: self.faults.note("own transaction timed out")
        self.adversary = Adversary(self)
        self.invariants = Invariants(self)
        self.quorums = Quorums(self)
        self.registry = Registry(self)
        self.locks = SimulatedLocks(self)
        self.clickhouse = make_clickhouse(self)
        #: None where nobody deduplicates.
        self.claims = None if claims is None else Kept(self, claims, claims_rng)
        self.events = None if claims is None else Events(claims_rng, claims)
        self.claim_rules = ClaimRules(self)
        if claims is not None:
            self.plan.has_lineage = True
            self.faults.add(claims_rng)
        self.checks = Checks(self)
        self.broker.decided = self.invariants.decided
        self.broker.committing = self.checks.committing
        self.nemesis = Nemesis(self)
        self.drivers: dict[Driver, None] = {}
        self.tasks_running = 0
        self.inserts_running = 0
        #: Workers that have looked at a table's columns and are about to insert.
        self.looking: dict[Process, None] = {}
        self.active_at = 0
        self.excused: dict[TopicPartition, str] = {}
        #: Partitions whose logs lost their ends.
        self.cut_logs: set[TopicPartition] = set()
        self._steps = steps
        self._healed_at: tuple[int, int] | None = None
        self._look_in = LOOK_EVERY
        self._names = 0
        self.messages = 0
        self._make_topics()

    # What the running actor sees

    @property
    def now(self) -> int:
        """True time in milliseconds."""
        return self.scheduler.now

    @property
    def process(self) -> Process:
        """Whose code is running."""
        actor = self.scheduler.current
        assert actor is not None
        return actor.process

    @property
    def driver(self) -> Driver:
        """The driver whose code is running."""
        process = self.process
        assert isinstance(process, Driver)
        return process

    @property
    def is_in_step(self) -> bool:
        """Whether this is a driver that started together with another one."""
        process = self.process
        return isinstance(process, Driver) and process.is_in_step

    @property
    def is_inserting(self) -> bool:
        """Whether the running process is a worker."""
        return isinstance(self.process, Worker)

    def is_looked_at(self) -> bool:
        """Whether a worker has looked at a table's columns and is about to insert."""
        return any(isinstance(who, Worker) for who in self.looking)

    def wall_ms(self) -> int:
        """The wall clock of the running process."""
        return self.scheduler.now + self.process.skew_ms

    def say(self, what: str) -> None:
        """Tell a person who watches one seed."""
        if self.is_shown:
            actor = self.scheduler.current
            who = actor.process.name if actor is not None else "world"
            at_seconds = (self.now - START_MS) / 1000
            print(f"{self.scheduler.steps:6} {at_seconds:9.3f} {who}: {what}", file=sys.stderr)

    def sleep(self, delay_ms: int) -> None:
        """Let time pass."""
        self.scheduler.sleep(delay_ms)

    def call(self, label: str, table: dict[str, float]) -> str | None:
        """A place where a process touches the world; gives the fault that strikes there."""
        scheduler = self.scheduler
        scheduler.step(label)
        process = self.process
        if isinstance(process, Driver):
            self.active_at = scheduler.now
        fault = self.faults.draw(table)
        delay_ms = 1 + int(self.rng.random() * 6)
        if fault is not None:
            self.say(f"{fault} at {label}")
        if fault in _ANYWHERE:
            if fault == "process killed":
                self.kill(process)
                raise KilledError
            if fault == "process paused":
                process.paused_until = scheduler.now + self.draw_pause_ms()
            else:
                delay_ms += self.rng.randrange(4_000)
            fault = None
        scheduler.sleep(delay_ms)
        return fault

    def hang(self) -> None:
        """A call that does not come back until its caller leaves it alone."""
        actor = self.scheduler.current
        assert actor is not None and actor.call_until
        self.sleep(max(1, actor.call_until - self.now))
        raise AbandonedError

    def records_of_task(self) -> Mapping[TopicPartition, Record]:
        """What the running task was sent with: of what it loads as one block just now."""
        worker = self.process
        assert isinstance(worker, Worker) and worker.records
        if worker.attempt:
            self.checks.violate(f"a task that was started again inserts {worker.records} (R10)")
        return worker.records

    def since_ms_of_task(self) -> int:
        """Since when what the running task loads may have been inserted, as it was told."""
        worker = self.process
        assert isinstance(worker, Worker)
        return worker.since_ms

    def before_insert(self, plan: InsertPlan) -> None:
        """The running task is about to insert."""
        worker = self.process
        assert isinstance(worker, Worker)
        strikes, worker.before_insert = worker.before_insert, None
        if strikes is not None:
            strikes()
            self.sleep(1)

    def draw_insert_fault(self) -> str | None:
        """What strikes the insert of the running task."""
        worker = self.process
        assert isinstance(worker, Worker)
        fault, worker.insert_fault = worker.insert_fault, None
        return fault or self.faults.draw(INSERT)

    # What the world draws

    def named(self) -> int:
        """A number that nobody else has."""
        self._names += 1
        return self._names

    def draw_skew_ms(self) -> int:
        """How far a clock is off: any two differ by less than 5 s (R9)."""
        return self.rng.randrange(-2_400, 2_400)

    def draw_pause_ms(self) -> int:
        """Mostly short, sometimes beyond every lease."""
        lease_ms = int(self.plan.lease_seconds * 1000)
        return self.rng.randrange(self.rng.choice((3_000, 20_000, 70_000, 3 * lease_ms)))

    # Processes

    def kill(self, process: Process, *, tasks_live_on: bool | None = None) -> None:
        """Kill a process; a driver takes its workers along, at once or later."""
        self.scheduler.kill(process)
        if isinstance(process, Driver):
            live_on = self.rng.random() < 0.5 if tasks_live_on is None else tasks_live_on
            self.driver_ended(process, tasks_live_on=live_on)

    def driver_ended(self, driver: Driver, *, tasks_live_on: bool) -> None:
        """Look at what it left, and see to a successor."""
        if driver not in self.drivers:
            return
        del self.drivers[driver]
        self.checks.look_at_stops(driver)
        if "has another columns" in driver.connector_run.ending:
            self.faults.note("shards left with different columns")
            self.nemesis.align_columns()
        driver.application.end(tasks_live_on=tasks_live_on)
        self.scheduler.at(0, lambda: self.scheduler.kill(driver))
        if not self.drivers:
            self.scheduler.at(self.nemesis.draw_restart_ms(), self.ensure_driver)

    def ensure_driver(self) -> None:
        """A supervisor: somebody has to work."""
        if not self.drivers:
            self.start_driver()
            if self.faults.is_on and self.rng.random() < 0.15:
                self.faults.note("two drivers start at once")
                self.start_driver()

    def start_driver(self, *, is_in_step: bool = False) -> None:
        """One more driver."""
        driver = Driver(self, is_in_step=is_in_step)
        self.drivers[driver] = None
        self.scheduler.spawn(driver, driver.main)

    def configuration(self) -> Configuration:
        """The configuration file of today."""
        return make_configuration(self)

    # ClickHouse

    def restart(self, host: Host, for_ms: int) -> None:
        """What runs there is lost."""
        host.restarts += 1
        host.down_until = host.started_at = self.now + for_ms

    # Topics

    def owner_of(self, source: TopicPartition) -> str | None:
        """Who may record next, if nobody is about to."""
        if source in self.broker.pending:
            return None
        record = self.checks.recorded(self.broker.group.get(source))
        return None if record is None else record.owner

    def _make_topics(self) -> None:
        for number, (topic, count) in enumerate(sorted(self.plan.partitions.items())):
            self.broker.topics[topic] = [Log() for _ in range(count)]
            self.broker.ids[topic] = self.topic_id(f"AAAAAAAAAA{number}")
        plan = self.plan
        for own in (plan.ledger, plan.dead_letters, plan.parking, plan.duplicates):
            self.broker.topics[own] = [Log()]

    def topic_id(self, text: str) -> str:
        """The id of a topic. To claims it is its bytes, of which the last letter says little."""
        return text if self.claims is None else f"{text[1:]}A"

    def sources(self) -> list[TopicPartition]:
        """All partitions of all source topics."""
        return [
            TopicPartition(topic, number)
            for topic in self.broker.ids
            for number in range(len(self.broker.topics[topic]))
        ]

    def produce(
        self, source: TopicPartition, count: int, transaction: Transaction | None = None
    ) -> None:
        """Messages of all kinds."""
        log = self.broker.log(source)
        for _ in range(count):
            self.messages += 1
            if self.events is not None:
                self.events.add(self.messages, self.now)
            oversize = self.plan.letter_bytes_max + 2_000
            stored, fault = make_message(self.rng, self.messages, self.now, oversize)
            if fault is not None:
                self.faults.note(fault)
            schema = schema_of(self.messages)
            if schema is not None and self.plan.registered:
                self.registry.named(schema)
            log.append(stored, transaction)

    # The run

    def run(self) -> None:
        """Faults, then healing, then the drain; violations are in `checks`."""
        self.start_driver()
        self.nemesis.start()
        self.scheduler.run()
        self.checks.final()

    def close(self) -> None:
        """End every thread."""
        self.faults.is_on = False
        self.scheduler.end()

    def _crashed(self, actor: Actor, error: BaseException) -> None:
        self.checks.violate(f"{actor.process.name} ended on a bug: {type(error).__name__}: {error}")
        if self.is_shown:
            import traceback

            traceback.print_exception(error)

    def _is_over(self) -> bool:
        if self.checks.violations:
            return True
        if self._healed_at is None:
            if self.scheduler.steps >= self._steps:
                self._healed_at = (self.scheduler.steps, self.scheduler.now)
                self.nemesis.heal()
            else:
                self.nemesis.strike()
            return False
        self._look_in -= 1
        if self._look_in > 0:
            return False
        self._look_in = LOOK_EVERY
        self.ensure_driver()
        for driver in self.drivers:
            self.checks.look_at_stops(driver)
        if self.checks.is_drained():
            return True
        steps, at_ms = self._healed_at
        if self.now - at_ms > DRAIN_MS_MAX or self.scheduler.steps - steps > DRAIN_STEPS_MAX:
            self.checks.violate(f"did not drain: {self.checks.what_is_left()}")
        return False
