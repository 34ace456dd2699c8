"""What a round looks at: as much as a look at all partitions would find, and no more."""

from __future__ import annotations

import random
from dataclasses import replace

from sluice.core.planning import Limits, is_due
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, TopicPartition
from sluice.core.receipts import Loaded
from sluice.core.records import Kind
from sluice.driver.pending import Pending
from sluice.driver.record_updates import RESETTLE_MS
from sluice.driver.state import PartitionState
from tests.driver.loop_world import World, table_spec

SOURCES = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(6)]
DELAY_MS = 1000


def pending_of(members_max: int) -> tuple[World, list[PartitionState], Pending]:
    world = World(SOURCES, tables=(table_spec("t", ("a",)), table_spec("u", ("b",))))
    world.leaders = {source: source.partition % 2 for source in SOURCES}
    limits = Limits(40, 1 << 30, DELAY_MS)
    world.planner = replace(world.planner, limits=limits, members_max=members_max)
    states = [world.settled(source) for source in SOURCES]
    by_source = {state.source: state for state in states}
    freezing = world.loop(states).freezing
    return world, states, Pending(by_source, world.planner, world.leader_of, freezing)


def change(world: World, state: PartitionState, dice: random.Random) -> None:
    """Something that happens to a partition."""
    record, background = state.record, state.background
    if dice.random() < 0.6:
        end = EpochOffset(state.stable_end + dice.choice([0, 1, 1, 15, 45]), EPOCH_UNKNOWN)
        state.see_end(end, world.now)
    elif state.out:
        state.out = False
        if dice.random() < 0.8:
            state.answered(Loaded((), (), 1, 1, 0))
    elif record.kind is Kind.SETTLE and state.stable_end > record.end:
        new = replace(record, kind=Kind.INTEND, attempt=1, end=record.end + 1, deadline_ms=1)
        state.recorded(new, background, world.now)
        state.out = dice.random() < 0.8
    elif state.loaded is not None:
        settled = replace(record, kind=Kind.SETTLE, attempt=0, begin=record.end, deadline_ms=0)
        state.recorded(settled, background, world.now)


def test_a_round_finds_what_is_due_as_if_it_looked_at_all() -> None:
    for seed in range(60):
        dice = random.Random(seed)
        members_max = dice.choice([1, 4, 1000])
        world, states, pending = pending_of(members_max)
        for _ in range(120):
            world.now += dice.choice([0, 20, 300])
            for state in dice.sample(states, 3):
                change(world, state, dice)
                pending.file(state)
            backlogs, due = pending.due({}, world.now, flush=False)
            waiting = [state for state in states if state.may_be_given_a_range]
            limits = world.planner.limits
            wanted = {
                backlog.source
                for backlog in pending.due({}, world.now, flush=True)[0]
                if is_due(backlog, limits, DELAY_MS, world.now)
            }
            found = {backlog.source for backlog in backlogs}
            assert due == wanted <= found <= {state.source for state in waiting}
            for topic in ("a", "b"):
                for leader in (0, 1):
                    crowd = [
                        s
                        for s in waiting
                        if (s.source.topic, s.source.partition % 2) == (topic, leader)
                    ]
                    own = {s.source for s in crowd}
                    messages = sum(s.stable_end - s.record.end for s in crowd)
                    share = min(1.0, members_max / max(1, len(crowd)))
                    fills = members_max > 1 and messages * share >= limits.messages_max
                    # All of a crowd or none: who is not due goes along.
                    assert found & own == (own if own & due or fills else set())
            under_way = {state.source for state in pending.under_way(world.now)}
            assert under_way == {s.source for s in states if s.record.kind is not Kind.SETTLE}


def test_who_is_told_of_is_looked_at_and_who_is_gone_is_not() -> None:
    world, states, pending = pending_of(1000)
    for state in states[:2]:
        state.see_end(EpochOffset(1, EPOCH_UNKNOWN), world.now)
        pending.file(state)
    states[0].retiring = True
    pending.file(states[0])
    pending.forget(states[1].source)
    assert pending.due({}, world.now, flush=True) == ([], set())
    states[0].retiring = False
    pending.file_all()
    assert pending.due({}, world.now, flush=True)[1] == {state.source for state in states[:2]}


def test_a_settled_partition_is_looked_at_before_its_offset_expires() -> None:
    world, states, pending = pending_of(1000)
    assert pending.under_way(world.now) == []
    world.now += RESETTLE_MS + 1
    states[3].committed_at_ms = world.now
    assert pending.under_way(world.now) == [state for state in states if state is not states[3]]
