"""Fields that producers have added, and that no column takes: they are told by name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.protobuf_support import part, tag
from tests.decode.support import fill, rows, table

ID, NAME = Column("id", "UInt64"), Column("name", "String")


def decode(text: TableSpec, values: list[bytes]) -> Decoded:
    with MessageBuffer(framing_of(text)) as buffer:
        return make_decoder(text).decode(fill(buffer, values), alone("orders", 3))


@pytest.mark.parametrize("more", [{}, {"rows": "many"}, {"timestamps": "ms"}])
def test_json(more: dict[str, Any]) -> None:
    decoded = decode(table(ID, NAME, **more), [b'{"id":1,"name":"n"}', b'{"id":2,"size":3,"b":{}}'])
    assert rows(decoded) == [["1", "n"], ["2", ""]]
    assert decoded.ignored == ("b", "size")


def test_the_first_the_middle_and_the_last_message_are_looked_at() -> None:
    values = [json.dumps({"id": n, f"field{n}": n}).encode() for n in range(101)]
    assert decode(table(ID), values).ignored == ("field0", "field100", "field50")


def test_what_is_no_row_says_nothing_and_what_is_refused_is_not_ignored() -> None:
    assert decode(table(ID), [b'{"id":']).ignored == ()
    assert decode(table(ID), []).ignored == ()
    refused = decode(table(ID, unknown_fields="refuse"), [b'{"id":1,"more":2}'])
    assert ([one.reason for one in refused.bad], refused.ignored) == (["unknown-field"], ())


def test_fields_that_expressions_read_are_not_ignored() -> None:
    mapping = (Mapped("name", "field", "label"),)
    text = table(ID, NAME, mapping=mapping)
    decoded = decode(text, [b'{"id":1,"label":"n","more":2}'])
    assert rows(decoded) == [["1", "n"]]
    assert decoded.ignored == ("more",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CSVWithNames", b"id,name,more\n1,n,2\n"),
        ("TSVWithNames", b"id\tname\tmore\n1\tn\t2\n"),
        ("TSKV", b"id=1\tname=n\tmore=2"),
    ],
)
def test_lines_with_names(name: str, value: bytes) -> None:
    decoded = decode(table(ID, NAME, format=name), [value])
    assert rows(decoded) == [["1", "n"]]
    assert decoded.ignored == ("more",)


def test_names_of_a_schema() -> None:
    schema = record(("id", "long"), ("name", "string"), ("more", "int"))
    number = SCHEMAS.add(schema)
    values = [framed(number, body(schema, {"id": n, "name": "n", "more": 1})) for n in range(9)]
    text = table(ID, NAME, format="AvroConfluent", options=(("registry", URL),))
    decoded = decode(text, values)
    assert (decoded.rows, decoded.ignored) == (9, ("more",))


SIZES = """syntax = "proto3";
message Size { int32 wide = 1; int32 high = 2; }
message M { uint64 id = 1; string name = 2; Size size = 3; repeated Size sizes = 4; }
"""


def test_fields_of_protobuf_that_have_no_name_here_are_told_by_number() -> None:
    """A producer goes on to a schema that the entry does not have yet."""
    known = tag(1, 0) + b"\x07" + part(2, b"n")
    size = tag(1, 0) + b"\x01"
    text = table(
        ID,
        NAME,
        Column("size", "Tuple(wide Int32, high Int32)"),
        Column("sizes", "Array(Tuple(wide Int32, high Int32))"),
        format="Protobuf",
        options=(("message", "M"), ("schema", SIZES)),
    )
    newer = known + part(9, b"coupon") + part(3, size + part(7, b"more")) + part(4, size)
    decoded = decode(text, [known, newer, newer + tag(300, 0) + b"\1", newer])
    assert rows(decoded)[0][:2] == ["7", "n"] and decoded.rows == 4
    assert decoded.ignored == ("field 300", "field 7 of size", "field 9")
    broken = decode(text, [known, known + part(9, b"coupon") + tag(8, 3)])
    assert ([one.index for one in broken.bad], broken.ignored) == ([1], ())
    refused = decode(replace(text, unknown_fields="refuse"), [known, newer])
    assert ([one.index for one in refused.bad], refused.ignored) == ([1], ())


def test_fields_of_messages_inside_that_no_column_takes_are_told() -> None:
    text = table(
        ID,
        Column("size", "Tuple(wide Int32)"),
        Column("sizes", "Array(Tuple(high Int32))"),
        format="Protobuf",
        options=(("message", "M"), ("schema", SIZES)),
    )
    value = tag(1, 0) + b"\x07"
    assert decode(text, [value]).ignored == ("high of size", "name", "wide of sizes")
    all_of = replace(text, columns=(ID, Column("size", "Tuple(wide Int32, high Int32)")))
    assert decode(all_of, [value]).ignored == ("name", "sizes")
    more = tag(1, 0) + b"\x01" + tag(2, 0) + b"\x02"
    refusing = replace(text, unknown_fields="refuse")
    assert [one.reason for one in decode(refusing, [value, value + part(3, more)]).bad] == [
        "unknown-field"
    ]


def test_an_envelope_says_more_of_a_row_than_most_tables_want() -> None:
    row = {"id": 1, "name": "n"}
    event = {"before": None, "after": row | {"more": 2}, "op": "c", "ts_ms": 5, "source": {}}
    decoded = decode(table(ID, NAME, envelope="debezium"), [json.dumps(event).encode()])
    assert rows(decoded) == [["1", "n"]]
    assert decoded.ignored == ("more",)
