"""What must hold between the sections of the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from sluice.config.deduplication import LEASES_OF_WINDOW
from sluice.config.model import Configuration
from sluice.config.quantities import format_duration
from sluice.config.table import EXAMPLES, TableConfiguration
from sluice.config.topics import loaded_twice, routes_differ
from sluice.core.formats import needs_registry
from sluice.core.suggestions import suggest

#: A block for each is too small long before, and each takes two open files of a worker, which may
#: have 1024 by default.
SHARDS_MAX = 256


def conflicts_across_sections(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Every disagreement: the path of a key, and what is wrong with it."""
    for kind, entries in (
        ("connector", configuration.connectors),
        ("table", configuration.tables),
    ):
        names = [entry.name for entry in entries]
        for name in sorted({name for name in names if names.count(name) > 1}):
            what = f'"{name}" is the name of an earlier entry; choose another'
            yield f"{kind}[{name}].name", what
    yield from _unmatched_topics(configuration)
    yield from _double_loading(configuration.tables)
    yield from _own_topics(configuration)
    yield from _unknown_data_centers(configuration)
    yield from _deduplication(configuration)
    yield from _commits(configuration)
    shards = [shard.name for shard in configuration.clickhouse.shards]
    for table in configuration.tables:
        for key, what in _sharding_conflicts(table, shards):
            yield f"table[{table.name}].{key}", what
        if needs_registry(table.format, table.options) and configuration.registry is None:
            what = f"{table.format} needs the section [registry] with its url"
            yield f"table[{table.name}].format", what
        of = table.key
        if of and needs_registry(of.format, of.options) and configuration.registry is None:
            what = f"{of.format} needs the section [registry] with its url"
            yield f"table[{table.name}].key.format", what


def _unmatched_topics(configuration: Configuration) -> Iterator[tuple[str, str]]:
    connectors, tables = configuration.connectors, configuration.tables
    for connector in connectors:
        for topic in connector.topics:
            if not configuration.tables_of(topic):
                what = f'no [[table]] takes the topic "{topic}"'
                yield f"connector[{connector.name}].topics", what
    named = {topic for connector in connectors for topic in connector.topics}
    has_patterns = any(connector.topic_pattern for connector in connectors)
    for table in tables:
        where = f"table[{table.name}]"
        for topic in table.topics:
            if not any(configuration.reads(connector.name, topic) for connector in connectors):
                yield f"{where}.topics", f'no [[connector]] has the topic "{topic}"'
        if table.topic_pattern and not has_patterns and not any(map(table.takes, named)):
            yield (
                f"{where}.topic_pattern",
                "takes no topic of a [[connector]], and none of them has a topic_pattern",
            )


def _double_loading(tables: Iterable[TableConfiguration]) -> Iterator[tuple[str, str]]:
    """What can be seen without the cluster's topics; the rest is found when they are known."""
    for topic in sorted({topic for table in tables for topic in table.topics}):
        for one, other in loaded_twice(tables, [topic]):
            by_pattern, by_name = (one, other) if topic in other.topics else (other, one)
            yield (
                f"table[{by_pattern.name}].topic_pattern",
                f'takes "{topic}", which "{by_name.name}" loads into {one.target} already; narrow '
                "it, or give both entries a route",
            )


_OWN_TOPICS = ("dead_letters", "ledger", "parking", "deduplication", "decisions")


def _own_topics(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Sluice's own topics are no sources, and differ from each other."""
    names = {
        "ledger": configuration.ledger_topic,
        "dead_letters": configuration.dead_letters_topic,
        "parking": configuration.parking_topic,
        "deduplication": configuration.duplicates_topic,
        "decisions": configuration.decisions_topic,
    }
    for connector in configuration.connectors:
        for topic in connector.topics:
            if topic in (*names.values(), configuration.fleet_topic):
                what = f'"{topic}" is written by this pipeline itself'
                yield f"connector[{connector.name}].topics", what
    for name in _OWN_TOPICS:
        if names[name] == configuration.fleet_topic:
            yield f"{name}.topic", "is where the members of a fleet report; choose another"
    for other, name in combinations(_OWN_TOPICS, 2):
        if names[name] == names[other]:
            yield f"{name}.topic", f"is also {other}.topic; choose another"


def _unknown_data_centers(configuration: Configuration) -> Iterator[tuple[str, str]]:
    known = configuration.clickhouse.data_centers
    preferences = [("clickhouse", configuration.clickhouse.prefer)]
    preferences += [(f"connector[{each.name}]", each.prefer) for each in configuration.connectors]
    for where, preferred in preferences:
        if preferred and preferred not in known:
            advice = (
                suggest(preferred, known)
                if known
                else "name its hosts in [clickhouse]: "
                'data_centers = { east = ["*.east.example.com"] }'
            )
            yield f"{where}.prefer", f'no data center is named "{preferred}"; {advice}'


def _commits(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Only what is staged can wait for other tables."""
    for connector in configuration.connectors:
        for table in configuration.tables if connector.commit == "bundle" else ():
            is_loaded = (
                any(map(table.takes, connector.topics))
                or any(configuration.reads(connector.name, topic) for topic in table.topics)
                or (connector.topic_pattern and table.topic_pattern)
            )
            if is_loaded and table.delivery != "staged":
                yield (
                    f"connector[{connector.name}].commit",
                    f'"bundle" needs delivery = "staged" in all its tables, and [[table]] '
                    f'{table.name} has delivery = "{table.delivery}"',
                )


def _deduplication(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """What would let an event be loaded twice, or not at all."""
    store, spark = configuration.deduplication, configuration.spark
    tables = [table for table in configuration.tables if table.deduplicate is not None]
    if store is None and tables:
        yield (
            f"table[{tables[0].name}].deduplicate",
            f"needs a store that all workers of {spark.master} reach; name it as store in the "
            'section [deduplication], like store = "redis://host:6379/0"',
        )
    if store is not None and store.is_local and not spark.is_local:
        yield (
            "deduplication.store",
            f'"local" is a directory of one machine, and workers of {spark.master} run on others, '
            "where they would not see each other's claims; name a Redis",
        )
    lease_seconds = configuration.batch.lease_seconds
    for table in tables:
        assert table.deduplicate is not None
        if table.deduplicate.window_seconds < LEASES_OF_WINDOW * lease_seconds:
            least = format_duration(LEASES_OF_WINDOW * lease_seconds)
            yield (
                f"table[{table.name}].deduplicate.window",
                f"must be {least} at least, {LEASES_OF_WINDOW} times batch.lease: a range in doubt "
                "is only repeated while its claims hold",
            )
    for one, other in combinations(tables, 2):
        if one.target == other.target and _known_by(configuration, one) != _known_by(
            configuration, other
        ):
            yield (
                f"table[{other.name}].deduplicate",
                f'has another key or scope than "{one.name}", which loads {one.target} too: lost '
                "claims are made again from the rows of the table, whichever entry loaded them; "
                "write the same key and scope, or load two tables",
            )
        shared = [topic for topic in one.topics if other.takes(topic)]
        shared += [topic for topic in other.topics if one.takes(topic)]
        is_one_scope = configuration.scope_of(one) == configuration.scope_of(other)
        if is_one_scope and one.target != other.target and shared and not routes_differ(one, other):
            yield (
                f"table[{other.name}].deduplicate.scope",
                f'is that of "{one.name}", which takes "{shared[0]}" too: an event would be a row '
                "of one of the two tables only; choose another",
            )


def _known_by(
    configuration: Configuration, table: TableConfiguration
) -> tuple[tuple[str, ...], str]:
    """By what the events of an entry are known again."""
    assert table.deduplicate is not None
    return table.deduplicate.key, configuration.scope_of(table)


def _sharding_conflicts(
    table: TableConfiguration, names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What leaves open to which of the shards a row goes, by the key that says so.

    :param names: of all shards.
    """
    for name in table.shards:
        if names and name not in names:
            yield ("shards", f'no shard is named "{name}"; {suggest(name, names)}')
    shards = sorted(table.shards or names)
    sharding = table.sharding
    if sharding is None:
        if len(shards) > 1:
            yield (
                "sharding",
                f"is missing: rows go to {len(shards)} shards ({_listed(shards)}); {EXAMPLES}, "
                f'or name one shard, as in shards = ["{shards[0]}"]',
            )
        return
    if len(shards) > SHARDS_MAX:
        yield (
            "sharding",
            f"would cut each block into up to {len(shards)}, and {SHARDS_MAX} is the most; give "
            "each shard a topic of its own, with shards = [...] in its entry",
        )
    if len(shards) == 1:
        yield ("sharding", f"decides nothing: all rows go to the shard {shards[0]}; leave it out")
    if table.rows == "many" and sharding.by != "offset":
        yield (
            "sharding",
            f'by = "{sharding.by}" and rows = "many" could send rows of one message to different '
            "shards, and nobody could tell by its offset whether all of them are there; use "
            'by = "offset", or one shard',
        )
    if table.lineage is False and sharding.by == "offset":
        yield (
            "sharding",
            'by = "offset" needs the column _offset in the table, and lineage = false leaves it '
            "out; use lineage = true",
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"
