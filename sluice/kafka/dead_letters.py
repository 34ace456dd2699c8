"""Dead letters: the topic's messages, written in the transaction that settles."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import confluent_kafka as ck

from sluice import __version__
from sluice.core.receipts import DeadLetter
from sluice.kafka.clients import KafkaAccess, make_consumer
from sluice.kafka.errors import StalledError, kafka_error

_READER_GROUP = "sluice.dead-letter-reader"
_STALL_SECONDS = 30.0
_OWN_HEADER = "sluice."
_ORIGINAL_HEADER = "sluice.header."

#: Room for the headers that we add and for the record batch around a message.
_OVERHEAD_BYTES = 4096
_ERROR_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Envelope:
    """A dead letter as a Kafka message."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def bytes(self) -> int:
        """Size of key, value and headers."""
        return (
            len(self.key or b"")
            + len(self.value or b"")
            + sum(len(name) + len(value or b"") for name, value in self.headers)
        )


def wrap(letter: DeadLetter, message_bytes_max: int) -> Envelope:
    """Key and value as they were; origin and reason in headers.

    What the topic does not take is cut (G): first the payload, then the message's own
    headers, then the key, each of which `sluice.truncated` names. The origin always stays,
    and with it the way to the whole message.

    :param message_bytes_max: max.message.bytes of the dead-letter topic.
    """
    room = message_bytes_max - _OVERHEAD_BYTES
    cut: list[str] = ["value"] if letter.truncated else []
    key, value = letter.key, letter.value
    original = [(f"{_ORIGINAL_HEADER}{name}", content) for name, content in letter.headers]
    original_bytes = sum(len(name) + len(content or b"") + 16 for name, content in original)
    if key is not None and len(key) > room // 2:
        key, cut = key[: room // 4], [*cut, "key"]
    room -= len(key or b"")
    if original_bytes > room // 2:
        original, original_bytes, cut = [], 0, [*cut, "headers"]
    room -= original_bytes
    if value is not None and len(value) > room:
        value, cut = value[:room], [*cut, "value"]
    error = letter.error.encode(errors="replace")[:_ERROR_BYTES_MAX]
    headers: list[tuple[str, bytes | None]] = [
        ("sluice.reason", letter.reason.encode()),
        ("sluice.error", error),
        ("sluice.topic", letter.topic.encode()),
        ("sluice.partition", str(letter.partition).encode()),
        ("sluice.offset", str(letter.offset).encode()),
        ("sluice.timestamp", b"" if letter.timestamp_ms is None else b"%d" % letter.timestamp_ms),
        ("sluice.table", letter.table.encode()),
        ("sluice.column", letter.column.encode()),
        ("sluice.truncated", ",".join(cut).encode()),
        ("sluice.version", __version__.encode()),
    ]
    return Envelope(key, value, headers + original)


def unwrap(message: ck.Message) -> DeadLetter:
    """Read a dead letter back."""
    own = {
        name: content or b""
        for name, content in message.headers() or ()
        if name.startswith(_OWN_HEADER) and not name.startswith(_ORIGINAL_HEADER)
    }
    timestamp = own.get("sluice.timestamp", b"")
    return DeadLetter(
        topic=own["sluice.topic"].decode(),
        partition=int(own["sluice.partition"]),
        offset=int(own["sluice.offset"]),
        timestamp_ms=int(timestamp) if timestamp else None,
        key=message.key(),
        value=message.value(),
        headers=tuple(
            (name.removeprefix(_ORIGINAL_HEADER), content)
            for name, content in message.headers() or ()
            if name.startswith(_ORIGINAL_HEADER)
        ),
        reason=own["sluice.reason"].decode(),
        error=own.get("sluice.error", b"").decode(errors="replace"),
        table=own.get("sluice.table", b"").decode(),
        column=own.get("sluice.column", b"").decode(),
        truncated=own.get("sluice.truncated", b"") != b"",
    )


def read_dead_letters(access: KafkaAccess, topic: str) -> Iterator[DeadLetter]:
    """All committed dead letters up to the topic's stable end, oldest first.

    :raises StalledError: the topic exists but cannot be read to its end.
    """
    consumer = make_consumer(access, _READER_GROUP)
    try:
        metadata = consumer.list_topics(topic, timeout=15).topics[topic]
        if metadata.error is not None:
            raise kafka_error(f"reading dead letters {topic}", metadata.error)
        for partition in sorted(metadata.partitions):
            yield from _read_partition(consumer, topic, partition)
    except ck.KafkaException as error:
        raise kafka_error(f"reading dead letters {topic}", error) from None
    finally:
        consumer.close()


def _read_partition(consumer: ck.Consumer, topic: str, partition: int) -> Iterator[DeadLetter]:
    where = ck.TopicPartition(topic, partition)
    position, end = consumer.get_watermark_offsets(where, timeout=15, cached=False)
    consumer.assign([ck.TopicPartition(topic, partition, position)])
    progress_at = time.monotonic()
    while position < end:
        for message in consumer.consume(500, 0.1):
            if message.error() is not None:
                raise kafka_error(f"reading dead letters {topic}", message.error())
            if message.offset() < end:
                yield unwrap(message)
        before = position
        position = max(position, consumer.position([where])[0].offset)
        if position > before:
            progress_at = time.monotonic()
        elif time.monotonic() - progress_at > _STALL_SECONDS:
            raise StalledError(f"dead letters {topic}[{partition}] stall at offset {position}")
