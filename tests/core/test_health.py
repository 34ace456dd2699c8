"""From when on a replica is tried last, and when it takes its turn again."""

from __future__ import annotations

import pytest

from sluice.core.replicas import Condition, ReplicaHealth, ReplicaLimits, changes, judged

LIMITS = ReplicaLimits(delay_seconds=300, queue=1000)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (None, "does not answer"),
        (Condition(is_readonly=True), "read-only"),
        (Condition(is_session_expired=True, is_readonly=True), "session with ZooKeeper"),
        (Condition(delay_seconds=301), "301 s behind, and 300 s is the limit (max_replica_delay)"),
        (Condition(queue=1001), "1001 entries, and 1000 is the limit (max_replica_queue)"),
    ],
)
def test_what_makes_a_replica_be_tried_last(condition: Condition | None, words: str) -> None:
    health = judged(None, condition, LIMITS)
    assert health.is_behind and words in health.why


def test_at_the_limits_it_still_takes_its_turn() -> None:
    assert not judged(None, Condition(delay_seconds=300, queue=1000), LIMITS).is_behind


def read(health: ReplicaHealth, *delays: int) -> list[bool]:
    behind = []
    for delay in delays:
        health = judged(health, Condition(delay_seconds=delay), LIMITS)
        behind.append(health.is_behind)
    return behind


def test_it_comes_back_after_two_good_readings_in_a_row() -> None:
    """A replica that hovers at a limit does not change places with every reading."""
    behind = judged(None, Condition(delay_seconds=400), LIMITS)
    assert read(behind, 150, 150) == [True, False]
    assert read(behind, 299, 299, 299) == [True, True, True]  # not well within
    assert read(behind, 0, 200, 0, 0) == [True, True, True, False]
    assert read(behind, 0, 301, 0, 0) == [True, True, True, False]


def test_one_that_took_nothing_comes_back_at_once_unless_it_lagged_before() -> None:
    for away in (None, Condition(is_readonly=True)):
        assert judged(judged(None, Condition(), LIMITS), away, LIMITS).is_behind
        assert read(judged(None, away, LIMITS), 299, 0) == [False, False]
        lagging = judged(judged(None, Condition(delay_seconds=301), LIMITS), away, LIMITS)
        assert read(lagging, 0, 0) == [True, False]


def test_only_changes_are_told() -> None:
    well, behind = ReplicaHealth(Condition()), ReplicaHealth(None, "it does not answer")
    assert changes({}, {"a": well, "b": behind}) == [("b", "it does not answer")]
    assert changes({"a": behind, "b": behind}, {"a": well, "b": behind}) == [("a", "")]
    assert changes({"a": well}, {}) == []
