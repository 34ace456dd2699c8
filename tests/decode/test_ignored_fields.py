"""Fields that producers have added, and that no column takes: they are told by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.core.load_spec import Column, Mapped, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
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


def test_an_envelope_says_more_of_a_row_than_most_tables_want() -> None:
    row = {"id": 1, "name": "n"}
    event = {"before": None, "after": row | {"more": 2}, "op": "c", "ts_ms": 5, "source": {}}
    decoded = decode(table(ID, NAME, envelope="debezium"), [json.dumps(event).encode()])
    assert rows(decoded) == [["1", "n"]]
    assert decoded.ignored == ("more",)
