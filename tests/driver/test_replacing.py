"""A loop over tables that keep one of equal rows: nothing has to be remembered (R22)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard, own_target_shards
from sluice.core.errors import TransientError
from sluice.core.load_spec import parse_spec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Failed
from sluice.driver.parking import known_rest
from sluice.driver.state import target_shards_gone
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import Answer, World, kinds, run, table_spec

P0 = TopicPartition("a", 0)
KEPT = replace(table_spec("t", ("a",)), delivery="replacing")


def test_a_place_without_a_window_is_another_one_than_the_window() -> None:
    (place,) = own_target_shards(KEPT)
    window = TargetShard("t", "s1")
    assert place != window and place.key != window.key
    assert [TargetShard.of(each.key) for each in (place, window)] == [place, window]
    assert place.own == place and (place.entry, place.shard) == ("t", "s1")


def test_a_load_spec_says_it_and_older_ones_keep_their_names() -> None:
    world = World([P0], (KEPT,))
    assert parse_spec(world.spec.canonical()).tables == (KEPT,)
    assert "delivery" not in World([P0]).spec.canonical()
    assert KEPT.row_generation(3) == 0 and table_spec("t", ("a",)).row_generation(3) == 3


def test_repeats_have_no_end_and_nothing_is_looked_for() -> None:
    """For hours, while the table remembers no block: each attempt is stored."""
    world = World([P0], (KEPT,), blocks=0, rounds_max=100_000)
    world.ends[P0] = 10
    sent: list[Assignment] = []

    def script(world: World, assignment: Assignment) -> Answer:
        sent.append(assignment)
        loaded = world.load(assignment)
        return Failed(TransientError("no answer")) if len(sent) < 30 else loaded

    world.script = script
    loop = run(world)
    assert loop.states[P0].stopped is None and world.probes == []
    assert world.rows_of(P0) == [30] * 10  # of which FINAL shows one
    assert {each.block_range for each in sent} == {sent[0].block_range}
    assert kinds(world, P0)[-1] == ("SETTLE", 10, 10)
    (counters,) = {tuple(each.background.insert_counters.items()) for each in sent}
    assert counters == (("~t/s1", 0),)


@pytest.mark.parametrize("delivery", ["block", "replacing"])
def test_what_has_to_be_probed_is_sent_again_whole(delivery: str) -> None:
    table = replace(KEPT, delivery=delivery)  # type: ignore[arg-type]
    world = World([P0], (table,), blocks=1000)
    world.ends[P0] = 10
    state = world.overrun(P0, 10, 1)
    world.own["t"].insert("stored", [(P0, offset) for offset in range(10)])
    run(world, world.loop([state]))
    assert world.rows_of(P0) == [2 if delivery == "replacing" else 1] * 10


def test_a_range_says_where_it_may_have_blocks() -> None:
    """Also without a window: a probe under a load spec without the entry would not look there."""
    world = World([P0], (KEPT,))
    world.ends[P0] = 10
    world.script = lambda world, assignment: None
    loop = world.loop()
    state = loop.states[P0]
    with pytest.raises(Exception, match="rounds_max is too small"):
        run(replace_rounds(world, 50), loop)
    assert state.record.in_doubt
    other = replace(world.spec, tables=(replace(KEPT, shards=("s2",)),))
    assert target_shards_gone(state.background, other, "a") == ["shard s1 of table entry t"]
    assert known_rest(world.spec, state.block_range, {}) == {"t": ((0, 10),)}


def test_what_a_probe_has_found_there_is_not_sent_again() -> None:
    """It may have been stored under another load spec, which made a row of what is a dead letter
    under this one."""
    world = World([P0], (KEPT,))
    found = known_rest(world.spec, Range(P0, 0, 10), {"t": ((4, 6),)})
    assert found == {"t": ((4, 6),)}
    assert known_rest(world.spec, Range(P0, 0, 10), {"t": ()}) == {"t": ()}


def replace_rounds(world: World, rounds: int) -> World:
    world.rounds_left = rounds
    return world
