"""What is said of a loop while something is wrong with it, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from sluice.core.errors import TransientError
from sluice.core.fleet.fold import Fold
from sluice.core.fleet.records import Report
from sluice.core.ledger import Background
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed
from sluice.core.records import Kind
from sluice.driver.beginning import StartRefusedError
from sluice.driver.loop import ConnectorLoop
from sluice.driver.parking import Parking
from sluice.ops.metrics import RunningCollector
from sluice.ops.running import (
    ConnectorNow,
    FleetNow,
    Rates,
    behind_seconds,
    look_at,
    why_not_ready,
)
from tests.driver.loop_world import World, run, table_spec
from tests.ops.http.scene import run_of
from tests.ops.http.test_page import Watch

P0, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)


def two_tables() -> World:
    return World([P0, OTHER], (table_spec("t", ("a",)), table_spec("u", ("b",))))


def stopped_at(world: World, after_ms: int) -> ConnectorLoop:
    """As the loop is after so long, out of its thread."""
    loop = world.loop()
    world.at(after_ms, loop.stopping.set)
    loop.run(None, 0.0)
    return loop


def look(world: World, loop: ConnectorLoop, rates: Rates | None = None) -> ConnectorNow:
    loop.round_at_ms = world.now
    return look_at(run_of(loop), rates or Rates(), world.now)


def test_a_range_that_fails_says_why_and_when_it_is_tried_again() -> None:
    world = two_tables()
    world.ends.update({P0: 10, OTHER: 10})

    def script(world: World, assignment: object) -> object:
        if assignment.block_range.source == P0:  # type: ignore[attr-defined]
            return Failed(TransientError("r2 is read-only"), "t", False)
        return world.load(assignment)  # type: ignore[arg-type]

    world.script = script  # type: ignore[assignment]
    loop = stopped_at(world, 20_000)
    found = look(world, loop)
    first, second = found.tables
    assert first.verdict == found.verdict == "waits" and second.verdict == "idle"
    assert "1 of 1 partitions, a[0] first: a[0][0, 10) failed" in first.reason
    assert "now by r2 is read-only; next try in" in first.reason
    assert first.amounts.in_doubt == 1 and second.amounts.in_doubt == 0
    assert 15 < (first.amounts.oldest_intent_seconds or 0) < 25
    assert found.amounts.oldest_intent_seconds == first.amounts.oldest_intent_seconds
    assert [each.intent for each in found.troubled] == [(0, 10)]
    assert found.is_moving  # the other one


def test_topics_that_are_refused_are_told_with_what_to_do() -> None:
    world = World([P0])
    loop = run(world)
    assert look(world, loop).refused == ()
    why = StartRefusedError("its group has members", "Stop them.")
    loop._topics.refused.refuse({f"t{number:03}": why for number in range(60)})
    found = look(world, loop)
    assert found.refused[0] == "topic t000 is not loaded: its group has members. Try: Stop them."
    assert len(found.refused) == 51 and found.refused[50] == "10 more topics are not loaded"
    assert found.is_moving  # the others


def test_the_members_of_a_fleet_are_told() -> None:
    world = two_tables()
    loop = run(world)
    view = Fold("run-1")
    for number, owner in enumerate(("run-1", "run-2")):
        view.take(number, 0, Report(owner, f"member of {owner}", 1))
    seen = replace(view.view(), silent=("run-3",))
    numbers = {"report_age_seconds": 1.26, "unreadable": 2, "unowned": 4, "busy_partitions": 3}
    looks = {"look_age_seconds": 7.77, "look_failure": ""}
    member = SimpleNamespace(view=lambda: seen, **numbers, **looks)
    found = look_at(run_of(loop, fleet=member), Rates(), world.now)
    names = ("member of run-1", "member of run-2")
    assert found.fleet == FleetNow(names, ("run-3",), 1.3, 2, 4, 7.8, "", 3, 1, 1)
    told = {
        sample.name: sample.value
        for family in RunningCollector(lambda: [found], "p").collect()
        for sample in family.samples
        if sample.name.startswith("sluice_fleet")
    }
    assert told == {
        "sluice_fleet_members": 2,
        "sluice_fleet_silent_members": 1,
        "sluice_fleet_report_age_seconds": 1.3,
        "sluice_fleet_unreadable_messages": 2,
        "sluice_fleet_unowned_partitions": 4,
        "sluice_fleet_look_age_seconds": 7.8,
        "sluice_fleet_busy_partitions": 3,
        "sluice_fleet_wanted_slots": 1,
        "sluice_fleet_wanted_members": 1,
    }


def test_a_member_without_partitions_is_ready_while_others_have_them() -> None:
    """A standby; one of no fleet, or of which nobody has any, is not."""
    world = World([])
    loop = run(world)
    facts = {"unreadable": 0, "busy_partitions": 0, "view": lambda: Fold("run-1").view()}
    facts |= {"unowned": 1, "elsewhere": 0, "look_age_seconds": 0.0, "look_failure": ""}
    member = SimpleNamespace(why_alone="", report_age_seconds=1.0, **facts)

    def found(fleet: object) -> tuple[str, bool, str]:
        loop.round_at_ms = world.now
        now = look_at(run_of(loop, fleet=fleet), Rates(), world.now)
        return now.verdict, not why_not_ready([now]), now.reason

    topics = ("waits", False, "has no partitions: none of its topics has any yet")
    assert found(None) == topics
    nobody = "has no partitions, and no other member has any yet"
    assert found(member) == ("waits", False, nobody)
    member.elsewhere = 4
    assert found(member) == ("idle", True, "has no partitions: other members have them")
    member.look_age_seconds, member.look_failure = 61.0, "topic b does not exist"
    unseen = "for 61 s it could not look at all partitions of its fleet, and takes nothing over"
    assert found(member)[::2] == ("waits", f"{unseen}: {member.look_failure}")
    member.look_age_seconds, member.report_age_seconds = 0.0, 61.0
    unheard = "has no partitions, and has not heard of its fleet for 61 s"
    assert found(member) == ("waits", False, unheard)
    member.why_alone = "it deduplicates"
    assert found(member) == topics


def test_a_member_whose_looks_fail_is_not_ready_though_it_loads() -> None:
    """Else a rolling update would go on, and nobody inherits what the next member leaves."""
    world = two_tables()
    loop = run(world)
    facts: dict[str, object] = {"unreadable": 0, "busy_partitions": 0, "unowned": 0}
    facts |= {"look_age_seconds": 60.0, "look_failure": "topic b does not exist"}
    view = Fold("run-1").view()
    member = SimpleNamespace(view=lambda: view, report_age_seconds=1.0, **facts)

    def found() -> tuple[str, list[str]]:
        now = look_at(run_of(loop, fleet=member), Rates(), world.now)
        assert now.is_moving
        return now.verdict, why_not_ready([now])

    assert found() == ("idle", [])
    member.look_age_seconds = 61.0
    verdict, (why,) = found()
    assert verdict == "waits" and why.startswith("connector dc1: for 61 s it could not look")
    assert why.endswith(": topic b does not exist")
    loop.states[P0].stop(TransientError("the topic is gone"))
    assert found() == ("stopped", [why])


def test_what_is_waited_for_is_named() -> None:
    world = two_tables()
    loop = run(world)
    world.outages["s1"] = "nobody answers"
    loop.states[P0].waiting_since_ms = world.now
    found = look(world, loop)
    assert found.tables[0].reason.endswith("a[0] first: waits for shard s1: nobody answers")
    assert found.tables[1].verdict == "idle"  # it has nothing to load
    world.unreadable |= {P0, OTHER}
    loop._observe_again_at_ms = 0
    loop._observe(world.now)
    assert look(world, loop).reason == "waits for Kafka, which does not answer"
    assert not look(world, loop).is_moving


def test_how_partitions_keep_up_is_told_by_table() -> None:
    world = two_tables()
    loop, rates = run(world), Rates()
    state = loop.states[P0]
    for _ in range(6):
        state.stable_end = state.settled + 5  # and nothing of it is settled
        found = look(world, loop, rates)
        world.now += 30_000
    assert [table.amounts.lags for table in found.tables] == [{"stalled": 1}, {"ok": 1}]
    state.stop(TransientError("the topic is gone"))
    found = look(world, loop, rates)
    assert (found.tables[0].amounts.lags, found.troubled[0].lag) == ({"stopped": 1}, "stopped")


def test_a_backlog_of_timestamps_of_zero_is_as_old_as_they_say() -> None:
    """Before, it was none."""
    world = two_tables()
    state = run(world).states[P0]
    assert behind_seconds(state, world.now) == 0
    state.behind_since_ms = 0
    assert behind_seconds(state, world.now) == world.now / 1000


def test_a_partition_whose_ranges_are_settled_at_each_look_is_not_behind() -> None:
    """Loads are short against `max_delay`: before, its range counted as none, and any growth of its
    lag as more."""
    world = two_tables()
    loop, rates = run(world), Rates()
    state = loop.states[P0]

    def lag_after(lags: Sequence[int]) -> str:
        for lag in lags:
            at = state.record.end
            for kind, begin in ((Kind.INTEND, at), (Kind.SETTLE, at + 10)):
                record = replace(state.record, kind=kind, begin=begin, end=at + 10)
                state.recorded(record, Background(since_ms=world.now), world.now)
            state.stable_end = state.settled + lag
            found = look(world, loop, rates)
            world.now += 30_000
        return next(lag for lag, count in found.tables[0].amounts.lags.items() if count)

    assert lag_after([1, 9, 3, 8, 2, 7]) == "ok"
    assert lag_after([12]) == "behind"


def test_parked_tables_replicas_and_rates() -> None:
    world = two_tables()
    world.parking = Parking(["t"])
    world.ends.update({P0: 10, OTHER: 30})
    rates, loop = Rates(), world.loop()
    assert look(world, loop, rates).rows_per_second is None
    run(world, loop)
    world.now += 5_000
    world.parking.refuse("t", TransientError("no rights"))
    loop.replicas = Watch()
    found = look(world, loop, rates)
    assert found.rows_per_second is not None and 5 < found.rows_per_second < 8
    assert (found.tables[0].verdict, found.tables[0].is_parked) == ("parked", True)
    assert found.tables[1].rows == 30
    assert [each.why_last for each in found.replicas] == ["", "away"]
    assert [each.delay_seconds for each in found.replicas] == [2.0, None]
    world.now += 60_000
    assert look(world, loop, rates).rows_per_second is None
