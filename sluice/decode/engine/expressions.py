"""What a SQL expression of a table depends on, asked from the engine's own parser."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.core.errors import TerminalError
from sluice.core.text import Column
from sluice.decode.engine.session import EngineError, run

#: Deterministic within one query for the engine, but not from one attempt to the next;
#: and functions whose answer depends on the host or on data outside the block.
_VOLATILE = frozenset(
    (
        "now",
        "now64",
        "nowinblock",
        "nowinblock64",
        "today",
        "yesterday",
        "current_timestamp",
        "current_date",
        "curdate",
        "utctimestamp",
        "utc_timestamp",
        "localtime",
        "localtimestamp",
        "timezone",
        "servertimezone",
        "hostname",
        "fqdn",
        "uptime",
        "version",
        "serveruuid",
        "currentdatabase",
        "currentuser",
        "user",
        "getmacro",
        "getsetting",
        "rownumberinblock",
        "rownumberinallblocks",
        "blocknumber",
        "blocksize",
        "runningdifference",
        "runningaccumulate",
        "neighbor",
        "rand",
        "rand32",
        "rand64",
        "randconstant",
        "canonicalrand",
        "randuniform",
        "generateuuidv4",
        "generateuuidv7",
        "generateulid",
        "generatesnowflakeid",
        "joinget",
        "filesystemavailable",
        "filesystemcapacity",
        "tcpport",
        "queryid",
        "initialqueryid",
        "connectionid",
    )
)
_VOLATILE_PREFIXES = ("rand", "dictget", "dicthas", "dictis", "generateuuid", "generatesnowflake")


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The functions and identifiers of one expression, each once, in order of appearance."""

    functions: tuple[str, ...]
    identifiers: tuple[str, ...]
    has_subquery: bool


def dependencies(expression: str) -> Dependencies:
    """Take an expression apart.

    :raises TerminalError: the engine cannot parse it.
    """
    try:
        tree = run(f"EXPLAIN AST SELECT ({expression}\n)", "TSVRaw").bytes().decode()
    except (EngineError, TerminalError) as error:
        raise TerminalError(
            f"expression {expression!r} cannot be parsed: {str(error)[:200]}",
            "Check it on the server; a newer server's syntax may need a newer Sluice.",
        ) from error
    functions: dict[str, None] = {}
    identifiers: dict[str, None] = {}
    subquery = False
    for line in tree.split("\n"):
        kind, _, rest = line.strip().partition(" ")
        if kind == "Function":
            functions[rest.split(" (")[0].strip()] = None
        elif kind == "Identifier":
            identifiers[rest.split(" (alias ")[0].strip()] = None
        elif kind == "Subquery":
            subquery = True
    return Dependencies(tuple(functions), tuple(identifiers), subquery)


def referenced_columns(expression: str, columns: Iterable[Column]) -> tuple[Column, ...]:
    """The columns that an expression names, in the table's order."""
    names = set(dependencies(expression).identifiers)
    names |= {name.split(".")[0] for name in names}
    return tuple(column for column in columns if column.name in names)


def nondeterministic_functions(expression: str, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Functions that can make another value of the same row on a repetition (C3).

    Walks through DEFAULT, MATERIALIZED, ALIAS and EPHEMERAL columns. `"subquery"` stands for
    a subquery, whose answer depends on data outside the block.

    :param expression: a partition or sharding key; "" has none.
    :returns: names as written, sorted; empty if the value follows from the row.
    """
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [expression]
    while waiting:
        text = waiting.pop()
        if not text.strip():
            continue
        parts = dependencies(text)
        found.update(name for name in parts.functions if _is_volatile(name))
        if parts.has_subquery:
            found.add("subquery")
        for column in referenced_columns(text, columns):
            if column.name not in seen:
                seen.add(column.name)
                waiting.append(column.expression)
    return tuple(sorted(found))


def _is_volatile(name: str) -> bool:
    lower = name.lower()
    if lower in _VOLATILE or lower.startswith(_VOLATILE_PREFIXES):
        return True
    return lower in _engine_says_volatile()


_volatile_of_engine: frozenset[str] | None = None


def _engine_says_volatile() -> frozenset[str]:
    global _volatile_of_engine
    if _volatile_of_engine is None:
        query = "SELECT lower(name) FROM system.functions WHERE deterministic = 0"
        names = run(query, "TSVRaw").bytes().decode().split()
        _volatile_of_engine = frozenset(names)
    return _volatile_of_engine
