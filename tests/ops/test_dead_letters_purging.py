"""Purging dead letters, on a real broker."""

from __future__ import annotations

from contextlib import closing

import pytest

from sluice.config import load
from sluice.kafka.dead_letters import DeadLetterTopic, Purged, StoredDeadLetter
from sluice.ops import dead_letters_purging
from sluice.ops.dead_letters import (
    DeadLetterSelection,
)
from sluice.ops.dead_letters_purging import NothingToPurgeError, plan_purge, purge
from tests.ops.dead_letters import ALL, DeadLetters, offsets_of, pipeline

__all__ = ["pipeline"]


@pytest.mark.slow
def test_a_purge_deletes_from_the_front_and_an_audit_still_counts(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    pipeline.write(1, 2, 3)
    pipeline.write(4, table="other")
    pipeline.write(5)
    selection = DeadLetterSelection(table="orders")
    plan = plan_purge(pipeline.configuration, selection)
    assert (plan.dead_letters, plan.kept) == (3, 1)
    deleting, keeping = plan.steps(pipeline.dead_letters)
    assert "delete 3 dead letters for good" in deleting
    assert "keep 1" in keeping and "other" in keeping
    assert purge(pipeline.configuration, selection, plan).dead_letters == 3
    assert offsets_of(pipeline, ALL) == [4, 5]
    assert pipeline.audited() == [1, 2, 3, 4, 5]
    with pytest.raises(NothingToPurgeError):
        plan_purge(pipeline.configuration, selection)


@pytest.mark.slow
def test_purges_carry_each_other_on(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    for first in (1, 4, 7):
        pipeline.write(first, first + 1)
        plan = plan_purge(pipeline.configuration, ALL)
        assert purge(pipeline.configuration, ALL, plan).dead_letters == 2
    assert offsets_of(pipeline, ALL) == []
    assert pipeline.audited() == [1, 2, 4, 5, 7, 8]


@pytest.mark.slow
def test_a_purge_that_died_before_it_deleted_is_not_finished_by_another_one(
    pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever interrupted it believes that nothing was deleted, and the list agrees."""
    pipeline.fill(10)
    pipeline.write(1, 2, 3)
    pipeline.write(4)
    with monkeypatch.context() as dying:
        dying.setattr(
            dead_letters_purging,
            "delete_before",
            lambda _, __, befores: (_ for _ in ()).throw(KeyboardInterrupt) if befores else None,
        )
        with pytest.raises(KeyboardInterrupt):
            purge(pipeline.configuration, ALL, plan_purge(pipeline.configuration, ALL))
    assert offsets_of(pipeline, ALL) == pipeline.audited() == [1, 2, 3, 4]  # not twice
    assert pipeline.replay(limit=1).replayed == 1
    selection = DeadLetterSelection(replayed=True)
    plan = plan_purge(pipeline.configuration, selection)
    assert (plan.dead_letters, purge(pipeline.configuration, selection, plan).dead_letters) == (
        1,
        1,
    )
    assert offsets_of(pipeline, ALL) == [2, 3, 4]
    assert pipeline.audited() == [1, 2, 3, 4]
    pipeline.write(5)
    plan = plan_purge(pipeline.configuration, ALL)
    assert (plan.dead_letters, purge(pipeline.configuration, ALL, plan).dead_letters) == (4, 4)
    assert offsets_of(pipeline, ALL) == []
    assert pipeline.audited() == [1, 2, 3, 4, 5]


@pytest.mark.slow
def test_only_what_was_replayed_goes(pipeline: DeadLetters) -> None:
    pipeline.fill(10)
    pipeline.write(1, 2, 3)
    assert pipeline.replay(limit=2).replayed == 2
    selection = DeadLetterSelection(replayed=True)
    plan = plan_purge(pipeline.configuration, selection)
    assert purge(pipeline.configuration, selection, plan).dead_letters == 2
    assert offsets_of(pipeline, ALL) == [3]
    assert pipeline.audited() == [1, 2, 3]


@pytest.mark.slow
def test_connectors_of_one_cluster_are_purged_together(pipeline: DeadLetters) -> None:
    text = pipeline.path.read_text()
    second = text[text.index("[[connector]]") : text.index("[batch]")].replace("dc1", "dc2")
    other = pipeline.kafka.topic()
    second = second.replace(pipeline.topic, other)
    entry = f'[[table]]\nname = "more"\ntopics = ["{other}"]\n'
    pipeline.path.write_text(text.replace("[batch]", f"{second}[batch]") + entry)
    configuration = load(pipeline.path, {})
    pipeline.write(1)
    pipeline.write(2, connector=f"{pipeline.pipeline}.dc2", topic=other, table="more")
    pipeline.write(3)
    alone = plan_purge(configuration, DeadLetterSelection(connector="dc1"))
    assert (alone.dead_letters, alone.kept) == (1, 1)
    assert purge(configuration, ALL, plan_purge(configuration, ALL)).dead_letters == 3
    assert pipeline.audited() == [1, 2, 3]


@pytest.mark.slow
def test_dead_letters_that_came_after_the_plan_stay(pipeline: DeadLetters) -> None:
    pipeline.write(1)
    plan = plan_purge(pipeline.configuration, ALL)
    pipeline.write(2)
    assert purge(pipeline.configuration, ALL, plan).dead_letters == 1
    assert offsets_of(pipeline, ALL) == [2]
    with closing(DeadLetterTopic(pipeline.kafka.access(), pipeline.dead_letters)) as held:
        records = list(held.records())
    assert [type(record) for record in records] == [StoredDeadLetter, Purged]
