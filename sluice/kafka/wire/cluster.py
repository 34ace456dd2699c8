"""The brokers of one cluster: a connection to each that is needed, and who leads what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import confluent_kafka as ck

from sluice.core.errors import SluiceError
from sluice.core.ranges import TopicPartition
from sluice.core.topics import short_topic_id
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError, kafka_error
from sluice.kafka.wire import messages
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import BrokenAnswerError, Leader
from sluice.kafka.wire.security import read_security

_PORT = 9092
#: Asked first of all; the brokers' own ids are never negative.
_BOOTSTRAP = -1

#: The leader is another one, or not ready: who leads is asked again.
LEADER_CODES = frozenset(
    {
        ck.KafkaError.UNKNOWN_TOPIC_OR_PART,
        ck.KafkaError.LEADER_NOT_AVAILABLE,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
        ck.KafkaError.REPLICA_NOT_AVAILABLE,
        ck.KafkaError.KAFKA_STORAGE_ERROR,
        ck.KafkaError.FENCED_LEADER_EPOCH,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.OFFSET_NOT_AVAILABLE,
    }
)


class Cluster:
    """Not thread-safe.

    Errors of a connection (OSError, SluiceError) go to the caller, who calls `drop` before
    the next attempt.
    """

    def __init__(self, access: KafkaAccess) -> None:
        self._security = read_security(access.properties)
        self._client = access.properties.get("client.id", f"sluice.{access.connector}")
        self._bootstrap = bootstrap_addresses(access.brokers)
        self._addresses: dict[int, tuple[str, int]] = {}
        self._connections: dict[int, Connection] = {}
        self._leaders: dict[TopicPartition, Leader] = {}

    def find_leaders(self, sources: Iterable[TopicPartition]) -> Mapping[str, int]:
        """Ask, at once, who leads those of which it is not known, and give back topics' errors."""
        topics = {source.topic for source in sources if self.leader_of(source) is None}
        return self._find_leaders(topics) if topics else {}

    def leader_of(self, source: TopicPartition) -> Leader | None:
        """Who leads, if it is known."""
        leader = self._leaders.get(source)
        return None if leader is None or leader.broker not in self._addresses else leader

    def leader(self, source: TopicPartition) -> Leader:
        """Who leads."""
        leader = self.leader_of(source)
        if leader is None:
            error = self._find_leaders({source.topic}).get(source.topic, 0)
            leader = self.leader_of(source)
        if leader is None:
            code = error or ck.KafkaError.LEADER_NOT_AVAILABLE
            raise kafka_error(f"asking who leads {source}", ck.KafkaError(code))
        return leader

    def address(self, leader: Leader) -> tuple[str, int]:
        """Where a leader is."""
        return self._addresses[leader.broker]

    def connection(self, leader: Leader) -> Connection:
        """To a leader, without an answer that is still to come."""
        broker = leader.broker
        if broker in self._connections and self._connections[broker].is_waiting:
            self._connections.pop(broker).close()
        if broker not in self._connections:
            address = self._addresses[broker]
            self._connections[broker] = Connection(address, self._security, self._client)
        return self._connections[broker]

    def forget(self, source: TopicPartition) -> None:
        """Ask again who leads."""
        self._leaders.pop(source, None)

    def drop(self, source: TopicPartition) -> None:
        """Something failed: ask again who leads, over a new connection."""
        leader = self._leaders.pop(source, None)
        if leader is None:  # any of them may have been asked who leads
            self.close()
            return
        for broker in (_BOOTSTRAP, leader.broker):
            connection = self._connections.pop(broker, None)
            if connection is not None:
                connection.close()

    def disconnect(self, leader: Leader) -> None:
        """Something failed: the next call opens a new connection to this broker."""
        connection = self._connections.pop(leader.broker, None)
        if connection is not None:
            connection.close()

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        """The first offset of a partition, and the last stable offset."""
        connection = self.connection(self.leader(source))
        found = []
        for which in (messages.EARLIEST, messages.LATEST):
            body = messages.list_offsets_body([source], which)
            answer = connection.ask(messages.LIST_OFFSETS, body)
            told = [one for *_, some in messages.read_list_offsets(answer) for one in some]
            if len(told) != 1:
                raise BrokenAnswerError(f"an answer about {source} is about {len(told)} partitions")
            if told[0]["error"]:
                code = ck.KafkaError(int(told[0]["error"]))
                raise kafka_error(f"asking for the ends of {source}", code)
            found.append(int(told[0]["offset"]))
        return found[0], found[1]

    def topic_ids(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        """The short ids of their topics, each told by the partition's leader now; those of topics
        that are gone are left out. Brokers before 2.8 have no ids, which is an id, too."""
        led: dict[Leader, list[TopicPartition]] = {}
        for source in sources:
            led.setdefault(Leader(self.leader(source).broker, 0), []).append(source)
        found: dict[TopicPartition, str] = {}
        for leader, some in led.items():
            connection = self.connection(leader)
            if connection.versions[messages.METADATA][1] < messages.METADATA_WITH_IDS:
                found |= dict.fromkeys(some, short_topic_id(0, 0))
                continue
            body = messages.topic_ids_body({source.topic for source in some})
            answer = connection.ask(messages.METADATA, body, messages.METADATA_WITH_IDS)
            told = messages.read_topic_ids(answer)
            ids = {topic: short_topic_id(*both) for topic, both in told.items()}
            found |= {source: ids[source.topic] for source in some if source.topic in ids}
        return found

    def close(self) -> None:
        """Close every connection; the next call opens what it needs."""
        while self._connections:
            self._connections.popitem()[1].close()

    def _find_leaders(self, topics: Collection[str]) -> Mapping[str, int]:
        """Ask about topics, and give back their errors."""
        answer = self._any_connection().ask(messages.METADATA, messages.metadata_body(topics))
        metadata = messages.read_metadata(answer)
        for broker, address in metadata.brokers.items():
            if self._addresses.get(broker) != address and broker in self._connections:
                self._connections.pop(broker).close()
        self._addresses = metadata.brokers
        self._leaders |= metadata.leaders
        return metadata.errors

    def _any_connection(self) -> Connection:
        """One that is open, or to the first of the given addresses that answers."""
        for connection in self._connections.values():
            if not connection.is_waiting:
                return connection
        refused: list[str] = []
        for address in [*self._addresses.values(), *self._bootstrap]:
            try:
                self._connections[_BOOTSTRAP] = Connection(address, self._security, self._client)
            except OSError as error:
                refused.append(f"{address[0]}:{address[1]}: {error}")
            else:
                return self._connections[_BOOTSTRAP]
        raise KafkaUnavailableError("no broker can be reached: " + "; ".join(refused))


def bootstrap_addresses(brokers: str) -> list[tuple[str, int]]:
    """The addresses of `brokers`, as librdkafka takes them.

    :raises SluiceError: there is none.
    """
    addresses = []
    for entry in filter(None, map(str.strip, brokers.split(","))):
        place = entry.rpartition("://")[2]
        host, _, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
        if not host:
            host, port = place, ""
        addresses.append((host.strip("[]"), int(port or _PORT)))
    if not addresses:
        raise SluiceError("no broker is configured", 'Set "brokers" of the connector.')
    return addresses
