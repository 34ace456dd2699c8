"""What `doctor` asks where events are deduplicated: the store of claims, and tables from whose rows
lost claims are made again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

from sluice.claims.port import StoreFacts
from sluice.claims.stores import open_store
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.system import said_of_table
from sluice.clickhouse.vanishing import why_rows_go
from sluice.config import Configuration, TableConfiguration
from sluice.core.claim_notes import other_leases
from sluice.core.claims import Deduplicate
from sluice.core.errors import SluiceError
from sluice.core.load_spec import SOURCE, lacking_lineage
from sluice.driver.probing import why_no_probe
from sluice.driver.shards import on_shard
from sluice.driver.specs import add_lineage_statement, lineage_columns, store_access
from sluice.machine.clock import now_ms
from sluice.ops.doctor_findings import Examination, Finding

#: What a claim takes, where the store has too few to tell.
_CLAIM_BYTES = 100
_CLAIMS_TO_TELL = 100_000
_FULL_SHARE = 0.9
_INTERVAL = re.compile(
    r"(?:toInterval(?P<unit>[A-Z][a-z]+)\((?P<count>[0-9]+)\)"
    r"|INTERVAL '?(?P<words_count>[0-9]+)'? (?P<words_unit>[A-Z]+))"
)
_SECONDS = {
    "SECOND": 1,
    "MINUTE": 60,
    "HOUR": 3600,
    "DAY": 86_400,
    "WEEK": 7 * 86_400,
    "MONTH": 28 * 86_400,
    "QUARTER": 90 * 86_400,
    "YEAR": 365 * 86_400,
}


def look_at_store(
    configuration: Configuration,
    entries: Iterable[TableConfiguration],
    access: ClickHouseAccess | None,
) -> list[Finding]:
    """Whether claims can be kept, and how well.

    :param access: None: no server is known.
    """
    keyed = [entry for entry in entries if entry.deduplicate is not None]
    if not keyed or configuration.deduplication is None:
        return []
    found = Examination(f"the store of claims {configuration.deduplication.url}")
    try:
        at = store_access(configuration.deduplication)
        with closing(open_store(at)) as store:
            store.run()
            facts, notes = store.facts(), store.notes()
    except SluiceError as error:
        found.refused("claims", error)
        return found.findings
    check_store(found, facts)
    if not at.is_local:  # who uses a local one is gone with its run
        scopes = {configuration.scope_of(entry) for entry in keyed}
        lease_ms = int(configuration.batch.lease_seconds * 1000)
        check_leases(found, other_leases(notes, lease_ms, scopes, now_ms()), lease_ms)
    if access is not None and facts.max_bytes is not None:
        try:
            check_room(found, facts, sum(_recent_rows(configuration, access, e) for e in keyed))
        except SluiceError as error:
            found.failed("claims-room", error)
    return found.findings


def check_store(found: Examination, facts: StoreFacts) -> None:
    """What a store that answers says of itself."""
    keys = "" if facts.keys is None else f", about {facts.keys:,} claims"
    found.ok("claims", f"run {facts.run[:12]}{keys}, {facts.used_bytes:,} bytes")
    if facts.loses:
        found.warning(
            "claims-kept",
            f"it loses with {facts.loses}; claims are then made again from the tables, and "
            "meanwhile entries that deduplicate wait",
            "docs/EVENTS.md says how a store keeps more, and what waiting costs.",
        )
    found.ok("claims-kept", "whatever was answered is kept")


def check_leases(found: Examination, others: Mapping[str, int], lease_ms: int) -> None:
    """Whether all who claim in these scopes have one lease.

    :param others: connectors with another one.
    """
    for connector, other_ms in sorted(others.items()):
        found.warning(
            "claims-lease",
            f"{connector} claims in the same scope with a lease of {other_ms / 1000:g} s, and this "
            f"pipeline's is {lease_ms / 1000:g} s: where the store is emptied, who starts then "
            "waits for its own lease only, and may not know again what the other one inserts later",
            "Give all pipelines that share a scope the same lease in [batch].",
        )
    found.ok("claims-lease", f"{lease_ms / 1000:g} s, as all others who claim there have it")


def check_room(found: Examination, facts: StoreFacts, recent_rows: int) -> None:
    """Whether the claims of a window fit.

    :param recent_rows: that the tables have got within their windows, or more.
    """
    if facts.max_bytes is None:
        return
    is_told = facts.keys is not None and facts.keys >= _CLAIMS_TO_TELL
    each = facts.used_bytes / facts.keys if is_told and facts.keys else _CLAIM_BYTES
    needed = int(recent_rows * each)
    if max(needed, facts.used_bytes) > _FULL_SHARE * facts.max_bytes:
        found.warning(
            "claims-room",
            f"it takes no more than {facts.max_bytes:,} bytes and has {facts.used_bytes:,}; the "
            f"{recent_rows:,} rows that came within the windows have claims of about "
            f"{needed:,} bytes: when it is full, entries that deduplicate wait",
            "Give the store more memory, or the entries a shorter window.",
        )
    found.ok("claims-room", f"{facts.used_bytes:,} of {facts.max_bytes:,} bytes")


def _recent_rows(
    configuration: Configuration, access: ClickHouseAccess, entry: TableConfiguration
) -> int:
    """Rows in parts that are younger than an entry's window."""
    assert entry.deduplicate is not None
    window_seconds = entry.deduplicate.window_seconds

    def ask(server: Server) -> int:
        rows = said_of_table(
            server,
            "SELECT sum(rows) AS n FROM system.parts",
            *(entry.database, entry.table),
            "AND active "
            "AND toUnixTimestamp(modification_time) > toUnixTimestamp(now()) - {window:UInt64}",
            window=window_seconds,
        )
        return int(rows[0]["n"] or 0)

    return sum(on_shard(access, shard, ask) for shard in configuration.shards_of(entry))


def check_deduplicated(found: Examination, facts: TableFacts, entry: TableConfiguration) -> None:
    """Whether lost claims can be made again from this table's rows."""
    if entry.deduplicate is None:
        return
    where = f"table entry {entry.name} deduplicates"
    try:
        lineage = lineage_columns(entry, facts)
    except SluiceError:
        return  # found elsewhere
    lacking = lacking_lineage(lineage, entry.rows)
    if lacking:
        found.error(
            "deduplicate",
            f"{where}, and {facts.target} has no lineage column {', '.join(lacking)}, by which a "
            "row says of which message it is: lost claims could not be made again",
            add_lineage_statement(facts, lacking),
        )
        return
    source = next(column.type for column in facts.columns if column.name == SOURCE)
    if source == "UInt64":
        found.error(
            "deduplicate",
            f"{where}, and {SOURCE} of {facts.target} is UInt64, from which no message can be told",
            f"Load a table whose {SOURCE} is String or LowCardinality(String).",
        )
        return
    why = why_claims_go(facts, entry.deduplicate)
    if why:
        found.warning(
            "deduplicate",
            f"{where}, and {why}: claims whose rows are gone cannot be made again when the store "
            "loses them, and events with their keys are loaded again",
            "Load a plain MergeTree table that keeps its rows for the window, and fill this one by "
            "a view; or keep the store of claims safe.",
        )
    no_probe = why_no_probe(facts, lineage, entry.rows)
    if no_probe:
        found.warning(
            "deduplicate-probe",
            f"{where}, and a range in doubt cannot be looked for, since {no_probe}: where the "
            "store of claims was started again meanwhile, its partition stops for a person",
            "Load a plain MergeTree table with all lineage columns and without views.",
        )
    found.ok("deduplicate", f"{where} by {', '.join(entry.deduplicate.key)}")
    found.ok("deduplicate-probe", "what is in doubt can be looked for")


def why_claims_go(facts: TableFacts, deduplicate: Deduplicate) -> str:
    """Why rows of events within the window may go, by the table's definition; "": they stay. Pure.

    Rows of one key that are merged are no loss: one stays.
    """
    why = why_rows_go(facts) or ""
    if " has a TTL that deletes rows" in why and _shortest_ttl(why) >= deduplicate.window_seconds:
        return ""
    if facts.engine.endswith("ReplacingMergeTree") and " TTL " not in why:
        parts = _sorting_key(facts.sorting_key)
        others = [part for part in deduplicate.key if part not in parts]
        if not others and "deleted rows" not in why:
            return ""
        if others:
            return (
                f"{facts.target} is a {facts.engine}, which keeps one row of each sorting key, "
                f"and its sorting key has no {', '.join(others)}"
            )
    return why


def _sorting_key(text: str) -> Sequence[str]:
    parts = (part.strip(" ()`") for part in text.split(","))
    return [part for part in parts if part]


def _shortest_ttl(text: str) -> float:
    """Seconds of the shortest interval that a rule names; 0 where that cannot be told."""
    found = [
        int(each["count"] or each["words_count"])
        * _SECONDS.get((each["unit"] or each["words_unit"]).upper().removesuffix("S"), 0)
        for each in _INTERVAL.finditer(text)
    ]
    return min(found, default=0.0)
