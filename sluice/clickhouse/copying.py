"""Copies of the views that read a table, between the tables of one stored block (R21).

A partition that is moved feeds no view. So a block is stored together with what views make of it:
in a table for each table that they write to, which copies of the views fill.
"""

from __future__ import annotations

from collections.abc import Callable

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TOKENS, Dependent, TableFacts, one_of, unquoted
from sluice.clickhouse.sql import identifier, qualified

#: Of a table and all views and tables behind it: names, definitions and who reads whom.
Definitions = tuple[tuple[object, ...], ...]


def tables_behind(facts: TableFacts) -> tuple[TableFacts, ...]:
    """The tables that views behind this one write to, each once, in the order of the views."""
    found = {each.target.target: each.target for each in facts.all_dependents()}
    return tuple(found.values())


def read_definitions(server: Server, facts: TableFacts) -> Definitions:
    """What the views behind a table depend on; another answer: it has to be described anew.

    :raises ServerError: terminal or transient.
    """
    names = {(facts.database, facts.table)}
    for each in facts.all_dependents():
        database, _, view = each.view.partition(".")
        names |= {(database, view), (each.target.database, each.target.table)}
    rows = server.query(
        "SELECT database, name, create_table_query, dependencies_database, dependencies_table "
        f"FROM system.tables WHERE {one_of(sorted(names), 'name')}"
    )
    return tuple(
        sorted(
            (
                str(row["database"]),
                str(row["name"]),
                str(row["create_table_query"]),
                *sorted(zip(row["dependencies_database"], row["dependencies_table"], strict=True)),
            )
            for row in rows
        )
    )


def why_not_copied(facts: TableFacts) -> str | None:
    """Why what views make of a block cannot be stored beside it; None: it can. Pure."""
    for source, each in _views(facts):
        if not each.target.engine.endswith("MergeTree"):
            return f"it feeds {each.view}, which writes to a {each.target.engine}"
        if each.target.engine.startswith("Shared") or each.target.replicated:
            return f"it feeds {each.view}, which writes to a {each.target.engine}"
        if reading_from(each.select, source, ("", "")) is None:
            return f"it feeds {each.view}, whose SELECT does not name {source.target} exactly once"
    return None


def copies(
    facts: TableFacts, stored: Callable[[TableFacts], str], copy: Callable[[int], str]
) -> dict[str, str]:
    """The statements that create copies of the views, by the names of the copies. Pure.

    :param facts: of a table whose views can be copied.
    :param stored: the name of the table, in the same database, that stands for a table.
    :param copy: the name of the copy with this number, from 1 on.
    """
    found = {}
    for number, (source, each) in enumerate(_views(facts), start=1):
        name = copy(number)
        select = reading_from(each.select, source, (facts.database, stored(source)))
        to = qualified(facts.database, stored(each.target))
        create = f"CREATE MATERIALIZED VIEW {qualified(facts.database, name)} TO {to} AS {select}"
        found[name] = create
    return found


def _views(facts: TableFacts) -> list[tuple[TableFacts, Dependent]]:
    """All views behind a table, each once, with the table that it reads."""
    found: dict[str, tuple[TableFacts, Dependent]] = {}
    waiting = [facts]
    while waiting:
        source = waiting.pop(0)
        for each in source.dependents:
            if each.view not in found:
                found[each.view] = (source, each)
                waiting.append(each.target)
    return list(found.values())


def reading_from(select: str, source: TableFacts, stored: tuple[str, str]) -> str | None:
    """A view's SELECT with another table in the place of the one that it reads. Pure.

    The server reads the inserted block in the place of the first table of a view. Where the name of
    that table stands once, that is its place.

    :param stored: database and table.
    :returns: None if the name stands there more than once, or not after FROM.
    """
    tokens = list(TOKENS.finditer(select))
    words = [token.group() for token in tokens]
    name = [source.database, ".", source.table]
    found = [
        at
        for at in range(len(words) - 2)
        if [unquoted(each) for each in words[at : at + 3]] == name
    ]
    if len(found) != 1 or words[found[0] - 1 : found[0]] not in (["FROM"], ["from"]):
        return None
    (at,) = found
    is_named = words[at + 3 : at + 4] in (["AS"], ["as"])
    alias = "" if is_named else f" AS {identifier(source.table)}"
    begin, end = tokens[at].start(), tokens[at + 2].end()
    return f"{select[:begin]}{qualified(*stored)}{alias}{select[end:]}"
