"""Recording on a real broker: what is committed, and what is noticed (R1 to R5)."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import confluent_kafka as ck
import pytest

from sluice.core.errors import ForeignHandsError, OwnerChangedError, TransientError
from sluice.core.ledger import Commit, CommittedOffset
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record, encode
from sluice.core.transaction_size import TransactionSize
from sluice.kafka import recorder as recorder_module
from sluice.kafka import transactions as transactions_module
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.errors import FencedError, KafkaUnavailableError, UnknownCommitError
from sluice.kafka.recorder import Recorder
from sluice.testbed.chaos.proxy import Kind as Throttled
from sluice.testbed.chaos.proxy import LinkFault, Proxy
from sluice.testbed.chaos.requests import kafka_requests
from sluice.testbed.chaos.stage import ProxiedBroker
from sluice.testbed.local.running import Broker, running_program
from tests.kafka.groups import SETTLED, Group, intend, letter
from tests.support.kafka import Kafka


def test_a_chain_of_records(group: Group) -> None:
    driver = group.owning("a")
    first = replace(SETTLED, owner="a")
    assert group.holds(first)
    second, third = intend("a", 0, 10), intend("a", 10, 25)
    driver.record(group.commit(second), dict.fromkeys(group.sources, first))
    assert driver.differences(dict.fromkeys(group.sources, second)) == {}
    driver.record(group.commit(third), dict.fromkeys(group.sources, second))
    assert group.holds(third)
    assert group.ledger_kinds() == [("a", "settle"), ("a", "intend"), ("a", "intend")]


def test_any_subset_goes_on(kafka: Kafka) -> None:
    group = Group(kafka, partitions=3)
    driver = group.owning("a")
    record = intend("a", 0, 10)
    one = group.sources[1]
    driver.record(Commit({one: record}), {one: replace(SETTLED, owner="a")})
    found = driver.committed(group.sources)
    assert [found[source] for source in group.sources] == [
        CommittedOffset(0, encode(replace(SETTLED, owner="a"))),
        CommittedOffset(0, encode(record)),
        CommittedOffset(0, encode(replace(SETTLED, owner="a"))),
    ]
    group.close()


def test_a_foreign_commit_is_noticed(group: Group) -> None:
    """A real consumer joins the group and commits over ours (H2)."""
    driver = group.owning("a")
    record = replace(SETTLED, owner="a")
    group.kafka.commit_as_consumer(group.name, group.topic, 3)
    (how,) = driver.differences(dict.fromkeys(group.sources, record)).values()
    assert "holds offset 3 with None" in how and encode(record) in how
    assert str(group.sources[0]) in how


def test_a_record_of_another_owner_is_told_apart_from_foreign_hands(group: Group) -> None:
    driver = group.owning("a")
    group.owning("b")
    with pytest.raises(OwnerChangedError, match="belongs to b"):
        driver.differences({group.sources[0]: replace(SETTLED, owner="a")})


def test_lost_offsets_are_noticed(group: Group) -> None:
    driver = group.owning("a")
    group.kafka.admin.delete_consumer_groups([group.name])[group.name].result(20)
    (how,) = driver.differences({group.sources[0]: replace(SETTLED, owner="a")}).values()
    assert "holds nothing" in how


def test_dead_letters_ride_in_the_transaction(group: Group) -> None:
    driver = group.owning("a")
    dead_letters = (letter(3), letter(4, None, truncated=True, timestamp_ms=None, key=None))
    driver.record(group.commit(intend("a", 0, 10), *dead_letters), {})
    (first, _) = group.kafka.read(group.dead_letters)
    assert list(read_dead_letters(group.kafka.access(), group.dead_letters)) == list(dead_letters)
    headers = dict(first.headers())
    assert (first.key(), first.value()) == (b"key", b"{")
    assert (headers["sluice.topic"], headers["sluice.offset"]) == (b"events", b"3")
    assert (headers["sluice.reason"], headers["sluice.header.trace"]) == (b"syntax", b"t")


def test_nothing_of_a_zombie_becomes_visible(group: Group) -> None:
    zombie = group.owning("a")
    successor = group.owning("b")
    with pytest.raises(OwnerChangedError):
        zombie.record(
            group.commit(intend("a", 0, 10), letter()),
            dict.fromkeys(group.sources, replace(SETTLED, owner="a")),
        )
    assert group.holds(replace(SETTLED, owner="b"))
    group.kafka.until_stable(group.dead_letters)
    assert list(read_dead_letters(group.kafka.access(), group.dead_letters)) == []
    assert group.ledger_kinds() == [("a", "settle"), ("b", "settle")]
    successor.record(group.commit(intend("b", 0, 10), letter()), {})
    group.kafka.until_stable(group.dead_letters)
    assert len(list(read_dead_letters(group.kafka.access(), group.dead_letters))) == 1


def test_dead_letters_that_are_too_long_are_cut_and_never_wedge(kafka: Kafka) -> None:
    group = Group(kafka, dead_letters_max=100_000)
    driver = group.owning("a")
    too_long = (
        letter(1, b"v" * 5_000_000),
        letter(2, b"v" * 200_000, key=b"k" * 300_000),
        letter(3, b"v", headers=tuple((f"h{number}", b"x" * 1000) for number in range(500))),
        letter(4, b"v", error="e" * 500_000),
    )
    driver.record(group.commit(intend("a", 0, 10), *too_long), {})
    found = kafka.read(group.dead_letters)
    cut = [dict(message.headers())["sluice.truncated"] for message in found]
    assert cut == [b"value", b"key,value", b"headers", b""]
    assert [dict(message.headers())["sluice.offset"] for message in found] == [
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    assert all(len(message.value()) > 0 for message in found)
    assert all(len(message.key() or b"") <= 100_000 for message in found)
    group.close()


@pytest.mark.slow
def test_a_long_rest_of_a_probe_can_be_recorded(group: Group) -> None:
    """Of a large range every other offset is missing, without any order, in each of 16 tables:
    3 MB in the ledger, one record."""
    from sluice.core.ledger import Background, record_entry
    from sluice.core.ranges import intervals_of

    driver = group.owning("a")
    chance = random.Random(7)
    offsets = [o for o in range(10**8, 10**8 + 1_000_000) if chance.random() < 0.5]
    missing = intervals_of(offsets)
    rest = {f"orders{n}": missing for n in range(16)}
    probe = intend("a", 0, 10, rest="0123456789ab")
    source = group.sources[0]
    entry = record_entry(source, probe, Background(rest=rest))
    assert len(json.dumps(entry.body)) > 2_500_000
    driver.record(Commit({source: probe}, (entry,)), {})
    assert group.holds(probe)


@pytest.mark.slow
def test_a_thousand_partitions_in_one_transaction(kafka: Kafka) -> None:
    group = Group(kafka, partitions=1000)
    driver = group.owning("driver-0a1b2c3d")
    record = intend("driver-0a1b2c3d", 0, 250_000)
    began = time.process_time()
    driver.record(group.commit(record), {})
    assert time.process_time() - began < 2  # of CPU: how long it takes depends on what else runs
    assert driver.differences(dict.fromkeys(group.sources, record)) == {}
    assert len(driver.committed(group.sources)) == 1000
    group.close()
    kafka.delete_topic(group.topic)


def test_sends_are_split_below_the_brokers_limit(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions_module, "SEND_BYTES_MAX", 600)
    group = Group(kafka, partitions=12)
    driver = group.owning("a")
    record = intend("a", 0, 10)
    parts = transactions_module._split(dict.fromkeys(group.sources, record))
    assert len(parts) >= 3
    driver.record(group.commit(record), {})
    assert driver.differences(dict.fromkeys(group.sources, record)) == {}
    group.close()


@pytest.mark.slow
def test_fenced_by_its_own_time_out_it_goes_on(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends a transaction that takes too long, which looks like a successor (H4)."""
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.5)
    driver = group.owning("a", timeout_ms=1000)
    before = replace(SETTLED, owner="a")
    record = intend("a", 0, 10)
    write = transactions_module._write

    def write_slowly(producer: object, content: transactions_module.Content) -> None:
        write(producer, content)
        producer.flush(10)  # type: ignore[attr-defined]
        # The first record, this one, and a marker after each: the broker has ended the transaction.
        group.kafka.until(lambda: group.kafka.stable_end(group.ledger) == 4, 30)

    monkeypatch.setattr(transactions_module, "_write", write_slowly)
    with pytest.raises(TransientError, match="was not committed"):
        driver.record(group.commit(record), dict.fromkeys(group.sources, before))
    assert group.holds(before)
    monkeypatch.setattr(transactions_module, "_write", write)
    driver.record(group.commit(record), dict.fromkeys(group.sources, before))
    assert group.holds(record)
    assert group.ledger_kinds() == [("a", "settle"), ("a", "intend")]


class Behind(Kafka):
    """A broker that Sluice reaches by a proxy only."""

    def __init__(self, broker: Broker, way: Proxy) -> None:
        super().__init__(broker)
        self.way = way

    def access(self, connector: str = "dc1") -> KafkaAccess:
        return KafkaAccess(connector, f"127.0.0.1:{self.way.port}")


@pytest.fixture
def slow_group(tmp_path: Path) -> Iterator[Group]:
    """Its recorders write no more than a megabyte a second."""
    with (
        Proxy(kafka_requests(frozenset())) as way,
        running_program(ProxiedBroker(tmp_path / "kafka", way)) as broker,
    ):
        group = Group(Behind(broker, way))
        way.strike(LinkFault(Throttled.THROTTLE, bytes_per_second=1_000_000))
        yield group
        group.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [False, True])
def test_dead_letters_that_no_transaction_can_carry_in_time_come_by_several(
    slow_group: Group, caplog: pytest.LogCaptureFixture, *, is_shared: bool
) -> None:
    """They were written again and again, and each time their owner was fenced by its own time-out:
    in a fleet the next one loaded them anew, and was fenced, too."""
    group, size = slow_group, TransactionSize()
    letters = [letter(offset, os.urandom(500_000)) for offset in range(18)]
    names = iter(f"owner-{number}" for number in range(20))

    def owning() -> tuple[Recorder, Record]:
        driver = group.owning(next(names), timeout_ms=4000, is_shared=is_shared, size=size)
        return driver, replace(SETTLED, owner=driver.names.owner)

    driver, before = owning()
    carried, outcomes = list[int](), list[str]()
    while sum(carried) < len(letters):
        assert len(outcomes) < 20
        left = letters[sum(carried) :]
        taken = left[: max(1, size.bytes_max // left[0].weight)]
        record = replace(before, begin=before.begin + 1, end=before.end + 1)
        try:
            driver.record(group.commit(record, *taken), dict.fromkeys(group.sources, before))
            before = record
            carried.append(len(taken))
            outcomes.append("")
        except OwnerChangedError as error:
            outcomes.append(str(error))
            assert is_shared
            driver, before = owning()
        except TransientError as error:
            outcomes.append(str(error))
    first = "owner-0 was fenced" if is_shared else "the transaction was not committed"
    assert outcomes == [first, *("" for _ in carried)]
    found = [message.value() for message in group.kafka.read(group.dead_letters)]
    assert found == [each.value for each in letters]
    (words,) = [each for each in caplog.messages if "dead letters was not committed in" in each]
    assert "owner-0: a transaction with 8.0 MB" in words and "ends one after 4 s" in words
    assert "quotas" in words


def test_fenced_by_itself_and_overwritten_by_foreign_hands(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.5)
    driver = group.owning("a")
    before = replace(SETTLED, owner="a")
    group.kafka.writer(f"{group.name}.a")  # as a time-out does: another epoch
    group.kafka.commit_as_consumer(group.name, group.topic, 7)
    with pytest.raises(ForeignHandsError, match="holds offset 7"):
        driver.record(group.commit(intend("a", 0, 9)), dict.fromkeys(group.sources, before))


@contextmanager
def frozen(pid: int, seconds: float) -> Iterator[None]:
    """Stop a process now, and let it go on after a while."""
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def test_a_successor_that_has_not_committed_yet_is_waited_for(group: Group) -> None:
    """Who initialised at once would fence it in turn, for ever."""
    driver, before = group.owning("a"), replace(SETTLED, owner="a")
    successor = group.recorder("b")
    taken = successor.take_over(group.sources)
    outcomes: list[Exception | None] = []

    def finish() -> None:
        try:
            successor.finish_take_over(taken, group.first(successor))
            outcomes.append(None)
        except Exception as error:
            outcomes.append(error)

    later = threading.Timer(1.0, finish)
    later.start()
    with pytest.raises(OwnerChangedError, match="taken over by b"):
        driver.record(group.commit(intend("a", 0, 10)), dict.fromkeys(group.sources, before))
    later.join()
    assert outcomes == [None]
    assert group.holds(replace(SETTLED, owner="b"))


def test_who_was_fenced_while_kafka_was_away_initialises_before_it_looks(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a successor that commits between the look and the record would be overwritten."""
    driver, before = group.owning("a"), replace(SETTLED, owner="a")
    successor = group.recorder("b")
    taken = successor.take_over(group.sources)

    def fails(self: object, sources: object) -> None:
        raise KafkaUnavailableError("simulated: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_wait_for_successor", fails)
        with pytest.raises(KafkaUnavailableError):
            driver.record(group.commit(intend("a", 0, 9)), dict.fromkeys(group.sources, before))
    assert driver.differences(dict.fromkeys(group.sources, before)) == {}
    with pytest.raises(OwnerChangedError, match="at the same moment"):
        successor.finish_take_over(taken, group.first(successor))
    driver.record(group.commit(intend("a", 0, 10)), dict.fromkeys(group.sources, before))
    assert group.holds(intend("a", 0, 10))


def test_who_was_fenced_after_its_commit_while_kafka_was_away_finds_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its commit was lost, and so is the first look for a successor. Who repeated it
    would take its own record for a foreign one."""
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.5)
    driver, before = group.owning("a"), replace(SETTLED, owner="a")
    commit, committed = transactions_module._commit, Recorder.committed
    outages = [KafkaUnavailableError("simulated: no answer")]

    def commit_without_answer(producer: ck.Producer, stop: threading.Event) -> None:
        commit(producer, stop)
        raise FencedError("simulated: the answer was lost, and the id initialised since")

    def committed_later(
        self: Recorder, sources: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        if outages:
            raise outages.pop()
        return committed(self, sources)

    monkeypatch.setattr(transactions_module, "_commit", commit_without_answer)
    monkeypatch.setattr(Recorder, "committed", committed_later)
    record = intend("a", 0, 10)
    driver.record(group.commit(record), dict.fromkeys(group.sources, before))
    assert outages == [] and group.holds(record)
    monkeypatch.setattr(transactions_module, "_commit", commit)
    settled = replace(SETTLED, owner="a", begin=10, end=10)
    assert driver.differences(dict.fromkeys(group.sources, record)) == {}
    driver.record(group.commit(settled), dict.fromkeys(group.sources, record))
    assert group.holds(settled)


@pytest.mark.slow
def test_a_commit_that_a_stop_interrupts_is_not_taken_for_committed(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it was: the range stays in doubt, nothing is dispatched."""
    monkeypatch.setattr(transactions_module, "CALL_TIMEOUT_SECONDS", 1.0)
    driver, before = group.owning("a"), replace(SETTLED, owner="a")
    commit = transactions_module._commit

    def commit_while_frozen(producer: object, stop: threading.Event) -> None:
        stop.set()
        with frozen(group.kafka.broker.serving_pid, 3.0):
            commit(producer, stop)

    monkeypatch.setattr(transactions_module, "_commit", commit_while_frozen)
    with pytest.raises(TransientError):
        driver.record(group.commit(intend("a", 0, 10)), dict.fromkeys(group.sources, before))


@pytest.mark.slow
def test_a_commit_of_unknown_outcome_is_found_out(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops answering while a commit is under way (H6)."""
    monkeypatch.setattr(transactions_module, "CALL_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(transactions_module, "COMMIT_PATIENCE_SECONDS", 1.5)
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.5)
    driver = group.owning("a")
    before, record = replace(SETTLED, owner="a"), intend("a", 0, 10)
    commit = transactions_module._commit
    asked: list[float] = []

    def commit_while_frozen(producer: object, stop: threading.Event) -> None:
        with frozen(group.kafka.broker.serving_pid, 8.0):
            started = time.monotonic()
            try:
                commit(producer, stop)
            finally:
                asked.append(time.monotonic() - started)

    monkeypatch.setattr(transactions_module, "_commit", commit_while_frozen)
    try:
        driver.record(group.commit(record), dict.fromkeys(group.sources, before))
        outcome = record
    except TransientError:
        outcome = before
    assert len(asked) == 1 and 1.0 < asked[0] < 8.0, "it was answered, or nobody gave up"
    monkeypatch.setattr(transactions_module, "_commit", commit)
    group.kafka.until(lambda: group.holds(outcome))
    following = replace(intend("a", outcome.end, outcome.end + 5), kind=Kind.INTEND)
    driver.record(group.commit(following), dict.fromkeys(group.sources, outcome))
    assert group.holds(following)


def test_a_commit_of_unknown_outcome_is_asked_for_until_kafka_answers(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gave up would take its own record for one of foreign hands in the next round."""
    driver = group.owning("a")
    before, record = replace(SETTLED, owner="a"), intend("a", 0, 10)
    transact, ask, asked = recorder_module.transact, recorder_module.ask, [0]

    def commits_and_does_not_say(*parts: object) -> None:
        transact(*parts)  # type: ignore[arg-type]
        raise UnknownCommitError("no answer")

    def answers_at_last(*parts: object) -> object:
        asked[0] += 1
        if asked[0] < 4:
            raise KafkaUnavailableError("no answer")
        return ask(*parts)  # type: ignore[arg-type]

    monkeypatch.setattr(recorder_module, "COMMIT_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(recorder_module, "transact", commits_and_does_not_say)
    monkeypatch.setattr(recorder_module, "ask", answers_at_last)
    driver.record(group.commit(record), dict.fromkeys(group.sources, before))
    assert asked == [4] and group.holds(record)


def test_who_loses_one_partition_to_another_driver_ends(kafka: Kafka) -> None:
    """It is fenced by somebody who took one that was new to both, and records another one."""
    group = Group(kafka, partitions=2)
    driver, before = group.owning("a"), replace(SETTLED, owner="a")
    other, (first, second) = group.recorder("b"), group.sources
    taken = other.take_over([second])
    other.finish_take_over(taken, Commit({second: replace(SETTLED, owner="b", batch=2)}))
    with pytest.raises(OwnerChangedError, match="taken over by b"):
        driver.record(Commit({first: intend("a", 0, 10)}), {first: before})
    group.close()
