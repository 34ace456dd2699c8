"""Reading exactly the given ranges with our own parser: the contract of `sluice.kafka.reader`.

The next fetch is on its way while an answer is parsed. Nothing is kept between two calls but
connections: where a range begins, a fetch begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import byref
from dataclasses import replace

import confluent_kafka as ck
import numpy as np
from numpy.typing import NDArray

import sluice.kafka.reader as contract
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.ranges import EPOCH_UNKNOWN, Range, TopicPartition
from sluice.core.receipts import DeadLetter, DeadLetterReason
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import (
    KafkaUnavailableError,
    RangeVanishedError,
    StalledError,
    UnreadRangeError,
    kafka_error,
)
from sluice.kafka.originals import Letters
from sluice.kafka.quotas import Slowed
from sluice.kafka.reader import Deliver, ReadResult, Wanted
from sluice.kafka.wire import native
from sluice.kafka.wire.cluster import LEADER_CODES, Cluster
from sluice.kafka.wire.fetches import Fetches, Part, Sizes
from sluice.kafka.wire.messages import BrokenAnswerError, leader_epochs
from sluice.kafka.wire.records import read_original
from sluice.kafka.wire.unpacking import BrokenCompressionError, Unpack, unpacker

#: Text that is delivered at once, and unpacked records that are held: both stay in the
#: processor's cache.
TEXT_BYTES = 256 * 1024
WINDOW_BYTES = 256 * 1024
MESSAGES_MAX = 16_384
#: A record above this is an attack, or an error.
RECORD_BYTES_MAX = 512 * 1024 * 1024

_PAUSE_SECONDS_MAX = 1.0

_NONE = np.empty(0, np.int64)

#: Called with values joined by newlines (a newline after the last, too), their offsets as `Wanted`
#: says, where each ends in the text, and whether `digits.has_long_run`, as the parser saw. They may
#: be of several ranges. The text is only valid within the call, the arrays are the caller's.
DeliverText = Callable[[memoryview, NDArray[np.uint64], NDArray[np.int64], bool], None]


class BrokenBatchError(TerminalError):
    """A broker sent a batch that breaks the format."""

    hint = (
        'Look at the partition with kafka-dump-log.sh; reader = "librdkafka" is the other reader.'
    )


class _AgainError(TransientError):
    """Ask who leads, and read on."""


class _UndeliveredError(Exception):
    """What `deliver` raised. It goes to the caller: nothing is delivered twice."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class WireReader:
    """Reads ranges. Not thread-safe.

    :raises ConfigurationError: the compiled part is missing, or a property is not supported.
    """

    def __init__(self, access: KafkaAccess) -> None:
        self._library = native.library()
        self._cluster = Cluster(access)
        self._parser = native.Parser()
        self._offsets = np.empty(MESSAGES_MAX, np.uint64)
        self._ends = np.empty(MESSAGES_MAX, np.int64)
        self._sizes = Sizes()
        self._slowed = Slowed()
        self._take_memory(TEXT_BYTES, WINDOW_BYTES)

    def read_ranges(
        self, wanted: Sequence[Wanted], bytes_max: int, deliver: Deliver
    ) -> tuple[ReadResult, ...]:
        """As `RangeReader.read_ranges`."""

        def split(
            text: memoryview,
            offsets: NDArray[np.uint64],
            ends: NDArray[np.int64],
            has_long_run: bool,
        ) -> None:
            begins = [0, *(ends[:-1] + 1).tolist()]
            values = [bytes(text[a:b]) for a, b in zip(begins, ends.tolist(), strict=True)]
            deliver(values, offsets.tolist())

        return self.read_text(wanted, bytes_max, split)

    def read_text(
        self, wanted: Sequence[Wanted], bytes_max: int, deliver: DeliverText
    ) -> tuple[ReadResult, ...]:
        """As `read_ranges`, in large pieces without an object for each message."""
        fetches = Fetches(self._library, self._cluster, self._sizes, self._slowed, wanted)
        self._begin(bytes_max)
        results: list[ReadResult] = []
        try:
            for number, one in enumerate(wanted):
                try:
                    results.append(self._read_range(fetches, number, one, deliver))
                except SluiceError as error:
                    raise UnreadRangeError(number, error) from None
                if results[-1].heavy_at is not None:
                    return tuple(results)
            self._deliver(deliver)
        except _UndeliveredError as error:
            raise error.reason from None
        finally:
            fetches.close()
            if len(self._text) > TEXT_BYTES or len(self._window) > WINDOW_BYTES:
                self._take_memory(TEXT_BYTES, WINDOW_BYTES)
        return tuple(results)

    def dead_letters(
        self,
        read: Wanted,
        wanted: Mapping[int, Sequence[DeadLetterReason]],
        values: Mapping[int, bytes],
        bytes_max: int,
    ) -> tuple[DeadLetter, ...]:
        """As `RangeReader.dead_letters`: the range is read again from the first of these messages
        to the last, and nothing is held of the others.

        :param values: of no use: each comes with its message.
        """
        offsets = np.array(sorted(wanted), np.int64)
        source, letters = read.block_range.source, Letters(wanted, bytes_max)

        def take(
            held: memoryview, places: NDArray[np.uint64], ends: NDArray[np.int64], _: bool
        ) -> None:
            begin = 0
            for offset, end in zip(places.tolist(), ends.tolist(), strict=True):
                try:
                    letters.take(read_original(source, offset, held[begin:end]))
                except BrokenAnswerError as error:
                    raise BrokenBatchError(f"the message at {source}, {offset}: {error}") from None
                begin = end

        parser = self._parser
        parser.wanted, parser.wanted_count = offsets.ctypes.data, len(offsets)
        parser.wanted_at = 0
        only = Range(source, int(offsets[0]), int(offsets[-1]) + 1)
        try:
            self.read_text([replace(read, block_range=only, base=0)], bytes_max, take)
        except UnreadRangeError as unread:
            raise unread.reason from None
        finally:
            parser.wanted = None
        return tuple(letters.made)

    @property
    def has_addressed(self) -> bool:
        """Whether headers of what was read last may say which one table entry a message is for."""
        return bool(self._parser.addressed)

    def topic_ids(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """As `RangeReader.topic_ids`, but told by the leader of each: it knows the id of a topic
        before it has a message of it.

        :raises SluiceError: a leader does not tell.
        """
        try:
            return self._cluster.topic_ids(sources)
        except OSError as error:
            self._cluster.close()
            raise KafkaUnavailableError(f"asking for the ids of topics: {error}") from None
        except SluiceError:
            self._cluster.close()
            raise

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()

    def _begin(self, bytes_max: int) -> None:
        parser = self._parser
        parser.messages = parser.bytes = parser.tombstones = parser.addressed = 0
        parser.bytes_max = bytes_max
        self._library.sluice_delivered(byref(parser))

    def _read_range(
        self, fetches: Fetches, number: int, wanted: Wanted, deliver: DeliverText
    ) -> ReadResult:
        """Until the range is done, or too heavy. What fails for now is tried again, until there
        is no progress for STALL_SECONDS, without the time that a quota takes."""
        parser, block_range = self._parser, wanted.block_range
        messages, size, tombstones = parser.messages, parser.bytes, parser.tombstones
        parser.records, parser.records_left = None, 0
        parser.position, parser.end = before, end = block_range.begin, block_range.end
        parser.base, parser.oldest_ms = wanted.base, native.NO_TIMESTAMP
        parser.first_ms = parser.appended_ms = -1
        status = native.INPUT_DONE
        pause, progress_at = 0.0, time.monotonic()
        while before < end and status != native.HEAVY:
            failure: Exception | None = None
            try:
                status = self._read_part(fetches, number, wanted, deliver)
            except (OSError, TransientError) as error:
                failure = error
                fetches.start_over(number, parser.position)
            if parser.position > before:
                before, pause, progress_at = parser.position, 0.0, time.monotonic()
            elif status != native.HEAVY:
                if self._slowed.seconds_since(progress_at) > contract.STALL_SECONDS:
                    self._explain_stall(block_range, failure)
                time.sleep(pause)
                pause = min(max(0.05, pause * 2), _PAUSE_SECONDS_MAX)
        last_ms = parser.first_ms if parser.appended_ms < 0 else parser.appended_ms
        return ReadResult(
            parser.messages - messages,
            parser.bytes - size,
            parser.tombstones - tombstones,
            parser.heavy_at if status == native.HEAVY else None,
            None if parser.oldest_ms == native.NO_TIMESTAMP else parser.oldest_ms,
            None if last_ms < 0 else last_ms,
        )

    def _take_memory(self, text_bytes: int, window_bytes: int) -> None:
        self._take_memory_for_text(text_bytes)
        self._take_window(window_bytes)
        parser = self._parser
        parser.offsets, parser.ends = self._offsets.ctypes.data, self._ends.ctypes.data
        parser.count_max = MESSAGES_MAX

    def _read_part(
        self, fetches: Fetches, number: int, wanted: Wanted, deliver: DeliverText
    ) -> int:
        """Parse what came next of a range, if anything did."""
        block_range = wanted.block_range
        part = fetches.next_part(number)
        if isinstance(part, int):
            if part:
                self._refuse(block_range, part)
            return native.INPUT_DONE
        if wanted.epoch != EPOCH_UNKNOWN:
            for found in leader_epochs(part.batches, block_range.end):
                contract.require_epoch(block_range, wanted.epoch, found)
        status = self._parse(block_range, part, deliver)
        is_more = part.begin < part.following < block_range.end
        if status == native.INPUT_DONE and not (
            is_more and self._parser.position == part.following
        ):
            raise _AgainError(f"{block_range} at {part.begin}: no whole batch, or not in order")
        return status

    def _parse(self, block_range: Range, part: Part, deliver: DeliverText) -> int:
        """Deliver the messages of one answer. Returns when no whole batch is left, the range is
        done, or too heavy."""
        parser, records, fetched = self._parser, part.address, part.fetched
        aborted = np.array(fetched.aborted, np.int64).reshape(-1) if fetched.aborted else _NONE
        parser.input, parser.input_bytes, parser.at = records, fetched.records_bytes, 0
        parser.aborted, parser.aborted_count = aborted.ctypes.data, len(fetched.aborted)
        parser.aborted_begin = 0
        unpack: Unpack | None = None
        try:
            while True:
                status = self._library.sluice_next(byref(parser))
                if status == native.FULL:
                    self._make_room(deliver)
                elif status == native.COMPRESSED:
                    begin = parser.records - records
                    packed = part.batches[begin : begin + parser.records_bytes]
                    unpack = unpacker(parser.codec, packed)
                    parser.codec = parser.records_bytes = parser.records_needed = 0
                    parser.is_whole = 0
                    self._unpack_more(unpack)
                elif status == native.MORE and unpack is not None:
                    self._unpack_more(unpack)
                elif status < 0:
                    raise BrokenBatchError(native.BROKEN[status])
                else:
                    return int(status)
        except (BrokenBatchError, BrokenCompressionError) as error:
            raise BrokenBatchError(
                f"a batch of {block_range} at offset {parser.position} or later: {error}"
            ) from None

    def _make_room(self, deliver: DeliverText) -> None:
        if self._parser.count:
            self._deliver(deliver)
        else:
            self._take_memory_for_text(self._parser.text_needed)

    def _take_memory_for_text(self, size: int) -> None:
        self._text = bytearray(size)
        self._parser.text, self._parser.text_capacity = native.address_of(self._text), size

    def _take_window(self, size: int) -> None:
        self._window = bytearray(size)
        self._parser.window, self._parser.window_bytes = native.address_of(self._window), size

    def _unpack_more(self, unpack: Unpack) -> None:
        """Move what is left to the front, and fill the window behind it. A batch that fits into the
        window is unpacked by one call."""
        parser = self._parser
        left = parser.records_bytes - parser.records_at
        window = memoryview(self._window)
        rest = bytes(window[parser.records_at : parser.records_bytes])
        if parser.records_needed > RECORD_BYTES_MAX:
            raise BrokenBatchError(f"a record of {parser.records_needed} bytes")
        if parser.records_needed > len(window):
            self._take_window(parser.records_needed)
            window = memoryview(self._window)
        window[:left] = rest
        filled = left
        while filled < len(window) and not parser.is_whole:
            count = unpack(window[filled:])
            parser.is_whole = count == 0
            filled += count
        parser.records, parser.records_bytes = parser.window, filled
        parser.records_at = 0

    def _deliver(self, deliver: DeliverText) -> None:
        parser = self._parser
        if parser.count:
            self._library.sluice_seal(byref(parser))
            try:
                deliver(
                    memoryview(self._text)[: parser.text_bytes],
                    self._offsets[: parser.count].copy(),
                    self._ends[: parser.count].copy(),
                    bool(parser.digits),
                )
            except Exception as error:
                raise _UndeliveredError(error) from None
        self._library.sluice_delivered(byref(parser))

    def _refuse(self, block_range: Range, code: int) -> None:
        """Raise what an error of a fetch means."""
        position = self._parser.position
        action = f"reading {block_range} at {position}"
        if code == ck.KafkaError.OFFSET_OUT_OF_RANGE:
            low, high = self._cluster.watermarks(block_range.source)
            if position < low or position > high:
                raise _vanished(block_range, low, high)
            raise _AgainError(f"{action}: the broker says that it is not there")
        error = kafka_error(action, ck.KafkaError(code))
        raise _AgainError(error.message) if code in LEADER_CODES else error

    def _explain_stall(self, block_range: Range, failure: Exception | None) -> None:
        """Ask for the log's ends: either the range vanished, or the broker is slow."""
        position = self._parser.position
        try:
            low, high = self._cluster.watermarks(block_range.source)
        except (OSError, SluiceError) as error:
            reason = failure or error
            raise KafkaUnavailableError(f"reading {block_range} at {position}: {reason}") from None
        if high < block_range.end or low > position:
            raise _vanished(block_range, low, high)
        raise StalledError(
            f"no message of {block_range} came for {contract.STALL_SECONDS:.0f} s at {position}"
            + (f": {failure}" if failure else "")
        )


def _vanished(block_range: Range, low: int, high: int) -> RangeVanishedError:
    return RangeVanishedError(
        f"{block_range} is not wholly in the log any more: it holds [{low}, {high})"
    )
