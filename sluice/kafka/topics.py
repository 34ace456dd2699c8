"""The topics that Sluice owns, made with explicit settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import confluent_kafka as ck
from confluent_kafka.admin import (
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from sluice.core.errors import SluiceError
from sluice.kafka.clients import (
    KafkaAccess,
    admin_error,
    begin_question,
    list_topics,
    make_admin,
)
from sluice.kafka.errors import (
    KafkaDeniedError,
    KafkaTerminalError,
    KafkaUnavailableError,
    kafka_error,
)

#: Largest message of a topic that Sluice owns; its producers send no larger ones.
OWN_MESSAGE_BYTES_MAX = 16 * 1024 * 1024

#: Settings of the ledger and the dead letters: nothing expires unless a person says so.
OWN_TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    # What a probe found missing may be a long list of offsets, and a transaction that
    # cannot write it could never be committed.
    "max.message.bytes": str(OWN_MESSAGE_BYTES_MAX),
}

#: Settings of the topic of a fleet: of each writer the last report is enough, and each writes one
#: every two seconds. The broker's clock says when a report came, whatever the members' clocks say.
FLEET_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}

_TIMEOUT_SECONDS = 30.0
ADMIN_TIMEOUT_SECONDS = 15.0
#: Answers to the creation of a topic that no repetition changes.
_REFUSED = frozenset(
    {
        ck.KafkaError.POLICY_VIOLATION,
        ck.KafkaError.INVALID_CONFIG,
        ck.KafkaError.INVALID_REQUEST,
        ck.KafkaError.TOPIC_EXCEPTION,
        ck.KafkaError.UNSUPPORTED_VERSION,
    }
)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the broker describes it.

    :param replication: replicas of its least replicated partition.
    """

    name: str
    partitions: int
    replication: int
    settings: dict[str, str]


def cluster_metadata(
    admin: AdminClient, where: str = "", timeout_seconds: float = _TIMEOUT_SECONDS
) -> ClusterMetadata:
    """Brokers and topics of the cluster.

    :param where: the brokers that are asked, for messages.
    :raises KafkaRefusedError: nobody is let in.
    :raises KafkaUnavailableError: also if the answer names no broker: one that has slept answers
        while it still counts as dead to its cluster.
    """
    what = f"asking {where} for the brokers" if where else "asking for the brokers"
    found = list_topics(admin, what, timeout_seconds)
    if not found.brokers:
        raise KafkaUnavailableError(f"{what}: the answer names none yet")
    return found


def own_topic(name: str, brokers: int, settings: Mapping[str, str]) -> NewTopic:
    """A topic of Sluice's own as it is to be made.

    :param brokers: of the cluster: it has three replicas, where there are so many.
    """
    replication = min(3, brokers)
    config = {**settings, "min.insync.replicas": str(min(2, replication))}
    return NewTopic(name, num_partitions=1, replication_factor=replication, config=config)


class TopicRefusedError(KafkaTerminalError):
    """The cluster takes no topic with these settings, as by a policy of who runs it."""


def creation_error(new: NewTopic, error: ck.KafkaException) -> SluiceError:
    """The typed error for what a broker answered to the creation of a topic."""
    action = f"creating topic {new.topic}"
    if error.args[0].code() not in _REFUSED:
        return kafka_error(action, error)
    settings = " ".join(f"--config {name}={value}" for name, value in new.config.items())
    return TopicRefusedError(
        f"{action}: {error.args[0].name()}: {error.args[0].str()}",
        "Make it by hand, or have it made, with other settings where this cluster refuses these "
        '(docs/DEPLOYMENT.md, "Topics of Sluice\'s own", says which may differ): kafka-topics.sh '
        f"--bootstrap-server HOST:PORT --create --topic {new.topic} --partitions 1 "
        f"--replication-factor {new.replication_factor} {settings}",
    )


def described(admin: AdminClient, names: Iterable[str]) -> dict[str, TopicDescription]:
    """Topics as a broker describes them, in one request; those that do not exist are left out, and
    none comes into being.

    :raises KafkaDeniedError: this user may not see one of them, whether it exists or not.
    """
    wanted = sorted(set(names))
    if not wanted:
        return {}
    begin_question(admin)
    futures = admin.describe_topics(
        ck.TopicCollection(wanted), request_timeout=ADMIN_TIMEOUT_SECONDS
    )
    found: dict[str, TopicDescription] = {}
    for name, future in futures.items():
        try:
            found[name] = future.result()
        except ck.KafkaException as error:
            if error.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise admin_error(admin, f"describing topic {name}", error) from None
    return found


def partition_count(access: KafkaAccess, name: str) -> int:
    """How many partitions a topic has; 0 if there is no such topic.

    :raises KafkaDeniedError: this user may not see it, whether it exists or not.
    """
    found = described(make_admin(access), [name])
    return len(found[name].partitions) if found else 0


def sees(access: KafkaAccess, name: str) -> bool:
    """Whether there is a topic, as far as this user may know: of those that a configuration needs
    no more, or not yet, `doctor --grants` gives no right."""
    try:
        return partition_count(access, name) > 0
    except KafkaDeniedError:
        return False


def ensure_own_topic(
    admin: AdminClient, name: str, settings: Mapping[str, str] = OWN_TOPIC_SETTINGS
) -> bool:
    """Create a topic of one partition unless it exists; of one that does nothing is asked.

    Replication is min(3, brokers); with two replicas or more, two must have every write.

    :returns: whether it was created now.
    :raises TopicRefusedError: the cluster wants other settings.
    """
    metadata = cluster_metadata(admin)
    if name in metadata.topics:
        return False
    new = own_topic(name, len(metadata.brokers), settings)
    future = admin.create_topics([new], operation_timeout=_TIMEOUT_SECONDS)[name]
    try:
        future.result()
    except ck.KafkaException as error:
        if error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise creation_error(new, error) from None
    return True


def ensure_own_topics(admin: AdminClient, names: Iterable[str]) -> None:
    """Create those that do not exist."""
    for name in names:
        ensure_own_topic(admin, name)


def describe_topic(admin: AdminClient, name: str) -> TopicFacts | None:
    """Facts about a topic, None if it does not exist, or this user may not see it."""
    try:
        found = described(admin, [name]).get(name)
    except KafkaDeniedError:
        return None
    if found is None:
        return None
    resource = ConfigResource(ResourceType.TOPIC, name)
    try:
        futures = admin.describe_configs([resource], request_timeout=ADMIN_TIMEOUT_SECONDS)
        entries = futures[resource].result()
    except ck.KafkaException as error:
        raise admin_error(admin, f"describing topic {name}", error) from None
    return TopicFacts(
        name=name,
        partitions=len(found.partitions),
        replication=min((len(each.replicas) for each in found.partitions), default=0),
        settings={
            key: str(entry.value) for key, entry in entries.items() if entry.value is not None
        },
    )


def message_bytes_max(admin: AdminClient, name: str) -> int:
    """What one message of a topic may weigh; Kafka's default if it does not exist."""
    facts = describe_topic(admin, name)
    return 1_000_000 if facts is None else int(facts.settings["max.message.bytes"])
