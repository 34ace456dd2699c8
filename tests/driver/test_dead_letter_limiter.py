"""Too many dead letters stop a partition before its range is settled."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from sluice.core.dead_letters import PARKED, DeadLetterLimit
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetter, Loaded, Receipt, TaskReport
from sluice.driver.counters import Counters
from sluice.driver.dead_letter_limiter import (
    WARN_EVERY_MS,
    DeadLetterLimiter,
    TooManyDeadLettersError,
)
from sluice.driver.effects import StopPartition
from sluice.driver.report_handler import ReportHandler
from sluice.spark.jobs import JobResult
from sluice.worker.assignment import Job
from tests.driver.loop_world import World
from tests.kafka.groups import NOW, intend, letter

SOURCE = TopicPartition("events", 0)
RECORD = intend("", 0, 100, spec="0123456789abcdef", topic_id="Zm9vYmFyYmE")
LIMIT = DeadLetterLimit(max_ratio=0.5, min_dead_letters=10, window_messages=100)
RECEIPT = Receipt("orders", "d.orders", "s1", "t", 1, 1, "c", "u", 1, 1)


def loaded(messages: int, bad: int, *receipts: Receipt) -> Loaded:
    dead_letters: tuple[DeadLetter, ...] = tuple(letter(offset) for offset in range(bad))
    return Loaded(receipts, dead_letters, messages, 1000, 0)


def watch(limit: DeadLetterLimit = LIMIT) -> DeadLetterLimiter:
    return DeadLetterLimiter("shop.dc1", limit)


def test_dead_letters_say_when_and_under_what() -> None:
    watching = watch()
    report = watching.take(Range(SOURCE, 0, 100), RECORD, loaded(100, 2), NOW)
    for each in report.dead_letters:
        assert (each.attempted_at_ms, each.connector) == (NOW, "shop.dc1")
        assert (each.spec, each.topic_id) == ("0123456789abcdef", "Zm9vYmFyYmE")
    assert watching.counts == {("orders", "syntax"): 2}
    assert watching.windows[SOURCE].ratio("orders") == 0.02


def test_copies_of_duplicates_are_signed_and_no_dead_letters() -> None:
    watching = watch()
    copies = tuple(letter(offset, reason="duplicate") for offset in range(100))
    report = watching.take(
        Range(SOURCE, 0, 100), RECORD, replace(loaded(100, 0), copies=copies), NOW
    )
    assert {(each.attempted_at_ms, each.connector) for each in report.copies} == {(NOW, "shop.dc1")}
    assert (watching.counts, report.dead_letters) == ({}, ())


def test_the_error_says_what_and_what_to_do() -> None:
    with pytest.raises(TooManyDeadLettersError) as caught:
        watch().take(Range(SOURCE, 0, 100), RECORD, loaded(100, 51, RECEIPT), NOW)
    said = str(caught.value)
    assert said.startswith("events[0][0, 100): ")
    assert "51 of the last 100 messages cannot become rows of table entry orders: 51%" in said
    assert "offset 0 syntax: not an object" in said and "max_ratio is 0.5" in said
    assert "max_ratio higher" in caught.value.hint and "not-loaded" not in caught.value.hint
    with pytest.raises(TooManyDeadLettersError) as caught:
        watch().take(Range(SOURCE, 0, 100), RECORD, loaded(100, 100), NOW)
    assert "--connector dc1 --topic events --partition 0 --as not-loaded" in caught.value.hint


def test_partitions_are_judged_by_themselves() -> None:
    watching = watch()
    watching.take(Range(SOURCE, 0, 100), RECORD, loaded(100, 50), NOW)
    other = TopicPartition("events", 1)
    watching.take(Range(other, 0, 10), RECORD, loaded(10, 9), NOW)
    with pytest.raises(TooManyDeadLettersError):
        watching.take(Range(other, 10, 20), RECORD, loaded(10, 9), NOW)


def test_what_comes_near_the_limit_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    watching = watch()
    with caplog.at_level(logging.WARNING, "sluice.loop"):
        watching.take(Range(SOURCE, 0, 100), RECORD, loaded(100, 20), NOW)
        caplog.clear()
        for later_ms in (1, 2, WARN_EVERY_MS + 1):
            watching.take(Range(SOURCE, 0, 100), RECORD, loaded(100, 40), NOW + later_ms)
    assert len(caplog.messages) == 2
    assert (
        "40 % of the last 100 messages are dead letters of table entry orders"
        in (caplog.messages[0])
    )


def test_the_first_of_each_reason_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A few are far from any limit, and a table stays empty all the same."""
    watching = watch()
    letters = (letter(3), letter(4), letter(5, reason="out-of-range"), letter(6, reason=PARKED))
    for begin in (0, 10):
        report = Loaded((), letters, 20, 1000, 0)
        watching.take(Range(SOURCE, begin, begin + 10), RECORD, report, NOW)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            f"events[0] offset {offset} becomes a dead letter of table entry orders: {reason}: "
            "not an object",
        )
        for offset, reason in ((3, "syntax"), (5, "out-of-range"))
    ]
    assert "sluice dead-letters list" in str(vars(caplog.records[0])["hint"])


@pytest.mark.parametrize(("bad", "stops"), [(50, False), (51, True)])
def test_the_partition_stops_unsettled(bad: int, stops: bool) -> None:
    world = World([SOURCE])
    state = world.settled(SOURCE)
    handler = ReportHandler(
        "shop.dc1", {SOURCE: state}, world.planner, Counters(), world.now_ms, LIMIT
    )
    report = TaskReport(state.block_range, 1, loaded(100, bad))
    effects = handler.take(JobResult(Job("shop.dc1", 1, ()), (report,)))
    assert [type(effect) for effect in effects] == [StopPartition] * stops
    assert (state.loaded is None) == stops
