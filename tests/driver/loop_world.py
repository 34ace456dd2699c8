"""A world in memory for one loop: Kafka, ClickHouse, Spark and the clock, all virtual.

Time passes only while the loop waits for events, so every test is the same each time and
takes no time of its own.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.budget import BOUNDLESS, TargetShard, WindowState, own_target_shards
from sluice.core.bundles import Member, is_whole
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.decided import Decided, Standing
from sluice.core.errors import OwnerChangedError, SluiceError, TerminalError
from sluice.core.flights import INFLIGHT_INSERTS_MAX
from sluice.core.ledger import Background, Commit, LedgerEntry, Rest
from sluice.core.load_spec import LINEAGE_TYPES, LoadSpec, TableSpec
from sluice.core.planning import Limits
from sluice.core.ranges import (
    EPOCH_UNKNOWN,
    Range,
    TopicPartition,
    contains,
    subtract,
)
from sluice.core.receipts import DeadLetter, Loaded, Outcome, Receipt, TaskReport
from sluice.core.records import Kind, Record
from sluice.core.tokens import block_token
from sluice.core.transaction_size import TransactionSize
from sluice.driver.effects import Wanted
from sluice.driver.load_specs import LoadSpecs, NamedSpec
from sluice.driver.loop import ConnectorLoop
from sluice.driver.observing import NewPartitionsRead
from sluice.driver.parking import Parking
from sluice.driver.ports import LoopParts, ProbeEnded, ProbeFound, ShardWindow, Sought, Topics
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.start import Started
from sluice.driver.state import Holds, PartitionState, PossibleLateInsert, ToProbe
from sluice.driver.tracing import Tracing
from sluice.driver.unknown_schemas import PATIENCE_MS
from sluice.kafka.clients import KafkaAccess
from sluice.spark.jobs import Inbox, JobLostError, JobResult, SparkGoneError
from sluice.worker.assignment import Assignment, Job, TaskEnvironment
from tests.driver.loop_sources import Points, Sources

START_MS = 1_800_000_000_000
TASK_MS = 100
TOPIC_ID = "TTTTTTTTTTT"
MARK_EVERY_MS = 1000


class EndlessLoopError(Exception):
    """The loop went round too often: it is busy, or wedged."""


def table_spec(entry: str, topics: tuple[str, ...], partition_key: str = "") -> TableSpec:
    """A table entry that takes these topics."""
    return TableSpec(
        entry=entry,
        database="d",
        table=entry,
        topics=topics,
        format="JSONEachRow",
        columns=(),
        lineage=tuple(LINEAGE_TYPES),
        partition_key=partition_key,
        sorting_key="",
        unknown_fields="ignore",
        on_null="dead-letter",
        time_zone="UTC",
        shards=("s1",),
    )


@dataclass
class Table:
    """A table with a deduplication window of `blocks` entries; every offset becomes a row.

    :param seconds: that the window says it keeps blocks for; it does not forget by time.
    :param server: the process that serves it, where it is not replicated.
    :param lost_until_ms: see `ShardWindow`.
    """

    blocks: int
    window: OrderedDict[str, None] = field(default_factory=OrderedDict)
    rows: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    insert_counter: int = 0
    seconds: int | None = None
    server: str = ""
    is_partitioned: bool = False
    lost_until_ms: int = 0

    def insert(
        self, token: str, rows: Iterable[tuple[TopicPartition, int]], entries: int = 1
    ) -> None:
        """Store a block unless its token is remembered."""
        if f"{token}#0" in self.window:
            return
        self.fill(entries, token)
        for row in rows:
            self.rows[row] = self.rows.get(row, 0) + 1

    def read(self, at: TargetShard) -> WindowState:
        """What a look at its window says."""
        blocks, count = (self.blocks, self.insert_counter) if at.has_window else (BOUNDLESS, 0)
        return WindowState(blocks, count, at.target or f"d.{at.entry}")

    def fill(self, entries: int, token: str = "") -> None:
        """Entries of a block, or of somebody else."""
        for number in range(entries):
            self.insert_counter += 1
            self.window[f"{token or self.insert_counter}#{number}"] = None
        while len(self.window) > self.blocks:
            self.window.popitem(last=False)


#: What a task does: its outcome, None to lose the job, or "never" to stay out.
Answer = Outcome | JobLostError | SparkGoneError | None
Script = Callable[["World", Assignment], Answer]


def _settle(world: World, source: TopicPartition, offset: int) -> Record:
    ids = world.ids[source.topic], world.spec.digest()
    return Record(Kind.SETTLE, 1, 0, offset, offset, "me", 0, *ids, 0, 0)


class World(Inbox, Sources):
    """Every port of a loop."""

    slots = slots_max = 2
    tracing: Tracing | None = None

    def __init__(
        self,
        sources: Iterable[TopicPartition],
        tables: tuple[TableSpec, ...] = (),
        blocks: int = 1000,
        rounds_max: int = 20_000,
    ) -> None:
        super().__init__()
        self.now, self.rounds_left = START_MS, rounds_max
        self.ends = dict.fromkeys(sources, 0)
        self.ids = {source.topic: TOPIC_ID for source in self.ends}
        self.spec = LoadSpec(
            "p",
            "c",
            "chdb 1",
            1 << 20,
            tables or (table_spec("t", tuple({s.topic: None for s in self.ends})),),
        )
        self.tables = {own_target_shards(t)[0]: Table(blocks) for t in self.spec.tables}
        self.own = {at.entry: table for at, table in self.tables.items()}
        self.group, self.ledger = dict[TopicPartition, Record](), list[LedgerEntry]()
        self.dead_letters, self.commits = list[DeadLetter](), list[Commit]()
        self.initialised, self.epoch, self.transaction_size = 1, EPOCH_UNKNOWN, TransactionSize()
        self.jobs, self.cancelled = list[Job](), list[tuple[int, Job]]()
        self.environments: list[TaskEnvironment] = []
        self.probes, self.probed_in_parts = list[tuple[int, Range]](), list[Collection[str]]()
        self.outages, self.gone = dict[str, str](), dict[str, str]()
        self.unreadable, self.log_begins = set[TopicPartition](), dict[TopicPartition, int]()
        self.script: Script = lambda world, assignment: world.load(assignment)
        self.task_attempt = self.topic_requests = 0
        #: How long the ledger is read for partitions that appear.
        self.read_ms = TASK_MS
        self.may_land = self.may_lack_part = False
        self.read_schema: Callable[[], None] | None = None
        self.parking, self.frozen = Parking(), Standing()
        self.dead_letter_limit: DeadLetterLimit | None = None
        self.topic_finder: Topics | None = None
        self.want_columns: Callable[[Wanted], None] | None = None
        self.inflight_inserts_max, self.schema_patience_ms = INFLIGHT_INSERTS_MAX, PATIENCE_MS
        self.shards: dict[str, tuple[str, ...]] = {"s1": ("http://h",)}
        self.leaders, self.cut_at = dict[TopicPartition, int](), dict[TopicPartition, int]()
        self.asked_epochs, self.unasked = list[Points](), set[TopicPartition]()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = self._windows_at = 0
        self._members, self._inserted = dict[str, list[Assignment]](), set[str]()
        self._windows: dict[TargetShard, ShardWindow] = {}
        self.planner = RecordPlanner(LoadSpecs(self.spec), "me", Limits(10, 1 << 20, 1000), 600.0)

    # The clock

    def now_ms(self) -> int:
        return self.now

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something later."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._sequence, action))

    def take(self, timeout_seconds: float) -> list[object]:
        self.rounds_left -= 1
        if self.rounds_left < 0:
            raise EndlessLoopError(f"{self.now - START_MS} ms: busy, or rounds_max is too small")
        began, until = self.now, self.now + int(timeout_seconds * 1000)
        while self._events and self._events[0][0] <= until and self._queue.empty():
            self.now, _, action = heapq.heappop(self._events)
            action()
        if self._queue.empty() and self.now >= began:
            self.now = max(self.now, until)
        return super().take(0)

    # The intent log

    def differences(self, expected: Mapping[TopicPartition, Record]) -> dict[TopicPartition, str]:
        different = {}
        for source, record in expected.items():
            found = self.group.get(source)
            if found is not None and found.owner != "me":
                raise OwnerChangedError(f"{source} belongs to {found.owner}")
            if found != record:
                different[source] = f"{source}: {found}, not {record}"
        return different

    def record(self, commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        self.commits.append(commit)
        self.group.update(commit.records)
        self.ledger += commit.entries
        self.dead_letters += commit.dead_letters

    def adopt(self, sources: Iterable[TopicPartition]) -> None:
        """Nothing is remembered of them."""

    # Windows

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        if self.now - self._windows_at >= MARK_EVERY_MS or self.now < self._windows_at:
            self._windows_at = self.now
            unread = {at: each for at, each in self._windows.items() if self.outage(at)}
            self._windows = unread | {
                target_shard: ShardWindow(
                    table.read(target_shard),
                    self.now,
                    table.seconds,
                    server=table.server,
                    is_partitioned=table.is_partitioned,
                    lost_until_ms=table.lost_until_ms,
                )
                for target_shard, table in self.tables.items()
                if self.outage(target_shard) is None
            }
        return self._windows

    def outage(self, target_shard: TargetShard) -> str | None:
        return self.outages.get(target_shard.shard) or self.gone.get(target_shard.entry)

    def refusal(self, target_shard: TargetShard) -> SluiceError | None:
        why = self.gone.get(target_shard.entry)
        return None if why is None else TerminalError(why)

    # Jobs

    def submit(self, *parts: Any) -> None:
        """Of both ports: a job, or a probe."""
        if isinstance(parts[0], Job):
            self.environments.append(parts[1])
            self._submit_job(parts[0])
        else:
            sought, spec, _, finished = parts
            self.probes += [(self.now, one.block_range) for one in sought]
            self.probed_in_parts += [one.in_parts for one in sought]
            self.at(TASK_MS, lambda: finished(_found(self, sought, spec)))

    def _submit_job(self, job: Job) -> None:
        self.jobs.append(job)
        self._members, self._inserted = _bundles(job), set()
        outcomes = [self.script(self, assignment) for assignment in job.assignments]
        if any(outcome is None for outcome in outcomes):
            return
        lost = [each for each in outcomes if isinstance(each, JobLostError | SparkGoneError)]
        if lost:
            self.at(TASK_MS, lambda: self.put(JobResult(job, error=lost[0])))
            return
        reports = tuple(
            TaskReport(
                a.block_range,
                a.record.batch,
                outcome,
                self.task_attempt,
                0,
                self.may_land,
                self.may_lack_part,
            )
            for a, outcome in zip(job.assignments, outcomes, strict=True)
            if isinstance(outcome, Outcome)
        )
        self.at(TASK_MS, lambda: self.put(JobResult(job, reports=reports)))

    def cancel(self, job: Job) -> None:
        self.cancelled.append((self.now, job))
        self.at(TASK_MS, lambda: self.put(JobResult(job, error=JobLostError("it was ended"))))

    def warm(self, *, wait: bool = False) -> None:
        pass

    def load(self, assignment: Assignment, entries: int = 1) -> Loaded:
        """What a task that succeeds does; the block of a bundle is inserted for the first of its
        members."""
        block_range, record = assignment.block_range, assignment.record
        members = self._members[record.bundle] if record.bundle else [assignment]
        receipts = []
        for table in self.spec.tables_of(block_range.source.topic):
            token = block_token(
                pipeline="p",
                generation=record.generation,
                connector="c",
                topic_id=record.topic_id,
                block_range=block_range,
                entry=table.entry,
                target=table.target,
                shard="s1",
                rest=record.rest,
                bundle=record.bundle,
            )
            rows = [(a.block_range.source, o) for a in members for o in _wanted(a, table.entry)]
            wanted = _wanted(assignment, table.entry)
            if rows and token not in self._inserted:
                self._inserted |= {token} if record.bundle else set()
                self.own[table.entry].insert(token, rows, entries)
            if wanted:
                receipts.append(
                    Receipt(
                        table.entry, table.target, "s1", token, len(wanted), 1, "", "", entries, 1
                    )
                )
        return Loaded(tuple(receipts), (), block_range.span, 100 * block_range.span, 0)

    def _probed(self, block_range: Range, spec: LoadSpec, known: Rest) -> ProbeFound:
        rest = {**known}
        for table in spec.tables_of(block_range.source.topic):
            if table.entry in known:
                continue
            rows = self.own[table.entry].rows
            present = [(o, o + 1) for s, o in rows if s == block_range.source]
            rest[table.entry] = subtract((block_range.begin, block_range.end), present)
        return ProbeFound(block_range.source, rest)

    # The loop

    def settled(self, source: TopicPartition, offset: int = 0) -> PartitionState:
        """A partition as a take-over leaves it."""
        record = _settle(self, source, offset)
        self.group[source] = record
        return PartitionState(source, record, Background(since_ms=self.now), offset, self.now)

    def overrun(self, source: TopicPartition, end: int, reservation: int) -> PartitionState:
        """A range in doubt that left the window, its lease over, as a take-over leaves it."""
        state = self.settled(source)
        state.record = self.group[source] = replace(
            state.record,
            kind=Kind.RENEW,
            attempt=2,
            end=end,
            reservation=reservation,
            deadline_ms=self.now - 60_000,
        )
        state.stage = ToProbe()
        return state

    def loop(
        self,
        states: list[PartitionState] | None = None,
        late_inserts: list[PossibleLateInsert] | None = None,
        take_over_new: Callable[[list[TopicPartition]], Started] | None = None,
        recorded: frozenset[TopicPartition] | None = None,
    ) -> ConnectorLoop:
        """The loop under test, over all partitions of this world.

        :param take_over_new: takes partitions over that appear, or that a person decides about.
        """
        take_over = take_over_new or (lambda sources: Started())

        def read_new(sources: list[TopicPartition]) -> None:
            self.at(self.read_ms, lambda: self.put(NewPartitionsRead(sources, take_over)))

        environment = TaskEnvironment(
            "p",
            KafkaAccess("c", ""),
            ClickHouseAccess(self.shards, "", "", "single"),
            {},
        )
        self.planner.specs.join([NamedSpec.of(self.spec)])
        return ConnectorLoop(
            "loop",
            LoopParts(
                log=self,
                offsets=self,
                windows=self,
                jobs=self,
                prober=self,
                now_ms=self.now_ms,
                inbox=self,
                read_schema=self.read_schema,
                dead_letter_limit=self.dead_letter_limit,
                parking=self.parking,
                topics=self.topic_finder,
                want_columns=self.want_columns,
                inflight_inserts_max=self.inflight_inserts_max,
                find_cuts=self.find_cuts,
                schema_patience_ms=self.schema_patience_ms,
                decided=Decided(self.frozen),
                tracing=self.tracing,
                read_new=read_new,
                transaction_size=self.transaction_size,
            ),
            self.planner,
            environment,
            states if states is not None else [self.settled(source) for source in self.ends],
            Holds(late_inserts or []),
            1,
            take_over,
            recorded,
        )

    def canonical(self, digest: str) -> str:
        """A load spec that some job was sent with."""
        return next(
            environment.specs[digest]
            for environment in self.environments
            if digest in environment.specs
        )

    def rows_of(self, source: TopicPartition, entry: str = "t") -> list[int]:
        """How often each offset is in the table, up to the last stable offset."""
        rows = self.own[entry].rows
        return [rows.get((source, offset), 0) for offset in range(self.ends[source])]


def _bundles(job: Job) -> dict[str, list[Assignment]]:
    """The members of each bundle of a job, by its name; "": those that are alone."""
    found: dict[str, list[Assignment]] = {}
    for assignment in job.assignments:
        found.setdefault(assignment.record.bundle, []).append(assignment)
    for name, members in found.items():
        of = ((a.block_range, a.record) for a in members)
        all_of = [Member(r, record.topic_id, record.generation, record.rest) for r, record in of]
        assert not name or is_whole(name, all_of), "only a whole bundle is sent"
    return found


def _found(world: World, sought: Sequence[Sought], spec: LoadSpec) -> ProbeEnded:
    return ProbeEnded(tuple(world._probed(s.block_range, spec, s.known) for s in sought))


def _wanted(assignment: Assignment, entry: str) -> list[int]:
    """The offsets that a task inserts into a table."""
    rest = assignment.background.rest
    offsets = range(assignment.block_range.begin, assignment.block_range.end)
    return [offset for offset in offsets if not rest or contains(rest[entry], offset)]


def run(world: World, loop: ConnectorLoop | None = None) -> ConnectorLoop:
    """Run until everything that goes on is loaded."""
    (loop := loop or world.loop()).run(dict(world.ends), 5.0)
    return loop


def kinds(world: World, source: TopicPartition) -> list[tuple[str, int, int]]:
    """The chain of records of a partition."""
    return [
        (record.kind.name, record.begin, record.end)
        for commit in world.commits
        for at, record in commit.records.items()
        if at == source
    ]
