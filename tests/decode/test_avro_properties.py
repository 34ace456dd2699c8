"""Avro: any schema and value as the engine reads it from a file; mutated messages."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.engine.session import identifier, session
from sluice.decode.messages.memory import memory_file
from sluice.decode.schema.avro import AvroConfluent
from sluice.decode.schema.avro_schema import parse_avro
from sluice.decode.schema.headed import HeadedMessages
from sluice.decode.schema.structure import Code, check_avro, split_avro
from sluice.decode.typed.decoder import TypedDecoder
from tests.decode.avro_support import (
    SCHEMAS,
    URL,
    body,
    confluent,
    decode,
    framed,
    record,
)
from tests.decode.slow_walk import check_avro_slowly, split_avro_slowly
from tests.decode.support import rows, table
from tests.support.examples import examples

SCALARS = st.sampled_from(
    [
        "boolean",
        "int",
        "long",
        "float",
        "double",
        "bytes",
        "string",
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
    ]
)


NAMES = itertools.count()


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> Any:
    shape = draw(st.sampled_from(["scalar"] * 4 + ["enum", "fixed", "union"] + ["deep"] * depth))
    name = f"N{next(NAMES)}"
    if shape == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}
    if shape == "fixed":
        return {"type": "fixed", "name": name, "size": draw(st.integers(1, 20))}
    if shape == "union":
        inner = draw(SCALARS)
        return draw(st.sampled_from([["null", inner], [inner, "null"]]))
    if shape == "deep":
        inner = draw(kinds(depth=depth - 1))
        parts = [{"name": "x", "type": inner}, {"name": "y", "type": "int"}]
        deep = {
            "array": {"type": "array", "items": inner},
            "map": {"type": "map", "values": inner},
            "record": {"type": "record", "name": name, "fields": parts},
        }
        return deep[draw(st.sampled_from(sorted(deep)))]
    return draw(SCALARS)


#: `rows` reads line by line, and Python knows many line ends.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12)
RAW = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20).filter(lambda raw: raw.isalnum() or not raw),
    "string": TEXTS,
    "date": st.integers(-719528, 2932896),
    "timestamp-millis": st.integers(-62_000_000_000_000, 253_000_000_000_000),
    "decimal": st.integers(-(10**12) + 1, 10**12 - 1),
}


def plain(kind: Any) -> Any:
    """The kind without logical types: raw values can be written."""
    if isinstance(kind, list):
        return [plain(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {
        key: plain(value)
        if key in ("items", "values", "type")
        else [{**part, "type": plain(part["type"])} for part in value]
        if key == "fields"
        else value
        for key, value in kind.items()
        if key not in ("logicalType", "precision", "scale")
    }


@st.composite
def values_of(draw: st.DrawFn, kind: Any) -> Any:
    if isinstance(kind, list):
        return draw(values_of(draw(st.sampled_from(kind))))
    if kind == "null":
        return None
    if isinstance(kind, str):
        return draw(RAW[kind])
    if "logicalType" in kind:
        value = draw(RAW[kind["logicalType"]])
        if kind["logicalType"] == "decimal":
            return value.to_bytes(8, "big", signed=True)
        return value
    if kind["type"] == "enum":
        return draw(st.sampled_from(kind["symbols"]))
    if kind["type"] == "fixed":
        return draw(st.binary(min_size=kind["size"], max_size=kind["size"]))
    if kind["type"] == "array":
        return draw(st.lists(values_of(kind["items"]), max_size=3))
    if kind["type"] == "map":
        return draw(st.dictionaries(TEXTS, values_of(kind["values"]), max_size=3))
    return {part["name"]: draw(values_of(part["type"])) for part in kind["fields"]}


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    fields = draw(st.lists(kinds(), min_size=1, max_size=4))
    schema = record(*((f"f{place}", kind) for place, kind in enumerate(fields)))
    return schema, draw(st.lists(values_of(schema), min_size=1, max_size=5))


def of_the_engine(schema: Any, bodies: list[bytes], columns: tuple[Column, ...]) -> list[Any]:
    """What the engine alone makes of the same bodies in a container with the same schema."""
    stream = io.BytesIO()
    fastavro.writer(stream, fastavro.parse_schema(schema), [])
    head = stream.getvalue()
    sync = head[-16:]
    data = b"".join(bodies)
    block = body("long", len(bodies)) + body("long", len(data)) + data + sync
    chosen = ", ".join(identifier(column.name) for column in columns)
    with memory_file(head + block) as path:
        query = (
            f"SELECT {chosen} FROM file('{path}', Avro)"
            " SETTINGS output_format_json_quote_64bit_integers=1,"
            " output_format_json_quote_decimals=1, output_format_json_quote_denormals=1,"
            " session_timezone='UTC', max_block_size=10000000"
        )
        text = session().query(query, "JSONCompactEachRow").bytes().decode(errors="replace")
    return [json.loads(line) for line in text.split("\n") if line]


def columns_of(decoding: HeadedMessages, key: int) -> tuple[Column, ...]:
    layout = decoding.layout(key)
    assert not isinstance(layout, tuple) and hasattr(layout, "columns"), layout
    return tuple(Column(natural.name, natural.type) for natural in layout.columns)


@settings(max_examples=examples(40), deadline=None)
@given(case=cases())
def test_any_schema_gives_what_the_engine_reads_from_a_file(case: tuple[Any, list[Any]]) -> None:
    schema, values = case
    number = SCHEMAS.add(schema)
    bodies = [body(plain(schema), value) for value in values]
    facts = table(Column("f0", "Int8"), format="AvroConfluent", options=(("registry", URL),))
    columns = columns_of(AvroConfluent(facts), number)
    decoded = decode(confluent(*columns), [framed(number, content) for content in bodies])
    assert decoded.bad == ()
    assert rows(decoded) == of_the_engine(schema, bodies, columns)


# ---- Mutations ----

WIDE = record(
    ("id", "long"),
    ("n", ["null", "int"]),
    ("s", "string"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}),
    (
        "list",
        {
            "type": "array",
            "items": {
                "type": "record",
                "name": "I",
                "fields": [
                    {"name": "x", "type": ["null", "double"]},
                    {"name": "b", "type": "boolean"},
                ],
            },
        },
    ),
    ("m", {"type": "map", "values": "long"}),
    ("f", {"type": "fixed", "name": "F", "size": 3}),
)
WIDE_NUMBER = SCHEMAS.add(WIDE)


def wide(number: int) -> bytes:
    value = {
        "id": number,
        "n": None if number % 2 else number,
        "s": "é" * (number % 5),
        "e": "ABC"[number % 3],
        "list": [{"x": 1.5, "b": True}, {"x": None, "b": False}][: number % 3],
        "m": {"k": number} if number % 4 else {},
        "f": b"abc",
    }
    return body(WIDE, value)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    raw = bytearray(wide(draw(st.integers(0, 300))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(raw)))
        action = draw(st.sampled_from(["set", "insert", "delete", "cut", "append"]))
        byte = draw(st.sampled_from([0, 1, 2, 3, 4, 6, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        if action == "set" and at < len(raw):
            raw[at] = byte
        elif action == "insert":
            raw.insert(at, byte)
        elif action == "delete" and at < len(raw):
            del raw[at]
        elif action == "cut":
            del raw[at:]
        elif action == "append":
            raw += wide(draw(st.integers(0, 300)))[:at]
    return bytes(raw)


def read_by_fastavro(raw: bytes) -> Any:
    """The value; None if the library refuses it or leaves bytes over."""
    stream = io.BytesIO(raw)
    parsed = fastavro.parse_schema(WIDE)
    try:
        value = fastavro.schemaless_reader(stream, parsed, None, handle_unicode_errors="replace")
    except Exception:
        return None
    return value if stream.tell() == len(raw) else None


@pytest.fixture(scope="module")
def wides() -> Iterator[TypedDecoder]:
    facts = table(Column("f0", "Int8"), format="AvroConfluent", options=(("registry", URL),))
    yield confluent(*columns_of(AvroConfluent(facts), WIDE_NUMBER))


def comparable(items: list[dict[str, Any]]) -> list[str]:
    """With each NaN equal to each other; the engine writes it as text."""
    return [repr({**one, "x": None if one["x"] is None else float(one["x"])}) for one in items]


NAN = wide(1).replace(bytes.fromhex("f83f"), bytes.fromhex("f87f"))


@settings(max_examples=examples(150), deadline=None)
@example(values=[NAN])
@given(values=st.lists(mutated(), min_size=1, max_size=12))
def test_mutated_messages_are_rows_or_bad_and_neighbours_are_untouched(
    wides: TypedDecoder, values: list[bytes]
) -> None:
    joined = [framed(WIDE_NUMBER, one) for value in values for one in (value, wide(7))]
    decoded = decode(wides, joined)
    bad_ones = {one.index for one in decoded.bad}
    assert all(index % 2 == 0 for index in bad_ones)
    found = iter(rows(decoded))
    known = rows(decode(wides, [framed(WIDE_NUMBER, wide(7))]))[0]
    for index, message in enumerate(joined):
        if index in bad_ones:
            continue
        row = next(found)
        if index % 2:
            assert row == known
            continue
        value = read_by_fastavro(message[5:])
        assert value is not None, message[5:].hex()
        assert (int(row[0]), row[1], row[3]) == (value["id"], value["n"], value["e"])
        assert comparable(row[4]) == comparable(value["list"])
    assert next(found, None) is None


@settings(max_examples=examples(300), deadline=None)
@given(values=st.lists(mutated(), min_size=1, max_size=8))
def test_both_walks_say_the_same(values: list[bytes]) -> None:
    tables = parse_avro(json.dumps(WIDE), (), frozenset(("n",))).tables
    text = b"".join(values)
    ends = np.cumsum([len(value) for value in values]).astype(np.int64)
    begins = np.concatenate(([0], ends[:-1])).astype(np.int64)
    fast = check_avro(text, begins, ends, tables)
    assert fast.tolist() == check_avro_slowly(text, begins, ends, tables).tolist()
    for rows_of_text in (len(values), 1):
        (code, found), (slow_code, slow) = (
            split(text, rows_of_text, tables) for split in (split_avro, split_avro_slowly)
        )
        assert code == slow_code
        assert code not in (0, Code.TRAILING) or found.tolist() == slow.tolist()
