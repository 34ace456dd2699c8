"""Reading one partition of a topic to its last stable offset, and on; committed messages only.

All that is read of Kafka's topics and of Sluice's own is read by this. Ranges of source topics are
not: they are read by `reader` and `wire`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import confluent_kafka as ck

from sluice.kafka.clients import KafkaAccess, make_consumer, make_unstable_reader
from sluice.kafka.errors import (
    OPEN_TRANSACTION_HINT,
    KafkaTerminalError,
    KafkaUnavailableError,
    StalledError,
    kafka_error,
)
from sluice.kafka.headers import Headers, all_headers

#: Messages of dead letters may be large, and all of a poll are held.
_POLL_MESSAGES = 500
_POLL_SECONDS = 0.1
_TIMEOUT_SECONDS = 15.0
_FORGETS_SECONDS = 0.001

#: How long a broker may keep a fetch that finds nothing. Whatever else the client asks of it waits
#: for that: at 500 ms, as librdkafka has it, each turn to another partition took as long.
FETCH_WAIT_MS = 10
#: The same for who follows a topic, and seldom asks for anything else.
FOLLOWING_MS = 500

#: A client that holds messages that are not read yet fetches no more: whoever reads them may rest
#: for minutes, and at the log's end it would ask a hundred times a second meanwhile. By default it
#: looks only each second whether they were read.
_QUEUE: dict[str, str | int | bool] = {"queued_min_messages": 1, "fetch_queue_backoff_ms": 10}

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
    :param headers: empty where they were not asked for.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


class Tail:
    """Reads one partition from an offset on, and then perhaps another one of the topic: to open a
    client takes a second where its login does. Not thread-safe.

    :param begin: where to begin; None for the log's begin, or for the first message that was
        written since `since_ms`.
    :param with_headers: whether messages are given with their headers.
    :param fetch_wait_max_ms: how long a broker may keep a fetch that finds nothing; `FOLLOWING_MS`
        or more for a topic that is followed, so that it is not asked a hundred times a second.
    :raises SluiceError: the partition cannot be read.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        partition: int = 0,
        begin: int | None = None,
        since_ms: int | None = None,
        *,
        with_headers: bool = False,
        fetch_wait_max_ms: int = FETCH_WAIT_MS,
    ) -> None:
        self.topic = topic
        self._access, self._with_headers = access, with_headers
        self._consumer = make_consumer(access, fetch_wait_max_ms=fetch_wait_max_ms, **_QUEUE)
        self._unstable: ck.Consumer | None = None
        self._fetches = False
        self.position = 0
        try:
            self.turn_to(partition, begin, since_ms)
        except BaseException:
            self._consumer.close()
            raise

    def turn_to(
        self, partition: int, begin: int | None = None, since_ms: int | None = None
    ) -> None:
        """Go on with a partition of the topic; see above.

        :raises SluiceError: it cannot be read.
        """
        self.partition, self._name = partition, f"{self.topic}[{partition}]"
        self._where = ck.TopicPartition(self.topic, partition)
        self.ask_end()
        if since_ms is not None:
            begin = self._offset_since(since_ms)
        self._go_to(self.log_begin if begin is None else begin)

    @property
    def caught_up(self) -> bool:
        """Whether everything below the last stable offset, as last asked for, was read."""
        return self.position >= self.stable_end

    def ask_end(self) -> int:
        """Ask for the last stable offset as it is now."""
        self.log_begin, self.stable_end = _ends(self._consumer, self._where)
        return self.stable_end

    def poll(
        self, timeout_seconds: float, end: int | None = None, *, gathers: bool = True
    ) -> list[LogMessage]:
        """The next messages, in order; none if none came in time.

        :param end: what is below it has to come, also what stands behind open transactions; None
            for the last stable offset, as last asked for.
        :param gathers: of what is not known to be there yet all that comes in this time is waited
            for, so that who follows a busy topic is not woken by each message; else the first.
        :raises LogBeginLostError: messages vanished before they were read.
        :raises StalledError: messages below this end do not come.
        :raises SluiceError: Kafka answers with an error.
        """
        before = self.position
        found = self._consume(timeout_seconds, gathers=gathers)
        self._require_progress(before, self.stable_end if end is None else end, OPEN_SECONDS)
        return found

    def below(
        self,
        end: int | None = None,
        patience_seconds: float = OPEN_SECONDS,
        until: float | None = None,
    ) -> Iterator[LogMessage]:
        """The messages up to an offset, in order. Brokers are asked for nothing while messages are
        looked at that have come, however long it takes, nor once all of it is read.

        :param end: None for the last stable offset, as last asked for. Below a later one open
            transactions are waited for.
        :param patience_seconds: how long nothing may come.
        :param until: reading is given up then, by `time.monotonic`.
        :raises StalledError: nothing comes any more.
        :raises TooMuchToReadError: it was not read to its end by then.
        :raises KafkaUnavailableError: also if messages vanished before they were read: who begins
            again begins behind them.
        :raises SluiceError: Kafka answers with an error.
        """
        end = self.stable_end if end is None else end
        self._progress_at = time.monotonic()
        while (before := self.position) < end:
            try:
                found = self._consume(_POLL_SECONDS, gathers=False)
            except LogBeginLostError as error:
                raise KafkaUnavailableError(error.message) from None
            if self.position >= end:
                self._stop_fetching()
            for message in found:
                if message.offset < end:
                    yield message
            refuse_late(self._name, until)
            self._require_progress(before, end, patience_seconds)

    def _consume(self, timeout_seconds: float, *, gathers: bool) -> list[LogMessage]:
        """The next messages, and how far the log is read with them."""
        if not self._fetches:
            here = ck.TopicPartition(self.topic, self.partition, self.position)
            assign_at(self._consumer, here)
            self._fetches = True
        good: list[ck.Message] = []
        for message in self._fetched(timeout_seconds, gathers and self.caught_up):
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() in _GONE:
                raise LogBeginLostError(f"{self._name} at {self.position}: {error.str()}")
            elif error.code() != ck.KafkaError._PARTITION_EOF:
                raise kafka_error(f"reading {self._name} at {self.position}", error)
        self.position = self._read_to()
        headers = all_headers(good) if self._with_headers else ([] for _ in good)
        return [
            LogMessage(m.offset(), m.timestamp()[1], m.key(), m.value(), own)
            for m, own in zip(good, headers, strict=True)
        ]

    def _fetched(self, timeout_seconds: float, gathers: bool) -> list[ck.Message]:
        """What waits in the client, or the first that comes: who asks it for more waits to the end
        of the time, and so did each read of a log to its end.

        :param gathers: all that comes in this time.
        """
        consumer = self._consumer
        if gathers:
            return list(consumer.consume(_POLL_MESSAGES, timeout_seconds))
        found = list(consumer.consume(_POLL_MESSAGES, 0.0))
        if found or self._read_to() > self.position:  # markers of transactions are no messages
            return found
        return list(consumer.consume(1, timeout_seconds))

    def _read_to(self) -> int:
        return max(self.position, int(self._consumer.position([self._where])[0].offset))

    def _require_progress(self, before: int, end: int, patience_seconds: float) -> None:
        """See that a poll went on from `before`. Who was given its messages may have taken long.

        :raises StalledError: of what is below this end nothing came for so long.
        """
        now = time.monotonic()
        if self.position > before or self.position >= end:
            self._progress_at = now
        elif now - self._progress_at > patience_seconds:
            self._progress_at = now
            what = f"{self._name} cannot be read beyond offset {self.position}"
            if end <= self.stable_end:
                raise StalledError(what)
            what += "; perhaps a transaction of another producer is open there"
            raise StalledError(what, OPEN_TRANSACTION_HINT)

    def _offset_since(self, since_ms: int) -> int:
        """The first offset whose message is not older; the last stable one if there is none."""
        wanted = ck.TopicPartition(self.topic, self.partition, max(0, since_ms))
        try:
            (found,) = self._consumer.offsets_for_times([wanted], timeout=_TIMEOUT_SECONDS)
        except ck.KafkaException as error:
            what = f"asking for an offset of {self._name} by time"
            raise kafka_error(what, error) from None
        return int(found.offset) if found.offset >= 0 else self.stable_end

    def seek(self, offset: int) -> None:
        """Go on from this offset, or from the log's begin if that is later."""
        self.ask_end()
        self._go_to(offset)

    def _go_to(self, offset: int) -> None:
        self.position = max(offset, self.log_begin)
        self._progress_at = time.monotonic()
        self._stop_fetching()

    def _stop_fetching(self) -> None:
        """Until something is to be read: what was fetched and not read is fetched again then."""
        self._consumer.unassign()
        self._fetches = False

    def log_end(self) -> int:
        """The end of all that is written now, also in transactions that are open.

        :raises SluiceError: Kafka does not tell.
        """
        if self._unstable is None:
            self._unstable = make_unstable_reader(self._access)
        return _ends(self._unstable, self._where)[1]

    def close(self) -> None:
        """Close the clients."""
        self._consumer.close()
        if self._unstable is not None:
            self._unstable.close()


def assign_at(consumer: ck.Consumer, where: ck.TopicPartition) -> None:
    """Have a consumer go on with one partition at an offset, and wait until it has forgotten how
    far it read the partition before: it answers sooner than that.

    :raises KafkaUnavailableError: it does not go back.
    """
    until = time.monotonic() + _TIMEOUT_SECONDS
    consumer.assign([where])
    while consumer.position([where])[0].offset > where.offset:
        if time.monotonic() > until:
            what = f"the client does not go back to offset {where.offset}"
            raise KafkaUnavailableError(f"{what} of {where.topic}[{where.partition}]")
        time.sleep(_FORGETS_SECONDS)


def log_ends(
    access: KafkaAccess, topic: str, partition: int = 0, *, is_stable: bool
) -> tuple[int, int]:
    """Where a partition's log begins and ends.

    :param is_stable: its last stable offset is meant; else the end of all that is written, also in
        transactions that are open.
    :raises SluiceError: Kafka does not tell.
    """
    reader = make_consumer(access) if is_stable else make_unstable_reader(access)
    try:
        return _ends(reader, ck.TopicPartition(topic, partition))
    finally:
        reader.close()


def _ends(consumer: ck.Consumer, where: ck.TopicPartition) -> tuple[int, int]:
    try:
        low, high = consumer.get_watermark_offsets(where, timeout=_TIMEOUT_SECONDS, cached=False)
    except ck.KafkaException as error:
        raise kafka_error(f"reading {where.topic}[{where.partition}]", error) from None
    return low, high
