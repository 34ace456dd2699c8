"""Messages with fields that their tables have no column for, in worlds whose entries give new
fields columns (R14).

Which messages these are follows from their numbers. A message with a new field is a row like any
other: the checks know of no dead letter for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sluice.core.dynamic import INT, DynamicColumns, NewField, answer_to
from sluice.core.errors import TransientError
from sluice.core.load_spec import Column, TableSpec
from sluice.testbed.simulate.decoding import DecodedRows, ListBuffer, field_of, judge
from sluice.testbed.simulate.faults import QUERY

if TYPE_CHECKING:
    from sluice.testbed.simulate.world import World

RULES = DynamicColumns(allow=("new.*",), deny=("old.*",))


def new_fields(table: TableSpec, buffer: ListBuffer, decoded: DecodedRows) -> tuple[NewField, ...]:
    """Stands for `sluice.decode.text.fields.new_fields`."""
    found: dict[str, NewField] = {}
    columns = frozenset(column.name for column in table.columns)
    for value in buffer.iterate([bad.index for bad in decoded.bad]):
        name = field_of(judge(value, 0, False).number)
        if name is None or table.dynamic is None:
            continue
        answer = answer_to(table.dynamic, columns, name)
        if answer is not None:
            found[name] = NewField(name, INT if answer == "add" else "")
    return tuple(found.values())


def adding_in(world: World) -> Callable[..., dict[str, str]]:
    """Stands for `sluice.clickhouse.adding.add_columns`."""

    def add_columns(
        connect: Any,
        urls: Sequence[str],
        where: tuple[str, str],
        kinds: Mapping[str, str],
        dynamic: DynamicColumns,
    ) -> dict[str, str]:
        hosts = world.clickhouse.hosts

        def ask(what: str) -> None:
            if world.call(what, QUERY) == "query fails" or any(
                hosts[url].down_until > world.now for url in urls
            ):
                raise TransientError(f"{what} got no answer", "wait")

        ask("alter")
        tables = list({id(t): t for url in urls for t in [hosts[url].tables[where[1]]]}.values())
        if not world.plan.tokens and world.is_looked_at():
            # A loop sees to it that no repeat of its own is out. Nothing protects from others.
            raise TransientError("somebody looks at the columns", "wait")
        there = {column.name for column in tables[0].columns}
        added = {name: "Nullable(Int64)" for name in kinds if name not in there}
        for table in tables:
            table.columns += tuple(Column(name, kind) for name, kind in added.items())
        if added:
            world.faults.note("columns added for new fields")
        ask("alter's answer")
        return added

    return add_columns
