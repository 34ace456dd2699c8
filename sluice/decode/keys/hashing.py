"""The deduplication keys of a block's rows (R20), and those of rows that a table has."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import NOBODY, OWNER, Keys, Owners
from sluice.core.claims import KEY_BYTES, OWNER_BYTES, key_space
from sluice.core.errors import TerminalError
from sluice.core.load_spec import SOURCE, TableSpec, lacking_lineage
from sluice.decode.engine.expressions import (
    Compiled,
    referenced_columns,
    run_over_rows,
    settings_of,
)
from sluice.decode.engine.native import fixed_columns
from sluice.decode.engine.session import declared, identifier, literal
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.memory import memory_file

#: Where a message stands, and who loaded it: no two messages have the same.
_OF_ONE_MESSAGE = frozenset({"_offset", "_row", SOURCE})
_NULLABLE = re.compile(r"(LowCardinality\()?Nullable\(|Nothing$|Null$")
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
#: Equal values of these are written in several ways, or merges change them.
_UNCERTAIN = re.compile(
    r"\b(JSON|Object|Dynamic|Variant|Map|AggregateFunction|SimpleAggregateFunction)\b"
)
#: Takes `core.tokens.row_source` apart.
_SOURCE_PARTS = "^([^/]+/[^/]+)/([A-Za-z0-9_-]{11})/([^/]+)/[0-9]+$"


@dataclass(frozen=True, slots=True)
class Keyed:
    """Of the rows of a block, in its order.

    :param keys: a line of KEY_BYTES for each, contiguous.
    :param rows: the number of each within its message.
    :param has_key: False where a part of the key is null: such a row is never claimed.
    """

    keys: Keys
    rows: NDArray[np.uint32]
    has_key: NDArray[np.bool_]


class RowKeys:
    """The keys of one table entry's rows. Made once for each table text.

    A key is 128 bits of SipHash over the parts of the key as RowBinary writes them, which says
    where each ends; what it is keyed with is the key space (`core.claims.key_space`). Values are
    the same if their bytes are: 0.0 and -0.0 are two. Whether a server writes a part as one that
    may be null, or with a dictionary, makes no difference.

    What decides: the table text and the rows, nothing else.

    :param columns: of every block.
    :raises TerminalError: rows cannot be known again, or claims not be made again from what the
        table stores.
    """

    def __init__(self, table: TableSpec, columns: Sequence[str]) -> None:
        assert table.deduplicate is not None
        self._table = table
        parts = _parts(table, columns)
        self._key = _hash(key_space(table.deduplicate, table.columns), [part for part, _ in parts])
        nulls = [f"isNotNull({part})" for part, may_be_null in parts if may_be_null]
        self._texts = [f"toString({part})" for part, _ in parts]
        self._has_key = f"toUInt8({' AND '.join(nulls) or '1'})"
        has_row = "_row" in columns
        self._row = "toUInt32(_row)" if has_row else "toUInt32(0)"
        text = f"tuple({', '.join(part for part, _ in parts)})"
        lineage = {"_partition", "_offset", SOURCE} | ({"_row"} if has_row else set())
        needed = {column.name for column in referenced_columns(text, table.columns)} | lineage
        used = [column for column in table.columns if column.name in needed]
        #: What `of_stored` needs of the table's rows.
        self.columns = tuple(column.name for column in used)
        # Declared, they are read as the table has them, however a server writes them; and the
        # engine does not read the block twice to find out.
        self._declared = literal(declared((column.name, column.type) for column in used))

    def of(self, decoded: Decoded) -> Keyed:
        """The keys of a block's rows.

        :raises TerminalError: the engine cannot say the key of some row.
        :raises TransientError: the machine did it.
        """
        keys, rows, has_key = self._read(decoded.native, {self._row: "<u4"})
        return Keyed(keys, rows, has_key)

    def of_stored(self, native: memoryview) -> tuple[Keys, Owners]:
        """The keys and owners of rows that the table has; of those that have a key.

        :param native: `columns` of the rows, by any number of Native blocks.
        :returns: the owner of a row that Sluice has not loaded is NOBODY.
        :raises TerminalError: the engine cannot say the key of some row.
        :raises TransientError: the machine did it.
        """
        # With a dictionary, each of the few sources is taken apart once.
        source = f"toLowCardinality({SOURCE})"
        is_ours = f"match({source}, '{_SOURCE_PARTS}')"
        topic = f"replaceRegexpOne({source}, '{_SOURCE_PARTS}', '\\\\2')"
        # As `core.claims.loader_number` makes it.
        loader = f"CRC32(replaceRegexpOne({source}, '{_SOURCE_PARTS}', '\\\\1/\\\\3'))"
        keys, topics, loaders, partitions, offsets, rows, ours, has_key = self._read(
            native,
            {
                f"CAST(substring(tryBase64URLDecode({topic}), 1, 8), 'FixedString(8)')": "V8",
                f"CAST({loader}, 'UInt32')": "<u4",
                "toUInt32(_partition)": "<u4",
                "toUInt64(_offset)": "<u8",
                self._row: "<u4",
                f"CAST({is_ours}, 'UInt8')": "?",
            },
        )
        found = np.zeros(len(keys), OWNER)
        owners = found.view(np.uint8).reshape(-1, OWNER_BYTES)
        # Not by the field: it is text to numpy, which cuts its trailing zeros.
        owners[:, :8] = topics.view(np.uint8).reshape(-1, 8)
        found["loader"] = loaders
        found["partition"] = partitions
        found["offset"] = offsets
        found["row"] = rows
        owners[~ours] = np.frombuffer(NOBODY, np.uint8)
        return keys[has_key], owners[has_key]

    def _read(self, native: memoryview, more: dict[str, str]) -> list[NDArray[Any]]:
        """The key of each row, more of it, and whether it has a key.

        :param more: expressions, each with numpy's type of its values.
        """
        asked = {self._key: f"V{KEY_BYTES}"} | more | {self._has_key: "?"}
        found = self._select(native, list(asked), "Native")
        keys, *others = fixed_columns(found, list(asked.values()))
        return [keys.view(np.uint8).reshape(-1, KEY_BYTES), *others]

    def texts(self, decoded: Decoded) -> list[str]:
        """The values of each row's key as one line of JSON: an array of texts, in the key's order.

        :raises TerminalError: the engine cannot say the key of some row.
        :raises TransientError: the machine did it.
        """
        found = self._select(decoded.native, self._texts, "JSONCompactEachRow")
        return [line.decode(errors="replace") for line in found.removesuffix(b"\n").split(b"\n")]

    def _select(self, native: memoryview, asked: Sequence[str], output_format: str) -> bytes:
        """Expressions over the rows of a block."""
        table = self._table
        items = ", ".join(f"{text} AS _sluice_{n}" for n, text in enumerate(asked))
        settings = settings_of(table, input_format_skip_unknown_fields=1)
        with memory_file(native) as path:
            source = f"file({literal(path)}, Native, {self._declared})"
            query = f"SELECT {items} FROM {source} {settings}"
            return run_over_rows(query, output_format, _what(table))


def _hash(space: str, parts: Sequence[str]) -> str:
    """The key, in ClickHouse SQL."""
    digest = hashlib.blake2b(space.encode(), digest_size=16).digest()
    halves = (int.from_bytes(half, "little") for half in (digest[:8], digest[8:]))
    keyed = ", ".join(f"toUInt64({half})" for half in halves)
    values = ", ".join(f"assumeNotNull({part})" for part in parts)
    hashed = f"sipHash128ReferenceKeyed(({keyed}), formatRow('RowBinary', {values}))"
    # Of a part with a dictionary, the engine gives the hashes one.
    return f"CAST({hashed}, 'FixedString({KEY_BYTES})')"


def _parts(table: TableSpec, columns: Sequence[str]) -> list[tuple[str, bool]]:
    """The parts of the key in ClickHouse SQL, each with whether it may be null.

    :raises TerminalError: see `RowKeys`.
    """
    deduplicate = table.deduplicate
    assert deduplicate is not None
    _check_lineage(table)
    compiled = Compiled(table, columns, _what(table), "Build the key of")
    names = {column.name for column in table.columns}
    parts = []
    for item in deduplicate.key:
        if item not in names and re.fullmatch(r"[A-Za-z_]\w*", item):
            raise TerminalError(
                f"{_what(table)}: the table has no column {item}", "Name columns of the table."
            )
        expression = identifier(item) if item in names else item
        # The newline ends a comment that an expression may end with.
        part = f"({expression}\n)"
        _check_columns(table, expression)
        compiled.check(expression, "a message that is loaded again could have another key")
        type_text = compiled.type_of(expression, _hash("", [part]))
        _check_type(table, item, type_text)
        parts.append((part, _NULLABLE.match(type_text) is not None))
    return parts


def _check_lineage(table: TableSpec) -> None:
    lacking = lacking_lineage(table.lineage, table.rows)
    if lacking:
        raise TerminalError(
            f"{_what(table)}: the table carries no {', '.join(lacking)}, by which a row says of "
            "which message it is",
            "Add the lineage columns; `sluice doctor` says how.",
        )
    source = next((column.type for column in table.columns if column.name == SOURCE), "")
    if source == "UInt64":
        raise TerminalError(
            f"{_what(table)}: {SOURCE} is UInt64, from which no message can be told",
            f"ALTER TABLE … a new column {SOURCE} String or LowCardinality(String).",
        )


def _check_columns(table: TableSpec, expression: str) -> None:
    """Whether the table stores what the key is built of, as messages fill it."""
    for column in referenced_columns(expression, table.columns):
        if column.kind in ("MATERIALIZED", "ALIAS", "EPHEMERAL"):
            raise TerminalError(
                f"{_what(table)}: {column.name} is {column.kind}, and claims are made again from "
                "what the table stores of a message",
                "Build the key of plain columns; what a MATERIALIZED or ALIAS column computes can "
                "stand in `key` as an expression.",
            )
        if column.name in _OF_ONE_MESSAGE and column.name in table.lineage:
            raise TerminalError(
                f"{_what(table)}: no two messages have the same {column.name}, so nothing would be "
                "a duplicate",
                "Build the key of columns that say which event it is.",
            )


def _check_type(table: TableSpec, item: str, type_text: str) -> None:
    if type_text in ("Null", "Nothing", "Nullable(Nothing)"):
        raise TerminalError(
            f"{_what(table)}: {item} is always null", "Build the key of values that are there."
        )
    if _UNCERTAIN.search(_TEXT.sub("", type_text)):
        raise TerminalError(
            f"{_what(table)}: {item} is {type_text}, whose equal values may be stored as different "
            "bytes",
            "Build the key of single values of it.",
        )


def _what(table: TableSpec) -> str:
    return f"deduplicate of table entry {table.entry}"
