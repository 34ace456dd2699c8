"""The loop over the partitions of one connector that this driver owns.

One round (docs/ARCHITECTURE.md, "One round"):
1. Gather: take finished jobs in.
2. Observe: last stable offsets, windows.
3. Plan: each partition's next record, within the budget.
4. Check: the committed offsets are still what we wrote (R5).
5. Record: one transaction settles what is loaded and intends what is next.
6. Dispatch: the intended ranges go to Spark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.budget import TargetShard, own_target_shards
from sluice.core.flights import InFlight
from sluice.core.ranges import TopicPartition
from sluice.driver.bundling import share_of
from sluice.driver.changes import SchemaChanges
from sluice.driver.counters import Counters, Waits
from sluice.driver.dispatching import Dispatcher
from sluice.driver.effects import (
    AddColumns,
    Effect,
    LetGo,
    ParkEntry,
    ReadTables,
    StopPartition,
)
from sluice.driver.freezing import Freezing
from sluice.driver.inheriting import SharesRead
from sluice.driver.observing import NewPartitionsRead, TopicObserver
from sluice.driver.pending import Pending
from sluice.driver.ports import (
    ClusterRead,
    ConfigurationRead,
    DecisionsRead,
    LoopParts,
    SchemaRead,
    ShardWindow,
)
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.recording import RoundRecorder
from sluice.driver.redirecting import PartitionsDecided, Redirecting
from sluice.driver.report_handler import ReportHandler
from sluice.driver.round_planner import RoundPlanner
from sluice.driver.sharing import Sharing
from sluice.driver.start import Started
from sluice.driver.state import Holds, PartitionState
from sluice.kafka.errors import PASSING
from sluice.spark.jobs import JobResult, SparkGoneError
from sluice.worker.assignment import TaskEnvironment

_logger = logging.getLogger("sluice.loop")

#: Fresh last stable offsets are read at most so often, ten times in the `max_delay` of the
#: connector, and take at most a tenth of the loop's time; but a look that waited for a silent
#: broker puts the next one off for no longer than this.
OBSERVE_EVERY_MS = 50
OBSERVE_EVERY_MS_MAX = 1_000
OBSERVE_DELAY_SHARE = 10
OBSERVE_SHARE = 10
OBSERVE_PAUSE_MS_MAX = 5_000
#: The wall clock may go back by so much without being noticed.
CLOCK_STEP_MS = 5_000


class HasClock(Protocol):
    """Remembers moments."""

    def clock_went_back(self, now_ms: int) -> None:
        """None of them is later than now."""


class ConnectorLoop:
    """The loop of one connector; `run` returns when it has stopped.

    :param name: shown in Spark's UI and in logs.
    :param states: from `sluice.driver.start`.
    :param planner: its load specs are those that can be executed.
    :param environment: of all jobs; each of them has the load specs of its own ranges, too.
    :param batch: number of the last batch that is committed.
    :param take_over_new: takes partitions over anew, of which a person has decided.
    :param recorded: all partitions that have a record in the ledger; None: nobody knows.
    """

    def __init__(
        self,
        name: str,
        parts: LoopParts,
        planner: RecordPlanner,
        environment: TaskEnvironment,
        states: list[PartitionState],
        holds: Holds,
        batch: int,
        take_over_new: Callable[[list[TopicPartition]], Started],
        recorded: frozenset[TopicPartition] | None = None,
    ) -> None:
        self.name = name
        self.states = {state.source: state for state in states}
        self.counters, self.stopping = Counters(), threading.Event()
        self._parts, self._environment, self.holds = parts, environment, holds
        self._reports = ReportHandler(
            *(name, self.states, planner, self.counters, parts.now_ms),
            *(parts.dead_letter_limit, parts.parking, parts.schema_patience_ms),
        )
        self.dead_letters = self._reports.dead_letters
        self.replicas, self.claims, self.jobs = parts.replicas, parts.claims, parts.jobs
        self.planner = planner
        is_read, is_alone = parts.read_schema is not None, parts.shares is None
        known = self.states, planner, holds, parts.parking, parts.version
        self._schema = SchemaChanges(*known, is_read=is_read)
        self.freezing = Freezing(parts.decided.frozen, planner, self._schema, is_read=is_read)
        self._flights = InFlight(parts.inflight_inserts_max, {}, parts.jobs.slots)
        self._flights.limit(parts.decided.max_inflight_inserts)
        self.settings = parts.decided.settings  # read by other threads, too
        self._pending = Pending(self.states, planner, parts.offsets.leader_of, self.freezing)
        self._use(environment.clickhouse)
        self._round_planner = RoundPlanner(
            *(self.states, planner, holds, parts.windows, parts.jobs, parts.transaction_size),
            *(self._schema, self._flights, parts.offsets.leader_of, self._pending, self.freezing),
        )
        self._topics = TopicObserver(
            *(planner.spec.connector, self.states, parts.offsets),
            parts.read_new if is_alone else None,
            self._pending.file,
            parts.topics,
            parts.find_cuts,
            parts.now_ms(),
        )
        self.look_at_topics = self._topics.request
        self._redirecting = Redirecting(
            *(self.states, parts.log, planner.owner, take_over_new, self._join, self._apply)
        )
        schema, counters = self._schema, self.counters
        self._recorder = RoundRecorder(
            *(name, parts, self.states, holds, planner.specs, schema, counters),
            *(self._apply, self._pending.file, batch, recorded),
        )
        share = partial(share_of, limits_of=planner.limits_of)
        self._dispatcher = Dispatcher(
            *(name, parts, share, planner.specs, schema, self._round_planner, counters)
        )
        self.abandon = self._dispatcher.cancel_all
        self._sharing = Sharing(name, parts, self.states, self.freezing, self._pending.file)
        #: Nobody notices whether a message that waits so long was seen a tenth of it later.
        every_ms = planner.limits.delay_ms_max // OBSERVE_DELAY_SHARE
        self._observe_every_ms = max(OBSERVE_EVERY_MS, min(every_ms, OBSERVE_EVERY_MS_MAX))
        self._observe_again_at_ms, self.round_at_ms = 0, parts.now_ms()

    def run(self, targets: Mapping[TopicPartition, int] | None, grace_seconds: float) -> None:
        """Run until stopped, or until every partition that goes on is settled to its target.

        :param targets: last stable offsets to reach; None to run for ever.
        :raises OwnerChangedError: another driver owns the loop now.
        """
        grace_until_ms: int | None = None
        while True:
            self._gather(self._patience_seconds())
            now_ms = self._parts.now_ms()
            self._notice_clock(now_ms)
            if self.stopping.is_set():
                grace_until_ms = grace_until_ms or now_ms + int(grace_seconds * 1000)
                if self._sharing.leave(now_ms, self._reached({})) or now_ms >= grace_until_ms:
                    return
            elif targets is not None and self._reached(targets):
                return
            self._observe(now_ms)
            self._round(now_ms, flush=targets is not None)
            self.counters.rounds.add((self._parts.now_ms() - now_ms) / 1000)

    @property
    def batch(self) -> int:
        """Number of the last batch that is committed."""
        return self._recorder.batch

    @property
    def held_back(self) -> int:
        """Ranges that wait until replicas have finished others."""
        return self._round_planner.held_back

    @property
    def windows(self) -> Mapping[TargetShard, ShardWindow]:
        """What is known of each table in each shard."""
        return self._parts.windows.current()

    @property
    def waits(self) -> Waits:
        """What it waits for, without an attempt that could fail."""
        return _waits(self, self._parts, self._topics, self._recorder.failures)

    def in_doubt(self) -> list[PartitionState]:
        """Partitions whose record names a range that may be loaded or not."""
        return [state for state in self.states.values() if state.record.in_doubt]

    def _round(self, now_ms: int, *, flush: bool) -> None:
        stopping = self.stopping.is_set()
        for target_shard in self._schema.parkable_target_shards():
            refusal = self._parts.windows.refusal(target_shard)
            if refusal is not None and not self.freezing.hold([target_shard.entry]):
                self._apply([ParkEntry(target_shard.entry, refusal)])
        barred, frozen = self._schema.barred(), self.freezing.of
        self._apply(stop for stop in barred if not frozen(self.states[stop.source]))
        if self._parts.claims is not None:
            spec_of = self._round_planner.spec_of
            self._parts.claims.see(self.states.values(), self.holds, spec_of, now_ms)
        if self._parts.staging is not None:
            self._parts.staging.see(self.states.values(), now_ms)
        self._sharing.step(self.holds, self.counters.rows, now_ms, self.batch, stopping=stopping)
        under_way = self._pending.under_way(now_ms)
        self.planner.batch = self._recorder.batch + 1
        planned = self._round_planner.plan(under_way, now_ms, flush=flush, stopping=stopping)
        self._apply(planned.effects)
        updates, ready = planned.updates, planned.ready
        if not self._topics.is_answered:
            ready = []  # they would wait for messages, in slots that other connectors need
        if updates and now_ms >= self._recorder.again_at_ms:
            ready += self._recorder.record(updates, now_ms)
        self._dispatcher.dispatch(ready, self._environment)
        self._dispatcher.cancel_hung(now_ms)
        self._dispatcher.probe((state for state in under_way if not frozen(state)), now_ms)
        self._dispatcher.keep_warm(now_ms)

    def _patience_seconds(self) -> float:
        """How long to wait for events before looking around again."""
        may_record = self._recorder.again_at_ms <= self._parts.now_ms()
        return 0.0 if may_record and self._pending.has_loaded() else self._observe_every_ms / 1000

    def _reached(self, targets: Mapping[TopicPartition, int]) -> bool:
        return all(
            state.stopped is not None
            or self.freezing.stands(state)
            or (not state.record.in_doubt and state.settled >= targets.get(source, 0))
            for source, state in self.states.items()
        )

    def _notice_clock(self, now_ms: int) -> None:
        """A wall clock that was set back must not make the loop wait until it has caught up."""
        if now_ms < self.round_at_ms - CLOCK_STEP_MS:
            went_back = "connector %s: the clock went back by %d ms"
            _logger.warning(went_back, self.name, self.round_at_ms - now_ms)
            self._observe_again_at_ms = self._recorder.again_at_ms = now_ms
            self._dispatcher.worked(now_ms)
            told: list[HasClock] = [self._topics, self.holds, self._schema.unrepeatable]
            for each in (*told, self.freezing, *self.states.values()):
                each.clock_went_back(now_ms)
            self._pending.file_all()
        self.round_at_ms = now_ms

    def _apply(self, effects: Iterable[Effect]) -> None:
        """Do what follows from a report, a plan or a look at the topics, in this order."""
        for effect in effects:
            match effect:
                case StopPartition(source, error):
                    state = self.states[source]
                    state.stop(error)
                    self._pending.file(state)
                    where = f"{source} of connector {self.name} stops at {state.settled}"
                    _logger.error("%s: %s. Try: %s", where, error, error.hint)
                case ParkEntry(entry, why):
                    self._schema.park(entry, why)
                    self._pending.file_all()
                case LetGo(source):
                    self.states.pop(source, None)  # a look may say so, too
                    self._pending.forget(source)
                    self.dead_letters.windows.pop(source, None)
                case ReadTables():
                    if self._parts.read_schema is not None:
                        self._parts.read_schema()
                case AddColumns(wanted):
                    if self._parts.want_columns is not None:
                        self._parts.want_columns(wanted)

    # 1. Gather

    def _gather(self, timeout_seconds: float) -> None:
        for event in self._parts.inbox.take(timeout_seconds):
            match event:
                case SchemaRead(at_ms, unread=unread):
                    before = self.planner.spec
                    self._schema.take(event)
                    if self.freezing.saw_tables(at_ms, unread) or self.planner.spec is not before:
                        self._use(self._environment.clickhouse)
                case ConfigurationRead():
                    self._schema.configured(event)
                    self._apply(self._topics.configured(event))
                    self._use(self._environment.clickhouse)
                case DecisionsRead(decided):
                    self.settings = decided.settings
                    self._flights.limit(decided.max_inflight_inserts)
                    self._apply(self.freezing.take(decided.frozen, self._parts.now_ms()))
                    self._use(self._environment.clickhouse)
                case ClusterRead(access):
                    self._use(access)
                case SharesRead():
                    self._apply(self._sharing.looked(event))
                    for started in event.started:
                        self._join(started)
                    self._sharing.took(event)
                case NewPartitionsRead(sources, take_over):
                    if not self.stopping.is_set():
                        self._topics.take_in(sources, partial(self._take_in, take_over))
                case PartitionsDecided():
                    self._redirecting.take(event)
                case SparkGoneError() if self.stopping.is_set():
                    pass  # what is loaded is settled without it
                case _:
                    self._take_report(event)

    def _take_report(self, event: object) -> None:
        if isinstance(event, JobResult):
            self._dispatcher.came_back(event)
        effects = self._reports.take(event)
        if isinstance(event, JobResult):
            for assignment in event.job.assignments:
                self._pending.file(self.states[assignment.block_range.source])
        self._apply(effects)
        self._dispatcher.worked(self._parts.now_ms())

    def _use(self, access: ClickHouseAccess) -> None:
        access = self.freezing.use(access)
        self._environment = replace(self._environment, clickhouse=access)
        self._flights.use(access.takers, access.preferred, access.behind)
        if self._parts.staging is not None:
            self._parts.staging.use(access)
        self._pending.file_all()

    # 2. Observe

    def _observe(self, now_ms: int) -> None:
        if now_ms < self._observe_again_at_ms:
            return
        going = [source for source, state in self.states.items() if state.stopped is None]
        try:
            try:
                self._apply(self._topics.see_ends(going, now_ms))
                # Not the rare look at topics, in which new ones are taken over, too.
                took_ms = self._parts.now_ms() - now_ms
            finally:  # where nothing answers, the topics may be gone
                if not self.stopping.is_set():
                    self._apply(self._topics.look(now_ms))
            pause_ms = min((OBSERVE_SHARE - 1) * took_ms, OBSERVE_PAUSE_MS_MAX)
            self._observe_again_at_ms = now_ms + max(self._observe_every_ms, took_ms + pause_ms)
        except PASSING as error:
            self._observe_again_at_ms = self._parts.now_ms() + 2000
            _logger.warning("connector %s: %s", self.name, error)

    def _take_in(
        self, take_over: Callable[[list[TopicPartition]], Started], new: list[TopicPartition]
    ) -> None:
        """Partitions that appeared, with everything that a start takes in with them: another
        owner may have had them, so they may be in doubt under a load spec of its own, and late
        inserts of its tasks may hold on to the windows.
        """
        self._redirecting.see_owner()
        self._join(take_over(new))

    def _join(self, started: Started) -> None:
        self._parts.log.adopt(state.source for state in started.states)
        self.planner.specs.join(started.specs.values(), started.unexecutable)
        self._apply(self._schema.join(started, self._parts.now_ms()))
        self.holds.add_late_inserts(started.late_inserts)
        self._recorder.took_over(started)
        self.states.update({state.source: state for state in started.states})
        for state in started.states:
            self._pending.file(state)
        self._apply(self._topics.joined(started.states))


def _waits(loop: ConnectorLoop, parts: LoopParts, topics: TopicObserver, failures: int) -> Waits:
    """See `ConnectorLoop.waits`."""
    windows, tables = parts.windows, loop.planner.spec.tables
    # Also where nothing was ever read.
    watched = {*windows.current(), *(each for table in tables for each in own_target_shards(table))}
    outages = {target_shard: windows.outage(target_shard) for target_shard in watched}
    frozen = {table.entry: bool(loop.freezing.frozen([table.entry])) for table in tables}
    unanswered, parked, refused = not topics.is_answered, parts.parking.parked, topics.refused.now
    return Waits(outages, unanswered, failures, parked, frozen, refused)
