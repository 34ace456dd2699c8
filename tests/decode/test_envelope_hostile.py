"""Envelopes written in unusual ways, or to do harm."""

from __future__ import annotations

import random

import pytest

from sluice.core.load_spec import Column
from sluice.producer.wire import delimited, varint
from tests.decode.envelope_support import (
    COLUMNS,
    check,
    envelope_table,
    mutated,
    relations,
    some_messages,
)


def field(number: int, content: bytes) -> bytes:
    return delimited(number, content)


def bound(*rows: bytes, sql: bytes = b"INSERT INTO t (id) VALUES (?)") -> bytes:
    """A message of these rows, as they are."""
    return field(3, field(1, sql) + b"".join(field(2, row) for row in rows))


def one(value: bytes) -> bytes:
    """A message of one row of one value, as it is."""
    return bound(field(1, value))


SEVEN = one(b"\x18\x07")
LISTS = b""
for _ in range(5000):
    LISTS = b"\x52" + varint(len(field(1, LISTS))) + field(1, LISTS)

#: What the official parsers read too, but hardly any encoder writes.
UNUSUAL = {
    "fields in another order": field(2, b"t") + SEVEN + field(1, b"s"),
    "statement behind the rows": field(
        3, field(2, field(1, b"\x18\x07")) + field(1, b"INSERT INTO t (id) VALUES (?)")
    ),
    "unknown fields": b"\xa8\x06\x05" + SEVEN + b"\xb1\x06" + b"x" * 8 + b"\xb5\x06abcd",
    "unknown field in a value": one(b"\x18\x07\xa2\x06\x01x"),
    "a number longer than need be": one(b"\x18\x87\x80\x80\x00"),
    "a length longer than need be": bound(b"\x0a\x82\x00\x18\x07"),
    "a tag longer than need be": one(b"\x98\x00\x07"),
}
HOSTILE = {
    "nothing": b"",
    "text": b'{"id": 7}',
    "both payloads": SEVEN + field(4, field(1, b"x")),
    "payload twice": SEVEN + SEVEN,
    "table twice": field(2, b"t") + field(2, b"t") + SEVEN,
    "statement twice": field(3, field(1, b"INSERT INTO t (id) VALUES (?)") * 2),
    "two values in one": one(b"\x18\x07\x18\x07"),
    "no value": one(b""),
    "an unknown kind": one(b"\x5a\x00"),
    "a text where a number should be": one(b"\x1a\x01x"),
    "a number where a text should be": one(b"\x38\x01"),
    "half a double": one(b"\x31\x00\x00\x00\x00"),
    "a group": b"\x0b\x0c" + SEVEN,
    "field 0": b"\x00\x00" + SEVEN,
    "a number of 70 bits": one(b"\x18" + b"\x80" * 9 + b"\x02"),
    "a number without end": one(b"\x18" + b"\xff" * 12),
    "an int of 33 bits": one(b"\x10\x80\x80\x80\x80\x10"),
    "an unsigned int of 33 bits": one(b"\x20\x80\x80\x80\x80\x10"),
    "a bool of 2": one(b"\x40\x02"),
    "a null of 1": one(b"\x08\x01"),
    "a length beyond the end": b"\x1a\xff\xff\xff\xff\x07\x0a\x00",
    "a length beyond 63 bits": b"\x1a" + b"\xff" * 9 + b"\x01" + SEVEN,
    "a row that ends in the next one": bound(b"\x0a\x09\x18\x07", field(1, b"\x18\x07")),
    "lists in lists": one(LISTS),
    "rows of no values": bound(*[b""] * 200_000),
    "more values than columns": bound(field(1, b"\x18\x07") * 100_000),
    "a statement of many columns": bound(
        b"", sql=b"INSERT INTO t (" + b"a," * 3000 + b"a) VALUES (?" + b",?" * 3000 + b")"
    ),
    "a timestamp of two": one(field(9, b"\x08\x01\x08\x02")),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_ways_of_writing_are_read(name: str) -> None:
    found, faults = relations(envelope_table(COLUMNS[0]), [SEVEN, UNUSUAL[name], SEVEN])
    assert (found, faults) == ({place: [{"id": 7}] for place in range(3)}, {})


@pytest.mark.parametrize("behind", [b"", b"\x10\x05", b"\x1a\x01x", b"\x10\x05\x18\x07"])
def test_a_timestamp_is_its_milliseconds_whatever_fields_a_later_version_has(behind: bytes) -> None:
    at = b"INSERT INTO t (at) VALUES (?)"
    message = bound(field(1, field(9, b"\x08\x64" + behind)), sql=at)
    found, faults = relations(envelope_table(Column("at", "DateTime64(3)")), [message])
    assert (faults, [row["at"] for row in found[0]]) == ({}, ["1970-01-01 00:00:00.100"])


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_messages_are_bad_and_cost_no_neighbour(name: str) -> None:
    found, faults = relations(envelope_table(COLUMNS[0]), [SEVEN, HOSTILE[name], SEVEN])
    assert found == {0: [{"id": 7}], 2: [{"id": 7}]}
    assert list(faults) == [1]
    assert faults[1].error


def test_messages_that_end_too_early_are_bad() -> None:
    text = envelope_table(*COLUMNS)
    whole = some_messages(random.Random(3), 1)[0]
    read, refused = check(text, [whole[:size] for size in range(len(whole) + 1)])
    assert (read, refused) == (1, len(whole))


def test_the_same_message_alone_and_among_others() -> None:
    chance = random.Random(9)
    text = envelope_table(*COLUMNS)
    messages = [mutated(message, chance) for message in some_messages(chance, 40)]
    found, faults = relations(text, messages)
    for index, message in enumerate(messages):
        alone, bad = relations(text, [message])
        assert alone.get(0) == found.get(index)
        assert bad.get(0) == faults.get(index)
