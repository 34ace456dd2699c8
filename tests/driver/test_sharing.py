"""R25. A loop hands partitions over to other members of its fleet, and goes on with what came."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.core.decided import Frozen, Subject
from sluice.core.errors import TerminalError
from sluice.core.fleet.placement import Homes
from sluice.core.fleet.view import Member, View
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record
from sluice.driver.inheriting import SharesRead
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.loop import ConnectorLoop
from sluice.driver.ports import ConfigurationRead, LoopParts, Topics
from sluice.driver.start import Started
from sluice.driver.state import PartitionState
from sluice.kafka.log import TopicMissingError
from tests.driver import loop_world
from tests.driver.loop_world import START_MS, World, kinds, run

ME, OTHER = Member("me", "a", "s"), Member("other", "b", "s")
BOTH = View("me", 2, (ME, OTHER))
SOURCES = [TopicPartition("a", number) for number in range(12)]
#: Those that the other one should have.
ITS = [source for source in SOURCES if Homes(BOTH, SOURCES).of(source) == "other"]
OWN = [source for source in SOURCES if source not in ITS]


class Shares:
    """The port: it finds what a test puts there, once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found = self.otherwise = SharesRead()
        self.looks: list[Mapping[TopicPartition, Record | None]] = []

    def look(
        self,
        held: Mapping[TopicPartition, Record | None],
        view: View,
        batch: int,
        finished: Callable[[Any], None],
    ) -> None:
        self.looks.append(held)
        found, self.found = replace(self.found, sources=tuple(SOURCES)), self.otherwise
        self.world.at(500, lambda: finished(found))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(list(SOURCES))
    world.shares = Shares(world)  # type: ignore[attr-defined]
    world.sees = View("me", 1, (ME,))  # type: ignore[attr-defined]
    world.view = lambda: world.sees  # type: ignore[attr-defined]
    world.see = lambda *_: None  # type: ignore[attr-defined]
    world.is_fresh = True  # type: ignore[attr-defined]
    world.took = lambda read: None  # type: ignore[attr-defined]
    made = partial(LoopParts, fleet=world, shares=world.shares)  # type: ignore[attr-defined, arg-type]
    monkeypatch.setattr(loop_world, "LoopParts", made)
    world.planner.specs = LoadSpecs(world.spec, is_recorded=False)
    return world


def see(world: World, view: View) -> None:
    world.sees = view  # type: ignore[attr-defined]


def shares(world: World) -> Shares:
    found: Shares = world.shares  # type: ignore[attr-defined]
    return found


def run_for(world: World, after_ms: int, loop: ConnectorLoop) -> None:
    loop.stopping.clear()
    world.at(after_ms, loop.stopping.set)
    loop.run(None, 0.0)
    for state in loop.states.values():
        state.hands_to = ""  # it goes on, as nothing real does


def test_what_is_settled_goes_and_the_rest_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(ITS) > 2 and len(OWN) > 2
    loop = run(world)
    world.at(300, lambda: see(world, BOTH))
    with caplog.at_level(logging.INFO, "sluice.loop"):
        run_for(world, 3_000, loop)
    assert f"once they are settled ({len(ITS)} to other): b has started" in caplog.text
    assert set(loop.states) == set(OWN)
    for source in ITS:
        last, before = world.group[source], world.commits[0].records.get(source)
        assert (last.kind, last.owner, last.begin) == (Kind.SETTLE, "other", world.ends[source])
        assert before is None or last.begin == before.begin
    world.ends.update(dict.fromkeys(SOURCES, 200))
    run_for(world, 20_000, loop)
    assert all(world.rows_of(source) == [1] * 200 for source in OWN)
    assert all(world.group[source].owner == "other" for source in ITS)


def test_what_came_a_moment_ago_stays_for_some_seconds(world: World) -> None:
    """Members that see others for a moment would give it to and fro, and nobody would load it."""
    loop = run(world)
    see(world, BOTH)
    run_for(world, 3_000, loop)
    source = ITS[0]
    world.ends[source] = 200
    shares(world).found = SharesRead((Started([given(world, source, 90)], batch=90),))
    run_for(world, 5_000, loop)
    assert world.group[source].owner == "me"
    assert sum(world.rows_of(source)) > 0
    run_for(world, 10_000, loop)
    assert world.group[source].owner == "other"


def test_what_is_out_is_settled_first_by_a_record_of_its_own(world: World) -> None:
    source = ITS[0]
    world.ends[source] = 30
    world.at(1_050, lambda: see(world, BOTH))
    run_for(world, 10_000, world.loop())
    chain = kinds(world, source)
    assert chain[-2:] == [("SETTLE", chain[-1][1], chain[-1][2])] * 2
    handed = [c.records[source] for c in world.commits if source in c.records]
    assert [record.owner for record in handed[-2:]] == ["me", "other"]
    assert all(record.owner == "me" for record in handed[:-1])


def test_who_is_asked_to_stop_waits_for_its_look(world: World) -> None:
    """What it takes over would be an id's that is written off."""
    took: list[SharesRead] = []
    world.took = took.append  # type: ignore[attr-defined]
    loop = world.loop()
    world.at(250, loop.stopping.set)
    loop.run(None, 10.0)
    assert len(took) == len(shares(world).looks) == 1


def test_a_fleet_of_one_records_what_a_driver_alone_records(world: World) -> None:
    world.ends.update(dict.fromkeys(SOURCES, 40))
    run(world)
    assert all(
        record.owner == "me" for commit in world.commits for record in commit.records.values()
    )
    assert all(world.rows_of(source) == [1] * 40 for source in SOURCES)


def test_who_can_take_nothing_in_hands_nothing_over(world: World) -> None:
    """What keeps it from that keeps others from it, too: what it gave them would stand still."""
    loop, blind = run(world), SharesRead(could_adopt=False)
    shares(world).found = shares(world).otherwise = blind
    run_for(world, 15_000, loop)
    see(world, BOTH)
    run_for(world, 5_000, loop)
    loop.stopping.set()
    loop.run(None, 5.0)
    assert set(loop.states) == set(SOURCES) and all(
        world.group[source].owner == "me" for source in SOURCES
    )
    shares(world).found = shares(world).otherwise = SharesRead()
    run_for(world, 5_000, loop)
    assert set(loop.states) == set(OWN)


def test_looks_that_fail_for_some_seconds_hold_no_hand_over_up(world: World) -> None:
    loop, blind = run(world), SharesRead(could_adopt=False)
    see(world, BOTH)
    shares(world).found = shares(world).otherwise = blind
    run_for(world, 5_000, loop)
    assert set(loop.states) == set(OWN)


def test_one_look_that_failed_before_a_stop_holds_no_hand_over_up(world: World) -> None:
    """Who leaves looks no more: what the last look said does not grow old."""
    loop = run(world)
    see(world, BOTH)
    loop.states[ITS[0]].held_until_ms = world.now + 15_000
    shares(world).found = shares(world).otherwise = SharesRead(could_adopt=False)
    run_for(world, 3_000, loop)
    assert set(loop.states) == {*OWN, ITS[0]}
    assert not loop._sharing.leave(world.now + 60_000, is_settled=True)
    assert loop.states[ITS[0]].hands_to == "other"


def test_topics_that_looks_leave_out_are_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What expires in them is never loaded."""
    finder = SimpleNamespace(left_out={"gone": TopicMissingError("topic gone does not exist")})
    world.topic_finder = cast(Topics, finder)
    loop = run(world)
    with caplog.at_level(logging.ERROR, "sluice.loop"):
        run_for(world, 90_000, loop)
    assert [str(why) for why in loop.waits.refused.values()] == ["topic gone does not exist"]
    (said,) = (record.message for record in caplog.records)
    assert said.startswith("topic gone is not loaded: topic gone does not exist. Try: ")
    finder.left_out = {}
    run_for(world, 90_000, loop)
    assert not loop.waits.refused


def test_what_stopped_or_stands_still_stays(world: World) -> None:
    loop = run(world)
    stopped, frozen = loop.states[ITS[0]], loop.freezing
    stopped.stop(TerminalError("because"))
    see(world, BOTH)
    frozen.take((Frozen(Subject("pipeline"), "alice", "why", START_MS),), world.now)
    run_for(world, 5_000, loop)
    assert set(loop.states) == set(SOURCES)
    frozen.take((), world.now)
    run_for(world, 5_000, loop)
    assert set(loop.states) == {*OWN, ITS[0]}


def test_who_is_to_stop_hands_over_all_that_it_has(world: World) -> None:
    loop = run(world)
    assert set(loop.states) == set(SOURCES)  # nobody else is there
    see(world, BOTH)
    loop.states[SOURCES[0]].held_until_ms = world.now + 60_000
    loop.stopping.set()
    loop.run(None, 5.0)
    assert set(loop.states) == {SOURCES[0]}
    assert {world.group[source].owner for source in SOURCES[1:]} == {"other"}


def test_what_may_still_be_inserted_is_not_handed_over(world: World) -> None:
    loop = run(world)
    loop.states[ITS[0]].held_until_ms = world.now + 6_000
    see(world, BOTH)
    run_for(world, 4_000, loop)
    assert set(loop.states) == {*OWN, ITS[0]}
    run_for(world, 20_000, loop)
    assert set(loop.states) == set(OWN)


def given(world: World, source: TopicPartition, batch: int) -> PartitionState:
    """A partition that another one has handed over at 5."""
    world.ends[source] = 25
    state = world.settled(source)
    state.record = world.group[source] = replace(state.record, batch=batch, begin=5, end=5)
    return state


def test_what_came_goes_on_from_its_record_in_later_batches(world: World) -> None:
    source = TopicPartition("a", 77)
    see(world, replace(BOTH, living=(ME,)))
    loop = run(world)
    before = loop.batch
    shares(world).found = SharesRead(
        (Started([given(world, source, before + 40)], batch=before + 40),)
    )
    run_for(world, 20_000, loop)
    records = [c.records[source] for c in world.commits if source in c.records]
    assert records[0].kind is Kind.INTEND and records[0].begin == 5
    assert records[0].batch > before + 40
    assert world.rows_of(source) == [0] * 5 + [1] * 20


def test_batches_never_go_back_by_what_came(world: World) -> None:
    loop = run(world)
    shares(world).found = SharesRead((Started([], batch=0),))
    before = loop.batch
    run_for(world, 5_000, loop)
    assert loop.batch >= before


def test_a_partition_comes_back_the_same_way(world: World) -> None:
    loop = run(world)
    see(world, BOTH)
    run_for(world, 3_000, loop)
    see(world, View("me", 9, (ME,)))
    shares(world).found = SharesRead((Started([given(world, ITS[0], 90)], batch=90),))
    run_for(world, 20_000, loop)
    assert set(loop.states) == {*OWN, ITS[0]}
    assert world.rows_of(ITS[0])[5:] == [1] * 20


def test_one_look_at_a_time_says_what_the_loop_has(world: World) -> None:
    loop = run(world)
    run_for(world, 30_000, loop)
    loop.states[SOURCES[0]].stop(TerminalError("because"))
    looks = shares(world).looks
    del looks[:]
    run_for(world, 9_000, loop)
    assert 3 <= len(looks) <= 5
    assert looks[-1].keys() == set(SOURCES)
    assert [source for source, record in looks[-1].items() if record] == [SOURCES[0]]


def test_it_looks_more_often_for_a_while_after_members_changed(world: World) -> None:
    loop, looks = run(world), shares(world).looks

    def looks_in(after_ms: int) -> int:
        before = len(looks)
        run_for(world, after_ms, loop)
        return len(looks) - before

    looks_in(30_000)
    assert 4 <= looks_in(10_000) <= 6
    see(world, BOTH)
    assert 8 <= looks_in(10_000) <= 20
    looks_in(20_000)
    assert 4 <= looks_in(10_000) <= 6


def test_what_stopped_here_and_goes_on_elsewhere_is_let_go(world: World) -> None:
    loop = run(world)
    loop.states[SOURCES[0]].stop(TerminalError("because"))
    shares(world).found = SharesRead(gone=(SOURCES[0],))
    run_for(world, 5_000, loop)
    assert set(loop.states) == set(SOURCES[1:])


def retire(world: World, *topics: str) -> None:
    """A version is taken up that does not load these, while a look is under way."""
    read = ConfigurationRead(1, world.spec, (), lambda topic: topic not in topics, lambda: None)
    world.at(300, lambda: world.put(read))


def test_what_came_of_a_topic_that_was_retired_meanwhile_is_let_go(world: World) -> None:
    """No table takes it any more, so a range of it could be loaded by nobody."""
    source = TopicPartition("b", 0)
    world.ids["b"] = world.ids["a"]
    loop = run(world)
    shares(world).found = SharesRead((Started([given(world, source, 90)], batch=90),))
    retire(world, "b")
    run_for(world, 5_000, loop)
    assert set(loop.states) == set(SOURCES)
    assert all(source not in commit.records for commit in world.commits)


def test_what_is_let_go_may_be_gone_for_two_reasons(world: World) -> None:
    loop = run(world)
    loop.states[SOURCES[0]].stop(TerminalError("because"))
    shares(world).found = SharesRead(gone=(SOURCES[0],))
    retire(world, "a")
    run_for(world, 5_000, loop)
    assert not loop.states


def test_a_bug_of_the_look_ends_the_loop(world: World) -> None:
    shares(world).found = SharesRead(error=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run_for(world, 9_000, world.loop())


def test_a_new_partition_is_somebody_elses_until_it_is_found(world: World) -> None:
    loop = world.loop(take_over_new=lambda new: pytest.fail(f"took {new}"))
    world.ends[TopicPartition("a", 50)] = 5
    loop.look_at_topics()
    run_for(world, 5_000, loop)


def test_the_load_spec_of_who_began_without_partitions_comes_to_the_ledger(world: World) -> None:
    loop = world.loop(states=[])
    source = TopicPartition("a", 77)
    shares(world).found = SharesRead((Started([given(world, source, 4)], batch=4),))
    run_for(world, 9_000, loop)
    texts = [entry.body["digest"] for entry in world.ledger if entry.body["type"] == "load_spec"]
    assert world.planner.digest in texts


def test_no_checkpoint_of_a_fleet_says_who_has_no_record(world: World) -> None:
    world.ends.update(dict.fromkeys(SOURCES, 40))
    run(world)
    found = [entry.body for entry in world.ledger if entry.body["type"] == "checkpoint"]
    assert found and all(body.get("others") is None for body in found)


def test_who_is_fenced_waits_for_nothing(world: World) -> None:
    world.ends[SOURCES[0]] = 30
    world.script = lambda world, assignment: None
    loop = world.loop()
    world.at(3_000, loop.stopping.set)
    loop.run(None, 0.0)
    assert world.jobs and not world.cancelled
    loop.abandon()
    assert [job for _, job in world.cancelled] == world.jobs


def test_who_is_initialised_again_says_so_before_it_records(world: World) -> None:
    """Whoever had fenced it may have gone on without it (R24)."""
    said: list[int] = []
    world.begin_again = lambda: said.append(len(world.commits))  # type: ignore[attr-defined]
    world.ends[SOURCES[0]] = 5
    compare, told = world.differences, iter([2])

    def differences(expected: Mapping[TopicPartition, Record]) -> dict[TopicPartition, str]:
        world.initialised = next(told, world.initialised)
        return compare(expected)

    world.differences = differences  # type: ignore[method-assign]
    run_for(world, 20_000, world.loop())
    assert said == [0]
    assert world.rows_of(SOURCES[0]) == [1] * 5
