"""Taking in what tasks and probes report: each outcome becomes a fact about its partition."""

from __future__ import annotations

import json
import logging
import random

from sluice.clickhouse.reactions import (
    STRUCTURE_CODES,
    ServerError,
    is_data_refusal,
    may_still_land,
    name_of,
)
from sluice.clickhouse.schema import OtherColumnsError
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.errors import InDoubtError, SluiceError, TerminalError
from sluice.core.lease import LeaseOverError
from sluice.core.ledger import Background
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import smoothed_bytes
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import (
    BundleTooHeavy,
    Failed,
    Loaded,
    NeedsReservation,
    Outcome,
    Outdated,
    TaskReport,
    TooHeavy,
    Untried,
)
from sluice.driver.bundling import FAILURES_ALONE_MAX
from sluice.driver.counters import Counters
from sluice.driver.dead_letter_limiter import DeadLetterLimiter, TooManyDeadLettersError
from sluice.driver.effects import Effect, ParkEntry, StopPartition
from sluice.driver.parking import Parking
from sluice.driver.ports import Clock, ProbeEnded, ProbeFound
from sluice.driver.probing import DoubledRowsError
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.state import AsRecorded, PartitionState, Probed, Stopped
from sluice.driver.unknown_schemas import (
    AGAIN_MS_MAX,
    PARTLY_STORED,
    PATIENCE_MS,
    WHEN_STORED,
    SchemaPatience,
    UnknownSchemaError,
    stored_in_part,
)
from sluice.kafka.errors import PASSING, RegistryRefusedError
from sluice.spark.jobs import JobResult, SparkGoneError
from sluice.worker.errors import StructureChangedError, took_too_long

_logger = logging.getLogger("sluice.loop")

BACKOFF_MS_FIRST = 500
BACKOFF_MS_MAX = 30_000
#: The same failure so often in a row is worth a person's attention.
ALARM_FAILURES = 5


#: A block that was refused for its columns so often, although the table has them, stops.
REFUSALS_MAX = 3


def _is_refused_for_columns(error: SluiceError) -> bool:
    """Whether the table may have been altered under a block."""
    is_structure = isinstance(error, ServerError) and error.code in STRUCTURE_CODES
    return is_structure or isinstance(error, OtherColumnsError)


def _refuses_all(outcome: Outcome) -> bool:
    """Whether a task that says so has inserted nothing of its range, of no table."""
    if isinstance(outcome, Outdated):
        return bool(outcome.fields or outcome.schemas)
    if isinstance(outcome, Failed):
        return outcome.inserted_nothing
    if isinstance(outcome, NeedsReservation):
        return not outcome.inserted
    return isinstance(outcome, Untried | TooHeavy | BundleTooHeavy)


def backoff_ms(failures: int) -> int:
    """Capped exponential pause before the next attempt."""
    return min(BACKOFF_MS_MAX, BACKOFF_MS_FIRST << min(failures, 10))


def _tell_ignored(counters: Counters, block_range: Range, loaded: Loaded, spec: LoadSpec) -> None:
    """Say once which fields no column takes. It is a warning where one of them may be meant for a
    column that is written otherwise; whether its own name is in messages, too, is not known."""
    for entry, names in counters.newly_ignored(loaded).items():
        meant = _meant(spec, entry, names)
        hint = "Columns of these names load them from then on."
        if meant:
            pairs = ", ".join(f"{json.dumps(c)} = {json.dumps(n)}" for n, c in meant.items())
            hint += f" If they are only written otherwise: [table.columns] {pairs}."
        _logger.log(
            logging.WARNING if meant else logging.INFO,
            "%s: its messages have fields that table entry %s has no column for, and that are not "
            "loaded: %s",
            block_range,
            entry,
            ", ".join(names),
            extra={"hint": hint},
        )


def _meant(spec: LoadSpec, entry: str, names: list[str]) -> dict[str, str]:
    """Columns by the names of fields that differ from theirs by case and underscores only; those
    that are filled from elsewhere, by Sluice itself too, or computed, are left out."""
    tables = [table for table in spec.tables if table.entry == entry]
    filled = {mapped.column for table in tables for mapped in table.mapping}
    filled.update(name for table in tables for name in table.lineage)
    columns = {
        _plain(column.name): column.name
        for table in tables
        for column in table.columns
        if column.name not in filled and column.kind not in ("MATERIALIZED", "ALIAS")
    }
    return {name: columns[_plain(name)] for name in names if _plain(name) in columns}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _asked_registry(spec: LoadSpec, loaded: Loaded) -> bool:
    """Whether rows were made with schemas of a registry."""
    entries = {table.entry for table in spec.tables if table.registry}
    return any(receipt.entry in entries and receipt.rows for receipt in loaded.receipts)


class ReportHandler:
    """Takes events in for one loop: the partition's state is changed here, and what follows for
    others is given back.

    :param states: the loop's own mapping; partitions may join it later.
    :param dead_letter_limit: from when on dead letters stop a partition.
    :param parking: which entries may be parked.
    :param schema_patience_ms: see `unknown_schemas`.
    """

    def __init__(
        self,
        loop: str,
        states: dict[TopicPartition, PartitionState],
        planner: RecordPlanner,
        counters: Counters,
        now_ms: Clock,
        dead_letter_limit: DeadLetterLimit | None = None,
        parking: Parking | None = None,
        schema_patience_ms: int = PATIENCE_MS,
    ) -> None:
        self.dead_letters = DeadLetterLimiter(loop, dead_letter_limit or DeadLetterLimit())
        self._patience = SchemaPatience(self.dead_letters, schema_patience_ms)
        self._states = states
        self._planner = planner
        self._counters = counters
        self._now_ms = now_ms
        self._parking = parking or Parking()
        #: It has answered: what it refuses from now on may pass.
        self._registry_answers = False

    def take(self, event: object) -> list[Effect]:
        """Take a finished job or probe in; gives what follows.

        :raises SparkGoneError: no job can run any more.
        """
        if isinstance(event, JobResult):
            return self._take_result(event)
        if isinstance(event, ProbeEnded):
            return [effect for found in event.found for effect in self._take_probe(found)]
        if isinstance(event, SparkGoneError):
            raise event
        return []

    def _take_result(self, result: JobResult) -> list[Effect]:
        now_ms = self._now_ms()
        for assignment in result.job.assignments:
            state = self._states[assignment.block_range.source]
            state.out, state.back_at_ms = False, now_ms
        if isinstance(result.error, SparkGoneError):
            raise result.error
        effects: list[Effect] = []
        if result.error is not None:
            for assignment in result.job.assignments:
                state = self._states[assignment.block_range.source]
                state.untouched = False
                state.expect_late_insert()
                if state.stopped is None:
                    effects += self._failed(state, result.error, now_ms)
            return effects
        for report in result.reports:
            effects += self._take_report(self._states[report.block_range.source], report, now_ms)
        return effects

    def _take_report(self, state: PartitionState, report: TaskReport, now_ms: int) -> list[Effect]:
        counters = self._counters
        counters.worker_memory_bytes_max = max(
            counters.worker_memory_bytes_max, report.worker_memory_bytes
        )
        if report.task_attempt > 0 or report.may_land:
            # What is stored late, after the range is settled, keeps its hold on the window.
            state.expect_late_insert()
        if report.may_lack_part:
            state.distrust_servers()
        state.untouched = state.untouched and _refuses_all(report.outcome)
        if state.stopped is not None:
            return []  # It stays in doubt; the next start decides.
        counters.came_back(report.outcome)
        match report.outcome:
            case Loaded() as loaded:
                try:
                    state.answered(
                        self.dead_letters.take(state.block_range, state.record, loaded, now_ms)
                    )
                except TooManyDeadLettersError as error:
                    if self._parking.allows(error.table):
                        return [ParkEntry(error.table, error)]
                    return [StopPartition(state.source, error)]
                self._take_failovers(state, loaded)
                _tell_ignored(self._counters, state.block_range, loaded, self._planner.spec)
                state.failures = state.refusals = 0
                state.alone = False
                self._planner.learn_time(state, loaded)
                state.bytes_per_message = smoothed_bytes(
                    state.bytes_per_message, loaded.messages, loaded.bytes
                )
                self._planner.learn_bytes(state.source.topic, loaded.messages, loaded.bytes)
                for receipt in loaded.receipts:
                    self._planner.learn(receipt.entry, receipt.entries)
                self._registry_answers |= _asked_registry(self._planner.spec, loaded)
            case TooHeavy(end=end, bytes=size) as heavy:
                self._too_heavy(state, heavy)
                state.bytes_per_message = max(1.0, size / max(1, end - state.record.begin))
            case BundleTooHeavy(by_rows=by_rows):
                if state.record.rest:
                    # Nobody inserted this bundle, but an earlier block of the range may be known to
                    # a server that lacks it (R7): it is never given back.
                    state.probe()
                else:
                    state.alone = True
                    # Bytes are so for whoever is sent it, so nobody ever inserted it (R12).
                    state.untouched = state.untouched or not by_rows
                if by_rows:
                    self._planner.narrow(state)
            case NeedsReservation() as need:
                learn = self._planner.learn_views if need.views else self._planner.learn
                learn(need.entry, need.entries)
                state.answered(need)
            case Outdated() as outdated if outdated.schemas:
                return self._unknown_schemas(state, outdated, now_ms)
            case Outdated() as outdated:
                _logger.info("%s: %s", state.block_range, outdated.why)
                state.answered(outdated)
            case Failed() as failed:
                return self._refused(state, failed, now_ms)
            case Untried():
                # If it was the first task, no other was ever allowed to insert: the next one
                # is the first again.
                state.sent = state.repeated
        return []

    def _too_heavy(self, state: PartitionState, heavy: TooHeavy) -> None:
        """A range that is too heavy is shortened, if surely nobody inserted anything of it. By its
        rows it may be so under this load spec, and was not under another one."""
        if heavy.by_rows and not (state.untouched or state.record.rest):
            state.probe()
        else:
            state.answered(heavy)

    def _unknown_schemas(
        self, state: PartitionState, outdated: Outdated, now_ms: int
    ) -> list[Effect]:
        """The registry is asked again for a while. Then the load spec says which schemas there are:
        at once, where nobody ever inserted anything of the range; else a probe tells what is there,
        since the registry may have known them before. Where it found some rows of messages that
        have several, the registry has known the schemas, and is waited for."""
        if stored_in_part(outdated, state.background.stored):
            error = UnknownSchemaError(f"{outdated.why}, and {PARTLY_STORED}", WHEN_STORED)
            return self._failed(state, error, now_ms, AGAIN_MS_MAX)
        try:
            judged = self._patience.judge(state.block_range, outdated, now_ms)
        except UnknownSchemaError as error:
            # It may be one member's messages that the others wait for.
            state.alone = bool(state.record.bundle) and state.failures >= FAILURES_ALONE_MAX
            return self._failed(state, error, now_ms, AGAIN_MS_MAX)
        state.answered(judged)
        state.failures = 0
        if not state.untouched:
            state.probe()
        _logger.warning(
            "%s: %s; messages that name it become dead letters%s",
            state.block_range,
            outdated.why,
            "" if state.untouched else ", but for those that an earlier attempt made rows of",
        )
        return []

    def _take_failovers(self, state: PartitionState, loaded: Loaded) -> None:
        for receipt in loaded.receipts:
            if receipt.failed_over and not receipt.is_shared:
                self._counters.failovers += 1
                _logger.warning(
                    "%s of table entry %s went to %s after %s",
                    state.block_range,
                    receipt.entry,
                    receipt.replica,
                    ", ".join(receipt.failed_over),
                )

    def _refused(self, state: PartitionState, failed: Failed, now_ms: int) -> list[Effect]:
        """A block that can never be stored: its entry is parked, if it may be. What of it this
        range has stored all the same, a probe finds, unless it is known that nothing is."""
        error, table = failed.error, failed.entry
        is_final = isinstance(error, TerminalError) and not (
            _is_refused_for_columns(error) and state.refusals < REFUSALS_MAX
        )
        # What its table has stored although a view refused it would be doubled when it comes back.
        may_wait = failed.is_unstored or not is_data_refusal(error)
        if not (is_final and may_wait and self._parking.allows(table)):
            return self._failed(state, error, now_ms)
        self._count(error)
        state.failures = state.refusals = 0
        state.retry_at_ms = now_ms
        if failed.is_unstored:
            state.answered(Outdated(table, str(error), failed.inserted))
        return [ParkEntry(table, error)]

    def _failed(
        self,
        state: PartitionState,
        error: SluiceError,
        now_ms: int,
        pause_ms_max: int = BACKOFF_MS_MAX,
    ) -> list[Effect]:
        self._count(error)
        passing = (*PASSING, RegistryRefusedError) if self._registry_answers else PASSING
        if isinstance(error, TerminalError) and not isinstance(error, passing):
            if not _is_refused_for_columns(error) or state.refusals >= REFUSALS_MAX:
                return self._failed_for_good(state, error)
            # A look at the table says more: what it was, what it is, and who has to stop.
            state.refusals += 1
        if isinstance(error, LeaseOverError) and now_ms >= state.record.deadline_ms:
            _logger.warning("%s; it gets a new one", error)
            state.retry_at_ms = now_ms
            return []
        if took_too_long(error):
            self._planner.give_time(state)
        if isinstance(error, StructureChangedError):
            state.refusals += 1  # a look at the table says whether it can be sent again
        if may_still_land(error):
            state.expect_late_insert()
        # A lease that is over there and not here is a clock that runs ahead: sent again at
        # once, the range would come back at once, for ever.
        delay = min(backoff_ms(state.failures), pause_ms_max)
        state.fail(error, now_ms + int(delay * random.uniform(0.5, 1.0)))
        level = logging.ERROR if state.failures % ALARM_FAILURES == 0 else logging.WARNING
        _logger.log(
            level,
            "%s is not loaded yet (attempt %d, next in %.1f s): %s",
            state.block_range,
            state.failures,
            (state.retry_at_ms - now_ms) / 1000,
            error,
            extra={"hint": error.hint, "in_doubt": isinstance(error, InDoubtError)},
        )
        return []

    def _failed_for_good(self, state: PartitionState, error: SluiceError) -> list[Effect]:
        """A range stops. One of a bundle leaves it first, since it may be another one's messages
        that cannot be loaded (R19)."""
        if not state.record.bundle or state.has_to_be_probed:
            return [StopPartition(state.source, error)]
        state.alone = True
        _logger.warning(
            "%s leaves its bundle %s, which cannot be loaded: %s",
            state.block_range,
            state.record.bundle,
            error,
            extra={"hint": error.hint},
        )
        return []

    def _count(self, error: SluiceError) -> None:
        kind = name_of(error)
        self._counters.failures[kind] = self._counters.failures.get(kind, 0) + 1

    def _take_probe(self, found: ProbeFound) -> list[Effect]:
        state = self._states.get(found.source)
        if state is None or not state.is_looked_for:
            return []  # it was let go meanwhile, or taken over anew
        now_ms = self._now_ms()
        if state.stopped is not None:
            state.become(Stopped(state.stopped))
            return []
        error = found.error
        if state.outdated is not None and stored_in_part(state.outdated, found.stored):
            error = TerminalError(PARTLY_STORED)
        if error is not None:
            error = self._or_wait(state, error)
            if state.has_to_be_probed:
                state.probe()
            return self._failed(state, error, now_ms)
        bytes_max = state.background.bytes_max
        background = Background({}, now_ms, found.rest, bytes_max, stored=found.stored)
        state.become(Probed(state.outdated, background))
        missing = sum(end - begin for rest in found.rest.values() for begin, end in rest)
        rows = sum(end - begin for rows in found.stored.values() for _, begin, end in rows)
        _logger.warning(
            "%s was probed: %d of its offsets have no row yet%s",
            state.block_range,
            missing,
            f", or not all of theirs: {rows} rows are there" if rows else "",
        )
        return []

    def _or_wait(self, state: PartitionState, error: SluiceError) -> SluiceError:
        """A range that is probed only because the registry does not know a schema waits for the
        registry where it cannot be probed: then it is the same range again."""
        outdated = state.outdated
        if outdated is None or not outdated.schemas or not isinstance(error, TerminalError):
            return error
        if isinstance(error, DoubledRowsError):
            return error
        state.become(AsRecorded())
        return UnknownSchemaError(
            f"{outdated.why}, an earlier attempt may have made rows of them, and {error}",
            WHEN_STORED,
        )
