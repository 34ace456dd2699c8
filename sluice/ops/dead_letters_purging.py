"""Purging dead letters: deleting them for good.

Kafka deletes a log's records only from its front. So a purge deletes, in each partition of the
dead-letter topic, up to the first dead letter that is not meant; dead letters behind it that are
meant stay, and are counted. Before, a mark says which messages' dead letters go, so that an audit
goes on counting those messages as dead-lettered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from sluice.config import Configuration
from sluice.core.dead_letters import DUPLICATE
from sluice.core.decided import PURGE
from sluice.core.errors import TerminalError
from sluice.core.ranges import Interval, intervals_of
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.dead_letters import (
    DeadLetterKey,
    DeadLetterTopic,
    Purged,
    Replayed,
    StoredDeadLetter,
    joined,
    purged_marks,
)
from sluice.kafka.replaying import DeadLetterWriter, delete_before
from sluice.machine.clock import now_ms
from sluice.ops.dead_letters import DeadLetterSelection
from sluice.ops.driver_decisions import BY_COMMAND_LINE, whoever, write_done


class NothingToPurgeError(TerminalError):
    """No dead letter that is meant can be deleted."""


@dataclass(slots=True)
class PartitionPurge:
    """What goes from one partition of the dead-letter topic.

    :param before: its records below this offset are deleted; 0 if none is.
    :param dead_letters: dead letters among them.
    :param kept: dead letters that are meant, but stand behind one that is not.
    :param first_kept: that one.
    """

    before: int = 0
    dead_letters: int = 0
    kept: int = 0
    first_kept: StoredDeadLetter | None = None
    _offsets: dict[DeadLetterKey, list[int]] = field(default_factory=dict)
    _earlier: list[Mapping[DeadLetterKey, tuple[Interval, ...]]] = field(default_factory=list)
    _pending: list[Mapping[DeadLetterKey, tuple[Interval, ...]]] = field(default_factory=list)

    def take(self, record: StoredDeadLetter | Replayed | Purged, *, is_meant: bool) -> None:
        """Take the next record of the partition in."""
        if isinstance(record, Replayed):
            return
        if isinstance(record, Purged):
            # If it goes as well, what it says must not be lost.
            if record.is_done:
                self._pending.append(record.offsets)
            return
        if not is_meant:
            self.first_kept = self.first_kept or record
        elif self.first_kept is not None:
            self.kept += 1
        else:
            letter = record.letter
            if letter.reason != DUPLICATE:  # what the ledger knows needs no mark
                where = letter.topic, letter.partition, letter.table
                key = DeadLetterKey(*where, letter.topic_id, letter.generation)
                self._offsets.setdefault(key, []).append(letter.offset)
            self.dead_letters += 1
            self.before = record.offset + 1
            self._earlier += self._pending
            self._pending = []

    def offsets(self) -> dict[DeadLetterKey, tuple[Interval, ...]]:
        """The messages whose dead letters go, and those that marks among them speak of."""
        own = {key: intervals_of(offsets) for key, offsets in self._offsets.items()}
        return joined([*self._earlier, own])


@dataclass(slots=True)
class PurgePlan:
    """What a purge would delete, by connector."""

    partitions: dict[str, dict[int, PartitionPurge]] = field(default_factory=dict)

    @property
    def dead_letters(self) -> int:
        """Dead letters to be deleted."""
        return sum(each.dead_letters for _, _, each in self.all())

    @property
    def kept(self) -> int:
        """Dead letters that are meant, but cannot be deleted singly."""
        return sum(each.kept for _, _, each in self.all())

    def all(self) -> Iterator[tuple[str, int, PartitionPurge]]:
        """Every partition of every connector."""
        for connector, partitions in self.partitions.items():
            for number, each in sorted(partitions.items()):
                yield connector, number, each

    def steps(self, topic: str) -> list[str]:
        """All of it, in sentences."""
        said = []
        for connector, number, each in self.all():
            where = f"{topic}[{number}] of connector {connector}"
            if each.dead_letters:
                said.append(
                    f"delete {each.dead_letters} dead letters for good: the records of {where} "
                    "before "
                    f"offset {each.before}"
                )
            if each.kept and each.first_kept is not None:
                said.append(f"keep {each.kept} that are meant as well: {_why_kept(each, where)}")
        return said


def _why_kept(each: PartitionPurge, where: str) -> str:
    kept = each.first_kept
    assert kept is not None
    letter = kept.letter
    return (
        f"Kafka deletes only from the front, and they stand behind the dead letter at offset "
        f"{kept.offset} of {where} ({letter.table or 'no table'}, {letter.reason}), which is not "
        "meant"
    )


def plan_purge(configuration: Configuration, selection: DeadLetterSelection) -> PurgePlan:
    """Choose; nothing is written.

    :raises NothingToPurgeError: nothing can be deleted.
    """
    if selection.connector is not None:
        configuration.connector(selection.connector)
    plan = PurgePlan()
    for connector in _one_for_each_cluster(configuration, selection):
        access = kafka_access(configuration, connector)
        plan.partitions[connector] = _choose(configuration, connector, access, selection)
    if not plan.dead_letters:
        raise NothingToPurgeError(
            "no dead letter that is meant can be deleted",
            "; ".join(plan.steps(configuration.dead_letters_topic))
            or "`sluice dead-letters list` with the same options shows those that are meant.",
        )
    return plan


def purge(
    configuration: Configuration,
    selection: DeadLetterSelection,
    planned: PurgePlan,
    *,
    by: str | None = None,
    why: str = BY_COMMAND_LINE,
) -> PurgePlan:
    """Choose again, alone, and delete; never beyond what was planned. What is about to be done
    stands in the ledger first.

    :param by: who decides; None: who runs this.
    :returns: what was deleted.
    :raises OvertakenError: somebody else began to replay or to purge later.
    :raises SluiceError: Kafka does not answer, or refuses.
    """
    done = PurgePlan()
    topic, who = configuration.dead_letters_topic, by or whoever()
    steps, names = planned.steps(topic), [*planned.partitions]
    write_done(configuration, PURGE, names, steps, by=who, why=why)
    selection = replace(selection, until=None)
    for connector, partitions in planned.partitions.items():
        access = kafka_access(configuration, connector)
        befores = {number: each.before for number, each in partitions.items() if each.dead_letters}
        if not befores:
            continue
        writer, admin = DeadLetterWriter(access, topic), make_admin(access)
        writer.open()
        chosen = _choose(configuration, connector, access, selection, befores)
        chosen = {number: each for number, each in chosen.items() if each.dead_letters}
        for number, each in chosen.items():
            mark = Purged(number, each.before, now_ms(), who, each.offsets())
            writer.write(purged_marks(topic, mark))
        writer.wait_until_readable()
        delete_before(admin, topic, {number: each.before for number, each in chosen.items()})
        done.partitions[connector] = chosen
    return done


def _one_for_each_cluster(
    configuration: Configuration, selection: DeadLetterSelection
) -> list[str]:
    """Connectors of one cluster share the topic, and are purged together."""
    if selection.connector is not None:
        return [selection.connector]
    by_brokers = {each.brokers: each.name for each in reversed(configuration.connectors)}
    return [each.name for each in configuration.connectors if each.name in by_brokers.values()]


def _connectors_of(
    configuration: Configuration, connector: str, selection: DeadLetterSelection
) -> set[str]:
    """Whose dead letters are meant: a connector's, or those of all that share its cluster."""
    brokers = configuration.connector(connector).brokers
    names = [each.name for each in configuration.connectors if each.brokers == brokers]
    meant = names if selection.connector is None else [connector]
    return {"", *(f"{configuration.pipeline}.{name}" for name in meant)}


def _choose(
    configuration: Configuration,
    connector: str,
    access: KafkaAccess,
    selection: DeadLetterSelection,
    befores: Mapping[int, int] | None = None,
) -> dict[int, PartitionPurge]:
    """What goes from each partition.

    :param befores: nothing from these offsets on.
    """
    found: dict[int, PartitionPurge] = {}
    with closing(DeadLetterTopic(access, configuration.dead_letters_topic)) as held:
        if not held.is_there:
            return found
        marks = held.replayed(to_log_end=True, until=selection.until)
        connectors = _connectors_of(configuration, connector, selection)
        for record in held.records(to_log_end=True, until=selection.until):
            is_meant = False
            if isinstance(record, StoredDeadLetter):
                is_replayed = (record.partition, record.offset) in marks
                is_meant = record.letter.connector in connectors and selection.takes(
                    record, is_replayed=is_replayed
                )
                if befores is not None and record.offset >= befores.get(record.partition, 0):
                    is_meant = False
            found.setdefault(record.partition, PartitionPurge()).take(record, is_meant=is_meant)
    return found
