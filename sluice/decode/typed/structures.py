"""Lists of columns with types: written by people as an option, or by messages in their head."""

from __future__ import annotations

import json

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.session import EngineError, declared, literal, run
from sluice.decode.engine.types import parse_type

Structure = tuple[tuple[str, str], ...]

#: The engine reads the inner state of these functions without doubting it.
_UNSAFE = ("AggregateFunction(", "Object(")


def is_unsafe(type_text: str) -> bool:
    """Whether bytes of such a value could harm the engine."""
    plain = type_text.replace("SimpleAggregateFunction(", "")
    return any(word in plain for word in _UNSAFE)


def structure_of(table: TableSpec) -> Structure:
    """The `columns` option, or else the columns that an INSERT without a list of columns has.

    :raises TerminalError: the option is no list of columns.
    """
    option = dict(table.options).get("columns", "")
    if not option.strip():
        return normalised(
            tuple(
                (column.name, column.type)
                for column in table.columns
                if column.name not in table.lineage and column.kind in ("", "DEFAULT")
            )
        )
    elements = parse_type(f"Tuple({option})").elements()
    if not all(name for name, _ in elements):
        raise TerminalError(
            f"table {table.target}: option columns = {option!r} is no list of names and types",
            'Write it as in CREATE TABLE: columns = "id UInt64, name String".',
        )
    return normalised(tuple((name, node.text) for name, node in elements))


def normalised(structure: Structure) -> Structure:
    """The same with the engine's own spelling of the types.

    :raises TerminalError: a type is unknown, cannot be read safely, or a name comes twice.
    """
    names = [name for name, _ in structure]
    if len(set(names)) < len(names) or not names:
        raise TerminalError(
            f"the columns {', '.join(names)[:200]!r} are not one or more different names",
            "Give each column a name of its own.",
        )
    plain = tuple((name, parse_type(type_text).text) for name, type_text in structure)
    for name, type_text in plain:
        if is_unsafe(type_text):
            raise TerminalError(
                f"column {name} {type_text} cannot be read from a binary format",
                "Load what its function is made of, and let the server aggregate.",
            )
    try:
        described = f"DESCRIBE TABLE null({literal(declared(plain))})"
        query = f"{described} SETTINGS print_pretty_type_names=0"
        text = run(query, "JSONCompactEachRow").bytes().decode(errors="replace")
    except EngineError as error:
        raise TerminalError(
            f"the columns {declared(plain)[:200]!r} are not understood: {str(error)[:200]}",
            "Check their types.",
        ) from error
    # Of JSON, since a name may have a tab in it, and say another type behind it.
    types = [str(json.loads(line, strict=False)[1]) for line in text.split("\n") if line]
    if len(types) != len(names) or any(map(is_unsafe, types)):
        raise TerminalError(
            f"the columns {declared(plain)[:200]!r} are not understood", "Check their types."
        )
    return tuple(zip(names, types, strict=True))
