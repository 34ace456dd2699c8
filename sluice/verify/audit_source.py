"""Kafka's side of an audit: what the logs hold, what is settled, what is a dead letter."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import read_offsets
from sluice.config import Configuration, ConnectorConfiguration
from sluice.core.dead_letters import DUPLICATE
from sluice.core.errors import TerminalError
from sluice.core.load_spec import LoadSpec, parse_spec
from sluice.core.ranges import Interval, TopicPartition, subtract
from sluice.core.receipts import DeadLetter
from sluice.core.records import InvalidRecordError, Record, decode
from sluice.core.tokens import is_of_rest, row_source
from sluice.core.topics import NO_TOPIC_ID, is_other_topic
from sluice.driver.discovering import topics_to_load
from sluice.driver.recording import CHECKPOINT_EVERY_MS
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.ledger import entries, first_since
from sluice.kafka.log import SourceLog
from sluice.kafka.offsets import look, record_in
from sluice.kafka.tail import OPEN_SECONDS
from sluice.kafka.topics import sees
from sluice.verify.audit_chunk import Told
from sluice.verify.audit_specs import LoadedBy, Stretch, loaded_by, stretches
from sluice.verify.pace import Pace

#: A transaction that is open for longer hangs; what was committed before it counts.
_OPEN_PATIENCE_SECONDS = 3.0

#: Decisions of a person that move a partition's position.
_MOVES = ("adopt", "rewind")

#: How much older than the settle in the ledger the dead letters of its transaction may be.
_TRANSACTION_MS = 120_000

#: So many offsets are counted together, where messages have any number of rows.
STRETCH_OFFSETS = 100_000

#: Load specs that one audit of what was settled lately leaves to the next.
_SPECS_KEPT = 100

#: So long before what is read of a ledger there is a checkpoint, if anybody wrote into it at all.
_CHECKPOINT_MS = 2 * CHECKPOINT_EVERY_MS

DeadLetters = dict[tuple[TopicPartition, str], NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a reading of a ledger ended, and what the next one has to know: a range may be
    recorded before that, and settled after it.

    :param specs: canonical load specs by digest.
    """

    offset: int
    histories: Mapping[TopicPartition, History]
    specs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Recent:
    """An audit of what was settled lately, beside a pipeline that runs: the newest offsets of each
    partition first, as many as there is time for.

    :param since_ms: what was settled since then is of interest.
    :param first_ms: by connector, since when instead.
    :param ledger: by connector, where in its ledger to begin instead; the audit writes into it
        where the next one goes on, so that each range is of interest once.
    """

    since_ms: int
    pace: Pace
    ledger: dict[str, Reached] = field(default_factory=dict)
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
    :param loaded_under: from offset to offset, the digest of the load spec that its messages were
        loaded under; "": no record says it.
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
    loaded_under: list[tuple[int, int, str]] = field(default_factory=list)
    #: By table entry, how many rows were acknowledged of which offsets.
    told: dict[str, list[Told]] = field(default_factory=dict)
    #: The same of the range that settles next; and entries of which a probe had found some rows.
    acknowledged: Counter[str] = field(default_factory=Counter)
    in_part: set[str] = field(default_factory=set)

    @staticmethod
    def standing_at(entry: dict[str, Any]) -> History:
        """Of a partition of which nothing is of interest that is settled by its record."""
        begin = int(entry["begin"])
        history = History(begin, begin)
        history.take(entry)
        return history

    def going_on(self) -> History:
        """What has to be known of it once all that is settled by now is of no interest."""
        history = History(self.position, self.position)
        history.generation, history.spec = self.generation, self.spec
        history.topic_id = self.topic_id
        if self.topic_id:
            history.renewals = [Renewal(self.position, self.generation, self.topic_id, 0)]
        return history

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
        elif begin > self.position:
            self._settle(begin)
        self.position = begin
        self.spec = "" if record is None else record.spec
        if record is not None:
            self.generation = max(self.generation, record.generation)
            self.topic_id = record.topic_id

    def _settle(self, end: int) -> None:
        """All below is settled as the record before it said: a range that was shortened, probed or
        refused may have changed its load spec since it was intended."""
        begin = self.position
        if self._goes_on_at(begin):
            begin, _, _ = self.loaded_under.pop()
        self.loaded_under.append((begin, end, self.spec))

    def _goes_on_at(self, begin: int) -> bool:
        """Whether what begins there is loaded under the same load spec as what is before it."""
        return bool(self.loaded_under) and self.loaded_under[-1][1:] == (begin, self.spec)

    def _forget(self, begin: int) -> None:
        """What is said of messages from this offset on: they come again, and then they are what is
        said of them then."""
        self.skipped = [(b, min(e, begin)) for b, e in self.skipped if b < begin]
        self.loaded_under = [(b, min(e, begin), s) for b, e, s in self.loaded_under if b < begin]
        for intervals in self.empty.values():
            intervals[:] = [(b, min(e, begin)) for b, e in intervals if b < begin]
        for some in self.duplicates.values():
            some[:] = [each.below(begin) for each in some]
        for all_told in self.told.values():
            all_told[:] = [each for each in all_told if each.end <= begin]

    def knows(self, letter: DeadLetter) -> bool:
        """Whether a dead letter is of what was loaded last."""
        return not any(each.voids(letter) for each in self.renewals)

    def take_receipts(self, entry: dict[str, Any]) -> None:
        """Take in a receipt, or the end of its range."""
        if entry["type"] == "receipt":
            self.acknowledged[str(entry["entry"])] += int(entry["rows"])
            if is_of_rest(str(entry["token"])):
                self.in_part.add(str(entry["entry"]))
            return
        # Where the ledger does not have all receipts any more, they are fewer.
        if self.acknowledged.total() == int(entry.get("rows", -1)):
            begin, end = int(entry["begin"]), int(entry["end"])
            goes_on = self._goes_on_at(begin) or not self.loaded_under
            for name in self.acknowledged.keys() - self.in_part:
                told = Told(begin, end, self.acknowledged[name])
                all_told = self.told.setdefault(name, [])
                if goes_on and all_told and _are_one(all_told[-1], told):
                    last = all_told.pop()
                    told = Told(last.begin, told.end, last.rows + told.rows)
                all_told.append(told)
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
    """

    source: TopicPartition
    log_begin: int
    stable_end: int
    settled: int | None
    assigned: list[Interval]
    history: History


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
        self._specs: dict[str, str] = {}
        self._parsed: dict[str, LoadSpec | None] = {}

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
            begin, end = begins[source], ends[source]
            if self._recent is not None:
                if past is None or past.begin == past.position:
                    continue
                # The next audit begins at the end of the ledger, so this one goes as far, and not
                # only to what group and topic said before.
                settled = end = past.position
                begin = max(begin, past.begin)
            past = past or History(begin, settled or begin)
            assigned = [] if settled is None else past.assigned(settled)
            logs.append(PartitionLog(source, begin, end, settled, assigned, past))
        return logs

    def stretches(self, log: PartitionLog, today: LoadedBy) -> list[Stretch]:
        """What the offsets of a log were loaded by, in order.

        :param today: what its topic is loaded by now.
        """

        def find(digest: str) -> LoadedBy | None:
            spec = self.spec(digest)
            return None if spec is None else loaded_by(spec, log.source.topic)

        within = log.log_begin, log.stable_end
        return stretches(within, log.assigned, log.history.loaded_under, today, find)

    def spec(self, digest: str) -> LoadSpec | None:
        """A load spec; None if the ledger that `logs` read does not have it any more, or if another
        version of Sluice wrote it."""
        if digest not in self._parsed:
            try:
                text = self._specs.get(digest)
                self._parsed[digest] = None if text is None else parse_spec(text)
            except (TerminalError, TypeError):  # as of a field that only a later version knows
                self._parsed[digest] = None
        return self._parsed[digest]

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
        now, and of what was loaded last where that was done again. After `logs`.

        Those that are committed behind an open transaction are waited for: the ledger may show that
        their messages are settled, and without them these would be missing.

        :raises StalledError: a transaction of another producer is open there for too long.
        """
        found: dict[tuple[TopicPartition, str], array[int]] = {}
        recent = self._recent
        since_ms = None if recent is None else recent.since_of(self.access.connector)
        since_ms = None if since_ms is None else since_ms - _TRANSACTION_MS
        pace = Pace() if recent is None else recent.pace
        both = self._configuration.dead_letters_topic, self._configuration.parking_topic
        topics = [topic for topic in both if sees(self.access, topic)]
        with pace.waiting():
            self._wait_until_committed(topics)
        for topic in topics:
            for letter in pace.through(read_dead_letters(self.access, topic, since_ms)):
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

    def _wait_until_committed(self, topics: Iterable[str]) -> None:
        sources = [
            TopicPartition(topic, number)
            for topic, (_, count) in self._log.topics(topics).items()
            for number in range(count)
        ]
        self._log.wait_until_committed(sources, OPEN_SECONDS)

    def _histories(self) -> dict[TopicPartition, History]:
        topic = self._configuration.ledger_topic
        if not sees(self.access, topic):
            return {}
        if self._recent is not None:
            return self._recent_histories(topic, self._recent)
        told = self._keeping_specs(entries(self.access, topic))
        return histories_of(self.access.connector, (entry for _, entry in told))

    def _recent_histories(self, topic: str, recent: Recent) -> dict[TopicPartition, History]:
        """Of what the ledger has since the last audit; before a first one, also what says how the
        partitions stood then."""
        connector = self.access.connector
        reached = recent.ledger.get(connector)
        if reached is None:
            since_ms = recent.since_of(connector)
            begin = first_since(self.access, topic, since_ms)
            before = entries(self.access, topic, end=begin, since_ms=since_ms - _CHECKPOINT_MS)
            told = self._keeping_specs(recent.pace.through(before))
            records = (record for _, entry in told for record in _records_in(entry))
            stood = {
                _source_of(record): History.standing_at(record)
                for record in records
                if record["connector"] == connector
            }
            reached = Reached(begin, stood, {})
        self._specs.update(reached.specs)
        end = reached.offset

        def later() -> Iterator[dict[str, Any]]:
            nonlocal end
            found = entries(self.access, topic, reached.offset)
            for offset, entry in self._keeping_specs(recent.pace.through(found)):
                end = offset + 1
                yield entry

        histories = histories_of(connector, later(), reached.histories)
        going_on = {source: history.going_on() for source, history in histories.items()}
        # One that no record names yet may be named later, and is not said again then.
        kept = {history.spec for history in going_on.values()} | {*[*self._specs][-_SPECS_KEPT:]}
        specs = {digest: text for digest, text in self._specs.items() if digest in kept}
        recent.ledger[connector] = Reached(end, going_on, specs)
        return histories

    def _keeping_specs(
        self, told: Iterable[tuple[int, dict[str, Any]]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for offset, entry in told:
            if entry["type"] == "load_spec":
                self._specs.pop(str(entry["digest"]), None)  # the newest stands last
                self._specs[str(entry["digest"])] = str(entry["text"])
            yield offset, entry

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


def _source_of(entry: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(str(entry["topic"]), int(entry["partition"]))


def _records_in(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A record, or those that a checkpoint says once more."""
    if entry["type"] == "record":
        yield entry
    elif entry["type"] == "checkpoint":
        for record in entry["records"]:
            yield {"connector": entry["connector"], **record}


def histories_of(
    connector: str,
    ledger: Iterable[dict[str, Any]],
    stood: Mapping[TopicPartition, History] | None = None,
) -> dict[TopicPartition, History]:
    """The positions of a connector's partitions, from the ledger's entries in order.

    :param stood: how partitions stood before; how others did, checkpoints say. None: each begins
        with the first that is said of it.
    """
    # Copies: who has to read all of it once more begins with the same.
    histories = {source: history.going_on() for source, history in (stood or {}).items()}
    types = ("record", "settled", "receipt", *(() if stood is None else ("checkpoint",)))
    for entry in ledger:
        if entry["type"] not in types or entry["connector"] != connector:
            continue
        if entry["type"] == "checkpoint":
            for record in _records_in(entry):
                histories.setdefault(_source_of(record), History.standing_at(record))
            continue
        begin = int(entry["begin"])
        history = histories.setdefault(_source_of(entry), History(begin, begin))
        if entry["type"] == "record":
            history.take(entry)
        else:
            history.take_receipts(entry)
        history.take_duplicates(entry.get("duplicates_by_table", {}))
        for name, intervals in entry.get("empty_by_table", {}).items():
            history.empty.setdefault(name, []).extend((int(b), int(e)) for b, e in intervals)
    return histories
