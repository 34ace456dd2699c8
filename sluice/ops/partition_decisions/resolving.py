"""What became of a range in doubt, where neither a replay nor a probe of a driver can tell."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from sluice.clickhouse.access import ClickHouseAccess
from sluice.config import Configuration
from sluice.core.decided import closed_shards
from sluice.core.errors import TerminalError
from sluice.core.ledger import Background, Rest, Stored
from sluice.core.load_spec import LoadSpec, parse_spec
from sluice.core.ranges import Range, digest_of_rest
from sluice.core.records import Kind, Record
from sluice.driver.freezing import what_holds
from sluice.driver.parking import known_rest
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber, DoubledRowsError
from sluice.driver.specs import access_of, kafka_access
from sluice.ops.driver_decisions import DecisionRefusedError, read_decided
from sluice.ops.partition_decisions.situation import (
    NOBODY,
    Decided,
    Decider,
    OnePartition,
    PartitionSelection,
    Plan,
    Situation,
    read_situation,
)

Outcome = Literal["loaded", "not-loaded", "probe"]

_PROBE_SECONDS_MAX = 600.0
_LOOK = "Look into the tables, then `sluice resolve --as loaded` or `--as not-loaded`."


def plan_resolve(
    configuration: Configuration,
    selection: PartitionSelection,
    *,
    outcome: Outcome,
    decider: Decider = NOBODY,
) -> Plan:
    """Decide ranges in doubt.

    * loaded: the range is settled as it is; its dead letters are not written.
    * not-loaded: the whole range is loaded, under a token of its own.
    * probe: the tables are looked at now, and what is missing is loaded. Not while any of them is
      frozen (R23).

    :raises DecisionRefusedError: a partition has no range in doubt that this could decide.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    :raises SluiceError: ClickHouse cannot be read, or cannot tell what is missing.
    """
    situation = read_situation(configuration, selection, decider)
    decisions: list[Decided] = []
    steps: list[str] = []
    records = [each.agreed_record() for each in situation.partitions]
    _refuse_settled(situation.partitions)
    for each, record in zip(situation.partitions, records, strict=True):
        each.require_in_log(record.end)
        if outcome != "loaded":
            each.require_in_log(record.begin)
        decision, said = _DECIDED[outcome](each, record)
        decisions.append(decision)
        steps += said
    return situation.planned(decisions, steps, "the range is decided")


def _refuse_settled(partitions: Sequence[OnePartition]) -> None:
    """:raises DecisionRefusedError: it names all of those that have no range in doubt."""
    settled = [each for each in partitions if (r := each.facts.record) and not r.in_doubt]
    if not settled:
        return
    hint = "`sluice run` goes on from there; `sluice rewind` loads again."
    if len(settled) < len(partitions):
        numbers = " ".join(str(each.source.partition) for each in settled)
        hint = f"Leave out --partition {numbers}: the others can be decided. {hint}"
    states = "; ".join(f"{each.source} is {each.state}" for each in settled)
    raise DecisionRefusedError(f"{states}: no range is in doubt", hint)


def _as_loaded(one: OnePartition, record: Record) -> tuple[Decided, list[str]]:
    source = one.source
    return one.settled_at(record.end, "resolve --as loaded"), [
        f"{source}: from {one.state} to settled at {record.end}; what of "
        f"[{record.begin}, {record.end}) is not in the tables is never loaded",
        f"{source}: dead letters of [{record.begin}, {record.end}) are not written",
    ]


def _as_not_loaded(one: OnePartition, record: Record) -> tuple[Decided, list[str]]:
    source = one.source
    configured = one.situation.configuration.tables_of(source.topic)
    recorded = _recorded_spec(one.situation, record)
    then = () if recorded is None else recorded.tables_of(source.topic)
    targets = {table.target for table in configured} | {table.target for table in then}
    said = [
        f"{source}: {one.state} stays to be loaded, wholly, under a token of its own; "
        f"rows of it that are in {', '.join(sorted(targets))} after all are doubled"
    ]
    retired = sorted({table.entry for table in then} - {table.name for table in configured})
    if retired:
        said.append(
            f"{source}: table entry {', '.join(retired)} is not configured any more, and gets rows "
            "only if its table still is what the range was recorded for"
        )
    # It names no table entries: those that it goes to are of the load spec that can be executed.
    return _as_rest(one, record, {}, "resolve --as not-loaded"), said


def _as_probed(one: OnePartition, record: Record) -> tuple[Decided, list[str]]:
    source = one.source
    probed = _missing(one, record)
    rest = probed.rest
    found = ", ".join(f"{entry}: {_shown(rest[entry])}" for entry in sorted(rest))
    said = [f"{source}: probed [{record.begin}, {record.end}); without a row are: {found}"]
    decision = _as_rest(one, record, rest, "resolve --as probe", probed.stored)
    if any(rest.values()):
        how = (
            "only those offsets, under a token of their own; those that are no message, or a bad "
            "one, make no row"
        )
    else:
        how = "nothing of it makes a row; it settles with its dead letters"
    return decision, [*said, f"{source}: {one.state} stays to be loaded, but {how}"]


def _as_rest(
    one: OnePartition, record: Record, rest: Rest, why: str, stored: Stored | None = None
) -> Decided:
    """A probe's record. Its deadline is 0: nobody was ever allowed to insert for it, and the
    next driver renews it before it is loaded, with the windows' insert counters of then.

    :param rest: {}: all of the range, for each table entry that it is loaded into then.
    """
    attempt = record.attempt + 1
    probe = replace(
        one.taken(record),
        kind=Kind.PROBE,
        attempt=attempt,
        deadline_ms=0,
        rest=digest_of_rest(rest, attempt, stored),
        bundle="",
    )
    batch = one.situation.configuration.batch
    background = Background(
        since_ms=one.situation.now_ms,
        rest=rest,
        bytes_max=one.facts.background.bytes_max or batch.range_bytes_max,
        stored=stored or {},
    )
    return one.decided(probe, background, why)


_DECIDED = {"loaded": _as_loaded, "not-loaded": _as_not_loaded, "probe": _as_probed}


def _recorded_spec(situation: Situation, record: Record) -> LoadSpec | None:
    canonical = situation.view.specs.get(record.spec)
    try:
        return None if canonical is None else parse_spec(canonical)
    except TerminalError:
        return None


def _missing(one: OnePartition, record: Record) -> ProbeFound:
    """What a probe finds missing, by table entry.

    :raises SluiceError: it cannot tell.
    """
    facts, situation = one.facts, one.situation
    spec = _recorded_spec(situation, record)
    if spec is None:
        raise DecisionRefusedError(
            f"{one.source}: the load spec {record.spec} of the range in doubt is not in "
            "the ledger, so its tables are not known",
            _LOOK,
        )
    block_range = Range(one.source, record.begin, record.end)
    answers: queue.SimpleQueue[ProbeEnded] = queue.SimpleQueue()
    configuration = situation.configuration
    kafka = kafka_access(configuration, situation.connector)
    access = access_of(configuration)
    _refuse_frozen(one, spec, access)
    prober = ClickHouseProber(access, configuration.pipeline, kafka)
    try:
        known = known_rest(spec, block_range, facts.background.rest)
        since_ms = facts.background.since_ms
        parted = {t.entry for t in spec.tables_of(one.source.topic) if t.partition_key}
        in_parts = parted | facts.background.stored.keys()
        parkable = {t.name for t in configuration.tables if t.on_error == "park"}
        sought = Sought(block_range, record, known, facts.background.stored, in_parts, parkable)
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
    _refuse_frozen(one, spec, access)  # meanwhile
    return found


def _refuse_frozen(one: OnePartition, spec: LoadSpec, access: ClickHouseAccess) -> None:
    """:raises DecisionRefusedError: a person may be at the tables, or at one of their servers."""
    situation = one.situation
    standing = read_decided(situation.configuration, situation.connector).frozen
    closed = closed_shards(standing, access.shards, in_part=True)
    holding = what_holds(standing, spec.tables_of(one.source.topic), closed)
    if holding:
        raise DecisionRefusedError(
            f"{'; '.join(each.line() for each in holding)}: {one.source} is not probed before it "
            "is resumed, since what is taken away for a while would count as missing",
            "`sluice resume` it first; or, if you know what is in the tables, `sluice resolve --as "
            "loaded` or `--as not-loaded`.",
        )


def _shown(intervals: Sequence[tuple[int, int]]) -> str:
    """Offsets in words; the first few intervals, and how many there are in all."""
    if not intervals:
        return "none"
    count = sum(end - begin for begin, end in intervals)
    first = " ".join(f"[{begin}, {end})" for begin, end in intervals[:3])
    return f"{count} offsets, {first}{' …' if len(intervals) > 3 else ''}"
