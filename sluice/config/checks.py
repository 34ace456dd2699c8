"""What must hold between the sections of the file. Values with findings of their own are
empty here, and pass."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.config.model import Configuration, ConnectorConfiguration, TableConfiguration
from sluice.config.section import Section
from sluice.config.sharding import check_sharding
from sluice.config.topics import loaded_twice
from sluice.core.formats import FORMATS


def check_across_sections(
    configuration: Configuration,
    root: Section,
    connector_sections: Sequence[Section],
    table_sections: Sequence[Section],
) -> None:
    """Report every disagreement; the sections are in the order of the configuration's."""
    connectors = list(zip(connector_sections, configuration.connectors, strict=True))
    tables = list(zip(table_sections, configuration.tables, strict=True))
    _refuse_duplicate_names(connectors)
    _refuse_duplicate_names(tables)
    if connectors and tables:
        _refuse_unmatched_topics(configuration, connectors, tables)
        _refuse_double_loading(tables)
    _refuse_loops(configuration, root, connectors)
    names = tuple(shard.name for shard in configuration.clickhouse.shards)
    for section, table in tables:
        check_sharding(section, table, names)
    for section, table in tables:
        if FORMATS[table.format].needs_registry and configuration.registry is None:
            section.refuse("format", f"{table.format} needs the section [registry] with its url")


def _refuse_duplicate_names(
    entries: Sequence[tuple[Section, ConnectorConfiguration | TableConfiguration]],
) -> None:
    seen: set[str] = set()
    for section, entry in entries:
        if entry.name in seen:
            section.refuse(
                "name", f'"{entry.name}" is the name of an earlier entry; choose another'
            )
        if entry.name:
            seen.add(entry.name)


def _refuse_unmatched_topics(
    configuration: Configuration,
    connectors: Sequence[tuple[Section, ConnectorConfiguration]],
    tables: Sequence[tuple[Section, TableConfiguration]],
) -> None:
    named = {topic for _, connector in connectors for topic in connector.topics}
    names = [connector.name for _, connector in connectors]
    has_patterns = any(connector.topic_pattern for _, connector in connectors)
    for section, connector in connectors:
        for topic in connector.topics:
            if not any(table.takes(topic) for _, table in tables):
                section.refuse("topics", f'no [[table]] takes the topic "{topic}"')
    for section, table in tables:
        for topic in table.topics:
            if not any(configuration.reads(name, topic) for name in names):
                section.refuse("topics", f'no [[connector]] has the topic "{topic}"')
        if table.topic_pattern and not has_patterns and not any(map(table.takes, named)):
            section.refuse(
                "topic_pattern",
                "takes no topic of a [[connector]], and none of them has a topic_pattern",
            )


def _refuse_double_loading(tables: Sequence[tuple[Section, TableConfiguration]]) -> None:
    """What can be seen without the cluster's topics; the rest is found when they are known."""
    sections = {table.name: section for section, table in tables}
    entries = [table for _, table in tables]
    for topic in sorted({topic for table in entries for topic in table.topics}):
        for one, other in loaded_twice(entries, [topic]):
            by_pattern, by_name = (one, other) if topic in other.topics else (other, one)
            sections[by_pattern.name].refuse(
                "topic_pattern",
                f'takes "{topic}", which "{by_name.name}" loads into {one.target} already; narrow '
                "it, or give both entries a route",
            )


def _refuse_loops(
    configuration: Configuration,
    root: Section,
    connectors: Sequence[tuple[Section, ConnectorConfiguration]],
) -> None:
    """Sluice's own topics are no sources, and differ from each other."""
    names = {
        "ledger": configuration.ledger_topic,
        "dead_letters": configuration.dead_letters_topic,
        "parking": configuration.parking_topic,
    }
    own = set(names.values())
    for section, connector in connectors:
        for topic in connector.topics:
            if topic in own:
                section.refuse("topics", f'"{topic}" is written by this pipeline itself')
    for name, other in (
        ("ledger", "dead_letters"),
        ("parking", "dead_letters"),
        ("parking", "ledger"),
    ):
        if names[name] == names[other]:
            root.refuse_inside(name, "topic", f"is also {other}.topic; choose another")
