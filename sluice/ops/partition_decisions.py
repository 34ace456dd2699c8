"""The decisions about partitions that only a person takes. Each plans first; `apply` carries a plan
out.

* resolve: what became of a range in doubt, where neither a replay nor a probe can tell.
* adopt: go on from an offset, after a foreign commit, lost offsets, a truncated log or a
  re-created topic.
* rewind: load again from an offset or a time.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal
from uuid import uuid4

from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.core.decided import why_not_said
from sluice.core.errors import ConfigurationError, TerminalError, TransientError
from sluice.core.lease import has_expired
from sluice.core.ledger import (
    Background,
    Commit,
    CommittedOffset,
    CommittedOffsets,
    LedgerEntry,
    LedgerView,
    Rest,
    Stored,
    late_insert_entry,
    record_entry,
)
from sluice.core.load_spec import LoadSpec, parse_spec
from sluice.core.moments import shown_time
from sluice.core.ranges import Range, TopicPartition, digest_of_rest
from sluice.core.records import GENESIS, OPERATOR_PREFIX, Kind, Record
from sluice.core.topics import is_other_topic
from sluice.driver.parking import known_rest
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber, DoubledRowsError
from sluice.driver.redirecting import PartitionBusyError
from sluice.driver.shards import on_shard
from sluice.driver.specs import access_of, kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.offsets import look, owner_in, shown
from sluice.kafka.recorder import Recorder
from sluice.kafka.topics import ensure_own_topic
from sluice.kafka.transactions import RecorderNames
from sluice.machine.clock import now_ms
from sluice.ops.driver_decisions import DecisionRefusedError
from sluice.ops.partitions import OPEN_PATIENCE_SECONDS, ConnectorReader, PartitionFacts

_logger = logging.getLogger("sluice.decisions")


class LeaseRunsError(TerminalError):
    """Tasks of the owner may still insert."""

    hint = (
        "Stop that driver and wait until then; or add --take-over if you know that none of its "
        "tasks runs any more."
    )


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decides, and why; the ledger has it.

    :param owner: the owner id of the driver that runs and records it itself; "": it is recorded
        under an id of its own, and whoever runs is fenced.
    """

    by: str = ""
    why: str = ""
    owner: str = ""

    def said(self, decision: str) -> str:
        """What the ledger says of a decision."""
        return f"{decision}, by {self.by}: {self.why}" if self.by else decision


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """What is decided about.

    :param take_over: even while tasks of the owner may insert.
    """

    connector: str
    topic: str
    partitions: Sequence[int]
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class Decided:
    """What becomes of one partition.

    :param found: what the group held when this was planned; must still be so.
    :param owner: under whose id the record is committed (R4).
    :param entries: for the ledger, in the same transaction.
    """

    source: TopicPartition
    found: CommittedOffset | None
    owner: str
    record: Record
    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision that was thought through and not yet carried out.

    :param operator: owner id of the records; who runs next takes over from it.
    :param steps: sentences that say all of it.
    """

    connector: str
    operator: str
    decided: tuple[Decided, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision is made upon.

    :param now_ms: by this machine's clock or a server's, whichever is behind.
    :param is_alone: leases ran, and no server says whether they are over.
    """

    configuration: Configuration
    connector: str
    reader: ConnectorReader
    view: LedgerView
    partitions: tuple[PartitionFacts, ...]
    operator: str
    now_ms: int
    is_alone: bool
    decider: Decider


def read_situation(
    configuration: Configuration,
    selection: PartitionSelection,
    decider: Decider,
) -> Situation:
    """Read the partitions, and refuse what no decision may touch.

    :raises ConfigurationError: the connector is not configured, or does not have this topic.
    :raises DecisionRefusedError: there is no such partition, or it is not said who decides.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    :raises TransientError: a transaction on one of them is open.
    """
    wrong = why_not_said(decider.by, decider.why) if decider != Decider() else None
    if wrong is not None:
        raise DecisionRefusedError(f"it is refused: {wrong}", "Say who decides, and why.")
    connector, topic = selection.connector, selection.topic
    configured = configuration.connector(connector)
    if not configuration.reads(configured.name, topic):
        raise ConfigurationError(
            f'{configuration.path}: connector[{configured.name}].topics: "{topic}"'
            " is not among them",
            f"Name one of: {', '.join(configured.topics) or configured.topic_pattern}.",
        )
    reader = ConnectorReader(configuration, connector)
    topic_id, count = reader.partitions()[topic]
    sources = [TopicPartition(topic, number) for number in sorted(set(selection.partitions))]
    for source in sources:
        if source.partition >= count:
            raise DecisionRefusedError(
                f"there is no {source}: topic {topic} of connector {connector} has {count} "
                "partitions",
                f"Name partitions from 0 to {count - 1}.",
            )
    view = reader.ledger(sources)
    facts = reader.facts(sources, {topic: topic_id}, view)
    now, is_alone = now_ms(), False
    if any(record.in_doubt and record.deadline_ms for item in facts for record in item.records):
        said_ms = servers_clock_ms(configuration)
        now, is_alone = min(now, said_ms or now), said_ms is None
    for item in facts:
        if item.is_open:
            raise TransientError(
                f"{item.source}: a transaction on group {reader.group} is open",
                "Stop the driver; the broker ends what it left open after a minute. Then run "
                "the command again.",
            )
        running = running_lease(item, now)
        if running is not None and not selection.take_over:
            raise LeaseRunsError(
                f"{item.source}: the lease of {running.owner} on [{running.begin}, {running.end}) "
                f"runs until {shown_time(running.deadline_ms)}: its tasks may still insert",
                PartitionBusyError.hint if decider.owner else None,
            )
    operator = decider.owner or f"{OPERATOR_PREFIX}{uuid4().hex[:8]}"
    known = configuration, connector, reader, view, tuple(facts), operator
    return Situation(*known, now, is_alone, decider)


def servers_clock_ms(configuration: Configuration) -> int | None:
    """The clock of the first server that answers, by which whoever inserts goes, too: this machine
    may be one whose clock is ahead. None: no server answers.

    :raises ConfigurationError: see `sluice.driver.specs.access_of`.
    """

    def ask(server: Server) -> int | None:
        server.ping()
        return server.clock_ms()

    with suppress(TransientError):
        access = access_of(configuration)
        for shard in access.shards:
            with suppress(TransientError):
                if (said_ms := on_shard(access, shard, ask)) is not None:
                    return said_ms
    return None


def running_lease(facts: PartitionFacts, now: int) -> Record | None:
    """A record under which somebody may still insert."""
    for record in facts.records:
        if record.in_doubt and not has_expired(record.deadline_ms, now):
            return record
    return None


def refuse_outside_log(facts: PartitionFacts, offset: int) -> None:
    """:raises DecisionRefusedError: the log neither holds this offset nor ends there."""
    held = f"the log of {facts.source} holds [{facts.log_begin}, {facts.stable_end})"
    if offset < facts.log_begin:
        raise DecisionRefusedError(
            f"offset {offset} is gone: {held}",
            f"The first offset that can be loaded is {facts.log_begin}.",
        )
    if offset > facts.stable_end:
        raise DecisionRefusedError(
            f"offset {offset} is not there yet: {held}",
            f"The largest offset to go on from is {facts.stable_end}.",
        )


def recorded_end(facts: PartitionFacts) -> int | None:
    """The end of everything that the last records speak about; None without any."""
    return max((record.end for record in facts.records), default=None)


def generation_at(facts: PartitionFacts, offset: int) -> int:
    """The generation under which rows from this offset on are loaded.

    The recorded one if nothing from here on was ever recorded. Else the next one: rows of
    these offsets may be in the tables, under tokens that must not swallow the new blocks.
    """
    end = recorded_end(facts)
    generation = max((record.generation for record in facts.records), default=0)
    return generation if end is None or offset >= end else generation + 1


def settle(situation: Situation, facts: PartitionFacts, offset: int, why: str) -> Decided:
    """Settle a partition at an offset; the next range begins there."""
    known = facts.record or facts.last
    record = Record(
        kind=Kind.SETTLE,
        batch=max((record.batch for record in facts.records), default=0) + 1,
        attempt=0,
        begin=offset,
        end=offset,
        owner=situation.operator,
        generation=generation_at(facts, offset),
        topic_id=facts.topic_id,
        spec="" if known is None else known.spec,
        reservation=0,
        deadline_ms=0,
    )
    return decided(situation, facts, record, Background(since_ms=situation.now_ms), why)


def decided(
    situation: Situation,
    facts: PartitionFacts,
    record: Record,
    background: Background,
    why: str,
) -> Decided:
    """A decision with its ledger entries; a lease that still runs stays on the books, so that
    the window's budget counts what its tasks may yet insert (R10)."""
    entries = [record_entry(facts.source, record, background, situation.decider.said(why))]
    running = running_lease(facts, situation.now_ms)
    if running is not None:
        late = Range(facts.source, running.begin, running.end)
        entries.append(
            late_insert_entry(late, running.deadline_ms, facts.background.insert_counters)
        )
    owner = next((record.owner for record in facts.records), GENESIS)
    return Decided(facts.source, facts.found, owner, record, tuple(entries))


def finished_plan(
    situation: Situation, decisions: Sequence[Decided], steps: Sequence[str], verb: str
) -> Plan:
    """The plan, with what it means for those who may run now."""
    if situation.is_alone:
        alone = (
            "no ClickHouse server answers: only this machine's clock says which leases are over. "
            "If it is ahead, tasks may still insert, and rows may be doubled"
        )
        steps = (*steps, alone)
    if situation.decider.owner:
        last = "the driver that runs records it, and goes on from there by itself"
        return Plan(situation.connector, situation.operator, tuple(decisions), (*steps, last))
    owners = sorted({each.owner for each in decisions} - {GENESIS})
    whoever = f"a driver that still runs as {' or '.join(owners)}" if owners else "a running driver"
    last = (
        f"{whoever} is fenced; if it still works on {'these' if len(decisions) > 1 else 'this'} "
        f"partition{'s' if len(decisions) > 1 else ''} it ends with status 4. "
        f"Restart `sluice run` to go on."
    )
    late = [
        f"{item.source}: tasks of {running.owner} may still insert [{running.begin}, "
        f"{running.end}) until {shown_time(running.deadline_ms)}; {verb} nevertheless, since "
        "--take-over is given. If one does, its rows may be doubled"
        for item in situation.partitions
        if (running := running_lease(item, situation.now_ms)) is not None
    ]
    return Plan(situation.connector, situation.operator, tuple(decisions), (*steps, *late, last))


def with_owner(record: Record, situation: Situation) -> Record:
    """The record as the operator's."""
    return replace(record, owner=situation.operator, batch=record.batch + 1)


def shown_state(facts: PartitionFacts) -> str:
    """What the group holds, as the beginning of a sentence about a change."""
    record = facts.record
    if record is None and facts.found is not None:
        return f"offset {facts.found.offset} that someone else committed"
    if record is None:
        if facts.last is None:
            return "no offset" if facts.recorded is None else "no offset, though the ledger has one"
        return f"no offset (the ledger's last record: {shown_record(facts.last)})"
    return shown_record(record)


def shown_record(record: Record) -> str:
    """A record in words."""
    if record.in_doubt:
        return f"[{record.begin}, {record.end}) in doubt"
    return f"settled at {record.begin}"


Outcome = Literal["loaded", "not-loaded", "probe"]

_PROBE_SECONDS_MAX = 600.0
_LOOK = "Look into the tables, then `sluice resolve --as loaded` or `--as not-loaded`."


def plan_resolve(
    configuration: Configuration,
    selection: PartitionSelection,
    *,
    outcome: Outcome,
    decider: Decider = Decider(),
) -> Plan:
    """Decide ranges in doubt.

    * loaded: the range is settled as it is; its dead letters are not written.
    * not-loaded: the whole range is loaded, under a token of its own.
    * probe: the tables are looked at now, and what is missing is loaded.

    :raises DecisionRefusedError: a partition has no range in doubt that this could decide.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    :raises SluiceError: ClickHouse cannot be read, or cannot tell what is missing.
    """
    situation = read_situation(configuration, selection, decider)
    decisions: list[Decided] = []
    steps: list[str] = []
    records = [_last_record(facts) for facts in situation.partitions]
    _refuse_settled(situation.partitions)
    for facts, record in zip(situation.partitions, records, strict=True):
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


def _is_other_topic(record: Record, facts: PartitionFacts) -> bool:
    return is_other_topic(record.topic_id, facts.topic_id)


def _last_record(facts: PartitionFacts) -> Record:
    """:raises DecisionRefusedError: group and ledger do not agree about it, or it is of another
    topic."""
    record = facts.record
    if record is None or not facts.agrees or _is_other_topic(record, facts):
        raise DecisionRefusedError(
            f"{facts.source}: the group holds {shown_state(facts)}, which is not the ledger's last "
            "record of this topic",
            "`sluice adopt --offset N` goes on from any offset.",
        )
    return record


def _refuse_settled(partitions: Sequence[PartitionFacts]) -> None:
    """:raises DecisionRefusedError: it names all of those that have no range in doubt."""
    settled = [each for each in partitions if each.record and not each.record.in_doubt]
    if not settled:
        return
    hint = "`sluice run` goes on from there; `sluice rewind` loads again."
    if len(settled) < len(partitions):
        numbers = " ".join(str(each.source.partition) for each in settled)
        hint = f"Leave out --partition {numbers}: the others can be decided. {hint}"
    states = "; ".join(f"{each.source} is {shown_state(each)}" for each in settled)
    raise DecisionRefusedError(f"{states}: no range is in doubt", hint)


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
    source = facts.source
    configured = situation.configuration.tables_of(source.topic)
    recorded = _recorded_spec(situation, record)
    then = () if recorded is None else recorded.tables_of(source.topic)
    targets = {table.target for table in configured} | {table.target for table in then}
    said = [
        f"{source}: {shown_state(facts)} stays to be loaded, wholly, under a token of its own; "
        f"rows of it that are in {', '.join(sorted(targets))} after all are doubled"
    ]
    retired = sorted({table.entry for table in then} - {table.name for table in configured})
    if retired:
        said.append(
            f"{source}: table entry {', '.join(retired)} is not configured any more, and gets rows "
            "only if its table still is what the range was recorded for"
        )
    # It names no table entries: those that it goes to are of the load spec that can be executed.
    return _as_rest(situation, facts, record, {}, "resolve --as not-loaded"), said


def _as_probed(
    situation: Situation, facts: PartitionFacts, record: Record
) -> tuple[Decided, list[str]]:
    source = facts.source
    probed = _missing(situation, facts, record)
    rest = probed.rest
    found = ", ".join(f"{entry}: {_shown(rest[entry])}" for entry in sorted(rest))
    said = [f"{source}: probed [{record.begin}, {record.end}); without a row are: {found}"]
    decision = _as_rest(situation, facts, record, rest, "resolve --as probe", probed.stored)
    if any(rest.values()):
        how = (
            "only those offsets, under a token of their own; those that are no message, or a bad "
            "one, make no row"
        )
    else:
        how = "nothing of it makes a row; it settles with its dead letters"
    return decision, [*said, f"{source}: {shown_state(facts)} stays to be loaded, but {how}"]


def _as_rest(
    situation: Situation,
    facts: PartitionFacts,
    record: Record,
    rest: Rest,
    why: str,
    stored: Stored | None = None,
) -> Decided:
    """A probe's record. Its deadline is 0: nobody was ever allowed to insert for it, and the
    next driver renews it before it is loaded, with the windows' insert counters of then.

    :param rest: {}: all of the range, for each table entry that it is loaded into then.
    """
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


class ChangedSinceError(TransientError):
    """What a plan was made upon is not so any more."""

    hint = "Nothing was done. Run the command again: it looks and plans anew."


def plan_adopt(
    configuration: Configuration,
    selection: PartitionSelection,
    *,
    offset: int,
    decider: Decider = Decider(),
) -> Plan:
    """Go on from an offset, whatever the group holds now.

    :raises DecisionRefusedError: the log does not hold the offset.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    """
    situation = read_situation(configuration, selection, decider)
    decisions: list[Decided] = []
    steps: list[str] = []
    for facts in situation.partitions:
        refuse_outside_log(facts, offset)
        why = f"adopt --offset {offset}"
        restored = _restored(situation, facts, offset, why)
        if restored is not None:
            decisions.append(restored)
            steps.append(
                f"{facts.source}: from {shown_state(facts)} back to the ledger's last record, "
                f"{shown_record(restored.record)}; the next start replays or probes that range, "
                "so that nothing is lost or doubled"
            )
            continue
        decisions.append(settle(situation, facts, offset, why))
        steps += _going_on(situation, facts, offset)
    return finished_plan(situation, decisions, steps, "this is done")


def _restored(situation: Situation, facts: PartitionFacts, offset: int, why: str) -> Decided | None:
    """The ledger's record again, if the group lost a range in doubt that begins here."""
    last = facts.last
    if last is None or not last.in_doubt or facts.agrees or offset != last.begin:
        return None
    if _is_other_topic(last, facts) or last.end > facts.stable_end:
        return None
    if facts.record is not None and facts.record.batch > last.batch:
        return None
    record = replace(with_owner(last, situation), kind=Kind.RENEW)
    return decided(situation, facts, record, facts.background, why)


def plan_rewind(
    configuration: Configuration,
    selection: PartitionSelection,
    *,
    to: int | datetime,
    decider: Decider = Decider(),
) -> Plan:
    """Load again from an offset, or from the first message that is not older than a time.

    :raises DecisionRefusedError: nothing to go back to, or no way to tell where.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    """
    situation = read_situation(configuration, selection, decider)
    decisions: list[Decided] = []
    steps: list[str] = []
    for facts in situation.partitions:
        offset = _rewound_to(situation, facts, to)
        if offset is None:
            steps.append(f"{facts.source}: stays as it is, nothing below it is as young as {to}")
            continue
        refuse_outside_log(facts, offset)
        shown_to = to if isinstance(to, int) else to.isoformat()
        decisions.append(settle(situation, facts, offset, f"rewind --to {shown_to}"))
        steps += _going_on(situation, facts, offset)
    if not decisions:
        raise DecisionRefusedError(
            f"nothing to rewind: {'; '.join(steps)}", "Give an earlier time, or an offset."
        )
    return finished_plan(situation, decisions, steps, "this is done")


def _rewound_to(situation: Situation, facts: PartitionFacts, to: int | datetime) -> int | None:
    """The offset to go back to; None for a time that only younger offsets have."""
    record = facts.record
    if record is None or not facts.agrees or _is_other_topic(record, facts):
        raise DecisionRefusedError(
            f"{facts.source}: the group holds {shown_state(facts)}, which is not the ledger's last "
            "record of this topic, so there is nothing to go back from",
            "`sluice adopt --offset N` goes on from any offset.",
        )
    if isinstance(to, datetime):
        at = situation.reader.log.at_time([facts.source], int(to.timestamp() * 1000))[facts.source]
        return at if 0 <= at < record.begin else None
    if to >= record.begin:
        raise DecisionRefusedError(
            f"{facts.source} is {shown_state(facts)}: offset {to} is not before that",
            "`sluice adopt --offset N` skips forward, `sluice resolve` decides a range in doubt.",
        )
    return to


def _going_on(situation: Situation, facts: PartitionFacts, offset: int) -> list[str]:
    """What going on from an offset means, in sentences."""
    source, end = facts.source, recorded_end(facts)
    generation = generation_at(facts, offset)
    steps = [
        f"{source}: from {shown_state(facts)} to settled at {offset}, generation {generation}; "
        f"the next range begins at {offset}"
    ]
    position = max((record.begin for record in facts.records), default=None)
    if any(_is_other_topic(record, facts) for record in facts.records):
        steps.append(
            f"{source}: the topic was created again since the last record; rows of the old one "
            "stay in the tables, with the same offsets"
        )
    elif position is None or end is None:
        steps.append(
            f"{source}: nothing is known of what was loaded before; rows from {offset} on that "
            "are in the tables already are doubled, and what lies before is never loaded"
        )
    elif offset > position:
        steps.append(
            f"{source}: offsets [{position}, {offset}) are skipped; what of them is not in the "
            "tables yet is never loaded, and becomes no dead letter"
        )
    if end is not None and offset < end:
        steps.append(_loaded_again(situation, facts, offset, end))
        steps.append(
            f"{source}: from now on older rows carry the same offsets, so a range that falls out "
            "of the deduplication window cannot be probed; `sluice resolve` must decide it"
        )
    return steps


def _loaded_again(situation: Situation, facts: PartitionFacts, offset: int, end: int) -> str:
    source = facts.source
    removals = [
        f"ALTER TABLE {table.target} DELETE WHERE _topic = '{source.topic}' "
        f"AND _partition = {source.partition} AND _offset >= {offset}"
        for table in situation.configuration.tables_of(source.topic)
        if table.lineage is not False
    ]
    remove = f"; to remove these first: {'; '.join(removals)}" if removals else ""
    return (
        f"{source}: rows of offsets [{offset}, {end}) that are in the tables already are loaded "
        f"again, next to the old ones, under new tokens{remove}. A server older than 22.2 has no "
        "tokens, and drops a block that equals one in its window"
    )


def apply(configuration: Configuration, plan: Plan) -> None:
    """Carry a plan out from outside of the driver, whose id is fenced; see `carry_out`."""
    names = RecorderNames(
        group=configuration.group(plan.connector),
        ledger_topic=configuration.ledger_topic,
        dead_letter_topic=configuration.dead_letters_topic,
        owner=plan.operator,
    )
    recorder = Recorder(kafka_access(configuration, plan.connector), names, now_ms=now_ms)
    try:
        carry_out(configuration, plan, recorder)
    finally:
        recorder.close()


def carry_out(configuration: Configuration, plan: Plan, recorder: Recorder) -> None:
    """Fence the old owners, look again, commit the records under their ids.

    :param recorder: of the plan's operator. An id that is the recorder's own is not fenced.
    :raises ChangedSinceError: the group does not hold any more what the plan was made upon.
    :raises OwnerChangedError: a driver took the partitions over at the same moment.
    """
    access = kafka_access(configuration, plan.connector)
    group = configuration.group(plan.connector)
    decisions = {each.source: each for each in plan.decided}
    # Before anybody is fenced, and again after it.
    _refuse_changes(plan, look(access, group, sorted(decisions), OPEN_PATIENCE_SECONDS).found)
    ensure_own_topic(make_admin(access), configuration.ledger_topic)

    def owner_of(source: TopicPartition, found: CommittedOffset | None) -> str:
        owner = owner_in(found)
        return decisions[source].owner if owner == GENESIS else owner

    taken = recorder.take_over(sorted(decisions), owner_of)
    _refuse_changes(plan, taken.found)
    records = {source: each.record for source, each in decisions.items()}
    entries = tuple(entry for each in plan.decided for entry in each.entries)
    recorder.finish_take_over(taken, Commit(records, entries))
    for each in plan.decided:
        _logger.info("%s is decided: offset %d", each.source, each.record.begin)


def _refuse_changes(plan: Plan, found: CommittedOffsets) -> None:
    changed = [
        f"{each.source} held {shown(each.found)}, and holds {shown(found[each.source])}"
        for each in plan.decided
        if found[each.source] != each.found
    ]
    if changed:
        raise ChangedSinceError(f"changed since the plan was made: {'; '.join(changed)}")
