"""What Debezium writes in place of a value that PostgreSQL's log does not hold, in every shape."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

import pytest

from sluice.core.load_spec import Column, TableSpec
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.connect_support import made
from tests.decode.support import table

TEXT = "__debezium_unavailable_value"
RAW = TEXT.encode()
BASE64 = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="
#: Java's UUID.nameUUIDFromBytes of the text.
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
#: POINT(-99999999 -99999999) and POINT(179.999999 89.999999), with 4326.
GEOMETRY = bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1")
GEOGRAPHY = bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640")


def packed(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def unscaled(code: int) -> bytes:
    return bytes([code])


SHAPE = record(("wkb", "bytes"), ("srid", ["null", "int"]), name="shop.Geometry")
VARIABLE = record(("scale", "int"), ("value", "bytes"), name="shop.VariableScaleDecimal")
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


#: By the column's type in PostgreSQL: its type here, the value in JSON, type and value in Avro.
SHAPES: dict[str, tuple[str, Any, Any, Any]] = {
    "text": ("String", TEXT, "string", TEXT),
    "bytea": ("String", BASE64, "bytes", RAW),
    "bytea as base64": ("String", BASE64, "string", BASE64),
    "hstore": (
        "Map(String, String)",
        {TEXT: TEXT},
        {"type": "map", "values": "string"},
        {TEXT: TEXT},
    ),
    "hstore as json": ("String", f'{{"{TEXT}":"{TEXT}"}}', "string", f'{{"{TEXT}":"{TEXT}"}}'),
    "text[]": ("Array(String)", [TEXT], array("string"), [TEXT]),
    "text[] of nulls": ("Array(Nullable(String))", [TEXT], array(["null", "string"]), [TEXT]),
    "bytea[]": ("Array(String)", [BASE64], array("bytes"), [RAW]),
    "uuid[]": ("Array(UUID)", [UUID], array("string"), [UUID]),
    "integer[]": ("Array(Int32)", list(RAW), array(["null", "int"]), list(RAW)),
    "bigint[]": ("Array(Int64)", list(RAW), array("long"), list(RAW)),
    "double[]": ("Array(Float64)", list(map(float, RAW)), array("double"), list(map(float, RAW))),
    "decimal(9, 2)[]": (
        "Array(Decimal(9, 2))",
        [packed(unscaled(code)) for code in RAW],
        array(DECIMAL),
        [Decimal(code).scaleb(-2) for code in RAW],
    ),
    "decimal[]": (
        "Array(Tuple(scale Int32, value String))",
        [{"scale": 0, "value": packed(unscaled(code))} for code in RAW],
        array(VARIABLE),
        [{"scale": 0, "value": unscaled(code)} for code in RAW],
    ),
    "geometry": (
        "Tuple(wkb String, srid Nullable(Int32))",
        {"wkb": packed(GEOMETRY), "srid": 4326},
        SHAPE,
        {"wkb": GEOMETRY, "srid": 4326},
    ),
    "geography": (
        "Tuple(wkb String, srid Nullable(Int32))",
        {"wkb": packed(GEOGRAPHY), "srid": 4326},
        SHAPE,
        {"wkb": GEOGRAPHY, "srid": 4326},
    ),
}


def changes(*columns: Column, **more: Any) -> TableSpec:
    return table(Column("id", "UInt64"), *columns, envelope="debezium", **more)


def in_avro(kind: Any, value: Any, type_text: str) -> list[Any]:
    """What an event becomes whose row has this value in the column v."""
    row = record(("id", "long"), ("v", ["null", kind]), name="shop.Value")
    schema = record(("before", ["null", row]), ("after", ["null", "shop.Value"]), ("op", "string"))
    event = {"before": None, "after": {"id": 2, "v": value}, "op": "u"}
    options = (("registry", URL),)
    text = changes(Column("v", type_text), format="AvroConfluent", options=options)
    return made(text, [framed(SCHEMAS.add(schema), body(schema, event))])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_that_the_event_does_not_know_is_a_dead_letter(shape: str) -> None:
    type_text, value, kind, in_bytes = SHAPES[shape]
    event = {"before": None, "after": {"id": 2, "v": value}, "op": "u"}
    values = [json.dumps(event).encode(), json.dumps(event, separators=(",", ":")).encode()]
    assert made(changes(Column("v", type_text)), values) == ["unavailable-value v"] * 2
    assert made(changes(), values) == [["2"], ["2"]]
    assert in_avro(kind, in_bytes, type_text) == ["unavailable-value v"]


def test_values_that_are_like_it_are_known() -> None:
    several = [TEXT, TEXT]
    event = {"before": None, "after": {"id": 2, "v": several}, "op": "u"}
    text = changes(Column("v", "Array(String)"))
    assert made(text, [json.dumps(event).encode()]) == [["2", several]]
    for kind, value, type_text in (
        (array("string"), several, "Array(String)"),
        (array("string"), [], "Array(String)"),
        ("string", f"{TEXT} ", "String"),
        ({"type": "map", "values": "string"}, {"k": TEXT}, "Map(String, String)"),
        (array("int"), list(RAW[:-1]), "Array(Int32)"),
    ):
        assert in_avro(kind, value, type_text) == [["2", value]]
