"""A loop that looks at its topics: gone, created again, larger."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from sluice.core.budget import TargetShard
from sluice.core.errors import OwnerChangedError, SluiceError, TransientError
from sluice.core.ledger import Background
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.core.receipts import Failed, Outcome
from sluice.core.records import Kind
from sluice.core.topics import NO_TOPIC_ID
from sluice.driver.beginning import StartRefusedError
from sluice.driver.load_specs import NamedSpec
from sluice.driver.start import Started
from sluice.driver.state import PartitionState, PossibleLateInsert
from sluice.kafka.errors import recreated
from sluice.ops.running import Lags, Look
from sluice.worker.assignment import Assignment, Job
from tests.driver.loop_world import START_MS, World, kinds, table_spec

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
OTHER = TopicPartition("b", 0)

#: When the lease of the other owner's lost task ends.
LATE_MS = 200_000


def test_a_deleted_topic_and_a_silent_partition_hold_nobody_else() -> None:
    world = World([P0, P1, OTHER])
    world.ends.update({P0: 20, P1: 20, OTHER: 20})
    loop = world.loop()
    del world.ids["b"]
    world.unreadable |= {OTHER}
    loop.run({P0: 20, P1: 20, OTHER: 20}, 5.0)
    assert "does not exist" in str(loop.states[OTHER].stopped)
    assert world.rows_of(P0) == world.rows_of(P1) == [1] * 20


def test_all_topics_are_looked_at_by_one_request() -> None:
    """A request for each of a thousand topics held a round, and every row, for seconds."""
    sources = [TopicPartition(f"t{number}", 0) for number in range(30)]
    world = World(sources)
    world.ends.update(dict.fromkeys(sources, 20))
    loop = world.loop()
    at_start = world.topic_requests
    del world.ids["t7"]
    world.at(70_000, lambda: world.ends.update(dict.fromkeys(sources, 40)))
    loop.run(dict.fromkeys(sources, 40), 5.0)
    stopped = [state.source.topic for state in loop.states.values() if state.stopped is not None]
    assert stopped == ["t7"]
    assert 1 <= world.topic_requests - at_start <= 3


def test_a_topic_that_is_created_again_while_the_loop_runs_is_not_read() -> None:
    world = World([P0])
    world.ends[P0] = 20
    loop = world.loop()

    def again() -> None:
        world.ids["a"] = "BBBBBBBBBBB"
        world.ends[P0] = 3

    world.at(60_000, again)
    world.at(62_000, lambda: world.ends.update({P0: 40}))
    loop.run({P0: 40}, 5.0)
    assert "created again" in str(loop.states[P0].stopped)
    assert kinds(world, P0)[-1] == ("SETTLE", 20, 20)


@pytest.mark.parametrize("end", [0, 20])
def test_a_topic_that_is_made_anew_between_two_looks_is_refused_by_whoever_reads_it(
    end: int,
) -> None:
    """Its end never was below what is recorded, so that only its id tells."""
    world = World([P0, OTHER])
    world.ends.update({P0: end, OTHER: 20})
    world.script = load_what_was_meant
    loop = world.loop()

    def again() -> None:
        world.ids["a"] = "BBBBBBBBBBB"
        world.ends.update({P0: 40, OTHER: 40})

    world.at(31_000, again)  # a moment after a look at the topics
    world.at(45_000, loop.stopping.set)
    loop.run(None, 5.0)
    stopped = loop.states[P0].stopped
    assert stopped is not None and stopped.hint.startswith("`sluice adopt --offset 0`")
    assert "created again (its id is BBBBBBBBBBB now)" in str(stopped)
    assert world.rows_of(P0) == [1] * end + [0] * (40 - end)
    assert world.rows_of(OTHER) == [1] * 40
    assert [k for k in kinds(world, P0) if k[2] > end] == [("INTEND", end, end + 10)]


def load_what_was_meant(world: World, assignment: Assignment) -> Outcome:
    """As a worker does: it reads, and asks for the id then."""
    source, now = assignment.block_range.source, world.ids[assignment.block_range.source.topic]
    if assignment.record.topic_id == now:
        return world.load(assignment)
    return Failed(recreated(source, now), inserted_nothing=True)


def test_a_log_that_was_cut_and_filled_again_while_the_loop_runs_is_not_read() -> None:
    """Its end is beyond what is recorded: only the leader's epoch tells."""
    world = World([P0, P1])
    world.epoch = 3
    world.ends.update({P0: 20, P1: 20})
    loop = world.loop()

    def cut() -> None:
        world.cut_at[P0] = 15
        world.epoch = 5
        world.ends.update({P0: 40, P1: 40})

    world.at(20_000, cut)
    loop.run({P0: 40, P1: 40}, 5.0)
    stopped = loop.states[P0].stopped
    assert stopped is not None
    assert "the log was cut below what is recorded, up to offset 20 of leader epoch 3" in str(
        stopped
    )
    assert "sluice adopt CONFIG --connector c --topic a --partition 0" in stopped.hint
    assert world.rows_of(P0) == [1] * 20 + [0] * 20
    assert world.rows_of(P1) == [1] * 40
    assert {source: record.epoch for source, record in world.group.items()} == {P0: 3, P1: 5}
    assert world.asked_epochs == [{P0: EpochOffset(20, 3), P1: EpochOffset(20, 3)}]


def test_a_new_leader_that_tells_nothing_of_a_cut_holds_back_its_own_partition_alone() -> None:
    """Its first message cannot be read, say. It is asked again, ever more seldom, and told as
    behind meanwhile."""
    world = World([P0, P1])
    world.epoch = 3
    world.ends.update({P0: 20, P1: 20})
    loop, seen = world.loop(), list[object]()

    def led_by_another() -> None:
        world.unasked.add(P0)
        world.epoch = 5
        world.ends.update({P0: 40, P1: 40})

    def look() -> None:
        now = next(iter(Look(loop, Lags(), world.now).partitions()))
        seen.extend((world.rows_of(P0), world.rows_of(P1), loop.waits.kafka))
        seen.extend((now.verdict, now.reason, now.behind_seconds))

    world.at(20_000, led_by_another)
    world.at(200_000, look)
    world.at(200_000, world.unasked.clear)
    loop.run({P0: 40, P1: 40}, 5.0)
    *told, behind_seconds = seen
    why = "its leader has changed, and is not believed yet: no answer for 3 s"
    assert told == [[1] * 20 + [0] * 20, [1] * 40, False, "waits", why]
    assert isinstance(behind_seconds, float) and behind_seconds > 150
    asked = [set(points) for points in world.asked_epochs]
    assert asked[0] == {P0, P1} and all(points == {P0} for points in asked[1:])
    assert 5 < len(asked) < 20
    assert world.rows_of(P0) == [1] * 40 and loop.states[P0].unverified == ""


def test_what_was_seen_and_not_recorded_may_be_cut() -> None:
    """Nobody was promised it: the new leader's end counts, and a former leader's does not."""
    world = World([P0])
    world.epoch = 3
    world.ends[P0] = 20
    world.outages["s1"] = "away"  # so that nothing is recorded of it
    loop = world.loop()
    ends = world.ends

    def cut() -> None:
        world.cut_at[P0] = 5
        world.epoch, ends[P0] = 4, 5

    def a_former_leader_answers() -> None:
        world.epoch, ends[P0] = 3, 20

    def the_leader_answers() -> None:
        world.epoch, ends[P0] = 4, 8
        world.outages.clear()

    world.at(10_000, cut)
    world.at(15_000, a_former_leader_answers)
    world.at(20_000, the_leader_answers)
    loop.run({P0: 8}, 5.0)
    assert loop.states[P0].stopped is None
    assert world.rows_of(P0) == [1] * 8
    assert {record.epoch for commit in world.commits for record in commit.records.values()} == {4}


def test_new_partitions_are_found_although_all_known_ones_stopped() -> None:
    world = World([P0])
    world.ends[P0] = 10
    loop = world.loop(take_over_new=lambda new: Started([world.settled(s) for s in new]))
    del world.group[P0]
    world.at(50_000, lambda: world.ends.update({P1: 10}))
    world.at(120_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert loop.states[P0].stopped is not None
    assert world.rows_of(P0) == [0] * 10
    assert world.rows_of(P1) == [1] * 10


def test_who_was_succeeded_takes_no_new_partition_from_its_successor() -> None:
    """It would fence the successor, and both would end."""
    world = World([P0])
    taken: list[TopicPartition] = []

    def take_over(new: list[TopicPartition]) -> Started:
        taken.extend(new)
        return Started([world.settled(source) for source in new])

    loop = world.loop(take_over_new=take_over)
    world.group[P0] = replace(world.group[P0], owner="successor")
    world.at(50_000, lambda: world.ends.update({P1: 10}))
    world.at(120_000, loop.stopping.set)
    with pytest.raises(OwnerChangedError, match="belongs to successor"):
        loop.run(None, 5.0)
    assert taken == []


def test_a_new_partition_brings_its_late_inserts_and_specs_along() -> None:
    """Another owner had it first: its load spec is not ours, and its lost task may still insert.
    Of 10 entries that may be used, 12 were created since that task's hold."""
    world = World([P0], blocks=20)
    loop = world.loop(take_over_new=lambda new: another_owners(world, new))
    world.tables[TargetShard("t", "s1")].fill(12)
    world.at(50_000, lambda: world.ends.update({P1: 10}))
    world.at(100_000, lambda: world.ends.update({P0: 10}))
    world.at(400_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(P0) == world.rows_of(P1) == [1] * 10
    for job, environment in zip(world.jobs, world.environments, strict=True):
        digests = {assignment.record.spec for assignment in job.assignments}
        assert digests == environment.specs.keys() and all(map(loop.planner.specs.get, digests))
    (sent_at,) = (job.assignments[0].sent_at_ms for job in world.jobs if sources_of(job) == {P0})
    assert sent_at > START_MS + LATE_MS
    assert [late_insert.deadline_ms for late_insert in loop.holds.late_inserts] == []


def sources_of(job: Job) -> set[TopicPartition]:
    return {assignment.block_range.source for assignment in job.assignments}


def another_owners(world: World, new: list[TopicPartition]) -> Started:
    """What a take-over finds of a partition that another owner's load spec has in doubt."""
    (source,) = new
    spec = replace(world.spec, range_bytes_max=2 << 20)
    state = world.settled(source)
    state.record = world.group[source] = replace(
        state.record,
        kind=Kind.RENEW,
        attempt=2,
        end=10,
        reservation=1,
        spec=spec.digest(),
        deadline_ms=world.now + 600_000,
    )
    state.background = Background(insert_counters={"t/s1": 12}, since_ms=world.now)
    state.back_at_ms = world.now
    return Started(
        states=[state],
        late_inserts=[PossibleLateInsert({"t/s1": 0}, START_MS + LATE_MS)] * 2,
        specs={spec.digest(): NamedSpec.of(spec)},
        batch=5,
    )


class Finder:
    """Every topic of the world is taken; only "a" has its name in the configuration."""

    def __init__(self, world: World) -> None:
        self._world = world

    left_out: Mapping[str, SluiceError] = {}

    def is_named(self, topic: str) -> bool:
        return topic == "a"

    def find(self, known: Collection[str]) -> tuple[list[str], dict[str, SluiceError]]:
        return sorted(self._world.ids.keys() - set(known)), {}


class Refusing(Finder):
    """Refuses topics, each look for the next reason."""

    topics: Mapping[str, list[str]] = {}

    def find(self, known: Collection[str]) -> tuple[list[str], dict[str, SluiceError]]:
        whys = ((topic, reasons.pop(0)) for topic, reasons in self.topics.items() if reasons)
        return [], {topic: StartRefusedError(why) for topic, why in whys}


def found_world(*sources: TopicPartition) -> World:
    """A world whose one entry takes topics by an expression."""
    table = replace(table_spec("t", ("a",)), topic_pattern="[b-z]")
    world = World(sources, (table,))
    world.topic_finder = Finder(world)
    return world


def create(world: World, source: TopicPartition, end: int) -> None:
    world.ids[source.topic] = world.ids.get(source.topic, "TTTTTTTTTTT")
    world.ends[source] = end


def test_a_topic_that_appears_is_loaded_and_soon_if_asked_for() -> None:
    world = found_world(P0)
    loop = world.loop(take_over_new=lambda new: Started([world.settled(s) for s in new]))
    world.at(40_000, lambda: create(world, OTHER, 10))
    world.at(59_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert OTHER not in loop.states
    loop.stopping.clear()
    world.at(10, loop.look_at_topics)
    world.at(3_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(OTHER) == [1] * 10
    assert [kind for kind, _, _ in kinds(world, OTHER)] == ["INTEND", "SETTLE"]


def test_a_slow_look_at_topics_puts_no_look_at_ends_off() -> None:
    """A look at ends that takes 400 ms is not repeated for 4 s; taking over a topic is none."""
    world = found_world(P0)

    def take_over(new: list[TopicPartition]) -> Started:
        world.now += 400
        world.ends[P0] = 10
        return Started([world.settled(source) for source in new])

    loop = world.loop(take_over_new=take_over)
    world.at(10_000, lambda: create(world, OTHER, 10))
    world.at(10_000, loop.look_at_topics)
    world.at(12_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(P0) == world.rows_of(OTHER) == [1] * 10


def test_a_topic_that_cannot_begin_is_told_of_once_and_holds_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = found_world(P0)
    refused = TopicPartition("c", 0)

    def take_over(new: list[TopicPartition]) -> Started:
        if refused in new and world.now < START_MS + 200_000:
            raise StartRefusedError("the group has committed no offset for c[0]")
        return Started([world.settled(source) for source in new])

    loop = world.loop(take_over_new=take_over)
    world.at(10_000, lambda: (create(world, OTHER, 10), create(world, refused, 10)))  # type: ignore[func-returns-value]
    world.at(150_000, loop.stopping.set)
    with caplog.at_level(logging.ERROR, "sluice.loop"):
        loop.run(None, 5.0)
    assert world.rows_of(OTHER) == [1] * 10 and refused not in loop.states
    assert len([r for r in caplog.records if "topic c is not loaded" in r.message]) == 1
    assert {topic: str(why) for topic, why in loop.waits.refused.items()} == {
        "c": "the group has committed no offset for c[0]"
    }
    loop.stopping.clear()
    world.at(150_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(refused) == [1] * 10 and not loop.waits.refused


def test_a_topic_that_is_refused_is_told_until_nobody_wants_it_any_more() -> None:
    world = found_world(P0)
    refusing = world.topic_finder = Refusing(world)
    loop, told = world.loop(), list[dict[str, str]]()

    def look() -> None:
        told.append({topic: str(why) for topic, why in loop.waits.refused.items()})

    refusing.topics = {"c": ["c comes twice"] * 2 + ["c comes thrice"]}
    for delay_ms in (1, 35_000, 65_000, 95_000, 125_000):
        world.at(delay_ms, look)
    world.at(130_000, loop.stopping.set)
    loop.run(None, 5.0)
    why = {"c": "c comes twice"}
    assert told == [{}, why, why, {"c": "c comes thrice"}, {}]


@pytest.mark.parametrize("named", [False, True])
def test_a_topic_that_is_gone_is_let_go_unless_it_was_named(
    named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the only one, so that nothing answers any more."""
    gone = P0 if named else OTHER
    world = found_world(gone)
    world.ends[gone] = 10
    loop = world.loop()

    def delete() -> None:
        world.ends[gone] += 5  # came in the moment before
        del world.ids[gone.topic]
        world.unreadable.add(gone)

    world.at(20_000, delete)
    world.at(100_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(gone)[:10] == [1] * 10
    if named:
        assert "does not exist" in str(loop.states[gone].stopped)
    else:
        assert loop.states == {} and "it is settled at 10 and let go" in caplog.text


def test_a_topic_that_is_gone_in_doubt_stops() -> None:
    """Nobody can tell any more what its range held."""
    world = found_world(P0, OTHER)
    world.ends.update({P0: 10, OTHER: 10})
    world.script = lambda world, a: None if a.block_range.source == OTHER else world.load(a)
    loop = world.loop()
    world.at(20_000, lambda: world.ids.pop("b"))
    world.at(100_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert "topic b does not exist" in str(loop.states[OTHER].stopped)
    assert loop.states[OTHER].record.in_doubt and world.rows_of(P0) == [1] * 10


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_took_long_puts_the_next_one_off_for_seconds_only(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A broker was silent: partitions of the others wait. But nor is it asked again at once, since
    the loop does nothing else meanwhile."""
    world = World([P0, P1])
    looks: list[int] = []

    def slow(*_: object, partial: bool = False) -> dict[TopicPartition, EpochOffset]:
        world.now += 7_000
        looks.append(world.now)
        if fails:
            raise TransientError("nobody answers")
        return {P0: EpochOffset(0, 0)}

    monkeypatch.setattr(world, "epoch_ends", slow)
    loop = world.loop()
    world.at(100_000, loop.stopping.set)
    loop.run(None, 5.0)
    pauses = [later - earlier - 7_000 for earlier, later in pairwise(looks)]
    assert all(1_500 <= pause <= 6_000 for pause in pauses) and len(pauses) > 5, pauses


def test_a_topic_that_comes_to_an_id_while_the_loop_runs_goes_on() -> None:
    world = World([P0])
    world.ends[P0] = 20
    world.ids["a"] = NO_TOPIC_ID
    loop = world.loop([with_topic_id(world, P0, NO_TOPIC_ID)])

    def upgraded() -> None:
        world.ids["a"] = "BBBBBBBBBBB"
        world.ends[P0] = 40

    world.at(31_000, upgraded)
    world.at(90_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert loop.states[P0].stopped is None
    assert world.rows_of(P0) == [1] * 40
    assert {r.topic_id for commit in world.commits for r in commit.records.values()} == {
        NO_TOPIC_ID
    }


def with_topic_id(world: World, source: TopicPartition, topic_id: str) -> PartitionState:
    state = world.settled(source)
    state.record = world.group[source] = replace(state.record, topic_id=topic_id)
    return state
