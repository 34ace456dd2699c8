"""Today's load spec, from the file and the tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from sluice.claims.stores import StoreAccess
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.capabilities import Capabilities, read_capabilities
from sluice.clickhouse.comparing import INSERTABLE, Today
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import identifier, qualified
from sluice.config import Configuration, DeduplicationConfiguration, TableConfiguration
from sluice.core.claims import Deduplicate
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.formats import REGISTRY_OPTION, needs_registry
from sluice.core.load_spec import (
    LINEAGE_TYPES,
    SOURCE,
    SOURCE_TYPES,
    Column,
    KeyFormat,
    LoadSpec,
    TableSpec,
)
from sluice.core.replicas import host_matches
from sluice.core.topics import matches, takes
from sluice.decode.version import decoder_version
from sluice.driver.delivery import require_delivery
from sluice.driver.event_keys import required_columns
from sluice.driver.shards import on_shard
from sluice.driver.topology import login_of, resolved
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.registry import RegistryAccess

_Name = tuple[str, str]


def access_of(configuration: Configuration, connector: str | None = None) -> ClickHouseAccess:
    """How to reach the shards, password in the clear.

    Where the file has no replicas, the servers are asked; see `sluice.driver.topology.resolved`.

    :param connector: whose blocks go to the replicas that it prefers.
    :raises ConfigurationError: the cluster is not what the configuration says; or the file of the
        password, or one of certificates, cannot be used.
    :raises TransientError: too few servers answer.
    """
    configuration = resolved(configuration)
    clickhouse = configuration.clickhouse
    prefer = clickhouse.prefer if connector is None else configuration.preferred_by(connector)
    patterns = clickhouse.data_centers.get(prefer, ())
    urls = [url for shard in clickhouse.shards for url in shard.replicas]
    preferred = (url for url in urls if any(host_matches(url, pattern) for pattern in patterns))
    return replace(login_of(configuration), preferred=frozenset(preferred))


def kafka_access(configuration: Configuration, connector_name: str) -> KafkaAccess:
    """How to reach a connector's brokers, secrets in the clear.

    :raises ConfigurationError: there is no connector of this name.
    """
    connector = configuration.connector(connector_name)
    return KafkaAccess(
        connector.name, connector.brokers, connector.properties(), connector.known_reader()
    )


def tables_of_connector(
    configuration: Configuration, connector_name: str
) -> tuple[TableConfiguration, ...]:
    """The entries that a topic of this connector goes to, in the file's order. Where both take
    topics by an expression, one that they share may come into being."""
    connector = configuration.connector(connector_name)
    return tuple(
        table
        for table in configuration.tables
        if any(map(table.takes, connector.topics))
        or any(matches(connector.topic_pattern, topic) for topic in table.topics)
        or (connector.topic_pattern and table.topic_pattern)
    )


def build_spec(
    configuration: Configuration,
    connector_name: str,
    facts: Mapping[str, TableFacts],
    time_zone: str,
    decoder: str,
    paths: Mapping[tuple[str, str], str] | None = None,
    uuids: Mapping[tuple[str, str], Mapping[str, str]] | None = None,
) -> LoadSpec:
    """Today's load spec of a connector; pure.

    :param facts: of every table that the connector loads, by name of the table entry.
    :param time_zone: of the servers.
    :param paths: of Replicated tables, see `Today`; None where the load spec is not for loading.
    :param uuids: of the others, see `Today`.
    :raises ConfigurationError: lineage = true and the table lacks lineage columns; an entry
        deduplicates by what its table does not have; or its table cannot be what `delivery` says.
    """
    connector = configuration.connector(connector_name)
    entries = tables_of_connector(configuration, connector_name)
    lineage = {table.name: _carried(configuration, table, facts[table.name]) for table in entries}
    return LoadSpec(
        pipeline=configuration.pipeline,
        connector=connector_name,
        decoder=decoder,
        range_bytes_max=configuration.batch.range_bytes_max,
        unrouted=connector.unrouted,
        commit=connector.commit,
        tables=tuple(
            replace(
                _table_spec(
                    configuration,
                    table,
                    tuple(
                        topic
                        for topic in sorted(table.topics)
                        if takes(connector.topics, connector.topic_pattern, topic)
                    ),
                    facts[table.name],
                    lineage[table.name],
                    time_zone,
                ),
                zookeeper_paths=_paths_of(table, paths or {}),
                uuids=uuids_of(table.target, configuration.shards_of(table), uuids or {}),
            )
            for table in sorted(entries, key=lambda table: table.name)
        ),
    )


def _table_spec(
    configuration: Configuration,
    table: TableConfiguration,
    topics: tuple[str, ...],
    facts: TableFacts,
    lineage: tuple[str, ...],
    time_zone: str,
) -> TableSpec:
    """Of an entry, without what tells its table from one that is made anew."""
    return TableSpec(
        entry=table.name,
        database=table.database,
        table=table.table,
        topics=topics,
        format=table.format,
        columns=facts.columns,
        lineage=lineage,
        partition_key=facts.partition_key,
        sorting_key=facts.sorting_key,
        unknown_fields=table.unknown_fields,
        on_null=table.on_null,
        time_zone=time_zone,
        shards=configuration.shards_of(table),
        sharding=table.sharding,
        sort=table.sort,
        options=_options(configuration, table),
        rows=table.rows,
        bad_rows=table.bad_rows,
        route=table.route,
        mapping=table.columns,
        fields=table.fields,
        require=required_columns(table, facts),
        check=table.check,
        topic_pattern=table.topic_pattern,
        dynamic=table.dynamic_columns,
        quorums=_quorums_of(configuration, table),
        fractions=table.fractions,
        deduplicate=_deduplicate(configuration, table),
        delivery=table.delivery,
        tombstones=table.tombstones,
        decompress=table.decompress,
        envelope=table.envelope,
        key=_key(configuration, table),
        timestamps=table.timestamps,
    )


def _carried(
    configuration: Configuration, table: TableConfiguration, facts: TableFacts
) -> tuple[str, ...]:
    """The lineage columns that blocks carry into a table that is what its entry says."""
    carried = lineage_columns(table, facts)
    require_fitting(configuration, table, facts, carried)
    return carried


def require_fitting(
    configuration: Configuration,
    table: TableConfiguration,
    facts: TableFacts,
    carried: tuple[str, ...],
) -> None:
    """See that a table can be what its entry says; see `sluice.driver.delivery`.

    :param carried: lineage columns that its blocks carry.
    :raises ConfigurationError: it cannot.
    """
    loaders = sum(
        one.target == table.target
        for connector in configuration.connectors
        for one in tables_of_connector(configuration, connector.name)
    )
    require_delivery(table, facts, carried, len(configuration.shards_of(table)), loaders)


def _paths_of(
    table: TableConfiguration, paths: Mapping[tuple[str, str], str]
) -> tuple[tuple[str, str], ...]:
    """(shard, path) of one table, sorted by shard."""
    return tuple(
        (shard, path) for (target, shard), path in sorted(paths.items()) if target == table.target
    )


def uuids_of(
    target: str, shards: Iterable[str], uuids: Mapping[tuple[str, str], Mapping[str, str]]
) -> tuple[tuple[str, str, str], ...]:
    """(shard, table, uuid) of one table and its views' targets, sorted; see `Today`."""
    return tuple(
        (shard, name, uuid)
        for shard in sorted(shards)
        for name, uuid in sorted(uuids.get((target, shard), {}).items())
    )


def _quorums_of(
    configuration: Configuration, table: TableConfiguration
) -> tuple[tuple[str, int], ...]:
    """(shard, replicas that have to have a block) of one table, sorted by shard."""
    clickhouse = configuration.clickhouse
    if clickhouse.durability == "single":
        return ()
    names = configuration.shards_of(table)
    by_name = {shard.name: shard for shard in clickhouse.shards}
    return tuple((name, clickhouse.quorum_of(by_name[name])) for name in names)


def _options(
    configuration: Configuration, table: TableConfiguration
) -> tuple[tuple[str, str], ...]:
    """The format's options; the registry by its URL, since numbers of schemas are its own."""
    if configuration.registry is None or not needs_registry(table.format, table.options):
        return table.options
    return tuple(sorted((*table.options, (REGISTRY_OPTION, configuration.registry.url))))


def _key(configuration: Configuration, table: TableConfiguration) -> KeyFormat | None:
    """How keys are decoded; their schemas are in the same registry."""
    key = table.key
    if key is None or configuration.registry is None or not needs_registry(key.format, key.options):
        return key
    url = (REGISTRY_OPTION, configuration.registry.url)
    return replace(key, options=tuple(sorted((*key.options, url))))


def registry_access(configuration: Configuration) -> RegistryAccess | None:
    """How to reach the schema registry, secrets in the clear."""
    registry = configuration.registry
    if registry is None:
        return None
    tls = registry.tls
    return RegistryAccess(
        registry.url,
        registry.user,
        registry.password.reveal(),
        registry.token.reveal(),
        tls.ca,
        tls.certificate,
        tls.key,
        tls.key_password.reveal(),
    )


def store_access(deduplication: DeduplicationConfiguration) -> StoreAccess:
    """How to reach the store of claims, password in the clear.

    :raises ConfigurationError: the password cannot be had.
    """
    return StoreAccess(deduplication.url, deduplication.password.reveal(), deduplication.ca_file)


def lineage_columns(table: TableConfiguration, facts: TableFacts) -> tuple[str, ...]:
    """The lineage columns that blocks of this entry carry, in the order of LINEAGE_TYPES.

    `_source` may be missing: without it a range that left the window cannot be probed.

    :raises ConfigurationError: lineage = true and some are missing or take no values.
    """
    if table.lineage is False:
        return ()
    columns = {column.name: column for column in facts.columns}
    present = tuple(name for name in LINEAGE_TYPES if carries(columns.get(name)))
    missing = [name for name in LINEAGE_TYPES if name not in present and name != SOURCE]
    if table.lineage is True and missing:
        names = ", ".join(missing)
        raise ConfigurationError(
            f"table entry {table.name}: {facts.target} on {facts.url} has no lineage column "
            f"{names} that takes values",
            f'{add_lineage_statement(facts, missing)}; or lineage = "auto" or false.',
        )
    return present


def _deduplicate(configuration: Configuration, table: TableConfiguration) -> Deduplicate | None:
    """How the entry knows an event again, with its scope."""
    if table.deduplicate is None:
        return None
    return replace(table.deduplicate, scope=configuration.scope_of(table))


def carries(column: Column | None) -> bool:
    """Whether a column takes a lineage value. What says nothing of who loaded it has to be empty
    in `_source`: with a default of its own it would name somebody."""
    if column is None:
        return False
    if column.name == SOURCE:
        return column.kind == "" and column.type in SOURCE_TYPES
    return column.kind in INSERTABLE


def add_lineage_statement(
    facts: TableFacts, missing: Iterable[str], types: Mapping[str, str] = LINEAGE_TYPES
) -> str:
    """The ALTER TABLE that gives a table these lineage columns.

    :param types: those that suit the server, see `core.load_spec.lineage_types`.
    """
    columns = ", ".join(f"ADD COLUMN {identifier(name)} {types[name]}" for name in missing)
    return f"ALTER TABLE {qualified(facts.database, facts.table)} {columns}"


def read_spec(configuration: Configuration, connector_name: str) -> LoadSpec:
    """Today's load spec of a connector, its tables read from the servers.

    :raises ConfigurationError: see `build_spec`.
    :raises TerminalError: a table that cannot be loaded, or shards that differ.
    :raises TransientError: no replica of a shard answers.
    """
    configuration = resolved(configuration)
    tables = tables_of_connector(configuration, connector_name)
    shards: dict[_Name, set[str]] = {}
    for table in tables:
        shards.setdefault((table.database, table.table), set()).update(
            configuration.shards_of(table)
        )
    today = _read(access_of(configuration), shards, strict=True)
    facts = {table.name: today.tables[table.target] for table in tables}
    return build_spec(
        configuration,
        connector_name,
        facts,
        today.time_zone,
        today.decoder,
        today.paths,
        today.uuids,
    )


def read_today(
    configuration: Configuration, recorded: Iterable[LoadSpec], unread: Collection[str] = ()
) -> Today:
    """Read every table that the recorded load specs name, also those no longer configured.

    :param unread: shards that cannot be read: tables that are there, too, are left out.
    :raises TerminalError: shards that differ.
    :raises TransientError: no replica of a shard answers.
    """
    shards: dict[_Name, set[str]] = {}
    for spec in recorded:
        for table in spec.tables:
            shards.setdefault((table.database, table.table), set()).update(table.shards)
    read = {name: of for name, of in shards.items() if of.isdisjoint(unread)}
    return _read(access_of(configuration), read, strict=False)


def _read(access: ClickHouseAccess, shards: Mapping[_Name, set[str]], *, strict: bool) -> Today:
    """Facts of the tables, equal on all of their shards. Other shards are not asked: one that is
    away holds nobody back who does not need it.

    :param shards: of each table, by name; those that are not configured are left out.
    :param strict: a table that cannot be loaded is an error; else it is left out, also where only
        one of its shards lacks it.
    """
    found: dict[str, TableFacts] = {}
    lacking: set[_Name] = set()
    zones: dict[str, str] = {}
    paths: dict[tuple[str, str], str] = {}
    uuids: dict[tuple[str, str], Mapping[str, str]] = {}
    tokens = True
    needed = set[str]().union(*shards.values()) & access.shards.keys()
    for shard in sorted(needed or access.shards):
        wanted = sorted(name for name, of in shards.items() if shard in of)

        def ask(
            server: Server, wanted: Sequence[_Name] = wanted
        ) -> tuple[Capabilities, list[TableFacts | None]]:
            capabilities = read_capabilities(server)
            return capabilities, [_describe(server, *name, strict) for name in wanted]

        capabilities, tables = on_shard(access, shard, ask)
        zones[shard], tokens = capabilities.time_zone, tokens and capabilities.tokens
        for name, facts in zip(wanted, tables, strict=True):
            if facts is None:
                lacking.add(name)
            else:
                _refuse_difference(found.setdefault(facts.target, facts), facts)
                if facts.zookeeper_path:
                    paths[facts.target, shard] = facts.zookeeper_path
                uuids[facts.target, shard] = dict(facts.own_uuids())
    for database, table in lacking:
        found.pop(f"{database}.{table}", None)
    if len(set(zones.values())) > 1:
        shown = ", ".join(f"{shard}: {zone}" for shard, zone in zones.items())
        raise ConfigurationError(
            f"the shards have different time zones: {shown}",
            "Set the same <timezone> on all servers: DateTime strings mean it.",
        )
    zone = next(iter(zones.values()))
    return Today(decoder_version(), zone, frozenset(access.shards), found, tokens, paths, uuids)


def _describe(server: Server, database: str, table: str, strict: bool) -> TableFacts | None:
    try:
        return describe_table(server, database, table)
    except TerminalServerError:
        raise
    except TerminalError:
        if strict:
            raise
        return None


def _refuse_difference(known: TableFacts, other: TableFacts) -> None:
    """:raises ConfigurationError: two shards decide rows differently."""
    for what, left, right in (
        ("columns", known.columns, other.columns),
        ("partition key", known.partition_key, other.partition_key),
        ("sorting key", known.sorting_key, other.sorting_key),
    ):
        if left != right:
            raise ConfigurationError(
                f"{known.target} has another {what} on {known.url} than on {other.url}",
                "Give the table the same definition on all shards.",
            )
