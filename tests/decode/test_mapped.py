"""Columns from elsewhere than the field of their name, and rows that must hold to something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.decode.engine.session import run
from sluice.decode.mapping.mapped import MappedFormat
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import MessageFacts, alone, facts_named
from sluice.decode.messages.memory import memory_file
from sluice.decode.text.decoder import Decoder
from sluice.decode.typed.decoder import TypedDecoder

ID = Column("id", "UInt64")
NAME = Column("name", "String")
WHEN = Column("at", "DateTime64(3, 'UTC')")
OFFSET = Column("_offset", "UInt64")


def a_table(*columns: Column, **more: Any) -> TableSpec:
    table = TableSpec(
        entry="orders",
        database="d",
        table="orders",
        topics=("t",),
        format="JSONEachRow",
        columns=(*columns, OFFSET),
        lineage=("_offset",),
        partition_key="",
        sorting_key="",
        unknown_fields="ignore",
        on_null="dead-letter",
        time_zone="UTC",
        shards=("s1",),
    )
    return replace(table, **more)


def a_decoder(table: TableSpec) -> TypedDecoder:
    return TypedDecoder(table, MappedFormat(table, lambda fields, *_: Decoder(fields)))


def decoded(table: TableSpec, *values: bytes, facts: MessageFacts | None = None) -> Decoded:
    with MessageBuffer() as buffer:
        buffer.add(list(values), range(100, 100 + len(values)))
        buffer.facts = facts
        return a_decoder(table).decode(buffer, alone("topic", 3))


def rows(made: Decoded) -> list[list[str]]:
    if not made.rows:
        return []
    with memory_file(made.native) as path:
        text = run(f"SELECT * FROM file('{path}', Native)", "TSVRaw").bytes().decode()
    return [line.split("\t") for line in text.splitlines()]


def test_columns_from_fields_paths_constants_and_expressions() -> None:
    table = a_table(
        ID,
        NAME,
        Column("city", "LowCardinality(String)"),
        Column("zip", "UInt32"),
        Column("kind", "Enum8('web' = 1, 'app' = 2)"),
        Column("price", "Decimal(9, 2)"),
        mapping=(
            Mapped("id", "field", "order id"),
            Mapped("city", "path", "address.city.name"),
            Mapped("zip", "path", "address.zip"),
            Mapped("kind", "value", "web"),
            Mapped("price", "sql", "toDecimal64(cents, 2) / 100"),
        ),
        fields=(("cents", "Int64"),),
    )
    made = decoded(
        table,
        b'{"order id":7,"name":"a","address":{"city":{"name":"Ulm"},"zip":89073},"cents":1250}',
        b'{"order id":8,"name":"b","cents":-1}',
    )
    assert made.bad == ()
    assert rows(made) == [
        ["7", "a", "Ulm", "89073", "web", "12.5", "100"],
        ["8", "b", "", "0", "web", "-0.01", "101"],
    ]
    assert made.columns == ("id", "name", "city", "zip", "kind", "price", "_offset")


def test_what_an_expression_makes_must_fit_its_column() -> None:
    small = Column("small", "UInt8")
    table = a_table(ID, small, mapping=(Mapped("small", "sql", "id * 100"),))
    made = decoded(table, b'{"id":2}', b'{"id":3}', b'{"id":"x"}', b'{"id":1}')
    assert rows(made) == [["2", "200", "100"], ["1", "100", "103"]]
    assert [(bad.index, bad.reason, bad.column) for bad in made.bad] == [
        (1, "out-of-range", "small"),
        (2, "cannot-parse", "id"),
    ]


FACTS = MessageFacts(
    alone("topic", 3),
    [b"k\x00\xff", None],
    [1_700_000_000_123, None],
    [(("trace", b"abc"), ("trace", b"later"), ("empty", None)), ()],
)


def test_kafkas_own_facts_are_columns() -> None:
    table = a_table(
        ID,
        Column("key", "Nullable(String)"),
        Column("at", "Nullable(DateTime64(3, 'UTC'))"),
        Column("trace", "Nullable(String)"),
        Column("place", "String"),
        Column("headers", "UInt8"),
        mapping=(
            Mapped("key", "kafka", "_key"),
            Mapped("at", "kafka", "_timestamp"),
            Mapped("trace", "header", "trace"),
            Mapped(
                "place", "sql", "concat(_topic, '/', toString(_partition), '/', toString(_offset))"
            ),
            Mapped("headers", "sql", "length(_headers)"),
        ),
    )
    assert set(facts_named(table)) == {
        *("_key", "_timestamp", "_headers", "_topic", "_partition", "_offset")
    }
    made = decoded(table, b'{"id":1}', b'{"id":2}', facts=FACTS)
    assert made.bad == ()
    with memory_file(made.native) as path:
        found = run(
            f"SELECT id, hex(key), at, trace, place, headers FROM file('{path}', Native)", "TSV"
        )
    assert found.bytes().decode().splitlines() == [
        "1\t6B00FF\t2023-11-14 22:13:20.123\tabc\ttopic/3/100\t2",
        "2\t\\N\t\\N\t\\N\ttopic/3/101\t0",
    ]


def test_a_fact_that_is_absent_is_no_value_of_a_column_without_null() -> None:
    table = a_table(ID, WHEN, mapping=(Mapped("at", "kafka", "_timestamp"),))
    made = decoded(table, b'{"id":1}', b'{"id":2}', facts=FACTS)
    assert [row[0] for row in rows(made)] == ["1"]
    assert [(bad.index, bad.reason, bad.column) for bad in made.bad] == [
        (1, "null-in-column", "at")
    ]


def test_facts_of_some_messages() -> None:
    assert FACTS.some([1]).keys == [None] and FACTS.some([0]).timestamps_ms == [1_700_000_000_123]


def test_required_columns_must_be_there() -> None:
    table = a_table(ID, NAME, WHEN, require=("name", "at"))
    made = decoded(
        table,
        b'{"id":1,"name":"","at":"2026-01-01 00:00:00"}',
        b'{"id":2,"at":"2026-01-01 00:00:00"}',
        b'{"id":3,"name":null,"at":"2026-01-01 00:00:00"}',
        b'{"id":4,"name":"x"}',
    )
    assert rows(made) == [["1", "", "2026-01-01 00:00:00.000", "100"]]
    assert [(bad.index, bad.reason, bad.column) for bad in made.bad] == [
        (1, "required", "name"),
        (2, "required", "name"),
        (3, "required", "at"),
    ]


def test_checks_must_hold_and_null_does_not() -> None:
    table = a_table(
        ID,
        Column("kind", "Nullable(String)"),
        check=("kind IN ('click', 'view')", "id BETWEEN 1 AND 100"),
    )
    made = decoded(
        table,
        b'{"id":1,"kind":"click"}',
        b'{"id":2,"kind":"other"}',
        b'{"id":0,"kind":"view"}',
        b'{"id":3}',
        b'{"id":300,"kind":"no"}',
        b"broken",
    )
    assert [row[0] for row in rows(made)] == ["1"]
    kinds, numbers = "the check kind IN ('click', 'view')", "the check id BETWEEN 1 AND 100"
    assert [(bad.index, bad.reason) for bad in made.bad] == [
        *((index, "check-failed") for index in (1, 2, 3, 4)),
        (5, "not-one-object"),
    ]
    said = [bad.error for bad in made.bad[:4]]
    assert said == [f"{text} does not hold" for text in (kinds, numbers, kinds, kinds)]


def test_many_messages_and_the_same_bytes_again() -> None:
    table = a_table(
        ID, NAME, check=("id % 100 != 7",), mapping=(Mapped("name", "sql", "toString(id)"),)
    )
    values = [b'{"id":%d}' % n if n % 50 != 3 else b'{"id":-1}' for n in range(20_000)]
    first, second = decoded(table, *values), decoded(table, *values)
    assert bytes(first.native) == bytes(second.native) and first.bad == second.bad
    wrong = [n for n in range(20_000) if n % 50 == 3 or n % 100 == 7]
    assert [bad.index for bad in first.bad] == wrong
    assert first.offsets.tolist() == [n + 100 for n in range(20_000) if n not in set(wrong)]
    assert np.array_equal(first.offsets, second.offsets) and first.messages == first.rows


def test_defaults_stay_for_fields_that_are_absent() -> None:
    twice = Column("twice", "UInt64", "DEFAULT", "id * 2")
    table = a_table(ID, twice, NAME, mapping=(Mapped("name", "field", "n"),))
    made = decoded(table, b'{"id":4,"n":"x"}', b'{"id":4,"twice":5}')
    assert rows(made) == [["4", "8", "x", "100"], ["4", "5", "", "101"]]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (a_table(ID, mapping=(Mapped("nope", "field", "x"),)), "has no column nope"),
        (a_table(ID, require=("nope",)), "has no column nope"),
        (a_table(ID, mapping=(Mapped("id", "sql", "rand()"),), fields=(("a", "UInt8"),)), "rand"),
        (a_table(ID, check=("at > now()",)), "now"),
        (
            a_table(ID, WHEN, mapping=(Mapped("at", "sql", "parseDateTimeBestEffort(s)"),)),
            "says something else the next time",
        ),
        (a_table(ID, check=("parseDateTime64BestEffortOrNull(s) > 0",)), "the next time"),
        (a_table(ID, check=("nope = 1",)), "a check cannot be computed"),
        (a_table(ID, NAME, mapping=(Mapped("name", "sql", "nope + 1"),)), "cannot be computed"),
        (a_table(ID, NAME, mapping=(Mapped("name", "sql", "((1"),)), "cannot be read"),
        (a_table(ID, NAME, mapping=(Mapped("name", "field", "id"),)), "as another type as well"),
        (
            a_table(ID, NAME, mapping=(Mapped("name", "path", "id.name"),)),
            "as another type as well",
        ),
        (a_table(ID, Column("l", "Array(UInt8)"), require=("l",)), "a type that cannot be null"),
        (a_table(ID, mapping=(Mapped("id", "value", "1"),)), "reads no field"),
        (
            a_table(
                ID,
                Column("twice", "UInt64", "DEFAULT", "id * 2"),
                mapping=(Mapped("id", "field", "i"),),
            ),
            "the DEFAULT of twice refers to id",
        ),
    ],
)
def test_a_mapping_that_cannot_work_is_refused_at_once(table: TableSpec, words: str) -> None:
    with pytest.raises(TerminalError) as caught:
        a_decoder(table)
    assert words in str(caught.value) and caught.value.hint


def test_tables_without_a_mapping_need_no_facts() -> None:
    assert facts_named(a_table(ID)) == ()
    assert facts_named(a_table(ID, check=("length(_key) > 1",))) == ("_key",)


@pytest.mark.parametrize(
    "expression",
    [
        "toDateTime(s, 'UTC')",
        "s::DateTime('UTC')",
        "CAST([s], 'Array(DateTime(\\'UTC\\'))')[1]",
        "toDateTime64(s, 3, 'UTC')",
        "accurateCastOrNull(s, 'DateTime(\\'UTC\\')')",
        "concat(s, '')",
        "JSONExtract(concat('{\"a\":\"', s, '\"}'), 'a', 'Nullable(DateTime64(3, \\'UTC\\'))')",
    ],
)
def test_no_expression_completes_a_date_with_the_year_in_which_it_reads_it(expression: str) -> None:
    table = a_table(ID, WHEN, mapping=(Mapped("at", "sql", expression),), fields=(("s", "String"),))
    values = [b'{"id":1,"s":"2026-01-02 03:04:05"}'] * 2
    for text in (b"Dec 25", b"25 Dec 10:00", b"10:00"):
        made = decoded(table, *values, b'{"id":2,"s":"%s"}' % text)
        assert [one.index for one in made.bad] == [2], text
        assert [row[:2] for row in rows(made)] == [["1", "2026-01-02 03:04:05.000"]] * 2


def test_a_text_of_a_date_may_be_left_to_its_column() -> None:
    table = a_table(
        ID, WHEN, mapping=(Mapped("at", "sql", "trimLeft(s)"),), fields=(("s", "String"),)
    )
    made = decoded(
        table, b'{"id":1,"s":" 2026-01-02T03:04:05Z"}', b'{"id":2,"s":" Jan 2 2026 03:04"}'
    )
    assert made.bad == ()
    assert [row[1] for row in rows(made)] == ["2026-01-02 03:04:05.000", "2026-01-02 03:04:00.000"]


def test_named_tuples_go_through_a_mapping() -> None:
    """The engine would describe their types in several lines."""
    table = a_table(
        ID,
        Column("t", "Tuple(a UInt8, b Tuple(c String))"),
        mapping=(Mapped("id", "field", "uid"),),
        check=("t.a > 1",),
    )
    good, bad = b'{"uid":1,"t":{"a":2,"b":{"c":"x"}}}', b'{"uid":1,"t":{"a":1,"b":{"c":"x"}}}'
    made = decoded(table, good, bad)
    assert rows(made) == [["1", "(2,('x'))", "100"]]
    assert [one.reason for one in made.bad] == ["check-failed"]
