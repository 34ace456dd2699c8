"""Which histories are wrong: Backward, Overlap and Gap, and what else betrays a wrong writer.

Pure judgement: a `Judge` is fed the events of a history in order and gives anomalies.

The question of eBay's Aggregator Runtime Verifier is asked for each partition, of each two
successive instances: M, and M' that was committed right after it. Ranges are half-open.

* Backward: M' lies wholly before M.
* Overlap: M' shares offsets with M and is not the same range.
* Gap: M' begins after M ends.

All tables of a topic share the range of a record, so an anomaly of ranges concerns each of
them; counts are judged table by table.

**How gaps are found.** The article counts messages since a reference offset, and re-bases the
count when it settles. That notices a gap only as a shortfall against a number of messages,
which holes in the offsets (transactions, compaction) make wrong, and not before the reference
changes. Here each record says where it begins *and* ends, so a gap is a broken link of the
chain: end(n-1) = begin(n), exact to the offset, at once, holes or not. What a chain cannot
show is a range that was loaded incompletely; that is what the counts in the ledger's receipts
are for (`judge_counts`): messages = rows + dead letters + skipped, for each table.

**What is legal and is therefore known here**: identical replays (`renew`: the same range
again), `shorten`, `probe`, `settle` (empty ranges), take-overs (a new owner repeats the record
before), new load specs, and the decisions of a person (`adopt`, `rewind`, `resolve`),
which leave the chain on purpose: their owner id says so, and in the ledger also their reason.
Where offsets may be loaded again they raise the generation, or it is an anomaly.

Besides the three:

* Foreign: someone wrote who is not the owner: no record of ours, an owner who intends without
  having taken over, a batch number that does not rise, another generation or topic id.
* Step: a record of this kind cannot follow (R2), or not under this load spec (R8).
* Count: receipts and counts do not account for every message of a settled range.

Receipts have to account for every message of a settled range, table by table. For a range that was
loaded wholly, and each table entry of its load spec:
messages = messages in receipts + dead letters of this entry + skipped (tombstones) + passed
(of other entries, or of no rows).
For a probe, whose task loads only what was missing, rows and dead letters are bounded by the
recorded number of offsets instead: what was there before has no receipt.

A history is read from one of two logs. The offsets topic holds committed offsets with their
records, and tombstones. The ledger holds the same records, and receipts, settles and
load specs besides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from sluice.core.ranges import Range, RangeRelation, TopicPartition, relate
from sluice.core.records import OPERATOR_PREFIX, Kind, Record, may_follow
from sluice.core.topics import is_other_topic, matches


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was read: a message of the offsets topic or of the ledger."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a log says of a partition.

    :param at_ms: when it was committed, by the clock of who wrote it: the broker for the
        offsets topic, the driver for the ledger.
    """

    connector: str
    source: TopicPartition
    place: Place
    at_ms: int


@dataclass(frozen=True, slots=True)
class Instance(_Seen):
    """One record of one partition as a log holds it; the article's "instance".

    :param offset: the committed offset.
    :param record: None if what stands there is no record of ours.
    :param problem: why there is no record.
    :param why: what a person decided; None where the log does not say, as the offsets topic.
    :param rest_offsets: how many offsets a probe's record loads, by table entry.
    """

    offset: int
    metadata: str | None
    record: Record | None
    problem: str = ""
    why: str | None = None
    rest_offsets: Mapping[str, int] | None = None

    @property
    def block_range(self) -> Range:
        """The record's range; an empty one at the offset without a record."""
        if self.record is None:
            return Range(self.source, self.offset, self.offset)
        return Range(self.source, self.record.begin, self.record.end)


@dataclass(frozen=True, slots=True)
class Forgotten(_Seen):
    """A tombstone: the group's offset expired, or was deleted with the group or the topic."""


@dataclass(frozen=True, slots=True)
class Acknowledged(_Seen):
    """A receipt in the ledger.

    :param messages: that made the rows.
    """

    begin: int
    end: int
    batch: int
    attempt: int
    entry: str
    shard: str
    token: str
    rows: int
    messages: int


@dataclass(frozen=True, slots=True)
class Settled(_Seen):
    """A settled range in the ledger, with its counts.

    :param bad: dead letters by table entry.
    :param passed: messages that are neither rows nor dead letters of a table entry.
    """

    begin: int
    end: int
    batch: int
    messages: int
    rows: int
    skipped: int
    bad: Mapping[str, int]
    passed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpecSeen:
    """A load spec in the ledger.

    :param entries: the names of its table entries by topic.
    :param patterns: expressions that take further topics, each with the name of its entry.
    """

    connector: str
    place: Place
    at_ms: int
    digest: str
    entries: Mapping[str, tuple[str, ...]]
    patterns: tuple[tuple[str, str], ...] = ()

    def entries_of(self, topic: str) -> tuple[str, ...]:
        """The names of the table entries that a topic goes to, each once."""
        named = self.entries.get(topic, ())
        return named + tuple(
            entry
            for pattern, entry in self.patterns
            if entry not in named and matches(pattern, topic)
        )


Event = Instance | Forgotten | Acknowledged | Settled | SpecSeen


#: Table entries, none for all of them, and what is wrong.
WrongCount = tuple[tuple[str, ...], str]


def judge_counts(
    before: Instance,
    acknowledged: Sequence[Acknowledged],
    settled: Sequence[Settled],
    entries: tuple[str, ...] | None,
    *,
    must_be_settled: bool,
) -> list[WrongCount]:
    """What is wrong with what the ledger says about a range in doubt.

    :param before: the record whose range the entries must be about.
    :param acknowledged: receipts since that record; likewise `settled`.
    :param entries: the table entries that the range goes to; None if nobody knows.
    :param must_be_settled: the next record goes on behind the range.
    """
    record = before.record
    assert record is not None
    wrong: list[WrongCount] = []
    entries_said: list[Acknowledged | Settled] = [*acknowledged, *settled]
    for entry in entries_said:
        if not record.in_doubt or not _is_about(entry, record):
            table = (entry.entry,) if isinstance(entry, Acknowledged) else ()
            what = "a receipt" if isinstance(entry, Acknowledged) else "a settle"
            said = (
                f"{what} at {entry.place} is about [{entry.begin}, {entry.end}) of batch "
                f"{entry.batch}, which was not in doubt"
            )
            wrong.append((table, said))
    if wrong:
        return wrong
    if must_be_settled and not settled:
        return [((), f"nothing says that [{record.begin}, {record.end}) was loaded")]
    if len(settled) > 1:
        return [((), f"[{record.begin}, {record.end}) was settled {len(settled)} times")]
    if not settled:
        receipts = f"{len(acknowledged)} receipts without a settle"
        return [((), receipts)] if acknowledged else []
    return _judge_settled(before, record, acknowledged, settled[0], entries)


def _is_about(entry: Acknowledged | Settled, record: Record) -> bool:
    if (entry.begin, entry.end, entry.batch) != (record.begin, record.end, record.batch):
        return False
    if isinstance(entry, Settled):
        return True
    if record.bundle:
        return f"/{record.bundle}/" in entry.token
    named = f"/{record.begin}-{record.end}"
    return entry.token.endswith(f"{named}/{record.rest}" if record.rest else named)


def _judge_settled(
    before: Instance,
    record: Record,
    acknowledged: Sequence[Acknowledged],
    settled: Settled,
    entries: tuple[str, ...] | None,
) -> list[WrongCount]:
    wrong: list[WrongCount] = []
    made: dict[str, int] = {}
    blocks: set[tuple[str, str]] = set()
    for receipt in acknowledged:
        block = (receipt.entry, receipt.shard)
        if block in blocks:
            said = f"shard {receipt.shard} has two receipts for one block"
            wrong.append(((receipt.entry,), said))
        blocks.add(block)
        made[receipt.entry] = made.get(receipt.entry, 0) + receipt.messages
    if settled.messages > record.end - record.begin:
        said = f"{settled.messages} messages in {record.end - record.begin} offsets"
        wrong.append(((), said))
    rows = sum(receipt.rows for receipt in acknowledged)
    if settled.rows != rows:
        said = f"{settled.rows} rows were settled, the receipts name {rows}"
        wrong.append(((), said))
    for name in sorted(set(made) - set(entries or made)):
        wrong.append(((name,), "a receipt for a table that the load spec does not name"))
    for name in entries or ():
        said = _judge_table(before, record, settled, name, made.get(name, 0))
        if said:
            wrong.append(((name,), said))
    return wrong


def _judge_table(before: Instance, record: Record, settled: Settled, name: str, made: int) -> str:
    """What is wrong with the counts of one table, "" if nothing is."""
    if record.rest:
        offsets = None if before.rest_offsets is None else before.rest_offsets.get(name, 0)
        bad = settled.bad.get(name, 0)
        if offsets is not None and made + bad > offsets:
            return f"{made} rows and {bad} dead letters of {offsets} offsets that were missing"
        return ""
    values = settled.messages - settled.skipped - settled.passed.get(name, 0)
    bad = settled.bad.get(name, 0)
    if made + bad != values:
        passed = settled.passed.get(name, 0)
        over = f", {passed} passed over" if passed else ""
        return (
            f"{settled.messages} messages, but {made} rows, {bad} dead letters and "
            f"{settled.skipped} skipped{over}"
        )
    return ""


class AnomalyKind(Enum):
    """What is wrong; see the module."""

    BACKWARD = "backward"
    OVERLAP = "overlap"
    GAP = "gap"
    COUNT = "count"
    FOREIGN = "foreign"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly with the two instances that show it.

    :param tables: names of the table entries that it concerns.
    :param before: None if the history begins with `after`.
    """

    kind: AnomalyKind
    connector: str
    source: TopicPartition
    tables: tuple[str, ...]
    what: str
    before: Instance | None
    after: Instance


Finding = tuple[AnomalyKind, str]

_OF_RANGES = {
    RangeRelation.BACKWARD: AnomalyKind.BACKWARD,
    RangeRelation.OVERLAP: AnomalyKind.OVERLAP,
    RangeRelation.GAP: AnomalyKind.GAP,
}


def judge_step(before: Instance, after: Instance) -> list[Finding]:
    """What is wrong with `after` right behind `before`; both have records."""
    earlier, later = before.record, after.record
    assert earlier is not None and later is not None
    if is_decision(earlier, later):
        return _judge_decision(before, after, earlier, later)
    return _judge_ranges(before, after, earlier, later) + _judge_hand(earlier, later)


def is_decision(before: Record | None, after: Record) -> bool:
    """Whether a person's decision wrote `after`. One decision writes one record."""
    by_operator = after.owner.startswith(OPERATOR_PREFIX)
    return by_operator and (before is None or after.owner != before.owner)


def _judge_ranges(
    before: Instance, after: Instance, earlier: Record, later: Record
) -> list[Finding]:
    relation = relate(before.block_range, after.block_range)
    kind = _OF_RANGES.get(relation)
    if relation is RangeRelation.SHORTER and later.kind not in (Kind.SHORTEN, Kind.SETTLE):
        kind = AnomalyKind.OVERLAP
    if kind is not None:
        return [(kind, _relation_in_words(kind, earlier, later))]
    if not may_follow(earlier, replace(later, generation=earlier.generation)):
        name, other = later.kind.word, earlier.kind.word
        return [(AnomalyKind.STEP, f"a {name} of this range cannot follow this {other} (R2)")]
    same_range_again = later.kind in (Kind.RENEW, Kind.SHORTEN)
    by_hand = earlier.kind is Kind.PROBE and earlier.deadline_ms == 0
    if same_range_again and later.spec != earlier.spec and not by_hand:
        said = f"repeated under the load spec {later.spec}, intended under {earlier.spec} (R8)"
        return [(AnomalyKind.STEP, said)]
    if same_range_again and later.attempt < earlier.attempt:
        said = f"attempt {later.attempt} follows attempt {earlier.attempt}"
        return [(AnomalyKind.STEP, said)]
    return []


def _relation_in_words(kind: AnomalyKind, earlier: Record, later: Record) -> str:
    if kind is AnomalyKind.GAP:
        return f"offsets [{earlier.end}, {later.begin}) were never intended"
    if kind is AnomalyKind.BACKWARD:
        return f"[{later.begin}, {later.end}) was passed: {earlier.begin} was settled already"
    begin, end = max(earlier.begin, later.begin), min(earlier.end, later.end)
    if begin >= end:
        return f"[{later.begin}, {later.end}) reaches over {earlier.begin}, which was settled"
    return f"offsets [{begin}, {end}) are in both ranges, which are not the same"


def _judge_hand(earlier: Record, later: Record) -> list[Finding]:
    """Whether the owner wrote `later`, or who had taken over (R4)."""
    signs: list[str] = []
    if later.batch <= earlier.batch:
        signs.append(f"batch {later.batch} follows batch {earlier.batch}")
    if later.owner != earlier.owner and not _may_take_over(earlier, later):
        signs.append(
            f"the {later.kind.word} is {later.owner}'s, who had not taken over from {earlier.owner}"
        )
    if later.generation != earlier.generation:
        signs.append(
            f"generation {later.generation} follows {earlier.generation}, and only a person's "
            "decision changes it"
        )
    adopts = later.kind in (Kind.SETTLE, Kind.INTEND)
    if later.topic_id != earlier.topic_id and not (
        adopts and not is_other_topic(earlier.topic_id, later.topic_id)
    ):
        signs.append(f"topic id {later.topic_id} follows {earlier.topic_id} without a decision")
    return [(AnomalyKind.FOREIGN, "; ".join(signs))] if signs else []


def _may_take_over(earlier: Record, later: Record) -> bool:
    """A successor's first record repeats the range, or the settled position, as it is."""
    if (later.begin, later.end) != (earlier.begin, earlier.end):
        return False
    return later.kind in (Kind.RENEW, Kind.SETTLE)


def _may_restart(before: Instance | None, record: Record) -> bool:
    """Whether a driver began anew after the offset was forgotten. It does so only where the
    ledger is gone too; else it stops, and a person's decision is judged by the chain."""
    earlier = None if before is None else before.record
    is_settle = record.kind is Kind.SETTLE
    return is_settle and earlier is not None and not is_decision(earlier, record)


def _judge_decision(
    before: Instance, after: Instance, earlier: Record, later: Record
) -> list[Finding]:
    found: list[Finding] = []
    if after.why == "":
        said = "the record of a person's decision carries no reason in the ledger"
        found.append((AnomalyKind.FOREIGN, said))
    if later.batch <= earlier.batch or later.generation < earlier.generation:
        said = (
            f"batch {later.batch} of generation {later.generation} follows batch "
            f"{earlier.batch} of generation {earlier.generation}"
        )
        found.append((AnomalyKind.FOREIGN, said))
    if later.kind is not Kind.SETTLE:
        if later.kind not in (Kind.RENEW, Kind.PROBE) or not may_follow(earlier, later):
            found += _judge_ranges(before, after, earlier, later) or [
                (AnomalyKind.STEP, f"a person does not decide a {later.kind.word}")
            ]
    elif later.begin < earlier.end and later.generation <= earlier.generation:
        kind = _OF_RANGES.get(relate(before.block_range, after.block_range), AnomalyKind.OVERLAP)
        said = f"back to {later.begin} without a new generation, so its tokens are taken"
        found.append((kind, said))
    return found


@dataclass(slots=True)
class Chain:
    """One partition's history so far.

    :param begun: the first instance that was seen.
    :param last: the last instance with a record.
    :param steps: how often each kind of step was seen, take-overs, decisions and tombstones
        among them.
    :param rows: rows that receipts of settled ranges name, by table entry.
    """

    begun: Instance | None = None
    last: Instance | None = None
    forgotten: bool = False
    steps: dict[str, int] = field(default_factory=dict)
    messages: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    settled: list[Settled] = field(default_factory=list)

    def count(self, step: str) -> None:
        """Count a step."""
        self.steps[step] = self.steps.get(step, 0) + 1


class Judge:
    """Judges the histories of any number of partitions, fed in the order of their logs.

    :param tables_of: names of the table entries of a connector's topic, where no load spec says.
    :param has_receipts: the history is the ledger's: receipts, settles and load specs are in it.
    :param complete: the log was read from its very beginning, so that the first instance of
        a partition is its first.
    """

    def __init__(
        self,
        tables_of: Callable[[str, str], tuple[str, ...]],
        *,
        has_receipts: bool,
        complete: bool,
    ) -> None:
        self._tables_of = tables_of
        self._has_receipts = has_receipts
        self._complete = complete
        self._specs: dict[tuple[str, str], SpecSeen] = {}
        self.chains: dict[tuple[str, TopicPartition], Chain] = {}

    def take(self, event: Event) -> list[Anomaly]:
        """The anomalies that this event shows."""
        if isinstance(event, SpecSeen):
            self._specs[event.connector, event.digest] = event
            return []
        chain = self.chains.setdefault((event.connector, event.source), Chain())
        if isinstance(event, Acknowledged):
            chain.acknowledged.append(event)
            return []
        if isinstance(event, Settled):
            chain.settled.append(event)
            return []
        if isinstance(event, Forgotten):
            chain.forgotten = True
            chain.count("forgotten")
            return []
        return self._take_instance(chain, event)

    def _take_instance(self, chain: Chain, after: Instance) -> list[Anomaly]:
        before, record = chain.last, after.record
        chain.begun = chain.begun or after
        if record is None:
            return [self._anomaly(AnomalyKind.FOREIGN, after.problem, before, after)]
        chain.last = after
        self._count_step(chain, before, after)
        restarted = chain.forgotten and _may_restart(before, record)
        chain.forgotten = False
        if before is None or before.record is None or restarted:
            chain.acknowledged, chain.settled = [], []
            if before is None and self._complete and not may_follow(None, record):
                said = f"the history begins with a {record.kind.word}"
                return [self._anomaly(AnomalyKind.STEP, said, None, after)]
            return []
        if before.metadata == after.metadata and not self._has_receipts:
            return []  # The very same commit again changes nothing.
        found = [
            self._anomaly(kind, what, before, after) for kind, what in judge_step(before, after)
        ]
        if self._has_receipts:
            found += self._judge_counts(chain, before, after)
        return found

    def _count_step(self, chain: Chain, before: Instance | None, after: Instance) -> None:
        earlier = None if before is None else before.record
        record = after.record
        assert record is not None
        chain.count(record.kind.word)
        if is_decision(earlier, record):
            chain.count("decision")
        elif earlier is not None and record.owner != earlier.owner:
            chain.count("take-over" if _may_take_over(earlier, record) else "other owner")
        if earlier is not None and record.spec != earlier.spec:
            chain.count("new load spec")

    def _judge_counts(self, chain: Chain, before: Instance, after: Instance) -> list[Anomaly]:
        acknowledged, chain.acknowledged = chain.acknowledged, []
        settled, chain.settled = chain.settled, []
        earlier, later = before.record, after.record
        assert earlier is not None and later is not None
        passed = earlier.in_doubt and later.begin >= earlier.end
        spec = self._specs.get((before.connector, earlier.spec))
        entries = None if spec is None else spec.entries_of(before.source.topic)
        found: list[Anomaly] = []
        if passed and spec is None and self._complete:
            said = f"the load spec {earlier.spec} of the range is not in the ledger"
            found.append(self._anomaly(AnomalyKind.STEP, said, before, after))
        wrong = judge_counts(
            before,
            acknowledged,
            settled,
            entries,
            must_be_settled=passed and not is_decision(earlier, later),
        )
        if settled and not wrong:
            chain.messages += settled[0].messages
            for receipt in acknowledged:
                chain.rows[receipt.entry] = chain.rows.get(receipt.entry, 0) + receipt.rows
        for tables, said in wrong:
            found.append(self._anomaly(AnomalyKind.COUNT, said, before, after, tables))
        return found

    def _anomaly(
        self,
        kind: AnomalyKind,
        what: str,
        before: Instance | None,
        after: Instance,
        tables: tuple[str, ...] = (),
    ) -> Anomaly:
        return Anomaly(
            kind,
            after.connector,
            after.source,
            tables or self._tables(after),
            what,
            before,
            after,
        )

    def _tables(self, instance: Instance) -> tuple[str, ...]:
        """The table entries of the recorded load spec, else those of today's configuration."""
        if instance.record is not None:
            spec = self._specs.get((instance.connector, instance.record.spec))
            if spec is not None:
                return spec.entries_of(instance.source.topic)
        return self._tables_of(instance.connector, instance.source.topic)
