"""Formats in which a message is a file of its own, with its own columns and any number of rows:
Native, Parquet, ORC, Arrow and ArrowStream.

Each message is read by itself, so it has no neighbours to harm. That costs a few queries for each
message: such messages should hold hundreds of rows or more.

What the engine does not tell of files is read by pyarrow.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native import read_header
from sluice.decode.engine.session import EngineError, declared, literal, settings_clause
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, Fault, engine_words
from sluice.decode.messages.format import PLACE_IS_FIRST, Group, Natural, TypedFormat
from sluice.decode.messages.framing import begins_like
from sluice.decode.messages.memory import memory_file
from sluice.decode.messages.views import Indices
from sluice.decode.typed.part import run_on_messages
from sluice.decode.typed.structures import Structure, is_unsafe


def null_list(name: str, value: bytes, columns: list[str]) -> str:
    """The first of these columns with a list or map that is null, which the engine shows as an
    empty one; "" if there is none, or if that cannot be read.

    :param name: of the format.
    """
    import pyarrow
    from pyarrow import ipc, orc, parquet

    try:
        source = pyarrow.BufferReader(value)
        if name == "Parquet":
            read = parquet.read_table(source, columns=columns)
        elif name == "ORC":
            read = orc.read_table(source, columns=columns)
        else:
            opened = ipc.open_file(source) if name == "Arrow" else ipc.open_stream(source)
            read = opened.read_all().select(columns)
        for column in columns:
            if _has_null(read.column(column), _is_list):
                return column
    except (pyarrow.ArrowException, OSError, ValueError, KeyError):
        return ""
    return ""


def arrow_of_parquet(value: bytes, wanted: Collection[str]) -> bytes:
    """A file of Arrow with the rows of one of Parquet, if some of these columns hold a struct that
    is null, which the engine shows as one of nulls, or a time of day, which it shows as a moment
    of the year 1970; b"" if not, or if that cannot be read."""
    import pyarrow
    from pyarrow import ipc, parquet, types

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(value))
        fields = [field for field in file.schema_arrow if field.name in wanted]
        structs = [one.name for one in fields if _holds(one.type, types.is_struct)]
        if not any(_holds(one.type, types.is_time) for one in fields):
            read = file.read(columns=structs) if structs else None
            if read is None or not any(_has_null(one, types.is_struct) for one in read.columns):
                return b""
        read = _with_uuids_as_text(file)
        out = io.BytesIO()
        with ipc.new_file(out, read.schema) as written:
            written.write_table(read)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError):
        return b""
    return out.getvalue()


def arrow_with_days(name: str, value: bytes, wanted: frozenset[str]) -> bytes:
    """A stream of Arrow with the rows of a message that has days in milliseconds (date64) in these
    columns, which the engine lets wrap after 2^32 seconds: as moments. b"" if it has none there, or
    is no such message.

    :param name: of the format.
    :raises ValueError: it has some, and they cannot be read or written anew.
    """
    import pyarrow
    from pyarrow import ipc, types

    try:
        opened = ipc.open_file(value) if name == "Arrow" else ipc.open_stream(value)
        days = [one.name for one in opened.schema if _holds(one.type, types.is_date64)]
        if wanted.isdisjoint(days):
            return b""
    except (pyarrow.ArrowException, OSError, ValueError, MemoryError):
        return b""
    try:
        read = opened.read_all()
        # What its buffers hold may not be what it declares.
        read.validate()
        for place, one in enumerate(read.schema):
            if one.name in days:
                kind, column = _as_moments(one.type), read.column(place)
                if _holds(one.type, types.is_dictionary):  # which is read to be written anew
                    column.validate(full=True)
                read = read.set_column(place, one.with_type(kind), column.cast(kind))
        # Not before: of a date64 that is no whole day it says that it is none.
        read.validate(full=True)
        out = io.BytesIO()
        with ipc.new_stream(out, read.schema) as written:
            written.write_table(read)
    except (pyarrow.ArrowException, OSError, MemoryError) as error:
        raise ValueError(str(error)) from None
    return out.getvalue()


def _as_moments(kind: Any) -> Any:
    """A type with moments in milliseconds for each date64 in it.

    :raises ValueError: date64 stands where no moments can stand.
    """
    import pyarrow
    from pyarrow import types

    if not _holds(kind, types.is_date64):
        return kind
    if types.is_date64(kind):
        return pyarrow.timestamp("ms")
    if types.is_dictionary(kind):
        return _as_moments(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        make = pyarrow.list_ if types.is_list(kind) else pyarrow.large_list
        return make(kind.value_field.with_type(_as_moments(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(
            kind.value_field.with_type(_as_moments(kind.value_type)), kind.list_size
        )
    if types.is_struct(kind):
        return pyarrow.struct([one.with_type(_as_moments(one.type)) for one in kind])
    if types.is_map(kind):
        return pyarrow.map_(_as_moments(kind.key_type), _as_moments(kind.item_type))
    raise ValueError(f"days in milliseconds stand in a {kind}")


def _with_uuids_as_text(file: Any) -> Any:
    """Arrow has bytes for them, which nothing tells from others."""
    import uuid

    import pyarrow

    read = file.read()
    for leaf in map(file.schema.column, range(len(file.schema))):
        if leaf.logical_type.type == "UUID" and leaf.path in read.column_names:
            place = read.column_names.index(leaf.path)
            values = (
                one and str(uuid.UUID(bytes=getattr(one, "bytes", one)))
                for one in read.column(place).to_pylist()
            )
            read = read.set_column(place, leaf.path, pyarrow.array(values, pyarrow.string()))
    return read


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return any(is_it(kind) for is_it in (types.is_map, types.is_list, types.is_large_list))


def _holds(kind: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether a type is such a one, or has one in it."""
    from pyarrow import types

    inner = [kind.field(place).type for place in range(kind.num_fields)]
    inner += [kind.value_type] if types.is_dictionary(kind) else []
    return bool(is_it(kind)) or any(_holds(one, is_it) for one in inner)


def _has_null(values: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether a value of such a type is null, here or inside."""
    from pyarrow import types

    kind = values.type
    if is_it(kind) and values.null_count:
        return True
    for array in getattr(values, "chunks", [values]):
        if types.is_struct(kind):
            present = array.filter(array.is_valid())
            inner = [present.field(place) for place in range(kind.num_fields)]
        elif types.is_map(kind):
            inner = [array.items]
        else:
            inner = [array.flatten()] if _is_list(kind) else []
        if any(_has_null(one, is_it) for one in inner):
            return True
    return False


#: By the name in the configuration: the engine's name.
BLOB_FORMATS = ("Native", "Parquet", "ORC", "Arrow", "ArrowStream")
#: What a small message may make the engine ask for, and how many times its own size a large one.
_MEMORY_BYTES_MIN = 2 << 30
_MEMORY_TIMES_SIZE = 64
#: What a message does not have is not made up. What its statistics say is not believed: of one
#: mutated ORC file they sent the engine into a loop without end.
_SETTINGS: dict[str, object] = {
    "print_pretty_type_names": 0,
    "input_format_parquet_allow_missing_columns": 0,
    "input_format_orc_allow_missing_columns": 0,
    "input_format_orc_filter_push_down": 0,
    "input_format_parquet_filter_push_down": 0,
    "input_format_arrow_allow_missing_columns": 0,
}


class Blobs(TypedFormat):
    """One of these formats. It has no options. A message that cannot be read fails alone."""

    def __init__(self, table: TableSpec, name: str) -> None:
        if name not in BLOB_FORMATS:
            raise TerminalError(
                f"table {table.target}: {name} is no format of files",
                f"Use one of: {', '.join(BLOB_FORMATS)}.",
            )
        self._name = name
        self._refuses_null = table.on_null == "dead-letter"
        self._wanted = frozenset(column.name.partition(".")[0] for column in table.columns)

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See TypedFormat: a group for each message."""
        for index, value in buffer.items(indices):
            try:
                name, content = self._as_arrow(value)
            except ValueError as error:
                said = f"days in milliseconds of the message cannot be read: {error}"
                yield Group.without_messages({index: Fault(CANNOT_PARSE, said)})
                continue
            with memory_file(content) as path:
                yield self._group(index, content, name, f"{literal(path)}, {name}")

    def _as_arrow(self, value: bytes) -> tuple[str, bytes]:
        """The message as one of Arrow, where the engine does not read all of it as it is, behind
        its format."""
        if self._name == "Parquet" and (anew := arrow_of_parquet(value, self._wanted)):
            return "Arrow", anew
        if self._name.startswith("Arrow") and (
            anew := arrow_with_days(self._name, value, self._wanted)
        ):
            return "ArrowStream", anew
        return self._name, value

    def _group(self, index: int, value: bytes, name: str, file: str) -> Group:
        settings = _SETTINGS | {
            "max_memory_usage": _MEMORY_BYTES_MIN + _MEMORY_TIMES_SIZE * len(value)
        }
        try:
            columns = self._columns(value, file, settings)
        except (EngineError, TerminalError) as error:
            said = f"the message cannot be read as {name}: {engine_words(error)}"
            if (like := begins_like(value)) and f"format {name}" not in like:
                said += f": it begins like {like}"
            return Group.without_messages({index: Fault(CANNOT_PARSE, said)})
        if isinstance(columns, str):
            return Group.without_messages({index: Fault(CANNOT_PARSE, columns)})
        lists = [
            column
            for column, type_text in columns
            if column in self._wanted and ("Array(" in type_text or "Map(" in type_text)
        ]
        if lists and self._refuses_null and name != "Native":
            column = null_list(name, value, lists)
            if column:
                said = f"null in column {column}, where a list or map must be"
                return Group.without_messages({index: Fault(NULL_IN_COLUMN, said, column)})
        # Told what it has just said, the engine does not look for it again in each query.
        source = f"file({file}, {literal(declared(columns))})"
        naturals = tuple(Natural(*column) for column in columns)
        one = np.array([index], np.int64)
        return Group(source, naturals, one, PLACE_IS_FIRST, False, settings)

    def _columns(self, value: bytes, file: str, settings: dict[str, object]) -> Structure | str:
        """The columns of a message, or why it has none that could be read."""
        if not value:
            return "the message is empty"
        if self._name == "Native" and not _is_plausible(value):
            return "the message is not one Native block"
        query = f"DESCRIBE TABLE file({file}) {settings_clause(**settings)}"
        described = run_on_messages(query, "JSONCompactColumns").bytes().decode(errors="replace")
        if not described.strip():
            return f"the message has no columns that {self._name} could name"
        names, types = json.loads(described)[:2]
        if len(set(names)) < len(names):
            return "two columns of the message have the same name"
        if any("\ufffd" in name for name in names):
            return "the name of a column is not UTF-8"
        for name, type_text in zip(names, types, strict=True):
            if is_unsafe(type_text):
                return f"column {name} {type_text} cannot be read from a binary format"
        return tuple(zip(names, types, strict=True))


def _is_plausible(value: bytes) -> bool:
    """Whether a Native block is not larger than its bytes: each row of a column takes one."""
    try:
        columns, rows, begin = read_header(memoryview(value[:32]))
    except (IndexError, ValueError):
        return False
    return 0 < columns <= len(value) and rows <= len(value) - begin
