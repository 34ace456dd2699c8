"""One transaction, step by step, on a producer that does what a test says: which call fails, and
how, no broker can be made to choose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import confluent_kafka as ck
import pytest

from sluice.core.errors import SluiceError, TransientError
from sluice.core.ledger import Commit, LedgerEntry
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.core.records import Record, encode
from sluice.kafka import transactions
from sluice.kafka.errors import FencedError, KafkaUnavailableError, UnknownCommitError
from sluice.kafka.transactions import Content, RecorderNames, initialise, transact, weight_of_offset
from tests.kafka.groups import NOW, intend, letter

NAMES = RecorderNames("group", "ledger", "letters", "me")
ENTRY = LedgerEntry(TopicPartition("t", 0), {"type": "load_spec"})


class Producer:
    """Says what was called, and raises what it is told to, in turn."""

    def __init__(self, **failures: Sequence[Exception | None]) -> None:
        self.failures = {name: list(errors) for name, errors in failures.items()}
        self.calls: list[str] = []
        self.produced: list[tuple[str, bytes | None]] = []
        self.sent: list[list[tuple[str, int, int, str]]] = []
        self.flushed_at: list[int] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        waiting = self.failures.get(name)
        error = waiting.pop(0) if waiting else None
        if error is not None:
            raise error

    def init_transactions(self, timeout: float) -> None:
        self._called("init")

    def begin_transaction(self) -> None:
        self._called("begin")

    def produce(self, topic: str, value: Any, key: Any, headers: Any) -> None:
        self._called("produce")
        self.produced.append((topic, value))

    def poll(self, timeout: float) -> None:
        self._called("poll")

    def flush(self, timeout: float) -> int:
        self._called("flush")
        self.flushed_at.append(len(self.produced))
        return 0

    def send_offsets_to_transaction(
        self, part: list[ck.TopicPartition], metadata: Any, timeout: float
    ) -> None:
        self._called("offsets")
        self.sent.append([(p.topic, p.partition, p.offset, p.metadata) for p in part])

    def commit_transaction(self, timeout: float) -> None:
        self._called("commit")

    def abort_transaction(self, timeout: float) -> None:
        self._called("abort")


def kafka(
    code: int = ck.KafkaError._TRANSPORT, *, fatal: bool = False, retriable: bool = False
) -> ck.KafkaException:
    return ck.KafkaException(ck.KafkaError(code, "scripted", fatal, retriable, False))


FENCED = kafka(ck.KafkaError._FENCED, fatal=True)


def run(
    producer: Producer, commit: Commit | None = None, names: RecorderNames = NAMES
) -> threading.Event:
    stop = threading.Event()
    record = intend("me", 0, 10)
    commit = commit or Commit({TopicPartition("t", 0): record}, (ENTRY,))
    transact(cast(Any, producer), Content("dc1", names, NOW, commit), None, stop)
    return stop


def test_entries_and_dead_letters_before_offsets_before_the_commit() -> None:
    producer, record = Producer(), intend("me", 5, 10)
    run(producer, Commit({TopicPartition("t", 3): record}, (ENTRY, ENTRY), (letter(),)))
    assert producer.calls == ["begin", *["produce"] * 3, "offsets", "commit"]
    assert [topic for topic, _ in producer.produced] == ["ledger", "ledger", "letters"]
    assert producer.sent == [[("t", 3, 5, encode(record))]]


@pytest.mark.parametrize("step", ["begin", "produce", "offsets"])
def test_what_fails_before_the_commit_is_aborted(step: str) -> None:
    producer = Producer(**{step: [kafka()]})
    with pytest.raises(KafkaUnavailableError):
        run(producer)
    assert producer.calls[-1] == "abort" and "commit" not in producer.calls


def test_who_is_fenced_aborts_nothing() -> None:
    producer = Producer(offsets=[FENCED])
    with pytest.raises(FencedError):
        run(producer)
    assert "abort" not in producer.calls and "commit" not in producer.calls


@pytest.mark.parametrize(("abort", "kind"), [(kafka(), UnknownCommitError), (FENCED, FencedError)])
def test_an_abort_that_fails_leaves_nothing_known(
    abort: ck.KafkaException, kind: type[SluiceError]
) -> None:
    """Its producer is of no use any more; what is committed is read."""
    with pytest.raises(kind):
        run(Producer(offsets=[kafka()], abort=[abort]))


def test_a_commit_without_an_answer_is_repeated_and_never_aborted() -> None:
    again = kafka(retriable=True)
    producer = Producer(commit=[again, again, None])
    run(producer)
    assert producer.calls[-3:] == ["commit"] * 3 and "abort" not in producer.calls


@pytest.mark.parametrize(
    ("failure", "kind"), [(kafka(), UnknownCommitError), (FENCED, FencedError)]
)
def test_a_commit_that_cannot_be_repeated_is_of_unknown_outcome(
    failure: ck.KafkaException, kind: type[SluiceError]
) -> None:
    producer = Producer(commit=[failure])
    with pytest.raises(kind):
        run(producer)
    assert producer.calls.count("commit") == 1 and "abort" not in producer.calls


def test_patience_with_a_commit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    again = kafka(retriable=True)
    monkeypatch.setattr(transactions, "COMMIT_PATIENCE_SECONDS", -1.0)
    producer = Producer(commit=[again])
    with pytest.raises(UnknownCommitError):
        run(producer)
    assert producer.calls.count("commit") == 1


def test_a_stop_ends_it_too() -> None:
    stop = threading.Event()
    stop.set()
    producer = Producer(commit=[kafka(retriable=True)])
    commit = Commit({TopicPartition("t", 0): intend("me", 0, 10)})
    with pytest.raises(UnknownCommitError):
        transact(cast(Any, producer), Content("dc1", NAMES, NOW, commit), None, stop)


def test_a_full_client_is_waited_for() -> None:
    producer = Producer(produce=[BufferError(), BufferError(), None])
    run(producer)
    assert producer.calls[:6] == ["begin", "produce", "poll", "produce", "poll", "produce"]
    assert len(producer.produced) == 1


def test_what_is_parked_and_copies_of_duplicates_have_topics_of_their_own() -> None:
    """Where none is named any more, they become dead letters: nothing is lost."""
    dead_letters = (letter(1, into="parking"), letter(2), letter(3, into="duplicates"))
    commit = Commit({TopicPartition("t", 0): intend("me", 0, 10)}, (), dead_letters)
    for named, topics in (("own", ["own", "letters", "own"]), ("", ["letters"] * 3)):
        producer = Producer()
        run(producer, commit, replace(NAMES, parking_topic=named, duplicates_topic=named))
        assert [topic for topic, _ in producer.produced] == topics


def test_dead_letters_are_sent_before_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """While more than one batch waits, the client's thread asks without a pause."""

    def flushes(*sizes: int) -> list[int]:
        producer = Producer()
        dead_letters: tuple[DeadLetter, ...] = tuple(letter(0, b"v" * size) for size in sizes)
        run(producer, Commit({TopicPartition("t", 0): intend("me", 0, 9)}, (), dead_letters))
        return producer.flushed_at

    assert flushes(10_000, 10_000) == []
    monkeypatch.setattr(transactions, "WAITING_BYTES_MAX", 30_000)
    assert flushes(12_000, 12_000, 12_000, 12_000, 12_000) == [2, 4]
    assert flushes(50_000, 50_000) == [1]


def test_offsets_go_in_parts_that_a_batch_of_the_broker_can_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is never passed, and no partition is left out."""
    record = intend("me", 0, 10)
    sources = [TopicPartition("topic", number) for number in range(7)]
    weight = weight_of_offset(sources[0], encode(record))
    assert weight == len(encode(record)) + len("topic") + 64
    for limit, sizes in ((3 * weight, [3, 3, 1]), (3 * weight - 1, [2, 2, 2, 1]), (1, [1] * 7)):
        monkeypatch.setattr(transactions, "SEND_BYTES_MAX", limit)
        producer = Producer()
        records: dict[TopicPartition, Record] = dict.fromkeys(reversed(sources), record)
        run(producer, Commit(records))
        assert [len(part) for part in producer.sent] == sizes
        assert [p for part in producer.sent for _, p, _, _ in part] == list(range(7))


@pytest.mark.parametrize(
    ("failure", "kind"), [(kafka(), KafkaUnavailableError), (FENCED, FencedError)]
)
def test_initialising_says_what_went_wrong(
    failure: ck.KafkaException, kind: type[SluiceError]
) -> None:
    assert initialise(cast(Any, Producer())) is None
    assert isinstance(initialise(cast(Any, Producer(init=[failure]))), kind)


def test_a_call_that_hangs_is_of_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def within(action: str, seconds: float, call: Callable[[], Any]) -> Any:
        raise UnknownCommitError(action)

    monkeypatch.setattr(transactions, "within", within)
    assert isinstance(initialise(cast(Any, Producer())), UnknownCommitError)
    with pytest.raises(UnknownCommitError):
        run(Producer())
    assert not issubclass(UnknownCommitError, TransientError)
