"""Writing to the dead-letter topic from outside of the pipeline: replays and purges.

Each dead letter goes back at most once, whatever happens. Three things hold that:

1. A message goes back in one transaction with the mark that says so.
2. Who replays or purges initialises the topic's own transactional id first, which fences
   everyone who did so before: of two operators, only the later one can commit.
3. Only then the marks are read, up to the very end of the log. What was committed before is
   seen; what was not, is aborted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

from sluice.core.dead_letters import (
    ATTEMPT_HEADER,
    LETTER_HEADER,
    ORIGIN_HEADER,
    ORIGIN_TIMESTAMP_HEADER,
    REPLAY_HEADERS,
    TABLE_HEADER,
)
from sluice.core.errors import SluiceError, TerminalError
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.kafka.clients import KafkaAccess, make_admin, make_consumer, make_producer
from sluice.kafka.dead_letters import Outgoing, StoredDeadLetter, recognised, shown_origin
from sluice.kafka.errors import FencedError, KafkaUnavailableError, StalledError, kafka_error
from sluice.kafka.headers import Headers, headers_of
from sluice.kafka.log import SourceLog
from sluice.kafka.tail import FETCH_WAIT_MS, assign_at
from sluice.kafka.transactions import in_transaction, initialise, produce

_logger = logging.getLogger("sluice.kafka")

#: Short, since an open transaction holds the pipeline back on the partitions it writes to.
_TRANSACTION_TIMEOUT_MS = 30_000
_OPEN_SECONDS = 90.0
_FETCH_SECONDS = 30.0
_READABLE_SECONDS = 5.0


class OvertakenError(TerminalError):
    """Somebody else replays or purges the same topic, and began later."""

    hint = "Wait for the other one, then run this command again: it skips what was done."


class OriginGoneError(TerminalError):
    """The whole message of a dead letter that was cut cannot be read any more."""

    hint = "Produce the message again from where it came from; this dead letter cannot be replayed."


def replayed_message(dead_letter_topic: str, stored: StoredDeadLetter) -> Outgoing:
    """The message as it was, with what tells the loader where it belongs and comes from.

    Its Kafka timestamp is the time of the replay: a log whose retention is over would drop a
    message with the old one before it is loaded.
    """
    letter, first, table = stored.letter, stored.letter.first, only_table(stored.letter)
    headers: Headers = [item for item in letter.headers if item[0] not in REPLAY_HEADERS]
    if table:
        headers.append((TABLE_HEADER, table.encode()))
    timestamp = b"" if first.timestamp_ms is None else b"%d" % first.timestamp_ms
    headers += [
        (ORIGIN_HEADER, shown_origin(first)),
        (ORIGIN_TIMESTAMP_HEADER, timestamp),
        (ATTEMPT_HEADER, b"%d" % (letter.attempt + 1)),
        (LETTER_HEADER, f"{dead_letter_topic}/{stored.partition}/{stored.offset}".encode()),
    ]
    return Outgoing(letter.topic, letter.partition, letter.key, letter.value, headers)


def only_table(letter: DeadLetter) -> str:
    """The table entry that alone gets the message back; "" for whom its route names.

    A dead letter that no entry took may still be one of a message that was for one entry.
    """
    named = dict(letter.headers).get(TABLE_HEADER) or b""
    return letter.table or named.decode(errors="replace")


def writer_identity(dead_letter_topic: str) -> str:
    """The transactional id of the one who may write marks into it."""
    return f"sluice.dead-letters.{dead_letter_topic}"


class DeadLetterWriter:
    """Transactions of the one who may write marks. Open it, then read the marks, then write."""

    def __init__(self, access: KafkaAccess, dead_letter_topic: str) -> None:
        self._access, self._topic = access, dead_letter_topic
        self._identity = writer_identity(dead_letter_topic)
        self._producer: ck.Producer | None = None
        #: An answer that is missing is not waited for: who opens again reads what was written.
        self._stop = threading.Event()
        self._stop.set()
        self._written: set[TopicPartition] = set()

    def open(self) -> None:
        """Fence everyone who opened this before; their transactions are over when it returns.

        :raises TransientError: Kafka does not answer.
        """
        deadline = time.monotonic() + _OPEN_SECONDS
        while True:
            made = self._identity, _TRANSACTION_TIMEOUT_MS, self._topic
            producer = make_producer(self._access, *made)
            failure = initialise(producer)
            if failure is None:
                self._producer = producer
                return
            if isinstance(failure, TerminalError) or time.monotonic() > deadline:
                raise failure
            _logger.warning("%s", failure)
            time.sleep(0.5)

    def write(self, messages: Sequence[Outgoing]) -> None:
        """One transaction.

        :raises OvertakenError: somebody else opened it; the marks tell what was written.
        :raises TransientError: nothing of this was written.
        :raises UnknownCommitError: nobody knows; open again and read the marks.
        """
        producer = self._producer
        if producer is None:
            raise AssertionError("the writer is not open")
        self._written |= {
            TopicPartition(each.topic, each.partition)
            for each in messages
            if each.partition is not None
        }

        def write() -> None:
            for each in messages:
                produce(producer, each)

        try:
            in_transaction(producer, "writing marks", write, self._stop)
        except FencedError:
            self._producer = None
            raise OvertakenError(
                "another command began to replay or to purge these dead letters after this one"
            ) from None
        except SluiceError:
            self._producer = None
            raise

    def wait_until_readable(self) -> None:
        """Until others can read what was written: brokers end a transaction a little after they
        said so. Waits not for long, since somebody else's transaction may be open there."""
        log = SourceLog(make_admin(self._access))
        with suppress(StalledError):
            log.wait_until_committed(self._written, _READABLE_SECONDS)


class OriginalReader:
    """Reads single messages again, for dead letters that were cut. Close it."""

    def __init__(self, access: KafkaAccess) -> None:
        self._consumer = make_consumer(access, fetch_wait_max_ms=FETCH_WAIT_MS)

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()

    def whole(self, stored: StoredDeadLetter) -> StoredDeadLetter:
        """The dead letter with its message as it was.

        :raises OriginGoneError: the log does not hold it any more, or holds another message.
        :raises TransientError: the broker does not answer.
        """
        letter = stored.letter
        if not stored.cut:
            return stored
        message = self._read(letter.topic, letter.partition, letter.offset)
        where = f"{letter.topic}[{letter.partition}] offset {letter.offset}"
        if message is None:
            raise OriginGoneError(
                f"the dead letter of {where} was cut, and the log has no such message"
            )
        if not _is_same(message, stored):
            raise OriginGoneError(
                f"the dead letter of {where} was cut, and another message stands there now: the "
                "topic "
                "was deleted and created again"
            )
        whole = letter._replace(
            key=message.key(),
            value=message.value(),
            headers=tuple(headers_of(message)),
            truncated=False,
        )
        whole = recognised(whole)
        return replace(stored, letter=whole, cut=())

    def _read(self, topic: str, partition: int, offset: int) -> ck.Message | None:
        where = ck.TopicPartition(topic, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(where, timeout=15, cached=False)
            if not low <= offset < high:
                return None
            assign_at(self._consumer, ck.TopicPartition(topic, partition, offset))
            deadline = time.monotonic() + _FETCH_SECONDS
            while time.monotonic() < deadline:
                message = self._consumer.poll(0.2)
                if message is None:
                    if self._consumer.position([where])[0].offset > offset:
                        return None
                    continue
                if message.error() is not None:
                    raise kafka_error(f"reading {topic}[{partition}]", message.error())
                return message if message.offset() == offset else None
        except ck.KafkaException as error:
            raise kafka_error(f"reading {topic}[{partition}]", error) from None
        raise KafkaUnavailableError(f"{topic}[{partition}] offset {offset} cannot be read")


def _is_same(message: ck.Message, stored: StoredDeadLetter) -> bool:
    """Whether a message is the one that a dead letter was cut from, as far as the dead letter
    shows."""
    letter: DeadLetter = stored.letter
    kind, timestamp_ms = message.timestamp()
    if kind == ck.TIMESTAMP_NOT_AVAILABLE:
        timestamp_ms = None
    key, value = message.key() or b"", message.value() or b""
    return (
        timestamp_ms == letter.timestamp_ms
        and key.startswith(letter.key or b"")
        and value.startswith(letter.value or b"")
    )


def delete_before(admin: AdminClient, topic: str, befores: dict[int, int]) -> None:
    """Delete the records of partitions of a topic below an offset of each.

    :raises SluiceError: a broker refuses, or does not answer.
    """
    wanted = [ck.TopicPartition(topic, number, offset) for number, offset in befores.items()]
    if not wanted:
        return
    futures: dict[ck.TopicPartition, Callable[[], object]] = {
        where: future.result
        for where, future in admin.delete_records(wanted, request_timeout=30).items()
    }
    for where, result in futures.items():
        try:
            result()
        except ck.KafkaException as error:
            action = f"deleting records of {topic}[{where.partition}] before {where.offset}"
            raise kafka_error(action, error) from None
