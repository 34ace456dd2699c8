"""What an entry's deduplication key means in its table, as the table is today."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sluice.clickhouse.comparing import INSERTABLE
from sluice.clickhouse.schema import TableFacts
from sluice.config import TableConfiguration
from sluice.config.findings import suggest
from sluice.core.claims import Deduplicate
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.load_spec import LINEAGE_TYPES, Column
from sluice.decode.engine.expressions import nondeterministic_functions, referenced_columns
from sluice.decode.engine.session import declared, literal, run
from sluice.decode.engine.types import parse_type

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*", re.ASCII)


def required_columns(table: TableConfiguration, facts: TableFacts) -> tuple[str, ...]:
    """What the entry requires, and with on_null = "dead-letter" each column of its key: a field
    that is absent would become the column's default, and all such messages one event.

    :raises ConfigurationError: see `key_columns`.
    """
    deduplicate = table.deduplicate
    if deduplicate is None or deduplicate.on_null == "row":
        return table.require
    names = (column.name for column in key_columns(table.name, deduplicate, facts))
    return tuple(dict.fromkeys((*table.require, *names)))


def key_columns(entry: str, deduplicate: Deduplicate, facts: TableFacts) -> tuple[Column, ...]:
    """The columns that the key is made of.

    :raises ConfigurationError: messages fill no such column; or the expression cannot be used.
    """
    known = {
        column.name: column
        for column in facts.columns
        if column.kind in INSERTABLE and column.name not in LINEAGE_TYPES
    }
    key = deduplicate.key
    unknown = [name for name in key if name not in known]
    if not unknown:
        return tuple(known[name] for name in key)
    where = f"table entry {entry}: {unknown[0]} in the key of deduplicate"
    if len(key) > 1 or _NAME.fullmatch(unknown[0]):
        raise ConfigurationError(
            f"{where} is no column of {facts.target} that messages fill; "
            f"{suggest(unknown[0], known)}",
            "The key has to be in the table, so that claims can be read back from it; a key or "
            'header of Kafka is mapped into a column, like event_id = { header = "id" } in '
            "[table.columns]. An expression stands alone.",
        )
    try:
        volatile = nondeterministic_functions(unknown[0], facts.columns)
        columns = referenced_columns(unknown[0], known.values())
    except TerminalError as error:
        raise ConfigurationError(f"{where} cannot be read: {error}", error.hint) from None
    if volatile:
        raise ConfigurationError(
            f"{where} has {', '.join(volatile)}, which says something else the next time",
            "A repeat of a range must find the keys that it has claimed.",
        )
    if not columns:
        raise ConfigurationError(
            f"{where} names no column of {facts.target} that messages fill",
            "Name a column that tells one event from another.",
        )
    return columns


def refuse_one_event_of_all(entry: str, deduplicate: Deduplicate, facts: TableFacts) -> None:
    """Where messages without a part of the key become rows, that part must be null then.

    :raises ConfigurationError: it has the column's default; or see `key_columns`.
    """
    columns = key_columns(entry, deduplicate, facts)
    if deduplicate.on_null != "row":
        return
    types = {column.name: column.type for column in columns}
    for part in deduplicate.key:
        if not _can_be_null(types.get(part) or _type_of(entry, part, columns)):
            raise ConfigurationError(
                f"table entry {entry}: {part} in the key of deduplicate cannot be null in "
                f"{facts.target}: all messages without it would be one event",
                'Make the column Nullable, or write on_null = "dead-letter".',
            )


def _can_be_null(type_text: str) -> bool:
    node = parse_type(type_text)
    return (node.inner() if node.name == "LowCardinality" else node).name == "Nullable"


def _type_of(entry: str, expression: str, columns: Sequence[Column]) -> str:
    structure = declared((column.name, column.type) for column in columns)
    query = f"DESCRIBE (SELECT ({expression}\n) AS key FROM null({literal(structure)}))"
    try:
        described: str = run(query, "TSVRaw").bytes().decode()
    except Exception as error:
        raise ConfigurationError(
            f"table entry {entry}: the key of deduplicate cannot be computed: {str(error)[:300]}",
            f"Correct the expression; its columns are: {structure}",
        ) from None
    return described.split("\t")[1]
