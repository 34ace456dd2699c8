"""Envelopes against their definition, which reads one message at a time."""

from __future__ import annotations

import json
import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.session import run
from sluice.decode.envelope.format import EnvelopeFormat, read_statement
from sluice.decode.envelope.rows import TIMESTAMP_MAX, Shape, shape_of
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.framing import BYTES
from sluice.producer import Bound, Kind, SQLBatchRequest, Value
from tests.decode.slow_envelope import PlainValue, read_plain
from tests.decode.support import fill, table

COLUMNS = (
    Column("id", "Nullable(UInt64)"),
    Column("n", "Int64"),
    Column("f", "Float64"),
    Column("s", "Nullable(String)"),
    Column("at", "DateTime64(3)"),
    Column("tags", "Array(String)"),
    Column("m", "Map(String, Int64)"),
    Column("deep", "Array(Array(Nullable(Int64)))"),
    Column("pair", "Tuple(Int64, String)"),
)
NAMES = tuple(column.name for column in COLUMNS)
ALL = f"INSERT INTO t ({', '.join(NAMES)}) VALUES ({', '.join('?' * len(NAMES))})"


def envelope_table(*columns: Column, **changes: Any) -> TableSpec:
    return table(*columns, **({"format": "SQLBatchRequest", "rows": "many"} | changes))


def relations(
    text: TableSpec, messages: list[bytes]
) -> tuple[dict[int, list[dict[str, Any]]], dict[int, Fault]]:
    """The rows of each message as the format gives them, and the messages that it refuses."""
    found: dict[int, list[dict[str, Any]]] = {}
    faults: dict[int, Fault] = {}
    with fill(MessageBuffer(BYTES), messages) as buffer:
        for group in EnvelopeFormat(text).groups(buffer, np.arange(len(messages))):
            assert not set(faults) & set(group.unreadable)
            faults |= group.unreadable
            assert group.messages.tolist() == sorted(group.messages.tolist())
            assert not set(found) & set(group.messages.tolist())
            found |= {index: [] for index in group.messages.tolist()}
            if not len(group.messages):
                continue
            names = ", ".join(["1 AS _one", *(column.name for column in group.columns)])
            answer = run(
                f"SELECT {group.place} AS _at, {names}"
                f" FROM {group.source} SETTINGS output_format_json_quote_denormals=1,"
                " output_format_json_quote_64bit_integers=0, max_threads=1",
                "JSONEachRow",
            )
            for line in answer.bytes().decode(errors="replace").split("\n")[:-1]:
                row = json.loads(line)
                assert row.pop("_one") == 1
                found[int(group.messages[row.pop("_at")])].append(row)
    assert not set(found) & set(faults)
    assert set(found) | set(faults) == set(range(len(messages)))
    return found, faults


# The definition: what one message is, value by value.


def expected_rows(text: TableSpec, message: bytes) -> list[dict[str, Any]] | None:
    """The rows of one message; None if it is bad."""
    request = read_plain(message, text.unknown_fields == "refuse")
    if isinstance(request, Fault):
        return None
    columns = read_statement(request.sql, tuple(column.name for column in text.columns))
    if isinstance(columns, Fault):
        return None
    shapes = {column.name: shape_of(column.type) for column in text.columns}
    if text.unknown_fields == "refuse" and set(columns) - set(shapes):
        return None
    rows: list[dict[str, Any]] = []
    kinds: dict[tuple[Any, ...], set[str]] = {}
    for values in request.rows:
        if len(values) != len(columns):
            return None
        row = {}
        for name, value in zip(columns, values, strict=True):
            if name in shapes:
                try:
                    row[name] = as_json(value, shapes[name], kinds, (name,))
                except ValueError:
                    return None
        rows.append(row)
    allowed: tuple[set[str], ...] = (
        {"i"},
        {"f"},
        {"i", "f"},
        {"s"},
        {"b"},
        {"t"},
        {"i", "f", "large"},
        set(),
    )
    mixed_sets = [found - {"large"} if "f" not in found else found for found in kinds.values()]
    if any(found not in allowed or found == {"i", "f", "large"} for found in mixed_sets):
        return None
    return rows


def as_json(value: PlainValue, shape: Shape, kinds: Any, path: tuple[Any, ...]) -> Any:
    """What the engine writes for this value, or ValueError if it does not fit the shape."""
    kind, raw = value
    if kind is None:
        raise ValueError
    if shape.kind == "value":
        if shape.is_float and Kind.INT <= kind <= Kind.ULONG:
            kind, raw = Kind.DOUBLE, float(raw)  # type: ignore[arg-type]
        return scalar_as_json(kind, raw, kinds.setdefault(path, set()))
    if not isinstance(raw, list):
        raise ValueError
    if shape.kind == "tuple":
        if len(raw) != len(shape.parts):
            raise ValueError
        pairs = enumerate(zip(raw, shape.parts, strict=True))
        return [as_json(item, part, kinds, (*path, n)) for n, (item, part) in pairs]
    if shape.kind == "list":
        return [as_json(item, shape.parts[0], kinds, (*path, 0)) for item in raw]
    result = {}
    for item in raw:
        if not isinstance(item[1], list) or len(item[1]) != 2 or item[1][0][0] is Kind.NULL:
            raise ValueError
        key, number = (
            as_json(part, inner, kinds, (*path, n))
            for n, (part, inner) in enumerate(zip(item[1], shape.parts[0].parts, strict=True))
        )
        result[str(key)] = number
    return result


def scalar_as_json(kind: Kind, raw: Any, seen: set[str]) -> Any:
    if kind is Kind.NULL:
        return None
    if kind is Kind.STRING:
        seen.add("s")
        return raw.decode(errors="replace")
    if kind is Kind.DOUBLE:
        seen.add("f")
        if raw != raw:
            return "nan" if math.copysign(1, raw) > 0 else "-nan"
        if raw in (float("inf"), -float("inf")):
            return "inf" if raw > 0 else "-inf"
        # The engine writes 1e17 as the digits of its shortest form.
        return int(Decimal(repr(raw))) if raw.is_integer() and abs(raw) < 1e21 else raw
    if kind is Kind.BOOL:
        seen.add("b")
        return raw
    if kind is Kind.TIMESTAMP:
        seen.add("t")
        if raw > TIMESTAMP_MAX:
            raise ValueError
        return str(np.datetime64(raw, "ms")).replace("T", " ")
    if kind is Kind.LIST:
        raise ValueError
    seen.add("i")
    if abs(raw) > 2**53:
        seen.add("large")
    return raw


def check(text: TableSpec, messages: list[bytes]) -> tuple[int, int]:
    """Many at once is one at a time; gives how many were read and refused."""
    found, faults = relations(text, messages)
    for index, message in enumerate(messages):
        expected = expected_rows(text, message)
        assert found.get(index) == expected, (message, faults.get(index))
        if index in faults:
            assert faults[index].reason and 0 < len(faults[index].error) <= 300
    return len(found), len(faults)


INTEGERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: Bound(Kind.INT, n)),
    st.integers(0, 2**32 - 1).map(lambda n: Bound(Kind.UINT, n)),
    st.sampled_from([0, 127, 128, 2**14 - 1, 2**14, 2**56 - 1, 2**56, 2**63 - 1, 2**63]),
)
SIGNED = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.one_of(st.text(max_size=20), st.text(min_size=126, max_size=130))
MOMENTS = st.integers(0, TIMESTAMP_MAX).map(lambda n: Bound(Kind.TIMESTAMP, n))
USUAL: dict[str, st.SearchStrategy[Value]] = {
    "id": st.one_of(INTEGERS, st.integers(0, 2**64 - 1), st.none()),
    "n": st.one_of(SIGNED, SIGNED, SIGNED, INTEGERS),
    "f": st.floats(),
    "s": st.one_of(TEXTS, st.none()),
    "at": MOMENTS,
    "tags": st.lists(TEXTS, max_size=3),
    "m": st.dictionaries(TEXTS, SIGNED, max_size=3),
    "deep": st.lists(st.lists(st.one_of(SIGNED, st.none()), max_size=3), max_size=3),
    "pair": st.tuples(SIGNED, TEXTS),
}
ANY_SCALAR = st.one_of(
    st.none(), st.booleans(), INTEGERS, st.floats(), TEXTS, MOMENTS, st.just(Bound(Kind.LIST, []))
)
ANY: st.SearchStrategy[Value] = st.recursive(
    ANY_SCALAR, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def mutated(message: bytes, chance: random.Random) -> bytes:
    """One to three bytes changed, removed, doubled, inserted, or the end cut off."""
    symbols = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(symbols)) if symbols else 0
        what = chance.randrange(6)
        if what == 0:
            symbols[place : place + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            del symbols[place]
        elif what == 2:
            symbols.insert(place, chance.choice([0, 0x0A, 0x12, 0x7F, 0x80, 0xFF]))
        elif what == 3:
            symbols = symbols[:place]
        elif what == 4:
            symbols[place:place] = symbols[place : place + chance.randint(1, 12)]
        elif symbols:
            symbols[place] ^= 1 << chance.randrange(8)
        if not symbols:
            break
    return bytes(symbols)


def some_messages(chance: random.Random, count: int) -> list[bytes]:
    """Messages that fit, of one statement or a few."""
    messages = []
    for _ in range(count):
        row: list[Value] = [
            chance.choice([chance.randrange(2**64), 7, None]),
            Bound(Kind.INT, chance.randrange(-(2**31), 2**31)),
            chance.random(),
            "text" * chance.randrange(40),
            Bound(Kind.TIMESTAMP, chance.randrange(TIMESTAMP_MAX)),
            ["a", "", "c" * 200][: chance.randrange(4)],
            {"k": 1, "": -5},
            [[1, None], []],
            [4, "five"],
        ]
        rows = [row] * chance.choice([1, 1, 2, 5])
        names = NAMES[: chance.choice([9, 9, 4])]
        sql = f"INSERT INTO t ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        values = [some[: len(names)] for some in rows]
        messages.append(SQLBatchRequest(table="t", sql=sql, rows=values).encode())
    return messages
