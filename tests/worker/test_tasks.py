"""Ranges that share a task: what one of them does to the others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import pytest

from sluice.core.errors import InDoubtError, TransientError
from sluice.core.ledger import Background
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Failed, TaskReport, Untried
from sluice.core.records import Kind, Record
from sluice.worker import tasks
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.tasks import load_task
from tests.driver.loop_world import Answer, World, kinds, run, table_spec
from tests.worker.test_loading import NOWHERE

TEXT = World([TopicPartition("a", 0)]).spec


def environment() -> TaskEnvironment:
    """Nothing answers; a read of Kafka gives up at once."""
    return replace(NOWHERE, specs={TEXT.digest(): TEXT.canonical()})


def assigned(
    partitions: Iterable[int], deadline_ms: int = 0, sent_at_ms: int = 1 << 50
) -> list[Assignment]:
    """By a driver whose clock is so far ahead that each is refused."""
    return [
        Assignment(
            Range(TopicPartition("a", number), 0, 1),
            Record(Kind.INTEND, 3, 1, 0, 1, "a", 0, "t", TEXT.digest(), 1, deadline_ms),
            Background(bytes_max=1000),
            sent_at_ms,
            is_first=True,
        )
        for number in partitions
    ]


def broken_one() -> Assignment:
    """Of a load spec that nobody has; that is hopeless at once."""
    now_ms = time.time_ns() // 1_000_000
    (broken,) = assigned((0,), now_ms + 600_000, now_ms)
    record = replace(broken.record, spec="none")
    return replace(broken, record=record)


def outcomes(reports: Iterable[TaskReport]) -> list[str]:
    return [type(report.outcome).__name__ for report in reports]


def test_what_follows_a_range_that_failed_is_given_back() -> None:
    reports = load_task(environment(), assigned(range(3)), 0)
    assert outcomes(reports) == ["Failed", "Untried", "Untried"]
    assert [report.block_range.source.partition for report in reports] == [0, 1, 2]
    assert all(report.batch == 3 for report in reports)


def test_a_task_that_spark_starts_again_gives_nothing_back() -> None:
    """The attempt before may have come to any of its ranges, and may still be there."""
    reports = load_task(environment(), assigned(range(3)), 1)
    assert outcomes(reports) == ["Failed"] * 3
    assert {report.task_attempt for report in reports} == {1}


def test_a_broken_range_does_not_hold_up_the_others() -> None:
    """What is hopeless costs no time, and says nothing of the other ranges."""
    broken, rest = broken_one(), assigned((1, 2))
    reports = load_task(environment(), [broken, *rest], 0)
    assert outcomes(reports) == ["Failed", "Failed", "Untried"]


def test_after_a_while_the_rest_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the receipts of those that are loaded are not kept waiting."""
    monkeypatch.setattr(tasks, "TASK_SECONDS_MAX", -1.0)
    broken, rest = broken_one(), assigned((1, 2))
    assert outcomes(load_task(environment(), [broken, *rest], 0)) == [
        "Failed",
        "Untried",
        "Untried",
    ]


# In the loop

SOURCES = [TopicPartition("a", number) for number in range(100)]


def test_small_ranges_share_tasks_and_one_transaction() -> None:
    """A hundred partitions with one message each, of the ten that a range may have; two slots."""
    world = World(SOURCES)
    world.planner = replace(world.planner, limits=replace(world.planner.limits, messages_max=1000))
    world.ends = dict.fromkeys(SOURCES, 1)
    run(world)
    assert [world.rows_of(source) for source in SOURCES] == [[1]] * 100
    assert [[len(task) for task in job.tasks] for job in world.jobs] == [[25, 25], [25, 25]]
    assert len(world.commits) <= 3


def test_what_is_given_back_is_sent_again_as_the_first_time() -> None:
    world = World(SOURCES[:4])
    world.planner = replace(world.planner, limits=replace(world.planner.limits, messages_max=1000))
    world.ends = dict.fromkeys(SOURCES[:4], 1)
    tried: list[tuple[int, bool]] = []

    def script(world: World, assignment: Assignment) -> Answer:
        number = assignment.block_range.source.partition
        tried.append((number, assignment.is_first))
        if len(tried) <= 4:
            return Failed(TransientError("away")) if number < 2 else Untried()
        return world.load(assignment)

    world.script = script
    run(world)
    assert sorted(tried[4:]) == [(0, False), (1, False), (2, True), (3, True)]
    assert [kinds(world, source)[-1][0] for source in SOURCES[:4]] == ["SETTLE"] * 4
    assert [world.rows_of(source) for source in SOURCES[:4]] == [[1]] * 4


def test_what_a_lost_task_may_have_inserted_is_not_the_first_again() -> None:
    world = World(SOURCES[:1], (table_spec("t", ("a",)),))
    world.ends = {SOURCES[0]: 1}
    tried: list[bool] = []

    def script(world: World, assignment: Assignment) -> Answer:
        tried.append(assignment.is_first)
        if len(tried) == 1:
            return Failed(InDoubtError("no answer"))
        return Untried() if len(tried) == 2 else world.load(assignment)

    world.script = script
    run(world)
    assert tried == [True, False, False]
