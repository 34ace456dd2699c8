"""Formats in which a message is a file of its own, with its own columns and any number of rows:
Native, Parquet, ORC, Arrow and ArrowStream.

Each message is read by itself, so it has no neighbours to harm. That costs a few queries for each
message: such messages should hold hundreds of rows or more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.native import read_header
from sluice.decode.engine.session import EngineError, declared, literal, settings_clause
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, Fault, engine_words
from sluice.decode.messages.first_bytes import begins_like
from sluice.decode.messages.format import PLACE_IS_FIRST, Group, Natural, TypedFormat
from sluice.decode.messages.marked import Indices, memory_file
from sluice.decode.typed.arrow import arrow_of_parquet, null_list
from sluice.decode.typed.part import run_on_messages
from sluice.decode.typed.structures import Structure, is_unsafe

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
            as_arrow = arrow_of_parquet(value, self._wanted) if self._name == "Parquet" else b""
            name, content = ("Arrow", as_arrow) if as_arrow else (self._name, value)
            with memory_file(content) as path:
                yield self._group(index, content, name, f"{literal(path)}, {name}")

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
    except IndexError:
        return False
    return 0 < columns <= len(value) and rows <= len(value) - begin
