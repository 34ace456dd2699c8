"""Several logs as one history, in the order of time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from sluice.core.anomalies import Event, Instance
from sluice.verify.verifier import Merge
from tests.core.histories import instance
from tests.kafka.groups import intend


def at(ms: int) -> Instance:
    return instance(intend("a", ms, ms + 1), at_ms=ms)


def offsets(events: Iterator[Event]) -> list[int]:
    return [event.offset for event in events if isinstance(event, Instance)]


def test_logs_are_merged_by_time() -> None:
    merge = Merge()
    for log, ms in ((0, 1), (0, 5), (1, 2), (1, 3), (0, 9)):
        merge.push(log, at(ms))
    everything = {0: float("inf"), 1: float("inf")}
    assert offsets(merge.ready({0: 9, 1: 3})) == [1, 2, 3], "log 1 may still have a 4"
    assert offsets(merge.ready({0: 9, 1: 6})) == [5]
    assert offsets(merge.ready(everything)) == [9]
    assert len(merge) == 0


def test_a_clock_that_goes_back_does_not_turn_a_log_round() -> None:
    merge = Merge()
    for ms in (10, 4, 11):
        merge.push(0, at(ms))
    assert offsets(merge.ready({0: 0.0})) == [10, 4, 11]


def test_a_log_alone_is_never_waited_for() -> None:
    merge = Merge()
    merge.push(0, at(int(time.time() * 1000) + 60_000))
    assert len(offsets(merge.ready({0: 0.0}))) == 1
