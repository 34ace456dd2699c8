"""A few messages of a topic, from all over it. Nothing is joined, committed or written."""

from __future__ import annotations

import difflib
import logging
import time
from dataclasses import dataclass

from sluice.core.errors import ConfigurationError, TerminalError
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.cluster import Cluster
from sluice.kafka.tail import Tail, partition_count

_logger = logging.getLogger("sluice.init")

#: Partitions that are looked into; of more, so many evenly.
PARTITIONS_MAX = 24
_SPOTS = 3
_SECONDS_MAX = 45.0
_SPOT_SECONDS_MAX = 8.0
_BYTES_MAX = 64 * 1024**2
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of a topic.

    :param values: of messages that have one; tombstones are left out and counted.
    :param partitions: of the topic.
    :param messages: offsets that the partitions looked into hold, holes included.
    """

    topic: str
    values: tuple[bytes, ...]
    partitions: int
    messages: int
    tombstones: int


def take_sample(access: KafkaAccess, topic: str, count: int) -> Sample:
    """About `count` messages: from the beginning, the middle and the end of each partition.

    :raises ConfigurationError: there is no such topic.
    :raises TerminalError: it holds no message with a value.
    :raises SluiceError: Kafka does not answer.
    """
    cluster = Cluster(access)
    if topic not in cluster.topics:
        near = difflib.get_close_matches(topic, sorted(cluster.topics), n=1)
        raise ConfigurationError(
            f"topic {topic} does not exist at {access.brokers}, or its user may not see it",
            f"Did you mean {near[0]}?" if near else "Check the name and the brokers.",
        )
    partitions = partition_count(access, topic)
    step = max(1, -(-partitions // PARTITIONS_MAX))
    chosen = range(0, partitions, step)
    at_each = max(1, -(-count // (_SPOTS * len(chosen))))
    until = time.monotonic() + _SECONDS_MAX
    values: list[bytes] = []
    messages = tombstones = 0
    for partition in chosen:
        tail = Tail(access, topic, partition)
        try:
            messages += tail.stable_end - tail.log_begin
            for begin, end in spots(tail.log_begin, tail.stable_end, at_each):
                found = _read(tail, begin, end, until, _BYTES_MAX - sum(map(len, values)))
                values += [value for value in found if value is not None]
                tombstones += found.count(None)
        finally:
            tail.close()
    if not values:
        what = f"only {tombstones} tombstones" if tombstones else "no message"
        raise TerminalError(
            f"topic {topic} holds {what}: there is nothing to look at",
            "Produce some messages first; `sluice init` writes an example to edit by hand.",
        )
    return Sample(topic, tuple(values), partitions, messages, tombstones)


def spots(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    """Where to read `count` messages each: half-open, in order, apart from each other."""
    if end - begin <= _SPOTS * count:
        return [(begin, end)] if end > begin else []
    middle = (begin + end - count) // 2
    return [(begin, begin + count), (middle, middle + count), (end - count, end)]


def _read(tail: Tail, begin: int, end: int, until: float, bytes_max: int) -> list[bytes | None]:
    """Values between two offsets; fewer if time or bytes run out."""
    tail.seek(begin)
    until = min(until, time.monotonic() + _SPOT_SECONDS_MAX)
    found: list[bytes | None] = []
    size = 0
    while tail.position < end and size < bytes_max:
        if time.monotonic() > until:
            _logger.warning("%s[%d]: not all was read in time", tail.topic, tail.partition)
            break
        for message in tail.poll(_POLL_SECONDS):
            if begin <= message.offset < end and size < bytes_max:
                found.append(message.value)
                size += len(message.value or b"")
    return found
