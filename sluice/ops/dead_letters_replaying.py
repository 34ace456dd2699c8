"""Replaying dead letters: back into their topics, each at most once.

Claims that a message of theirs may have are given up before it is produced again, or its copy would
be left out as a duplicate of it (R20).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import uuid4

from sluice.config import Configuration
from sluice.core.decided import REPLAY
from sluice.core.errors import InDoubtError, TransientError
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.driver.specs import kafka_access, read_spec, registry_access
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.dead_letters import (
    DeadLetterTopic,
    Outgoing,
    Replayed,
    StoredDeadLetter,
    replayed_mark,
)
from sluice.kafka.log import SourceLog
from sluice.kafka.replaying import (
    DeadLetterWriter,
    OriginalReader,
    OriginGoneError,
    OvertakenError,
    only_table,
    replayed_message,
)
from sluice.kafka.topics import TopicFacts, describe_topic
from sluice.machine.clock import now_ms
from sluice.ops.claims import store_of
from sluice.ops.dead_letters import DeadLetterSelection, Found, find
from sluice.ops.driver_decisions import BY_COMMAND_LINE, whoever, write_done
from sluice.verify.message_keys import MessageKeys
from sluice.worker.routing import Router

_logger = logging.getLogger("sluice.dead-letters")

#: One transaction; while it is open, it holds the pipeline back on the partitions it writes to.
_BATCH_LETTERS = 500
_BATCH_BYTES = 8 * 1024 * 1024
#: How often a replay begins anew when a transaction's outcome is unknown.
_ROUNDS_MAX = 5
_PAUSE_SECONDS = 1.0
#: Refusals that a report names.
REFUSED_MAX = 20


@dataclass(slots=True)
class ReplayPlan:
    """What a replay would do.

    :param places: partition and offset of the dead letters in their topic, by connector.
    :param counts: dead letters by connector, source topic and table entry.
    :param replayed_before: dead letters that are meant and were replayed; they are skipped.
    """

    places: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    counts: dict[tuple[str, str, str], int] = field(default_factory=dict)
    replayed_before: int = 0

    @property
    def dead_letters(self) -> int:
        """Dead letters to be replayed."""
        return sum(self.counts.values())

    def steps(self) -> list[str]:
        """All of it, in sentences."""
        said = [
            f"produce {count} message{'s' if count > 1 else ''} to {topic} of connector "
            f"{connector} again, for {f'table entry {table}' if table else 'whom a route names'}"
            for (connector, topic, table), count in sorted(self.counts.items())
        ]
        if self.replayed_before:
            said.append(f"skip {self.replayed_before} that were replayed before")
        return said


@dataclass(frozen=True, slots=True)
class Refusal:
    """A dead letter that was not replayed, and why."""

    connector: str
    stored: StoredDeadLetter
    why: str
    hint: str


@dataclass(slots=True)
class ReplayReport:
    """What a replay did.

    :param replayed: dead letters that went back.
    :param replayed_before: dead letters that somebody had replayed already.
    :param refusals: the first of those that were refused.
    """

    replayed: int = 0
    replayed_before: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal."""
        self.refused += 1
        if len(self.refusals) < REFUSED_MAX:
            self.refusals.append(refusal)


def plan_replay(
    configuration: Configuration, selection: DeadLetterSelection, limit: int | None = None
) -> ReplayPlan:
    """Choose the dead letters; nothing is written.

    :param limit: the oldest so many that were not replayed.
    """
    plan = ReplayPlan()
    for found in find(configuration, selection):
        if found.replayed is not None:
            plan.replayed_before += 1
        elif limit is None or plan.dead_letters < limit:
            _choose(plan, found)
    return plan


def _choose(plan: ReplayPlan, found: Found) -> None:
    stored, key = found.stored, (found.connector, found.letter.topic, found.letter.table)
    plan.places.setdefault(found.connector, set()).add((stored.partition, stored.offset))
    plan.counts[key] = plan.counts.get(key, 0) + 1


def replay(
    configuration: Configuration,
    plan: ReplayPlan,
    *,
    by: str | None = None,
    why: str = BY_COMMAND_LINE,
) -> ReplayReport:
    """Carry a plan out: every dead letter goes back once, whoever else tries the same. What is
    about to be done stands in the ledger first.

    :param by: who decides; None: who runs this.
    :raises OvertakenError: somebody else began to replay or to purge later.
    :raises TransientError: Kafka does not answer; what was done is marked.
    """
    report, who = ReplayReport(), by or whoever()
    write_done(configuration, REPLAY, [*plan.places], plan.steps(), by=who, why=why)
    for connector, places in plan.places.items():
        _ConnectorReplay(configuration, connector, places, report, who).run()
    return report


@dataclass(frozen=True, slots=True)
class _Replayable:
    """A dead letter with the whole message, and what is written for it: message and mark."""

    stored: StoredDeadLetter
    messages: list[Outgoing]

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in the topic of dead letters."""
        return self.stored.partition, self.stored.offset


class _ConnectorReplay:
    """Replays the dead letters of one connector."""

    def __init__(
        self,
        configuration: Configuration,
        connector: str,
        places: set[tuple[int, int]],
        report: ReplayReport,
        by: str,
    ) -> None:
        self._configuration = configuration
        self._connector = connector
        self._places = set(places)
        self._report = report
        self._topic = configuration.dead_letters_topic
        self._access: KafkaAccess = kafka_access(configuration, connector)
        self._admin = make_admin(self._access)
        self._topics: dict[str, TopicFacts | None] = {}
        self._claims = ClaimsOfLetters(configuration, connector, SourceLog(self._admin))
        self._run = uuid4().hex[:12]
        self._by = by

    def run(self) -> None:
        """1. Fence others. 2. Read the marks. 3. Write. Anew where an outcome is unknown."""
        with closing(DeadLetterTopic(self._access, self._topic)) as held:
            self._run_in(held)

    def _run_in(self, held: DeadLetterTopic) -> None:
        writer = DeadLetterWriter(self._access, self._topic)
        for number in range(1, _ROUNDS_MAX + 1):
            writer.open()
            mine, others = self._marked(held)
            self._places -= others | mine
            try:
                with closing(OriginalReader(self._access)) as originals:
                    for batch in _batches(self._outgoing(held, originals)):
                        self._claims.give_up(each.stored.letter for each in batch)
                        writer.write([item for each in batch for item in each.messages])
                        self._places -= {each.place for each in batch}
                        self._report.replayed += len(batch)
            except OvertakenError as error:
                raise OvertakenError(
                    f"{error}; this one had replayed {self._report.replayed} by then"
                ) from None
            except (TransientError, InDoubtError) as error:
                if number == _ROUNDS_MAX:
                    raise
                _logger.warning("%s; reading what was replayed, and going on", error)
                time.sleep(_PAUSE_SECONDS)
                continue
            writer.wait_until_readable()
            return

    def _marked(self, held: DeadLetterTopic) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Planned dead letters that were replayed: by this run, and by others; counted once."""
        marks = held.replayed(to_log_end=True)
        planned = {place: mark for place, mark in marks.items() if place in self._places}
        mine = {place for place, mark in planned.items() if mark.run == self._run}
        others = planned.keys() - mine
        self._report.replayed += len(mine)
        self._report.replayed_before += len(others)
        return mine, others

    def _outgoing(self, held: DeadLetterTopic, originals: OriginalReader) -> Iterator[_Replayable]:
        """For each dead letter, its message and its mark; refusals are noted."""
        for record in held.records(to_log_end=True):
            if not isinstance(record, StoredDeadLetter):
                continue
            place = (record.partition, record.offset)
            if place not in self._places:
                continue
            try:
                stored = originals.whole(record)
            except OriginGoneError as error:
                self._refuse(record, error.message, error.hint)
                continue
            message = replayed_message(self._topic, stored)
            why = self._why_not(record, message)
            if why is not None:
                self._refuse(record, *why)
                continue
            mark = Replayed(record.partition, record.offset, now_ms(), self._by, self._run)
            yield _Replayable(stored, [message, replayed_mark(self._topic, record, mark)])

    def _refuse(self, stored: StoredDeadLetter, why: str, hint: str) -> None:
        self._places.discard((stored.partition, stored.offset))
        self._report.refuse(Refusal(self._connector, stored, why, hint))

    def _why_not(self, stored: StoredDeadLetter, message: Outgoing) -> tuple[str, str] | None:
        """Why a dead letter cannot be replayed, and what to do; None if it can."""
        letter = stored.letter
        if not self._configuration.reads(self._connector, letter.topic):
            return (
                f"connector {self._connector} does not load the topic {letter.topic}",
                "Add the topic to the connector and to a table entry, or purge the dead letter.",
            )
        entries = [table.name for table in self._configuration.tables_of(letter.topic)]
        table = only_table(letter)
        if table and table not in entries:
            return (
                f"the topic {letter.topic} goes to no table entry {table}",
                f"Its entries are: {', '.join(entries)}. Rename one back, or purge the dead "
                "letter.",
            )
        if letter.topic not in self._topics:
            self._topics[letter.topic] = describe_topic(self._admin, letter.topic)
        facts = self._topics[letter.topic]
        if facts is None or letter.partition >= facts.partitions:
            return (
                f"there is no partition {letter.partition} of {letter.topic} any more",
                "Create it again, or purge the dead letter.",
            )
        bytes_max = int(facts.settings["max.message.bytes"])
        if message.bytes > bytes_max:
            return (
                f"with the headers of a replay the message has {message.bytes} bytes, and "
                f"{letter.topic} takes {bytes_max}",
                f"Set max.message.bytes of {letter.topic} to {message.bytes} at least.",
            )
        return None


def _batches(items: Iterable[_Replayable]) -> Iterator[list[_Replayable]]:
    batch: list[_Replayable] = []
    size = 0
    for item in items:
        weight = sum(message.bytes for message in item.messages)
        if batch and (len(batch) >= _BATCH_LETTERS or size + weight > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += weight
    if batch:
        yield batch


class ClaimsOfLetters:
    """Of one connector. A message that was parked after an attempt has claimed for it may have
    claims; so may one that only today's table lets be a row. Others have none.

    :param log: of its topics.
    """

    def __init__(self, configuration: Configuration, connector: str, log: SourceLog) -> None:
        self._configuration = configuration
        self._connector = connector
        self._log = log
        self._entries = {t.name for t in configuration.tables if t.deduplicate is not None}
        self._spec: LoadSpec | None = None
        self._hashing: dict[str, MessageKeys] = {}

    def give_up(self, letters: Iterable[DeadLetter]) -> None:
        """Take the claims back that these messages have for the table entries that missed them.
        Those of other messages stay, whatever their keys.

        :param letters: with whole values.
        :raises SluiceError: Kafka, a server or the store does not answer; nothing else is done.
        """
        by_place: dict[tuple[str, TopicPartition, str], dict[int, DeadLetter]] = {}
        for letter in letters:
            if letter.table in self._entries and letter.value is not None:
                source = TopicPartition(letter.topic, letter.partition)
                place = (letter.table, source, letter.topic_id)
                by_place.setdefault(place, {})[letter.offset] = letter
        if not by_place:
            return
        names = sorted({source.topic for _, source, _ in by_place})
        topic_ids = {topic: found for topic, (found, _) in self._log.topics(names).items()}
        with closing(store_of(self._configuration)) as store:
            for (entry, source, then), found in by_place.items():
                hashing = self._hashing_of(entry)
                if hashing is None or source.topic not in topic_ids:
                    continue
                some = [found[offset] for offset in sorted(found)]
                topic_id = then or topic_ids[source.topic]
                keyed = hashing.of(source, topic_id, partial(_deliver, some))
                if len(keyed.keys):
                    store.release(keyed.keys, keyed.owners)

    def _hashing_of(self, entry: str) -> MessageKeys | None:
        """What computes keys under today's load spec, under which the copy is loaded; None: the
        connector loads no such entry."""
        if entry not in self._hashing:
            if self._spec is None:
                self._spec = read_spec(self._configuration, self._connector)
            for table in self._spec.tables:
                if table.entry == entry:
                    registry = registry_access(self._configuration)
                    # The copy is for this entry, whatever its route takes by now.
                    mine = replace(table, route=None)
                    self._hashing[entry] = MessageKeys(self._spec, mine, registry)
        return self._hashing.get(entry)


def _deliver(letters: list[DeadLetter], router: Router) -> None:
    """The messages as they stand in their dead letters, ascending."""
    router.look([(each.key, each.headers, each.timestamp_ms) for each in letters])
    values = [each.value or b"" for each in letters]
    router.deliver(values, [each.offset for each in letters])
