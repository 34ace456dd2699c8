"""What a decision about partitions is made upon, and what it makes of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.core.decided import why_not_said
from sluice.core.errors import ConfigurationError, TerminalError, TransientError
from sluice.core.lease import has_expired
from sluice.core.ledger import (
    Background,
    CommittedOffset,
    LedgerEntry,
    LedgerView,
    late_insert_entry,
    record_entry,
)
from sluice.core.moments import shown_time
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import GENESIS, OPERATOR_PREFIX, Kind, Record
from sluice.core.topics import is_other_topic
from sluice.driver.redirecting import PartitionBusyError
from sluice.driver.shards import on_shard
from sluice.driver.specs import access_of
from sluice.machine.clock import now_ms
from sluice.ops.driver_decisions import DecisionRefusedError
from sluice.ops.partitions import ConnectorReader, PartitionFacts


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


#: It is not said who decides.
NOBODY = Decider()


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

    :param operator: owner id of what is recorded.
    :param now_ms: by this machine's clock or a server's, whichever is behind.
    :param is_alone: leases ran, and no server says whether they are over.
    """

    configuration: Configuration
    connector: str
    reader: ConnectorReader
    view: LedgerView
    facts: tuple[PartitionFacts, ...]
    operator: str
    now_ms: int
    is_alone: bool
    decider: Decider

    @property
    def partitions(self) -> tuple[OnePartition, ...]:
        """Those that are decided about, in the order of their numbers."""
        return tuple(OnePartition(self, facts) for facts in self.facts)

    def planned(self, decisions: Sequence[Decided], steps: Sequence[str], verb: str) -> Plan:
        """The plan, with what it means for those who may run now.

        :param verb: what is done although tasks may still insert, in a sentence.
        """
        if self.is_alone:
            alone = (
                "no ClickHouse server answers: only this machine's clock says which leases are "
                "over. If it is ahead, tasks may still insert, and rows may be doubled"
            )
            steps = (*steps, alone)
        if self.decider.owner:
            last = "the driver that runs records it, and goes on from there by itself"
            return Plan(self.connector, self.operator, tuple(decisions), (*steps, last))
        owners = sorted({each.owner for each in decisions} - {GENESIS})
        whoever = "a running driver"
        if owners:
            whoever = f"a driver that still runs as {' or '.join(owners)}"
        last = (
            f"{whoever} is fenced; if it still works on "
            f"{'these partitions' if len(decisions) > 1 else 'this partition'} "
            f"it ends with status 4. Restart `sluice run` to go on."
        )
        late = [
            f"{each.source}: tasks of {running.owner} may still insert [{running.begin}, "
            f"{running.end}) until {shown_time(running.deadline_ms)}; {verb} nevertheless, since "
            "--take-over is given. If one does, its rows may be doubled"
            for each in self.partitions
            if (running := each.running) is not None
        ]
        return Plan(self.connector, self.operator, tuple(decisions), (*steps, *late, last))


@dataclass(frozen=True, slots=True)
class OnePartition:
    """One of the partitions that are decided about."""

    situation: Situation
    facts: PartitionFacts

    @property
    def source(self) -> TopicPartition:
        """Which one it is."""
        return self.facts.source

    @property
    def running(self) -> Record | None:
        """A record under which somebody may still insert."""
        for record in self.facts.records:
            if record.in_doubt and not has_expired(record.deadline_ms, self.situation.now_ms):
                return record
        return None

    @property
    def recorded_end(self) -> int | None:
        """The end of everything that the last records speak about; None without any."""
        return max((record.end for record in self.facts.records), default=None)

    @property
    def state(self) -> str:
        """What the group holds, as the beginning of a sentence about a change."""
        facts = self.facts
        if facts.record is not None:
            return shown_record(facts.record)
        if facts.found is not None:
            return f"offset {facts.found.offset} that someone else committed"
        if facts.last is not None:
            return f"no offset (the ledger's last record: {shown_record(facts.last)})"
        return "no offset" if facts.recorded is None else "no offset, though the ledger has one"

    def is_of_other_topic(self, record: Record) -> bool:
        """Whether a record speaks of a topic of this name that is gone."""
        return is_other_topic(record.topic_id, self.facts.topic_id)

    def agreed_record(self, so: str = "") -> Record:
        """The last record, which group and ledger have.

        :param so: what follows where there is none, as the end of a sentence.
        :raises DecisionRefusedError: they do not agree about it, or it is of another topic.
        """
        record = self.facts.record
        if record is None or not self.facts.agrees or self.is_of_other_topic(record):
            raise DecisionRefusedError(
                f"{self.source}: the group holds {self.state}, which is not the ledger's last "
                f"record of this topic{so}",
                "`sluice adopt --offset N` goes on from any offset.",
            )
        return record

    def require_in_log(self, offset: int) -> None:
        """:raises DecisionRefusedError: the log neither holds this offset nor ends there."""
        facts = self.facts
        held = f"the log of {self.source} holds [{facts.log_begin}, {facts.stable_end})"
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

    def generation_at(self, offset: int) -> int:
        """The generation under which rows from this offset on are loaded.

        The recorded one if nothing from here on was ever recorded. Else the next one: rows of
        these offsets may be in the tables, under tokens that must not swallow the new blocks.
        """
        end = self.recorded_end
        generation = max((record.generation for record in self.facts.records), default=0)
        return generation if end is None or offset >= end else generation + 1

    def settled_at(self, offset: int, why: str) -> Decided:
        """Settle it at an offset; the next range begins there."""
        facts = self.facts
        known = facts.record or facts.last
        record = Record(
            kind=Kind.SETTLE,
            batch=max((record.batch for record in facts.records), default=0) + 1,
            attempt=0,
            begin=offset,
            end=offset,
            owner=self.situation.operator,
            generation=self.generation_at(offset),
            topic_id=facts.topic_id,
            spec="" if known is None else known.spec,
            reservation=0,
            deadline_ms=0,
        )
        return self.decided(record, Background(since_ms=self.situation.now_ms), why)

    def taken(self, record: Record) -> Record:
        """The record as the operator's."""
        return replace(record, owner=self.situation.operator, batch=record.batch + 1)

    def decided(self, record: Record, background: Background, why: str) -> Decided:
        """A decision with its ledger entries; a lease that still runs stays on the books, so that
        the window's budget counts what its tasks may yet insert (R10)."""
        said = self.situation.decider.said(why)
        entries = [record_entry(self.source, record, background, said)]
        running = self.running
        if running is not None:
            late = Range(self.source, running.begin, running.end)
            insert_counters = self.facts.background.insert_counters
            entries.append(late_insert_entry(late, running.deadline_ms, insert_counters))
        owner = next((record.owner for record in self.facts.records), GENESIS)
        return Decided(self.source, self.facts.found, owner, record, tuple(entries))


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
    wrong = why_not_said(decider.by, decider.why) if decider != NOBODY else None
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
    operator = decider.owner or f"{OPERATOR_PREFIX}{uuid4().hex[:8]}"
    known = configuration, connector, reader, view, tuple(facts), operator
    situation = Situation(*known, now, is_alone, decider)
    for each in situation.partitions:
        if each.facts.is_open:
            raise TransientError(
                f"{each.source}: a transaction on group {reader.group} is open",
                "Stop the driver; the broker ends what it left open after a minute. Then run "
                "the command again.",
            )
        running = each.running
        if running is not None and not selection.take_over:
            raise LeaseRunsError(
                f"{each.source}: the lease of {running.owner} on [{running.begin}, {running.end}) "
                f"runs until {shown_time(running.deadline_ms)}: its tasks may still insert",
                PartitionBusyError.hint if decider.owner else None,
            )
    return situation


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


def shown_record(record: Record) -> str:
    """A record in words."""
    if record.in_doubt:
        return f"[{record.begin}, {record.end}) in doubt"
    return f"settled at {record.begin}"
