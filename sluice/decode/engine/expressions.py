"""What a SQL expression of a table depends on, asked from the engine's own parser. Those over
a row of a block have to say the same whenever the row is made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.session import EngineError, declared, literal, run, settings_clause

#: The engine calls it deterministic, but another thread gives another answer.
_OF_THE_THREAD = "tid"
#: Completes a text of a date with the year in which it reads it.
_BEST_EFFORT = "besteffort"
#: What only the server knows, and those that ask it, besides all `dictGet…`.
_DICTIONARIES, _OF_THE_SERVER = "dict", frozenset(("joinget", "joingetornull", "getmacro"))
#: What a worker answers as well, but of itself.
_OF_WHO_ASKS = frozenset(
    (
        *("hostname", "fqdn", "fullhostname", "displayname", "tcpport", "getserverport", "uptime"),
        *(
            "version",
            "buildid",
            "serveruuid",
            "getoskernelversion",
            "getserversetting",
            "getsetting",
        ),
        *("currentuser", "user", "current_user", "session_user", "authenticateduser", "authuser"),
        *("currentdatabase", "database", "current_database", "schema", "currentschemas"),
        *("current_schemas", "currentprofiles", "currentroles", "enabledroles", "defaultroles"),
        *("queryid", "query_id", "currentqueryid", "current_query_id", "initialqueryid"),
        *("initial_query_id", "shardnum", "shardcount", "servertimezone", "zookeepersessionuptime"),
    )
)
#: What the parser calls a function, and the engine does not.
_SYNTAX = frozenset(("lambda",))

#: Under these settings casts in people's own expressions do not do so either: they read texts of
#: dates and times that are written out, and refuse others.
READS_NO_CLOCK: Mapping[str, object] = {
    "cast_string_to_date_time_mode": "'basic'",
    "cast_string_to_variant_use_inference": 0,
    "date_time_input_format": "'basic'",
}


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


def functions_of_the_server(expression: str) -> tuple[str, ...]:
    """Functions that only the server can compute: they ask its dictionaries, tables and macros."""
    names = dependencies(expression).functions
    return tuple(
        name
        for name in names
        if name.lower().startswith(_DICTIONARIES) or name.lower() in _OF_THE_SERVER
    )


def functions_of_who_asks(expression: str) -> tuple[str, ...]:
    """Functions that say something else where messages are decoded than on the server."""
    return tuple(
        name for name in dependencies(expression).functions if name.lower() in _OF_WHO_ASKS
    )


def nondeterministic_functions(expression: str, columns: tuple[Column, ...]) -> tuple[str, ...]:
    """Functions that can make another value of the same row on a repetition (H11).

    Walks through DEFAULT, MATERIALIZED, ALIAS and EPHEMERAL columns. `"subquery"` stands for
    a subquery, whose answer depends on data outside the block. Functions that the engine does not
    know, or of which it does not say that they are deterministic, count, too: aggregates over other
    rows, functions that somebody defined.

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


def computed_volatile(columns: tuple[Column, ...]) -> dict[str, tuple[str, ...]]:
    """Columns whose stored values can be others on a repetition, where messages do not fill them:
    by name, the functions that make it so."""
    found = {
        column.name: nondeterministic_functions(column.expression, columns)
        for column in columns
        if column.kind in ("DEFAULT", "MATERIALIZED")
    }
    return {name: functions for name, functions in found.items() if functions}


def _is_volatile(name: str) -> bool:
    """A closed world: what the engine does not call deterministic is not."""
    lower = name.lower()
    if lower == _OF_THE_THREAD or _BEST_EFFORT in lower:
        return True
    return lower not in _SYNTAX and lower not in _deterministic_functions()


@cache
def _deterministic_functions() -> frozenset[str]:
    query = "SELECT lower(name) FROM system.functions WHERE deterministic = 1"
    return frozenset(run(query, "TSVRaw").bytes().decode().split())


def settings_of(table: TableSpec, **more: object) -> str:
    """What they are evaluated under, as everything else that decides rows.

    :param more: settings of one query, as SQL literals.
    """
    return settings_clause(session_timezone=literal(table.time_zone), **READS_NO_CLOCK, **more)


def run_over_rows(query: str, output_format: str, what: str) -> bytes:
    """What the engine gives of people's own expressions over the rows of a block.

    :param what: begins what is said of them.
    :raises TerminalError: they fail on a row.
    :raises TransientError: the machine did it.
    """
    try:
        return bytes(run(query, output_format).bytes())
    except EngineError as error:
        raise TerminalError(
            f"{what}: it fails on a row: {str(error)[:300]}",
            "Correct the expression so that it cannot fail on any value (as with toUInt64OrZero). "
            "The range keeps the one that it was intended under: if nothing of it is in any table, "
            "`sluice adopt --offset` at its begin loads it under the new one.",
        ) from error


class Compiled:
    """Lets the engine compile expressions of one purpose.

    :param columns: of the blocks.
    :param what: begins what is said of them.
    :param verb: begins what to do: "Shard by".
    """

    def __init__(self, table: TableSpec, columns: Iterable[str], what: str, verb: str) -> None:
        self.what = what
        self._table = table
        self._verb = verb
        names = set(columns)
        self._columns = tuple(column for column in table.columns if column.name in names)

    def check(self, expression: str, consequence: str) -> None:
        """Whether it depends on the row, and on nothing else.

        :param consequence: of a value that is another one on a repetition.
        :raises TerminalError: it does not.
        """
        table = self._table
        used = referenced_columns(expression, table.columns)
        for column in used:
            if column not in self._columns:
                raise TerminalError(
                    f"{self.what}: it depends on {column.name}, which blocks do not carry",
                    f"{self._verb} columns that are inserted.",
                )
        if not used:
            raise TerminalError(
                f"{self.what}: {expression} names no column of {table.target}",
                f"{self._verb} columns of the table.",
            )
        volatile = nondeterministic_functions(expression, table.columns)
        if volatile:
            raise TerminalError(
                f"{self.what}: it depends on {', '.join(volatile)}, so {consequence}",
                f"{self._verb} columns that messages fill, or by a deterministic DEFAULT.",
            )

    def type_of(self, expression: str, key: str) -> str:
        """The type of an expression over the columns of a block, compiled as for a block.

        :param key: what is made of it; may not look at other rows.
        :raises TerminalError: they cannot be compiled.
        """
        structure = declared((column.name, column.type) for column in self._columns)
        settings = settings_of(self._table)
        nothing = f"null({literal(structure)})"
        # In PARTITION BY, what looks at other rows is refused; without rows no file is written.
        insert = (
            f"INSERT INTO FUNCTION file('/dev/null{{_partition_id}}', Native) PARTITION BY {key} "
            f"SELECT * FROM {nothing} {settings}"
        )
        describe = f"DESCRIBE (SELECT ({expression}\n) AS value FROM {nothing}) {settings}"
        try:
            run(insert, "Null")
            described = run(describe, "TSVRaw").bytes().decode()
        except (EngineError, TerminalError) as error:
            raise TerminalError(
                f"{self.what}: {expression} cannot be compiled: {str(error)[:300]}",
                "Correct it; it is SQL over the columns of the table.",
            ) from error
        return str(described).split("\t")[1].strip()
