"""A topic of ten messages, which whoever logs in reads."""

from __future__ import annotations

from contextlib import closing

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import UnreadRangeError
from sluice.kafka.reader import Wanted
from sluice.kafka.readers import make_reader
from tests.support.kafka import make_topic

VALUES = [b"%d" % number for number in range(10)]


def fill(brokers: str, topic: str) -> None:
    """Make the topic, with its messages.

    :param brokers: a listener that wants no login.
    """
    admin = AdminClient({"bootstrap.servers": brokers})
    make_topic(admin, NewTopic(topic, 1, 1))
    producer = ck.Producer({"bootstrap.servers": brokers})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def all_of(topic: str) -> list[Wanted]:
    """Its range."""
    return [Wanted(Range(TopicPartition(topic, 0), 0, len(VALUES)))]


def read(access: KafkaAccess, topic: str) -> list[bytes]:
    """Its messages.

    :raises SluiceError: why they cannot be read.
    """
    values: list[bytes] = []
    with closing(make_reader(access)) as reader:
        try:
            reader.read_ranges(all_of(topic), 1 << 30, lambda found, _: values.extend(found))
        except UnreadRangeError as unread:
            raise unread.reason from None
    return values
