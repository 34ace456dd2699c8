"""What a person decides about partitions of a loop that runs: recorded by the loop between rounds,
or refused with words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.core.errors import ForeignHandsError, OwnerChangedError, TransientError
from sluice.core.ranges import TopicPartition
from sluice.driver.ports import ProbeEnded
from sluice.driver.redirecting import PartitionBusyError, PartitionsDecided
from sluice.driver.start import Started
from sluice.driver.state import Probing, ToProbe
from sluice.kafka.recorder import StopRequestedError
from tests.driver.loop_world import World, run

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)


class Redirected(World):
    """A world in which somebody sends P0 back to an offset."""

    def __init__(self, to: int = 5) -> None:
        super().__init__([P0, P1])
        self.to, self.heard = to, list[object]()
        self.ends = dict.fromkeys((P0, P1), 10)

    def record_it(self) -> None:
        """As `carry_out` commits it: settled there, under the next generation."""
        now = self.group[P0]
        begin, generation = self.to, now.generation + 1
        self.group[P0] = replace(now, begin=begin, end=begin, generation=generation)

    def take_over(self, sources: list[TopicPartition]) -> Started:
        """What is recorded, and nothing else, says where they go on."""
        assert sources == [P0]
        record = self.group[P0]
        state = self.settled(P0, self.to)
        state.record = self.group[P0] = record
        return Started([state])

    def decide(self, delay_ms: int, record: Callable[[], None] | None = None) -> PartitionsDecided:
        event = PartitionsDecided((P0,), record or self.record_it)
        self.at(delay_ms, lambda: self.put(event))
        return event


def test_a_partition_that_stopped_goes_on_where_a_person_said() -> None:
    world = Redirected()
    loop = world.loop(take_over_new=world.take_over)
    loop.states[P0].stop(ForeignHandsError("somebody committed 3"))
    event = world.decide(3_000)
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert event.done.result(0) is None
    assert loop.states[P0].stopped is None
    assert world.rows_of(P0) == [0] * 5 + [1] * 5
    assert world.rows_of(P1) == [1] * 10
    assert loop.states[P0].record.generation == 1


def test_what_was_loaded_is_loaded_again_under_the_next_generation() -> None:
    world = Redirected()
    loop = run(world, world.loop(take_over_new=world.take_over))
    event = world.decide(0)
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert event.done.result(0) is None
    assert world.rows_of(P0) == [1] * 5 + [2] * 5
    assert world.rows_of(P1) == [1] * 10


def test_nobody_decides_about_a_range_that_is_out_or_looked_for_or_let_go() -> None:
    world = Redirected()
    loop = world.loop(take_over_new=world.take_over)
    state = loop.states[P0]

    def refusal() -> str:
        event = PartitionsDecided((P0,), lambda: pytest.fail("it was recorded"))
        loop._redirecting.take(event)
        error = event.done.exception(0)
        assert isinstance(error, PartitionBusyError) and "Freeze" in error.hint
        return str(error)

    state.out = True
    assert refusal() == "a task of a[0][0, 0) may still insert"
    state.out, state.stage = False, Probing()
    assert "is being looked for" in refusal()
    state.stop(ForeignHandsError("somebody committed"))
    assert "is being looked for" in refusal(), "its probe has not ended"
    state.retiring = True
    assert "not this driver's" in refusal()


def test_what_a_probe_finds_after_a_stop_changes_nothing_but_that_it_has_ended() -> None:
    world = Redirected()
    loop = world.loop(take_over_new=world.take_over)
    state = loop.states[P0]
    state.become(ToProbe())
    state.become(Probing())
    state.stop(ForeignHandsError("somebody committed"))
    found = world._probed(state.block_range, world.spec, {})
    world.put(ProbeEnded((found,)))
    event = world.decide(500)
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert event.done.exception(0) is None
    assert world.rows_of(P0) == [0] * 5 + [1] * 5


def test_what_was_not_recorded_changes_nothing() -> None:
    def fail() -> None:
        raise TransientError("Kafka is away")

    world = Redirected()
    loop = run(world, world.loop(take_over_new=world.take_over))
    event = world.decide(0, fail)
    gone = world.decide(0)
    assert gone.done.cancel()
    world.at(5_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert str(event.done.exception(0)) == "Kafka is away"
    assert world.rows_of(P0) == [1] * 10 and loop.states[P0].settled == 10


def test_what_is_recorded_and_cannot_be_taken_over_stops() -> None:
    def fail(sources: list[TopicPartition]) -> Started:
        raise TransientError("the ledger cannot be read")

    world = Redirected()
    loop = run(world, world.loop(take_over_new=fail))
    event = world.decide(0)
    world.at(5_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert "could not be taken over after that: the ledger cannot be read" in str(
        event.done.exception(0)
    )
    stopped = loop.states[P0].stopped
    assert stopped is not None and "Start the driver again" in stopped.hint
    assert world.rows_of(P0) == [1] * 10


@pytest.mark.parametrize(
    "error",
    [
        OwnerChangedError("taken over"),
        StopRequestedError("nobody knows what is recorded"),
        ValueError("a bug"),
    ],
)
def test_what_ends_the_loop_is_told_to_who_asked(error: Exception) -> None:
    """Another owner; a stop while Kafka does not say what it has recorded; a bug. Who asked waits
    without an end otherwise, and nobody else can ask meanwhile."""

    def fail() -> None:
        raise error

    world = Redirected()
    loop = world.loop(take_over_new=world.take_over)
    event = world.decide(0, fail)
    with pytest.raises(type(error), match=str(error)):
        loop.run(None, 5.0)
    assert event.done.exception(0) is error


def test_a_take_over_that_may_have_recorded_something_ends_the_loop() -> None:
    def fail(sources: list[TopicPartition]) -> Started:
        raise StopRequestedError("nobody knows what is recorded")

    world = Redirected()
    loop = run(world, world.loop(take_over_new=fail))
    event = world.decide(0)
    with pytest.raises(StopRequestedError):
        loop.run(None, 5.0)
    assert isinstance(event.done.exception(0), StopRequestedError)


@pytest.mark.parametrize("taken", [P0, P1])
@pytest.mark.parametrize("is_stopped", [False, True])
def test_who_has_a_successor_that_it_does_not_know_of_fences_nobody(
    taken: TopicPartition, is_stopped: bool
) -> None:
    """Nothing comes to its topics, so it has recorded nothing since, and nothing has told it."""
    world = Redirected()
    loop = run(world, world.loop(take_over_new=world.take_over))
    if is_stopped:
        loop.states[P0].stop(ForeignHandsError("somebody committed 3"))
    world.group[taken] = replace(world.group[taken], owner="other")
    event = world.decide(0, lambda: pytest.fail("it was recorded"))
    with pytest.raises(OwnerChangedError, match="belongs to other"):
        loop.run(None, 5.0)
    assert isinstance(event.done.exception(0), OwnerChangedError)
