"""The loop that drives a lane: the partitions of one connector that this driver owns.

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
from collections.abc import Callable, Mapping
from dataclasses import replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.budget import Site
from sluice.core.errors import ForeignHandsError, SluiceError, TransientError
from sluice.core.flights import InFlight
from sluice.core.lease import has_expired
from sluice.core.ledger import Commit
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.core.records import Kind, may_follow
from sluice.core.text import ConfigurationText
from sluice.driver.changes import SchemaChanges
from sluice.driver.checkpoints import Checkpoints
from sluice.driver.counters import Counters, Waits
from sluice.driver.deciding import Decider
from sluice.driver.dispatching import assigned, grouped
from sluice.driver.gathering import Gatherer, backoff_ms
from sluice.driver.hanging import HungJobs
from sluice.driver.lane_parts import LaneParts
from sluice.driver.observing import TopicObserver
from sluice.driver.ports import ClusterRead, SchemaRead, SiteWindow
from sluice.driver.start import Started
from sluice.driver.state import Claims, PartitionState, Suspect
from sluice.driver.steps import Planner, Step, bounded
from sluice.spark.jobs import JobResult, SparkGoneError
from sluice.worker.assignment import Job, Surroundings

_logger = logging.getLogger("sluice.lane")

#: Workers end after a minute without work.
WARM_EVERY_MS = 20_000
#: Fresh stable ends are read at most so often, and take at most a tenth of the loop's time.
OBSERVE_EVERY_MS = 50
OBSERVE_SHARE = 10
#: The wall clock may go back by so much without being noticed.
CLOCK_STEP_MS = 5_000


class Lane:
    """One lane's loop; `run` returns when it has stopped.

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
        parts: LaneParts,
        planner: Planner,
        around: Surroundings,
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
        self._around = around
        self._claims = claims
        self._gatherer = Gatherer(
            name,
            self.states,
            planner,
            self.counters,
            parts.now_ms,
            parts.letter_limit,
            self._park,
            parts.schema_patience_ms,
        )
        self.letters = self._gatherer.letters
        self.replicas = parts.replicas
        self._texts = dict(texts)
        stop = self._gatherer.stop
        want = parts.want_columns
        self._schema = SchemaChanges(
            self.states, planner, self._texts, parts.read_schema, stop, parts.parking, want
        )
        self._hung = HungJobs(name)
        self._flights = InFlight(parts.inserts_max, around.clickhouse.shards, parts.jobs.slots)
        self._use(around.clickhouse)
        self._decider = Decider(
            self.states,
            planner,
            claims,
            parts.windows,
            parts.jobs.slots,
            stop,
            self._schema,
            self._flights,
        )
        self._topics = TopicObserver(
            self.states,
            parts.offsets,
            stop,
            self._take_in,
            self._let_go,
            parts.topics,
            parts.find_cuts,
            parts.now_ms(),
        )
        self.look_at_topics = self._topics.request
        self.batch = batch
        self._take_over_new = take_over_new
        self._checkpoints = Checkpoints(self.states, recorded)
        self._observe_again_at_ms = 0
        self._worked_at_ms = parts.now_ms()
        self._round_at_ms = parts.now_ms()
        self._record_failures = 0
        self._record_again_at_ms = 0

    # The loop

    def run(self, targets: Mapping[TopicPartition, int] | None, grace_seconds: float) -> None:
        """Run until stopped, or until every partition that goes on is settled to its target.

        :param targets: stable ends to reach; None to run for ever.
        :raises OwnerChangedError: another driver owns the lane now.
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
        return self._decider.held_back

    @property
    def windows(self) -> Mapping[Site, SiteWindow]:
        """What is known of each table in each shard."""
        return self._parts.windows.current()

    @property
    def waits(self) -> Waits:
        """What it waits for, without an attempt that could fail."""
        windows = self._parts.windows
        unread = {site: windows.outage(site) is not None for site in windows.current()}
        return Waits(unread, not self._topics.is_answered, self._record_failures)

    def in_doubt(self) -> list[PartitionState]:
        """Partitions whose record names a range that may be loaded or not."""
        return [state for state in self.states.values() if state.record.in_doubt]

    def _round(self, now_ms: int, *, flush: bool) -> None:
        stopping = self.stopping.is_set()
        for site in self._schema.parkable_sites():
            refusal = self._parts.windows.refusal(site)
            if refusal is not None:
                self._park(site.entry, refusal)
        self._schema.stop_barred()
        steps, ready = self._decider.plan(now_ms, flush=flush, stopping=stopping)
        texts = self._schema.with_unrecorded(self._around.texts)
        if texts is not self._around.texts:
            self._around = replace(self._around, texts=texts)
        if not self._topics.is_answered:
            ready = []  # they would wait for messages, in slots that other connectors need
        if steps and now_ms >= self._record_again_at_ms:
            ready += self._record(steps, now_ms)
        self._dispatch(ready)
        for job in self._hung.due(now_ms):
            self._parts.jobs.cancel(job)
        self._probe(now_ms)
        self._keep_warm(now_ms)

    def _patience_seconds(self) -> float:
        """How long to wait for events before looking around again."""
        waiting = any(state.loaded is not None for state in self.states.values())
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
            _logger.warning("lane %s: the clock went back by %d ms", self.name, back_ms)
            self._observe_again_at_ms = self._record_again_at_ms = now_ms
            self._worked_at_ms = now_ms
            self._topics.clock_went_back(now_ms)
            for state in self.states.values():
                state.retry_at_ms = min(state.retry_at_ms, now_ms)
                state.committed_at_ms = min(state.committed_at_ms, now_ms)
                state.waiting_since_ms = None if state.waiting_since_ms is None else now_ms
                state.back_at_ms = min(state.back_at_ms, now_ms)
            self._claims.ended = [
                (min(at_ms, now_ms), marks, grant) for at_ms, marks, grant in self._claims.ended
            ]
        self._round_at_ms = now_ms

    # 1. Gather

    def _gather(self, timeout_seconds: float) -> None:
        for event in self._parts.inbox.take(timeout_seconds):
            if isinstance(event, SchemaRead):
                texts = self._schema.take(event, self._around.texts)
                self._around = replace(self._around, texts=texts)
                continue
            if isinstance(event, ClusterRead):
                self._use(event.access)
                continue
            if isinstance(event, SparkGoneError) and self.stopping.is_set():
                continue  # what is loaded is settled without it
            if isinstance(event, JobResult):
                self._hung.came_back(event.job)
            self._gatherer.take(event)
            self._worked_at_ms = self._parts.now_ms()

    def _use(self, access: ClickHouseAccess) -> None:
        self._around = replace(self._around, clickhouse=access)
        self._flights.use(access.shards, access.preferred, access.behind)

    def _park(self, entry: str, why: SluiceError) -> bool:
        """Park a table entry from now on; False if it must not be."""
        texts = self._schema.park(entry, why, self._around.texts)
        self._around = replace(self._around, texts=texts or self._around.texts)
        return texts is not None

    # 2. Observe

    def _observe(self, now_ms: int) -> None:
        if now_ms < self._observe_again_at_ms:
            return
        going = [source for source, state in self.states.items() if state.stopped is None]
        try:
            try:
                self._topics.see_ends(going, now_ms)
            finally:  # where nothing answers, the topics may be gone
                if not self.stopping.is_set():
                    self._topics.look(now_ms)
            took_ms = self._parts.now_ms() - now_ms
            self._observe_again_at_ms = now_ms + max(OBSERVE_EVERY_MS, OBSERVE_SHARE * took_ms)
        except TransientError as error:
            self._observe_again_at_ms = now_ms + 2000
            _logger.warning("lane %s: %s", self.name, error)

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
        self._around = replace(self._around, texts={**self._around.texts, **started.canonical})
        self._claims.suspect(started.suspects)
        self._checkpoints.took_over(started.states, started.recorded)
        self.states.update({state.source: state for state in started.states})

    def _let_go(self, state: PartitionState) -> None:
        del self.states[state.source]

    # 4. Check, 5. Record

    def _record(self, steps: list[Step], now_ms: int) -> list[PartitionState]:
        """Commit the steps; gives the partitions that are to be loaded now."""
        try:
            steps = self._unchanged(bounded(steps))
            if not steps:
                return []
            numbered = [step.numbered(self.batch + 1) for step in steps]
            for step in numbered:
                previous = self.states[step.source].record
                assert may_follow(previous, step.record), (previous, step.record)
            commit = Commit(
                {step.source: step.record for step in numbered},
                (
                    *self._checkpoints.due(now_ms, self._around.texts),
                    *self._schema.entries(step.record.text for step in numbered),
                    *(entry for step in numbered for entry in step.entries),
                ),
                tuple(letter for step in numbered for letter in step.dead_letters),
            )
            expected = {step.source: self.states[step.source].record for step in numbered}
            self._parts.log.record(commit, expected)
        except ForeignHandsError as error:
            _logger.warning("lane %s: %s", self.name, error)
            return []
        except TransientError as error:
            self._record_failures += 1
            delay = backoff_ms(self._record_failures)
            self._record_again_at_ms = now_ms + delay
            _logger.warning(
                "lane %s cannot record (next in %.1f s): %s", self.name, delay / 1000, error
            )
            return []
        self.batch += 1
        self._checkpoints.committed(commit.entries)
        self._schema.recorded(step.record.text for step in numbered)
        self._record_failures = 0
        self.counters.batches += 1
        return [state for step in numbered if (state := self._committed(step)) is not None]

    def _unchanged(self, steps: list[Step]) -> list[Step]:
        """Steps of partitions whose committed offset is still ours; the others stop."""
        expected = {step.source: self.states[step.source].record for step in steps}
        different = self._parts.log.differences(expected)
        for source, how in different.items():
            self._gatherer.stop(self.states[source], ForeignHandsError(how))
        return [step for step in steps if step.source not in different]

    def _committed(self, step: Step) -> PartitionState | None:
        """Take a committed step over into the partition's state."""
        state = self.states[step.source]
        now_ms = self._parts.now_ms()
        if state.loaded is not None:
            self.counters.settled(state.loaded)
            _logger.debug("%s is settled: %d rows", state.block_range, state.loaded.rows)
            self._claims.end(now_ms, state.background.marks, state.record.grant)
            if not has_expired(state.suspect_until_ms, now_ms):
                self._claims.suspects.append(
                    Suspect(state.background.marks, state.suspect_until_ms)
                )
            state.suspect_until_ms = 0
        state.loaded = state.shorten_to = state.grant_wanted = state.outdated = None
        state.is_probed = state.is_unrecorded = False
        state.record, state.background = step.record, step.background
        state.committed_at_ms = now_ms
        state.sent = state.sent and step.record.kind is not Kind.INTEND
        state.untouched = state.untouched or step.record.kind is Kind.INTEND
        state.waiting_since_ms = None
        state.see_end(EpochOffset(state.stable_end, state.epoch), now_ms)
        if state.retiring and not state.record.in_doubt:
            self._let_go(state)
            _logger.info(
                "%s is not configured any more; it is settled at %d and let go",
                state.source,
                state.settled,
            )
        return state if step.dispatch else None

    # 6. Dispatch

    def _dispatch(self, ready: list[PartitionState]) -> None:
        """Send ranges to Spark."""
        jobs = grouped(ready, self._decider.share, self._parts.jobs.slots)
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
            self._parts.jobs.submit(job, self._around, self._parts.inbox.put)

    def _probe(self, now_ms: int) -> None:
        for state in self.states.values():
            waiting = state.probing and not state.probe_out and state.stopped is None
            if not waiting or now_ms < state.retry_at_ms:
                continue
            if state.out or not has_expired(state.record.deadline_ms, now_ms):
                continue
            state.probe_out = True
            text, known = self._decider.text_of(state), self._schema.known_rest(state)
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
