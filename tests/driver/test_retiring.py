"""A loop with a topic that left the configuration while its last range was in doubt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.clickhouse.comparing import Today
from sluice.core.ledger import Background
from sluice.core.load_spec import Sharding
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import TooHeavy
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import SchemaRead
from sluice.driver.start import Started
from sluice.driver.state import AsRecorded, Probed, Stage, ToProbe
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import Answer, World, kinds, table_spec

RETIRED, OTHER, KEPT = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_it_is_settled_and_let_go_and_nothing_new_of_it_is_intended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([RETIRED, KEPT])
    state = world.overrun(RETIRED, 10, 1)
    state.retiring = True
    # A lease that runs on: the loop looks at its topics meanwhile.
    state.record = world.group[RETIRED] = replace(state.record, deadline_ms=world.now + 90_000)
    taken: list[TopicPartition] = []

    def take_over(new: list[TopicPartition]) -> Started:
        taken.extend(new)
        return Started([world.settled(source) for source in new])

    loop = world.loop([state, world.settled(KEPT)], take_over_new=take_over)
    world.ends.update({RETIRED: 50, KEPT: 20})
    # Another partition of that topic is not this pipeline's any more.
    world.ends[OTHER] = 30
    world.at(200_000, loop.stopping.set)
    with caplog.at_level("INFO", logger="sluice.loop"):
        loop.run(None, 5.0)
    assert kinds(world, RETIRED) == [("PROBE", 0, 10), ("SETTLE", 10, 10)]
    assert world.rows_of(RETIRED) == [1] * 10 + [0] * 40
    assert world.rows_of(KEPT) == [1] * 20
    assert set(loop.states) == {KEPT}
    assert taken == []
    assert "a[0] is not configured any more; it is settled at 10 and let go" in caplog.text


def test_a_range_that_is_too_heavy_is_settled_as_far_as_it_was_shortened() -> None:
    """Nobody inserted of the whole range, so beyond its new end nothing is in doubt."""
    world = World([RETIRED, KEPT])
    state = world.overrun(RETIRED, 10, 1)
    state.retiring = True

    def script(world: World, assignment: Assignment) -> Answer:
        if assignment.block_range.span > 4:
            return TooHeavy(assignment.block_range.begin + 4, 1000)
        return world.load(assignment)

    world.script = script
    loop = world.loop([state, world.settled(KEPT)])
    world.ends.update({RETIRED: 50, KEPT: 20})
    loop.run({KEPT: 20}, 5.0)
    assert kinds(world, RETIRED)[-2:] == [("SHORTEN", 0, 4), ("SETTLE", 4, 4)]
    assert world.rows_of(RETIRED) == [1] * 4 + [0] * 46


def test_a_probe_that_would_not_look_into_a_retired_shard_is_not_made() -> None:
    """Rows that stand there would count as missing, and be loaded once more into the others."""
    table = replace(table_spec("t", ("b",)), shards=("s1", "s2"), sharding=Sharding("offset"))
    world = World([KEPT], (table,))
    state = world.overrun(KEPT, 10, 1)
    state.stage = AsRecorded()
    state.background = Background(insert_counters={"t/s1": 0, "t/s2": 0}, since_ms=world.now)
    facts: Any = {"d.t": None}
    today = Today("another decoder", "UTC", frozenset({"s1", "s2"}), facts)
    spec = replace(world.spec, tables=(replace(table, shards=("s1",), sharding=None),))
    loop = world.loop([state])
    world.put(SchemaRead(world.now, today, spec, {}))
    world.ends[KEPT] = 20
    loop.run({KEPT: 20}, 5.0)
    assert "shard s2 of table entry t is not configured any more" in str(loop.states[KEPT].stopped)
    assert kinds(world, KEPT) == []
    assert world.probes == []


PROBED = Probed(None, Background(rest={"t": (), "gone": ((0, 10),)}))


@pytest.mark.parametrize(
    ("stage", "is_staged", "is_refused"),
    [
        *(
            (stage, staged, False)
            for stage in (AsRecorded(), ToProbe(), PROBED)
            for staged in (0, 1)
        ),
        # A take-over that refuses its load spec has it probed.
        *((stage, True, True) for stage in (ToProbe(), PROBED)),
    ],
)
def test_a_probe_that_would_not_look_into_a_retired_entrys_table_is_not_made(
    stage: Stage, is_staged: bool, is_refused: bool
) -> None:
    """The tables were altered while the loop runs, so the range cannot be repeated; today's load
    spec has only one of its two entries. Nor is loaded what was found in both before: what is
    missing in the other one would be passed over."""
    tables = (table_spec("t", ("b",)), table_spec("gone", ("b",)))
    world = World([KEPT], tables)
    counters = {"t/s1": 0, "gone/s1": 0}
    if is_staged:  # no window knows of its blocks
        del counters["gone/s1"]
        world.spec = replace(world.spec, tables=(tables[0], replace(tables[1], delivery="staged")))
        world.planner.specs = LoadSpecs(world.spec)
    state = world.overrun(KEPT, 10, 1)
    if is_refused:  # it would be probed under today's load spec
        recorded = replace(world.spec, range_bytes_max=world.spec.range_bytes_max + 1)
        state.record = world.group[KEPT] = replace(state.record, spec=recorded.digest())
        world.planner.specs.join([], [(recorded.digest(), recorded)])
    state.stage = stage
    state.background = Background(insert_counters=counters, since_ms=world.now)
    facts: Any = dict.fromkeys(("d.t", "d.gone"))
    today = Today("another decoder", "UTC", frozenset({"s1"}), facts)
    spec = replace(world.spec, tables=tables[:1])
    loop = world.loop([state])
    world.put(SchemaRead(world.now, today, spec, {}))
    world.ends[KEPT] = 20
    loop.run({KEPT: 20}, 5.0)
    assert "table entry gone is not configured any more" in str(loop.states[KEPT].stopped)
    assert kinds(world, KEPT) == []
    assert world.probes == []
