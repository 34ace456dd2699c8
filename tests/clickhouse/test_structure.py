"""One query for the structure of all tables, on each real server."""

from __future__ import annotations

from sluice.clickhouse.capabilities import read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import (
    Identities,
    Structure,
    describe_table,
    read_identities,
    read_structures,
)


def test_the_structure_is_what_the_description_says(server: Server, database: str) -> None:
    for table, columns in (
        ("one", "id UInt64, d Date DEFAULT toDate(id), m UInt64 MATERIALIZED id * 2"),
        ("it's two", "id UInt64, d Date, a UInt64 ALIAS id + 1, n Nullable(String)"),
    ):
        server.execute(
            f"CREATE TABLE {database}.`{table}` ({columns}) ENGINE = MergeTree "
            "PARTITION BY toYYYYMM(d) ORDER BY (id, d)"
        )
    names = [(database, "one"), (database, "it's two"), (database, "missing")]
    found = read_structures(server, names)
    assert set(found) == set(names[:2])
    for name in names[:2]:
        facts = describe_table(server, *name)
        zone = read_capabilities(server).time_zone
        uuid = facts.uuid if facts.uuid.strip("0-") else ""
        keys = facts.partition_key, facts.sorting_key
        assert found[name] == Structure(facts.columns, *keys, uuid, zone)
        known = {facts.target: uuid}
        assert read_identities(server, [name]) == Identities(zone, known)
        assert dict(facts.own_uuids()) == (known if uuid else {})
    server.execute(f"ALTER TABLE {database}.one ADD COLUMN x String DEFAULT 'a' AFTER id")
    altered = read_structures(server, names)
    assert altered[names[0]] != found[names[0]] and altered[names[1]] == found[names[1]]
    assert [column.name for column in altered[names[0]].columns] == ["id", "x", "d", "m"]
    assert read_structures(server, []) == {}
