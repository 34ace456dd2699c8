"""Partitions that appear: the ledger is read for them beside the loop."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

import pytest

from sluice.core.errors import SluiceError, TransientError
from sluice.core.ledger import LedgerView
from sluice.core.ranges import TopicPartition
from sluice.driver.observing import NewPartitions, NewPartitionsRead
from sluice.driver.ports import ConfigurationRead
from sluice.driver.start import ReadAhead, Started
from sluice.spark.jobs import Inbox
from tests.driver.loop_world import World

KEPT, NEW, SECOND = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("a", 1)


class Wanted:
    """These topics are to be loaded."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)

    left_out: Mapping[str, SluiceError] = {}

    def is_named(self, topic: str) -> bool:
        return topic in self.topics

    def find(self, known: Collection[str]) -> tuple[list[str], dict[str, SluiceError]]:
        return sorted(self.topics.difference(known)), {}


def test_it_is_read_in_another_thread_and_taken_over_where_it_is_told() -> None:
    go, inbox, view = threading.Event(), Inbox(), LedgerView()
    taken: list[tuple[list[TopicPartition], ReadAhead]] = []

    def read(sources: list[TopicPartition]) -> ReadAhead:
        assert go.wait(10)
        return ReadAhead(dict.fromkeys(sources), view)

    def take_over(sources: list[TopicPartition], ahead: ReadAhead) -> Started:
        taken.append((sources, ahead))
        return Started(batch=7)

    asking = NewPartitions(read, take_over, inbox)
    try:
        asking.ask([KEPT, NEW])
        assert inbox.take(0.05) == []
        go.set()
        (event,) = inbox.take(10)
        assert isinstance(event, NewPartitionsRead) and event.sources == [KEPT, NEW]
        assert taken == [] and event.take_over([NEW]).batch == 7
        ((sources, ahead),) = taken
        assert sources == [NEW] and ahead.view is view
    finally:
        asking.close()


def test_what_the_reading_ends_on_is_raised_by_the_take_over() -> None:
    def read(sources: list[TopicPartition]) -> ReadAhead:
        raise TransientError("the ledger cannot be read")

    inbox = Inbox()
    asking = NewPartitions(read, lambda sources, ahead: Started(), inbox)
    try:
        asking.ask([NEW])
        (event,) = inbox.take(10)
        assert isinstance(event, NewPartitionsRead)
        with pytest.raises(TransientError, match="cannot be read"):
            event.take_over([NEW])
    finally:
        asking.close()


def test_others_are_loaded_meanwhile_and_nothing_is_asked_for_twice() -> None:
    world = World([KEPT])
    world.topic_finder, world.read_ms = Wanted("a", "b"), 20_000
    taken: list[list[TopicPartition]] = []

    def take_over(sources: list[TopicPartition]) -> Started:
        taken.append(sources)
        return Started([world.settled(source) for source in sources])

    loop = world.loop(take_over_new=take_over)
    world.ids[NEW.topic] = world.ids[KEPT.topic]
    world.ends.update({NEW: 5, SECOND: 0})
    world.at(0, loop.look_at_topics)
    world.at(1_000, lambda: world.ends.update({KEPT: 10}))
    world.at(5_000, loop.look_at_topics)
    seen: list[list[int]] = []
    world.at(10_000, lambda: seen.append(world.rows_of(KEPT)))
    world.at(40_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert seen == [[1] * 10]
    assert [sorted(sources) for sources in taken] == [[SECOND, NEW]]
    assert set(loop.states) == {KEPT, NEW, SECOND}


def test_a_topic_that_is_retired_before_it_is_read_is_not_taken_over() -> None:
    world = World([KEPT])
    finder = world.topic_finder = Wanted("a", "b")
    world.read_ms = 10_000
    loop = world.loop(take_over_new=lambda new: pytest.fail(f"took {new}"))
    world.ids[NEW.topic] = world.ids[KEPT.topic]
    world.ends[NEW] = 5
    world.at(0, loop.look_at_topics)

    def retire() -> None:
        finder.topics = {"a"}
        world.put(ConfigurationRead(1, world.spec, (), lambda topic: topic == "a", lambda: None))

    world.at(5_000, retire)
    world.at(60_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert set(loop.states) == {KEPT}


def test_what_cannot_be_read_now_is_told_of_and_read_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World([KEPT])

    def take_over(sources: list[TopicPartition]) -> Started:
        if "cannot be taken over yet" not in caplog.text:
            raise TransientError("the ledger cannot be read")
        return Started([world.settled(source) for source in sources])

    loop = world.loop(take_over_new=take_over)
    world.ends[SECOND] = 5
    world.at(90_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert "new partitions cannot be taken over yet: the ledger cannot be read" in caplog.text
    assert set(loop.states) == {KEPT, SECOND}
