"""Where a new topic begins, and when another loader's group cannot be followed."""

from __future__ import annotations

from datetime import UTC, datetime

import confluent_kafka as ck
import pytest

from sluice.config import GroupStart
from sluice.core.ledger import CommittedOffset
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.core.records import Kind, Record, encode
from sluice.core.replay import Topic
from sluice.driver.beginning import Predecessor, StartRefusedError, ask_group, beginnings
from sluice.driver.stopped import Observed
from tests.support.kafka import Kafka, numbered

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def held(source: TopicPartition, begin: int, stable_end: int) -> Observed:
    """A partition that nobody loaded."""
    end = EpochOffset(stable_end, 0)
    return Observed(source, None, None, Topic.NEW, "topic-id", begin, end)


NEW = {ZERO: held(ZERO, 10, 100), ONE: held(ONE, 0, 50)}


def begin(
    start: GroupStart | str, kafka_log: object = None, **group: object
) -> dict[TopicPartition, int]:
    """Where NEW begins, behind a group that looks like this."""
    seen = Predecessor(**{"members": [], "found": {}, **group})  # type: ignore[arg-type]
    return beginnings(start, kafka_log, lambda name, sources: seen, NEW)  # type: ignore[arg-type]


def test_ends_of_the_log() -> None:
    assert begin("earliest") == {ZERO: 10, ONE: 0}
    assert begin("latest") == {ZERO: 100, ONE: 50}


def test_where_the_group_stands() -> None:
    found = {ZERO: CommittedOffset(10, None), ONE: CommittedOffset(50, "flink")}
    assert begin(GroupStart("old"), found=found) == {ZERO: 10, ONE: 50}


def test_a_partition_without_a_commit_is_refused_or_begins_at_the_earliest() -> None:
    found = {ZERO: CommittedOffset(42, None), ONE: None}
    with pytest.raises(StartRefusedError, match=r"committed no offset for orders\[1\]") as caught:
        begin(GroupStart("old"), found=found)
    assert 'start = "group:old,earliest"' in caught.value.hint
    assert begin(GroupStart("old", earliest=True), found=found) == {ZERO: 42, ONE: 0}


@pytest.mark.parametrize("offset", [9, 101])
def test_a_group_outside_of_the_log_is_refused(offset: int) -> None:
    found = {ZERO: CommittedOffset(offset, None), ONE: CommittedOffset(1, None)}
    with pytest.raises(StartRefusedError, match=rf"orders\[0\] at {offset}.*\[10, 100\)"):
        begin(GroupStart("old", earliest=True), found=found)


def test_a_group_that_still_loads_is_refused() -> None:
    found = {ZERO: CommittedOffset(42, None), ONE: CommittedOffset(1, None)}
    with pytest.raises(StartRefusedError, match="1 members that may still load: a at host"):
        begin(GroupStart("old"), members=["a at host"], found=found)
    with pytest.raises(StartRefusedError, match=r"a transaction .* is open for orders\[1\]"):
        begin(GroupStart("old"), unstable=frozenset([ONE]), found=found)


def test_another_pipeline_that_left_a_range_in_doubt_is_refused() -> None:
    record = Record(Kind.INTEND, 1, 1, 20, 30, "run-1", 0, "topic-id", "0" * 16, 1, 1_000)
    found = {
        ZERO: CommittedOffset(20, encode(record)),
        ONE: CommittedOffset(1, None),
    }
    with pytest.raises(StartRefusedError, match=r"in doubt for orders\[0\]"):
        begin(GroupStart("sluice.other.dc1"), found=found)


def test_many_partitions_are_not_all_named() -> None:
    sources = [TopicPartition("orders", number) for number in range(40)]
    new = {source: held(source, 0, 1) for source in sources}
    with pytest.raises(StartRefusedError, match=r"orders\[4\] and 35 more"):
        beginnings(GroupStart("x"), None, lambda name, sources: Predecessor([], {}), new)  # type: ignore[arg-type]


def test_a_moment_on_a_real_broker(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, numbered(5))
    sources = [TopicPartition(topic, number) for number in range(2)]
    new = {source: held(source, 0, 5 * (1 - source.partition)) for source in sources}
    asked = lambda name, sources: Predecessor([], {})  # noqa: E731
    past, future = datetime(2001, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    assert list(beginnings(past, kafka.log, asked, new).values()) == [0, 0]
    assert list(beginnings(future, kafka.log, asked, new).values()) == [5, 0]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_real_group_is_followed_once_it_has_stopped(kafka: Kafka, protocol: str) -> None:
    topic = kafka.topic(2)
    for partition in range(2):
        kafka.produce(topic, numbered(20), partition)
    group = f"old-{topic}"
    old = ck.Consumer(
        {
            "bootstrap.servers": kafka.brokers,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    old.subscribe([topic])
    kafka.until(lambda: bool(old.consume(1, 0.2)))
    kafka.until(lambda: len(old.assignment()) == 2)
    old.commit(offsets=[ck.TopicPartition(topic, 0, 7)], asynchronous=False)
    sources = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert len(ask_group(kafka.access(), group, sources).members) == 1
    old.close()
    seen = ask_group(kafka.access(), group, sources)
    assert list(seen.members) == [] and seen.unstable == frozenset()
    assert seen.found == {sources[0]: CommittedOffset(7, None), sources[1]: None}
    new = {source: held(source, 0, 20) for source in sources}
    begins = beginnings(GroupStart(group, True), kafka.log, lambda name, asked: seen, new)
    assert begins == {sources[0]: 7, sources[1]: 0}
