"""Last stable offsets of many partitions: one request for each broker that leads some of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import confluent_kafka as ck
import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError, kafka_error
from sluice.kafka.wire import messages
from sluice.kafka.wire.cluster import Cluster
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import OFFSETS, BrokenAnswerError, Cursor, Leader

#: A broker that did not answer is left out for so long, and for twice as long after each failure
#: in a row: whoever asks waits for it, and the other brokers' partitions with it.
REST_SECONDS = 1.0
REST_SECONDS_MAX = 30.0
#: An answer is waited for so long, and twice as long after each failure in a row.
WAIT_SECONDS = 2.0
WAIT_SECONDS_MAX = 7.0
#: Who leads is asked at most so often while some ends are missing, and so often in any case: a
#: broker that is cut off from its cluster may take itself for the leader for long.
PLAN_SECONDS = 1.0
PLAN_AGAIN_SECONDS = 60.0

#: Of a partition in an answer, the bytes that say which one it is; they come first.
_NUMBER_BYTES = 4

Ends = Mapping[TopicPartition, EpochOffset]


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the partitions stand in an answer. A broker answers in the order in which it is asked,
    so that one answer tells it of the next ones, too: of a thousand topics, to find the place of
    each takes 5 ms, to look at all places at once 0.1 ms [measured].

    :param sources: in this order; None: nobody asked for it.
    :param places: of the bytes of each, one row for each source.
    :param around: of the bytes that name topics and partitions.
    :param names: what stands there.
    """

    sources: list[TopicPartition | None]
    places: NDArray[np.intp]
    around: NDArray[np.intp]
    names: NDArray[np.uint8]

    @staticmethod
    def of(data: memoryview, asked: Mapping[str, Mapping[int, TopicPartition]]) -> _Layout:
        """The layout of an answer.

        :raises BrokenAnswerError: it is not about what was asked for.
        """
        sources: list[TopicPartition | None] = []
        begins: list[int] = []
        for topic, begin, told in messages.read_list_offsets(Cursor(data)):
            own = asked.get(topic, {})
            sources += [own.get(number) for number in told["partition"].tolist()]
            begins += range(begin, begin + told.nbytes, OFFSETS.itemsize)
        if len(set(sources) - {None}) != sum(map(len, asked.values())):
            raise BrokenAnswerError("an answer about offsets is not about what was asked for")
        places = np.add.outer(np.array(begins, np.intp), np.arange(OFFSETS.itemsize))
        # What comes first is for how long the broker slows us down.
        around = np.setdiff1d(np.arange(4, len(data)), places[:, _NUMBER_BYTES:])
        return _Layout(sources, places, around, np.frombuffer(data, np.uint8)[around])

    def read(self, data: memoryview) -> NDArray[np.void] | None:
        """The partitions as `OFFSETS`, in the order of the sources; None: it is laid out in another
        way."""
        held = np.frombuffer(data, np.uint8)
        told_bytes = len(self.places) * (OFFSETS.itemsize - _NUMBER_BYTES)
        if len(held) != 4 + len(self.around) + told_bytes:
            return None
        if not np.array_equal(held[self.around], self.names):
            return None
        return held[self.places].view(OFFSETS)[:, 0]


@dataclass(slots=True, eq=False)
class _Asked:
    """One broker, and what it is asked for again and again.

    :param address: where it is; a broker that comes back elsewhere does not rest.
    :param sources: of its partitions, by topic and number.
    :param answer: its last one, without what it says of throttling.
    :param layout: of that one.
    :param rows: what stood there.
    :param found: what that was. An end that did not move stays the same object.
    """

    leader: Leader
    address: tuple[str, int]
    body: bytes
    sources: dict[str, dict[int, TopicPartition]]
    answer: bytes = b""
    layout: _Layout | None = None
    rows: NDArray[np.void] | None = None
    found: dict[TopicPartition, EpochOffset] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Rest:
    """How long a broker that did not answer is left out."""

    until: float
    seconds: float
    why: str


class StableEnds:
    """Asks for the last stable offsets of a connector's partitions. One thread uses it at a time.

    An idle partition costs nearly nothing: an answer that is the same as the one before is not
    looked into.
    """

    def __init__(self, access: KafkaAccess) -> None:
        self._cluster = Cluster(access)
        self._sources: list[TopicPartition] = []
        self._asked: list[_Asked] = []
        #: Why somebody's leader is not known.
        self._unled: SluiceError | None = None
        self._planned_at = self._plan_at = 0.0
        self._was_complete = True
        self._rests: dict[tuple[str, int], _Rest] = {}
        self._merged: dict[TopicPartition, EpochOffset] = {}

    def leader_of(self, source: TopicPartition) -> int:
        """The id of the broker that leads a partition; -1: it is not known."""
        leader = self._cluster.leader_of(source)
        return -1 if leader is None else leader.broker

    def ask(self, sources: Sequence[TopicPartition]) -> tuple[Ends, SluiceError | None]:
        """What is known now, and why some of the partitions are missing, if they are. The same
        object comes back as long as nothing has changed.

        :raises ConfigurationError: a broker is too old.
        :raises SluiceError: nobody can say who leads.
        """
        now = time.monotonic()
        if self._sources != sources or now >= self._plan_at:
            self._plan(sources, now)
        failure = self._unled
        before = [asked.found for asked in self._asked]
        sent = self._send()
        sent_at = time.monotonic()
        for asked, connection in sent:
            try:
                self._wait(asked, connection, sent_at)
                _take(asked, connection.receive())
            except (OSError, SluiceError) as error:
                self._failed(asked, error)
            else:
                self._rests.pop(asked.address, None)
        for asked in self._asked:
            failure = _refused(asked) or self._resting(asked) or failure
        if any(asked.found is not found for asked, found in zip(self._asked, before, strict=True)):
            self._merged = {s: end for asked in self._asked for s, end in asked.found.items()}
        self._plan_next(is_complete=failure is None)
        return self._merged, failure

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()

    def _plan_next(self, *, is_complete: bool) -> None:
        """Where an end is missing for the first time, who leads is asked at once."""
        self._plan_at = self._planned_at + (PLAN_AGAIN_SECONDS if is_complete else PLAN_SECONDS)
        if self._was_complete and not is_complete:
            self._plan_at = 0.0
        self._was_complete = is_complete

    def _plan(self, sources: Sequence[TopicPartition], now: float) -> None:
        """Find out whom to ask for what; of those that have an end it is known for a while.

        :raises SluiceError: nobody can say who leads.
        """
        is_old = now - self._planned_at >= PLAN_AGAIN_SECONDS
        for source in sources:
            if is_old or source not in self._merged:
                self._cluster.forget(source)
        # Whoever asks after a failure here must not be told of what was asked for before.
        self._sources, self._asked, self._merged, self._plan_at = [], [], {}, 0.0
        errors = self._find_leaders(sources)
        groups: dict[int, list[TopicPartition]] = {}
        self._unled = None
        for source in sources:
            leader = self._cluster.leader_of(source)
            if leader is not None:
                groups.setdefault(leader.broker, []).append(source)
            elif self._unled is None:
                code = errors.get(source.topic) or ck.KafkaError.LEADER_NOT_AVAILABLE
                self._unled = kafka_error(f"asking who leads {source}", ck.KafkaError(code))
        self._asked = [self._asking(Leader(broker, 0), led) for broker, led in groups.items()]
        self._sources, self._planned_at = list(sources), now

    def _asking(self, leader: Leader, led: list[TopicPartition]) -> _Asked:
        by_topic: dict[str, dict[int, TopicPartition]] = {}
        for source in led:
            by_topic.setdefault(source.topic, {})[source.partition] = source
        body = messages.list_offsets_body(led, messages.LATEST)
        return _Asked(leader, self._cluster.address(leader), body, by_topic)

    def _find_leaders(self, sources: Sequence[TopicPartition]) -> Mapping[str, int]:
        """The errors of topics; over a new connection if the first one has ended meanwhile.

        :raises SluiceError: no broker answers.
        """
        try:
            return self._cluster.find_leaders(sources)
        except (OSError, SluiceError):
            self._cluster.close()
            try:
                return self._cluster.find_leaders(sources)
            except OSError as error:
                self._cluster.close()
                raise KafkaUnavailableError(f"asking who leads: {error}") from None

    def _send(self) -> list[tuple[_Asked, Connection]]:
        """Ask all brokers before the first answer is waited for. A connection that was closed while
        nobody used it is opened again."""
        now, sent = time.monotonic(), []
        for asked in self._asked:
            rest = self._rests.get(asked.address)
            if rest is not None and now < rest.until:
                continue
            try:
                try:
                    connection = self._cluster.connection(asked.leader)
                    connection.send(messages.LIST_OFFSETS, asked.body)
                except ConnectionError:
                    self._cluster.disconnect(asked.leader)
                    connection = self._cluster.connection(asked.leader)
                    connection.send(messages.LIST_OFFSETS, asked.body)
            except (OSError, SluiceError) as error:
                self._failed(asked, error)
                continue
            sent.append((asked, connection))
        return sent

    def _wait(self, asked: _Asked, connection: Connection, since: float) -> None:
        """All brokers have been asked at the same time: who is silent costs the time of one."""
        rest = self._rests.get(asked.address)
        longer = 1.0 if rest is None else rest.seconds / REST_SECONDS
        seconds = min(WAIT_SECONDS * longer, WAIT_SECONDS_MAX)
        if not connection.comes(max(since + seconds - time.monotonic(), 0.0)):
            raise TimeoutError(f"{connection.name} sent nothing for {seconds:.0f} s")

    def _failed(self, asked: _Asked, error: Exception) -> None:
        """A broker is left out for a while. Whatever it says may pass, but that it is too old."""
        if isinstance(error, ConfigurationError):
            raise error
        before = self._rests.get(asked.address)
        seconds = REST_SECONDS if before is None else min(2 * before.seconds, REST_SECONDS_MAX)
        self._rests[asked.address] = _Rest(time.monotonic() + seconds, seconds, str(error))
        self._cluster.disconnect(asked.leader)
        asked.answer, asked.rows, asked.found, asked.errors = b"", None, {}, {}

    def _resting(self, asked: _Asked) -> SluiceError | None:
        rest = self._rests.get(asked.address)
        if rest is None:
            return None
        return KafkaUnavailableError(f"broker {asked.leader.broker} does not answer: {rest.why}")


def _refused(asked: _Asked) -> SluiceError | None:
    """Why some of a broker's partitions have no end."""
    if not asked.errors:
        return None
    source, code = next(iter(asked.errors.items()))
    return kafka_error(f"asking for the end of {source}", ck.KafkaError(code))


def _take(asked: _Asked, data: memoryview) -> None:
    """Read an answer, if it is another one than before."""
    answer = bytes(data[4:])  # what comes first is for how long the broker slows us down
    if answer == asked.answer:
        return
    layout, before = asked.layout, asked.rows
    rows = None if layout is None else layout.read(data)
    if layout is None or rows is None:
        layout, before = _Layout.of(data, asked.sources), None
        rows = layout.read(data)
        assert rows is not None
    places = np.arange(len(rows)) if before is None else np.flatnonzero(rows != before)
    found = {} if before is None else dict(asked.found)
    errors = {} if before is None else dict(asked.errors)
    columns = [rows[name][places].tolist() for name in ("error", "offset", "epoch")]
    for place, error, offset, epoch in zip(places.tolist(), *columns, strict=True):
        source = layout.sources[place]
        if source is None:
            continue
        found.pop(source, None)
        errors.pop(source, None)
        if error:
            errors[source] = error
        else:
            found[source] = EpochOffset(offset, epoch)
    asked.answer, asked.layout, asked.rows = answer, layout, rows
    asked.found, asked.errors = found, errors
