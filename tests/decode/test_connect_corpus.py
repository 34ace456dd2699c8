"""The schemas and values that the tests of ClickHouse's sink for Kafka Connect use, as Connect's
converter of JSON writes them: they load with equal values, or the refusal is in words.

Facts of its tests, written anew: github.com/ClickHouse/clickhouse-kafka-connect, SchemaTestData and
SchemalessTestData.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.core.load_spec import Mapped
from tests.decode.connect_support import connect_message, connect_table, made, shown

NUMBERS = (0, 1, 2, 3, 999)
MS = 1_767_323_045_678
UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"


@dataclass(frozen=True)
class Case:
    """
    :param kinds: of the fields, as `connect_support` spells them.
    :param types: of the columns.
    :param values: of the fields, one message each.
    :param loads: the rows, where columns have other values than fields, or what is refused.
    :param changes: of the entry.
    """

    name: str
    kinds: dict[str, Any]
    types: dict[str, str]
    values: list[dict[str, Any]]
    loads: list[Any] | None = None
    changes: dict[str, Any] = field(default_factory=dict)

    def expected(self) -> list[Any]:
        if self.loads is not None:
            return self.loads
        types = self.types.items()
        return [[shown(value.get(name), kind) for name, kind in types] for value in self.values]


INTEGERS = ("int8", "int16", "int32", "int64")
SCALARS = {**{one: one.capitalize() for one in INTEGERS}, "float": "Float32", "double": "Float64"}
SCALARS |= {"boolean": "Bool", "string": "String"}
OF_SCALARS: dict[str, Any] = {
    **dict.fromkeys(INTEGERS, 1),
    "float": 1.5,
    "double": 2.5,
    "boolean": True,
    "string": "1",
}
STRINGS = ("string", "string")
MAP_MAP = ("string", ("string", "int64"))
MAP_MAP_MAP = ("string", ("string", STRINGS))
DEEP = {"k1": {"nk1": {"nk2": "v1"}}, "k2": {"nk1": {"nk2": "v2"}}}
K12 = {"k1": "v1", "k2": "v2"}
PAIRS = {
    "array": ["string"],
    "map": STRINGS,
    "array_array": [["string"]],
    "map_map": MAP_MAP,
    "array_map": [STRINGS],
    "map_array": ("string", ["string"]),
    "array_array_array": [[["string"]]],
    "map_map_map": MAP_MAP_MAP,
}
PAIR_TYPES = {
    "array": "Array(String)",
    "map": "Map(String, String)",
    "array_array": "Array(Array(String))",
    "map_map": "Map(String, Map(String, Int64))",
    "array_map": "Array(Map(String, String))",
    "map_array": "Map(String, Array(String))",
    "array_array_array": "Array(Array(Array(String)))",
    "map_map_map": "Map(String, Map(String, Map(String, String)))",
}
PAIR_VALUES = {
    "array": ["1", "2"],
    "map": K12,
    "array_array": [["1", "2"], ["1", "2"]],
    "map_map": {"k1": {"nk1": 1}, "k2": {"nk1": 2}},
    "array_map": [K12, K12],
    "map_array": {"k1": ["1", "2"], "k2": ["1", "2"]},
    "array_array_array": [[["1", "2"]], [["1", "2"]]],
    "map_map_map": DEEP,
}
VARIANT = {"double": "double?", "string": "string?"}
VARIANT_TUPLE = "Tuple(double Nullable(Float64), string Nullable(String))"
PLAYER = {
    **dict.fromkeys(("key", "ip", "label", "player_root", "target", "type", "name"), "string?"),
    **dict.fromkeys(("id", "device_id", "processing_time"), "int64?"),
    "is_new_player": "boolean?",
    "tags": STRINGS,
}
PLAYER_TYPE = ", ".join(
    f"{name} Nullable({kind[:-1].replace('boolean', 'bool').title()})"
    for name, kind in PLAYER.items()
    if isinstance(kind, str)
)
PLAYER_TYPE += ", tags Map(String, String)"


def of_each(**values: Any) -> list[dict[str, Any]]:
    return [{name: one(n) for name, one in values.items()} for n in NUMBERS]


ARRAYS = {f"arr_{name}": [name] for name in SCALARS}
ARRAY_TYPES = {f"arr_{name}": f"Array({kind})" for name, kind in SCALARS.items()}
OPTIONAL = {f"arr_{name}": [f"{name}?"] for name in SCALARS}
OPTIONAL_TYPES = {f"arr_{n}": f"Array(Nullable({kind}))" for n, kind in SCALARS.items()}
UNSIGNED = {f"U{kind}": name for name, kind in SCALARS.items() if name in INTEGERS}
OF_SCALAR_TYPES = [
    Case("numbers", dict(zip(SCALARS, SCALARS, strict=True)), SCALARS, [OF_SCALARS]),
    Case(
        "low cardinality",
        {"s": "string", "n": "string?"},
        {"s": "LowCardinality(String)", "n": "LowCardinality(Nullable(String))"},
        of_each(s=lambda _: "abc", n=lambda n: None if n % 2 else "def"),
    ),
    Case("uuid", {"u": "string"}, {"u": "UUID"}, [{"u": UUID}]),
    Case("fixed", {"s": "string"}, {"s": "FixedString(3)"}, [{"s": "a1b"}]),
    Case(
        "too long",
        {"s": "string"},
        {"s": "FixedString(3)"},
        [{"s": "a1b2"}],
        ["out-of-range s"],
    ),
    Case(
        "enums",
        {"e": "string", "f": "string"},
        {"e": "Enum8('A' = 1, 'B' = 2)", "f": "Enum16('A' = 1, 'D' = 4)"},
        [{"e": "A", "f": "D"}],
    ),
    Case(
        "unsigned",
        UNSIGNED,
        {kind: kind for kind in UNSIGNED},
        [dict.fromkeys(UNSIGNED, 100)],
    ),
    Case("below zero", {"n": "int32"}, {"n": "UInt32"}, [{"n": -1}], ["out-of-range n"]),
    Case(
        "booleans as numbers",
        {"u": "boolean", "i": "boolean", "b": "boolean"},
        {"u": "UInt16", "i": "Int64", "b": "Bool"},
        [{"u": True, "i": False, "b": True}],
        [[1, "0", True]],
    ),
    Case("arrays", ARRAYS, ARRAY_TYPES, [{f"arr_{n}": [v, v] for n, v in OF_SCALARS.items()}]),
    Case("empty arrays", ARRAYS, ARRAY_TYPES, [{f"arr_{name}": [] for name in OF_SCALARS}]),
    Case(
        "arrays with null",
        OPTIONAL,
        OPTIONAL_TYPES,
        [{f"arr_{name}": [value, None] for name, value in OF_SCALARS.items()}],
    ),
    Case(
        "no array",
        {"a": ["string"]},
        {"a": "Array(String)"},
        [{"a": None}],
        ["null-in-column a"],
    ),
    Case(
        "no array is an empty one",
        {"a": ["string"]},
        {"a": "Array(Nullable(String))"},
        [{"a": None}, {"a": ["1"]}],
        [[[]], [["1"]]],
        {"on_null": "default"},
    ),
]

TUPLE, TUPLE_TYPE = (
    {"off16": "int16?", "string": "string?"},
    "off16 Nullable(Int16), string Nullable(String)",
)
CONTAINERS = [
    Case("containers", PAIRS, PAIR_TYPES, [PAIR_VALUES]),
    Case(
        "containers in a tuple",
        {"t": PAIRS},
        {"t": f"Tuple({', '.join(f'`{n}` {kind}' for n, kind in PAIR_TYPES.items())})"},
        [{"t": PAIR_VALUES}],
    ),
    # Not texts as keys: the converter writes pairs.
    Case(
        "keys that are numbers",
        {"m": ("int64", "string"), "n": ("string", ("int32", "Decimal2"))},
        {"m": "Map(Int64, String)", "n": "Map(String, Map(Int32, Decimal(9, 2)))"},
        [{"m": {1: "v1", 2: "v2"}, "n": {"a": {-1: "1.25"}}}, {"m": {}, "n": {}}],
    ),
    Case(
        "tuples",
        {"off16": "int16", "t": TUPLE},
        {"off16": "Int16", "t": f"Tuple({TUPLE_TYPE})"},
        [{"off16": 1, "t": {"off16": 1, "string": "s"}}, {"off16": 2, "t": {}}],
    ),
    Case(
        "tuples in tuples",
        {"t": {**TUPLE, "n": TUPLE}},
        {"t": f"Tuple({TUPLE_TYPE}, n Tuple({TUPLE_TYPE}))"},
        [{"t": {"off16": 1, "string": "s", "n": {"off16": 2, "string": None}}}],
    ),
    Case(
        "a player",
        {"player": PLAYER, "va": "double?"},
        {
            "player": f"Tuple({PLAYER_TYPE})",
            "va": "Nullable(Float64)",
        },
        [{"player": {"id": 5, "key": "k", "is_new_player": False, "tags": K12}, "va": 0.5}],
    ),
    Case(
        "arrays for columns of a Nested",
        {"n.s": ["string"], "n.d": ["Decimal2"], "n.t": [{"map": STRINGS, "at": "Timestamp?"}]},
        {
            "n.s": "Array(String)",
            "n.d": "Array(Decimal(14, 2))",
            "n.t": "Array(Tuple(map Map(String, String), at Nullable(DateTime64(3))))",
        },
        [{"n.s": ["a"], "n.d": ["7.20"], "n.t": [{"map": {"k": "v"}, "at": MS}]}],
        [[["a"], ["7.2"], [{"map": {"k": "v"}, "at": "2026-01-02 03:04:05.678"}]]],
    ),
    # Unions are structs of Connect, of which all fields but one are null.
    Case(
        "a union as text",
        {"v": VARIANT},
        {"v": "String"},
        [{"v": {"string": "x"}}],
        [['{"double": null, "string": "x"}']],
    ),
    Case(
        "a union as a tuple",
        {"p": {"fields": ("string", VARIANT), "tags": STRINGS}},
        {
            "p": f"Tuple(fields Map(String, {VARIANT_TUPLE}), tags Map(String, String))",
        },
        [{"p": {"fields": {"a": {"double": 0.5}, "b": {"string": "x"}}, "tags": K12}}],
    ),
]

AT, SECOND = "2026-01-02 03:04:05.678", "2026-01-02 03:04:05"
MOMENTS = {f"t{scale}": f"DateTime64({scale}, 'UTC')" for scale in (3, 6, 9)}
LOGICAL = [
    Case(
        "moments",
        {
            **dict.fromkeys(MOMENTS, "Timestamp"),
            "n": "Timestamp",
            "time": "Time",
            "day": "Date?",
        },
        {**MOMENTS, "n": "Int64", "time": "Int32", "day": "Nullable(Date)"},
        [{**dict.fromkeys(MOMENTS, MS), "n": MS, "time": 45_296_000, "day": 20_455}],
        [[AT, f"{AT}000", f"{AT}000000", str(MS), 45_296_000, "2026-01-02"]],
    ),
    Case(
        "a moment and a second",
        {"t": "Timestamp"},
        {"t": "DateTime('UTC')"},
        [{"t": MS}],
        ["out-of-range t"],
    ),
    Case(
        "a moment cut to a second",
        {"t": "Timestamp"},
        {"t": "DateTime('UTC')"},
        [{"t": MS}],
        [[SECOND]],
        {"fractions": "cut"},
    ),
    Case(
        "numbers that are days and seconds",
        {"d": "int32?", "e": "int32?", "i": "int32", "t": "int64"},
        {
            "d": "Nullable(Date)",
            "e": "Nullable(Date32)",
            "i": "DateTime('UTC')",
            "t": "DateTime('UTC')",
        },
        [{"d": 20_455, "e": None, "i": MS // 1000, "t": MS // 1000}],
        [["2026-01-02", None, SECOND, SECOND]],
    ),
    Case(
        "a number of milliseconds",
        {"t": "int64"},
        {"t": "DateTime64(3)"},
        [{"t": MS}],
        ["out-of-range t"],
    ),
    Case(
        "numbers of milliseconds that the entry calls so",
        {"t": "int64"},
        {"t": "DateTime64(3, 'UTC')"},
        [{"t": MS}],
        [[AT]],
        {"timestamps": "ms"},
    ),
    Case(
        "seconds are no days",
        {"d": "int64"},
        {"d": "Date"},
        [{"d": MS // 1000}],
        ["out-of-range d"],
    ),
    Case(
        "moments in arrays",
        {"a": ["Timestamp"], "m": ("string", ["Date"])},
        {"a": "Array(DateTime64(3, 'UTC'))", "m": "Map(String, Array(Date))"},
        [{"a": [MS, 0], "m": {"k": [20_455]}}, {"a": [], "m": {}}],
        [[[AT, "1970-01-01 00:00:00.000"], {"k": ["2026-01-02"]}], [[], {}]],
    ),
    Case(
        "texts of moments",
        {"t": "string", "o": "string", "z": "string"},
        {"t": "DateTime64(9, 'UTC')", "o": "DateTime64(9, 'UTC')", "z": "DateTime64(9, 'UTC')"},
        [
            {
                "t": f"{AT}000001",
                "o": "2026-01-02T04:04:05.678+01:00",
                "z": "2026-01-02T03:04:05.678Z",
            }
        ],
        [[f"{AT}000001", f"{AT}000000", f"{AT}000000"]],
    ),
    # What Java's ZonedDateTime writes.
    Case(
        "a text with the name of a zone",
        {"t": "string"},
        {"t": "DateTime64(3, 'UTC')"},
        [{"t": "2026-01-02T03:04:05.678Z[Etc/UTC]"}],
        ["cannot-parse t"],
    ),
    Case(
        "decimals",
        {"d": "Decimal2", "e": "Decimal2?"},
        {"d": "Decimal(14, 2)", "e": "Nullable(Decimal(14, 2))"},
        [{"d": f"{n}.20", "e": None if n % 2 else f"-{n}.25"} for n in NUMBERS],
        [[f"{n}.2", None if n % 2 else f"{-n}.25" if n else "-0.25"] for n in NUMBERS],
    ),
    Case("bytes stay base64", {"b": "bytes"}, {"b": "String"}, [{"b": b"1010"}], [["MTAxMA=="]]),
    Case(
        "bytes",
        {"b": "bytes"},
        {"b": "FixedString(4)"},
        [{"b": b"1010"}],
        [["1010"]],
        {"mapping": (Mapped("b", "sql", "base64Decode(b)"),), "fields": (("b", "String"),)},
    ),
    Case(
        "documents",
        {"off16": "int16", "j": {"k1": "string", "k2": "int64"}},
        {"off16": "Int16", "j": "JSON"},
        [{"off16": 1, "j": {"k1": "v", "k2": 5}}],
        [[1, {"k1": "v", "k2": "5"}]],
    ),
    Case("a document as text", {"j": "string"}, {"j": "JSON"}, [{"j": "{}"}], [[{}]]),
    Case(
        "documents as text",
        {"j": "string", "n": "string?"},
        {"j": "JSON", "n": "Nullable(JSON)"},
        [{"j": '{"k3":"v3"}', "n": None}, {"j": "{}", "n": '{"k3":"v3"}'}],
        [[{"k3": "v3"}, None], [{}, {"k3": "v3"}]],
        {
            "mapping": (
                Mapped("j", "sql", "CAST(j, 'JSON')"),
                Mapped("n", "sql", "CAST(n, 'Nullable(JSON)')"),
            ),
            "fields": (("j", "String"), ("n", "Nullable(String)")),
        },
    ),
]

CASES = (*OF_SCALAR_TYPES, *CONTAINERS, *LOGICAL)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_connect_writes_with_a_schema(case: Case) -> None:
    values = [connect_message(case.kinds, value) for value in case.values]
    assert made(connect_table(case.types, **case.changes), values) == case.expected()


def test_schemas_that_change_among_messages() -> None:
    """Fields come, go and come back; columns that a message does not have get their DEFAULT."""
    versions: list[dict[str, Any]] = [
        {"off16": "int16", "p_int64": "int64"},
        {"off16": "int16", "p_int64": "int64", "name": "string?"},
        {"off16": "int16", "p_int64": "int64", "name": "string?", "v3": "boolean?"},
        {"v4": "double?", "p_int64": "int64", "off16": "int16"},
        {
            "off16": "int32",
            "p_int64": "int64",
            "at": "Timestamp?",
            "price": "Decimal2?",
            "day": "Date?",
        },
        {"off16": "int16", "p_int64": "int64", "list": ["string?"], "map": ("string", "int32?")},
        {"off16": "int16", "p_int64": "int64", "inner": {"nested": "string?", "?": True}},
    ]
    types = {
        "off16": "Int16",
        "p_int64": "Int64",
        "name": "Nullable(String)",
        "v3": "Nullable(Bool)",
        "v4": "Nullable(Float64)",
        "at": "Nullable(DateTime64(3, 'UTC'))",
        "price": "Nullable(Decimal(9, 2))",
        "day": "Nullable(Date)",
        "list": "Array(Nullable(String))",
        "map": "Map(String, Nullable(Int32))",
        "inner": "Tuple(nested Nullable(String))",
    }
    moment = {"at": MS, "price": "1.50", "day": 20_455}
    there = {"name": "n", "v3": True, "v4": 0.5, "list": ["a", None], "map": {"k": 1}, **moment}
    there |= {"inner": {"nested": "x"}}
    absent = {"list": [], "map": {}, "inner": {"nested": None}}
    loaded = {"at": "2026-01-02 03:04:05.678", "price": "1.5", "day": "2026-01-02"}
    values, expected = [], []
    for number in range(70):
        kinds = versions[number % len(versions)]
        value = {"off16": number, "p_int64": number * 2**40, **there}
        values.append(connect_message(kinds, value))
        row = (
            absent
            | {name: value[name] for name in kinds}
            | {n: loaded[n] for n in loaded if n in kinds}
        )
        expected.append([shown(row.get(name), kind) for name, kind in types.items()])
    assert made(connect_table(types), values) == expected


def test_messages_without_a_schema() -> None:
    """As a converter with schemas.enable=false, or any other writer of JSON, writes them."""
    types = {
        "str": "String",
        "null_str": "Nullable(String)",
        **{f"p_{name}": kind for name, kind in SCALARS.items() if name != "string"},
        "decimal": "Nullable(Decimal(14, 2))",
        "map": "Map(Int64, String)",
        "content": "JSON",
    }
    value = {
        "str": "num \U0001f600 :1",
        "null_str": None,
        **{f"p_{name}": one for name, one in OF_SCALARS.items() if name != "string"},
        "decimal": 7.2,
        "map": {"1": "v1"},
        "content": {"k1": "v1", "k3": {"k4": [1, 2]}},
    }
    text = connect_table(types)
    expected = [shown(value[name], kind) for name, kind in types.items()]
    expected[-1] = {"k1": "v1", "k3": {"k4": ["1", "2"]}}
    found = made(
        text,
        [
            json.dumps(value).encode(),
            json.dumps(value, ensure_ascii=False).encode(),
            # Without a schema nobody says that pairs are a map.
            json.dumps(value | {"map": [[1, "v1"]]}).encode(),
            # A lone surrogate is no character.
            b'{"str":"\\\\ \\ud83d"}',
            json.dumps(value | {"p_int8": 128}).encode(),
        ],
    )
    assert found[:3] == [expected, expected, "cannot-parse map"]
    assert found[4] == "out-of-range p_int8"
