"""The loop over the partitions of one connector that this driver owns.

One round (docs/ARCHITECTURE.md, "One round"):
1. Gather: take finished jobs in.
2. Observe: stable ends, windows.
3. Plan: each partition's next record, within the budget.
4. Check: the committed offsets are still what we wrote (R5).
5. Record: one transaction settles what is loaded and intends what is next.
6. Dispatch: the intended ranges go to Spark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.budget import Site
from sluice.core.dead_letters import LetterLimit
from sluice.core.errors import ForeignHandsError, TransientError
from sluice.core.flights import INSERTS_MAX, InFlight
from sluice.core.lease import has_expired
from sluice.core.ledger import Commit
from sluice.core.packing import packed
from sluice.core.ranges import TopicPartition
from sluice.core.records import may_follow
from sluice.core.text import ConfigurationText
from sluice.driver.bundling import share_of, whole_bundles
from sluice.driver.changes import SchemaChanges
from sluice.driver.checkpoints import Checkpoints
from sluice.driver.counters import Counters, Waits
from sluice.driver.effects import (
    AddColumns,
    Effect,
    LetGo,
    ParkEntry,
    ReadTables,
    StopPartition,
    Wanted,
)
from sluice.driver.hanging import HungJobs
from sluice.driver.observing import TopicObserver
from sluice.driver.parking import Parking
from sluice.driver.ports import (
    Clock,
    ClusterRead,
    FindCuts,
    IntentLog,
    Jobs,
    Prober,
    Replicas,
    SchemaRead,
    SiteWindow,
    SourceOffsets,
    Topics,
    Windows,
    no_cuts,
)
from sluice.driver.record_updates import RecordPlanner, RecordUpdate, bounded, busy
from sluice.driver.report_handler import ReportHandler, backoff_ms
from sluice.driver.round_planner import RoundPlanner
from sluice.driver.start import Started
from sluice.driver.state import Claims, PartitionState, Probing, Suspect, ToProbe
from sluice.driver.unknown_schemas import PATIENCE_MS
from sluice.spark.jobs import Inbox, JobResult, SparkGoneError
from sluice.worker.assignment import Assignment, Job, TaskEnvironment

_logger = logging.getLogger("sluice.loop")

#: Workers end after a minute without work.
WARM_EVERY_MS = 20_000
#: Fresh stable ends are read at most so often, and take at most a tenth of the loop's time; but a
#: look that waited for a silent broker puts the next one off for no longer than this.
OBSERVE_EVERY_MS = 50
OBSERVE_SHARE = 10
OBSERVE_PAUSE_MS_MAX = 5_000
#: The wall clock may go back by so much without being noticed.
CLOCK_STEP_MS = 5_000


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a loop sees of the world.

    :param read_schema: asks for a `SchemaRead`, which comes by the inbox; readings come by
        themselves, too. None where nobody reads.
    :param topics: finds topics that an expression takes; None where all have names.
    :param replicas: how they are doing, for metrics; None where nobody looks.
    :param want_columns: asks for columns of new fields; a `SchemaRead` tells of them.
    :param inserts_max: ranges in flight for each replica of a table.
    :param find_cuts: looks after logs whose leader has changed.
    :param schema_patience_ms: see `unknown_schemas`.
    """

    log: IntentLog
    offsets: SourceOffsets
    windows: Windows
    jobs: Jobs
    prober: Prober
    now_ms: Clock
    inbox: Inbox
    read_schema: Callable[[], None] | None = None
    letter_limit: LetterLimit | None = None
    parking: Parking = field(default_factory=Parking)
    topics: Topics | None = None
    want_columns: Callable[[Wanted], None] | None = None
    inserts_max: int = INSERTS_MAX
    replicas: Replicas | None = None
    find_cuts: FindCuts = no_cuts
    schema_patience_ms: int = PATIENCE_MS


class ConnectorLoop:
    """The loop of one connector; `run` returns when it has stopped.

    :param name: shown in Spark's UI and in logs.
    :param states: from `sluice.driver.start`.
    :param texts: the texts that can be executed, by digest.
    :param batch: number of the last batch that is committed.
    :param take_over_new: called for partitions that appeared; takes them over.
    :param recorded: all partitions that have a record in the ledger; None: nobody knows.
    """

    def __init__(
        self,
        name: str,
        parts: LoopParts,
        planner: RecordPlanner,
        environment: TaskEnvironment,
        states: list[PartitionState],
        claims: Claims,
        texts: Mapping[str, ConfigurationText],
        batch: int,
        take_over_new: Callable[[list[TopicPartition]], Started],
        recorded: frozenset[TopicPartition] | None = None,
    ) -> None:
        self.name = name
        self.states = {state.source: state for state in states}
        self.counters = Counters()
        self.stopping = threading.Event()
        self._parts = parts
        self._environment = environment
        self._claims = claims
        self._reports = ReportHandler(
            name,
            self.states,
            planner,
            self.counters,
            parts.now_ms,
            parts.letter_limit,
            parts.parking,
            parts.schema_patience_ms,
        )
        self.letters = self._reports.letters
        self.replicas = parts.replicas
        self._texts = dict(texts)
        is_read = parts.read_schema is not None
        self._schema = SchemaChanges(
            self.states, planner, self._texts, parts.parking, is_read=is_read
        )
        self._hung = HungJobs(name)
        self._flights = InFlight(parts.inserts_max, environment.clickhouse.shards, parts.jobs.slots)
        self._use(environment.clickhouse)
        self._share = partial(share_of, limits_of=planner.limits_of)
        self._round_planner = RoundPlanner(
            self.states,
            planner,
            claims,
            parts.windows,
            parts.jobs.slots,
            self._schema,
            self._flights,
            parts.offsets.leader_of,
        )
        self._topics = TopicObserver(
            self.states,
            parts.offsets,
            self._take_in,
            parts.topics,
            parts.find_cuts,
            parts.now_ms(),
        )
        self.look_at_topics = self._topics.request
        self.batch = batch
        self._take_over_new = take_over_new
        self._checkpoints = Checkpoints(self.states, recorded)
        #: Of the last round: partitions that are not idle.
        self._busy: list[PartitionState] = []
        self._observe_again_at_ms = 0
        self._worked_at_ms = parts.now_ms()
        self._round_at_ms = parts.now_ms()
        self._record_failures = 0
        self._record_again_at_ms = 0

    # The loop

    def run(self, targets: Mapping[TopicPartition, int] | None, grace_seconds: float) -> None:
        """Run until stopped, or until every partition that goes on is settled to its target.

        :param targets: stable ends to reach; None to run for ever.
        :raises OwnerChangedError: another driver owns the loop now.
        """
        grace_until_ms: int | None = None
        while True:
            self._gather(self._patience_seconds())
            now_ms = self._parts.now_ms()
            self._notice_clock(now_ms)
            if self.stopping.is_set():
                grace_until_ms = grace_until_ms or now_ms + int(grace_seconds * 1000)
                if self._is_settled() or now_ms >= grace_until_ms:
                    return
            elif targets is not None and self._reached(targets):
                return
            self._observe(now_ms)
            self._round(now_ms, flush=targets is not None)

    @property
    def held_back(self) -> int:
        """Ranges that wait until replicas have finished others."""
        return self._round_planner.held_back

    @property
    def windows(self) -> Mapping[Site, SiteWindow]:
        """What is known of each table in each shard."""
        return self._parts.windows.current()

    @property
    def waits(self) -> Waits:
        """What it waits for, without an attempt that could fail."""
        windows, parked = self._parts.windows, self._parts.parking.parked
        unread = {site: windows.outage(site) is not None for site in windows.current()}
        return Waits(unread, not self._topics.is_answered, self._record_failures, parked)

    def in_doubt(self) -> list[PartitionState]:
        """Partitions whose record names a range that may be loaded or not."""
        return [state for state in self.states.values() if state.record.in_doubt]

    def _round(self, now_ms: int, *, flush: bool) -> None:
        stopping = self.stopping.is_set()
        for site in self._schema.parkable_sites():
            refusal = self._parts.windows.refusal(site)
            if refusal is not None:
                self._apply([ParkEntry(site.entry, refusal)])
        self._apply(self._schema.barred())
        self._busy = busy(self.states.values(), now_ms)
        planned = self._round_planner.plan(self._busy, now_ms, flush=flush, stopping=stopping)
        self._apply(planned.effects)
        updates, ready = planned.updates, planned.ready
        texts = self._schema.with_unrecorded(self._environment.texts)
        if texts is not self._environment.texts:
            self._environment = replace(self._environment, texts=texts)
        if not self._topics.is_answered:
            ready = []  # they would wait for messages, in slots that other connectors need
        if updates and now_ms >= self._record_again_at_ms:
            ready += self._record(updates, now_ms)
        self._dispatch(ready)
        for job in self._hung.due(now_ms):
            self._parts.jobs.cancel(job)
        self._probe(now_ms)
        self._keep_warm(now_ms)

    def _patience_seconds(self) -> float:
        """How long to wait for events before looking around again."""
        waiting = any(state.loaded is not None for state in self._busy)
        if waiting and self._record_again_at_ms <= self._parts.now_ms():
            return 0.0
        return OBSERVE_EVERY_MS / 1000

    def _is_settled(self) -> bool:
        return all(
            state.stopped is not None or not state.record.in_doubt for state in self.states.values()
        )

    def _reached(self, targets: Mapping[TopicPartition, int]) -> bool:
        return all(
            state.stopped is not None
            or (not state.record.in_doubt and state.settled >= targets.get(source, 0))
            for source, state in self.states.items()
        )

    def _notice_clock(self, now_ms: int) -> None:
        """A wall clock that was set back must not make the loop wait until it has caught up."""
        if now_ms < self._round_at_ms - CLOCK_STEP_MS:
            back_ms = self._round_at_ms - now_ms
            _logger.warning("connector %s: the clock went back by %d ms", self.name, back_ms)
            self._observe_again_at_ms = self._record_again_at_ms = now_ms
            self._worked_at_ms = now_ms
            self._topics.clock_went_back(now_ms)
            self._claims.clock_went_back(now_ms)
            for state in self.states.values():
                state.clock_went_back(now_ms)
        self._round_at_ms = now_ms

    def _apply(self, effects: Iterable[Effect]) -> None:
        """Do what follows from a report, a plan or a look at the topics, in this order."""
        for effect in effects:
            match effect:
                case StopPartition(source, error):
                    state = self.states[source]
                    state.stop(error)
                    where = f"{source} of connector {self.name} stops at {state.settled}"
                    _logger.error("%s: %s. Try: %s", where, error, error.hint)
                case ParkEntry(entry, why):
                    texts = self._schema.park(entry, why, self._environment.texts)
                    self._environment = replace(self._environment, texts=texts)
                case LetGo(source):
                    del self.states[source]
                case ReadTables():
                    if self._parts.read_schema is not None:
                        self._parts.read_schema()
                case AddColumns(wanted):
                    if self._parts.want_columns is not None:
                        self._parts.want_columns(wanted)

    # 1. Gather

    def _gather(self, timeout_seconds: float) -> None:
        for event in self._parts.inbox.take(timeout_seconds):
            if isinstance(event, SchemaRead):
                texts = self._schema.take(event, self._environment.texts)
                self._environment = replace(self._environment, texts=texts)
                continue
            if isinstance(event, ClusterRead):
                self._use(event.access)
                continue
            if isinstance(event, SparkGoneError) and self.stopping.is_set():
                continue  # what is loaded is settled without it
            if isinstance(event, JobResult):
                self._hung.came_back(event.job)
            self._apply(self._reports.take(event))
            self._worked_at_ms = self._parts.now_ms()

    def _use(self, access: ClickHouseAccess) -> None:
        self._environment = replace(self._environment, clickhouse=access)
        self._flights.use(access.shards, access.preferred, access.behind)

    # 2. Observe

    def _observe(self, now_ms: int) -> None:
        if now_ms < self._observe_again_at_ms:
            return
        going = [source for source, state in self.states.items() if state.stopped is None]
        try:
            try:
                self._apply(self._topics.see_ends(going, now_ms))
            finally:  # where nothing answers, the topics may be gone
                if not self.stopping.is_set():
                    self._apply(self._topics.look(now_ms))
            took_ms = self._parts.now_ms() - now_ms
            pause_ms = min((OBSERVE_SHARE - 1) * took_ms, OBSERVE_PAUSE_MS_MAX)
            self._observe_again_at_ms = now_ms + max(OBSERVE_EVERY_MS, took_ms + pause_ms)
        except TransientError as error:
            self._observe_again_at_ms = self._parts.now_ms() + 2000
            _logger.warning("connector %s: %s", self.name, error)

    def _take_in(self, new: list[TopicPartition]) -> None:
        """Partitions that appeared, with everything that a start takes in with them: another
        owner may have had them, so they may be in doubt under a text of its own, and late
        inserts of its tasks may hold on to the windows.

        :raises OwnerChangedError: a successor has the others; to take these over would fence it.
        """
        going = {s: state.record for s, state in self.states.items() if state.stopped is None}
        self._parts.log.differences(going)
        started = self._take_over_new(new)
        self.batch = started.batch
        self._texts.update(started.texts)
        self._environment = replace(
            self._environment, texts={**self._environment.texts, **started.canonical}
        )
        self._claims.suspect(started.suspects)
        self._checkpoints.took_over(started.states, started.recorded)
        self.states.update({state.source: state for state in started.states})

    # 4. Check, 5. Record

    def _record(self, updates: list[RecordUpdate], now_ms: int) -> list[PartitionState]:
        """Commit the updates; gives the partitions that are to be loaded now."""
        try:
            updates = self._unchanged(bounded(updates))
            if not updates:
                return []
            numbered = [update.numbered(self.batch + 1) for update in updates]
            for update in numbered:
                previous = self.states[update.source].record
                assert may_follow(previous, update.record), (previous, update.record)
            commit = Commit(
                {update.source: update.record for update in numbered},
                (
                    *self._checkpoints.due(now_ms, self._environment.texts),
                    *self._schema.entries(update.record.text for update in numbered),
                    *(entry for update in numbered for entry in update.entries),
                ),
                tuple(letter for update in numbered for letter in update.dead_letters),
            )
            expected = {update.source: self.states[update.source].record for update in numbered}
            self._parts.log.record(commit, expected)
        except ForeignHandsError as error:
            _logger.warning("connector %s: %s", self.name, error)
            return []
        except TransientError as error:
            self._record_failures += 1
            delay = backoff_ms(self._record_failures)
            self._record_again_at_ms = now_ms + delay
            cannot = "connector %s cannot record (next in %.1f s): %s"
            _logger.warning(cannot, self.name, delay / 1000, error)
            return []
        self.batch += 1
        self._checkpoints.committed(commit.entries)
        self._schema.recorded(update.record.text for update in numbered)
        self._record_failures = 0
        self.counters.batches += 1
        return [state for update in numbered if (state := self._committed(update)) is not None]

    def _unchanged(self, updates: list[RecordUpdate]) -> list[RecordUpdate]:
        """Steps of partitions whose committed offset is still ours; the others stop."""
        expected = {update.source: self.states[update.source].record for update in updates}
        different = self._parts.log.differences(expected)
        self._apply(StopPartition(s, ForeignHandsError(how)) for s, how in different.items())
        return [update for update in updates if update.source not in different]

    def _committed(self, update: RecordUpdate) -> PartitionState | None:
        """Take a committed update over into the partition's state."""
        state = self.states[update.source]
        now_ms = self._parts.now_ms()
        if state.loaded is not None:
            self.counters.settled(state.loaded)
            _logger.debug("%s is settled: %d rows", state.block_range, state.loaded.rows)
            self._claims.end(now_ms, state.background.marks, state.record)
            if not has_expired(state.suspect_until_ms, now_ms):
                self._claims.suspects.append(
                    Suspect(state.background.marks, state.suspect_until_ms)
                )
            state.suspect_until_ms = 0
        state.recorded(update.record, update.background, now_ms)
        if state.retiring and not state.record.in_doubt:
            self._apply([LetGo(state.source)])
            is_settled = "%s is not configured any more; it is settled at %d and let go"
            _logger.info(is_settled, state.source, state.settled)
        return state if update.dispatch else None

    # 6. Dispatch

    def _dispatch(self, ready: list[PartitionState]) -> None:
        """Send ranges to Spark. A bundle of which not all members were recorded stays here."""
        jobs = grouped(whole_bundles(ready), self._share, self._parts.jobs.slots)
        for tasks in jobs:
            self._worked_at_ms = now_ms = self._parts.now_ms()
            looks = self._schema.looks_for_fields(now_ms)
            given = tuple(tuple(assigned(state, now_ms, looks) for state in task) for task in tasks)
            job = Job(self.name, max(s.record.batch for task in tasks for s in task), given)
            sent = (state for task in tasks for state in task)
            for state, assignment in zip(sent, job.assignments, strict=True):
                state.out, state.sent, state.repeated = True, True, not assignment.is_first
                self.counters.retries += state.record.attempt > 1
            self._hung.sent(job)
            self._parts.jobs.submit(job, self._environment, self._parts.inbox.put)

    def _probe(self, now_ms: int) -> None:
        for state in self._busy:
            if type(state.stage) is not ToProbe or now_ms < state.retry_at_ms:
                continue
            if state.out or not has_expired(state.record.deadline_ms, now_ms):
                continue
            state.become(Probing(state.outdated))
            text, known = self._round_planner.text_of(state), self._schema.known_rest(state)
            self._parts.prober.submit(
                state.block_range,
                state.record,
                text,
                self._parts.inbox.put,
                known,
                state.background.since_ms,
                self._schema.in_parts(state),
            )

    def _keep_warm(self, now_ms: int) -> None:
        if now_ms - self._worked_at_ms > WARM_EVERY_MS:
            self._worked_at_ms = now_ms
            self._parts.jobs.warm()


def grouped(
    ready: Sequence[list[PartitionState]],
    share: Callable[[Sequence[PartitionState]], float],
    slots: int,
) -> list[list[list[PartitionState]]]:
    """Jobs of tasks of ranges. Those that failed before run alone, so that a failing shard holds
    no slot and no receipt of the others (R3).

    :param ready: the members of each bundle; a range alone is a bundle of one.
    :param share: how much of a task a bundle is.
    :param slots: tasks that can run at once.
    """
    healthy = [members for members in ready if all(s.failures == 0 for s in members)]
    jobs = [
        [[state for place in task for state in healthy[place]] for task in tasks]
        for tasks in packed([share(members) for members in healthy], slots)
    ]
    return jobs + [[members] for members in ready if any(s.failures > 0 for s in members)]


def assigned(state: PartitionState, now_ms: int, looks_for_fields: bool) -> Assignment:
    """What a task is told of a partition's recorded range."""
    return Assignment(
        block_range=state.block_range,
        record=state.record,
        rest=state.background.rest,
        stored=state.background.stored,
        bytes_max=state.background.bytes_max,
        sent_at_ms=now_ms,
        is_first=state.record.attempt == 1 and not state.sent,
        looks_for_fields=looks_for_fields,
        marks=state.background.marks,
        servers=state.background.servers,
        since_ms=state.background.since_ms,
        insert_seconds=state.insert_seconds,
    )
