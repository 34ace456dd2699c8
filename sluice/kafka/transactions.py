"""One Kafka transaction: entries, dead letters and offsets become true together.

The wait for a call that hangs is ended. librdkafka's transaction calls may ignore their time-out:
after a broker's restart, the send of offsets did not come back for 120 s [measured] (H6). Such a
call is left alone in its thread and its producer is never used again; initialising the same
transactional id in a new producer fences it, so whatever it still sends is refused.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import confluent_kafka as ck

from sluice.core.errors import SluiceError, TerminalError
from sluice.core.ledger import Commit, encode_entries
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.core.records import Record, encode
from sluice.core.transaction_size import TransactionSize
from sluice.kafka.dead_letters import Outgoing, wrap
from sluice.kafka.errors import FencedError, UnknownCommitError, kafka_error

_logger = logging.getLogger("sluice.kafka")

#: Exit status "stopped with intents in doubt".
HUNG_EXIT_STATUS = 3
#: So many hanging calls at once are a process that cannot be trusted any more.
HANGING_MAX = 5

_T = TypeVar("_T")
_hanging: list[threading.Thread] = []


def within(action: str, seconds: float, call: Callable[[], _T]) -> _T:
    """Call, and return or raise what it does.

    :raises UnknownCommitError: it did not come back in time; its producer must be dropped.
    """
    answers: list[_T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=action, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _give_up(thread, action, seconds)
        raise UnknownCommitError(f"{action} did not come back within {seconds:.0f} s")
    if failures:
        raise failures[0]
    return answers[0]


def _give_up(thread: threading.Thread, action: str, seconds: float) -> None:
    _hanging[:] = [*(other for other in _hanging if other.is_alive()), thread]
    if len(_hanging) < HANGING_MAX:
        return
    _logger.critical(
        "%d Kafka calls hang, %s for %.0f s; the process ends so that its successor can go on",
        len(_hanging),
        action,
        seconds,
    )
    logging.shutdown()
    os._exit(HUNG_EXIT_STATUS)


#: A send of offsets is one record batch of the broker, limited by message.max.bytes (H19).
SEND_BYTES_MAX = 500_000

#: Dead letters that wait in the client before it has to send them: half a batch of its own. While
#: more than one batch waits for the broker, the client's thread asks without a pause whether it
#: may be sent: 0.5 to 0.9 s of CPU in 1.5 s [measured, librdkafka 2.16].
WAITING_BYTES_MAX = 500_000
#: A broker that is slower than that is not waited for until the commit.
FLUSH_SECONDS_MAX = 5.0

CALL_TIMEOUT_SECONDS = 15.0
#: A call that takes longer hangs, whatever its own time-out.
HANG_SECONDS = 30.0
#: A commit whose answer is missing is repeated for so long before the outcome is read.
COMMIT_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RecorderNames:
    """What a recorder writes to, and as whom.

    :param owner: last part of the own transactional id; unique for each driver process.
    :param dead_letter_bytes_max: max.message.bytes of the dead-letter topic.
    :param size: learns what one transaction may carry.
    """

    group: str
    ledger_topic: str
    dead_letter_topic: str
    owner: str
    dead_letter_bytes_max: int = 1_000_000
    #: "" where no table entry may be parked; likewise that of duplicates.
    parking_topic: str = ""
    duplicates_topic: str = ""
    #: Where entries that are decisions stand, too; "" for who decides nothing.
    decisions_topic: str = ""
    transaction_timeout_ms: int = 60_000
    #: With other members of a fleet, who may give back what they have taken over (R25).
    is_shared: bool = False
    size: TransactionSize = field(default_factory=TransactionSize, compare=False)

    def topic_of(self, letter: DeadLetter) -> str:
        """Where a dead letter goes: none is lost for a topic that is not named any more."""
        other = {"parking": self.parking_topic, "duplicates": self.duplicates_topic}
        return other.get(letter.into, "") or self.dead_letter_topic


@dataclass(frozen=True, slots=True)
class Content:
    """What one transaction writes, and where."""

    connector: str
    names: RecorderNames
    now_ms: int
    commit: Commit


def initialise(producer: ck.Producer) -> SluiceError | None:
    """Initialise transactions; gives what went wrong."""
    action = "initialising transactions"
    try:
        within(action, HANG_SECONDS, lambda: producer.init_transactions(CALL_TIMEOUT_SECONDS))
        return None
    except UnknownCommitError as error:
        return error
    except ck.KafkaException as error:
        failure = kafka_error(action, error)
        # What is refused for good is fatal to librdkafka, too.
        if error.args[0].fatal() and not isinstance(failure, TerminalError):
            return FencedError(failure.message)
        return failure


def transact(
    producer: ck.Producer, content: Content, group_metadata: Any, stop: threading.Event
) -> None:
    """1. Begin. 2. Write entries. 3. Send offsets. 4. Commit.

    :param group_metadata: of a consumer of the group, as librdkafka wants it.
    :param stop: set when waiting for an answer is to end.
    :raises TransientError: aborted, nothing is committed.
    :raises FencedError: this id was initialised again.
    :raises UnknownCommitError: nobody knows.
    """
    began, is_committed = time.monotonic(), False
    try:
        in_transaction(
            producer, "recording intents", lambda: _send(producer, content, group_metadata), stop
        )
        is_committed = True
    finally:
        _learn(content, time.monotonic() - began, is_committed=is_committed)


def _learn(content: Content, seconds: float, *, is_committed: bool) -> None:
    """What the next transactions may carry. Says why one was not committed, where that is likely to
    be its own time-out: the error is the same as that of one which a successor has fenced (H4)."""
    names, timeout_seconds = content.names, content.names.transaction_timeout_ms / 1000
    carried = sum(letter.weight for letter in content.commit.dead_letters)
    names.size.learn(carried, seconds, timeout_seconds, is_committed=is_committed)
    if carried and not is_committed and seconds >= min(timeout_seconds, HANG_SECONDS):
        _logger.warning(
            "%s.%s: a transaction with %.1f MB of dead letters was not committed in %.0f s, and "
            "Kafka ends one after %.0f s: the brokers are away, or the way to them is too slow for "
            "so much. The next ones carry %.1f MB at most. Try: whether brokers throttle this user "
            "(quotas), and `sluice dead-letters list --summary`",
            *(names.group, names.owner, carried / 1e6, seconds, timeout_seconds),
            names.size.bytes_max / 1e6,
        )


def in_transaction(
    producer: ck.Producer, action: str, write: Callable[[], None], stop: threading.Event
) -> None:
    """Write something, all of it or nothing; see `transact`."""

    def begin() -> None:
        producer.begin_transaction()
        write()

    try:
        within(action, HANG_SECONDS, begin)
    except (ck.KafkaException, BufferError) as error:
        _abort(producer, kafka_error(action, error))
    _commit(producer, stop)


def _send(producer: ck.Producer, content: Content, group_metadata: Any) -> None:
    _write(producer, content)
    for part in _split(content.commit.records):
        producer.send_offsets_to_transaction(part, group_metadata, CALL_TIMEOUT_SECONDS)


def _write(producer: ck.Producer, content: Content) -> None:
    names = content.names
    for key, value in encode_entries(content.connector, content.now_ms, content.commit.entries):
        for topic in filter(None, (names.ledger_topic, names.decisions_topic)):
            produce(producer, Outgoing(topic, None, key, value, []))
    waiting, is_answered = 0, True
    for letter in content.commit.dead_letters:
        wrapped = wrap(names.topic_of(letter), letter, names.dead_letter_bytes_max)
        size = wrapped.bytes
        if waiting and waiting + size > WAITING_BYTES_MAX and is_answered:
            is_answered = producer.flush(FLUSH_SECONDS_MAX) == 0
            waiting = 0
        produce(producer, wrapped)
        waiting += size


def _abort(producer: ck.Producer, failure: SluiceError) -> None:
    if isinstance(failure, FencedError):
        raise failure
    try:
        within(
            "aborting a transaction",
            HANG_SECONDS,
            lambda: producer.abort_transaction(CALL_TIMEOUT_SECONDS),
        )
    except ck.KafkaException as error:
        again = kafka_error(failure.message, error)
        if isinstance(again, FencedError):
            raise again from None
        raise UnknownCommitError(failure.message) from None
    raise failure


def _commit(producer: ck.Producer, stop: threading.Event) -> None:
    """Repeat only the commit while its answer is missing, never abort (H6)."""
    deadline = time.monotonic() + COMMIT_PATIENCE_SECONDS
    while True:
        try:
            within(
                "committing a transaction",
                HANG_SECONDS,
                lambda: producer.commit_transaction(CALL_TIMEOUT_SECONDS),
            )
            return
        except ck.KafkaException as error:
            inner = error.args[0]
            failure = kafka_error("committing a transaction", error)
            if isinstance(failure, FencedError):
                raise failure from None
            if not inner.retriable() or time.monotonic() > deadline or stop.is_set():
                raise UnknownCommitError(failure.message) from None


def produce(producer: ck.Producer, message: Outgoing) -> None:
    """Write a message; waits while the producer's queue is full."""
    place = {} if message.partition is None else {"partition": message.partition}
    while True:
        try:
            producer.produce(
                message.topic,
                value=message.value,
                key=message.key,
                headers=message.headers,
                **place,
            )
            return
        except BufferError:
            producer.poll(0.05)


def weight_of_offset(source: TopicPartition, metadata: str) -> int:
    """Bytes of one partition in a send, with what the broker adds."""
    return len(metadata) + len(source.topic) + 64


def _split(records: Mapping[TopicPartition, Record]) -> list[list[ck.TopicPartition]]:
    """Cut one transaction's offsets into sends below the broker's batch limit (H19)."""
    parts: list[list[ck.TopicPartition]] = [[]] if records else []
    size = 0
    for source, record in sorted(records.items()):
        metadata = encode(record)
        weight = weight_of_offset(source, metadata)
        if parts[-1] and size + weight > SEND_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(
            ck.TopicPartition(source.topic, source.partition, record.begin, metadata=metadata)
        )
        size += weight
    return parts
