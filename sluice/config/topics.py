"""Topics that are found by an expression: what they must not do. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations

from sluice.config.model import Configuration
from sluice.config.table import TableConfiguration
from sluice.core.errors import ConfigurationError


class TopicRefusedError(ConfigurationError):
    """A topic that an expression takes cannot be loaded as configured."""


def why_refused(
    configuration: Configuration,
    connector: str,
    topic: str,
    told_apart: Collection[str] = frozenset(),
) -> TopicRefusedError | None:
    """Why a topic that this connector reads must not be loaded; None if it may.

    Only expressions are judged: whoever names a topic twice means it.

    :param told_apart: tables, as database.table, whose rows say who loaded them.
    """
    for one, other in loaded_twice(configuration.tables, [topic]):
        return TopicRefusedError(
            f"the topic {topic} goes to {one.target} twice: entries {one.name} and {other.name} "
            "both take it, at least one of them by topic_pattern",
            "Narrow the expression, as in (?!orders\\.internal$)orders\\..*, or give both entries "
            "a route that tells their messages apart.",
        )
    reads = [
        each.name for each in configuration.connectors if configuration.reads(each.name, topic)
    ]
    others = [name for name in reads if name != connector]
    with_lineage = [
        table
        for table in configuration.tables_of(topic)
        if table.lineage is not False and table.target not in told_apart
    ]
    if others and with_lineage:
        return TopicRefusedError(
            f"connectors {connector} and {others[0]} both load a topic {topic} into "
            f"{with_lineage[0].target}: their rows carry the same lineage",
            "Give the table the column _source (`sluice doctor` has the statement), or give each "
            "connector a table of its own, or narrow its topic_pattern.",
        )
    return None


def routes_differ(one: TableConfiguration, other: TableConfiguration) -> bool:
    """Whether routes say that no message goes to both entries."""
    return one.route is not None and other.route is not None and one.route != other.route


def loaded_twice(
    tables: Iterable[TableConfiguration], topics: Iterable[str]
) -> Iterator[tuple[TableConfiguration, TableConfiguration]]:
    """Two entries that put the same messages of one of these topics into the same table, and at
    least one of them takes the topic by an expression. Routes that differ tell them apart."""
    pairs = [
        (one, other)
        for one, other in combinations(tables, 2)
        if one.target == other.target and not routes_differ(one, other)
    ]
    for topic in topics:
        for one, other in pairs:
            by_name = topic in one.topics and topic in other.topics
            if not by_name and one.takes(topic) and other.takes(topic):
                yield one, other
