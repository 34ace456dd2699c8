"""An Avro schema as it is needed here: for the engine, and for the walk through each message.

Schemas come from outside: what the engine cannot carry (recursive types, a top level that is
no record) is said in words. UUIDs as text are given to it as text, and converted afterwards: it
would throw at what is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from sluice.decode.engine.session import identifier
from sluice.decode.engine.types import DAYS, TypeNode, parse_type
from sluice.decode.messages.format import Natural
from sluice.decode.schema.headed import UnsupportedSchemaError
from sluice.decode.schema.structure import AvroKind, AvroTables

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "error", "enum", "fixed")
_INT = (-(2**31), 2**31 - 1)
#: By logical type: what its integer is, and counts, of those that the engine does not know.
_TICKS = {
    ("int", "time-millis"): "Ticks(Int32, Time64(3))",
    ("long", "time-micros"): "Ticks(Int64, Time64(6))",
    ("long", "time-nanos"): "Ticks(Int64, Time64(9))",
    ("long", "timestamp-nanos"): "Ticks(Int64, DateTime64(9, 'UTC'))",
    ("long", "local-timestamp-millis"): "Ticks(Int64, DateTime64(3, 'UTC'))",
    ("long", "local-timestamp-micros"): "Ticks(Int64, DateTime64(6, 'UTC'))",
    ("long", "local-timestamp-nanos"): "Ticks(Int64, DateTime64(9, 'UTC'))",
}
#: Bytes of the engine's decimals up to so many digits.
_DECIMAL_BYTES = ((9, 4), (18, 8), (38, 16), (76, 32))


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A writer's schema.

    :param fields: JSON of the fields for the engine's record.
    :param marked: the same, with an enum in place of each integer that counts ticks, of which the
        engine then says where it stands; None: there is none.
    :param columns: what they are; a type that is "" is the engine's own.
    :param tables: for the walk.
    :param column_of: the message's field that a node of the walk belongs to, "" for the message.
    """

    name: str
    fields: tuple[Any, ...]
    marked: tuple[Any, ...] | None
    columns: tuple[Natural, ...]
    tables: AvroTables
    column_of: tuple[str, ...]


def parse_avro(
    text: str,
    references: Iterable[str] = (),
    refused_nulls: frozenset[str] = frozenset(),
    wanted: Mapping[str, str] = MappingProxyType({}),
    only: str = "",
) -> AvroSchema:
    """Take a schema apart.

    :param references: texts of the schemas that it names types of.
    :param wanted: types of columns by name; a field that has none of their names goes by an alias
        that is one, also in records inside of it.
    :param refused_nulls: fields where null instead of an array or map is a fault; the engine
        shows it as an empty one.
    :param only: the field that a message of a schema that is no record is; "": there is none.
    :raises UnsupportedSchemaError: it cannot be used, or is none.
    """
    try:
        parsed = json.loads(text)
        definitions = _Definitions()
        for reference in references:
            definitions.collect(json.loads(reference), "")
        definitions.collect(parsed, "")
        return _Compiler(definitions, refused_nulls, wanted, only).compile(parsed)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        what = f"a type lacks {error}" if isinstance(error, KeyError) else error
        raise UnsupportedSchemaError(f"the Avro schema cannot be read: {what}") from error


def split_schemas(text: str) -> list[str]:
    """The schemas of a text: JSON values one after another; a list at the top is several."""
    decoder, position, found = json.JSONDecoder(), 0, []
    while position < len(text):
        if text[position] in " \t\r\n,":
            position += 1
            continue
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError as error:
            raise UnsupportedSchemaError(f"the schema is not JSON: {error}") from error
        found += value if isinstance(value, list) else [value]
    return [json.dumps(value) for value in found]


def _full_name(schema: dict[str, Any], namespace: str) -> str:
    name = str(schema["name"])
    if "." in name:
        return name
    namespace = schema.get("namespace", namespace) or ""
    return f"{namespace}.{name}" if namespace else name


@dataclass(slots=True)
class _Definitions:
    """Named types, and the namespace in which each stands."""

    named: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)

    def collect(self, schema: Any, namespace: str) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self.collect(branch, namespace)
        elif isinstance(schema, dict):
            kind = schema["type"]
            if kind in _NAMED:
                full = _full_name(schema, namespace)
                self.named.setdefault(full, (schema, namespace))
                namespace = full.rpartition(".")[0]
                for part in schema.get("fields", ()):
                    self.collect(part["type"], namespace)
            elif isinstance(kind, dict | list):
                self.collect(kind, namespace)
            else:
                self.collect(schema.get("items"), namespace)
                self.collect(schema.get("values"), namespace)

    def find(self, name: str, namespace: str) -> str:
        for full in (f"{namespace}.{name}" if namespace and "." not in name else name, name):
            if full in self.named:
                return full
        raise UnsupportedSchemaError(f"the Avro schema names the unknown type {name}")


def _name_among(part: dict[str, Any], names: set[str], wanted: Collection[str]) -> str:
    """A field's own name, or one that it had before, if only that is wanted.

    :param names: of all fields of its record.
    """
    name = str(part["name"])
    if name in wanted:
        return name
    before = (str(alias) for alias in part.get("aliases", ()))
    return next((one for one in before if one in wanted and one not in names), name)


def _replaced(schema: Any, ticks: Callable[[dict[str, Any]], Any]) -> Any:
    """A schema with something else in place of each integer that counts ticks."""
    if isinstance(schema, list):
        return [_replaced(one, ticks) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if isinstance(kind, str) and (kind, str(schema.get("logicalType"))) in _TICKS:
        return ticks(schema)
    return {key: _replaced(value, ticks) for key, value in schema.items()}


def _marked(schema: Any) -> Any:
    """A schema with an enum in place of each of them."""
    numbers = count()

    def enum(ticks: dict[str, Any]) -> dict[str, Any]:
        symbol = ticks["logicalType"].replace("-", "_")
        return {"type": "enum", "name": f"sluice_ticks_{next(numbers)}", "symbols": [symbol]}

    return _replaced(schema, enum)


def with_ticks(type_text: str) -> str:
    """A type of a marked schema, with ticks in place of the enums."""
    for (_, logical), ticks in _TICKS.items():
        type_text = type_text.replace(f"Enum8('{logical.replace('-', '_')}' = 0)", ticks)
    return type_text


#: In a union of bytes and string, the second of the two is a record of one field for the engine.
_SECOND_TEXT = "text"


def _of_bytes_and_text(name: str, is_nullable: bool) -> Natural:
    """A union of both, as one text."""
    union = identifier(name)
    second = f"variantElement({union}, 'Tuple({_SECOND_TEXT} String)')"
    value = f"ifNull(variantElement({union}, 'String'), tupleElement({second}, 1))"
    if not is_nullable:
        return Natural(name, "String", f"assumeNotNull({value})")
    value = f"if(isNull({union}), NULL, {value})"
    return Natural(name, "Nullable(String)", f"CAST({value}, 'Nullable(String)')")


@dataclass(slots=True)
class _Compiler:
    definitions: _Definitions
    refused_nulls: frozenset[str]
    wanted: Mapping[str, str]
    only: str
    nodes: list[list[int]] = field(default_factory=list)
    column_of: list[str] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    column: str = ""
    names: int = 0

    def compile(self, schema: Any) -> AvroSchema:
        schema, namespace = self._record(schema)
        full = _full_name(schema, namespace)
        namespace = full.rpartition(".")[0]
        self.open.append(full)
        top = self._node(AvroKind.RECORD)
        fields, columns, places = [], [], []
        names = {str(part["name"]) for part in schema["fields"]}
        for part in schema["fields"]:
            self.column = _name_among(part, names, self.wanted)
            target = self.wanted.get(self.column)
            wanted = None if target is None else parse_type(target)
            node, engine = self._any(part["type"], namespace, wanted)
            places.append(node)
            fields.append({"name": self.column, "type": engine})
            columns.append(self._column(part["type"], namespace, wanted))
        if not fields:
            raise UnsupportedSchemaError(f"the Avro record {full} has no fields")
        if len({column.name for column in columns}) < len(columns):
            raise UnsupportedSchemaError(f"the Avro record {full} has two fields of one name")
        self._set_children(top, places)
        tables = AvroTables(
            np.array(self.nodes, np.int32), np.array(self.children or [0], np.int32)
        )
        bare = _replaced(fields, lambda ticks: ticks["type"])
        marked = None if bare == fields else tuple(_marked(fields))
        return AvroSchema(full, tuple(bare), marked, tuple(columns), tables, tuple(self.column_of))

    def _record(self, schema: Any) -> tuple[dict[str, Any], str]:
        """The message's own type."""
        namespace = ""
        while isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            schema = schema["type"]
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema, namespace = self.definitions.named[self.definitions.find(schema, "")]
        if not isinstance(schema, dict) or schema["type"] not in ("record", "error"):
            if self.only:
                # A record adds no byte.
                fields = [{"name": self.only, "type": schema}]
                return {"type": "record", "name": "sluice_only", "fields": fields}, namespace
            kind = "union" if isinstance(schema, list) else schema
            kind = kind["type"] if isinstance(kind, dict) else kind
            raise UnsupportedSchemaError(f"the Avro schema is a {kind}, not a record")
        return schema, namespace

    def _column(self, schema: Any, namespace: str, wanted: TypeNode | None) -> Natural:
        """Values that the engine has another type for than the schema means."""
        name = self.column
        is_nullable = isinstance(schema, list) and "null" in schema and len(schema) == 2
        if is_nullable:
            schema = next((branch for branch in schema if branch != "null"), "null")
        if schema in ("null", ["null"]):
            return Natural(name, "Nullable(String)", "CAST(NULL, 'Nullable(String)')")
        if isinstance(schema, list) and {*map(str, schema)} - {"null"} == {"bytes", "string"}:
            return _of_bytes_and_text(name, "null" in schema)
        if wanted and wanted.bare().name == "UUID" and self._is_uuid(schema, namespace):
            # To the engine it is a FixedString, whose bytes are in their order.
            value = f"toUUID(UUIDNumToString({identifier(name)}))"
            return Natural(name, "Nullable(UUID)" if is_nullable else "UUID", value)
        return Natural(name, "")

    def _is_uuid(self, schema: Any, namespace: str) -> bool:
        """Whether values are the 16 bytes of a UUID."""
        while isinstance(schema, dict) and isinstance(schema["type"], dict):
            schema = schema["type"]
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema, _ = self.definitions.named[self.definitions.find(schema, namespace)]
        return isinstance(schema, dict) and (
            (schema["type"], schema.get("logicalType"), schema.get("size")) == ("fixed", "uuid", 16)
        )

    def _node(self, kind: AvroKind, a: int = 0, b: int = 0) -> int:
        self.nodes.append([kind, a, b])
        self.column_of.append(self.column)
        return len(self.nodes) - 1

    def _set_children(self, node: int, places: list[int]) -> None:
        self.nodes[node][1:] = [len(self.children), len(places)]
        self.children += places

    def _name(self) -> str:
        self.names += 1
        return f"sluice_type_{self.names}"

    def _any(self, schema: Any, namespace: str, target: TypeNode | None) -> tuple[int, Any]:
        """A node for the walk, and the schema for the engine.

        :param target: the type that is wanted here, if that is known.
        """
        target = target and target.bare()
        if isinstance(schema, list):
            return self._union(schema, namespace, target)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return self._primitive(schema)
            full = self.definitions.find(schema, namespace)
            schema, namespace = self.definitions.named[full]
        kind = schema["type"]
        if isinstance(kind, dict | list) or kind not in (*_PRIMITIVES, *_NAMED, "array", "map"):
            return self._any(kind, namespace, target)
        if kind in _NAMED:
            return self._named(schema, namespace, target)
        if kind in ("array", "map"):
            node = self._node(AvroKind.ARRAY if kind == "array" else AvroKind.MAP)
            part = "items" if kind == "array" else "values"
            inner = target.parts()[-1] if target and target.name.lower() == kind else None
            self.nodes[node][1], engine = self._any(schema[part], namespace, inner)
            return node, {"type": kind, part: engine}
        return self._logical(schema, kind)

    def _primitive(self, kind: str) -> tuple[int, Any]:
        if kind == "null":
            # The engine has no column of nothing; an empty record has no bytes either.
            return self._node(AvroKind.NULL), self._empty()
        if kind == "int":
            return self._node(AvroKind.INT, *_INT), kind
        if kind in ("float", "double"):
            return self._node(AvroKind.FIXED, 4 if kind == "float" else 8), kind
        if kind in ("bytes", "string"):
            return self._node(AvroKind.BYTES, 0, -1), kind
        return self._node(AvroKind.BOOLEAN if kind == "boolean" else AvroKind.LONG), kind

    def _empty(self) -> dict[str, Any]:
        return {"type": "record", "name": self._name(), "fields": []}

    def _logical(self, schema: dict[str, Any], kind: str) -> tuple[int, Any]:
        logical = schema.get("logicalType")
        if logical == "date" and kind == "int":
            # The engine throws at days that it does not know; the walk lets none of them pass.
            return self._node(AvroKind.INT, *DAYS), {"type": "int", "logicalType": "date"}
        if logical == "decimal" and kind == "bytes":
            precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
            for digits, size in _DECIMAL_BYTES:
                if 0 <= scale <= precision <= digits:
                    engine = {
                        "type": "bytes",
                        "logicalType": "decimal",
                        "precision": precision,
                        "scale": scale,
                    }
                    return self._node(AvroKind.BYTES, 1, size), engine
            raise UnsupportedSchemaError(f"a decimal of {precision} digits has no type here")
        if logical in ("timestamp-millis", "timestamp-micros") and kind == "long":
            return self._node(AvroKind.LONG), {"type": "long", "logicalType": logical}
        if (kind, logical) in _TICKS:
            return self._primitive(kind)[0], {"type": kind, "logicalType": logical}
        return self._primitive(kind)

    def _named(
        self, schema: dict[str, Any], namespace: str, target: TypeNode | None
    ) -> tuple[int, Any]:
        full = _full_name(schema, namespace)
        if full in self.open:
            raise UnsupportedSchemaError(f"the Avro type {full} contains itself")
        namespace, kind = full.rpartition(".")[0], schema["type"]
        if kind == "enum":
            symbols = [str(symbol) for symbol in schema["symbols"]]
            engine = {"type": "enum", "name": self._name(), "symbols": symbols}
            return self._node(AvroKind.ENUM, len(symbols)), engine
        if kind == "fixed":
            return self._fixed(schema)
        self.open.append(full)
        node = self._node(AvroKind.RECORD)
        places, fields = [], []
        wanted = dict(target.elements()) if target and target.name == "Tuple" else {}
        names = {str(part["name"]) for part in schema["fields"]}
        for part in schema["fields"]:
            name = _name_among(part, names, wanted)
            place, engine = self._any(part["type"], namespace, wanted.get(name))
            places.append(place)
            fields.append({"name": name, "type": engine})
        self._set_children(node, places)
        self.open.pop()
        return node, {"type": "record", "name": self._name(), "fields": fields}

    def _fixed(self, schema: dict[str, Any]) -> tuple[int, Any]:
        size = int(schema["size"])
        engine: dict[str, Any] = {"type": "fixed", "name": self._name(), "size": size}
        if schema.get("logicalType") == "decimal":
            precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
            room = next((most for digits, most in _DECIMAL_BYTES if precision <= digits), 0)
            if not (0 <= scale <= precision and 0 < size <= room):
                said = f"a decimal of {precision} digits in {size} bytes has no type here"
                raise UnsupportedSchemaError(said)
            engine |= {"logicalType": "decimal", "precision": precision, "scale": scale}
        if size < 1:
            return self._node(AvroKind.NULL), self._empty()
        return self._node(AvroKind.FIXED, size), engine

    def _union(
        self, branches: list[Any], namespace: str, target: TypeNode | None
    ) -> tuple[int, Any]:
        node = self._node(AvroKind.UNION)
        places, engines = [], []
        holds_many = False
        for branch in branches:
            if branch == "null":
                places.append(self._node(AvroKind.NULL))
                engines.append("null")
                continue
            place, engine = self._any(branch, namespace, target)
            if engine in ("bytes", "string") and ("bytes" in engines or "string" in engines):
                # To the engine both are Strings, of which a union holds one. A record adds no byte.
                parts = [{"name": _SECOND_TEXT, "type": engine}]
                engine = {"type": "record", "name": self._name(), "fields": parts}
            holds_many |= self.nodes[place][0] in (AvroKind.ARRAY, AvroKind.MAP)
            places.append(place)
            engines.append(engine)
        self._set_children(node, places)
        if engines == ["null"]:
            # The branch's number, which the walk knows to be 0, is all there is.
            return node, "int"
        # A union of several types is null to the engine where it is null.
        if holds_many and len(branches) == 2 and self.column in self.refused_nulls:
            for place in places:
                if self.nodes[place][0] == AvroKind.NULL:
                    self.nodes[place][0] = AvroKind.REFUSED_NULL
        return node, engines
