"""Columns that tables get while everything runs: from a person, or from the loader for new fields
(R14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import TransientError
from sluice.core.load_spec import Column
from sluice.testbed.simulate.faults import QUERY
from sluice.testbed.simulate.world import World


def add_column(world: World, name: str) -> None:
    """A person adds a column to a table. A server that hashes is not altered in the moment between
    a task's look at the columns and its insert: nothing protects from that."""
    shapes = {table.columns for table in world.clickhouse.of_name(name)}
    if len(shapes) > 1:
        return  # a driver is adding one; in another order, shards would differ for good
    if world.plan.tokens or not world.is_looked_at():
        world.say(f"{name} gets a column")
        for table in world.clickhouse.of_name(name):
            table.add_column()
    elif world.faults.is_on:
        world.scheduler.at(500, lambda: add_column(world, name))


def add_columns(world: World) -> None:
    """A person adds a column to every table."""
    for name in world.clickhouse.names():
        add_column(world, name)


def align_columns(world: World) -> None:
    """A person gives all shards the columns that one of them has."""
    for name in world.clickhouse.names():
        tables = world.clickhouse.of_name(name)
        longest = max((table.columns for table in tables), key=len)
        for table in tables:
            table.columns = longest


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
