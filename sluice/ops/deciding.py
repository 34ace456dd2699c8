"""What the decisions of a person share: plans, and what is refused before any of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from sluice.config import Configuration
from sluice.core.errors import TerminalError, TransientError
from sluice.core.lease import has_expired
from sluice.core.ledger import (
    Background,
    CommittedOffset,
    LedgerEntry,
    LedgerView,
    late_insert_entry,
    record_entry,
)
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import GENESIS, Kind, Record
from sluice.ops.partitions import ConnectorReader, PartitionFacts


class LeaseRunsError(TerminalError):
    """Tasks of the owner may still insert."""

    hint = (
        "Stop that driver and wait until then; or add --take-over if you know that none of its "
        "tasks runs any more."
    )


class DecisionRefusedError(TerminalError):
    """This decision does not fit what Kafka holds."""


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
    """What a decision is made upon."""

    configuration: Configuration
    connector: str
    reader: ConnectorReader
    view: LedgerView
    partitions: tuple[PartitionFacts, ...]
    operator: str
    now_ms: int


def now_ms() -> int:
    """Wall time in milliseconds."""
    return time.time_ns() // 1_000_000


def read_situation(
    configuration: Configuration,
    connector: str,
    topic: str,
    partitions: Sequence[int],
    take_over: bool,
) -> Situation:
    """Read the partitions, and refuse what no decision may touch.

    :raises DecisionRefusedError: there is no such partition.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    :raises TransientError: a transaction on one of them is open.
    """
    reader = ConnectorReader(configuration, connector)
    topic_id, count = reader.partitions()[topic]
    sources = [TopicPartition(topic, number) for number in sorted(set(partitions))]
    for source in sources:
        if source.partition >= count:
            raise DecisionRefusedError(
                f"there is no {source}: topic {topic} of connector {connector} has {count} "
                "partitions",
                f"Name partitions from 0 to {count - 1}.",
            )
    view = reader.ledger(sources)
    facts = reader.facts(sources, {topic: topic_id}, view)
    now = now_ms()
    for item in facts:
        if item.is_open:
            raise TransientError(
                f"{item.source}: a transaction on group {reader.group} is open",
                "Stop the driver; the broker ends what it left open after a minute. Then run "
                "the command again.",
            )
        running = running_lease(item, now)
        if running is not None and not take_over:
            raise LeaseRunsError(
                f"{item.source}: the lease of {running.owner} on [{running.begin}, {running.end}) "
                f"runs until {shown_time(running.deadline_ms)}: its tasks may still insert"
            )
    operator = f"operator-{uuid4().hex[:8]}"
    return Situation(configuration, connector, reader, view, tuple(facts), operator, now)


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
    entries = [record_entry(facts.source, record, background, why)]
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


def shown_time(at_ms: int) -> str:
    """A moment of wall time."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
