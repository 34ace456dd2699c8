"""Looking at dead letters: which there are, how many of what, and what to do about one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from sluice.config import Configuration
from sluice.core.dead_letters import OTHER_ADVICE, PARKED, REASONS
from sluice.core.errors import TerminalError
from sluice.core.receipts import DeadLetter, Origin
from sluice.driver.specs import kafka_access
from sluice.kafka.dead_letters import DeadLetterTopic, Replayed, StoredDeadLetter


class NoSuchDeadLetterError(TerminalError):
    """No dead letter is of this message."""

    hint = "`sluice dead-letters list` shows those that there are, with their origins."


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters are meant; None takes all.

    :param topic: of the message's origin; likewise `partition` and `offset`.
    :param since_ms: only dead letters that were written since then.
    :param before_ms: only dead letters that were written before.
    :param replayed: only those that were replayed, or that were not.
    :param until: reading is given up then, by `time.monotonic`.
    """

    connector: str | None = None
    table: str | None = None
    reason: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    replayed: bool | None = None
    until: float | None = None

    def takes(self, stored: StoredDeadLetter, *, is_replayed: bool) -> bool:
        """Whether this dead letter is meant."""
        letter, at_ms = stored.letter, stored.written_at_ms
        return (
            self.table in (None, letter.table)
            and self.reason in (None, letter.reason)
            and self.replayed in (None, is_replayed)
            and (self.since_ms is None or at_ms >= self.since_ms)
            and (self.before_ms is None or at_ms < self.before_ms)
            and (self._takes_place(letter.first) or self._takes_place(_place(letter)))
        )

    def _takes_place(self, place: Origin) -> bool:
        return (
            self.topic in (None, place.topic)
            and self.partition in (None, place.partition)
            and self.offset in (None, place.offset)
        )


def _place(letter: DeadLetter) -> Origin:
    return Origin(letter.topic, letter.partition, letter.offset, letter.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Found:
    """A dead letter, and when it was replayed if it was."""

    connector: str
    stored: StoredDeadLetter
    replayed: Replayed | None

    @property
    def letter(self) -> DeadLetter:
        """The dead letter itself."""
        return self.stored.letter


@dataclass(slots=True)
class Count:
    """Dead letters of one table entry and reason.

    :param waiting: of these, not replayed.
    """

    connector: str
    table: str
    reason: str
    dead_letters: int = 0
    waiting: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, found: Found) -> None:
        """Count one."""
        at_ms = found.stored.written_at_ms
        self.dead_letters += 1
        self.waiting += found.replayed is None
        self.first_ms = min(self.first_ms or at_ms, at_ms)
        self.last_ms = max(self.last_ms, at_ms)


def with_topic(configuration: Configuration, of: str | None) -> Configuration:
    """The configuration with the topic that is meant as that of the dead letters.

    :param of: "parking", "duplicates", or else the dead letters themselves.
    """
    topics = {"parking": configuration.parking_topic, "duplicates": configuration.duplicates_topic}
    topic = topics.get(of or "", configuration.dead_letters_topic)
    return replace(configuration, dead_letters_topic=topic)


def find(configuration: Configuration, selection: DeadLetterSelection) -> Iterator[Found]:
    """The dead letters that are meant, oldest first in each partition of their topic.

    The topic is read twice: a dead letter's mark stands behind it.

    :raises SluiceError: a connector's cluster does not answer.
    """
    if selection.connector is not None:
        configuration.connector(selection.connector)
    topic = configuration.dead_letters_topic
    for connector in configuration.connectors:
        if selection.connector not in (None, connector.name):
            continue
        access = kafka_access(configuration, connector.name)
        with closing(DeadLetterTopic(access, topic)) as held:
            if not held.is_there:
                continue  # nothing ever ran here
            since_ms, until = selection.since_ms, selection.until
            marks = held.replayed(since_ms=since_ms, until=until)
            for record in held.records(since_ms=since_ms, until=until):
                if not isinstance(record, StoredDeadLetter):
                    continue
                mark = marks.get((record.partition, record.offset))
                if is_of(configuration, connector.name, record.letter) and selection.takes(
                    record, is_replayed=mark is not None
                ):
                    yield Found(connector.name, record, mark)


def is_of(configuration: Configuration, connector: str, letter: DeadLetter) -> bool:
    """Whether a dead letter was written by this connector; several may share one topic."""
    return letter.connector in ("", f"{configuration.pipeline}.{connector}")


def find_one(configuration: Configuration, selection: DeadLetterSelection) -> list[Found]:
    """Every dead letter of one message: of each table entry, and of each attempt.

    :raises NoSuchDeadLetterError: there is none.
    """
    found = list(find(configuration, selection))
    if not found:
        raise NoSuchDeadLetterError(
            f"no dead letter is of {selection.topic}[{selection.partition}] offset "
            f"{selection.offset}"
        )
    return found


def summarise(dead_letters: Iterator[Found]) -> list[Count]:
    """How many dead letters of what, most first."""
    counts: dict[tuple[str, str, str], Count] = {}
    for found in dead_letters:
        key = (found.connector, found.letter.table, found.letter.reason)
        counts.setdefault(key, Count(*key)).add(found)
    return sorted(
        counts.values(), key=lambda count: (-count.dead_letters, count.table, count.reason)
    )


def advice(found: Found) -> str:
    """What a person can do about a dead letter."""
    letter = found.letter
    if found.replayed is not None:
        return (
            "Nothing: it was replayed. If it was bad again, that is a dead letter of its own "
            "with a "
            "higher attempt."
        )
    known = REASONS.get(letter.reason)
    said = known.advice if known else OTHER_ADVICE
    if "replay" not in said:
        said = f"{said} If it is good now, replay."
    first = letter.first
    parked = "--parked " if letter.reason == PARKED else ""
    return (
        f"{said} sluice dead-letters replay CONFIG {parked}--topic {first.topic} "
        f"--partition {first.partition} --offset {first.offset}"
    )
