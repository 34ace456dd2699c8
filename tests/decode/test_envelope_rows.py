"""Envelopes to rows of a table: types, ranges, defaults, dead letters, blocks, routing."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.session import run
from sluice.decode.envelope.format import EnvelopeFormat
from sluice.decode.envelope.walk import envelope_tables
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.messages.framing import BYTES
from sluice.decode.messages.memory import memory_file
from sluice.decode.typed.decoder import TypedDecoder
from sluice.producer import Bound, Kind, SQLBatchRequest, Value, schema_hashcode
from tests.decode.support import FIRST_OFFSET, LINEAGE, LINEAGE_NAMES, fill, rows, table
from tests.decode.test_envelope import COLUMNS, mutated, some_messages

ID = Column("id", "UInt64")
NAME = Column("name", "String")


def envelope_table(*columns: Column, **changes: Any) -> TableSpec:
    return table(*columns, **({"format": "SQLBatchRequest", "rows": "many"} | changes))


def decode(text: TableSpec, messages: list[bytes]) -> Decoded:
    decoder = TypedDecoder(text, EnvelopeFormat(text))
    with fill(MessageBuffer(BYTES), messages) as buffer:
        return decoder.decode(buffer, alone("orders", 3))


def message(sql: str, *values: tuple[Value, ...], **changes: Any) -> bytes:
    return SQLBatchRequest(table="orders", sql=sql, rows=values, **changes).encode()


def bad_facts(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(bad.index, bad.reason, bad.column) for bad in decoded.bad]


def test_rows_with_their_lineage() -> None:
    text = envelope_table(ID, NAME, *LINEAGE, lineage=LINEAGE_NAMES)
    sql = "INSERT INTO orders (name, id) VALUES (?, ?)"
    decoded = decode(text, [message(sql, ("a", 1), ("b", 2)), message(sql), message(sql, ("c", 3))])
    assert rows(decoded) == [
        ["1", "a", "orders", 3, str(FIRST_OFFSET), 0],
        ["2", "b", "orders", 3, str(FIRST_OFFSET), 1],
        ["3", "c", "orders", 3, str(FIRST_OFFSET + 4), 0],
    ]
    assert (decoded.bad, decoded.messages) == ((), 2)


def test_statements_of_an_old_and_a_new_schema_stand_side_by_side() -> None:
    text = envelope_table(ID, NAME, Column("size", "UInt32", "DEFAULT", "id * 2"))
    decoded = decode(
        text,
        [
            message("INSERT INTO orders (id, name) VALUES (?, ?)", (1, "a")),
            message("INSERT INTO orders VALUES (?, ?, ?)", (2, "b", 7)),
            message("insert into orders values (?)", (3,)),
            message("INSERT INTO `shop`.`orders` (`size`, gone) VALUES (?,?);", (9, [1])),
        ],
    )
    assert rows(decoded) == [["1", "a", 2], ["2", "b", 7], ["3", "", 6], ["0", "", 9]]


def test_positions_leave_out_what_cannot_be_inserted() -> None:
    text = envelope_table(
        ID,
        Column("twice", "UInt64", "MATERIALIZED", "id * 2"),
        Column("_offset", "UInt64"),
        NAME,
        lineage=("_offset",),
    )
    decoded = decode(text, [message("INSERT INTO orders VALUES (?, ?)", (5, "five"))])
    assert rows(decoded) == [["5", "five", str(FIRST_OFFSET)]]
    too_many = decode(text, [message("INSERT INTO orders VALUES (?, ?, ?)", (5, "five", 6))])
    assert bad_facts(too_many) == [(0, "unknown-field", "")]


def timestamp(text: str) -> Bound:
    return Bound(Kind.TIMESTAMP, int(datetime.fromisoformat(text + "+00:00").timestamp() * 1000))


#: Type, value, what ClickHouse shows of the row; "" where the message is bad.
CASES: list[tuple[str, Value, str]] = [
    ("UInt8", 255, "255"),
    ("UInt8", 256, ""),
    ("UInt8", -1, ""),
    ("Int8", Bound(Kind.INT, -128), "-128"),
    ("Int8", 128, ""),
    ("Int64", 2**63 - 1, "9223372036854775807"),
    ("Int64", 2**63, ""),
    ("UInt64", 2**64 - 1, "18446744073709551615"),
    ("UInt64", Bound(Kind.INT, 0), "0"),
    ("UInt64", None, ""),
    ("Nullable(UInt64)", None, "\\N"),
    ("Int32", 1.5, ""),
    ("Int32", [1], ""),
    ("UInt32", Bound(Kind.UINT, 2**32 - 1), "4294967295"),
    ("Int256", 2**64 - 1, "18446744073709551615"),
    ("Float64", 0.1, "0.1"),
    ("Float64", 3, "3"),
    ("Float32", 1e300, ""),
    ("Bool", True, "true"),
    ("String", "", ""),
    ("String", "é", "é"),
    ("FixedString(2)", "abc", ""),
    ("LowCardinality(String)", "x", "x"),
    ("Decimal(9, 2)", "1.25", "1.25"),
    ("Decimal(9, 2)", 12, "12"),
    ("Decimal(9, 2)", "1.255", ""),
    ("UUID", "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "61f0c404-5cb3-11e7-907b-a6006ad3dba0"),
    ("UUID", "no", ""),
    ("IPv4", "10.0.0.1", "10.0.0.1"),
    ("IPv6", "::1", "::1"),
    ("Enum8('a' = 1, 'b' = 2)", "b", "b"),
    ("Enum8('a' = 1, 'b' = 2)", "c", ""),
    ("Enum8('a' = 1, 'b' = 2)", 2, "b"),
    ("Enum8('a' = 1, 'b' = 2)", 0, ""),
    ("Enum16('a' = 1, 'b' = -2)", 2**64 - 2, ""),
    ("Bool", 1, "true"),
    ("Bool", 2, ""),
    ("IPv4", 1, "0.0.0.1"),
    ("Date", 1, "1970-01-02"),
    ("DateTime", 1767323045, "2026-01-02 03:04:05"),
    ("DateTime", timestamp("2026-01-02 03:04:05"), "2026-01-02 03:04:05"),
    ("DateTime", timestamp("2200-01-02 03:04:05"), ""),
    ("DateTime", "2026-01-02 03:04:05", "2026-01-02 03:04:05"),
    ("DateTime", [], ""),
    ("DateTime64(3)", timestamp("2026-01-02 03:04:05.678"), "2026-01-02 03:04:05.678"),
    ("DateTime64(3)", Bound(Kind.TIMESTAMP, 2**64 - 1), ""),
    ("Date", "2026-01-02", "2026-01-02"),
    ("Date", timestamp("2026-01-02 23:59:59.999"), "2026-01-02"),
    ("Nullable(Date32)", timestamp("2026-01-02 00:00:00"), "2026-01-02"),
    ("Array(Date)", [timestamp("2026-01-02 03:04:05"), 1], ""),
    ("Array(Date)", [timestamp("2026-01-02 03:04:05")], "['2026-01-02']"),
    ("Date", Bound(Kind.TIMESTAMP, 65536 * 86_400_000), ""),
    ("Date", 1.5, ""),
    ("Array(UInt8)", [1, 255], "[1,255]"),
    ("Array(UInt8)", [1, 256], ""),
    ("Array(UInt8)", None, ""),
    ("Array(Float64)", [1, 2.5], "[1,2.5]"),
    ("Array(Nullable(String))", ["a", None], "['a',NULL]"),
    ("Array(Array(Int8))", [[1], []], "[[1],[]]"),
    ("Map(String, UInt8)", {"a": 1}, "{'a':1}"),
    ("Map(String, UInt8)", {"a": 300}, ""),
    ("Map(String, UInt8)", [["a"]], ""),
    ("Tuple(UInt8, String)", [1, "x"], "(1,'x')"),
    ("Tuple(a UInt8, b String)", [1, "x"], "(1,'x')"),
    ("Tuple(UInt8, String)", [1], ""),
]


@cache
def decoder_of(type_text: str) -> TypedDecoder:
    text = envelope_table(Column("a", type_text))
    return TypedDecoder(text, EnvelopeFormat(text))


@pytest.mark.parametrize(
    ("type_text", "value", "expected"), CASES, ids=[f"{t}-{v!r:.40}" for t, v, _ in CASES]
)
def test_value(type_text: str, value: Value, expected: str) -> None:
    good = type_text == "String" or bool(expected)
    with fill(MessageBuffer(BYTES), [message("INSERT INTO t VALUES (?)", (value,))]) as buffer:
        decoded = decoder_of(type_text).decode(buffer, alone("orders", 0))
    if good:
        assert decoded.bad == ()
        assert shown(decoded) == expected + "\n"
    else:
        assert (decoded.rows, [bad.column for bad in decoded.bad]) == (0, ["a"])
        assert "column a" in decoded.bad[0].error


def shown(decoded: Decoded) -> str:
    with memory_file(decoded.native) as path:
        query = f"SELECT * FROM file('{path}', Native) SETTINGS session_timezone='UTC'"
        text: str = run(query, "TSV").bytes().decode()
        return text


def test_a_message_is_all_or_nothing_unless_rows_may_be_dropped() -> None:
    columns = (ID, Column("small", "UInt8"))
    sql = "INSERT INTO t (id, small) VALUES (?, ?)"
    messages = [message(sql, (1, 1), (2, 300), (3, 3)), message(sql, (4, 4))]
    whole = decode(envelope_table(*columns), messages)
    assert rows(whole) == [["4", 4]]
    assert bad_facts(whole) == [(0, "out-of-range", "small")]
    dropped = decode(envelope_table(*columns, bad_rows="drop-row"), messages)
    assert rows(dropped) == [["1", 1], ["3", 3], ["4", 4]]
    assert (dropped.bad, dropped.dropped_rows) == ((), 1)


def test_one_row_where_one_is_asked_for() -> None:
    sql = "INSERT INTO t (id) VALUES (?)"
    messages = [message(sql, (1,), (2,)), message(sql), message(sql, (3,))]
    decoded = decode(envelope_table(ID, rows="one"), messages)
    assert rows(decoded) == [["3"]]
    assert [(index, reason) for index, reason, _ in bad_facts(decoded)] == [
        (0, "not-one-row"),
        (1, "not-one-row"),
    ]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("INSERT INTO t (id) VALUES (1)", "cannot-parse"),
        ("INSERT INTO t (id) VALUES (?), (?)", "cannot-parse"),
        ("INSERT INTO t (id, id) VALUES (?, ?)", "cannot-parse"),
        ("INSERT INTO t (id, name) VALUES (?)", "cannot-parse"),
        ("INSERT INTO t () VALUES ()", "cannot-parse"),
        ("DROP TABLE t", "cannot-parse"),
        ("", "cannot-parse"),
        ("INSERT INTO t (strange) VALUES (?)", "unknown-field"),
    ],
)
def test_statements_that_are_refused(sql: str, reason: str) -> None:
    text = envelope_table(ID, NAME, unknown_fields="refuse")
    good = message("INSERT INTO t (id) VALUES (?)", (7,))
    decoded = decode(text, [good, message(sql, (1,)), good])
    assert [bad.reason for bad in decoded.bad] == [reason]
    assert rows(decoded) == [["7", ""], ["7", ""]]


def test_null_takes_the_default_where_that_is_asked_for() -> None:
    columns = (ID, Column("size", "UInt32", "DEFAULT", "id * 2"), Column("tags", "Array(String)"))
    sql = "INSERT INTO t VALUES (?, ?, ?)"
    decoded = decode(
        envelope_table(*columns, on_null="default"), [message(sql, (4, None, None), (5, 6, ["x"]))]
    )
    assert rows(decoded) == [["4", 8, []], ["5", 6, ["x"]]]


def test_a_value_at_fault_matters_only_to_a_table_that_has_its_column() -> None:
    sql = "INSERT INTO t (id, name) VALUES (?, ?)"
    good = message(sql, (7, "x"))
    bad = good.replace(b"\x3a\x01x", b"\x3a\x02x")
    # Of the same request, written in an order that hardly any encoder writes.
    size = len("orders") + 2
    moved = bad[size:] + bad[:size]
    decoded = decode(envelope_table(ID), [good, bad, moved])
    assert (rows(decoded), decoded.bad) == ([["7"], ["7"], ["7"]], ())
    decoded = decode(envelope_table(ID, NAME), [good, bad, moved])
    assert rows(decoded) == [["7", "x"]]
    assert bad_facts(decoded) == [(1, "cannot-parse", "name"), (2, "cannot-parse", "name")]
    said = "row 0: ValueP is cut off: a field ends beyond it, in column name String"
    assert [bad.error for bad in decoded.bad] == [said, said]


def test_integers_and_floats_in_one_message() -> None:
    text = envelope_table(Column("a", "Nullable(String)"))
    sql = "INSERT INTO t (a) VALUES (?)"
    null = message(sql, (None,))
    too_large = [message(sql, (n,), (0.5,)) for n in (2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1)]
    decoded = decode(text, [null, *too_large])
    assert rows(decoded) == [[None]]
    assert bad_facts(decoded) == [(place, "cannot-parse", "a") for place in (1, 2, 3, 4)]
    assert "different kinds" in decoded.bad[0].error
    decoded = decode(text, [null, *(message(sql, (n,), (0.5,)) for n in (2**53, -(2**53)))])
    largest = ["9007199254740992"], ["-9007199254740992"]
    assert rows(decoded) == [[None], largest[0], ["0.5"], largest[1], ["0.5"]]


def test_null_that_comes_first_in_a_later_text() -> None:
    """A range is read a MiB at a time, and what is null in one of them decides for all."""
    columns = (
        Column("a", "Nullable(UInt64)"),
        Column("b", "Array(Nullable(String))"),
        Column("c", "Map(String, Nullable(Int8))"),
        Column("d", "Tuple(x Nullable(Float64), y String)"),
    )
    sql = "INSERT INTO t (a, b, c, d) VALUES (?, ?, ?, ?)"
    some: tuple[Value, ...] = (1, ["x"], {"k": 1}, [1.5, "y" * 600_000])
    none: tuple[Value, ...] = (None, [None, "x"], {"k": None}, [None, ""])
    values = [some, some, some, none, some]
    decoded = decode(envelope_table(*columns), [message(sql, value) for value in values])
    assert decoded.bad == ()
    shown = [[*row[:3], row[3]["x"]] for row in rows(decoded)]
    given = ["1", ["x"], {"k": 1}, 1.5]
    assert shown == [given, given, given, [None, [None, "x"], {"k": None}, None], given]


def native_block(query: str) -> bytes:
    block: bytes = run(query, "Native").bytes()
    return block


def test_native_blocks_go_by_name() -> None:
    blocks = [
        native_block("SELECT 'a' AS name, toUInt8(number) AS id FROM numbers(2)"),
        native_block("SELECT -1 AS id"),
        b"garbage",
        b"",
    ]
    messages = [SQLBatchRequest(table="t", native_block=block).encode() for block in blocks]
    sql = "INSERT INTO t (id) VALUES (?)"
    decoded = decode(envelope_table(ID, NAME), [message(sql, (8,)), *messages, message(sql, (9,))])
    assert rows(decoded) == [["8", ""], ["0", "a"], ["1", "a"], ["9", ""]]
    assert bad_facts(decoded) == [
        (2, "out-of-range", "id"),
        (3, "cannot-parse", ""),
        (4, "cannot-parse", ""),
    ]


def test_hash_of_the_schema_is_compared_if_asked_for() -> None:
    own = schema_hashcode([("id", "UInt64"), ("name", "String")])
    sql = "INSERT INTO t (id) VALUES (?)"
    messages = [message(sql, (1,), schema_hashcode=n) for n in (0, 5, -6)]
    messages.append(message(sql, (1,), schema_hashcode=own))
    assert decode(envelope_table(ID, NAME), messages).rows == 4
    text = envelope_table(ID, NAME, options=(("schema_hash", "table, -6"),))
    decoded = decode(text, messages)
    assert [bad.index for bad in decoded.bad] == [0, 1]
    assert {bad.reason for bad in decoded.bad} == {"other-schema"}
    assert "schema_hashcode 5" in decoded.bad[1].error


@pytest.mark.parametrize("options", [(("schema_hash", "x"),), (("hash", "1"),)])
def test_options_that_are_refused(options: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(TerminalError, match="option"):
        EnvelopeFormat(envelope_table(ID, options=options))


def test_tables_that_messages_name() -> None:
    sql = "INSERT INTO t (id) VALUES (?)"
    good = SQLBatchRequest(table="orders", sql=sql, rows=[(1,)], shard="s").encode()
    odd_order = good[3:] + good[:3]
    unnamed = SQLBatchRequest(table="", sql=sql).encode()
    messages = [good, b"", odd_order, unnamed, b"\xff", b'{"table": "orders"}', good]
    expected = [b"orders", None, b"orders", None, None, None, b"orders"]
    assert envelope_tables(messages) == expected
    assert envelope_tables([]) == []
    assert [envelope_tables([message])[0] for message in messages] == expected


def test_ten_megabytes() -> None:
    sql = "INSERT INTO t (id, name) VALUES (?, ?)"
    one_row = message(sql, (1, "x" * 10_000_000))
    many_rows = message(sql, *[(n, "a name of a row") for n in range(300_000)])
    decoded = decode(envelope_table(ID, NAME), [one_row, message(sql, (2, "")), many_rows])
    assert (decoded.rows, decoded.bad) == (300_002, ())


def test_moments_of_python() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    decoded = decode(
        envelope_table(Column("at", "DateTime64(3)")),
        [message("INSERT INTO t (at) VALUES (?)", (moment,))],
    )
    assert rows(decoded) == [["2026-01-02 03:04:05.678"]]


def test_mutants_are_in_the_block_or_bad() -> None:
    chance = random.Random(5)
    text = envelope_table(*COLUMNS, *LINEAGE, lineage=LINEAGE_NAMES)
    usual = some_messages(chance, 400)
    messages = list(usual)
    for place in range(0, 400, 2):
        messages[place] = mutated(messages[place], chance)
    decoded, before = decode(text, messages), decode(text, usual)
    for offset in range(FIRST_OFFSET, FIRST_OFFSET + 800, 2):
        verdicts = [
            offset in decoded.offsets,
            offset in {bad.offset for bad in decoded.bad},
            offset in decoded.empty,
        ]
        assert sum(verdicts) == 1
    kept = set(range(FIRST_OFFSET + 2, FIRST_OFFSET + 800, 4))
    assert [row for row in rows(decoded) if int(row[-2]) in kept] == [
        row for row in rows(before) if int(row[-2]) in kept
    ]
