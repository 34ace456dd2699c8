"""The fetches of many ranges: how many are asked for at once, and from whom, when brokers move,
refuse, or are gone."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluice.kafka.reader as contract
from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import (
    KafkaTerminalError,
    KafkaUnavailableError,
    RangeVanishedError,
    UnreadRangeError,
)
from sluice.kafka.reader import Wanted
from sluice.kafka.wire import fetches, messages
from sluice.kafka.wire.reader import WireReader
from tests.kafka.batches import Entry, batch
from tests.kafka.scripted_broker import ScriptedBroker, scripted_broker
from tests.kafka.test_wire_batches import content, logs
from tests.kafka.test_wire_connection import once
from tests.kafka.wire_log import MemoryLog, asked_of, fetch_answer, read_ranges, reader_of
from tests.support.examples import examples

EACH = 10


def log_of(partition: int, size: int = 10, topic: str = "orders") -> MemoryLog:
    """Ten messages, each a batch, which tell where they are."""
    values = [b"%d/%d" % (partition, n) + b"x" * size for n in range(EACH)]
    batches = [batch([Entry(n, value)]) for n, value in enumerate(values)]
    return MemoryLog(batches, end=EACH, source=TopicPartition(topic, partition))


def wanted_of(found: Sequence[MemoryLog]) -> list[Wanted]:
    return [Wanted(Range(log.source, 0, log.end), base=1000 * n) for n, log in enumerate(found)]


def places(count: int) -> list[int]:
    return [1000 * number + n for number in range(count) for n in range(EACH)]


@contextmanager
def brokers(*led: list[MemoryLog]) -> Iterator[list[ScriptedBroker]]:
    """Brokers of one cluster, of which the first is asked who leads."""
    made = [ScriptedBroker(logs[0], logs[1:]) for logs in led]
    made[0].others = made[1:]
    for other in made[1:]:
        other.answers[messages.METADATA] = made[0].metadata
    with ExitStack() as stack:
        for broker in made:
            stack.enter_context(scripted_broker(broker))
        yield made


def places_read(broker: ScriptedBroker, found: Sequence[MemoryLog]) -> list[int]:
    reader = WireReader(KafkaAccess("dc1", f"localhost:{broker.port}"))
    try:
        _, pieces = read_ranges(reader, wanted_of(found))
    finally:
        reader.close()
    return [place for place, _ in content(pieces)]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(logs(), min_size=2, max_size=6), st.data())
def test_any_logs_are_read_as_each_of_them_is(
    made: list[tuple[MemoryLog, list[Entry]]], data: st.DataObject
) -> None:
    numbered = [
        replace(log, source=TopicPartition(f"t{n % 3}", n)) for n, (log, _) in enumerate(made)
    ]
    wanted, expected = [], []
    for number, (log, entries) in enumerate(zip(numbered, (e for _, e in made), strict=True)):
        begin = data.draw(st.integers(0, log.end))
        end = data.draw(st.integers(begin, log.end))
        wanted.append(Wanted(Range(log.source, begin, end), base=1000 * number))
        inside = [entry for entry in entries if begin <= entry.offset < end]
        expected.append(inside)
    limit = data.draw(st.one_of(st.just(1 << 40), st.integers(0, 1500)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetches, "FETCH_BYTES", data.draw(st.sampled_from([1, 200, 2000, 1 << 20])))
        patch.setattr(fetches, "HELD_BYTES_MAX", data.draw(st.sampled_from([1, 500, 1 << 20])))
        results, pieces = read_ranges(reader_of(*numbered), wanted, limit)
    total = count = 0
    for number, inside in enumerate(expected):
        for entry in inside:
            total += len(entry.key or b"") + len(entry.value or b"")
            count += 1
            if total > limit and count > 1:
                assert len(results) == number + 1
                assert results[-1].heavy_at == entry.offset
                return
        assert results[number].messages == len(inside) and results[number].heavy_at is None
    assert content(pieces) == [
        (1000 * number + entry.offset, entry.value)
        for number, inside in enumerate(expected)
        for entry in inside
        if entry.value is not None
    ]


def test_many_small_ranges_are_one_request() -> None:
    found = [log_of(partition) for partition in range(300)]
    reader = reader_of(*found)
    for requests in (2, 3):  # only the first one, of the first range, tells how large they are
        _, pieces = read_ranges(reader, wanted_of(found))
        assert [place for place, _ in content(pieces)] == places(300)
        assert reader._cluster.requests == requests  # type: ignore[attr-defined]
    assert all(len(log.fetches) == 2 for log in found)  # nothing that is complete is asked for


def test_large_ranges_are_not_asked_for_together() -> None:
    found = [log_of(partition, 100_000) for partition in range(5)]
    reader = reader_of(*found)
    read_ranges(reader, wanted_of(found))
    _, pieces = read_ranges(reader, wanted_of(found))
    assert [place for place, _ in content(pieces)] == places(5)
    assert all(sum(size for _, size in log.fetches) < 6_000_000 for log in found)


def test_a_partition_that_grew_is_asked_for_more() -> None:
    """What is known of it is too little, so nothing of it fits into the answer."""
    found = [log_of(partition) for partition in range(5)]
    reader = reader_of(*found)
    read_ranges(reader, wanted_of(found))
    found[2].batches = log_of(2, 300_000).batches
    _, pieces = read_ranges(reader, wanted_of(found))
    assert [place for place, _ in content(pieces)] == places(5)


def test_leaders_work_side_by_side() -> None:
    found = [log_of(partition, 1000) for partition in range(60)]
    with brokers(found[::3], found[1::3], found[2::3]) as made:
        assert places_read(made[0], found) == places(60)
        assert [broker.asked.count(messages.METADATA) for broker in made] == [1, 0, 0]
        assert max(broker.asked.count(messages.FETCH) for broker in made) <= 3


@pytest.mark.parametrize("error", [3, 5, 6, 74, 75, 78, 1])
def test_who_leads_one_of_them_is_asked_again(error: int) -> None:
    found = [log_of(partition) for partition in range(9)]
    with brokers(found[::2], found[1::2]) as made:

        def refuse(body: bytes) -> bytes:
            found[5].error = error
            answer = fetch_answer(found, body)
            found[5].error = 0
            return answer

        once(made[1], messages.FETCH, refuse)
        assert places_read(made[0], found) == places(9)


def test_a_leader_that_moved_is_found() -> None:
    found = [log_of(partition) for partition in range(6)]
    with brokers(found[:3], found[3:]) as made:
        reader = WireReader(KafkaAccess("dc1", f"localhost:{made[0].port}"))
        read_ranges(reader, wanted_of(found))
        moved = made[1].more.pop()
        made[0].more.append(moved)
        refused = replace(moved, error=6)
        made[1].answers[messages.FETCH] = lambda body: fetch_answer(
            [made[1].log, *made[1].more, refused], body
        )
        _, pieces = read_ranges(reader, wanted_of(found))
        reader.close()
    assert [place for place, _ in content(pieces)] == places(6)


@pytest.mark.parametrize("kind", [messages.FETCH, messages.METADATA])
@pytest.mark.parametrize("at", [0, 1])
def test_a_connection_that_ends_is_opened_again(kind: int, at: int) -> None:
    found = [log_of(partition, 1000) for partition in range(30)]
    with brokers(found[::2], found[1::2]) as made:
        once(made[at], kind, lambda _: None)
        assert places_read(made[0], found) == places(30)


def test_a_broker_that_slows_us_down_is_asked_again() -> None:
    """By a quota: its answer holds no partition at all."""
    found = [log_of(partition) for partition in range(5)]
    with brokers(found) as made:
        once(made[0], messages.FETCH, lambda _: struct.pack(">ihii", 100, 0, 0, 0))
        assert places_read(made[0], found) == places(5)
        assert made[0].connections == 2  # to ask who leads, and to the leader


def test_a_later_range_that_is_refused_is_named_in_its_turn() -> None:
    found = [log_of(partition) for partition in range(5)]
    found[3].error = 29
    with brokers(found) as made, pytest.raises(UnreadRangeError, match=r"orders\[3\]") as caught:
        places_read(made[0], found)
    assert caught.value.number == 3 and isinstance(caught.value.reason, KafkaTerminalError)


def test_a_later_range_that_expired_is_named() -> None:
    found = [log_of(partition) for partition in range(5)]
    found[3].error, found[3].end = 1, -1
    wanted = [Wanted(Range(log.source, 0, EACH)) for log in found]
    with pytest.raises(UnreadRangeError, match=r"orders\[3\]\[0, 10\)") as caught:
        read_ranges(reader_of(*found), wanted)
    assert caught.value.number == 3 and isinstance(caught.value.reason, RangeVanishedError)


def test_a_broker_that_is_gone_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges before those that it leads are read all the same."""
    monkeypatch.setattr(contract, "STALL_SECONDS", 1.0)
    found = [log_of(partition) for partition in range(6)]
    with brokers(found[:3]) as (alive,), brokers(found[3:]) as (gone,):
        alive.others = [gone]
        gone.answers[messages.FETCH] = lambda _: None
        gone.answers[messages.API_VERSIONS] = lambda _: None
        assert places_read(alive, found[:3]) == places(3)
        with pytest.raises(UnreadRangeError, match=r"orders\[3\]") as caught:
            places_read(alive, found)
        assert caught.value.number == 3
        assert isinstance(caught.value.reason, KafkaUnavailableError)


def test_what_was_not_asked_for_is_refused() -> None:
    found = [log_of(partition) for partition in range(3)]
    numbered = list(enumerate(found))
    with brokers(found) as made:

        def confuse(body: bytes) -> bytes:
            others = [replace(log, source=TopicPartition("others", n)) for n, log in numbered]
            renamed = [
                (TopicPartition("others", source.partition), *rest)
                for source, *rest in asked_of(body)
            ]
            return fetch_answer(others, messages.fetch_body(renamed, 1000, 0))

        once(made[0], messages.FETCH, confuse)
        assert places_read(made[0], found) == places(3)
        assert made[0].connections > 2
