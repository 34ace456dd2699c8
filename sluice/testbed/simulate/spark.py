"""Spark in memory: real range tasks in workers that die, freeze, and run twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sluice.claims.port import ClaimStore
from sluice.core.formats import REGISTRY_OPTION
from sluice.core.load_spec import TableSpec
from sluice.core.receipts import (
    BundleTooHeavy,
    Failed,
    Loaded,
    NeedsReservation,
    Outdated,
    TaskReport,
    TooHeavy,
    Untried,
)
from sluice.decode.messages.framing import Framing
from sluice.decode.schema.registry import provide
from sluice.locks.port import Locks
from sluice.spark.jobs import JobLostError, JobResult, SparkGoneError
from sluice.testbed.simulate import faults
from sluice.testbed.simulate.columns import add_columns
from sluice.testbed.simulate.decoding import ListBuffer, OffsetSplitter, VersionedDecoder
from sluice.testbed.simulate.inserters import Inserter
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.processes import DriverProcess, WorkerProcess
from sluice.testbed.simulate.scheduler import KilledError
from sluice.testbed.simulate.store import SimulatedRowKeys, SimulatedStore
from sluice.testbed.simulate.world import World
from sluice.worker.assignment import Assignment, Job, TaskEnvironment
from sluice.worker.loading import load_bundle
from sluice.worker.tasks import bundles_of, load_task
from sluice.worker.worker_cache import WorkerCache

#: Attempts of a task before Spark gives the job up.
ATTEMPTS_MAX = 3
#: How often a task gets a worker that has run one before.
REUSE_RATE = 0.8
#: So long after its end Spark is found to be gone by a driver that has no job out.
GONE_MS = 2_000
#: Longer than any run.
NEVER_MS = 1 << 40


class SimulatedWorkerCache(WorkerCache):
    """The real cache of a worker, with simulated buffers, decoders, splitters and claims."""

    def __init__(self, parts: Parts, decoder: int, registry: str) -> None:
        super().__init__(has=f"simulated {decoder}")
        self._parts = parts
        self._store: SimulatedStore | None = None
        self._locks = parts.locks if parts.world.plan.has_locks else None
        self._decoder = decoder
        self._registry = registry

    def buffer(self, framing: Framing) -> Any:
        return ListBuffer()

    def keep(self, buffers: Any) -> None:
        """Nothing to keep."""

    def decoder(self, environment: TaskEnvironment, digest: str, table: TableSpec) -> Any:
        url = dict(table.options).get(REGISTRY_OPTION, "") and self._registry
        return VersionedDecoder(table, self._decoder, url)

    def table_locks(self, environment: TaskEnvironment) -> Locks | None:
        return self._locks

    def splitter(self, digest: str, table: TableSpec, columns: tuple[str, ...]) -> Any:
        return OffsetSplitter(table)

    def row_keys(self, digest: str, table: TableSpec, columns: tuple[str, ...]) -> Any:
        return SimulatedRowKeys(self._parts, table)

    def claims(self, environment: TaskEnvironment) -> ClaimStore:
        self._store = self._store or SimulatedStore(self._parts)
        return self._store


def bundle_loader(
    world: World,
) -> Callable[[TaskEnvironment, Sequence[Assignment], int], tuple[TaskReport, ...]]:
    """`load_bundle` of the running worker, whose inserts are held against the ranges' lease."""

    def load(
        environment: TaskEnvironment, members: Sequence[Assignment], task_attempt: int
    ) -> tuple[TaskReport, ...]:
        worker = world.process
        assert isinstance(worker, Worker)
        worker.records = {member.block_range.source: member.record for member in members}
        worker.since_ms = min(member.background.since_ms for member in members)
        reports = load_bundle(environment, members, task_attempt)
        for each in worker.inserting:
            each.is_over |= each.records == worker.records
        return reports

    return load


class Worker(WorkerProcess):
    """A Python worker: one task at a time."""

    def __init__(self, parts: Parts, decoder: int) -> None:
        super().__init__(f"worker {parts.world.named()}", parts.world.draw_skew_ms())
        # What a process knows of schemas it knows as long as it lives.
        provide(self.name, parts.registry)
        self.cache = SimulatedWorkerCache(parts, decoder, self.name)
        self.inserting: list[Inserter] = []


class Application:
    """The Spark of one driver; a port of the loop.

    :param succeed: ends the driver, and soon there is one with another engine.
    """

    def __init__(self, parts: Parts, driver: DriverProcess, succeed: Callable[[], None]) -> None:
        self.slots = self.slots_max = parts.world.plan.slots
        self.succeed = succeed
        self._parts = parts
        self._world = parts.world
        self._driver = driver
        self._free: list[Worker] = []
        self._runs: dict[int, _JobRun] = {}
        self.is_gone = False
        self._told_when_gone: list[Callable[[SparkGoneError], None]] = []

    def when_gone(self, tell: Callable[[SparkGoneError], None]) -> None:
        """Tell a while after `end`."""
        self._told_when_gone.append(tell)

    def warm(self, *, wait: bool = False) -> None:
        """Workers do not end here."""

    def cancel(self, job: Job) -> None:
        """End a job that does not come back, and the workers that hang in it."""
        run = self._runs.get(id(job))
        if run is not None:
            self._world.scheduler.at(1, run.cancel)

    def submit(
        self, job: Job, environment: TaskEnvironment, finished: Callable[[Any], None]
    ) -> None:
        """Start a job; one of Spark's faults may strike it."""
        if self.is_gone:
            result = JobResult(job, error=SparkGoneError("simulated"))
            self._world.scheduler.at(1, lambda: finished(result))
            return
        invariants = self._parts.invariants
        invariants.sent(self._driver, job, environment, self.slots)

        def ended(result: Any) -> None:
            del self._runs[id(job)]
            invariants.came_back(self._driver, job)
            finished(result)

        self._runs[id(job)] = run = _JobRun(self, self._parts, job, environment, ended)
        run.start()

    def end(self, *, tasks_live_on: bool) -> None:
        """The driver is gone; so are its workers, unless they do not know it yet."""
        self.is_gone = True
        for tell in self._told_when_gone:
            self._world.scheduler.at(GONE_MS, partial(tell, SparkGoneError("simulated")))
        if not tasks_live_on:
            for worker in list(self._driver.workers):
                self._world.scheduler.kill(worker)

    def hire(self) -> Worker:
        """A worker without a task; now and then Spark has ended those that were idle."""
        while self._free and self._world.rng.random() < REUSE_RATE:
            worker = self._free.pop()
            if not worker.is_dead and worker.paused_until <= self._world.now:
                return worker
        worker = Worker(self._parts, self._driver.decoder)
        self._driver.workers[worker] = None
        return worker

    def release(self, worker: Worker) -> None:
        """Its task ended."""
        if worker.is_dead:
            self._driver.workers.pop(worker, None)
        else:
            self._free.append(worker)


class _JobRun:
    """One job: tasks that report, and attempts that are started again."""

    def __init__(
        self,
        application: Application,
        parts: Parts,
        job: Job,
        environment: TaskEnvironment,
        finished: Callable[[Any], None],
    ) -> None:
        self._application = application
        self._parts = parts
        self._world = parts.world
        self._job = job
        self._environment = environment
        self._finished = finished
        self._reports: dict[int, tuple[TaskReport, ...]] = {}
        self._attempts = [0] * len(job.tasks)
        self._workers: list[Worker] = []
        self._is_over = False

    def start(self) -> None:
        """Start the first attempt of each task, and draw what will strike."""
        world, rng = self._world, self._world.rng
        table = faults.CALM_JOB if world.plan.is_calm else faults.JOB
        fault = world.faults.draw(table, world.plan.unrest_of_jobs)
        world.say(f"{self._job.description}: {fault}")
        index = rng.randrange(len(self._job.tasks))
        if fault == "driver killed after half an insert":
            # Only that topic's blocks go over several ClickHouse partitions.
            index = max(range(len(self._job.tasks)), key=self._is_parted)
        lease_ms = int(world.plan.lease_seconds * 1000)
        is_behind = fault == "task waits for an executor whose clock is behind"
        waits_ms = rng.randrange(90_000) if fault == "task waits for an executor" else 0
        waits_ms = rng.randrange(lease_ms, 2 * lease_ms) if is_behind else waits_ms
        for number in range(len(self._job.tasks)):
            self._begin(number, waits_ms if number == index else rng.randrange(2, 50))
        if is_behind:  # so far that the task looks as if it had just been sent
            self._workers[index].skew_ms = -waits_ms
        delay_ms = rng.randrange(rng.choice((60, 300, 40_000)))
        if fault == "job lost, its task sleeps and wakes up":
            # Early enough that it sleeps before, in, or after its inserts.
            sleep_ms = rng.randrange(rng.choice((1, 2, 4)) * lease_ms)
            world.scheduler.at(rng.randrange(100), lambda: self._put_to_sleep(index, sleep_ms))
        elif fault == "job lost, its task wakes late in its lease":
            worker = self._workers[index]
            worker.before_insert = lambda: self._sleep_late(index, worker)
        elif fault == "job lost, its task wakes after a column was added":
            worker = self._workers[index]
            worker.before_insert = lambda: self._sleep_over_alter(index, worker)
        elif fault == "driver killed, its task wakes under another engine":
            worker = self._workers[index]
            worker.before_insert = lambda: self._change_engine(index, worker)
        elif fault == "task never comes back":
            worker = self._workers[index]
            # In, or after, its inserts.
            world.scheduler.at(rng.randrange(2, 200), lambda: self._hang(worker))
        elif fault == "driver killed after half an insert":
            worker = self._workers[index]
            worker.before_insert = lambda: self._insert_half(worker)
        elif fault in ("job lost, its tasks live on", "job lost, its tasks die", "Spark is gone"):
            world.scheduler.at(delay_ms, lambda: self._lose(fault))
        elif fault == "task started again after the first one died":
            world.scheduler.at(delay_ms, lambda: world.scheduler.kill(self._workers[index]))
        elif fault in ("task started again while the first one runs", "speculative copy"):
            world.scheduler.at(delay_ms, lambda: self._again(index))

    def _is_parted(self, index: int) -> bool:
        topics = self._world.plan.topics_of("parted")
        return any(a.block_range.source.topic in topics for a in self._job.tasks[index])

    def _begin(self, index: int, delay_ms: int) -> None:
        world = self._world
        attempt = self._attempts[index]
        self._attempts[index] += 1
        worker = self._application.hire()
        self._workers.append(worker)
        for members in bundles_of(self._job.tasks[index]) if attempt == 0 else ():
            worker.inserting.append(self._parts.inserters.task_begins(members, worker))
        world.scheduler.spawn(worker, lambda: self._task(worker, index, attempt, delay_ms))

    def _task(self, worker: Worker, index: int, attempt: int, delay_ms: int) -> None:
        world, assignments = self._world, self._job.tasks[index]
        world.tasks_running += 1
        try:
            world.sleep(delay_ms)
            worker.attempt = attempt
            reports = load_task(self._environment, assignments, attempt)
            for report, assignment in zip(reports, assignments, strict=True):
                self._note(report, assignment)
            world.sleep(world.rng.randrange(1, 30))  # the reports' way to the driver
            for each in worker.inserting:
                each.is_over = True
            self._reported(index, reports)
        except KilledError:
            world.scheduler.at(world.rng.randrange(5_000), lambda: self._died(index))
            raise
        finally:
            worker.before_insert = worker.insert_fault = None
            world.looking.pop(worker, None)
            world.tasks_running -= 1
            self._application.release(worker)

    def _note(self, report: TaskReport, assignment: Assignment) -> None:
        outcome, bundles = report.outcome, self._parts.invariants.bundles
        for receipt in outcome.receipts if isinstance(outcome, Loaded) else ():
            if receipt.failed_over:
                doubt = ", in doubt at the first" if receipt.in_doubt else ""
                self._world.faults.note(f"block went to another replica{doubt}")
        if isinstance(outcome, TooHeavy | BundleTooHeavy):
            bundles.too_heavy(assignment.block_range.source, assignment.record)
        if isinstance(outcome, TooHeavy):
            self._world.faults.note("range refused as too heavy")
        elif isinstance(outcome, BundleTooHeavy):
            self._world.faults.note("bundle refused as too heavy")
        elif isinstance(outcome, Outdated):
            why = "load spec refused by its first task"
            why = "range refused for its new fields" if outcome.fields else why
            why = "range refused for unknown schemas" if outcome.schemas else why
            self._world.faults.note(why)
        elif isinstance(outcome, NeedsReservation):
            self._world.faults.note("range refused for its reservation")
        elif isinstance(outcome, Untried):
            self._world.faults.note("range given back untried")
        elif isinstance(outcome, Failed) and "This is a bug" in outcome.error.hint:
            self._world.violate(f"a task failed on a bug: {outcome.error}")

    def _reported(self, index: int, reports: tuple[TaskReport, ...]) -> None:
        self._reports.setdefault(index, reports)
        if len(self._reports) == len(self._job.tasks):
            ordered = [
                report for number in sorted(self._reports) for report in self._reports[number]
            ]
            self._end(JobResult(self._job, reports=tuple(ordered)))

    def _died(self, index: int) -> None:
        """Spark noticed that a worker is gone."""
        if self._is_over or index in self._reports:
            return
        if self._attempts[index] >= ATTEMPTS_MAX:
            self._end(JobResult(self._job, error=JobLostError("simulated: too many attempts")))
        else:
            self._begin(index, self._world.rng.randrange(100))

    def _again(self, index: int) -> None:
        if not self._is_over and index not in self._reports:
            self._begin(index, self._world.rng.randrange(100))

    def _put_to_sleep(self, index: int, sleep_ms: int) -> None:
        """SIGSTOP for a worker; Spark gives it up, and it wakes around the end of its lease."""
        self._workers[index].paused_until = self._world.now + max(0, sleep_ms)
        self._lose("job lost, its tasks live on")

    def _sleep_late(self, index: int, worker: Worker) -> None:
        """It wakes in the last third of its lease, and inserts what is settled long since."""
        left_ms = self._job.tasks[index][0].record.deadline_ms - self._world.now
        sleep_ms = left_ms - self._world.rng.randrange(int(self._world.plan.lease_seconds * 333))
        worker.paused_until = self._world.now + max(0, sleep_ms)
        self._lose("job lost, its tasks live on")

    def _sleep_over_alter(self, index: int, worker: Worker) -> None:
        """By then its range was repeated, and every table has one more column."""
        self._sleep_late(index, worker)
        self._world.scheduler.at(
            max(0, worker.paused_until - self._world.now - 1), lambda: add_columns(self._world)
        )

    def _change_engine(self, index: int, worker: Worker) -> None:
        """The next driver cannot repeat what is in doubt; a task that wakes up still may."""
        if self._application.is_gone:
            return
        self._sleep_late(index, worker)
        self._succeed()

    def _insert_half(self, worker: Worker) -> None:
        """Some ClickHouse partitions of the block land, and nobody may repeat the rest of it:
        a probe has to find what is missing."""
        worker.insert_fault = "insert: partial over ClickHouse partitions"
        self._world.scheduler.at(self._world.rng.randrange(10, 200), self._succeed)

    def _succeed(self) -> None:
        """The next driver comes soon, with another engine."""
        if not self._application.is_gone:
            self._application.succeed()

    def _hang(self, worker: Worker) -> None:
        """Whatever becomes of its job: nobody hears of it again."""
        if self._world.faults.is_on:
            worker.paused_until = self._world.now + NEVER_MS

    def cancel(self) -> None:
        """The driver gives the job up: Spark ends its workers."""
        for worker in self._workers:
            self._world.scheduler.kill(worker)
        self._end(JobResult(self._job, error=JobLostError("simulated: cancelled")))

    def _lose(self, fault: str) -> None:
        if self._is_over:
            return
        if fault == "job lost, its tasks die":
            for worker in self._workers:
                self._world.scheduler.kill(worker)
        if fault == "Spark is gone":
            self._application.end(tasks_live_on=self._world.rng.random() < 0.5)
            self._end(JobResult(self._job, error=SparkGoneError("simulated")))
        else:
            self._end(JobResult(self._job, error=JobLostError("simulated")))

    def _end(self, result: JobResult) -> None:
        if not self._is_over:
            self._is_over = True
            self._finished(result)
