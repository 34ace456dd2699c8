"""Reading exactly one range (H20). Runs in Spark's workers.

A range is done when `position() >= end`, checked after every poll: the last message may
be a control record, part of an aborted transaction, or compacted away, so seeing the
last offset is no criterion.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import confluent_kafka as ck

from sluice.core.ranges import EPOCH_UNKNOWN, Range, TopicPartition
from sluice.core.receipts import DeadLetter, DeadLetterReason
from sluice.kafka.clients import KafkaAccess, make_consumer
from sluice.kafka.errors import RangeVanishedError, StalledError, kafka_error
from sluice.kafka.originals import Originals

#: Messages in one poll: what a poll brings stays in the processor's cache; 5,000 cost a
#: quarter more [measured].
POLL_MESSAGES = 500
#: What a poll may bring in bytes, by the size of the messages before it: the poll is held
#: three times over (client, Python values, joined text) and large pieces fragment the heap.
POLL_BYTES = 512 * 1024
#: The first poll of a partition, when nothing is known of its messages.
FIRST_POLL_MESSAGES = 100
POLL_TIMEOUT_SECONDS = 0.1

#: Without progress for so long, the log's ends are asked again.
STALL_SECONDS = 15.0

#: Consumers that a worker keeps; each holds up to 4 MiB of prefetched messages.
CONSUMERS_MAX = 16

_READER_GROUP = "sluice.range-reader"  # librdkafka wants a name; nothing joins or commits

_TUNING: dict[str, str | int | bool] = {
    # Short queues, refilled at once: what was prefetched beyond a range is thrown away
    # when another worker takes the next one. The default backoff of one second would let
    # a consumer with short queues stand still.
    "queued_min_messages": 20_000,
    "queued_max_messages_kbytes": 4_096,
    "fetch_queue_backoff_ms": 1,
    "check_crcs": False,
    "statistics_interval_ms": 0,
}

#: What one fetch brings at most, before decompression. Large messages may shrink much: of
#: text that shrinks to a fiftieth, 1 MiB was 80 MB in the worker. Small fetches for all would
#: cost the broker as much again for each row.
FETCH_BYTES = 1024 * 1024
FETCH_BYTES_OF_LARGE = 256 * 1024
#: Messages are large when fewer than this make a poll, so above 8 KiB on average.
LARGE_POLL_MESSAGES = 64

#: Called with the values and offsets of one poll, the offsets as `Wanted` says; no value is None.
#: Where the offsets have no holes they are a `range`.
Deliver = Callable[[list[bytes], Sequence[int]], None]
#: A message's key, headers and timestamp in milliseconds, if it has one.
Seen = tuple[bytes | None, Sequence[tuple[str, bytes | None]], int | None]
#: Called before the same messages are delivered, for whom their values do not suffice.
Look = Callable[[list[Seen]], None]

# Called once for each message: a method looked up once costs half of `message.method()`.
_error, _offset, _key, _value = (
    ck.Message.error,
    ck.Message.offset,
    ck.Message.key,
    ck.Message.value,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A range that is to be read.

    :param epoch: of the leader that vouched for the range; see `require_epoch`.
    :param base: is added to the offsets of its messages when they are delivered.
    """

    block_range: Range
    epoch: int = EPOCH_UNKNOWN
    base: int = 0


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a range held.

    :param messages: all messages, tombstones included.
    :param bytes: of keys and values.
    :param skipped: tombstones.
    :param heavy_at: None, or the end at which the range would still be within the limit.
    """

    messages: int
    bytes: int
    skipped: int
    heavy_at: int | None = None


class RangeReader:
    """Reads ranges with consumers that are kept: a range that continues the last one of
    its partition finds its messages prefetched. Not thread-safe."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._consumers: OrderedDict[TopicPartition, tuple[ck.Consumer, int]] = OrderedDict()
        self._polls: dict[TopicPartition, int] = {}
        #: Of the last range that was read, if its topic had bad messages before.
        self._originals: tuple[Range | None, Originals | None] = None, None
        self._had_bad: set[str] = set()

    def read(
        self,
        block_range: Range,
        bytes_max: int,
        deliver: Deliver,
        look: Look | None = None,
    ) -> ReadResult:
        """As `read_ranges`, of one."""
        return self.read_ranges([Wanted(block_range)], bytes_max, deliver, look)[0]

    def read_ranges(
        self, wanted: Sequence[Wanted], bytes_max: int, deliver: Deliver, look: Look | None = None
    ) -> tuple[ReadResult, ...]:
        """Deliver every message of the ranges: range by range, and in offset order.

        Stops early when all together are heavier than `bytes_max`, and the last result says
        where; one message is always allowed (R12). The verdict is a function of the ranges alone.

        :param wanted: at most one range of each partition.
        :raises RangeVanishedError: offsets of a range are gone.
        :raises StalledError: no progress although the offsets exist.
        """
        results: list[ReadResult] = []
        for one in wanted:
            results.append(self._read_one(one, bytes_max, results, deliver, look))
            if results[-1].heavy_at is not None:
                break
        return tuple(results)

    def _read_one(
        self,
        wanted: Wanted,
        bytes_max: int,
        earlier: Sequence[ReadResult],
        deliver: Deliver,
        look: Look | None,
    ) -> ReadResult:
        block_range = wanted.block_range
        originals = Originals() if block_range.source.topic in self._had_bad else None
        self._originals = block_range, originals
        self._had_bad.discard(block_range.source.topic)
        poll = polled_before = self._polls.get(block_range.source, FIRST_POLL_MESSAGES)
        consumer = self._consumer_at(block_range.source, block_range.begin, _fetch_bytes(poll))
        try:
            result, position, poll = _read(
                consumer, wanted, bytes_max, earlier, deliver, look, originals, poll
            )
        except ck.KafkaException as error:
            consumer.close()
            raise kafka_error(f"reading {block_range}", error) from None
        except BaseException:
            consumer.close()
            raise
        self._polls[block_range.source] = poll
        if result.heavy_at is None and _fetch_bytes(poll) == _fetch_bytes(polled_before):
            self._keep(block_range.source, consumer, position)
        else:
            consumer.close()
        return result

    def letters(
        self,
        block_range: Range,
        wanted: Mapping[int, Sequence[DeadLetterReason]],
        values: Mapping[int, bytes],
        bytes_max: int,
    ) -> tuple[DeadLetter, ...]:
        """As `read_originals`, without reading if all was kept when the range was read.

        :param values: of these messages, as far as they are at hand.
        """
        self._had_bad.add(block_range.source.topic)
        (kept_range, originals), self._originals = self._originals, (None, None)
        size = sum(len(values.get(offset, b"")) * len(wanted[offset]) for offset in wanted)
        if originals is not None and kept_range == block_range and size <= bytes_max:
            letters = originals.letters(block_range.source, wanted, values)
            if letters is not None:
                return letters
        return read_originals(self._access, block_range, wanted, bytes_max)

    def close(self) -> None:
        """Close every consumer."""
        while self._consumers:
            self._consumers.popitem()[1][0].close()

    def _consumer_at(self, source: TopicPartition, begin: int, fetch_bytes: int) -> ck.Consumer:
        consumer, position = self._consumers.pop(source, (None, -1))
        if consumer is not None and position == begin:
            return consumer
        if consumer is None:
            consumer = make_consumer(
                self._access, _READER_GROUP, max_partition_fetch_bytes=fetch_bytes, **_TUNING
            )
        consumer.assign([ck.TopicPartition(source.topic, source.partition, begin)])
        return consumer

    def _keep(self, source: TopicPartition, consumer: ck.Consumer, position: int) -> None:
        self._consumers[source] = (consumer, position)
        while len(self._consumers) > CONSUMERS_MAX:
            self._consumers.popitem(last=False)[1][0].close()


def _read(
    consumer: ck.Consumer,
    wanted: Wanted,
    bytes_max: int,
    earlier: Sequence[ReadResult],
    deliver: Deliver,
    look: Look | None,
    originals: Originals | None,
    poll: int,
) -> tuple[ReadResult, int, int]:
    """The result, the consumer's position, and the messages of the next poll (`poll`: first).

    :param earlier: of the ranges before it, which count for `bytes_max`.
    """
    block_range, epoch, base = wanted.block_range, wanted.epoch, wanted.base
    source, end = block_range.source, block_range.end
    bytes_max -= sum(result.bytes for result in earlier)
    is_first = not any(result.messages for result in earlier)
    where = [ck.TopicPartition(source.topic, source.partition)]
    messages_seen = bytes_seen = skipped = 0
    position = block_range.begin
    progress_at = time.monotonic()
    while position < end:
        # What waits in the client's short queue, or the first that comes: a poll that waits
        # for its full number would hold 25 MB when messages of 50 KB follow small ones.
        batch = consumer.consume(min(poll, end - position), 0.0)
        batch = batch or consumer.consume(1, POLL_TIMEOUT_SECONDS)
        if any(map(_error, batch)):  # never compared: a KafkaError raises when it meets None
            batch = _without_errors(block_range, batch)
        offsets = _offsets(batch)
        if offsets and offsets[-1] >= end:
            del batch[bisect_left(offsets, end) :]
            offsets = offsets[: len(batch)]
            # A message at or beyond the end proves that nothing below it is to come; but
            # the consumer has swallowed it, so it cannot simply be continued.
            position = end
            consumer.seek(ck.TopicPartition(source.topic, source.partition, end))
        if batch and epoch != EPOCH_UNKNOWN:
            require_epoch(block_range, epoch, batch[-1].leader_epoch())  # the highest of them
        values: list[bytes] = list(map(_value, batch))
        keys = list(map(_key, batch)) if any(map(_key, batch)) else ()
        tombstones = () if all(values) else [i for i, v in enumerate(values) if v is None]
        for index in tombstones:
            values[index] = b""
        total = sum(map(len, values)) + sum(map(len, filter(None, keys)))
        if batch:
            poll = min(POLL_MESSAGES, 1 + POLL_BYTES * len(batch) // (total + 1))
        if bytes_seen + total > bytes_max:
            sizes = [len(v) + len(k or b"") for v, k in zip_longest(values, keys)]
            crossed = _crossing(offsets, sizes, bytes_seen, bytes_max, is_first)
            if crossed is not None:
                return ReadResult(messages_seen, bytes_seen, skipped, heavy_at=crossed), -1, poll
        is_first = is_first and not batch
        messages_seen += len(batch)
        bytes_seen += total
        if tombstones:
            skipped += len(tombstones)
            kept = sorted(set(range(len(values))).difference(tombstones))
            offsets = [offsets[i] for i in kept]
            values = [values[i] for i in kept]
            batch = [batch[i] for i in kept]
        if values:
            if originals is not None:
                originals.add(offsets, batch)
            if look is not None:
                look(list(map(_seen, batch)))
            deliver(values, _moved(offsets, base))
        if position < end:
            before = position
            position = _position(consumer, where, position)
            if position > before or batch:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > STALL_SECONDS:
                _explain_stall(consumer, block_range, position)
    return ReadResult(messages_seen, bytes_seen, skipped), position, poll


def require_epoch(block_range: Range, vouched: int, found: int | None) -> None:
    """The messages of a range were there when it was recorded, so none is of a later epoch than
    that of the leader who vouched for them.

    :raises RangeVanishedError: the log was cut below its end since, and filled again.
    """
    if found is not None and found > vouched:
        raise RangeVanishedError(
            f"{block_range} was recorded in leader epoch {vouched}, and holds a message of epoch "
            f"{found} now: the log was cut, and filled again with other messages"
        )


def _seen(message: ck.Message) -> Seen:
    return message.key(), message.headers() or (), _timestamp_ms(message)


def _timestamp_ms(message: ck.Message) -> int | None:
    kind, timestamp = message.timestamp()
    return None if kind == ck.TIMESTAMP_NOT_AVAILABLE else timestamp


def _position(consumer: ck.Consumer, where: list[ck.TopicPartition], before: int) -> int:
    position: int = consumer.position(where)[0].offset
    return position if position >= 0 else before


def _fetch_bytes(poll: int) -> int:
    return FETCH_BYTES if poll >= LARGE_POLL_MESSAGES else FETCH_BYTES_OF_LARGE


def _offsets(batch: list[ck.Message]) -> Sequence[int]:
    """The offsets of a poll; the ends tell them all where nothing is missing between."""
    if not batch:
        return ()
    first, last = batch[0].offset(), batch[-1].offset()
    if last - first + 1 == len(batch):
        return range(first, last + 1)
    return list(map(_offset, batch))


def _moved(offsets: Sequence[int], base: int) -> Sequence[int]:
    """The offsets with `base` added."""
    if not base:
        return offsets
    if isinstance(offsets, range):
        return range(offsets.start + base, offsets.stop + base)
    return [offset + base for offset in offsets]


def _crossing(
    offsets: Sequence[int],
    sizes: list[int],
    bytes_before: int,
    bytes_max: int,
    is_first: bool,
) -> int | None:
    """The offset of the message that crosses the limit, unless it is the first of all."""
    total = bytes_before
    for index, size in enumerate(sizes):
        total += size
        if total > bytes_max and not (is_first and index == 0):
            return offsets[index]
    return None


def _without_errors(block_range: Range, batch: list[ck.Message]) -> list[ck.Message]:
    """The messages of a poll that are messages.

    :raises RangeVanishedError: the broker no longer has the offsets.
    """
    good: list[ck.Message] = []
    for message in batch:
        error = message.error()
        if error is None:
            good.append(message)
        elif error.code() in (
            ck.KafkaError._AUTO_OFFSET_RESET,
            ck.KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            raise RangeVanishedError(f"{block_range} is not wholly in the log: {error.str()}")
        elif error.code() != ck.KafkaError._PARTITION_EOF:
            raise kafka_error(f"reading {block_range}", error)
    return good


def _explain_stall(consumer: ck.Consumer, block_range: Range, position: int) -> None:
    """Ask for the log's ends: either the range vanished, or the broker is slow."""
    source = block_range.source
    try:
        low, high = consumer.get_watermark_offsets(
            ck.TopicPartition(source.topic, source.partition), timeout=10, cached=False
        )
    except ck.KafkaException as error:
        raise kafka_error(f"reading {block_range} at {position}", error) from None
    if high < block_range.end or low > position:
        raise RangeVanishedError(
            f"{block_range} is not wholly in the log any more: it holds [{low}, {high})"
        )
    raise StalledError(f"no message of {block_range} came for {STALL_SECONDS:.0f} s at {position}")


def read_originals(
    access: KafkaAccess,
    block_range: Range,
    wanted: Mapping[int, Sequence[DeadLetterReason]],
    bytes_max: int,
) -> tuple[DeadLetter, ...]:
    """Read the messages of a range that become dead letters, with key, headers and time.

    A second pass, because keeping every message object of a range would cost more memory
    than the range itself, and bad messages are rare.

    :param wanted: offset -> what is wrong with its message, once for each table entry.
    :param bytes_max: payloads beyond this total become pointers: no value, truncated.
    """
    letters: list[DeadLetter] = []
    left = bytes_max
    consumer = make_consumer(access, _READER_GROUP)
    source, end = block_range.source, block_range.end
    where = [ck.TopicPartition(source.topic, source.partition)]
    position = min(wanted)
    consumer.assign([ck.TopicPartition(source.topic, source.partition, position)])
    stop = max(wanted) + 1
    progress_at = time.monotonic()
    try:
        while position < min(stop, end):
            batch = consumer.consume(min(POLL_MESSAGES, stop - position), POLL_TIMEOUT_SECONDS)
            for message in _without_errors(block_range, batch):
                for fault in wanted.get(message.offset(), ()):
                    letter = _letter(message, fault, left)
                    left -= len(letter.value or b"")
                    letters.append(letter)
            before = position
            position = _position(consumer, where, position)
            if position > before:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > STALL_SECONDS:
                _explain_stall(consumer, block_range, position)
    finally:
        consumer.close()
    return tuple(letters)


def _letter(message: ck.Message, fault: DeadLetterReason, left: int) -> DeadLetter:
    value = message.value()
    pointer = value is not None and len(value) > left
    return DeadLetter(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=_timestamp_ms(message),
        key=message.key(),
        value=None if pointer else value,
        headers=tuple(message.headers() or ()),
        reason=fault.reason,
        error=fault.error,
        table=fault.entry,
        column=fault.column,
        truncated=pointer,
    )
