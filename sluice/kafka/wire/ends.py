"""Last stable offsets of many partitions: one request for each broker that leads some of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import confluent_kafka as ck

from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError, kafka_error
from sluice.kafka.wire import messages
from sluice.kafka.wire.cluster import LEADER_CODES, Cluster
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import BrokenAnswerError, Cursor, Leader

#: A broker that did not answer is left out for so long, and for twice as long after each failure
#: in a row: whoever asks waits for it, and the other brokers' partitions with it.
REST_SECONDS = 1.0
REST_SECONDS_MAX = 30.0

Ends = Mapping[TopicPartition, EpochOffset]


@dataclass(slots=True, eq=False)
class _Asked:
    """One broker, and what it is asked for again and again.

    :param sources: of its partitions, by topic and number.
    :param answer: its last one, without what it says of throttling.
    :param found: what that was.
    """

    leader: Leader
    body: bytes
    sources: dict[str, dict[int, TopicPartition]]
    answer: bytes = b""
    found: dict[TopicPartition, EpochOffset] = field(default_factory=dict)
    errors: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Rest:
    """How long a broker that did not answer is left out."""

    until: float
    seconds: float
    why: str


class StableEnds:
    """Asks for the stable ends of a connector's partitions. One thread uses it at a time.

    An idle partition costs nearly nothing: an answer that is the same as the one before is not
    looked into.
    """

    def __init__(self, access: KafkaAccess) -> None:
        self._cluster = Cluster(access)
        self._sources: list[TopicPartition] = []
        self._asked: list[_Asked] = []
        self._is_planned = False
        self._rests: dict[int, _Rest] = {}
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
        failure: SluiceError | None = None
        if not self._is_planned or self._sources != sources:
            failure = self._plan(sources)
        is_new = False
        for asked, connection in self._send():
            before = asked.found
            try:
                _take(asked, connection.receive())
            except (OSError, SluiceError) as error:
                failure = self._failed(asked, error)
                is_new |= bool(before)
                continue
            self._rests.pop(asked.leader.broker, None)
            is_new |= asked.found is not before
        for asked in self._asked:
            failure = self._refused(asked) or self._resting(asked) or failure
        if is_new or not self._is_planned:
            self._merged = {s: end for asked in self._asked for s, end in asked.found.items()}
        return self._merged, failure

    def close(self) -> None:
        """Close every connection."""
        self._cluster.close()

    def _plan(self, sources: Sequence[TopicPartition]) -> SluiceError | None:
        """Find out whom to ask for what; what failed of it is asked for again the next time."""
        self._sources, self._merged = list(sources), {}
        failure = self._find_leaders()
        groups: dict[Leader, list[TopicPartition]] = {}
        for source in self._sources:
            leader = self._cluster.leader_of(source)
            if leader is not None:
                groups.setdefault(Leader(leader.broker, 0), []).append(source)
            elif failure is None:
                failure = kafka_error(
                    f"asking who leads {source}", ck.KafkaError(ck.KafkaError.LEADER_NOT_AVAILABLE)
                )
        self._asked = []
        for leader, led in groups.items():
            by_topic: dict[str, dict[int, TopicPartition]] = {}
            for source in led:
                by_topic.setdefault(source.topic, {})[source.partition] = source
            body = messages.list_offsets_body(led, messages.LATEST)
            self._asked.append(_Asked(leader, body, by_topic))
        self._is_planned = failure is None
        return failure

    def _find_leaders(self) -> SluiceError | None:
        """Over a new connection if the first one has ended meanwhile.

        :raises SluiceError: no broker answers.
        """
        try:
            self._cluster.find_leaders(self._sources)
        except (OSError, SluiceError):
            self._cluster.close()
            try:
                self._cluster.find_leaders(self._sources)
            except OSError as error:
                self._cluster.close()
                raise KafkaUnavailableError(f"asking who leads: {error}") from None
        return None

    def _send(self) -> list[tuple[_Asked, Connection]]:
        """Ask all brokers before the first answer is waited for. A connection that was closed while
        nobody used it is opened again."""
        now, sent = time.monotonic(), []
        for asked in self._asked:
            rest = self._rests.get(asked.leader.broker)
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

    def _failed(self, asked: _Asked, error: Exception) -> SluiceError:
        """A broker is left out for a while, and its partitions may be led by others. Whatever it
        says may pass, but that it is too old."""
        if isinstance(error, ConfigurationError):
            raise error
        broker = asked.leader.broker
        before = self._rests.get(broker)
        seconds = REST_SECONDS if before is None else min(2 * before.seconds, REST_SECONDS_MAX)
        self._rests[broker] = _Rest(time.monotonic() + seconds, seconds, str(error))
        self._cluster.disconnect(asked.leader)
        self._forget(asked, [s for some in asked.sources.values() for s in some.values()])
        asked.answer, asked.found, asked.errors = b"", {}, {}
        return KafkaUnavailableError(str(error))

    def _refused(self, asked: _Asked) -> SluiceError | None:
        """Why some of a broker's partitions have no end; who leads them is asked again."""
        if not asked.errors:
            return None
        self._forget(asked, [s for s, code in asked.errors.items() if code in LEADER_CODES])
        source, code = next(iter(asked.errors.items()))
        return kafka_error(f"asking for the end of {source}", ck.KafkaError(code))

    def _resting(self, asked: _Asked) -> SluiceError | None:
        rest = self._rests.get(asked.leader.broker)
        if rest is None:
            return None
        return KafkaUnavailableError(f"broker {asked.leader.broker} does not answer: {rest.why}")

    def _forget(self, asked: _Asked, sources: list[TopicPartition]) -> None:
        for source in sources:
            self._cluster.forget(source)
        self._is_planned = self._is_planned and not sources


def _take(asked: _Asked, data: memoryview) -> None:
    """Read an answer, if it is another one than before."""
    answer = bytes(data[4:])  # what comes first is for how long the broker slows us down
    if answer == asked.answer:
        return
    found: dict[TopicPartition, EpochOffset] = {}
    errors: dict[TopicPartition, int] = {}
    for topic, told in messages.read_list_offsets(Cursor(data)):
        own = asked.sources.get(topic, {})
        columns = [told[name].tolist() for name in ("partition", "error", "offset", "epoch")]
        for partition, error, offset, epoch in zip(*columns, strict=True):
            source = own.get(partition)
            if source is None:
                continue
            if error:
                errors[source] = error
            else:
                found[source] = EpochOffset(offset, epoch)
    if len(found) + len(errors) != sum(map(len, asked.sources.values())):
        raise BrokenAnswerError("an answer about offsets is not about what was asked for")
    asked.answer, asked.found, asked.errors = answer, found, errors
