"""Every type of the engine with a value, and how writers that are not Sluice's write this value."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from sluice.producer import Bound, Value
from sluice.producer import Kind as Sent

#: What stands before the messages of Protobuf whose fields these types are.
PROTOBUF = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Letter { none = 0; a = 1; b = 2; }
message Pair { int32 a = 1; string b = 2; }
message Line { string k = 1; int32 v = 2; }
message XY { double x = 1; double y = 2; }
message Path { repeated XY points = 1; }
message Paths { repeated Path paths = 1; }
"""


@dataclass(frozen=True)
class Kind:
    """A type of a column, and a value in the types that formats have.

    :param columns: what a server makes of it: the end of a name, the type, the value as SQL.
    :param json: the value as Python's json takes it; `cells`: as the cells of a line, by default
        the same; of CSV another number of them, if `csv` says so.
    :param avro: a schema, its short name for people and the value.
    :param protobuf: the declaration of a field and the value as JSON of Protobuf.
    :param arrow: a type and the value. None: the value is written as `text`.
    :param packed: as msgpack takes it; `sent`: as the producer of eBay's envelope does.
    """

    type: str
    columns: tuple[tuple[str, str, str], ...]
    json: Any
    cells: tuple[str, ...]
    csv: tuple[str, ...]
    avro: tuple[Any, str, Any]
    protobuf: tuple[str, Any]
    arrow: tuple[pa.DataType, Any]
    packed: Any
    sent: Value
    compact: tuple[Any, ...] = ()

    @property
    def family(self) -> str:
        """Its name without arguments."""
        return self.type.partition("(")[0]

    @property
    def orc(self) -> tuple[pa.DataType, Any]:
        """As `arrow`; of what pyarrow does not write in ORC, a wider integer or the text."""
        kind, value = self.arrow
        if pa.types.is_unsigned_integer(kind) and value < 2**63:
            return pa.int64(), value
        is_missing = pa.types.is_unsigned_integer(kind) or pa.types.is_decimal256(kind)
        is_missing |= pa.types.is_dictionary(kind) or pa.types.is_time(kind)
        return (pa.string(), self.cells[0]) if is_missing else self.arrow


def _kind(type_text: str, sql: str, written: Any, **known: Any) -> Kind:
    """Where nothing else is known the value is written as text."""
    text = written if isinstance(written, str) else json.dumps(written)
    cells = known.pop("cells", (text,))
    facts: dict[str, Any] = {
        "columns": (("", type_text, sql),),
        "csv": cells,
        "avro": ("string", "string", text),
        "protobuf": ("string", text),
        "arrow": (pa.string(), text),
        "packed": text,
        "sent": text,
    }
    return Kind(type_text, json=written, cells=cells, **(facts | known))


def _cast(text: object, type_text: str) -> str:
    return f"CAST('{text}', '{type_text}')"


def _integers() -> Iterator[Kind]:
    for bits in (8, 16, 32, 64, 128, 256):
        for sign in ("UInt", "Int"):
            name = f"{sign}{bits}"
            value = 2**bits - 1 if sign == "UInt" else -(2 ** (bits - 1))
            known: dict[str, Any] = {}
            if -(2**63) <= value < 2**64:
                unsigned = sign.lower().removesuffix("int")
                known["protobuf"] = (f"{unsigned}int{max(bits, 32)}", value)
                known["arrow"] = (getattr(pa, name.lower())(), value)
                known["packed"] = value
                known["sent"] = value if value < 2**63 else Bound(Sent.ULONG, value)
            if -(2**63) <= value < 2**63:
                short = "int" if -(2**31) <= value < 2**31 else "long"
                known["avro"] = (short, short, value)
            yield _kind(name, _cast(value, name), value, **known)


def _floats() -> Iterator[Kind]:
    for name, value in (("BFloat16", 1.5), ("Float32", 1.5), ("Float64", -0.1)):
        is_double = name == "Float64"
        short = "double" if is_double else "float"
        arrow = pa.float64() if is_double else pa.float32()
        yield _kind(
            name,
            _cast(value, name),
            value,
            avro=(short, short, value),
            protobuf=(short, value),
            arrow=(arrow, value),
            packed=value if is_double else Single(value),
            sent=value,
        )


class Single(float):
    """A float that msgpack is to write with 32 bits."""


def _decimals() -> Iterator[Kind]:
    for precision, scale, value in (
        (9, 2, "1234567.89"),
        (18, 4, "-12345678901234.5678"),
        (38, 10, "1234567890123456789012345678.0123456789"),
        (76, 20, "-12345678901234567890123456789012345678901234567890123456.01234567890123456789"),
    ):
        avro = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        arrow = pa.decimal128(precision, scale) if precision < 39 else pa.decimal256(76, 20)
        name = f"Decimal({precision}, {scale})"
        yield _kind(
            name,
            _cast(value, name),
            value,
            avro=(avro, "decimal", Decimal(value)),
            arrow=(arrow, Decimal(value)),
        )


def _texts() -> Iterator[Kind]:
    letters = "Enum8('a' = 1, 'b' = -2)"
    fixed = {"type": "fixed", "name": "three", "size": 3}
    letter = {"type": "enum", "name": "letter", "symbols": ["a", "b"]}
    uuid = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
    # No newline: a line cannot hold one.
    yield _kind("String", r"'é\t\\'", "é\t\\", cells=(r"é\t\\",), csv=("é\t\\",))
    yield _kind(
        "FixedString(3)",
        "CAST('abc', 'FixedString(3)')",
        "abc",
        avro=(fixed, "fixed", b"abc"),
        protobuf=("bytes", "YWJj"),
        arrow=(pa.binary(3), b"abc"),
    )
    as_uuid = {"type": "string", "logicalType": "uuid"}
    yield _kind("UUID", f"toUUID('{uuid}')", uuid, avro=(as_uuid, "uuid", UUID(uuid)))
    yield _kind("IPv4", "toIPv4('1.2.3.4')", "1.2.3.4")
    yield _kind("IPv6", "toIPv6('2001:db8::1')", "2001:db8::1")
    dictionary = pa.dictionary(pa.int32(), pa.string())
    for name in (letters, letters.replace("8", "16")):
        yield _kind(
            name,
            f"CAST('b', '{name.replace(chr(39), chr(92) + chr(39))}')",
            "b",
            avro=(letter, "enum", "b"),
            protobuf=("Letter", "b"),
            arrow=(dictionary, "b"),
        )
    yield _kind("LowCardinality(String)", "toLowCardinality('x')", "x", arrow=(dictionary, "x"))
    yield _kind(
        "Bool",
        "true",
        True,
        avro=("boolean", "boolean", True),
        protobuf=("bool", True),
        arrow=(pa.bool_(), True),
        packed=True,
        sent=True,
    )


_DAY, _OLD_DAY = dt.date(2026, 1, 2), dt.date(1950, 1, 2)
_MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
_MILLIS = _MOMENT.replace(microsecond=678_000)
_EPOCH_DAY = dt.date(1970, 1, 1)
_SECONDS = int(_MOMENT.timestamp())


def _logical(base: str, logical: str, value: Any) -> tuple[Any, str, Any]:
    return {"type": base, "logicalType": logical}, logical, value


def _moments() -> Iterator[Kind]:
    for name, day in (("Date", _DAY), ("Date32", _OLD_DAY)):
        days = (day - _EPOCH_DAY).days
        yield _kind(
            name,
            f"to{name}('{day}')",
            str(day),
            avro=_logical("int", "date", day),
            protobuf=("int32", days),
            arrow=(pa.date32(), day),
            packed=days,
            sent=days,
        )
    yield _kind(
        "DateTime",
        f"toDateTime({_SECONDS})",
        "2026-01-02 03:04:05",
        avro=_logical("long", "timestamp-millis", _MOMENT),
        protobuf=("google.protobuf.Timestamp", "2026-01-02T03:04:05Z"),
        arrow=(pa.timestamp("s", "UTC"), _MOMENT),
        packed=_SECONDS,
        sent=_MOMENT,
    )
    nanos = "2026-01-02 03:04:05.123456789"
    for scale, text, avro, arrow in (
        (3, str(_MILLIS)[:23], _logical("long", "timestamp-millis", _MILLIS), "ms"),
        (9, nanos, _logical("long", "timestamp-nanos", _SECONDS * 10**9 + 123456789), "ns"),
    ):
        ticks = avro[2] if scale == 9 else int(_MILLIS.timestamp() * 1000)
        yield _kind(
            f"DateTime64({scale})",
            f"toDateTime64('{text}', {scale})",
            text,
            avro=avro,
            protobuf=("google.protobuf.Timestamp", f"{text.replace(' ', 'T')}Z"),
            arrow=(pa.timestamp(arrow, "UTC"), ticks),
            sent=_MILLIS if scale == 3 else text,
        )
    yield _kind(
        "Time",
        "CAST('12:34:56', 'Time')",
        "12:34:56",
        avro=_logical("int", "time-millis", dt.time(12, 34, 56)),
        arrow=(pa.time32("s"), dt.time(12, 34, 56)),
    )
    milli = dt.time(12, 34, 56, 789_000)
    yield _kind(
        "Time64(3)",
        "CAST('12:34:56.789', 'Time64(3)')",
        "12:34:56.789",
        avro=_logical("int", "time-millis", milli),
        arrow=(pa.time32("ms"), milli),
    )


def _intervals() -> Iterator[Kind]:
    for unit in (
        *("Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour"),
        *("Day", "Week", "Month", "Quarter", "Year"),
    ):
        yield _kind(
            f"Interval{unit}",
            f"toInterval{unit}(5)",
            5,
            avro=("long", "long", 5),
            protobuf=("int64", 5),
            arrow=(pa.int64(), 5),
            packed=5,
            sent=5,
        )


def _avro_record(name: str, /, **fields: Any) -> dict[str, Any]:
    parts = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": parts}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _containers() -> Iterator[Kind]:
    yield _kind(
        "Nullable(Int32)",
        "CAST(NULL, 'Nullable(Int32)')",
        None,
        cells=("\\N",),
        avro=(["null", "int"], "null, int", None),
        protobuf=("optional int32", None),
        arrow=(pa.int32(), None),
        packed=None,
        sent=None,
    )
    yield _kind(
        "Array(Int32)",
        "CAST([1, -2], 'Array(Int32)')",
        [1, -2],
        avro=(_array("int"), "array", [1, -2]),
        protobuf=("repeated int32", [1, -2]),
        arrow=(pa.list_(pa.int32()), [1, -2]),
        packed=[1, -2],
        sent=[1, -2],
    )
    yield _kind(
        "Map(String, Int32)",
        "CAST(map('k', 1), 'Map(String, Int32)')",
        {"k": 1},
        cells=("{'k':1}",),
        avro=({"type": "map", "values": "int"}, "map", {"k": 1}),
        protobuf=("map<string, int32>", {"k": 1}),
        arrow=(pa.map_(pa.string(), pa.int32()), {"k": 1}),
        packed={"k": 1},
        sent={"k": 1},
    )


def _records() -> Iterator[Kind]:
    pair = {"a": 1, "b": "x"}
    arrow_pair = pa.struct([("a", pa.int32()), ("b", pa.string())])
    whole = _kind(
        "Tuple(a Int32, b String)",
        "CAST((1, 'x'), 'Tuple(a Int32, b String)')",
        pair,
        cells=("(1,'x')",),
        csv=("1", "x"),
        avro=(_avro_record("pair", a="int", b="string"), "record", pair),
        protobuf=("Pair", pair),
        arrow=(arrow_pair, pair),
        packed=[1, "x"],
        sent=[1, "x"],
    )
    yield whole
    yield replace(
        whole,
        type="Nullable(Tuple(a Int32, b String))",
        columns=(
            (
                "",
                "Nullable(Tuple(a Int32, b String))",
                "CAST(NULL, 'Nullable(Tuple(a Int32, b String))')",
            ),
        ),
        json=None,
        cells=("\\N",),
        csv=("\\N",),
        avro=(["null", whole.avro[0]], "null, record", None),
        protobuf=("optional Pair", None),
        arrow=(arrow_pair, None),
        packed=None,
        sent=None,
    )
    yield _kind(
        "Nested(k String, v Int32)",
        "",
        [{"k": "a", "v": 1}],
        columns=(
            (".k", "Array(String)", "['a']"),
            (".v", "Array(Int32)", "CAST([1], 'Array(Int32)')"),
        ),
        cells=("['a']", "[1]"),
        compact=(["a"], [1]),
        avro=(
            _array(_avro_record("line", k="string", v="int")),
            "array of records",
            [{"k": "a", "v": 1}],
        ),
        protobuf=("repeated Line", [{"k": "a", "v": 1}]),
        arrow=(pa.list_(pa.struct([("k", pa.string()), ("v", pa.int32())])), [{"k": "a", "v": 1}]),
        packed=(["a"], [1]),
        sent=(["a"], [1]),
    )


def _any_types() -> Iterator[Kind]:
    number = {
        "protobuf": ("int64", 5),
        "arrow": (pa.int64(), 5),
        "packed": 5,
        "sent": 5,
    }
    union = ["long", "string"]
    variant = "Variant(Int64, String)"
    yield _kind(
        variant, f"CAST(5::Int64, '{variant}')", 5, avro=(union, "long, string", 5), **number
    )
    yield _kind("Dynamic", "CAST(5::Int64, 'Dynamic')", 5, avro=("long", "long", 5), **number)
    document = {"k": {"n": 1}, "s": "x"}
    yield _kind("JSON", f"CAST('{json.dumps(document)}', 'JSON')", document)


def _points() -> Iterator[Kind]:
    xy = _avro_record("xy", x="double", y="double")
    arrow_xy = pa.struct([("x", pa.float64()), ("y", pa.float64())])
    a, b = [0.5, 1.5], [2.5, 3.5]
    named = [{"x": 0.5, "y": 1.5}, {"x": 2.5, "y": 3.5}]
    shapes = {
        0: ("Point",),
        1: ("Ring", "LineString", "MultiPoint"),
        2: ("Polygon", "MultiLineString"),
        3: ("MultiPolygon",),
    }
    protobuf = ("XY", "repeated XY", "repeated Path", "repeated Paths")
    for depth, names in shapes.items():
        bare: Any = [a, b]
        known: Any = named
        schema: Any = xy
        arrow: pa.DataType = arrow_xy
        cell = "[(0.5,1.5),(2.5,3.5)]"
        if not depth:
            bare, known, cell = a, named[0], "(0.5,1.5)"
        for level in range(depth):
            schema, arrow = _array(schema), pa.list_(arrow)
            if level:
                bare, known, cell = [bare], [known], f"[{cell}]"
        in_protobuf = known
        if depth > 1:
            in_protobuf = [{"points": named}] if depth == 2 else [{"paths": [{"points": named}]}]
        for name in names:
            yield _kind(
                name,
                f"CAST({cell}, '{name}')",
                bare,
                cells=(cell,),
                csv=("0.5", "1.5") if not depth else (cell,),
                avro=(schema, "array of " * depth + "record", known),
                protobuf=(protobuf[depth], in_protobuf),
                arrow=(arrow, known),
                packed=bare,
                sent=bare,
            )
    yield _kind("Geometry", "CAST((0.5,1.5)::Point, 'Geometry')", a, cells=("(0.5,1.5)",))


def _others() -> Iterator[Kind]:
    vector = [0.5, -1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    yield _kind(
        "QBit(Float32, 8)",
        f"CAST({vector}, 'QBit(Float32, 8)')",
        vector,
        avro=(_array("float"), "array", vector),
        protobuf=("repeated float", vector),
        arrow=(pa.list_(pa.float32()), vector),
        packed=[Single(one) for one in vector],
        sent=vector,
    )
    yield _kind(
        "SimpleAggregateFunction(max, UInt64)",
        "CAST(7, 'SimpleAggregateFunction(max, UInt64)')",
        7,
        avro=("long", "long", 7),
        protobuf=("uint64", 7),
        arrow=(pa.uint64(), 7),
        packed=7,
        sent=7,
    )
    yield _kind(
        "AggregateFunction(max, UInt8)",
        "CAST(unhex('0107'), 'AggregateFunction(max, UInt8)')",
        "\x01\x07",
    )


def every_kind() -> tuple[Kind, ...]:
    """All types that a column may have."""
    makers = (_integers, _floats, _decimals, _texts, _moments, _intervals)
    makers += (_containers, _records, _any_types, _points, _others)
    return tuple(kind for make in makers for kind in make())


#: Families of the engine that a server writes by another name, or of which no column may be.
BY_ANOTHER_NAME = {
    "Decimal32": "Decimal",
    "Decimal64": "Decimal",
    "Decimal128": "Decimal",
    "Decimal256": "Decimal",
    "DateTime32": "DateTime",
    "Enum": "Enum8",
}
NO_COLUMNS = ("Nothing",)
