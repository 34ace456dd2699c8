"""What a consumer group holds: committed offsets with their metadata."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import confluent_kafka as ck

from sluice.core.ledger import CommittedOffset, CommittedOffsets
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, InvalidRecordError, Record, decode
from sluice.kafka.clients import KafkaAccess, make_consumer, make_unstable_reader
from sluice.kafka.errors import KafkaUnavailableError, kafka_error

_PEEK_TIMEOUT_SECONDS = 10.0
_SEARCH_TIMEOUT_SECONDS = 0.3
_SEARCH_SECONDS_MAX = 5.0

#: In the place of metadata that another program committed, and that the client cannot read.
UNREADABLE = "metadata of another program"


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A look at a group from outside.

    :param found: the last committed offset of each partition, None if there is none.
    :param unstable: partitions in an open transaction; what `found` says of them may be
        replaced by it, so it is good for showing only (H5).
    """

    found: CommittedOffsets
    unstable: frozenset[TopicPartition]


def record_in(found: CommittedOffset | None) -> Record | None:
    """The record that was committed; None if nothing was, or something else."""
    try:
        return None if found is None else decode(found.offset, found.metadata)
    except InvalidRecordError:
        return None


def owner_in(found: CommittedOffset | None) -> str:
    """Who may write the next record: the recorded owner, or nobody yet (genesis)."""
    record = record_in(found)
    return GENESIS if record is None else record.owner


def shown(found: CommittedOffset | None) -> str:
    """A committed offset in a sentence."""
    return "nothing" if found is None else f"offset {found.offset} with {found.metadata!r}"


def ask(
    reader: ck.Consumer, sources: Iterable[TopicPartition], timeout_seconds: float
) -> CommittedOffsets:
    """Committed offsets through a consumer of the group, at its isolation level.

    :raises KafkaUnavailableError: no answer in time, for a read_committed consumer also
        while a transaction on one of the partitions is open.
    """
    try:
        answer = reader.committed(
            [ck.TopicPartition(s.topic, s.partition) for s in sources], timeout=timeout_seconds
        )
    except ck.KafkaException as error:
        raise kafka_error("reading committed offsets", error) from None
    found = _found(answer)
    for item in answer:
        if item.error is not None:
            raise kafka_error(f"committed offset of {item.topic}", item.error)
    return found


def look(
    access: KafkaAccess,
    group: str,
    sources: Sequence[TopicPartition],
    patience_seconds: float,
) -> GroupOffsets:
    """Committed offsets from outside: fences nobody, and never waits long for a transaction.

    Through consumers, not through the admin client: librdkafka 2.16 crashes when the group's
    coordinator moves while an admin client lists offsets [measured].

    :param patience_seconds: how long an open transaction may take to end.
    :raises KafkaUnavailableError: no answer in time.
    """
    if not sources:
        return GroupOffsets({}, frozenset())
    reader = make_consumer(access, group, retry_backoff_ms=10)
    try:
        try:
            return GroupOffsets(_patiently(reader, sources, patience_seconds), frozenset())
        except KafkaUnavailableError:
            pass
        peek = make_unstable_reader(access, group)
        try:
            found = _patiently(peek, sources, _PEEK_TIMEOUT_SECONDS)
        finally:
            peek.close()
        deadline = time.monotonic() + _SEARCH_SECONDS_MAX
        return GroupOffsets(found, frozenset(_open(reader, list(sources), deadline)))
    finally:
        reader.close()


def _patiently(
    reader: ck.Consumer, sources: Sequence[TopicPartition], seconds: float
) -> CommittedOffsets:
    """Ask again where the answer is an error, as from a coordinator that starts or moves."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask(reader, sources, max(0.1, deadline - time.monotonic()))
        except KafkaUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _open(
    reader: ck.Consumer, sources: list[TopicPartition], deadline: float
) -> list[TopicPartition]:
    """Partitions in an open transaction, by halves; those not asked in time count as open."""
    if time.monotonic() > deadline:
        return sources
    try:
        ask(reader, sources, _SEARCH_TIMEOUT_SECONDS)
    except KafkaUnavailableError:
        if len(sources) == 1:
            return sources
        middle = len(sources) // 2
        left, right = sources[:middle], sources[middle:]
        return _open(reader, left, deadline) + _open(reader, right, deadline)
    return []


def _found(answer: Iterable[ck.TopicPartition]) -> CommittedOffsets:
    return {
        TopicPartition(item.topic, item.partition): (
            None if item.offset < 0 else CommittedOffset(item.offset, _metadata(item))
        )
        for item in answer
    }


def _metadata(item: ck.TopicPartition) -> str | None:
    """What was committed with an offset.

    The Python client reads it up to a zero byte. It commits one itself, as part of what it commits;
    behind what others commit it reads on in its memory, where no text may be [measured].
    """
    try:
        return item.metadata or None
    except UnicodeDecodeError:
        return UNREADABLE
