"""Why members may have other partitions than before, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.fleet.view import Member, View, what_changed
from sluice.core.ranges import TopicPartition

A, B = Member("run-a", "a", "s"), Member("run-b", "b", "s")
BEFORE = View("run-a", 3, (A, B))


@pytest.mark.parametrize(
    ("living", "words"),
    [
        ((A, B), ""),
        ((A,), "b reports no more"),
        ((A, replace(B, owner="run-b2")), "b has started"),
        ((A, B, Member("run-c", "c", "s")), "c has started"),
        ((A, replace(B, is_leaving=True)), "b leaves"),
        ((A, replace(B, is_ready=False)), "b is not ready"),
        ((A, replace(B, slots=8)), "b says something else of itself"),
        ((replace(A, is_leaving=True), Member("run-c", "c", "s")), None),
    ],
)
def test_who_came_went_or_changed(living: tuple[Member, ...], words: str | None) -> None:
    said = what_changed(BEFORE, replace(BEFORE, number=4, living=living))
    assert said == ("b reports no more; a leaves; c has started" if words is None else words)


def test_what_is_not_a_member() -> None:
    assert what_changed(None, BEFORE) == "this member has started"
    busy = replace(BEFORE, busy={TopicPartition("t", 1): 2})
    assert what_changed(BEFORE, busy) == "other partitions are busy, or they are so no more"
    assert what_changed(busy, replace(busy, average=7.0)) == ""
