"""Reading exactly the given ranges (H20). Runs in Spark's workers.

A range is done when `position() >= end`, checked after every poll: the last message may
be a control record, part of an aborted transaction, or compacted away, so seeing the
last offset is no criterion.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING

import confluent_kafka as ck

from sluice.core.errors import SluiceError
from sluice.core.ranges import EPOCH_UNKNOWN, Range, TopicPartition
from sluice.core.receipts import DeadLetter, DeadLetterReason
from sluice.core.routing import Seen
from sluice.kafka.clients import READER_GROUP, KafkaAccess, make_admin, make_consumer
from sluice.kafka.errors import (
    RangeVanishedError,
    StalledError,
    UnreadRangeError,
    kafka_error,
)
from sluice.kafka.headers import all_headers, headers_of
from sluice.kafka.originals import Letters, Original, Originals
from sluice.kafka.quotas import Slowed

if TYPE_CHECKING:
    from sluice.kafka.log import SourceLog

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


#: What one fetch brings at most, before decompression. Large messages may shrink much: of
#: text that shrinks to a fiftieth, 1 MiB was 80 MB in the worker. Small fetches for all would
#: cost the broker as much again for each row.
FETCH_BYTES = 1024 * 1024
FETCH_BYTES_OF_LARGE = 256 * 1024
#: Messages are large when fewer than this make a poll, so above 8 KiB on average.
LARGE_POLL_MESSAGES = 64

_TUNING: dict[str, str | int | bool] = {
    # Short queues, refilled at once: what was prefetched beyond a range is thrown away
    # when another worker takes the next one. The default backoff of one second would let
    # a consumer with short queues stand still.
    "queued_min_messages": 20_000,
    "queued_max_messages_kbytes": 4_096,
    "fetch_queue_backoff_ms": 1,
    "check_crcs": False,
    "fetch_max_bytes": FETCH_BYTES,
    "statistics_interval_ms": 0,
}

#: Called with the values and offsets of one poll, the offsets as `Wanted` says; no value is None,
#: but those of tombstones that are asked for. Where the offsets have no holes they are a `range`.
Deliver = Callable[[list[bytes], Sequence[int]], None]
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
    :param topic_id: of its record: what was fetched of another topic of the name is not delivered.
    """

    block_range: Range
    epoch: int = EPOCH_UNKNOWN
    base: int = 0
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a range held.

    :param messages: all messages, tombstones included.
    :param bytes: of keys and values.
    :param skipped: tombstones that were not delivered.
    :param heavy_at: None, or the end at which the range would still be within the limit.
    :param oldest_ms: the least timestamp of its messages, None if none has one. With librdkafka's
        reader only the first message of each poll is asked.
    :param last_ms: the timestamp of its last message, with the native reader the first one of the
        record batch that was read last; None where it has none.
    """

    messages: int
    bytes: int
    skipped: int
    heavy_at: int | None = None
    oldest_ms: int | None = None
    last_ms: int | None = None


class RangeReader:
    """Reads ranges. Consumers of single ranges are kept: a range that continues the last one of
    its partition finds its messages prefetched, if the same leader vouched for both: the log of a
    later one may hold other messages there (R16). Not thread-safe."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        #: With where each stands, and the epoch and the topic's id of the last range that it read.
        self._consumers = OrderedDict[TopicPartition, tuple[ck.Consumer, tuple[int, int, str]]]()
        self._polls: dict[TopicPartition, int] = {}
        self._slowed = Slowed()
        #: Of the last range that was read, if its topic had bad messages before.
        self._originals: tuple[Range | None, Originals | None] = None, None
        self._had_bad: set[str] = set()
        self._log: SourceLog | None = None

    def read(
        self,
        block_range: Range,
        bytes_max: int,
        deliver: Deliver,
        look: Look | None = None,
        *,
        tombstones: bool = False,
    ) -> ReadResult:
        """As `read_ranges`, of one.

        :raises RangeVanishedError: offsets of the range are gone.
        :raises StalledError: no progress although the offsets exist.
        """
        try:
            wanted = [Wanted(block_range)]
            return self.read_ranges(wanted, bytes_max, deliver, look, tombstones=tombstones)[0]
        except UnreadRangeError as unread:
            raise unread.reason from None

    def read_ranges(
        self,
        wanted: Sequence[Wanted],
        bytes_max: int,
        deliver: Deliver,
        look: Look | None = None,
        *,
        tombstones: bool = False,
    ) -> tuple[ReadResult, ...]:
        """Deliver every message of the ranges: range by range, and in offset order.

        Stops early when all together are heavier than `bytes_max`; one message is always allowed
        (R12). The verdict is a function of the ranges alone. The last result says at which message
        it was noticed: of a single range, the one that crosses the limit.

        :param wanted: at most one range of each partition.
        :param tombstones: deliver messages without a value, too, as None.
        :raises UnreadRangeError: with what `read` raises.
        """
        first = wanted[0].block_range
        originals = None
        self._originals = None, None
        if len(wanted) == 1:
            originals = Originals() if first.source.topic in self._had_bad else None
            self._originals = first, originals
            self._had_bad.discard(first.source.topic)
        sources = [one.block_range.source for one in wanted]
        poll = min(self._polls.get(source, FIRST_POLL_MESSAGES) for source in sources)
        fetch_bytes = _fetch_bytes(poll)
        consumer = self._consumer_at(wanted, fetch_bytes)
        reading = _Reading(
            consumer,
            self._slowed,
            wanted,
            bytes_max,
            deliver,
            look,
            originals,
            poll,
            tombstones=tombstones,
        )
        is_kept = False
        try:
            results = reading.run()
            self._polls |= dict.fromkeys(sources, reading.poll)
            is_complete = results[-1].heavy_at is None
            is_kept = len(wanted) == 1 and is_complete and _fetch_bytes(reading.poll) == fetch_bytes
        except ck.KafkaException as error:
            number, block_range = reading.current
            reason = kafka_error(f"reading {block_range}", error)
            raise UnreadRangeError(number, reason) from None
        finally:
            if not is_kept:
                consumer.close()
        if is_kept:
            self._keep(
                first.source, consumer, (reading.positions[0], wanted[0].epoch, wanted[0].topic_id)
            )
        return results

    def dead_letters(
        self,
        read: Wanted,
        wanted: Mapping[int, Sequence[DeadLetterReason]],
        values: Mapping[int, bytes],
        bytes_max: int,
    ) -> tuple[DeadLetter, ...]:
        """As `read_originals`, without reading if all was kept when the range was read.

        :param read: what was read before, of one range.
        :param values: of these messages, as far as they are at hand.
        """
        block_range = read.block_range
        self._had_bad.add(block_range.source.topic)
        (kept_range, originals), self._originals = self._originals, (None, None)
        size = sum(len(values.get(offset, b"")) * len(wanted[offset]) for offset in wanted)
        if originals is not None and kept_range == block_range and size <= bytes_max:
            dead_letters = originals.dead_letters(block_range.source, wanted, values, bytes_max)
            if dead_letters is not None:
                return dead_letters
        return read_originals(self._access, block_range, wanted, bytes_max)

    def topic_ids(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The short ids of their topics, as a broker knows them now; those of topics that are gone
        are left out."""
        sources = list(sources)
        if self._log is None:
            # Most workers read by the other reader, and need no admin client.
            from sluice.kafka.log import SourceLog

            self._log = SourceLog(make_admin(self._access))
        told = self._log.topics({source.topic for source in sources}, partial=True)
        return {source: told[source.topic][0] for source in sources if source.topic in told}

    def close(self) -> None:
        """Close every consumer."""
        while self._consumers:
            self._consumers.popitem()[1][0].close()

    def _consumer_at(self, wanted: Sequence[Wanted], fetch_bytes: int) -> ck.Consumer:
        """Of one range, the one that was kept, if it stands where the range begins. Else a new one:
        a fetch of what was assigned before still waits, holds up the others, and may tell of an
        offset that was never asked for."""
        ranges = [one.block_range for one in wanted]
        if len(ranges) == 1:
            kept, stands = self._consumers.pop(ranges[0].source, (None, None))
            begins = ranges[0].begin, wanted[0].epoch, wanted[0].topic_id
            if kept is not None and stands == begins:
                return kept
            if kept is not None:
                kept.close()
        consumer = make_consumer(
            self._access,
            READER_GROUP,
            self._slowed,
            max_partition_fetch_bytes=fetch_bytes,
            **_TUNING,
        )
        consumer.assign([_at(each.source, each.begin) for each in ranges])
        return consumer

    def _keep(
        self, source: TopicPartition, consumer: ck.Consumer, stands: tuple[int, int, str]
    ) -> None:
        self._consumers[source] = (consumer, stands)
        while len(self._consumers) > CONSUMERS_MAX:
            self._consumers.popitem(last=False)[1][0].close()


@dataclass(slots=True)
class _Poll:
    """Messages of one range that came together, without tombstones that nobody asked for."""

    values: list[bytes]
    offsets: Sequence[int]
    seen: list[Seen]


class _Reading:
    """One call of `read_ranges`: messages of all ranges come from one consumer, in any order. Those
    of later ranges are held until it is their turn, which is no more than the limit of bytes.

    :param originals: of a single range.
    :param poll: messages of the first poll.
    :param tombstones: are delivered.
    """

    def __init__(
        self,
        consumer: ck.Consumer,
        slowed: Slowed,
        wanted: Sequence[Wanted],
        bytes_max: int,
        deliver: Deliver,
        look: Look | None,
        originals: Originals | None,
        poll: int,
        *,
        tombstones: bool,
    ) -> None:
        ranges = [one.block_range for one in wanted]
        self._consumer, self._slowed, self._wanted = consumer, slowed, wanted
        self._bytes_max, self._deliver, self._look = bytes_max, deliver, look
        self._originals, self._tombstones = originals, tombstones
        self.poll = poll
        #: Of each range: every offset below is done.
        self.positions = [each.begin for each in ranges]
        self._numbers = {(r.source.topic, r.source.partition): n for n, r in enumerate(ranges)}
        self._unfinished = {n: r for n, r in enumerate(ranges) if r.begin < r.end}
        self._finished: list[int] = []  # and not paused yet
        self._turn = 0
        self._held: list[list[_Poll]] = [[] for _ in wanted]
        self._results = [ReadResult(0, 0, 0)] * len(wanted)
        self._messages = self._bytes = 0
        self._progress_at = time.monotonic()

    @property
    def current(self) -> tuple[int, Range]:
        """The first range that is not complete."""
        last = len(self._wanted) - 1
        return next(iter(self._unfinished.items()), (last, self._wanted[last].block_range))

    def run(self) -> tuple[ReadResult, ...]:
        """Until all are done, or too heavy."""
        while self._unfinished:
            batch = self._consume()
            for number, part in self._divided(batch):
                if number in self._unfinished and not self._take(number, part):
                    return tuple(self._results[: number + 1])
            if batch:
                self._progress_at = time.monotonic()
            if len(self._unfinished) == 1 or not batch:
                self._see_positions()
            self._pass_on()
            if self._unfinished and self._slowed.seconds_since(self._progress_at) > STALL_SECONDS:
                number, block_range = self.current
                with _unread(number):
                    _explain_stall(self._consumer, block_range, self.positions[number])
        self._pass_on()
        return tuple(self._results)

    def _consume(self) -> list[ck.Message]:
        """What waits in the client's short queue, or the first that comes: a poll that waits
        for its full number would hold 25 MB when messages of 50 KB follow small ones."""
        count = self.poll
        if len(self._wanted) == 1:
            count = min(count, self._wanted[0].block_range.end - self.positions[0])
        elif self._finished:
            self._pause()
        batch: list[ck.Message] = self._consumer.consume(count, 0.0)
        if not batch and len(self._unfinished) > 1:
            self._see_positions()
            if not self._unfinished:
                return []
        return batch or self._consumer.consume(1, POLL_TIMEOUT_SECONDS)

    def _pause(self) -> None:
        """Nothing more of the ranges that are complete."""
        sources = [self._wanted[number].block_range.source for number in self._finished]
        self._consumer.pause([_at(source) for source in sources])
        self._finished.clear()

    def _divided(self, batch: list[ck.Message]) -> Iterator[tuple[int, list[ck.Message]]]:
        """The messages of each range."""
        if any(map(_error, batch)):  # never compared: a KafkaError raises when it meets None
            batch = self._without_errors(batch)
        if len(self._wanted) == 1:
            if batch:
                yield 0, batch
            return
        for source, part in groupby(batch, _source):
            yield self._numbers[source], list(part)

    def _without_errors(self, batch: list[ck.Message]) -> list[ck.Message]:
        good: list[ck.Message] = []
        for message in batch:
            number = self._numbers.get(_source(message), self.current[0])
            with _unread(number):
                good += _without_errors(self._wanted[number].block_range, [message])
        return good

    def _take(self, number: int, batch: list[ck.Message]) -> bool:
        """Weigh the messages, and hold them. Returns False if they are too heavy."""
        wanted = self._wanted[number]
        end = wanted.block_range.end
        offsets = _offsets(batch)
        self.positions[number] = offsets[-1] + 1
        if offsets[-1] >= end:
            del batch[bisect_left(offsets, end) :]
            offsets = offsets[: len(batch)]
            # A message at or beyond the end proves that nothing below it is to come; but
            # the consumer has swallowed it, so one that is kept cannot simply be continued.
            self.positions[number] = end
            if len(self._wanted) == 1:
                self._consumer.seek(_at(wanted.block_range.source, end))
        if batch and wanted.epoch != EPOCH_UNKNOWN:
            with _unread(number):  # the last one's is the highest
                require_epoch(wanted.block_range, wanted.epoch, batch[-1].leader_epoch())
        values: list[bytes] = list(map(_value, batch))
        keys = list(map(_key, batch)) if any(map(_key, batch)) else ()
        tombstones = () if all(values) else [i for i, v in enumerate(values) if v is None]
        for index in tombstones:
            values[index] = b""
        total = sum(map(len, values)) + sum(map(len, filter(None, keys)))
        if batch:
            self.poll = min(POLL_MESSAGES, 1 + POLL_BYTES * len(batch) // (total + 1))
        before = self._results[number]
        if self._bytes + total > self._bytes_max:
            sizes = [len(v) + len(k or b"") for v, k in zip_longest(values, keys)]
            crossed = _crossing(offsets, sizes, self._bytes, self._bytes_max, self._messages)
            if crossed is not None:
                self._results[number] = replace(before, heavy_at=crossed)
                return False
        self._messages += len(batch)
        self._bytes += total
        self._results[number] = ReadResult(
            before.messages + len(batch),
            before.bytes + total,
            before.skipped + (0 if self._tombstones else len(tombstones)),
            oldest_ms=_oldest_ms(before.oldest_ms, batch),
            last_ms=_timestamp_ms(batch[-1]) if batch else before.last_ms,
        )
        if self._tombstones:
            values = list(map(_value, batch))
        elif tombstones:
            kept = sorted(set(range(len(values))).difference(tombstones))
            offsets = [offsets[i] for i in kept]
            values = [values[i] for i in kept]
            batch = [batch[i] for i in kept]
        if values:
            if self._originals is not None:
                self._originals.add(offsets, batch)
            seen = _seen(batch) if self._look is not None else []
            self._held[number].append(_Poll(values, _moved(offsets, wanted.base), seen))
        self._finish_at_end(number)
        return True

    def _pass_on(self) -> None:
        """Deliver what is held of the range whose turn it is, and of those after it."""
        while self._turn < len(self._wanted):
            for poll in self._held[self._turn]:
                if self._look is not None:
                    self._look(poll.seen)
                self._deliver(poll.values, poll.offsets)
            self._held[self._turn] = []
            if self._turn in self._unfinished:
                return
            self._turn += 1

    def _see_positions(self) -> None:
        """How far the ranges are: also by markers, and by messages that were aborted."""
        numbers = list(self._unfinished)
        where = self._consumer.position([_at(r.source) for r in self._unfinished.values()])
        for number, found in zip(numbers, where, strict=True):
            if found.offset > self.positions[number]:
                self.positions[number] = found.offset
                self._progress_at = time.monotonic()
                self._finish_at_end(number)

    def _finish_at_end(self, number: int) -> None:
        if self.positions[number] >= self._unfinished[number].end:
            del self._unfinished[number]
            self._finished.append(number)


@contextmanager
def _unread(number: int) -> Iterator[None]:
    try:
        yield
    except SluiceError as error:
        raise UnreadRangeError(number, error) from None


def _at(source: TopicPartition, offset: int = ck.OFFSET_INVALID) -> ck.TopicPartition:
    return ck.TopicPartition(source.topic, source.partition, offset)


def _source(message: ck.Message) -> tuple[str, int]:
    return message.topic(), message.partition()


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


def _seen(batch: list[ck.Message]) -> list[Seen]:
    times = map(_timestamp_ms, batch)
    return list(zip(map(_key, batch), all_headers(batch), times, strict=True))


def _timestamp_ms(message: ck.Message) -> int | None:
    kind, timestamp = message.timestamp()
    return None if kind == ck.TIMESTAMP_NOT_AVAILABLE else timestamp


def _oldest_ms(before: int | None, batch: Sequence[ck.Message]) -> int | None:
    """The least timestamp, with those before. To ask each message would take 0.19 µs a row."""
    found = _timestamp_ms(batch[0]) if batch else None
    return min((each for each in (before, found) if each is not None), default=None)


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
    messages_before: int,
) -> int | None:
    """The offset of the message that crosses the limit, unless it is the first of all."""
    total = bytes_before
    for index, size in enumerate(sizes):
        total += size
        if total > bytes_max and (messages_before > 0 or index > 0):
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
    letters = Letters(wanted, bytes_max)
    slowed = Slowed()
    consumer = make_consumer(access, READER_GROUP, slowed)
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
                if message.offset() in wanted:
                    letters.take(_original(source, message))
            before = position
            position = _position(consumer, where, position)
            if position > before:
                progress_at = time.monotonic()
            elif slowed.seconds_since(progress_at) > STALL_SECONDS:
                _explain_stall(consumer, block_range, position)
    finally:
        consumer.close()
    return tuple(letters.made)


def _original(source: TopicPartition, message: ck.Message) -> Original:
    return Original(
        source,
        message.offset(),
        _timestamp_ms(message),
        message.key(),
        message.value(),
        headers_of(message),
    )
