"""Kafka's side of an audit: what the logs hold, what is settled, what is a dead letter."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import read_offsets
from sluice.config import Configuration, ConnectorConfiguration
from sluice.core.dead_letters import DUPLICATE
from sluice.core.ranges import Interval, TopicPartition, subtract
from sluice.core.receipts import DeadLetter
from sluice.core.records import InvalidRecordError, Record, decode
from sluice.core.tokens import is_of_rest, row_source
from sluice.core.topics import NO_TOPIC_ID, is_other_topic
from sluice.driver.discovering import topics_to_load
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.ledger import entries
from sluice.kafka.log import SourceLog
from sluice.kafka.offsets import look, record_in
from sluice.kafka.topics import sees
from sluice.verify.audit_chunk import Told
from sluice.verify.pace import Pace

#: A transaction that is open for longer hangs; what was committed before it counts.
_OPEN_PATIENCE_SECONDS = 3.0

#: Decisions of a person that move a partition's position.
_MOVES = ("adopt", "rewind")

#: How much older than the settle in the ledger the dead letters of its transaction may be.
_TRANSACTION_MS = 120_000

#: So many offsets are counted together, where messages have any number of rows.
STRETCH_OFFSETS = 100_000

DeadLetters = dict[tuple[TopicPartition, str], NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class Recent:
    """An audit of what was settled lately, beside a pipeline that runs: the newest offsets of each
    partition first, as many as there is time for.

    :param since_ms: what was settled since then is of interest.
    :param first_ms: by connector, since when instead.
    :param ledger: where in the ledger of a connector to begin instead; the audit writes into it
        where the next one goes on, so that each range is of interest once.
    """

    since_ms: int
    pace: Pace
    ledger: dict[str, int] = field(default_factory=dict)
    first_ms: Mapping[str, int] = field(default_factory=dict)

    def since_of(self, connector: str) -> int:
        """Since when of a connector."""
        return self.first_ms.get(connector, self.since_ms)


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Messages of which all rows were left out, since other messages own their keys (R20).

    :param spec: digest of the load spec that they were decoded under.
    :param offsets: ascending.
    """

    spec: str
    offsets: NDArray[np.uint64]

    def below(self, end: int) -> Duplicates:
        """Those of offsets below the end."""
        return Duplicates(self.spec, self.offsets[: np.searchsorted(self.offsets, end)])


def offsets_of(duplicates: Iterable[Duplicates]) -> NDArray[np.uint64]:
    """Of all of them, ascending, each once."""
    found = [np.zeros(0, np.uint64), *(each.offsets for each in duplicates)]
    return np.unique(np.concatenate(found))


@dataclass(frozen=True, slots=True)
class Renewal:
    """What was loaded of a partition from an offset on, before that time, counts no more: a person
    had it loaded again, or the topic was created again.

    :param generation: of what is loaded from then on.
    :param topic_id: of the topic that it is loaded from.
    """

    begin: int
    generation: int
    topic_id: str
    at_ms: int

    def voids(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is of before. What it does not say itself, its time does."""
        if letter.topic_id and self.topic_id and is_other_topic(letter.topic_id, self.topic_id):
            return True
        if letter.offset < self.begin:
            return False
        if letter.generation is None:
            return letter.attempted_at_ms < self.at_ms
        return letter.generation < self.generation


@dataclass(slots=True)
class History:
    """What the ledger says of a partition's position.

    :param begin: where the pipeline began.
    :param position: everything below is settled.
    :param skipped: what `sluice adopt` and `rewind` went past.
    :param duplicates: by table entry, messages whose rows were left out as duplicates.
    :param generation: the last one of its records; `spec` the load spec of it, and `topic_id` that
        of the topic.
    :param renewals: from where on it was loaded again, and in the first place.
    """

    begin: int
    position: int
    skipped: list[Interval] = field(default_factory=list)
    #: By table entry, messages that made no row and need not.
    empty: dict[str, list[Interval]] = field(default_factory=dict)
    duplicates: dict[str, list[Duplicates]] = field(default_factory=dict)
    generation: int = 0
    spec: str = ""
    topic_id: str = ""
    renewals: list[Renewal] = field(default_factory=list)
    #: By table entry, how many rows were acknowledged of which offsets.
    told: dict[str, list[Told]] = field(default_factory=dict)
    #: The same of the range that settles next; and entries of which a probe had found some rows.
    acknowledged: Counter[str] = field(default_factory=Counter)
    in_part: set[str] = field(default_factory=set)

    def take(self, entry: dict[str, Any]) -> None:
        """Take the next record in."""
        begin, record = int(entry["begin"]), _record_of(entry)
        at_ms = int(entry.get("at_ms", 0))
        if record and self.topic_id and is_other_topic(self.topic_id, record.topic_id):
            # The topic was created again: what is said so far is of another log.
            self._forget(0)
            self.begin = self.position = begin
            self.renewals = [Renewal(0, record.generation, record.topic_id, at_ms)]
        elif record is not None and not self.renewals:
            self.renewals = [Renewal(begin, record.generation, record.topic_id, 0)]
        if str(entry.get("why", "")).startswith(_MOVES):
            if begin > self.position:
                self.skipped.append((self.position, begin))
            else:
                self.begin = min(self.begin, begin)
                self._forget(begin)
                if record is not None:
                    renewal = Renewal(begin, record.generation, record.topic_id, at_ms)
                    self.renewals.append(renewal)
        self.position = begin
        if record is not None:
            self.generation = max(self.generation, record.generation)
            self.spec, self.topic_id = record.spec, record.topic_id

    def _forget(self, begin: int) -> None:
        """What is said of messages from this offset on: they come again, and then they are what is
        said of them then."""
        self.skipped = [(b, min(e, begin)) for b, e in self.skipped if b < begin]
        for intervals in self.empty.values():
            intervals[:] = [(b, min(e, begin)) for b, e in intervals if b < begin]
        for some in self.duplicates.values():
            some[:] = [each.below(begin) for each in some]
        for stretches in self.told.values():
            stretches[:] = [each for each in stretches if each.end <= begin]

    def knows(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is of what was loaded last."""
        return not any(each.voids(letter) for each in self.renewals)

    def take_receipts(self, entry: dict[str, Any], counted: Set[str]) -> None:
        """Take in a receipt, or the end of its range.

        :param counted: names of the table entries whose rows are counted.
        """
        if entry["type"] == "receipt":
            self.acknowledged[str(entry["entry"])] += int(entry["rows"])
            if is_of_rest(str(entry["token"])):
                self.in_part.add(str(entry["entry"]))
            return
        # Where the ledger does not have all receipts any more, they are fewer.
        if self.acknowledged.total() == int(entry.get("rows", -1)):
            for name in (self.acknowledged.keys() & counted) - self.in_part:
                told = Told(int(entry["begin"]), int(entry["end"]), self.acknowledged[name])
                stretches = self.told.setdefault(name, [])
                if stretches and _are_one(stretches[-1], told):
                    last = stretches.pop()
                    told = Told(last.begin, told.end, last.rows + told.rows)
                stretches.append(told)
        self.acknowledged.clear()
        self.in_part.clear()

    def take_duplicates(self, found: Mapping[str, Any]) -> None:
        """Take in what is said of a range that is settled, before the record that goes on."""
        for name, told in found.items():
            some = Duplicates(self.spec, read_offsets(told["offsets"]))
            self.duplicates.setdefault(name, []).append(some)

    def assigned(self, settled: int) -> list[Interval]:
        """The offsets whose rows must be there."""
        return list(subtract((self.begin, max(self.begin, settled)), self.skipped))


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's log.

    :param settled: everything below is settled; None if the pipeline never began here.
    :param assigned: the offsets whose rows must be there.
    :param empty: by table entry, offsets of messages that made no row and need not.
    :param duplicates: likewise, whose rows were left out as duplicates.
    :param told: by table entry of messages of any number of rows, how many were acknowledged.
    """

    source: TopicPartition
    log_begin: int
    stable_end: int
    settled: int | None
    assigned: list[Interval]
    empty: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)
    duplicates: Mapping[str, tuple[Duplicates, ...]] = field(default_factory=dict)
    told: Mapping[str, tuple[Told, ...]] = field(default_factory=dict)


class SourceReader:
    """Reads one connector.

    :param told_apart: see `config.topics.why_refused`.
    :param recent: only of what was settled lately.
    :raises TransientError: the brokers do not answer.
    """

    def __init__(
        self,
        configuration: Configuration,
        connector: ConnectorConfiguration,
        told_apart: Collection[str] = frozenset(),
        recent: Recent | None = None,
    ) -> None:
        self._configuration, self._recent = configuration, recent
        self.access = kafka_access(configuration, connector.name)
        self._admin = make_admin(self.access)
        self._log = SourceLog(self._admin)
        self._group = configuration.group(connector.name)
        self._connector = f"{configuration.pipeline}.{connector.name}"
        found = self._log.topics(
            topics_to_load(configuration, connector.name, self._log, told_apart)
        )
        self.counts = {topic: count for topic, (_, count) in found.items()}
        self._topic_ids = {topic: identity for topic, (identity, _) in found.items()}
        self._generation = 0
        self._found: dict[TopicPartition, History] = {}
        #: Canonical load specs by digest, as far as `logs` found them.
        self.specs: dict[str, str] = {}

    def logs(self) -> list[PartitionLog]:
        """Every partition, as it is at this moment; or of each in which something was settled
        lately, what was."""
        sources = [
            TopicPartition(topic, number)
            for topic, count in sorted(self.counts.items())
            for number in range(count)
        ]
        committed = look(self.access, self._group, sources, _OPEN_PATIENCE_SECONDS).found
        begins, ends = self._log.begins(sources), self._log.stable_ends(sources)
        histories = self._found = self._histories()
        for history in histories.values():
            self._generation = max(self._generation, history.generation)
        logs = []
        for source in sources:
            past = histories.get(source)
            settled = None if past is None else past.position
            record = record_in(committed[source])
            if record is not None:  # else, as of someone else's, the ledger's last word counts
                settled = record.begin
                self._generation = max(self._generation, record.generation)
            assigned: list[Interval] = []
            if settled is not None:
                past = past or History(begins[source], settled)
                assigned = past.assigned(settled)
            empty = {} if past is None else past.empty
            duplicates = {} if past is None else past.duplicates
            told = {} if past is None else past.told
            begin, end = begins[source], ends[source]
            if self._recent is not None:
                known = histories.get(source)
                if known is None:
                    continue
                # The next audit begins at the end of the ledger, so this one goes as far, and not
                # only to what group and topic said before.
                settled = end = known.position
                assigned = known.assigned(settled)
                begin = max(begin, known.begin)
            logs.append(
                PartitionLog(
                    source,
                    begin,
                    end,
                    settled,
                    assigned,
                    {entry: tuple(intervals) for entry, intervals in empty.items()},
                    {entry: tuple(some) for entry, some in duplicates.items()},
                    {entry: tuple(stretches) for entry, stretches in told.items()},
                )
            )
        return logs

    def loaders(self, topic: str, entry: str) -> tuple[str, ...]:
        """What `_source` says in rows of an entry: those of each generation that `logs` found,
        and of one that begins meanwhile. Nothing if the topic is not read here."""
        if topic not in self.counts:
            return ()
        return tuple(
            row_source(
                pipeline=self._configuration.pipeline,
                connector=self.access.connector,
                topic_id=topic_id,
                entry=entry,
                generation=generation,
            )
            # Rows may be from before its brokers knew ids.
            for topic_id in dict.fromkeys((self._topic_ids[topic], NO_TOPIC_ID))
            for generation in range(self._generation + 2)
        )

    def stable_end(self, source: TopicPartition) -> int:
        """Last stable offset, fresh."""
        return self._log.stable_ends([source])[source]

    def dead_letters(self) -> DeadLetters:
        """Sorted offsets of the dead letters, by partition and table entry: those of the log of
        now, and of what was loaded last where that was done again. After `logs`."""
        found: dict[tuple[TopicPartition, str], array[int]] = {}
        recent = self._recent
        since_ms = None if recent is None else recent.since_of(self.access.connector)
        since_ms = None if since_ms is None else since_ms - _TRANSACTION_MS
        for topic in (self._configuration.dead_letters_topic, self._configuration.parking_topic):
            if not sees(self.access, topic):
                continue
            letters = read_dead_letters(self.access, topic, since_ms)
            for letter in letters if recent is None else recent.pace.through(letters):
                if letter.connector and letter.connector != self._connector:
                    continue  # of somebody else who reads a topic of this name
                if letter.reason == DUPLICATE:
                    continue  # a copy; the ledger knows these messages
                source = TopicPartition(letter.topic, letter.partition)
                today = self._topic_ids.get(letter.topic, letter.topic_id)
                if letter.topic_id and is_other_topic(letter.topic_id, today):
                    continue  # of another topic of this name
                history = self._found.get(source)
                if history is not None and not history.knows(letter):
                    continue
                key = (source, letter.table)
                found.setdefault(key, array("Q")).append(letter.offset)
        return {key: np.sort(np.array(offsets, np.uint64)) for key, offsets in found.items()}

    def _histories(self) -> dict[TopicPartition, History]:
        topic = self._configuration.ledger_topic
        if not sees(self.access, topic):
            return {}
        recent = self._recent
        if recent is None:
            told = entries(self.access, topic)
        else:
            begin = recent.ledger.get(self.access.connector)
            since_ms = recent.since_of(self.access.connector) if begin is None else None
            found = entries(self.access, topic, begin, since_ms=since_ms)
            told = recent.pace.through(found)
        counted = {table.name for table in self._configuration.tables if table.rows == "many"}
        return histories_of(self.access.connector, map(self._seen, told), counted)

    def _seen(self, told: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        """An entry of the ledger; load specs are kept."""
        offset, entry = told
        if self._recent is not None:
            self._recent.ledger[self.access.connector] = offset + 1
        if entry["type"] == "load_spec":
            self.specs[str(entry["digest"])] = str(entry["text"])
        return entry

    def topic_id(self, topic: str) -> str:
        """Short id of a topic that is read here."""
        return self._topic_ids[topic]


def _record_of(entry: dict[str, Any]) -> Record | None:
    try:
        return decode(int(entry["begin"]), str(entry.get("metadata", "")))
    except InvalidRecordError:
        return None


def _are_one(before: Told, after: Told) -> bool:
    """Whether two stretches are counted as one, so that there are few. All entries of a topic have
    the same: which one a range belongs to depends on its begin alone."""
    same = before.begin // STRETCH_OFFSETS == after.begin // STRETCH_OFFSETS
    return before.end == after.begin and same


def histories_of(
    connector: str, ledger: Iterable[dict[str, Any]], counted: Set[str] = frozenset()
) -> dict[TopicPartition, History]:
    """The positions of a connector's partitions, from the ledger's entries in order.

    :param counted: table entries of which it is to be known how many rows were acknowledged.
    """
    types = ("record", "settled", "receipt") if counted else ("record", "settled")
    histories: dict[TopicPartition, History] = {}
    for entry in ledger:
        if entry["type"] not in types or entry["connector"] != connector:
            continue
        source = TopicPartition(str(entry["topic"]), int(entry["partition"]))
        begin = int(entry["begin"])
        history = histories.setdefault(source, History(begin, begin))
        if entry["type"] == "record":
            history.take(entry)
        elif counted:
            history.take_receipts(entry, counted)
        history.take_duplicates(entry.get("duplicates_by_table", {}))
        for name, intervals in entry.get("empty_by_table", {}).items():
            history.empty.setdefault(name, []).extend((int(b), int(e)) for b, e in intervals)
    return histories
