"""Recording intents: one Kafka transaction for many partitions (R1 to R5).

Fencing (R4). Kafka fences per `transactional.id` and does not tie partitions to one
(H1). So each record names its owner, and only a producer with the owner's id writes the
next record. Who takes over initialises the old owner's id, which fences the old owner,
then reads, then commits its first record under that old id, naming itself. Two
successors therefore use the same id, and Kafka lets one of them through.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import confluent_kafka as ck

from sluice.core.errors import (
    ForeignHandsError,
    InDoubtError,
    OwnerChangedError,
    SluiceError,
    TransientError,
)
from sluice.core.ledger import Commit, CommittedOffset, CommittedOffsets
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, Record, decode
from sluice.kafka.clients import KafkaAccess, make_consumer, make_producer, make_unstable_reader
from sluice.kafka.errors import (
    PASSING,
    FencedError,
    KafkaUnavailableError,
    UnknownCommitError,
)
from sluice.kafka.offsets import ask, owner_in, shown
from sluice.kafka.transactions import (
    COMMIT_PATIENCE_SECONDS,
    Content,
    RecorderNames,
    initialise,
    transact,
)

_logger = logging.getLogger("sluice.kafka")

#: A producer that is younger is kept: a fleet's member reserves nothing for some seconds after each
#: new one (R24), and some connection may be lost again and again.
RENEWED_AFTER_SECONDS = 10.0
#: A fenced owner that still stands in the group waits for the successor's first record.
SUCCESSOR_PATIENCE_SECONDS, _SUCCESSOR_LOOKS_SECONDS = 3.0, 0.3

_Answer = TypeVar("_Answer")


_Passing = tuple[type[SluiceError], ...]


class StopRequestedError(InDoubtError):
    """The driver was asked to stop while Kafka was away: what was under way may be committed, and
    nobody may go on as if it were not."""

    hint = "The intents stay in doubt; the next start resolves them."


class _StoppingError(KafkaUnavailableError):
    """The driver is to stop, and does not wait longer for an answer; nothing is under way."""


@contextmanager
def _in_doubt() -> Iterator[None]:
    """A transaction is under way: who stops without an answer does not know what is committed."""
    try:
        yield
    except _StoppingError as error:
        raise StopRequestedError(str(error)) from None


@dataclass(slots=True)
class TakeOver:
    """Old owners are fenced; the stable view that the first records must build on."""

    found: CommittedOffsets
    owners: dict[TopicPartition, str]
    producers: dict[str, ck.Producer]


class _OwnProducer:
    """The producer of a recorder's own id.

    :param initialise: the id, with a new producer, which calls what it is given where it has lost a
        connection to a broker; waits for Kafka without end.
    """

    def __init__(self, initialise: Callable[[Callable[[], None]], ck.Producer]) -> None:
        self._initialise = initialise
        self.now: ck.Producer | None = None
        #: How often the id was initialised.
        self.initialised = 0
        #: Whether this one has sent offsets.
        self._has_sent = False
        self._lost = threading.Event()
        self._began = 0.0

    def get(self) -> ck.Producer:
        """It, initialised."""
        if self.now is None:
            self.now = self._initialise(self._lost.set)
            self.initialised += 1
            # What it lost before is in the way of no offsets.
            self._has_sent = False
            _hear(self.now)
            self._lost.clear()
            self._began = time.monotonic()
        return self.now

    def drop(self) -> None:
        """The next one is made anew."""
        self.now = None

    def sends(self, producer: ck.Producer) -> None:
        """Offsets are sent by this producer, which may be the own one."""
        self._has_sent = self._has_sent or producer is self.now

    def get_without_lost_broker(self, ask: Callable[[], object]) -> ck.Producer:
        """As `get`. Where it has sent offsets and lost a broker since, the next ones may wait for a
        connection that it has given up (H6), so it is made anew.

        :param ask: raises while Kafka does not answer: nobody is to wait for that in `get`.
        """
        if self.now is not None and self._has_sent:
            _hear(self.now)
            is_young = time.monotonic() - self._began < RENEWED_AFTER_SECONDS
            if self._lost.is_set() and not is_young:
                ask()
                self.drop()
        return self.get()


def _hear(producer: ck.Producer) -> None:
    """Have it call what is to be told. What is fatal to it its next transaction tells, too."""
    with suppress(ck.KafkaException):
        producer.poll(0)


class Recorder:
    """The intent log of one loop. One thread uses it at a time; others may `look` where none of
    them `looks_often`."""

    def __init__(
        self,
        access: KafkaAccess,
        names: RecorderNames,
        *,
        now_ms: Callable[[], int],
        stop: threading.Event | None = None,
        looks_often: bool = False,
    ) -> None:
        self._access, self.names = access, names
        self._now_ms, self._stop = now_ms, stop or threading.Event()
        self._reader = make_consumer(access, names.group, retry_backoff_ms=10)
        #: A reader of unstable offsets costs connections and threads.
        self._peek = make_unstable_reader(access, names.group) if looks_often else None
        self._own = _OwnProducer(partial(self._initialised, names.owner))
        #: Partitions that this driver has recorded, or wanted to.
        self._recorded: set[TopicPartition] = set()

    # Reading

    def committed(self, sources: Iterable[TopicPartition]) -> CommittedOffsets:
        """What the group holds, stable reads only (H5); waits while a transaction is open.

        :raises KafkaUnavailableError: no stable answer within the time limit.
        """
        wanted = list(sources)
        if not wanted:
            return {}
        deadline = time.monotonic() + COMMIT_PATIENCE_SECONDS
        while True:
            try:
                return ask(self._reader, wanted, 5.0)
            except TransientError:
                if time.monotonic() > deadline:
                    raise
                self._pause(0.1)

    def differences(self, expected: Mapping[TopicPartition, Record]) -> dict[TopicPartition, str]:
        """Partitions whose committed record is not the expected one (R5), and how.

        This owner's id is initialised before the look, if it has to be: who takes one of these
        partitions over afterwards fences it, so what is recorded next is not.

        :raises OwnerChangedError: the difference is a valid record of another owner, or a later
            one that names this owner (R25): who wrote it has fenced this one.
        """
        self._own.get_without_lost_broker(lambda: self.committed(expected))
        found = self.committed(expected)
        different: dict[TopicPartition, str] = {}
        for source, record in expected.items():
            now = found[source]
            if now == CommittedOffset.of(record):
                continue
            other, where = owner_in(now), f"{source} of group {self.names.group}"
            if other not in (self.names.owner, GENESIS):
                raise OwnerChangedError(f"{where} belongs to {other}", owner=other)
            if self.names.is_shared and other == self.names.owner and _batch_in(now) > record.batch:
                raise OwnerChangedError(f"{where} was taken over, and given back")
            different[source] = (
                f"{source}: the group {self.names.group} holds {shown(now)}, "
                f"this owner wrote {shown(CommittedOffset.of(record))}"
            )
        return different

    # Taking over

    def take_over(
        self,
        sources: Iterable[TopicPartition],
        owner_of: Callable[[TopicPartition, CommittedOffset | None], str] | None = None,
    ) -> TakeOver:
        """Fence the old owners of these partitions, then read what they left.

        :param owner_of: replaces the recorded owner, for partitions whose record is gone.
        """
        sources = list(sources)
        self._own.get_without_lost_broker(lambda: self.look(sources))
        producers: dict[str, ck.Producer] = {}
        while True:
            discovered = self.look(sources)
            owners = {s: _owner(s, found, owner_of) for s, found in discovered.items()}
            for owner in sorted(set(owners.values()) - producers.keys()):
                # One's own id again would fence oneself.
                is_own = owner == self.names.owner
                producers[owner] = self.own_producer() if is_own else self._initialised(owner)
            found = self.committed(sources)
            if {s: _owner(s, now, owner_of) for s, now in found.items()} == owners:
                return TakeOver(found, owners, producers)

    def inherit(self, dead: Collection[str], sources: Iterable[TopicPartition]) -> TakeOver:
        """Fence these ids, and nobody else, then read all that their records name (R25). What one
        of them was given since somebody looked is among it: it may be in a bundle with the rest.

        :param sources: all partitions of the connector.
        """
        assert self.names.owner not in dead, "it would fence itself"
        producers = {owner: self._initialised(owner) for owner in sorted(dead)}
        # Nothing of theirs is pending any more; what others write is not theirs.
        peeked = self.look(sources)
        found = self.committed(source for source, at in peeked.items() if owner_in(at) in dead)
        theirs = {source: at for source, at in found.items() if owner_in(at) in dead}
        return TakeOver(theirs, {s: owner_in(at) for s, at in theirs.items()}, producers)

    def finish_take_over(self, take_over: TakeOver, commit: Commit) -> None:
        """Commit the first records under the ids of the old owners (R4).

        :raises OwnerChangedError: another successor was let through.
        :raises TransientError: it is known not to be committed; take over again.
        :raises StopRequestedError: it is to stop, and does not know.
        """
        self._recorded.update(commit.records)
        own = {source: take_over.owners[source] for source in commit.records}
        owners = sorted(set(own.values()))
        for number, owner in enumerate(owners):
            records = {s: r for s, r in commit.records.items() if own[s] == owner}
            entries = tuple(
                entry
                for entry in commit.entries
                if (entry.source is None and number == 0) or entry.source in records
            )
            try:
                self._transact(take_over.producers[owner], Commit(records, entries))
            except FencedError:
                raise OwnerChangedError(
                    f"another driver took group {self.names.group} over at the same moment"
                ) from None
            except UnknownCommitError as error:
                _logger.warning("%s; reading what is committed", error)
                with _in_doubt():
                    if owner == self.names.owner:  # initialised, nothing of it comes any more
                        self._own.drop()
                        self.own_producer()
                    self._find_out_first(records, take_over)
        take_over.producers.clear()

    # Recording

    def record(self, commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        """Commit one transaction; returns only when it is known to be committed.

        The caller has just compared `expected` with the group (R5), by `differences`. Partitions
        that it hands over, to the owners that their records name, are not this one's afterwards.

        :param expected: the records that this one replaces.
        :raises TransientError: it is known not to be committed; may be repeated.
        :raises StopRequestedError: it is to stop, and does not know.
        :raises OwnerChangedError: another owner wrote; or this one, a member of a fleet, was
            fenced: whoever did that may have written its id off (R24).
        """
        assert self._own.now is not None, "initialised after the look, it would fence nobody"
        handed = _handed_over(commit, self.names.owner)
        try:
            self._transact(self._own.now, commit)
        except (FencedError, UnknownCommitError) as error:
            _logger.warning("%s; reading what is committed", error)
            self._own.drop()
            with _in_doubt():
                if isinstance(error, FencedError):
                    self._wait_for_successor(self._recorded.difference(handed))
                    if self.names.is_shared:
                        raise OwnerChangedError(f"{self.names.owner} was fenced") from None
                self._find_out(commit, expected)
        self._recorded -= handed

    def adopt(self, sources: Iterable[TopicPartition]) -> None:
        """These are this owner's, although this recorder has written nothing of them."""
        self._recorded.update(sources)

    def close(self) -> None:
        """Close the clients. An open transaction is left to its time-out."""
        self._own.drop()
        self._reader.close()
        if self._peek is not None:
            self._peek.close()

    # Steps

    def _transact(self, producer: ck.Producer, commit: Commit) -> None:
        metadata = self._reader.consumer_group_metadata()
        self._own.sends(producer)
        content = Content(self._access.connector, self.names, self._now_ms(), commit)
        transact(producer, content, metadata, self._stop)

    def _wait_for_successor(self, sources: Collection[TopicPartition]) -> None:
        """Fenced: by a successor, or by our own transaction's time-out (H4)?

        A successor that fenced us may not have committed yet; initialising at once would
        fence it in turn, for ever. It may have taken one partition only, one that is new to both.
        Until Kafka answers nothing is known.
        """
        for _ in range(round(SUCCESSOR_PATIENCE_SECONDS / _SUCCESSOR_LOOKS_SECONDS)):
            for source, found in self._at_last(lambda: self.committed(sources)).items():
                other = owner_in(found)
                if other not in (self.names.owner, GENESIS):
                    raise OwnerChangedError(
                        f"{source} of group {self.names.group} was taken over by {other}",
                        owner=other,
                    )
            self._pause(_SUCCESSOR_LOOKS_SECONDS)

    def _find_out(self, commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        """A transaction is committed wholly or not at all, so one partition that holds its new
        or its old record tells. One that holds neither is foreign; the next check finds it,
        and stops that partition only (R5).

        One that names another owner proves nothing: whoever took it over may have handed it to the
        same one (R25). Where all were handed over, what names another is not this one's either way.
        """
        handed = _handed_over(commit, self.names.owner)
        kept = {source: r for source, r in commit.records.items() if source not in handed}
        # Its id is initialised by that: nothing of the transaction comes any more.
        if len(self._at_last(lambda: self.differences(kept))) < len(kept):
            return
        if not kept and not _holds_any(self._at_last(lambda: self.committed(expected)), expected):
            return
        different = self._at_last(lambda: self.differences(expected))
        if different and len(different) == len(expected):
            raise ForeignHandsError("; ".join(different.values()))
        raise KafkaUnavailableError("the transaction was not committed")

    def _at_last(self, ask: Callable[[], _Answer], passing: _Passing = PASSING) -> _Answer:
        """An answer, however long Kafka gives none: who goes on without knowing whether it has
        committed takes its own record for a foreign one. After these errors it asks again."""
        while True:
            try:
                return ask()
            except passing as error:
                _logger.warning("%s; it is asked again", error)
                self._pause(0.5)

    def _find_out_first(
        self, records: Mapping[TopicPartition, Record], take_over: TakeOver
    ) -> None:
        """Like `_find_out`, when the record before belongs to the old owner.

        A commit that is nobody's record says nothing of the transaction; a new take-over finds
        it, and stops that partition only (R5).
        """
        held = self.committed(records)
        for source, now in held.items():
            if now == take_over.found[source]:
                raise TransientError("the take-over was not committed", "It is repeated.")
            other = owner_in(now)
            if other not in (self.names.owner, take_over.owners[source], GENESIS):
                raise OwnerChangedError(
                    f"{source} of group {self.names.group} was taken over by {other}"
                )
        for source, now in held.items():
            if now != CommittedOffset.of(records[source]):
                raise TransientError(
                    f"{source}: the group {self.names.group} holds {shown(now)}, which is no "
                    "record, after a take-over of unknown outcome",
                    "It is taken over again; a partition with a foreign commit stops.",
                )

    def look(self, sources: Iterable[TopicPartition]) -> CommittedOffsets:
        """Owners only: a pending transaction of the old owner must not block finding it.

        What an unstable read shows is the last committed record, whose owner is the one to
        fence; everything else is read again, stably, after that.
        """
        wanted = list(sources)
        peek = self._peek or make_unstable_reader(self._access, self.names.group)
        try:
            return self._at_last(lambda: ask(peek, wanted, 10.0), (TransientError,))
        finally:
            if peek is not self._peek:
                peek.close()

    def own_producer(self) -> ck.Producer:
        """Initialised unless it is: who fences this owner's id afterwards fences it for good."""
        return self._own.get()

    @property
    def initialised(self) -> int:
        """How often this owner's id was: who had fenced it before has fenced nobody."""
        return self._own.initialised

    def _initialised(self, owner: str, lost: Callable[[], None] = lambda: None) -> ck.Producer:
        """A producer that fenced everyone else with this id; waits for Kafka till it is to stop."""
        names = self.names
        made = f"{names.group}.{owner}", names.transaction_timeout_ms, names.ledger_topic, lost
        producer: ck.Producer | None = None
        while True:
            producer, failure = _initialise(producer or (self._access, *made))
            if failure is None:
                return producer
            if not isinstance(failure, TransientError | UnknownCommitError):
                raise failure
            _logger.warning("%s", failure)
            self._pause(0.5)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _StoppingError("asked to stop while it waited for Kafka")


def _initialise(
    producer: ck.Producer | tuple[KafkaAccess, str, int, str, Callable[[], None]],
) -> tuple[ck.Producer | None, SluiceError | None]:
    """Initialise a producer, or make one before.

    :returns: it, None if it is of no use any more; and what went wrong.
    """
    try:
        made = make_producer(*producer) if isinstance(producer, tuple) else producer
    except KafkaUnavailableError as error:  # who gives tokens is away
        return None, error
    failure = initialise(made)
    is_kept = failure is None or isinstance(failure, KafkaUnavailableError)
    return made if is_kept else None, failure


def _owner(
    source: TopicPartition,
    found: CommittedOffset | None,
    owner_of: Callable[[TopicPartition, CommittedOffset | None], str] | None,
) -> str:
    return owner_in(found) if owner_of is None else owner_of(source, found)


def _batch_in(found: CommittedOffset | None) -> int:
    return 0 if found is None else decode(found.offset, found.metadata).batch


def _handed_over(commit: Commit, own: str) -> set[TopicPartition]:
    return {source for source, record in commit.records.items() if record.owner != own}


def _holds_any(found: CommittedOffsets, records: Mapping[TopicPartition, Record]) -> bool:
    """Whether any partition holds its one of these records."""
    return any(found[s] == CommittedOffset.of(r) for s, r in records.items())
