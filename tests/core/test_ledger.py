"""Ledger entries: what is written is what is read back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core import ledger
from sluice.core.ledger import (
    Background,
    LedgerEntry,
    LedgerView,
    common_background,
    encode_entries,
    encode_entry,
    entries_in,
    late_insert_entry,
    receipt_entry,
    record_entry,
    settled_entry,
    spec_entry,
)
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetter, Loaded, Queueing, Receipt
from sluice.core.records import decode
from tests.core.test_records import a_record

SOURCE = TopicPartition("events", 3)
RANGE = Range(SOURCE, 10, 20)
RECEIPT = Receipt(
    entry="orders",
    target="shop.orders",
    shard="s1",
    token="a/token",
    rows=9,
    bytes=1234,
    checksum="abc",
    replica="http://localhost:8123",
    entries=2,
    insert_ms=15,
)
LETTER = DeadLetter("events", 3, 12, None, None, b"{", (), "syntax", "not an object", "orders")
LOADED = Loaded((RECEIPT,), (LETTER,), messages=10, bytes=900, skipped=1)

NAMES = st.from_regex(r"[a-z0-9]{1,8}/[a-z0-9]{1,4}", fullmatch=True)
OFFSETS = st.integers(0, 2**50)
BACKGROUNDS = st.builds(
    Background,
    insert_counters=st.dictionaries(NAMES, OFFSETS, max_size=3),
    since_ms=OFFSETS,
    rest=st.dictionaries(
        st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True),
        st.lists(st.tuples(OFFSETS, OFFSETS), max_size=3).map(tuple),
        max_size=2,
    ),
    bytes_max=OFFSETS,
)


def written(entry: LedgerEntry) -> tuple[str, dict[str, object]]:
    key, value = encode_entry("dc1", 1_800_000_000_000, entry)
    return key.decode(), json.loads(value)


@given(BACKGROUNDS)
def test_a_record_and_its_background_come_back(background: Background) -> None:
    record = a_record()
    key, body = written(record_entry(SOURCE, record, background))
    assert key == "dc1/events/3"
    view = LedgerView(records={SOURCE: body})
    metadata = view.metadata(SOURCE)
    assert decode(10, metadata) == record
    assert view.background(SOURCE) == background


def test_of_a_bundle_is_known_what_is_known_of_each_member() -> None:
    """The oldest is what counts; a window that one member has no insert counter of, or a shard that
    another process served to it, nobody knows."""
    one = Background({"t/s1": 7, "t/s2": 3}, 200, {}, 50, {"s1": "a", "s2": "b"})
    other = Background({"t/s1": 5, "t/s3": 1}, 100, {}, 99, {"s1": "a", "s2": "c"})
    common = Background({"t/s1": 5}, 100, {}, 50, {"s1": "a"})
    assert common_background([one, other, one]) == common_background([other, one]) == common
    assert common_background([one, one]) == one


def test_what_a_probe_found_is_that_of_a_range_alone() -> None:
    """A bundle is of ranges of which all is missing: that of one is not that of another one."""
    found = Background({"t/s1": 7}, 200, {"t": ((0, 5),)}, 50, {}, {"t": ((3, 0, 2),)})
    assert common_background([found]) is found
    other = replace(found, rest={"t": ((0, 8),)}, stored={})
    assert common_background([found, other]) == Background({"t/s1": 7}, 200, {}, 50)


def test_a_record_can_be_read_without_sluice() -> None:
    _, body = written(record_entry(SOURCE, a_record(), Background(), why="resolve --as loaded"))
    assert body | {"metadata": "", "insert_counters": {}} == {
        "connector": "dc1",
        "at_ms": 1_800_000_000_000,
        "topic": "events",
        "partition": 3,
        "type": "record",
        "kind": "intend",
        "begin": 10,
        "end": 20,
        "batch": 7,
        "attempt": 1,
        "owner": "driver-0a1b2c3d",
        "metadata": "",
        "insert_counters": {},
        "since_ms": 0,
        "bytes_max": 0,
        "why": "resolve --as loaded",
    }


def test_the_other_entries() -> None:
    key, spec = written(spec_entry("0123456789abcdef", '{"a":1}'))
    assert key == "dc1"
    assert (spec["type"], spec["digest"], spec["text"]) == (
        "load_spec",
        "0123456789abcdef",
        '{"a":1}',
    )
    _, receipt = written(receipt_entry(RANGE, 7, 1, RECEIPT))
    assert (receipt["type"], receipt["begin"], receipt["end"]) == ("receipt", 10, 20)
    assert (receipt["token"], receipt["rows"], receipt["entries"]) == ("a/token", 9, 2)
    assert "failed_over" not in receipt and "in_doubt" not in receipt
    second = replace(RECEIPT, failed_over=("http://a:8123 SOCKET_TIMEOUT",), in_doubt=True)
    _, receipt = written(receipt_entry(RANGE, 7, 1, second))
    assert receipt["failed_over"] == ["http://a:8123 SOCKET_TIMEOUT"]
    assert (receipt["replica"], receipt["in_doubt"]) == ("http://localhost:8123", True)
    _, settled = written(settled_entry(RANGE, 7, 2, LOADED))
    assert (settled["batch"], settled["attempt"]) == (7, 2)
    assert settled["dead_letters_by_table"] == {"orders": 1}
    counts = [settled[name] for name in ("messages", "rows", "skipped", "dead_letters")]
    assert (settled["type"], counts) == ("settled", [10, 9, 1, 1])
    _, late_insert = written(late_insert_entry(RANGE, 99, {"orders/s1": 5}))
    assert (late_insert["type"], late_insert["deadline_ms"]) == ("late_insert", 99)
    assert late_insert["insert_counters"] == {"orders/s1": 5}
    assert "claimed_in" not in late_insert
    _, late_insert = written(late_insert_entry(RANGE, 99, {"orders/s1": 5}, "a@0"))
    assert late_insert["claimed_in"] == "a@0"


def test_nothing_is_known_of_a_partition_without_a_record() -> None:
    view = LedgerView()
    assert view.metadata(SOURCE) is None
    assert view.background(SOURCE) == Background()


def test_a_receipt_says_how_its_block_came_to_its_turn_where_there_are_turns() -> None:
    assert "queueing" not in receipt_entry(RANGE, 3, 1, RECEIPT).body
    queued = replace(RECEIPT, queueing=Queueing(120, held=True))
    body = receipt_entry(RANGE, 3, 1, queued).body
    assert body["queueing"] == {"wait_ms": 120, "held": True, "lost": False}


@st.composite
def transactions(draw: st.DrawFn) -> list[LedgerEntry]:
    """The entries of a few partitions, in the order in which a driver plans them."""
    found = [spec_entry("0123456789abcdef", "{}")]
    for number in range(draw(st.integers(0, 8))):
        block_range = replace(RANGE, source=TopicPartition(draw(st.sampled_from("ab")), number))
        for rows in draw(st.lists(st.integers(1, 3), max_size=2)):
            many = draw(st.sampled_from([None, 2]))
            receipt = replace(RECEIPT, rows=rows, messages=many)
            found.append(receipt_entry(block_range, 7, draw(st.integers(1, 2)), receipt))
        if draw(st.booleans()):
            found.append(settled_entry(block_range, 7, 1, LOADED))
        if draw(st.booleans()):
            found.append(late_insert_entry(block_range, 99, {"orders/s1": number}))
        found.append(record_entry(block_range.source, a_record(), draw(BACKGROUNDS)))
    return found


def test_packed_entries_may_be_the_same_in_everything() -> None:
    twice = [receipt_entry(RANGE, 7, 1, RECEIPT)] * 2
    ((_, value),) = encode_entries("dc1", 1_800_000_000_000, twice)
    assert list(entries_in(json.loads(value))) == [written(entry)[1] for entry in twice]


@given(transactions(), st.sampled_from([1, 3, 1_000]), st.sampled_from([1, 2_000, 200_000]))
def test_packed_entries_are_those_that_were_written(
    entries: list[LedgerEntry], entries_max: int, bytes_max: int
) -> None:
    """All of them, what is said of a partition in the order in which it was said."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "PACK_ENTRIES_MAX", entries_max)
        patch.setattr(ledger, "PACK_BYTES_MAX", bytes_max)
        messages = encode_entries("dc1", 1_800_000_000_000, entries)
    found = [entry for _, value in messages for entry in entries_in(json.loads(value))]
    expected = [written(entry)[1] for entry in entries]

    def of_partition(some: list[dict[str, object]], where: object) -> list[dict[str, object]]:
        return [e for e in some if (e.get("topic"), e.get("partition")) == where]

    assert len(found) == len(expected)
    for where in {(e.get("topic"), e.get("partition")) for e in expected}:
        order = ["load_spec", "receipt", "settled", "late_insert", "record"]
        by_type = sorted(of_partition(expected, where), key=lambda e: order.index(str(e["type"])))
        same_keys = [sorted(e.items(), key=str) for e in of_partition(found, where)]
        assert sorted(same_keys, key=str) == sorted(
            (sorted(e.items(), key=str) for e in by_type), key=str
        )
        types = [order.index(str(e["type"])) for e in of_partition(found, where)]
        assert types == sorted(types)


def test_entries_of_hundreds_of_partitions_are_few_messages() -> None:
    entries = [
        entry
        for number in range(500)
        for entry in (
            receipt_entry(replace(RANGE, source=TopicPartition("a", number)), 7, 1, RECEIPT),
            record_entry(TopicPartition("a", number), a_record(), Background()),
        )
    ]
    messages = encode_entries("dc1", 1_800_000_000_000, entries)
    assert len(messages) == 2
    alone = sum(len(encode_entry("dc1", 1_800_000_000_000, entry)[1]) for entry in entries)
    assert 3 * sum(len(value) for _, value in messages) < alone


def test_a_pack_that_lacks_an_entry_is_no_message_of_the_ledger() -> None:
    entries = [record_entry(TopicPartition("a", n), a_record(), Background()) for n in range(2)]
    ((_, value),) = encode_entries("dc1", 0, entries)
    broken = json.loads(value)
    broken["each"]["partition"].pop()
    with pytest.raises(ValueError, match="1 entries of 2"):
        entries_in(broken)
    with pytest.raises(ValueError, match="2 entries of 3"):
        entries_in(json.loads(value) | {"entries": 3})
