"""Ranges that a probe did not find in any table: they are one block again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.bundles import members_in
from sluice.core.errors import InDoubtError
from sluice.core.receipts import BundleTooHeavy, Failed
from sluice.core.records import Kind
from sluice.driver.round_planner import Round
from sluice.driver.state import PossibleLateInsert
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, World, kinds, run
from tests.driver.test_bundling import SOURCES, assert_exact, bundling, foreign


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_bundle_without_one_of_its_members_is_probed(is_stored: bool) -> None:
    """Foreign hands at one of them are found when the lease is renewed. Nobody knows whether the
    block was stored."""
    world = bundling(count=5)
    tried: list[str] = []

    def script(world: World, assignment: Assignment) -> Answer:
        if world.now - START_MS > 310_000:
            return world.load(assignment)
        tried.append(assignment.record.bundle)
        if is_stored:
            world.load(assignment)
        return Failed(InDoubtError("no answer", ""))

    world.script = script
    world.at(200_000, lambda: foreign(world, SOURCES[2]))
    loop = run(world)
    stopped = [source for source, state in loop.states.items() if state.stopped is not None]
    assert stopped == [SOURCES[2]]
    for source in SOURCES[:5]:
        expected = 1 if is_stored or source != SOURCES[2] else 0
        assert world.rows_of(source) == [expected] * 5, source
    probed = {block_range.source for _, block_range in world.probes}
    assert probed == set(SOURCES[:5]) - {SOURCES[2]}
    assert all(at_ms > START_MS + 600_000 for at_ms, _ in world.probes), "nobody inserts any more"
    rests = [a.record for job in world.jobs for a in job.assignments if a.record.rest]
    assert len(rests) == 4 and all(record.kind is Kind.PROBE for record in rests)
    # What is not there at all is one block again, whose name no server has heard.
    names = {record.bundle for record in rests}
    assert names == {""} if is_stored else len(names) == 1 and not names & {"", *tried}


def test_a_server_that_lost_a_block_that_it_knows_is_sent_another_one() -> None:
    """All members are looked for, are in no table, and come together again as they were: under the
    first name the server would take them for what it has."""
    world = bundling(count=5)
    table = world.tables[TargetShard("t", "s1")]
    table.server = "one@1000"
    names: set[str] = set()

    def script(world: World, assignment: Assignment) -> Answer:
        names.add(assignment.record.bundle)
        outcome = world.load(assignment)
        if table.server != "one@1000":
            return outcome
        table.rows.clear()
        return Failed(InDoubtError("no answer", ""))

    world.script = script
    world.at(2_000, lambda: setattr(table, "server", "two@9000"))
    run(world)
    assert_exact(world)
    assert len(names) == 2 and all(members_in(name) == 5 for name in names)


def test_what_was_not_found_and_fails_together_comes_in_halves() -> None:
    """One of them takes all of an insert's time, or kills its worker: it does not hold up the
    others for ever. None of them is given back, since its first block may be known somewhere."""
    world = bundling(count=4, blocks=60)
    world.planner.lease_seconds = world.planner._configured_seconds = 60
    tried: list[int] = []

    def script(world: World, assignment: Assignment) -> Answer:
        members = members_in(assignment.record.bundle)
        if assignment.block_range.source == SOURCES[0] and members not in tried:
            tried.append(members)
        if members > 1:
            world.tables[TargetShard("t", "s1")].fill(41)
            return Failed(InDoubtError("no answer", ""))
        return world.load(assignment)

    world.script = script
    run(world)
    assert_exact(world)
    assert tried == [4, 4, 2, 1] or tried == [4, 2, 1]
    assert [kind for kind, _, end in kinds(world, SOURCES[0]) if kind == "SETTLE"] == ["SETTLE"]


def test_what_was_not_found_and_is_too_heavy_together_is_looked_for_again() -> None:
    world = bundling(count=4, blocks=60)
    world.planner.lease_seconds = world.planner._configured_seconds = 60

    def script(world: World, assignment: Assignment) -> Answer:
        members = members_in(assignment.record.bundle)
        if not assignment.record.rest:
            world.tables[TargetShard("t", "s1")].fill(41)
            return Failed(InDoubtError("no answer", ""))
        return BundleTooHeavy() if members > 2 else world.load(assignment)

    world.script = script
    run(world)
    assert_exact(world)
    found = [name for name, *_ in kinds(world, SOURCES[0])]
    assert found == ["INTEND", "PROBE", "PROBE", "SETTLE"], found


@pytest.mark.parametrize("late_ms", [0, 40_000])
def test_nothing_is_looked_for_while_a_lost_task_may_still_insert(late_ms: int) -> None:
    """Its lease may be longer than that of the record that stands there now."""
    world = bundling(count=1)
    state = world.overrun(SOURCES[0], 5, 1)
    state.late_insert_until_ms = world.now + late_ms
    run(world, world.loop([state]))
    ((at_ms, _),) = world.probes
    assert (at_ms > START_MS + late_ms) and (at_ms < START_MS + late_ms + 20_000)
    assert_exact(world)


def test_what_was_not_found_takes_one_reservation_together() -> None:
    """Somebody's late insert leaves room for one block: it is that of all of them."""
    world = bundling(count=6, blocks=60)
    states = [world.overrun(source, 5, 1) for source in SOURCES[:6]]
    holder = PossibleLateInsert({"t/s1": 0}, world.now + 60_000)
    world.tables[TargetShard("t", "s1")].fill(29)
    run(world, world.loop(states, [holder]))
    assert_exact(world)
    sent = [a.record for job in world.jobs for a in job.assignments]
    assert {members_in(record.bundle) for record in sent} == {6}
    assert len(world.jobs) == 1 and world.jobs[0].assignments[0].sent_at_ms < START_MS + 1_000


def test_what_was_probed_is_not_given_back_when_its_bundle_ends() -> None:
    """Nobody inserted any of it: a table was parked, and a probe asked what is there. An earlier
    block may still be known to a server that lacks it."""
    world = bundling(count=2)
    states = [world.settled(source) for source in SOURCES[:2]]
    for state in states:
        state.record = replace(
            state.record,
            kind=Kind.PROBE,
            end=5,
            rest="0123456789ab",
            bundle="0123456789abcdef.2",
        )
        state.untouched = True
    states[1].alone = True
    planner = world.loop(states)._round_planner
    assert planner.plan(states, world.now, flush=False, stopping=False) == Round()
    assert all(state.has_to_be_probed for state in states)


@pytest.mark.parametrize("members_max", [1, 500])
def test_what_was_reserved_where_more_could_be_is_loaded_with_what_the_window_gives(
    members_max: int,
) -> None:
    """Its window was larger then, or its driver was alone, as no member of a fleet is any more."""
    world = bundling(count=2, members_max=members_max, blocks=100)
    states = [world.overrun(source, 5, 60) for source in SOURCES[:2]]
    run(world, world.loop(states))
    assert_exact(world)
    found = [kinds(world, source)[0] for source in SOURCES[:2]]
    assert found == [("PROBE", 0, 5)] * 2
    assert {commit.records[SOURCES[0]].reservation for commit in world.commits[:1]} == {50}
