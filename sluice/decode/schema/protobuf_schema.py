"""A Protobuf schema as it is needed here: for the engine, and for the walk through each message.

The .proto text is compiled by protoc, which knows all of the language. The engine gets a text
of our own making: one file, types named T0, T1, …, the message's own fields named by number,
because the engine matches names to columns regardless of case and underscores.

An absent field is what Protobuf says it is: the default of its type (or proto2's own). Where
absence differs from the default (`optional`, oneof) and the column takes null, it is null.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from sluice.core.errors import TransientError
from sluice.decode.engine.session import identifier, literal, run, settings_clause
from sluice.decode.engine.types import (
    INSTANT,
    WRAPPED,
    TypeNode,
    meant_type,
    parse_type,
    stored_type,
)
from sluice.decode.messages.format import Natural
from sluice.decode.schema.built_in import built_in, imports_of
from sluice.decode.schema.headed import UnsupportedSchemaError
from sluice.decode.schema.structure import ProtobufKind, ProtobufTables

MAIN_FILE = "sluice_main.proto"
_PROTOC_SECONDS_MAX = 60


def compile_files(files: Mapping[str, str], main: str) -> bytes:
    """A FileDescriptorSet of a file and all that it imports, made by protoc.

    :param files: texts by import path, or FileDescriptorProtos in base64, which serializers
        register in place of texts; Google's well-known types, and what serializers take for known
        (see `built_in`), need not be among them.
    :raises UnsupportedSchemaError: protoc refuses them.
    :raises TransientError: protoc cannot be run, or the machine does not let it do its work.
    """
    for path in files:
        if not (parts := PurePosixPath(path).parts) or ".." in parts or path.startswith("/"):
            raise UnsupportedSchemaError(f"{path!r} is no import path")
    try:
        with tempfile.TemporaryDirectory(prefix="sluice-protoc-") as folder:
            return _compiled(files, main, Path(folder))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _not_run(str(error)) from error


def _compiled(files: Mapping[str, str], main: str, folder: Path) -> bytes:
    given, imported = FileDescriptorSet(), list[str]()
    for path, text in files.items():
        descriptor = _descriptor_in(text)
        if descriptor is not None:
            # Others import it by the name that it was registered under.
            descriptor.name = path
            given.file.append(descriptor)
            imported += descriptor.dependency
            continue
        imported += imports_of(text)
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    given.file.extend(built_in(imported, files))
    output = folder / "sluice.descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
    if given.file:
        of_given = folder / "sluice.given"
        of_given.write_bytes(given.SerializeToString())
        command.append(f"--descriptor_set_in={of_given}")
    command += [f"--descriptor_set_out={output}", main]
    done = subprocess.run(command, capture_output=True, timeout=_PROTOC_SECONDS_MAX, check=False)
    if not done.returncode and output.exists():
        return output.read_bytes()
    said = done.stderr.decode(errors="replace").replace(f"{folder}/", "").strip()
    complaints = [line for line in said.split("\n") if ": warning: " not in line]
    if done.returncode < 0 or not any(f"{path}:" in line for path in files for line in complaints):
        # It was killed, or had no memory or no room: nothing is said of the schema.
        raise _not_run(f"it ended with status {done.returncode}: {said[-300:]}")
    said = said.replace(f"{MAIN_FILE}:", "line ").replace("\n", "; ")
    raise UnsupportedSchemaError(f"the Protobuf schema cannot be read: {said}")


def _not_run(why: str) -> TransientError:
    return TransientError(
        f"protoc cannot be run: {why}",
        "Look at the machine's memory, processes and temporary files.",
    )


def _descriptor_in(text: str) -> FileDescriptorProto | None:
    """A file's descriptor in base64; None: the text is something else, as a .proto is."""
    try:
        descriptor = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except Exception:  # the library has several for what it cannot parse
        return None
    return descriptor if descriptor.message_type or descriptor.enum_type else None


def read_descriptors(text: str) -> bytes:
    """A FileDescriptorSet in base64.

    :raises UnsupportedSchemaError: it is none.
    """
    try:
        raw = base64.b64decode(text, validate=True)
        if not FileDescriptorSet.FromString(raw).file:
            raise ValueError("no file in it")
    except Exception as error:  # the library has several for what it cannot parse
        raise UnsupportedSchemaError(f"no descriptor set in base64: {error}") from error
    return raw


_ONEOFS_MAX = 63

_F = FieldDescriptor
#: By type: how it stands on the wire, its word in a schema, its type in the engine.
_SCALARS = {
    _F.TYPE_DOUBLE: (ProtobufKind.FIXED64, "double", "Float64"),
    _F.TYPE_FLOAT: (ProtobufKind.FIXED32, "float", "Float32"),
    _F.TYPE_INT64: (ProtobufKind.VARINT, "int64", "Int64"),
    _F.TYPE_UINT64: (ProtobufKind.VARINT, "uint64", "UInt64"),
    _F.TYPE_INT32: (ProtobufKind.SIGNED, "int32", "Int32"),
    _F.TYPE_FIXED64: (ProtobufKind.FIXED64, "fixed64", "UInt64"),
    _F.TYPE_FIXED32: (ProtobufKind.FIXED32, "fixed32", "UInt32"),
    _F.TYPE_BOOL: (ProtobufKind.BOOL, "bool", "Bool"),
    _F.TYPE_STRING: (ProtobufKind.BYTES, "string", "String"),
    _F.TYPE_BYTES: (ProtobufKind.BYTES, "bytes", "String"),
    _F.TYPE_UINT32: (ProtobufKind.UNSIGNED, "uint32", "UInt32"),
    _F.TYPE_SFIXED32: (ProtobufKind.FIXED32, "sfixed32", "Int32"),
    _F.TYPE_SFIXED64: (ProtobufKind.FIXED64, "sfixed64", "Int64"),
    _F.TYPE_SINT32: (ProtobufKind.UNSIGNED, "sint32", "Int32"),
    _F.TYPE_SINT64: (ProtobufKind.VARINT, "sint64", "Int64"),
}

#: Google's messages that are one value, by what they are.
_WELL_KNOWN = {
    f"google.protobuf.{name}Value": f"{WRAPPED}({_SCALARS[type_number][2]})"
    for name, type_number in (
        ("Double", _F.TYPE_DOUBLE),
        ("Float", _F.TYPE_FLOAT),
        ("Int64", _F.TYPE_INT64),
        ("UInt64", _F.TYPE_UINT64),
        ("Int32", _F.TYPE_INT32),
        ("UInt32", _F.TYPE_UINT32),
        ("Bool", _F.TYPE_BOOL),
        ("String", _F.TYPE_STRING),
        ("Bytes", _F.TYPE_BYTES),
    )
} | {"google.protobuf.Timestamp": f"{INSTANT}()"}


class ProtobufFiles:
    """The message types of a FileDescriptorSet.

    :raises UnsupportedSchemaError: its files do not fit together.
    """

    def __init__(self, descriptors: bytes) -> None:
        self._files: dict[str, FileDescriptorProto] = {}
        self._pool: Any = DescriptorPool()
        try:
            for file in FileDescriptorSet.FromString(descriptors).file:
                self._files[file.name] = file
                self._pool.AddSerializedFile(file.SerializeToString())
        except Exception as error:  # the library has several for what does not fit
            raise UnsupportedSchemaError(f"the descriptor set cannot be read: {error}") from error

    def names(self) -> list[str]:
        """Full names of all message types, those of imported files included."""
        found = []
        for file in self._files.values():
            package = f"{file.package}." if file.package else ""
            waiting = [(package + message.name, message) for message in file.message_type]
            while waiting:
                name, message = waiting.pop(0)
                found.append(name)
                nested = (part for part in message.nested_type if not part.options.map_entry)
                waiting += [(f"{name}.{part.name}", part) for part in nested]
        return found

    def named(self, name: str) -> ProtobufMessage:
        """A type by its full name, or by its last part if only one type has it.

        :raises UnsupportedSchemaError: there is none, or it cannot be used.
        """
        names = self.names()
        chosen = [one for one in names if one == name] or [
            one for one in names if one.endswith(f".{name}")
        ]
        if len(chosen) != 1:
            what = "no" if not chosen else "more than one"
            raise UnsupportedSchemaError(f"the Protobuf schema has {what} message type {name}")
        return ProtobufMessage(self._pool.FindMessageTypeByName(chosen[0]))

    def at(self, file: str, path: tuple[int, ...]) -> ProtobufMessage:
        """A type by its place in a file, as a registry's header says it.

        :raises UnsupportedSchemaError: there is none, or it cannot be used.
        """
        types: Any = list(self._files[file].message_type)
        name = self._files[file].package
        for place in path:
            if place >= len(types):
                shown = ", ".join(map(str, path))
                raise UnsupportedSchemaError(f"the schema has no message type at [{shown}]")
            chosen = types[place]
            name = f"{name}.{chosen.name}" if name else chosen.name
            types = [part for part in chosen.nested_type if not part.options.map_entry]
        return ProtobufMessage(self._pool.FindMessageTypeByName(name))


@dataclass(frozen=True, slots=True)
class ProtobufColumn:
    """A field of the message.

    :param source: the engine's column.
    :param type: of it, as it is meant (see `types.WRAPPED`); without Nullable.
    :param has_presence: whether an absent field differs from one that says the default.
    """

    name: str
    number: int
    source: str
    type: str
    has_presence: bool
    message: str


class ProtobufMessage:
    """A message type with all that it contains.

    :raises UnsupportedSchemaError: the engine cannot read it.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self._types = _reachable(descriptor)
        self._place = {one.full_name: place for place, one in enumerate(self._types)}
        self.name = descriptor.full_name
        self.field_names = {field.number: field.name for field in descriptor.fields}
        for one in self._types:
            self._check(one)
        self.columns = tuple(
            self._column(field) for field in descriptor.fields if self.is_usable(field)
        )
        if not self.columns:
            raise UnsupportedSchemaError(f"message type {self.name} has no field for a column")

    @cached_property
    def oneofs(self) -> dict[str, tuple[ProtobufColumn, ...]]:
        """The fields of each oneof, if all of them can be columns."""
        columns = {column.name: column for column in self.columns}
        found = {one.name: one.fields for one in self.descriptor.oneofs if len(one.fields) > 1}
        return {
            name: tuple(columns[field.name] for field in fields)
            for name, fields in found.items()
            if name not in columns and all(field.name in columns for field in fields)
        }

    def _check(self, one: Descriptor) -> None:
        for field in one.fields:
            if field.type == _F.TYPE_GROUP:
                raise UnsupportedSchemaError(f"{field.full_name} is a group")
        if one is self._types[0]:
            return
        paths = [_plain(path) for path in self._paths(one, "")]
        if len(set(paths)) < len(paths):
            raise UnsupportedSchemaError(
                f"{one.full_name} has two fields whose names differ in case and _ only"
            )

    def _paths(self, one: Descriptor, before: str) -> list[str]:
        """The fields of a type, and those of the messages in them."""
        found = []
        for field in one.fields:
            found.append(before + field.name)
            if field.message_type is not None and self.is_usable(field):
                found += self._paths(field.message_type, before + field.name)
        return found

    @cached_property
    def _reach(self) -> dict[str, set[str]]:
        """The types that each type contains, however deep."""
        reach: dict[str, set[str]] = {}
        for one in self._types:
            reach[one.full_name] = {inner.full_name for inner in _reachable(one)[1:]}
            if any(field.message_type is one for field in one.fields):
                reach[one.full_name].add(one.full_name)
        return reach

    def is_usable(self, field: FieldDescriptor) -> bool:
        """Whether the engine can have a column of it: no recursion, no message of nothing."""
        inner = field.message_type
        if inner is None:
            return True
        outer = field.containing_type
        if inner is outer or outer.full_name in self._reach[inner.full_name]:
            return False
        return any(self.is_usable(part) for part in inner.fields)

    def _column(self, field: FieldDescriptor) -> ProtobufColumn:
        has_presence = field.has_presence and not field.has_default_value
        message = field.message_type.full_name if field.message_type is not None else ""
        return ProtobufColumn(
            field.name,
            field.number,
            f"f{field.number}",
            self._type(field),
            has_presence and not field.is_repeated,
            "" if field.is_repeated else message,
        )

    def _type(self, field: FieldDescriptor) -> str:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, value = (self._single_type(inner.fields_by_number[n]) for n in (1, 2))
            return f"Map({key}, {value})"
        single = self._single_type(field)
        return f"Array({single})" if field.is_repeated else single

    def _single_type(self, field: FieldDescriptor) -> str:
        if field.enum_type is not None:
            return enum_type(field.enum_type)
        if field.message_type is None:
            return _SCALARS[field.type][2]
        if field.message_type.full_name in _WELL_KNOWN:
            return _WELL_KNOWN[field.message_type.full_name]
        parts = []
        for part in field.message_type.fields:
            if self.is_usable(part):
                text = self._type(part)
                if not part.is_repeated and part.has_presence and not part.has_default_value:
                    text = f"Nullable({text})"
                parts.append(f"{identifier(part.name)} {text}")
        return f"Tuple({', '.join(parts)})"

    def engine_schema(self) -> str:
        """A .proto text of the same wire format; the message is T0."""
        enums = {field.enum_type.full_name: field.enum_type for field in self._fields("enum_type")}
        enum_names = {name: f"S{place}.E" for place, name in enumerate(enums)}
        parts = ['syntax = "proto2";']
        for place, one in enumerate(enums.values()):
            # The engine goes by names of values, which share the scope around their enum.
            values = (f"{name} = {number};" for number, name in enum_names_by_number(one).items())
            parts.append(f"message S{place} {{ enum E {{ {' '.join(values)} }} }}")
        for place, message in enumerate(self._types):
            if message.GetOptions().map_entry:
                continue
            fields = [
                self._declaration(field, place == 0, enum_names)
                for field in message.fields
                if self.is_usable(field)
            ]
            parts.append(f"message T{place} {{ {' '.join(fields)} }}")
        return "\n".join(parts)

    def _declaration(self, field: FieldDescriptor, is_own: bool, enums: dict[str, str]) -> str:
        name = f"f{field.number}" if is_own else field.name
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            key, value = (self._word(inner.fields_by_number[n], enums) for n in (1, 2))
            return f"map<{key}, {value}> {name} = {field.number};"
        label = "repeated" if field.is_repeated else "optional"
        default = _default_clause(field)
        return f"{label} {self._word(field, enums)} {name} = {field.number}{default};"

    def _word(self, field: FieldDescriptor, enums: dict[str, str]) -> str:
        if field.enum_type is not None:
            return enums[field.enum_type.full_name]
        if field.message_type is not None:
            return f"T{self._place[field.message_type.full_name]}"
        return _SCALARS[field.type][1]

    def _fields(self, kind: str) -> list[Any]:
        fields = (field for one in self._types for field in one.fields)
        return [field for field in fields if getattr(field, kind) is not None]

    def tables_for(self, targets: Mapping[str, str], refuses_unknown: bool) -> ProtobufTables:
        """For the walk.

        :param targets: the types that fields fill, by name. What they want of a message in a
            message decides, wherever it stands: a field that no column can hold is refused only
            where one is wanted.
        :param refuses_unknown: fields that nothing wants are unknown.
        """
        return _Places(self, refuses_unknown).tables(targets)


#: What is wanted of the fields of a message, by name; None: nobody asks.
_Wanted = Mapping[str, TypeNode] | None


class _Places:
    """The types of a message for the walk, one for each place where something else is wanted."""

    def __init__(self, message: ProtobufMessage, refuses_unknown: bool) -> None:
        self._message = message
        self._refuses_unknown = refuses_unknown
        self._numbers = [0]
        self._rows: list[list[tuple[int, ...]]] = []
        self._known: dict[tuple[str, str], int] = {}

    def tables(self, targets: Mapping[str, str]) -> ProtobufTables:
        wanted = {name: parse_type(text) for name, text in targets.items()}
        self._place(self._message.descriptor, wanted, "message")
        types: list[tuple[int, int]] = []
        rows: list[tuple[int, ...]] = []
        for own in self._rows:
            types.append((len(rows), len(own)))
            rows += own
        shaped = np.array(rows, np.int32).reshape(-1, 6)
        return ProtobufTables(np.array(types, np.int32), shaped, np.array(self._numbers, np.int32))

    def _place(self, one: Descriptor, wanted: _Wanted, key: str) -> int:
        """The number of a type at a place where this is wanted.

        :param key: what is wanted, as text.
        """
        found = self._known.get((one.full_name, key))
        if found is not None:
            return found
        number = self._known[one.full_name, key] = len(self._rows)
        rows: list[tuple[int, ...]] = []
        self._rows.append(rows)
        oneofs = {oneof.name: place for place, oneof in enumerate(one.oneofs, 1)}
        for field in sorted(one.fields, key=lambda field: field.number):
            target = None if wanted is None else wanted.get(field.name)
            if wanted is not None and target is None and self._refuses_unknown:
                continue
            oneof = field.containing_oneof
            group = oneofs[oneof.name] if oneof is not None and len(oneof.fields) > 1 else 0
            kind, reference, count = self._kind(field, target)
            group = group if group <= _ONEOFS_MAX else 0
            rows.append((field.number, kind, field.is_repeated, group, reference, count))
        return number

    def _kind(
        self, field: FieldDescriptor, target: TypeNode | None
    ) -> tuple[ProtobufKind, int, int]:
        if field.enum_type is not None:
            known = sorted({value.number for value in field.enum_type.values})
            self._numbers += known
            return ProtobufKind.ENUM, len(self._numbers) - len(known), len(known)
        if field.message_type is None:
            return _SCALARS[field.type][0], 0, 0
        if target is not None and not self._message.is_usable(field):
            return ProtobufKind.REFUSED, 0, 0
        wanted = None if target is None else _wanted_in(field, target)
        key = "" if wanted is None or target is None else target.text
        return ProtobufKind.MESSAGE, self._place(field.message_type, wanted, key), 0


def _wanted_in(field: FieldDescriptor, target: TypeNode) -> _Wanted:
    """What a column's type wants of a message in the field; None: that is not told by names."""
    node = target.bare()
    if field.message_type.GetOptions().map_entry:
        return {"key": node.inner(0), "value": node.inner(1)} if node.name == "Map" else None
    if node.name == "Array" and field.is_repeated:
        node = node.inner().bare()
    if node.name != "Tuple":
        return None
    elements = dict(node.elements())
    return elements if all(elements) else None


def _reachable(descriptor: Descriptor) -> list[Descriptor]:
    """This type and all that its fields are made of, each once."""
    found = [descriptor]
    for one in found:
        for field in one.fields:
            inner = field.message_type
            if inner is not None and inner not in found:
                found.append(inner)
    return found


def enum_names_by_number(one: EnumDescriptor) -> dict[int, str]:
    """In the schema's order; a number with several names has the first."""
    names: dict[int, str] = {}
    for value in one.values:
        names.setdefault(value.number, value.name)
    return names


def enum_type(one: EnumDescriptor) -> str:
    """The engine's type of an enum; of one that it cannot tell apart, the numbers."""
    names = enum_names_by_number(one)
    if len({_plain(name) for name in names.values()}) == len(names):
        for bits in (8, 16):
            if all(-(2 ** (bits - 1)) <= number < 2 ** (bits - 1) for number in names):
                parts = (f"{literal(name)} = {number}" for number, name in names.items())
                return f"Enum{bits}({', '.join(parts)})"
    return "Int32"


def _default_clause(field: FieldDescriptor) -> str:
    """Proto2's own default of a field; "" without one."""
    if not field.has_default_value or field.is_repeated:
        return ""
    value: Any = field.default_value
    if field.enum_type is not None:
        shown = enum_names_by_number(field.enum_type)[value]
    elif isinstance(value, str | bytes):
        raw = value.encode() if isinstance(value, str) else value
        octal = "".join(f"\\{byte:03o}" for byte in raw)
        shown = f'"{octal}"'
    elif isinstance(value, bool):
        shown = "true" if value else "false"
    else:
        shown = repr(value)
    return f" [default = {shown}]"


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def filling(column: ProtobufColumn, target: str | None) -> Natural:
    """What the table gets of a field, which the engine reads as the stored type of this.

    :param target: the type of the table's column of this name, if it has one.
    """
    type_text = column.type
    if column.has_presence and (column.message or (target is not None and _takes_null(target))):
        type_text = f"Nullable({type_text})"
    if target is not None:
        type_text = _fitted(type_text, target)
    return Natural(column.name, type_text, identifier(column.source))


def of_oneof(column: ProtobufColumn, target: str) -> Natural:
    """What a column gets of a field that is read as Nullable, since its oneof is a column, too."""
    source = identifier(column.source)
    if _takes_null(target):
        return Natural(column.name, f"Nullable({column.type})", source)
    return Natural(column.name, column.type, f"assumeNotNull({source})")


def any_of(name: str, fields: Sequence[ProtobufColumn]) -> Natural:
    """A column with the name of a oneof: what it says, of whatever type that is."""
    given = [identifier(field.source) for field in fields]
    types = list(dict.fromkeys(field.type for field in fields))
    if len(types) == 1:
        return Natural(name, f"Nullable({types[0]})", f"coalesce({', '.join(given)})")
    # As the engine writes them, which tells by their names which of them a value has.
    stored = [stored_type(one) for one in types]
    said = ", ".join(f"toTypeName(defaultValueOfTypeName({literal(one)}))" for one in stored)
    clause = settings_clause(print_pretty_type_names=0)
    spelled = json.loads(run(f"SELECT {said} {clause}", "JSONCompactEachRow").bytes())
    variant = f"Variant({', '.join(dict.fromkeys(spelled))})"
    if len(set(spelled)) == len(types):
        is_known = (stored_type(one) == text for one, text in zip(types, spelled, strict=True))
        kept = zip(is_known, types, spelled, strict=True)
        meant = f"Variant({', '.join(one if known else text for known, one, text in kept)})"
    else:
        meant = variant
    values = (f"isNotNull({one}), CAST(assumeNotNull({one}), {literal(variant)})" for one in given)
    return Natural(name, meant, f"multiIf({', '.join(values)}, CAST(NULL, {literal(variant)}))")


def table_type(column: ProtobufColumn) -> str:
    """The type of a column that holds all that a field can say, null where it says nothing."""
    type_text = meant_type(column.type)
    is_record = type_text.startswith("Tuple(")
    return f"Nullable({type_text})" if column.has_presence and not is_record else type_text


def left_out(natural: str, fitted: str, within: str) -> Iterator[str]:
    """What a type has inside of messages, and does not have where it is fitted, each as "NAME of
    PATH": another field of its name may be loaded.

    :param within: the path of the field that is of this type.
    """
    node, kept = parse_type(natural).bare(), parse_type(fitted).bare()
    if node.name != kept.name:
        return
    if node.name == "Array":
        yield from left_out(node.inner().text, kept.inner().text, within)
    elif node.name == "Map":
        yield from left_out(node.inner(1).text, kept.inner(1).text, within)
    elif node.name == "Tuple":
        have = dict(kept.elements())
        for name, part in node.elements():
            if name in have:
                yield from left_out(part.text, have[name].text, f"{within}.{name}")
            else:
                yield f"{name} of {within}"


def _takes_null(type_text: str) -> bool:
    return type_text.startswith(("Nullable(", "LowCardinality(Nullable(", "Dynamic", "Variant("))


def _fitted(natural: str, target: str) -> str:
    """The type as it is read: Nullable only where the target takes null, and of a message only
    what the target wants, if that is told by names."""
    node, wanted = parse_type(natural), parse_type(target).bare()
    if node.name == "Nullable":
        inner = _fitted(node.inner().text, wanted.text)
        return f"Nullable({inner})" if _takes_null(target) else inner
    if node.name in (WRAPPED, INSTANT) and wanted.name == "Tuple":
        return _fitted(stored_type(natural), target)
    if node.name != wanted.name:
        return natural
    if node.name == "Array":
        return f"Array({_fitted(node.inner().text, wanted.inner().text)})"
    if node.name == "Map":
        value = _fitted(node.inner(1).text, wanted.inner(1).text)
        return f"Map({node.arguments[0]}, {value})"
    if node.name == "Tuple":
        types = {name: part.text for name, part in wanted.elements()}
        has_names = all(types) and any(name in types for name, _ in node.elements())
        parts = (
            f"{identifier(name)} {_fitted(part.text, types[name]) if has_names else part.text}"
            for name, part in node.elements()
            if not has_names or name in types
        )
        return f"Tuple({', '.join(parts)})"
    return natural
