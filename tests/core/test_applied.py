"""Versions by the order of the log, whoever writes them."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.decided import Decided, Version, apply_entry, digest_of, taken_entry
from sluice.core.ledger import LedgerEntry


def after(decided: Decided, *entries: LedgerEntry) -> Decided:
    for at_ms, entry in enumerate(entries):
        body: dict[str, Any] = {"connector": "dc1", "at_ms": at_ms, **entry.body}
        decided = decided.after(body)
    return decided


def test_of_two_who_apply_at_once_the_second_one_is_passed_over() -> None:
    first = apply_entry(1, 0, '{"a": 1}', "alice", "first")
    decided = after(
        Decided(),
        first,
        apply_entry(2, 1, '{"a": 2}', "bob", "second"),
        apply_entry(2, 1, '{"a": 3}', "carol", "at the same time"),
        apply_entry(1, 0, '{"a": 4}', "dave", "who slept"),
    )
    assert [each.by for each in decided.versions] == ["alice", "bob"]
    assert decided.applied == Version(2, 1, '{"a": 2}', "bob", "second", 1)
    assert str(decided.applied) == "version 2, applied by bob at 1970-01-01T00:00:00Z: second"


def test_a_cluster_that_missed_versions_takes_the_next_one() -> None:
    """What it has is what its own log says; the number is the pipeline's."""
    decided = after(Decided(), apply_entry(4, 0, "{}", "alice", ""))
    assert after(decided, apply_entry(7, 4, "{}", "bob", "")).applied == Version(
        7, 4, "{}", "bob", "", 0
    )
    assert after(decided, apply_entry(7, 6, "{}", "bob", "")).applied == decided.applied


def test_who_goes_back_twice_does_not_have_again_what_was_wrong() -> None:
    numbers = {}
    decided = Decided()
    for number, again in ((1, 0), (2, 0), (3, 0), (4, 2), (5, 0), (6, 4), (7, 1), (8, 5)):
        decided = after(decided, apply_entry(number, number - 1, "{}", "alice", "", again))
        numbers[number] = decided.previous.number if decided.previous else None
    assert numbers == {1: None, 2: 1, 3: 2, 4: 1, 5: 4, 6: 1, 7: None, 8: 4}
    # Of a version that this cluster never had nobody knows what came before it.
    assert after(Decided(), apply_entry(4, 0, "{}", "alice", "", 2)).previous is None


def test_the_last_word_of_each_driver_counts_and_only_about_the_newest_version() -> None:
    decided = after(Decided(), apply_entry(1, 0, "{}", "alice", ""))
    decided = after(decided, taken_entry(1, "run-a", "no"), taken_entry(1, "run-a", ""))
    decided = after(decided, taken_entry(9, "run-b", ""), taken_entry(1, "run-c", "it\ncannot"))
    said = [(each.owner, each.error) for each in decided.answers]
    assert said == [("run-a", ""), ("run-c", "it cannot")]
    assert after(decided, apply_entry(2, 1, "{}", "bob", "")).answers == ()


@pytest.mark.parametrize(
    "change",
    [
        {"digest": digest_of("other")},
        {"version": 1, "base": 1},
        {"again": 2},
        {"version": "2"},
        {"document": "[1]", "digest": digest_of("[1]")},
        {"document": "x", "digest": digest_of("x")},
    ],
)
def test_what_is_no_version_is_refused(change: dict[str, object]) -> None:
    body: dict[str, Any] = {"at_ms": 1, **apply_entry(2, 1, "{}", "a", "").body, **change}
    with pytest.raises((ValueError, TypeError)):
        Decided().after(body)
