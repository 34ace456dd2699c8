"""`sluice resolve`: a person says what became of a range in doubt."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.window import read_insert_counter
from sluice.config import Configuration, TableConfiguration
from sluice.core.budget import TargetShard
from sluice.core.errors import TerminalError
from sluice.core.ledger import Background, InsertCounters, Rest, Stored
from sluice.core.load_spec import LoadSpec, parse_spec
from sluice.core.ranges import Range, digest_of_rest
from sluice.core.records import Kind, Record
from sluice.driver.parking import known_rest
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber, DoubledRowsError
from sluice.driver.shards import on_shard
from sluice.driver.specs import access_of, kafka_access
from sluice.ops.deciding import (
    Decided,
    DecisionRefusedError,
    Plan,
    Situation,
    decided,
    finished_plan,
    read_situation,
    refuse_outside_log,
    settle,
    shown_state,
    with_owner,
)
from sluice.ops.partitions import PartitionFacts

Outcome = Literal["loaded", "not-loaded", "probe"]

_PROBE_SECONDS_MAX = 600.0
_LOOK = "Look into the tables, then `sluice resolve --as loaded` or `--as not-loaded`."


def plan_resolve(
    configuration: Configuration,
    *,
    connector: str,
    topic: str,
    partitions: Sequence[int],
    take_over: bool,
    outcome: Outcome,
) -> Plan:
    """Decide ranges in doubt.

    * loaded: the range is settled as it is; its dead letters are not written.
    * not-loaded: the whole range is loaded, under a token of its own.
    * probe: the tables are looked at now, and what is missing is loaded.

    :raises DecisionRefusedError: a partition has no range in doubt that this could decide.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    :raises SluiceError: ClickHouse cannot be read, or cannot tell what is missing.
    """
    situation = read_situation(configuration, connector, topic, partitions, take_over)
    decisions: list[Decided] = []
    steps: list[str] = []
    for facts in situation.partitions:
        record = _in_doubt(facts)
        refuse_outside_log(facts, record.end)
        if outcome == "loaded":
            decision, said = _as_loaded(situation, facts, record, "resolve --as loaded")
        else:
            refuse_outside_log(facts, record.begin)
            decide = _as_not_loaded if outcome == "not-loaded" else _as_probed
            decision, said = decide(situation, facts, record)
        decisions.append(decision)
        steps += said
    return finished_plan(situation, decisions, steps, "the range is decided")


def _in_doubt(facts: PartitionFacts) -> Record:
    """:raises DecisionRefusedError: this partition has no range in doubt."""
    record = facts.record
    if record is None or not facts.agrees or record.topic_id != facts.topic_id:
        raise DecisionRefusedError(
            f"{facts.source}: the group holds {shown_state(facts)}, which is not the ledger's last "
            "record of this topic",
            "`sluice adopt --offset N` goes on from any offset.",
        )
    if not record.in_doubt:
        raise DecisionRefusedError(
            f"{facts.source} is {shown_state(facts)}: no range is in doubt",
            "`sluice run` goes on from there; `sluice rewind` loads again.",
        )
    return record


def _as_loaded(
    situation: Situation, facts: PartitionFacts, record: Record, why: str
) -> tuple[Decided, list[str]]:
    source = facts.source
    decision = settle(situation, facts, record.end, why)
    return decision, [
        f"{source}: from {shown_state(facts)} to settled at {record.end}; what of "
        f"[{record.begin}, {record.end}) is not in the tables is never loaded",
        f"{source}: dead letters of [{record.begin}, {record.end}) are not written",
    ]


def _as_not_loaded(
    situation: Situation, facts: PartitionFacts, record: Record
) -> tuple[Decided, list[str]]:
    source, whole = facts.source, (record.begin, record.end)
    configured = situation.configuration.tables_of(source.topic)
    recorded = _recorded_spec(situation, record)
    entries = {table.name for table in configured}
    if recorded is not None:
        entries |= {table.entry for table in recorded.tables_of(source.topic)}
    rest: Rest = dict.fromkeys(sorted(entries), (whole,))
    decision = _as_rest(situation, facts, record, rest, "resolve --as not-loaded")
    targets = ", ".join(sorted({table.target for table in configured}))
    return decision, [
        f"{source}: {shown_state(facts)} stays to be loaded, wholly, under a token of its own; "
        f"rows of it that are in {targets} after all are doubled"
    ]


def _as_probed(
    situation: Situation, facts: PartitionFacts, record: Record
) -> tuple[Decided, list[str]]:
    source = facts.source
    probed = _missing(situation, facts, record)
    rest = probed.rest
    found = ", ".join(f"{entry}: {_shown(rest[entry])}" for entry in sorted(rest))
    said = [f"{source}: probed [{record.begin}, {record.end}); without a row are: {found}"]
    if not any(rest.values()):
        decision, more = _as_loaded(situation, facts, record, "resolve --as probe: nothing missing")
        return decision, [*said, *more]
    decision = _as_rest(situation, facts, record, rest, "resolve --as probe", probed.stored)
    return decision, [
        *said,
        f"{source}: {shown_state(facts)} stays to be loaded, but only those offsets, under a "
        "token of their own; those that are no message, or a bad one, make no row",
    ]


def _as_rest(
    situation: Situation,
    facts: PartitionFacts,
    record: Record,
    rest: Rest,
    why: str,
    stored: Stored | None = None,
) -> Decided:
    """A probe's record. Its deadline is 0: nobody was ever allowed to insert for it, and the
    next driver renews it before it is loaded."""
    attempt = record.attempt + 1
    probe = replace(
        with_owner(record, situation),
        kind=Kind.PROBE,
        attempt=attempt,
        deadline_ms=0,
        rest=digest_of_rest(rest, attempt, stored),
        bundle="",
    )
    background = Background(
        insert_counters=_insert_counters(situation, facts),
        since_ms=situation.now_ms,
        rest=rest,
        bytes_max=facts.background.bytes_max or situation.configuration.batch.range_bytes_max,
        stored=stored or {},
    )
    return decided(situation, facts, probe, background, why)


def _recorded_spec(situation: Situation, record: Record) -> LoadSpec | None:
    canonical = situation.view.specs.get(record.spec)
    try:
        return None if canonical is None else parse_spec(canonical)
    except TerminalError:
        return None


def _insert_counters(situation: Situation, facts: PartitionFacts) -> InsertCounters:
    """The windows' insert counters now.

    :raises SluiceError: a shard does not answer.
    """
    configuration = situation.configuration
    access = access_of(configuration)
    insert_counters: InsertCounters = {}
    for shard in access.shards:
        tables = [
            table
            for table in configuration.tables_of(facts.source.topic)
            if shard in configuration.shards_of(table) and table.delivery == "block"
        ]

        def read(server: Server, tables: Sequence[TableConfiguration] = tables) -> list[int]:
            return [
                read_insert_counter(server, describe_table(server, table.database, table.table))
                for table in tables
            ]

        if tables:
            for table, insert_counter in zip(tables, on_shard(access, shard, read), strict=True):
                insert_counters[TargetShard(table.name, shard).key] = insert_counter
    return insert_counters


def _missing(situation: Situation, facts: PartitionFacts, record: Record) -> ProbeFound:
    """What a probe finds missing, by table entry.

    :raises SluiceError: it cannot tell.
    """
    spec = _recorded_spec(situation, record)
    if spec is None:
        raise DecisionRefusedError(
            f"{facts.source}: the load spec {record.spec} of the range in doubt is not in "
            "the ledger, so its tables are not known",
            _LOOK,
        )
    block_range = Range(facts.source, record.begin, record.end)
    answers: queue.SimpleQueue[ProbeEnded] = queue.SimpleQueue()
    configuration = situation.configuration
    kafka = kafka_access(configuration, situation.connector)
    prober = ClickHouseProber(access_of(configuration), configuration.pipeline, kafka)
    try:
        known = known_rest(spec, block_range, facts.background.rest)
        since_ms = facts.background.since_ms
        parted = {t.entry for t in spec.tables_of(facts.source.topic) if t.partition_key}
        in_parts = parted | facts.background.stored.keys()
        sought = Sought(block_range, record, known, facts.background.stored, in_parts)
        prober.submit([sought], spec, since_ms, answers.put)
        (found,) = answers.get(timeout=_PROBE_SECONDS_MAX).found
    except queue.Empty:
        raise DecisionRefusedError(
            f"probing {block_range} takes more than {_PROBE_SECONDS_MAX:.0f} s",
            _LOOK,
        ) from None
    finally:
        prober.close()
    if found.error is not None:
        if isinstance(found.error, TerminalError) and not isinstance(found.error, DoubledRowsError):
            found.error.hint = _LOOK
        raise found.error
    return found


def _shown(intervals: Sequence[tuple[int, int]]) -> str:
    """Offsets in words; the first few intervals, and how many there are in all."""
    if not intervals:
        return "none"
    count = sum(end - begin for begin, end in intervals)
    first = " ".join(f"[{begin}, {end})" for begin, end in intervals[:3])
    return f"{count} offsets, {first}{' …' if len(intervals) > 3 else ''}"
