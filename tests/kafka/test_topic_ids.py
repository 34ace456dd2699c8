"""Whether what was read is of the topic that was meant (H12): both readers, on a real log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import cast

import pytest

from sluice.core.ranges import Range, TopicPartition
from sluice.core.topics import NO_TOPIC_ID, short_topic_id
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError, RecreatedTopicError, UnreadRangeError
from sluice.kafka.reader import Wanted
from sluice.kafka.readers import Reader, make_reader, require_topics
from sluice.kafka.wire import messages
from sluice.kafka.wire.messages import BrokenAnswerError, Cursor
from sluice.kafka.wire.reader import WireReader
from tests.kafka.scripted_broker import ScriptedBroker, scripted_broker
from tests.kafka.wire_log import SOURCE, MemoryLog
from tests.support.kafka import Kafka, numbered


@pytest.fixture(params=["librdkafka", "native"])
def reader(kafka: Kafka, request: pytest.FixtureRequest) -> Iterator[Reader]:
    with closing(make_reader(replace(kafka.access(), reader=request.param))) as made:
        yield made


def read(reader: Reader, source: TopicPartition, end: int) -> list[bytes]:
    """What a reader delivers of the first messages of a partition."""
    found: list[bytes] = []
    wanted = [Wanted(Range(source, 0, end))]
    reader.read_ranges(wanted, 1 << 30, lambda values, _: found.extend(values))
    return found


def id_of(kafka: Kafka, source: TopicPartition) -> str:
    return kafka.log.topics([source.topic])[source.topic][0]


def test_the_ids_of_many_topics_are_what_the_broker_says(kafka: Kafka, reader: Reader) -> None:
    """Some have several partitions, which stand behind the id of each."""
    topics = [kafka.topic(count) for count in (1, 200, 3, 1, 130)]
    sources = [TopicPartition(topic, 0) for topic in topics] + [TopicPartition(topics[2], 2)]
    ids = {topic: identity for topic, (identity, _) in kafka.log.topics(topics).items()}
    assert reader.topic_ids(sources) == {source: ids[source.topic] for source in sources}
    require_topics(reader, [(source, ids[source.topic]) for source in sources])
    with pytest.raises(UnreadRangeError) as unread:
        require_topics(reader, [(sources[0], ids[topics[0]]), (sources[1], ids[topics[0]])])
    assert unread.value.number == 1


def test_a_topic_that_was_made_anew_has_other_messages_at_the_offsets(
    kafka: Kafka, reader: Reader
) -> None:
    """No offset tells, nor does the epoch of its leader: nothing but its id does."""
    source = TopicPartition(kafka.topic(), 0)
    kafka.produce(source.topic, numbered(5))
    before = id_of(kafka, source)
    assert read(reader, source, 5) == numbered(5)
    require_topics(reader, [(source, before)])
    kafka.delete_topic(source.topic)
    kafka.topic(name=source.topic)
    kafka.produce(source.topic, numbered(9, 100))
    kafka.until(lambda: read(reader, source, 5) == numbered(5, 100))
    now = id_of(kafka, source)
    with pytest.raises(UnreadRangeError) as unread:
        require_topics(reader, [(source, before)])
    assert isinstance(unread.value.reason, RecreatedTopicError)
    assert f"its id is {now} now" in str(unread.value.reason)
    require_topics(reader, [(source, now)])


def test_a_broker_that_lags_behind_is_asked_again(
    kafka: Kafka, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any may answer librdkafka, also one that has not heard yet that the topic is another one."""
    source = TopicPartition(kafka.topic(), 0)
    behind = [reader.topic_ids([source])]
    kafka.delete_topic(source.topic)
    kafka.topic(name=source.topic)
    kafka.produce(source.topic, numbered(5))
    kafka.until(lambda: id_of(kafka, source) != behind[0][source])
    ask = reader.topic_ids
    monkeypatch.setattr(reader, "topic_ids", lambda asked: behind.pop() if behind else ask(asked))
    recorded = [(source, id_of(kafka, source))]
    with pytest.raises(UnreadRangeError, match="do not agree on its topic's id") as unread:
        require_topics(reader, recorded)
    # Nobody knows whether it was the first answer or the second one: the range is read again.
    assert isinstance(unread.value.reason, KafkaUnavailableError) and not behind
    require_topics(reader, recorded)


def test_a_second_broker_that_knows_of_no_topic_yet_stops_nothing() -> None:
    """It has heard that the topic of before is gone, and not that it was created again."""
    source = TopicPartition("t", 0)
    answers = [{source: "before"}, {}]

    class Asked:
        def topic_ids(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
            return answers.pop(0)

    with pytest.raises(UnreadRangeError, match="do not agree on its topic's id") as unread:
        require_topics(cast(Reader, Asked()), [(source, "now")])
    assert isinstance(unread.value.reason, KafkaUnavailableError)


def test_what_was_fetched_of_the_topic_of_before_is_not_delivered(kafka: Kafka) -> None:
    """A consumer that is kept holds messages of a topic whose id nobody can compare any more."""
    source = TopicPartition(kafka.topic(), 0)
    kafka.produce(source.topic, numbered(9))
    access = replace(kafka.access(), reader="librdkafka")
    found: list[bytes] = []
    with closing(make_reader(access)) as kept, closing(make_reader(access)) as fresh:

        def go_on(begin: int, end: int) -> None:
            wanted = Wanted(Range(source, begin, end), epoch=0, topic_id=id_of(kafka, source))
            kept.read_ranges([wanted], 1 << 30, lambda values, _: found.extend(values))

        go_on(0, 3)
        kafka.delete_topic(source.topic)
        kafka.topic(name=source.topic)
        kafka.produce(source.topic, numbered(9, 100))
        kafka.until(lambda: read(fresh, source, 5) == numbered(5, 100))
        go_on(3, 6)
    assert found == numbered(3) + numbered(3, 103)


def test_of_a_topic_that_is_gone_nobody_tells(kafka: Kafka, reader: Reader) -> None:
    """It is no other topic yet, so what follows is not said here: the driver looks for it."""
    source = TopicPartition(kafka.topic(), 0)
    kafka.produce(source.topic, numbered(5))
    before = id_of(kafka, source)
    read(reader, source, 5)
    kafka.delete_topic(source.topic)
    with pytest.raises(UnreadRangeError) as unread:
        require_topics(reader, [(source, before)])
    assert isinstance(unread.value.reason, KafkaUnavailableError)


def test_brokers_that_have_no_ids_say_the_same_of_all_topics() -> None:
    """As librdkafka does, so that what the driver recorded is what its workers find."""
    with scripted_broker(ScriptedBroker(MemoryLog([]))) as broker:
        access = KafkaAccess("dc1", f"localhost:{broker.port}")
        with closing(WireReader(access)) as reader:
            assert reader.topic_ids([SOURCE]) == {SOURCE: short_topic_id(0, 0)}


def test_a_leader_that_does_not_tell_is_asked_again_over_another_connection() -> None:
    broker = ScriptedBroker(MemoryLog([]))
    broker.versions[messages.METADATA] = (0, messages.METADATA_WITH_IDS)
    closed = False

    def metadata(body: bytes) -> bytes | None:
        nonlocal closed
        if body[0] != 0 or body[:2] == b"\0\0":
            return broker.metadata(body)  # of leaders
        closed = not closed
        return None if closed else b"\0" * 3

    broker.answers[messages.METADATA] = metadata
    with scripted_broker(broker):
        access = KafkaAccess("dc1", f"localhost:{broker.port}")
        with closing(WireReader(access)) as reader:
            for kind in (KafkaUnavailableError, BrokenAnswerError):
                with pytest.raises(UnreadRangeError) as unread:
                    require_topics(reader, [(SOURCE, "topicid")])
                assert isinstance(unread.value.reason, kind)
    assert broker.connections == 3  # the first one was asked who leads


def test_what_is_no_length_is_no_endless_answer() -> None:
    with pytest.raises(BrokenAnswerError, match="a length that is none"):
        Cursor(memoryview(b"\xff" * 20)).varint()
    cursor = Cursor(memoryview(b"\x96\x01\x00\x02\x07\x01x\x05\x00"))
    assert (cursor.varint(), cursor.length()) == (150, 0)
    cursor.skip_tags()
    assert cursor.at == 9


def test_a_topic_that_has_come_to_an_id_is_the_same_one(kafka: Kafka, reader: Reader) -> None:
    """It was recorded when its brokers gave none."""
    require_topics(reader, [(TopicPartition(kafka.topic(), 0), NO_TOPIC_ID)])
