"""What a report does to its partition, one outcome at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.errors import InDoubtError, TerminalError, TransientError
from sluice.core.ledger import Background
from sluice.core.load_spec import Column, Mapped
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import (
    IGNORED_FIELDS_MAX,
    Failed,
    Loaded,
    NeedsReservation,
    Outcome,
    Receipt,
    TaskReport,
    TooHeavy,
)
from sluice.core.records import Kind
from sluice.driver.counters import Counters
from sluice.driver.effects import Effect, ParkEntry, StopPartition
from sluice.driver.parking import Parking
from sluice.driver.report_handler import ReportHandler, _tell_ignored
from sluice.driver.state import Answered, PartitionState
from sluice.spark.jobs import JobLostError, JobResult
from sluice.worker.assignment import Assignment, Job
from tests.driver.loop_world import World, table_spec

P0 = TopicPartition("a", 0)
RECEIPT = Receipt("t", "d.t", "s1", "token", 8, 99, "sum", "http://h", 5, 5)


class Gathering:
    """A handler, and one partition whose range is out."""

    def __init__(self) -> None:
        self.world = World([P0])
        self.state = self.world.settled(P0)
        self.state.record = replace(
            self.state.record,
            kind=Kind.INTEND,
            attempt=1,
            begin=10,
            end=20,
            reservation=1,
            deadline_ms=self.world.now + 60_000,
        )
        self.state.background = Background(insert_counters={"t/s1": 0})
        self.state.out = True
        self.counters = Counters()
        self.effects: list[Effect] = []
        self.handler = ReportHandler(
            "loop",
            {P0: self.state},
            self.world.planner,
            self.counters,
            self.world.now_ms,
            parking=Parking(("t",)),
        )

    @property
    def job(self) -> Job:
        record = self.state.record
        assignment = Assignment(self.state.block_range, record, Background(), self.world.now)
        return Job("loop", 1, ((assignment,),))

    def take(self, outcome: Outcome, attempt: int = 0, may_land: bool = False) -> PartitionState:
        self.world.now += 100
        report = TaskReport(
            self.state.block_range, self.state.record.batch, outcome, attempt, 77, may_land
        )
        self.effects += self.handler.take(JobResult(self.job, reports=(report,)))
        return self.state


@pytest.fixture
def gathering() -> Gathering:
    return Gathering()


def test_a_loaded_range_waits_to_be_settled(gathering: Gathering) -> None:
    gathering.state.failures = gathering.state.refusals = 2
    outcome = Loaded((RECEIPT,), (), 10, 4000, 0)
    state = gathering.take(outcome)
    assert (state.loaded, state.out, state.back_at_ms) == (outcome, False, gathering.world.now)
    assert (state.failures, state.refusals, state.late_insert_until_ms) == (0, 0, 0)
    assert state.bytes_per_message == 400.0
    assert gathering.world.planner.reservations == {"t": 5}


@pytest.mark.parametrize(("attempt", "may_land"), [(1, False), (0, True)])
def test_what_may_land_late_is_a_late_insert_although_it_is_loaded(
    gathering: Gathering, attempt: int, may_land: bool
) -> None:
    state = gathering.take(Loaded((RECEIPT,), (), 10, 4000, 0), attempt, may_land)
    assert state.late_insert_until_ms == state.record.deadline_ms
    assert state.loaded is not None


def loaded_with(*names: str) -> Loaded:
    return Loaded((RECEIPT,), (), 10, 4000, 0, ignored={"t": names})


def test_a_field_without_a_column_is_told_once(
    gathering: Gathering, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sluice.loop")
    assert gathering.counters.newly_ignored(loaded_with("size")) == {"t": ["size"]}
    gathering.take(loaded_with("colour", "size"))
    assert [record.getMessage() for record in caplog.records] == [
        f"{gathering.state.block_range}: its messages have fields that table entry t has no column "
        "for, and that are not loaded: colour"
    ]
    assert gathering.counters.newly_ignored(loaded_with("size", "colour")) == {}


def test_a_field_that_may_be_meant_for_a_column_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its rows have the column's default: the table fills, and holds nothing."""
    table = replace(
        table_spec("t", ("a",)),
        columns=(Column("user_id", "UInt64"), Column("isOpen", "UInt8"), Column("at", "DateTime")),
        mapping=(Mapped("at", "field", "time"),),
    )
    spec = replace(World([P0]).planner.spec, tables=(table,))
    caplog.set_level("INFO", "sluice.loop")
    _tell_ignored(Counters(), Range(P0, 0, 9), loaded_with("userId", "is_open", "At", "x"), spec)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "userId, is_open, At, x" in record.getMessage()
    said = str(vars(record)["hint"])
    assert '[table.columns] "user_id" = "userId", "isOpen" = "is_open".' in said


def test_no_field_is_meant_for_what_sluice_or_the_server_fills(
    caplog: pytest.LogCaptureFixture,
) -> None:
    columns = Column("_source", "UInt64"), Column("eu_id", "UInt8", "MATERIALIZED", "id % 2")
    table = replace(table_spec("t", ("a",)), columns=columns, lineage=("_source",))
    spec = replace(World([P0]).planner.spec, tables=(table,))
    caplog.set_level("INFO", "sluice.loop")
    _tell_ignored(Counters(), Range(P0, 0, 9), loaded_with("source", "euId"), spec)
    (record,) = caplog.records
    assert record.levelname == "INFO" and "[table.columns]" not in str(vars(record)["hint"])


def test_names_that_never_end_are_told_so_many_times_at_most() -> None:
    counters, found = Counters(), list[str]()
    for number in range(3):
        names = (f"{number}-{one}" for one in range(IGNORED_FIELDS_MAX - 1))
        found += counters.newly_ignored(loaded_with(*names)).get("t", [])
    assert len(found) == len(counters.ignored["t"]) == IGNORED_FIELDS_MAX


def test_a_heavy_range_says_where_it_ends_and_how_heavy_it_is(gathering: Gathering) -> None:
    state = gathering.take(TooHeavy(14, 4000))
    assert (state.stage, state.bytes_per_message) == (Answered(TooHeavy(14, 4000)), 1000.0)
    assert state.loaded is None


def test_a_block_that_needs_more_says_how_much(gathering: Gathering) -> None:
    state = gathering.take(NeedsReservation("t", 6))
    assert state.stage == Answered(NeedsReservation("t", 6))
    assert gathering.world.planner.reservations == {"t": 6}


def test_a_job_that_is_lost_leaves_a_late_insert_and_a_failure(gathering: Gathering) -> None:
    state, lost = gathering.state, JobLostError("its executor was lost")
    gathering.handler.take(JobResult(gathering.job, error=lost))
    assert state.late_insert_until_ms == state.record.deadline_ms
    assert (state.failures, state.out, state.untouched) == (1, False, False)
    assert state.back_at_ms == gathering.world.now
    assert state.retry_at_ms > gathering.world.now
    state.stop(TerminalError("before"))
    state.out, state.late_insert_until_ms, state.untouched = True, 0, True
    gathering.handler.take(JobResult(gathering.job, error=lost))
    assert (state.out, state.untouched) == (False, False)
    assert state.late_insert_until_ms == state.record.deadline_ms, "it may still insert"
    assert state.failures == 1 and gathering.counters.failures == {"JobLostError": 1}


def test_of_a_partition_that_stopped_only_what_may_land_is_taken(gathering: Gathering) -> None:
    gathering.state.stop(TerminalError("before"))
    state = gathering.take(Loaded((RECEIPT,), (), 10, 4000, 0), may_land=True)
    assert state.loaded is None
    assert state.late_insert_until_ms == state.record.deadline_ms


@pytest.mark.parametrize(
    ("error", "may_come_late"), [(InDoubtError("cut"), True), (TransientError("away"), False)]
)
def test_an_insert_in_doubt_is_a_late_insert(
    gathering: Gathering, error: InDoubtError | TransientError, may_come_late: bool
) -> None:
    state = gathering.take(Failed(error))
    assert (state.late_insert_until_ms > 0) == may_come_late
    assert state.failures == 1 and gathering.effects == []


def test_what_can_never_be_stored_and_must_not_be_parked_stops_its_partition(
    gathering: Gathering,
) -> None:
    error = TerminalError("no")
    gathering.take(Failed(error, "u", True, ()))
    assert gathering.effects == [StopPartition(P0, error)]


@pytest.mark.parametrize("is_unstored", [True, False])
def test_an_entry_that_is_parked_takes_its_range_out_only_if_nothing_is_stored(
    gathering: Gathering, is_unstored: bool
) -> None:
    error = TerminalError("no")
    state = gathering.take(Failed(error, "t", is_unstored, ("u",)))
    assert gathering.effects == [ParkEntry("t", error)]
    assert (state.outdated is not None) == is_unstored
    if state.outdated is not None:
        assert (state.outdated.entry, state.outdated.inserted) == ("t", ("u",))


def test_every_altered_table_is_parked_and_no_other() -> None:
    """Of entries that are parked, a load spec that inserts them was unparked; of others it was
    not."""
    world = World([P0], tuple(table_spec(name, ("a",)) for name in ("x", "y", "z")))
    parking, why = Parking(("x", "y")), TerminalError("altered")
    assert not parking.was_unparked(world.spec, "a")
    parking.take({"x": why, "y": why}, asked=False)
    assert parking.entries == {"x", "y"}
    assert parking.was_unparked(world.spec, "a")
    applied = parking.applied(world.spec)
    assert [table.parked for table in applied.tables] == [True, True, False]
    assert not parking.was_unparked(applied, "a")
    assert parking.applied(applied) is applied
    parking.take({"y": why}, asked=False)
    assert parking.entries == {"y"}
