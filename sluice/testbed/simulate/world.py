"""What there is in one seed: chance, time, Kafka, ClickHouse, and the processes that run."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.testbed.simulate.clickhouse import ClickHouse, Host, Table, TableShape
from sluice.testbed.simulate.faults import ANYWHERE, INSERT, OF_CLAIMS, STATEMENT, Faults
from sluice.testbed.simulate.kafka import Broker, Log, Transaction, record_of
from sluice.testbed.simulate.plan import Plan, draw_claims, draw_plan, draw_routes, draw_staged
from sluice.testbed.simulate.processes import DriverProcess, WorkerProcess
from sluice.testbed.simulate.scheduler import START_MS, KilledError, Process, Scheduler

#: Faults of a calm world, compared with the others.
CALM_RATE = 0.25
#: What a server stores after its client has left, it stores within so long.
STORE_MS = 4_900

_ANYWHERE = frozenset(ANYWHERE)


class AbandonedError(Exception):
    """A call that would never come back was left alone."""


def make_clickhouse(world: World) -> ClickHouse:
    def make(shape: TableShape, shard: str) -> Table:
        entries = tuple(e for e, name in world.plan.entries.items() if name == shape.name)
        table = Table(shape, shard, lambda: world.scheduler.now, world.plan.tokens, entries)
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
    """Everything that the parts of a simulation share; it knows none of them.

    :param rate: probability that a fault of weight 1 strikes at a step.
    :param late_ms: see `Plan.late_ms_max`.
    :param is_shown: let the loader's log through.
    :param draw_more: draws what a fleet is like; None: there is none.
    """

    def __init__(
        self,
        seed: int,
        rate: float,
        late_ms: int,
        *,
        is_shown: bool = False,
        draw_more: Callable[[random.Random, Plan], None] | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        #: Chance of all that is about claims: worlds without them are the same as ever.
        self.claims_rng = random.Random(f"{seed}/claims")
        self.is_shown = is_shown
        self.faults = Faults(self.rng, rate)
        self.plan = draw_plan(self.rng, random.Random(f"{seed}/replacing"))
        self.plan.late_ms_max = late_ms
        self.fleet_rng = random.Random(f"{seed}/fleet")
        if draw_more is not None:
            draw_more(self.fleet_rng, self.plan)
        if not self.plan.members:
            self.plan.claims = draw_claims(seed, self.claims_rng, self.plan)
        if self.plan.claims is not None:
            self.plan.has_lineage = True
            self.faults.add(self.claims_rng, OF_CLAIMS)
        staged_rng = random.Random(f"{seed}/staged")
        if not self.plan.members:
            draw_staged(seed, staged_rng, self.plan)
        if self.plan.staged:
            self.faults.add(staged_rng, STATEMENT)
        draw_routes(seed, random.Random(f"{seed}/routes"), self.plan)
        if self.plan.is_calm:
            self.faults.rate *= CALM_RATE
        self.scheduler = Scheduler()
        self.broker = Broker(self.scheduler.at, lambda: self.rng.randrange(1, 40))
        self.broker.timed_out = lambda transaction: self.faults.note("own transaction timed out")
        self.clickhouse = make_clickhouse(self)
        #: What promises were broken.
        self.violations: list[str] = []
        #: Partitions of which nothing is promised any more, and why.
        self.excused: dict[TopicPartition, str] = {}
        #: Partitions whose logs lost their ends.
        self.cut_logs: set[TopicPartition] = set()
        #: By topic id, where a topic was created again: the numbers of its messages.
        self.messages_of: dict[str, range] = {}
        #: When somebody else committed an offset.
        self.foreign_commits: dict[TopicPartition, int] = {}
        self.drivers: dict[DriverProcess, None] = {}
        self.tasks_running = 0
        self.inserts_running = 0
        #: Workers that have looked at a table's columns and are about to insert.
        self.looking: dict[Process, None] = {}
        #: Called before a driver initialises an id, and before it commits, where there is a fleet.
        self.before_fencing: Callable[[str], None] = lambda identity: None
        self.before_commit: Callable[[Transaction], None] = lambda transaction: None
        #: When a driver did something last.
        self.active_at = 0
        self._names = 0
        self._make_topics()

    def violate(self, what: str) -> None:
        """A promise is broken."""
        self.violations.append(what)

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
    def driver(self) -> DriverProcess:
        """The driver whose code is running."""
        process = self.process
        assert isinstance(process, DriverProcess)
        return process

    @property
    def worker(self) -> WorkerProcess:
        """The worker whose code is running."""
        process = self.process
        assert isinstance(process, WorkerProcess)
        return process

    @property
    def is_in_step(self) -> bool:
        """Whether this is a driver that started together with another one."""
        process = self.process
        return isinstance(process, DriverProcess) and process.is_in_step

    @property
    def is_inserting(self) -> bool:
        """Whether the running process is a worker."""
        return isinstance(self.process, WorkerProcess)

    def is_looked_at(self) -> bool:
        """Whether a worker has looked at a table's columns and is about to insert."""
        return any(isinstance(who, WorkerProcess) for who in self.looking)

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
        if isinstance(process, DriverProcess):
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
        worker = self.worker
        assert worker.records
        if worker.attempt:
            self.violate(f"a task that was started again inserts {worker.records} (R10)")
        return worker.records

    def since_ms_of_task(self) -> int:
        """Since when what the running task loads may have been inserted, as it was told."""
        return self.worker.since_ms

    def before_insert(self) -> None:
        """The running task is about to insert."""
        worker = self.worker
        strikes, worker.before_insert = worker.before_insert, None
        if strikes is not None:
            strikes()
            self.sleep(1)

    def draw_insert_fault(self) -> str | None:
        """What strikes the insert of the running task."""
        worker = self.worker
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

    def kill(self, process: Process) -> None:
        """A fault kills a process."""
        self.scheduler.kill(process)
        process.on_kill()

    # ClickHouse

    def restart(self, host: Host, for_ms: int) -> None:
        """What runs there is lost."""
        host.restarts += 1
        host.down_until = host.started_at = self.now + for_ms

    def executing(self, host: Host, query_id: str) -> Callable[[], None]:
        """A server has begun to execute something; gives what ends that."""
        host.running[query_id] += 1
        self.inserts_running += 1

        def executed() -> None:
            host.running[query_id] -= 1
            self.inserts_running -= 1

        return executed

    def room_ms(self, deadline_ms: int, end_ms: int) -> int:
        """How long a server may take for what it has: until 5 s after the lease, or as long after
        its client stopped sending."""
        return max(deadline_ms + self.plan.late_ms_max, end_ms + STORE_MS) - self.now

    # Topics

    def owner_of(self, source: TopicPartition) -> str | None:
        """Who may record next, if nobody is about to."""
        if source in self.broker.pending:
            return None
        record = self.recorded(source)
        return None if record is None else record.owner

    def recorded(self, source: TopicPartition) -> Record | None:
        """What the committed offset of a partition records; None if it is none of ours."""
        return record_of(self.broker.group.get(source))

    def lag(self) -> int:
        """Offsets that are not settled."""
        ends = {source: self.broker.log(source).end for source in self.sources()}
        return sum(end - self.broker.group.get(each, (0, None))[0] for each, end in ends.items())

    def _make_topics(self) -> None:
        for number, (topic, count) in enumerate(sorted(self.plan.partitions.items())):
            self.broker.topics[topic] = [Log() for _ in range(count)]
            self.broker.ids[topic] = self.topic_id(f"AAAAAAAAAA{number}")
        plan = self.plan
        for own in (plan.ledger, plan.dead_letters, plan.parking, plan.duplicates):
            self.broker.topics[own] = [Log()]

    def topic_id(self, text: str) -> str:
        """The id of a topic. To claims it is its bytes, of which the last letter says little."""
        return text if self.plan.claims is None else f"{text[1:]}A"

    def sources(self) -> list[TopicPartition]:
        """All partitions of all source topics."""
        return [
            TopicPartition(topic, number)
            for topic in self.broker.ids
            for number in range(len(self.broker.topics[topic]))
        ]
