"""What the brokers of a cluster tell an administrator: settings, topics, groups, rights."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import confluent_kafka as ck
from confluent_kafka.admin import ConfigResource, ResourceType

from sluice.kafka.clients import KafkaAccess, admin_error, begin_question, make_admin
from sluice.kafka.errors import KafkaDeniedError, KafkaUnavailableError, kafka_error
from sluice.kafka.topics import (
    OWN_TOPIC_SETTINGS,
    TopicFacts,
    cluster_metadata,
    creation_error,
    describe_topic,
    own_topic,
)
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import ADD_OFFSETS, add_offsets_body
from sluice.kafka.wire.security import read_security, without_login

#: An answer within this time, or the brokers count as away.
CONTACT_SECONDS = 6.0
_REQUEST_SECONDS = 10.0

#: A cluster that never had a group makes the topic for it when it is first asked.
_COORDINATOR_COMES = frozenset(
    {
        ck.KafkaError.COORDINATOR_NOT_AVAILABLE,
        ck.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        ck.KafkaError.NOT_COORDINATOR,
    }
)


_RECORDING = {
    ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional-id",
    ck.KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
}


class BrokerFacts:
    """Asks the brokers of a cluster that answered when this was made.

    :raises KafkaRefusedError: nobody is let in.
    :raises TransientError: nobody answers within the time.
    """

    def __init__(self, access: KafkaAccess, timeout_seconds: float = CONTACT_SECONDS) -> None:
        self._admin = make_admin(access)
        self._access = access
        metadata = cluster_metadata(self._admin, access.brokers, timeout_seconds)
        self.brokers: tuple[int, ...] = tuple(sorted(metadata.brokers))
        self._addresses = {id_: (at.host, at.port) for id_, at in metadata.brokers.items()}
        self.topics: frozenset[str] = frozenset(metadata.topics)

    def topic(self, name: str) -> TopicFacts | None:
        """Facts about a topic, None if this user sees none of this name."""
        return describe_topic(self._admin, name)

    def settings(self) -> dict[int, Mapping[str, str]]:
        """The settings of each broker.

        :raises TerminalError: this user may not read them.
        """
        resources = [ConfigResource(ResourceType.BROKER, str(broker)) for broker in self.brokers]
        begin_question(self._admin)
        futures = self._admin.describe_configs(resources, request_timeout=_REQUEST_SECONDS)
        found: dict[int, Mapping[str, str]] = {}
        for resource, future in futures.items():
            try:
                entries = future.result()
            except ck.KafkaException as error:
                what = f"reading settings of broker {resource.name}"
                raise admin_error(self._admin, what, error) from None
            found[int(resource.name)] = {
                name: str(entry.value) for name, entry in entries.items() if entry.value is not None
            }
        return found

    def highest_version(self, broker: int, request: int) -> int:
        """The highest version of a request that a broker speaks, -1 if it does not know it. Every
        broker tells that to anybody, before a login.

        :raises SluiceError: it cannot be asked.
        """
        properties = self._access.properties
        client = properties.get("client.id", f"sluice.{self._access.connector}")
        address = self._addresses[broker]
        try:
            connection = Connection(address, without_login(properties), client)
        except OSError as error:
            what = f"asking broker {broker} at {address[0]}:{address[1]} what it speaks: {error}"
            raise KafkaUnavailableError(what) from None
        connection.close()
        return connection.versions.get(request, (0, -1))[1]

    def may(self, topics: Iterable[str]) -> dict[str, frozenset[str]]:
        """What this user may do with topics that exist, in the words of Kafka's ACLs (`READ`).

        Topics that do not exist, and those of which the broker does not say it, are missing.
        """
        wanted = sorted(set(topics))
        if not wanted:
            return {}
        futures = self._admin.describe_topics(
            ck.TopicCollection(wanted),
            include_authorized_operations=True,
            request_timeout=_REQUEST_SECONDS,
        )
        found: dict[str, frozenset[str]] = {}
        for name, future in futures.items():
            try:
                operations = future.result().authorized_operations
            except ck.KafkaException as error:
                failure = kafka_error(f"describing topic {name}", error)
                if isinstance(failure, KafkaDeniedError):
                    found[name] = self._may_unseen(name)
                elif error.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise failure from None
            else:
                if operations:  # who sees it may describe it
                    found[name] = frozenset(each.name for each in operations)
        return found

    def _may_unseen(self, name: str) -> frozenset[str]:
        """What this user may do with a topic that it may not describe."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        futures = self._admin.describe_configs([resource], request_timeout=_REQUEST_SECONDS)
        try:
            futures[resource].result()
        except ck.KafkaException as error:
            # That it does not exist is told only to who may know.
            if isinstance(kafka_error(f"describing topic {name}", error), KafkaDeniedError):
                return frozenset()
        return frozenset({"DESCRIBE_CONFIGS"})

    def require_create(self, topic: str, settings: Mapping[str, str] = OWN_TOPIC_SETTINGS) -> bool:
        """Have the broker look at the creation of a topic of Sluice's own, and not do it.

        :returns: False: it is there, and this user does not see it.
        :raises KafkaDeniedError: this user may not create it.
        :raises TopicRefusedError: the cluster wants other settings.
        """
        new = own_topic(topic, len(self.brokers), settings)
        future = self._admin.create_topics(
            [new], validate_only=True, request_timeout=_REQUEST_SECONDS
        )[topic]
        try:
            future.result()
        except ck.KafkaException as error:
            if error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise creation_error(new, error) from None
        return True

    def refused_of_recording(self, transactional_id: str, group: str) -> str:
        """Have a broker look at a transaction on a group's offsets that there cannot be.

        :returns: what this user lacks the right to: "transactional-id", which is looked at first,
            or "group"; "": neither.
        :raises ConfigurationError: the login is one that only librdkafka knows.
        :raises KafkaUnavailableError: the broker does not answer.
        """
        properties = self._access.properties
        security = read_security(properties)
        client = properties.get("client.id", f"sluice.{self._access.connector}")
        try:
            connection = Connection(self._addresses[self.brokers[0]], security, client)
            try:
                answer = connection.ask(ADD_OFFSETS, add_offsets_body(transactional_id, group))
                _, code = answer.numbers("ih")
            finally:
                connection.close()
        except OSError as error:
            what = f"asking a broker whether {transactional_id} may write: {error}"
            raise KafkaUnavailableError(what) from None
        return _RECORDING.get(code, "")

    def members(self, group: str) -> list[str]:
        """Members of a consumer group, `client id at host`; none if the group does not exist."""
        deadline = time.monotonic() + _REQUEST_SECONDS
        while True:
            futures = self._admin.describe_consumer_groups(
                [group], request_timeout=_REQUEST_SECONDS
            )
            try:
                description = futures[group].result()
                break
            except ck.KafkaException as error:
                code = error.args[0].code()
                if code == ck.KafkaError.GROUP_ID_NOT_FOUND:
                    return []
                if code not in _COORDINATOR_COMES or time.monotonic() > deadline:
                    raise kafka_error(f"describing group {group}", error) from None
            time.sleep(0.2)
        return [
            f"{member.client_id} at {member.host.lstrip('/')}" for member in description.members
        ]
