"""Reading one partition of one of Kafka's or Sluice's own topics to its last stable offset, and on.

Committed messages only. What the ledger's and the offsets topic's readers share.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import confluent_kafka as ck

from sluice.kafka.clients import KafkaAccess, list_topics, make_admin, make_consumer
from sluice.kafka.errors import KafkaTerminalError, StalledError, kafka_error

_POLL_MESSAGES = 2000
_TIMEOUT_SECONDS = 15.0

#: Longer than a transaction that its producer left open lives (60 s, and the broker's check).
OPEN_SECONDS = 90.0

_GONE = (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError.OFFSET_OUT_OF_RANGE)


class LogBeginLostError(KafkaTerminalError):
    """Messages were removed before they were read."""

    hint = "Messages of this topic expire: read it more often, or give it a longer retention."


class TooMuchToReadError(KafkaTerminalError):
    """A topic of Sluice's own was not read to its end in the time that there was for it."""

    hint = "Ask for less, as of a later time; or use the command line, which reads all of it."


def refuse_late(where: str, until: float | None) -> None:
    """:raises TooMuchToReadError: the time is over."""
    if until is not None and time.monotonic() > until:
        raise TooMuchToReadError(f"{where} holds more than could be read in time")


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A committed message.

    :param value: None for a tombstone.
    :param timestamp_ms: the message's own timestamp.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class Tail:
    """Reads one partition from an offset on. Not thread-safe.

    :param begin: where to begin; None for the log's begin, or for the first message that was
        written since `since_ms`.
    :param own: further properties of the consumer.
    :raises SluiceError: the partition cannot be read.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        partition: int = 0,
        begin: int | None = None,
        since_ms: int | None = None,
        **own: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self._name = f"{topic}[{partition}]"
        self._where = ck.TopicPartition(topic, partition)
        self._consumer = make_consumer(access, **own)
        try:
            self.ask_end()
            if since_ms is not None:
                begin = offset_since(self._consumer, self._where, since_ms, self.stable_end)
        except BaseException:
            self._consumer.close()
            raise
        self.position = self.log_begin if begin is None else max(begin, self.log_begin)
        self._consumer.assign([ck.TopicPartition(topic, partition, self.position)])
        self._progress_at = time.monotonic()

    @property
    def caught_up(self) -> bool:
        """Whether everything below the last stable offset, as last asked for, was read."""
        return self.position >= self.stable_end

    def ask_end(self) -> int:
        """Ask for the last stable offset as it is now."""
        self.log_begin, self.stable_end = log_ends(self._consumer, self._where, self._name)
        return self.stable_end

    def poll(self, timeout_seconds: float) -> list[LogMessage]:
        """The next messages, in order; none if none came in time.

        :raises LogBeginLostError: messages vanished before they were read.
        :raises StalledError: messages below the last stable offset do not come.
        :raises SluiceError: Kafka answers with an error.
        """
        found: list[LogMessage] = []
        for message in self._consumer.consume(_POLL_MESSAGES, timeout_seconds):
            error = message.error()
            if error is None:
                found.append(
                    LogMessage(
                        message.offset(), message.timestamp()[1], message.key(), message.value()
                    )
                )
            elif error.code() in _GONE:
                raise LogBeginLostError(f"{self._name} at {self.position}: {error.str()}")
            elif error.code() != ck.KafkaError._PARTITION_EOF:
                raise kafka_error(f"reading {self._name} at {self.position}", error)
        before = self.position
        now = self._consumer.position([self._where])[0].offset
        self.position = max(self.position, now)
        if self.position > before or self.caught_up:
            self._progress_at = time.monotonic()
        elif time.monotonic() - self._progress_at > OPEN_SECONDS:
            self._progress_at = time.monotonic()
            raise StalledError(f"{self._name} cannot be read beyond offset {self.position}")
        return found

    def seek(self, offset: int) -> None:
        """Go on from this offset, or from the log's begin if that is later."""
        self.ask_end()
        self.position = max(offset, self.log_begin)
        self._progress_at = time.monotonic()
        self._consumer.assign([ck.TopicPartition(self.topic, self.partition, self.position)])

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def log_ends(consumer: ck.Consumer, where: ck.TopicPartition, what: str) -> tuple[int, int]:
    """Where a partition's log begins and ends, as far as the consumer may read.

    :raises SluiceError: Kafka does not tell; `what` is being read.
    """
    try:
        low, high = consumer.get_watermark_offsets(where, timeout=_TIMEOUT_SECONDS, cached=False)
    except ck.KafkaException as error:
        raise kafka_error(f"reading {what}", error) from None
    return low, high


def messages_below(
    consumer: ck.Consumer,
    where: ck.TopicPartition,
    end: int,
    what: str,
    patience_seconds: float = OPEN_SECONDS,
    until: float | None = None,
) -> Iterator[ck.Message]:
    """The messages of a partition from `where` up to an offset, in order.

    :param patience_seconds: how long nothing may come.
    :param until: reading is given up then, by `time.monotonic`.
    :raises StalledError: nothing comes any more.
    :raises TooMuchToReadError: it was not read to its end by then.
    :raises SluiceError: Kafka answers with an error.
    """
    consumer.assign([where])
    position, progress_at = where.offset, time.monotonic()
    while position < end:
        for message in consumer.consume(500, 0.1):
            if message.error() is not None:
                raise kafka_error(f"reading {what}", message.error())
            if message.offset() < end:
                yield message
        refuse_late(what, until)
        before = position
        position = max(position, consumer.position([where])[0].offset)
        if position > before:
            progress_at = time.monotonic()
        elif time.monotonic() - progress_at > patience_seconds:
            raise StalledError(
                f"{what} cannot be read beyond offset {position}; perhaps a transaction of another "
                "producer is open there"
            )


def offset_since(consumer: ck.Consumer, where: ck.TopicPartition, since_ms: int, end: int) -> int:
    """The first offset whose message is not older; `end` if there is none.

    :raises SluiceError: Kafka does not tell.
    """
    wanted = ck.TopicPartition(where.topic, where.partition, max(0, since_ms))
    try:
        (found,) = consumer.offsets_for_times([wanted], timeout=_TIMEOUT_SECONDS)
    except ck.KafkaException as error:
        what = f"asking for an offset of {where.topic}[{where.partition}] by time"
        raise kafka_error(what, error) from None
    return int(found.offset) if found.offset >= 0 else end


def partition_count(access: KafkaAccess, topic: str) -> int:
    """How many partitions a topic has; 0 if there is no such topic.

    :raises SluiceError: Kafka does not tell.
    """
    what = f"asking {access.brokers} for topic {topic}"
    found = list_topics(make_admin(access), what, _TIMEOUT_SECONDS, topic).topics.get(topic)
    if found is None:
        return 0
    if found.error is not None:
        if found.error.code() == ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return 0
        raise kafka_error(what, found.error)
    return len(found.partitions)
