"""Step 6 of a round: recorded ranges go to Spark, and those that are to be probed to the prober."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from sluice.core.lease import has_expired
from sluice.core.planning import packed
from sluice.driver.bundling import whole_bundles
from sluice.driver.changes import SchemaChanges
from sluice.driver.counters import Counters
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import LoopParts, Sought
from sluice.driver.round_planner import RoundPlanner
from sluice.driver.state import PartitionState, Probing, ToProbe
from sluice.spark.jobs import JobResult
from sluice.worker.assignment import Assignment, Job, TaskEnvironment

_logger = logging.getLogger("sluice.loop")

#: A job is given so long beyond the leases of its ranges: what came too late says so itself, and
#: a worker that only starts slowly must not be ended while it does.
PATIENCE_MS = 30_000
#: After each job that had to be ended, the next ones are given twice as long, up to this.
PATIENCE_MS_MAX = 8 * PATIENCE_MS


class HungJobs:
    """Knows which jobs of one connector are out, and which of them have to be ended: a worker may
    hang, or its machine. Nobody else may load its ranges while it might, and after its lease it may
    not any more.

    :param loop: for messages.
    """

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self._patience_ms = PATIENCE_MS
        #: With the end of the last lease, or when it was last ended.
        self._out: dict[int, tuple[Job, int]] = {}
        self._ended: set[int] = set()

    def sent(self, job: Job) -> None:
        """A job goes out."""
        self._out[id(job)] = job, max(each.record.deadline_ms for each in job.assignments)

    def came_back(self, job: Job) -> None:
        """Loaded, failed or lost."""
        self._out.pop(id(job), None)
        if id(job) not in self._ended:
            self._patience_ms = PATIENCE_MS
        self._ended.discard(id(job))

    def out(self) -> list[Job]:
        """All that are out."""
        return [job for job, _ in self._out.values()]

    def due(self, now_ms: int) -> list[Job]:
        """Jobs that are to be ended now: no insert of theirs can begin or be on its way."""
        due = [
            job
            for job, deadline_ms in self._out.values()
            if has_expired(deadline_ms + self._patience_ms, now_ms)
        ]
        is_new = any(id(job) not in self._ended for job in due)
        for job in due:
            self._ended.add(id(job))
            self._out[id(job)] = job, now_ms  # if that does not end it, it is told so again
            _logger.warning(
                "connector %s: %s does not come back although its lease is over: a worker hangs, "
                "or Spark has not begun it. It is ended, and its ranges are sent again",
                self._loop,
                job.description,
            )
        if is_new:
            self._patience_ms = min(2 * self._patience_ms, PATIENCE_MS_MAX)
        return due


#: Ranges that one probe looks for: what it asks of the servers is asked once for all of them.
PROBED_TOGETHER_MAX = 100
#: Workers end after a minute without work.
WARM_EVERY_MS = 20_000


class Dispatcher:
    """What one loop has given away: jobs, and looks into the tables. Their results come by the
    inbox.

    :param name: of the connector; shown in Spark's UI.
    :param share: how much of a task a bundle is.
    """

    def __init__(
        self,
        name: str,
        parts: LoopParts,
        share: Callable[[Sequence[PartitionState]], float],
        specs: LoadSpecs,
        schema: SchemaChanges,
        round_planner: RoundPlanner,
        counters: Counters,
    ) -> None:
        self._name = name
        self._jobs = parts.jobs
        self._prober = parts.prober
        self._inbox, self._tracing = parts.inbox, parts.tracing
        self._now_ms = parts.now_ms
        self._share = share
        self._specs, self._schema = specs, schema
        self._round_planner = round_planner
        self._counters = counters
        self._hung = HungJobs(name)
        self._worked_at_ms = parts.now_ms()

    def dispatch(self, ready: list[PartitionState], environment: TaskEnvironment) -> None:
        """Send ranges to Spark, with the load specs that they name. A bundle of which not all
        members were recorded stays here."""
        jobs = grouped(whole_bundles(ready), self._share, self._jobs.slots)
        for tasks in jobs:
            self._worked_at_ms = now_ms = self._now_ms()
            looks = self._schema.looks_for_fields(now_ms)
            given = tuple(tuple(assigned(state, now_ms, looks) for state in task) for task in tasks)
            job = Job(self._name, max(s.record.batch for task in tasks for s in task), given)
            sent = (state for task in tasks for state in task)
            for state, assignment in zip(sent, job.assignments, strict=True):
                state.out, state.sent, state.repeated = True, True, not assignment.is_first
                self._counters.retries += state.record.attempt > 1
            self._hung.sent(job)
            texts = self._specs.texts({each.record.spec for each in job.assignments})
            self._jobs.submit(job, replace(environment, specs=texts), self._inbox.put)

    def came_back(self, result: JobResult) -> None:
        """Spark has carried a job out, or given it up."""
        self._hung.came_back(result.job)
        if self._tracing is not None:
            self._tracing.came_back(self._name, result)

    def worked(self, now_ms: int) -> None:
        """Workers had something to do until now."""
        self._worked_at_ms = now_ms

    def cancel_hung(self, now_ms: int) -> None:
        """Jobs whose leases have long been over do not hold their slots any longer."""
        for job in self._hung.due(now_ms):
            self._jobs.cancel(job)

    def cancel_all(self) -> None:
        """Another owner has what was sent: nothing of it is waited for (R17)."""
        for job in self._hung.out():
            self._jobs.cancel(job)

    def probe(self, busy: Iterable[PartitionState], now_ms: int) -> None:
        """Have the tables looked into for ranges of which nothing can come any more."""
        together: dict[tuple[str, int, int], list[PartitionState]] = {}
        for state in busy:
            if type(state.stage) is not ToProbe or now_ms < state.retry_at_ms:
                continue
            if self._schema.unrepeatable.is_disputed(state):
                continue  # where it is looked for, and what is known of it, its load spec decides
            last_ms = max(state.record.deadline_ms, state.late_insert_until_ms)
            if state.out or not has_expired(last_ms, now_ms):
                continue
            since_ms = state.background.since_ms
            place = state.source.topic, id(self._round_planner.spec_of(state)), since_ms
            together.setdefault(place, []).append(state)
        for (_, _, since_ms), states in together.items():
            spec = self._round_planner.spec_of(states[0])
            for state in states:
                state.become(Probing(state.outdated))
            for begin in range(0, len(states), PROBED_TOGETHER_MAX):
                sought = [
                    Sought(
                        state.block_range,
                        state.record,
                        self._schema.known_rest(state),
                        state.background.stored,
                        self._schema.in_parts(state),
                        self._schema.may_be_parked,
                    )
                    for state in states[begin : begin + PROBED_TOGETHER_MAX]
                ]
                self._counters.probes += len(sought)
                self._prober.submit(sought, spec, since_ms, self._inbox.put)

    def keep_warm(self, now_ms: int) -> None:
        """Give idle workers something to do before they end."""
        if now_ms - self._worked_at_ms > WARM_EVERY_MS:
            self._worked_at_ms = now_ms
            self._jobs.warm()


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
        background=state.background,
        sent_at_ms=now_ms,
        is_first=state.record.attempt == 1 and not state.sent,
        looks_for_fields=looks_for_fields,
        insert_seconds=state.insert_seconds,
    )
