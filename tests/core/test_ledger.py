"""Ledger entries: what is written is what is read back."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ledger import (
    Background,
    LedgerEntry,
    LedgerView,
    encode_entry,
    receipt_entry,
    record_entry,
    settled_entry,
    suspect_entry,
    text_entry,
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
    marks=st.dictionaries(NAMES, OFFSETS, max_size=3),
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


def test_a_record_can_be_read_without_sluice() -> None:
    _, body = written(record_entry(SOURCE, a_record(), Background(), why="resolve --as loaded"))
    assert body | {"metadata": "", "marks": {}} == {
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
        "marks": {},
        "since_ms": 0,
        "bytes_max": 0,
        "why": "resolve --as loaded",
    }


def test_the_other_entries() -> None:
    key, text = written(text_entry("0123456789abcdef", '{"a":1}'))
    assert key == "dc1"
    assert (text["type"], text["digest"], text["text"]) == ("text", "0123456789abcdef", '{"a":1}')
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
    _, suspect = written(suspect_entry(RANGE, 99, {"orders/s1": 5}))
    assert (suspect["type"], suspect["deadline_ms"]) == ("suspect", 99)
    assert suspect["marks"] == {"orders/s1": 5}


def test_nothing_is_known_of_a_partition_without_a_record() -> None:
    view = LedgerView()
    assert view.metadata(SOURCE) is None
    assert view.background(SOURCE) == Background()


def test_a_receipt_says_how_its_block_came_to_its_turn_where_there_are_turns() -> None:
    assert "queueing" not in receipt_entry(RANGE, 3, 1, RECEIPT).body
    queued = replace(RECEIPT, queueing=Queueing(120, held=True))
    body = receipt_entry(RANGE, 3, 1, queued).body
    assert body["queueing"] == {"wait_ms": 120, "held": True, "lost": False}
