"""Gives tables columns for new fields, from the thread that reads the tables (R14)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.adding import ColumnsRefusedError, add_columns
from sluice.core.dynamic import answer_to, merged, room_for_columns
from sluice.core.errors import SluiceError
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.driver.effects import Wanted

_logger = logging.getLogger("sluice.schema")


@dataclass(slots=True)
class _Asked:
    """What one entry is asked for."""

    #: Of fields that get a column, by name.
    kinds: dict[str, str]
    passed_over: dict[str, None]


class Grower:
    """Takes what loops want from any thread, and does it in one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, _Asked] = {}
        #: Why entries cannot go on: the server refuses the columns that they have to have.
        self.refused: dict[str, SluiceError] = {}
        self._full: set[str] = set()

    def want(self, wanted: Wanted) -> None:
        """Ask for columns; asking again for what is there already does nothing."""
        with self._lock:
            for entry, fields in wanted.items():
                asked = self._asked.setdefault(entry, _Asked({}, {}))
                for field in fields:
                    if not field.kind:
                        asked.passed_over[field.name] = None
                        continue
                    before = asked.kinds.get(field.name, field.kind)
                    asked.kinds[field.name] = merged(before, field.kind)

    def forget_refusals(self) -> None:
        """A person said that what was refused may be tried again."""
        self.refused.clear()

    def grow(self, spec: LoadSpec, access: ClickHouseAccess) -> LoadSpec:
        """Add what was asked for since the last time, at these replicas; gives the load spec with
        the names that are passed over from now on. The columns are in it once the tables are read.

        :raises TransientError: the servers do not do it now; who still wants it asks again.
        """
        with self._lock:
            asked, self._asked = self._asked, {}
        tables = tuple(
            self._grown(table, asked[table.entry], access) if table.entry in asked else table
            for table in spec.tables
        )
        return spec if tables == spec.tables else replace(spec, tables=tables)

    def _grown(self, table: TableSpec, asked: _Asked, access: ClickHouseAccess) -> TableSpec:
        if table.dynamic is None:
            return table
        kinds = {n: kind for n, kind in asked.kinds.items() if table.dynamic.allows(n)}
        self._add(table, kinds, access)
        return _passing_over(table, asked.passed_over)

    def _add(self, table: TableSpec, kinds: dict[str, str], access: ClickHouseAccess) -> None:
        if not kinds or table.entry in self.refused:
            return
        assert table.dynamic is not None
        for shard in table.shards:
            try:
                added = add_columns(
                    access.connect,
                    access.shards[shard],
                    (table.database, table.table),
                    kinds,
                    table.dynamic,
                )
            except ColumnsRefusedError as error:
                _logger.error("table entry %s: %s. Try: %s", table.entry, error, error.hint)
                self.refused[table.entry] = error
                return
            for name, type_text in added.items():
                _logger.warning("%s: column %s %s was added", table.target, name, type_text)
        names = {*(column.name for column in table.columns), *kinds}
        if not room_for_columns(table.dynamic, names) and table.entry not in self._full:
            self._full.add(table.entry)
            _logger.warning(
                "%s: dynamic_columns.max = %d is reached; messages with further new fields are "
                "dead letters. Try: raise it, add the columns yourself, or deny the fields.",
                table.target,
                table.dynamic.columns_max,
            )


def _passing_over(table: TableSpec, names: Mapping[str, None]) -> TableSpec:
    columns = frozenset(column.name for column in table.columns)
    for name in names:
        dynamic = table.dynamic
        assert dynamic is not None
        if answer_to(dynamic, columns, name) == "pass-over":
            passed_over = (*dynamic.passed_over, name)
            table = replace(table, dynamic=replace(dynamic, passed_over=passed_over))
            _logger.warning("%s: field %s is passed over", table.target, name)
    return table
