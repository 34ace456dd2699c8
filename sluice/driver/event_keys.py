"""What an entry's deduplication key means in its table, as the table is today.

Whether rows can be known again by it, and claims be made again, the decoder says that builds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sluice.clickhouse.comparing import INSERTABLE
from sluice.clickhouse.schema import TableFacts
from sluice.config import TableConfiguration
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.load_spec import LINEAGE_TYPES, Column
from sluice.core.suggestions import suggest
from sluice.decode.engine.expressions import referenced_columns
from sluice.decode.engine.session import declared, literal, run
from sluice.decode.engine.types import parse_type

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def required_columns(table: TableConfiguration, facts: TableFacts) -> tuple[str, ...]:
    """What the entry requires, and with on_null = "dead-letter" each column of its key: a field
    that is absent would become the column's default, and all such messages one event.

    :raises ConfigurationError: the key is not in the table, or its nulls are not as on_null says.
    """
    if table.deduplicate is None:
        return table.require
    columns = _columns_by_part(table.name, table.deduplicate.key, facts)
    if table.deduplicate.on_null == "row":
        _refuse_what_is_never_null(table.name, columns, facts)
        return table.require
    _refuse_what_may_be_null_still(table.name, columns)
    names = (column.name for part in columns.values() for column in part)
    return tuple(dict.fromkeys((*table.require, *names)))


def _columns_by_part(
    entry: str, key: Iterable[str], facts: TableFacts
) -> dict[str, tuple[Column, ...]]:
    """The columns that each part of the key is made of; what every message has, such as its topic,
    is left out."""
    known = {column.name: column for column in facts.columns if column.kind in INSERTABLE}
    found = {}
    for part in key:
        where = f"table entry {entry}: {part} in the key of deduplicate"
        columns: Iterable[Column]
        if part in known:
            columns = [known[part]]
        elif _NAME.fullmatch(part):
            raise ConfigurationError(
                f"{where} is no column of {facts.target} that messages fill; "
                f"{suggest(part, known)}",
                "The key has to be in the table, so that claims can be read back from it; a key or "
                "header of Kafka is mapped into a column, like event_id = "
                '{ header = "id" } in [table.columns].',
            )
        else:
            try:
                columns = referenced_columns(part, known.values())
            except TerminalError as error:
                raise ConfigurationError(f"{where} cannot be read: {error}", error.hint) from None
        found[part] = tuple(column for column in columns if column.name not in LINEAGE_TYPES)
    return found


def _refuse_what_is_never_null(
    entry: str, columns: dict[str, tuple[Column, ...]], facts: TableFacts
) -> None:
    for part, of in columns.items():
        if of and not _can_be_null(_type_of(entry, part, of)):
            raise ConfigurationError(
                f"table entry {entry}: {part} in the key of deduplicate cannot be null in "
                f"{facts.target}: all messages without it would be one event",
                'Make the column Nullable, or write on_null = "dead-letter".',
            )


def _refuse_what_may_be_null_still(entry: str, columns: dict[str, tuple[Column, ...]]) -> None:
    for part, of in columns.items():
        there = [Column(column.name, _without_null(column.type)) for column in of]
        if there and _can_be_null(_type_of(entry, part, there)):
            raise ConfigurationError(
                f"table entry {entry}: {part} in the key of deduplicate may be null although its "
                "columns are there: such rows would be loaded, and never be duplicates",
                'Write it so that it cannot be null, or write on_null = "row".',
            )


def _can_be_null(type_text: str) -> bool:
    node = parse_type(type_text)
    return (node.inner() if node.name == "LowCardinality" else node).name == "Nullable"


def _without_null(type_text: str) -> str:
    node = parse_type(type_text)
    if node.name == "LowCardinality":
        return f"LowCardinality({_without_null(node.inner().text)})"
    return node.inner().text if node.name == "Nullable" else type_text


def _type_of(entry: str, part: str, columns: Iterable[Column]) -> str:
    """The type of a part of the key over columns of these types."""
    types = {column.name: column.type for column in columns}
    if part in types:
        return types[part]
    structure = declared([*types.items(), *LINEAGE_TYPES.items()])
    query = f"DESCRIBE (SELECT ({part}\n) AS part FROM null({literal(structure)}))"
    try:
        described: str = run(query, "TSVRaw").bytes().decode()
    except Exception as error:
        raise ConfigurationError(
            f"table entry {entry}: {part} in the key of deduplicate cannot be computed: "
            f"{str(error)[:300]}",
            f"Correct the expression; columns are: {declared(types.items())}",
        ) from None
    return described.split("\t")[1]
