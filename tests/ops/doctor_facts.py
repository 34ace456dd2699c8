"""Facts of a good table, to be made worse, for tests of what the doctor makes of them."""

from __future__ import annotations

from dataclasses import replace

from sluice.clickhouse.capabilities import Capabilities
from sluice.clickhouse.schema import TableFacts
from sluice.config import TableConfiguration
from sluice.core.errors import TransientError
from sluice.core.load_spec import Column
from sluice.ops.doctor_clickhouse import ReplicaLook
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.doctor_tables import TableNeeds, check_table

LINEAGE = (
    Column("_topic", "String"),
    Column("_partition", "UInt32"),
    Column("_offset", "UInt64"),
    Column("_row", "UInt32"),
    Column("_source", "LowCardinality(String)"),
)
FACTS = TableFacts(
    url="http://one:8123",
    database="shop",
    table="orders",
    uuid="",
    engine="ReplicatedMergeTree",
    engine_full="",
    columns=(Column("id", "UInt64"), *LINEAGE),
    partition_key="",
    sorting_key="id",
    replicated=True,
    zookeeper_path="/orders",
    replicas_total=2,
    replicas_active=2,
    is_readonly=False,
    window_blocks=10_000,
    window_seconds=604_800,
    async_insert=False,
    dependents=(),
)
NEW = Capabilities(
    url="http://one:8123",
    version=(26, 9),
    time_zone="UTC",
    host_name="one",
    settings={
        "insert_deduplication_token": "",
        "deduplicate_blocks_in_dependent_materialized_views": "0",
    },
    locked=frozenset(),
)
OLD = replace(NEW, version=(18, 16, 1), settings={})
NEEDS = TableNeeds(partitions=4, lease_seconds=600, durability="quorum", urls=("a", "b"))
ENTRY = TableConfiguration(
    name="orders",
    target="shop.orders",
    topics=("orders",),
    format="JSONEachRow",
    lineage=True,
    unknown_fields="ignore",
    on_null="dead-letter",
    on_error="stop-partition",
)


def plain(**changes: object) -> TableFacts:
    facts = replace(
        FACTS,
        engine="MergeTree",
        replicated=False,
        zookeeper_path="",
        replicas_total=1,
        replicas_active=1,
        window_seconds=None,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def bad(found: Examination) -> dict[str, Finding]:
    for finding in found.findings:
        assert (finding.level == "ok") == (finding.fix == ""), finding
    return {finding.check: finding for finding in found.findings if finding.level != "ok"}


def table(
    facts: TableFacts = FACTS, capabilities: Capabilities = NEW, **needs: object
) -> dict[str, Finding]:
    """The findings that are not ok, by check; asserts that everything else is in order."""
    found = Examination("here")
    check_table(found, facts, capabilities, replace(NEEDS, **needs))  # type: ignore[arg-type]
    return bad(found)


def look(shard: str, url: str, facts: TableFacts | None = FACTS, zone: str = "UTC") -> ReplicaLook:
    if facts is None:
        return ReplicaLook(shard, url, away=TransientError("refused", "Start it."))
    found = ReplicaLook(shard, url, capabilities=replace(NEW, url=url, time_zone=zone))
    found.tables["shop", "orders"] = replace(facts, url=url)
    return found
