"""What `doctor` asks of servers taken together: enough of them, and all alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.clickhouse.schema import TableFacts
from sluice.config.model import Durability
from sluice.ops.doctor_clickhouse import ReplicaLook
from sluice.ops.doctor_findings import Examination, Finding


def check_contact(looks: Sequence[ReplicaLook], durability: Durability) -> list[Finding]:
    """Servers that do not answer: an error where the others of the shard are not enough.

    Blocks go to a shard's first server, so that one has to answer in any case.
    """
    findings: list[Finding] = []
    needed = 2 if durability == "quorum" else 1
    first: set[str] = set()
    for look in looks:
        is_first = look.shard not in first
        first.add(look.shard)
        if look.away is None:
            continue
        found = Examination(look.where)
        answering = sum(1 for other in looks if other.shard == look.shard and other.away is None)
        what = f"cannot be reached: {look.away.message}"
        if is_first or answering < needed:
            found.error("clickhouse", what, look.away.hint)
        else:
            found.warning("clickhouse", what, look.away.hint)
        findings += found.findings
    return findings


def check_differences(looks: Sequence[ReplicaLook]) -> list[Finding]:
    """Whatever decides rows is the same on all servers; replicas are of one table (C9)."""
    findings = _check_zones(looks)
    for name in sorted({name for look in looks for name in look.tables}):
        found = Examination(".".join(name))
        tables = [(look.shard, look.tables[name]) for look in looks if name in look.tables]
        for other in tables[1:]:
            _compare(found, tables[0][1], other[1])
        for shard in sorted({shard for shard, _ in tables}):
            _check_paths(found, [facts for other, facts in tables if other == shard])
        if len(tables) > 1:
            shards = len({shard for shard, _ in tables})
            among = f" in {shards} shards" if shards > 1 else ""
            found.ok("same-table", f"{len(tables)} servers{among} describe it alike")
        findings += found.findings
    return findings


def _check_zones(looks: Iterable[ReplicaLook]) -> list[Finding]:
    zones = {
        look.url: look.capabilities.time_zone for look in looks if look.capabilities is not None
    }
    if len(set(zones.values())) < 2:
        return []
    found = Examination("[clickhouse] shards")
    found.error(
        "time-zone",
        f"servers have different time zones: {', '.join(f'{u}: {z}' for u, z in zones.items())}",
        "Set the same <timezone> on all servers: DateTime strings mean it.",
    )
    return found.findings


def _compare(found: Examination, known: TableFacts, other: TableFacts) -> None:
    for what, left, right in (
        ("columns", known.columns, other.columns),
        ("partition key", known.partition_key, other.partition_key),
        ("sorting key", known.sorting_key, other.sorting_key),
    ):
        if left != right:
            found.error(
                "same-table",
                f"has another {what} on {other.url} than on {known.url}",
                "Give the table the same definition on all servers.",
            )


def _check_paths(found: Examination, replicas: Sequence[TableFacts]) -> None:
    paths = sorted({facts.zookeeper_path for facts in replicas if facts.replicated})
    if len(paths) > 1:
        found.error(
            "same-table",
            f"servers of one shard hold replicas of different tables: {', '.join(paths)}",
            "Name only servers whose replicas share one zookeeper_path in a shard.",
        )
