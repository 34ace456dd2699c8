"""Reading exactly one range with our own parser: the contract of `sluice.kafka.reader`.

The next fetch is on its way while an answer is parsed. Nothing is kept between ranges but
connections: where a range begins, a fetch begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from ctypes import byref

import confluent_kafka as ck
import numpy as np
from numpy.typing import NDArray

import sluice.kafka.reader as contract
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.ranges import EPOCH_UNKNOWN, Range, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import (
    KafkaUnavailableError,
    RangeVanishedError,
    StalledError,
    kafka_error,
)
from sluice.kafka.reader import Deliver, ReadResult
from sluice.kafka.wire import messages, native
from sluice.kafka.wire.cluster import LEADER_CODES, Cluster
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import Cursor, Fetched
from sluice.kafka.wire.unpacking import BrokenCompressionError, Unpack, unpacker

#: What one fetch brings at most; a larger batch comes whole. 2 and 4 MiB cost as much.
FETCH_BYTES = 1024 * 1024
#: The least that is asked for near the end of a range.
FETCH_BYTES_MIN = 64 * 1024
#: How long a broker may wait for messages that are not there yet.
FETCH_WAIT_MS = 500

#: Text that is delivered at once, and unpacked records that are held: both stay in the
#: processor's cache.
TEXT_BYTES = 256 * 1024
WINDOW_BYTES = 256 * 1024
MESSAGES_MAX = 16_384
#: A record above this is an attack, or an error.
RECORD_BYTES_MAX = 512 * 1024 * 1024

_PAUSE_SECONDS_MAX = 1.0

#: Called with values joined by newlines (a newline after the last, too), their offsets, where
#: each ends in the text, and whether `digits.has_long_run`, as the parser saw. The text is only
#: valid within the call, the arrays are the caller's.
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
        self._vouched = EPOCH_UNKNOWN
        self._densities: dict[TopicPartition, float] = {}
        self._take_memory(TEXT_BYTES, WINDOW_BYTES)

    def read(
        self,
        block_range: Range,
        bytes_max: int,
        deliver: Deliver,
        epoch: int = EPOCH_UNKNOWN,
    ) -> ReadResult:
        """As `RangeReader.read`."""

        def split(
            text: memoryview,
            offsets: NDArray[np.uint64],
            ends: NDArray[np.int64],
            has_long_run: bool,
        ) -> None:
            begins = [0, *(ends[:-1] + 1).tolist()]
            values = [bytes(text[a:b]) for a, b in zip(begins, ends.tolist(), strict=True)]
            deliver(values, offsets.tolist())

        return self.read_text(block_range, bytes_max, split, epoch)

    def read_text(
        self,
        block_range: Range,
        bytes_max: int,
        deliver: DeliverText,
        epoch: int = EPOCH_UNKNOWN,
    ) -> ReadResult:
        """As `read`, in large pieces without an object for each message."""
        parser = self._parser
        self._vouched = epoch
        self._begin(block_range, bytes_max)
        try:
            status = self._read_on(block_range, deliver)
            if status != native.HEAVY:
                self._deliver(deliver)
                return ReadResult(parser.messages, parser.bytes, parser.tombstones)
            self._cluster.drop(block_range.source)  # the next answer may be on its way
            return ReadResult(parser.messages, parser.bytes, parser.tombstones, parser.heavy_at)
        except _UndeliveredError as error:
            self._cluster.drop(block_range.source)
            raise error.reason from None
        except BaseException:
            self._cluster.drop(block_range.source)
            raise
        finally:
            if len(self._text) > TEXT_BYTES or len(self._window) > WINDOW_BYTES:
                self._take_memory(TEXT_BYTES, WINDOW_BYTES)

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()

    def _read_on(self, block_range: Range, deliver: DeliverText) -> int:
        """Until the range is done, or too heavy. What fails for now is tried again, until there
        is no progress for STALL_SECONDS."""
        parser = self._parser
        status = native.INPUT_DONE
        pause, progress_at = 0.0, time.monotonic()
        while parser.position < block_range.end and status != native.HEAVY:
            before = parser.position
            failure: Exception | None = None
            try:
                status = self._follow(block_range, deliver)
            except (OSError, TransientError) as error:
                failure = error
                self._cluster.drop(block_range.source)
            if parser.position > before:
                pause, progress_at = 0.0, time.monotonic()
                continue
            if status != native.HEAVY:
                if time.monotonic() - progress_at > contract.STALL_SECONDS:
                    self._explain_stall(block_range, failure)
                time.sleep(pause)
                pause = min(max(0.05, pause * 2), _PAUSE_SECONDS_MAX)
        return status

    def _begin(self, block_range: Range, bytes_max: int) -> None:
        parser = self._parser
        parser.records, parser.records_left = None, 0
        parser.position, parser.end = block_range.begin, block_range.end
        parser.messages = parser.bytes = parser.tombstones = 0
        parser.bytes_max = bytes_max
        self._library.sluice_delivered(byref(parser))

    def _take_memory(self, text_bytes: int, window_bytes: int) -> None:
        self._text, self._window = bytearray(text_bytes), bytearray(window_bytes)
        parser = self._parser
        parser.text, parser.text_capacity = native.address_of(self._text), text_bytes
        parser.offsets, parser.ends = self._offsets.ctypes.data, self._ends.ctypes.data
        parser.count_max = MESSAGES_MAX

    def _follow(self, block_range: Range, deliver: DeliverText) -> int:
        """Fetch and parse from the position on, until the range is over or an answer brings
        nothing."""
        source, parser = block_range.source, self._parser
        connection, epoch = self._cluster.leader(source)
        fetch_bytes = self._fetch_bytes(source, parser.position, block_range.end)
        self._fetch(connection, source, parser.position, epoch, fetch_bytes)
        while True:
            answer = connection.receive()
            fetched = messages.read_fetched(Cursor(answer), source)
            if fetched.error:
                self._refuse(block_range, fetched.error)
            if not fetched.records_bytes:
                return native.INPUT_DONE
            if self._vouched != EPOCH_UNKNOWN:
                held = answer[fetched.records : fetched.records + fetched.records_bytes]
                for found in messages.leader_epochs(held, block_range.end):
                    contract.require_epoch(block_range, self._vouched, found)
            records = connection.answer_address + fetched.records
            position = parser.position
            following = self._library.sluice_batches_end(records, fetched.records_bytes, position)
            is_more = position < following < block_range.end
            if is_more:
                self._densities[source] = fetched.records_bytes / (following - position)
                fetch_bytes = self._fetch_bytes(source, following, block_range.end)
                self._fetch(connection, source, following, epoch, fetch_bytes)
            status = self._parse(block_range, records, fetched, answer, deliver)
            if status != native.INPUT_DONE:
                return status
            if not is_more or parser.position != following:
                raise _AgainError(f"{source} at {position}: no whole batch, or not in order")

    def _fetch(
        self, connection: Connection, source: TopicPartition, offset: int, epoch: int, size: int
    ) -> None:
        body = messages.fetch_body(source, offset, epoch, size, FETCH_WAIT_MS)
        connection.send(messages.FETCH, body)

    def _fetch_bytes(self, source: TopicPartition, offset: int, end: int) -> int:
        """Not much more than the range still needs, by what was fetched before."""
        needed = self._densities.get(source, FETCH_BYTES) * (end - offset)
        return int(min(FETCH_BYTES, FETCH_BYTES_MIN + needed * 1.1))

    def _parse(
        self,
        block_range: Range,
        records: int,
        fetched: Fetched,
        answer: memoryview,
        deliver: DeliverText,
    ) -> int:
        """Deliver the messages of one answer. Returns when no whole batch is left, the range is
        done, or too heavy."""
        parser = self._parser
        aborted = np.array(fetched.aborted, np.int64).reshape(-1)
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
                    begin = fetched.records + parser.records - records
                    unpack = unpacker(parser.codec, answer[begin : begin + parser.records_bytes])
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

    def _unpack_more(self, unpack: Unpack) -> None:
        """Move what is left to the front, and unpack behind it."""
        parser = self._parser
        left = parser.records_bytes - parser.records_at
        window = memoryview(self._window)
        rest = bytes(window[parser.records_at : parser.records_bytes])
        if parser.records_needed > RECORD_BYTES_MAX:
            raise BrokenBatchError(f"a record of {parser.records_needed} bytes")
        if parser.records_needed > len(window):
            self._window = bytearray(parser.records_needed)
            window = memoryview(self._window)
        window[:left] = rest
        filled = left
        while filled < max(left + 1, parser.records_needed) and not parser.is_whole:
            count = unpack(window[filled:])
            parser.is_whole = count == 0
            filled += count
        parser.records, parser.records_bytes = native.address_of(self._window), filled
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
