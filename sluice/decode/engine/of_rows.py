"""Expressions over a row of a block, which have to say the same whenever the row is made again."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.expressions import (
    READS_NO_CLOCK,
    nondeterministic_functions,
    referenced_columns,
)
from sluice.decode.engine.session import EngineError, declared, literal, run, settings_clause


def settings_of(table: TableSpec, **more: object) -> str:
    """What they are evaluated under, as everything else that decides rows.

    :param more: settings of one query, as SQL literals.
    """
    return settings_clause(session_timezone=literal(table.time_zone), **READS_NO_CLOCK, **more)


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
