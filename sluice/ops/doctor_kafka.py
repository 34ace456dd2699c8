"""What `doctor` looks at in a Kafka cluster: brokers, topics, the consumer group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluice.config import Configuration, ConnectorConfiguration
from sluice.config.topics import why_refused
from sluice.core.errors import SluiceError, TransientError
from sluice.core.records import RECORD_BYTES_MAX
from sluice.core.topics import is_reserved, matches
from sluice.driver.record_updates import RESETTLE_MS
from sluice.driver.specs import kafka_access
from sluice.kafka.cluster import Cluster
from sluice.kafka.topics import TopicFacts
from sluice.kafka.transactions import SEND_BYTES_MAX, RecorderNames
from sluice.kafka.wire.messages import FETCH
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.doctor_rights import check_kafka_rights
from sluice.ops.doctor_topics import (
    SourceNeeds,
    check_dead_letters,
    check_fleet,
    check_ledger,
    check_replication,
    check_source,
)

#: Kafka's own topics that hold intents, and the settings that decide when they are made.
_INTERNAL = {
    "__consumer_offsets": "offsets.topic.replication.factor",
    "__transaction_state": "transaction.state.log.replication.factor",
}
_NAMED_MAX = 10
_VERIFICATION = "transaction.partition.verification.enable"
#: The first release of which it is sure, by its versions, that it verifies unless told otherwise:
#: 3.5 and 3.6 cannot be told apart.
_FETCH_OF_3_7 = 16
_OFFSETS_RETENTION_MINUTES = 7 * 24 * 60
#: What takes tokens, and what looks at them. Both stand below a listener's mechanism; the second
#: one below the listener, below the mechanism, or by itself, too.
_TOKEN_HANDLER = "sasl.server.callback.handler.class"
_TOKEN_VALIDATOR = "sasl.oauthbearer.jwt.validator.class"
_MECHANISM = "oauthbearer."
_TRANSACTION_TIMEOUT_MS = RecorderNames("", "", "", "").transaction_timeout_ms


@dataclass(slots=True)
class KafkaLook:
    """What was seen of one connector.

    :param partitions: of each configured topic that exists.
    """

    findings: list[Finding] = field(default_factory=list)
    partitions: dict[str, int] = field(default_factory=dict)


def look_at_kafka(configuration: Configuration, connector: ConnectorConfiguration) -> KafkaLook:
    """Examine a connector. What cannot be read is a finding, never an exception."""
    look = KafkaLook()
    contact = Examination(f"{connector.name} at {connector.brokers}")
    try:
        cluster = Cluster(kafka_access(configuration, connector.name))
    except SluiceError as error:
        contact.error("kafka", f"cannot be reached: {error.message}", error.hint)
        return KafkaLook(contact.findings)
    contact.ok("kafka", f"brokers: {len(cluster.brokers)}")
    if len(cluster.brokers) == 1:
        contact.warning(
            "brokers",
            "one broker: its disk holds the only copy of messages, intents and ledger",
            "Run three brokers where the rows matter.",
        )
    settings: dict[int, Mapping[str, str]] = {}

    contact.attempt("broker-settings", lambda: settings.update(cluster.settings()))
    for broker in cluster.brokers:
        verifies = settings.get(broker, {}).get(_VERIFICATION)
        check_verification(contact, broker, verifies, cluster.highest_version)
        check_token_validator(contact, broker, settings.get(broker, {}))
    contact.ok("transactions", "every broker verifies transactional writes")
    if settings:
        _check_brokers(contact, settings)
    look.findings += contact.findings
    bytes_max = _look_at_sources(configuration, connector, cluster, look)
    _look_at_own_topics(configuration, connector, cluster, bytes_max, look)
    _look_at_internal_topics(connector, cluster, settings, look)
    group = Examination(f"{connector.name}: group {configuration.group(connector.name)}")
    group.attempt(
        "group", lambda: _check_group(group, cluster, configuration.group(connector.name))
    )
    look.findings += group.findings
    look.findings += check_kafka_rights(configuration, connector, cluster)
    return look


def check_verification(
    found: Examination,
    broker: int,
    verifies: str | None,
    highest_version: Callable[[int, int], int],
) -> None:
    """Whether a broker asks the coordinator before it takes a transactional write.

    :param verifies: the setting; None where it is not shown, as by a broker that does not know
        it, or to a user of a service that shows few settings.
    :param highest_version: of a request that a broker speaks, see `Cluster`.
    """
    fix = f"{_VERIFICATION}=true, on Kafka 3.6 or newer"
    late = "a fenced driver's late commit can come through"
    if verifies == "true":
        return
    if verifies is not None:
        found.error(
            "transactions",
            f"broker {broker} does not verify transactional writes (it has that switched off): "
            f"{late}",
            fix,
        )
        return
    try:
        speaks = highest_version(broker, FETCH)
    except TransientError as error:
        found.failed("transactions", error)
        return
    except SluiceError as error:
        found.error(
            "transactions",
            f"broker {broker} does not show {_VERIFICATION}, and what versions it speaks cannot be "
            f"asked ({error.message}): perhaps {late}",
            fix,
        )
        return
    if speaks < _FETCH_OF_3_7:
        found.error(
            "transactions",
            f"broker {broker} does not show {_VERIFICATION} and is older than Kafka 3.7 (it speaks "
            f"version {speaks} of Fetch): perhaps it does not verify transactional writes, and "
            f"{late}",
            f"{fix}, or let Sluice's user see the brokers' settings (DescribeConfigs)",
        )
        return
    found.warning(
        "transactions",
        f"broker {broker} does not show {_VERIFICATION}; it is Kafka 3.7 or newer (it speaks "
        f"version {speaks} of Fetch), which verifies transactional writes unless that is switched "
        "off",
        "Ask who runs it that nobody switched it off.",
    )


def check_token_validator(found: Examination, broker: int, settings: Mapping[str, str]) -> None:
    """Whether a broker may believe any token, whoever signed it: whoever reaches it then writes
    what Sluice obeys, also where Sluice itself logs in by something else."""
    for name, handler in settings.items():
        place = name.removesuffix(_TOKEN_HANDLER)
        is_handler = name != place and place.endswith(_MECHANISM)
        if not is_handler or not handler.endswith(".OAuthBearerValidatorCallbackHandler"):
            continue
        named = (place, place.removesuffix(_MECHANISM), _MECHANISM, "")
        validators = [settings.get(f"{each}{_TOKEN_VALIDATOR}", "") for each in named]
        if next(filter(None, validators), "").endswith(".DefaultJwtValidator"):
            found.warning(
                "tokens",
                f"broker {broker} has Kafka's default for {_TOKEN_VALIDATOR}, with which Kafka "
                "4.1.0 believes tokens that anybody signed, for anybody, and long over",
                f"{_TOKEN_VALIDATOR}="
                "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator on every broker",
            )
            return


def _check_brokers(found: Examination, settings: Mapping[int, Mapping[str, str]]) -> None:
    """Settings that every broker must have; the worst of them counts."""
    by_broker = list(settings.items())

    def least(name: str, otherwise: int) -> int:
        return min(int(values.get(name, otherwise)) for _, values in by_broker)

    kept_minutes = least("offsets.retention.minutes", _OFFSETS_RETENTION_MINUTES)
    fix = f"offsets.retention.minutes={_OFFSETS_RETENTION_MINUTES} on every broker"
    if kept_minutes * 60_000 < 2 * RESETTLE_MS:
        found.error(
            "offsets-retention",
            f"offsets expire after {kept_minutes} minutes, while an idle partition is settled "
            f"every {RESETTLE_MS // 60_000}",
            fix,
        )
    elif kept_minutes < 24 * 60:
        found.warning(
            "offsets-retention",
            f"offsets expire after {kept_minutes} minutes: a pipeline that is down for longer "
            "stops, and `sluice adopt` has to decide",
            fix,
        )
    found.ok("offsets-retention", f"offsets stay for {kept_minutes // 60} hours")
    for name, needed, otherwise in (
        ("message.max.bytes", SEND_BYTES_MAX * 6 // 5, 1_048_588),
        ("offset.metadata.max.bytes", RECORD_BYTES_MAX, 4096),
        ("transaction.max.timeout.ms", _TRANSACTION_TIMEOUT_MS, 900_000),
    ):
        value = least(name, otherwise)
        if value < needed:
            found.error(
                "broker-limits",
                f"{name} = {value}; recording intents needs {needed}",
                f"{name}={otherwise} on every broker",
            )
    found.ok("broker-limits", "records and transactions are within the brokers' limits")


def _look_at_sources(
    configuration: Configuration,
    connector: ConnectorConfiguration,
    cluster: Cluster,
    look: KafkaLook,
) -> int:
    """:returns: the largest message that a source topic takes."""
    lease_seconds = configuration.batch.lease_seconds
    needs = SourceNeeds(connector.brokers, lease_seconds, len(cluster.brokers))
    bytes_max = 0
    _check_pattern(configuration, connector, cluster, look)
    for name in configuration.topics_of(connector.name, cluster.topics):
        found = Examination(f"{connector.name}: topic {name}")
        topic = _describe(found, cluster, name)
        if topic is not None:
            look.partitions[name] = topic.partitions
            found.ok("topic", f"{topic.partitions} partitions")
            check_source(found, topic, needs)
            bytes_max = max(bytes_max, int(topic.settings.get("max.message.bytes", 0)))
        elif not found.findings:
            found.error(
                "topic",
                "does not exist, or its user may not see it",
                f"kafka-topics.sh --bootstrap-server {connector.brokers} --create --topic {name}, "
                "or take it out of `topics`",
            )
        look.findings += found.findings
    return bytes_max


def _check_pattern(
    configuration: Configuration,
    connector: ConnectorConfiguration,
    cluster: Cluster,
    look: KafkaLook,
) -> None:
    """What the connector's expression takes, and what of it cannot be loaded."""
    pattern = connector.topic_pattern
    if not pattern:
        return
    found = Examination(f"{connector.name}: topic_pattern")
    taken = [t for t in sorted(cluster.topics) if matches(pattern, t) and not is_reserved(t)]
    taken = [topic for topic in taken if topic not in configuration.own_topics]
    loaded = [topic for topic in taken if configuration.reads(connector.name, topic)]
    if not loaded:
        found.warning(
            "topic-pattern",
            f'no topic matches "{pattern}" yet: nothing is loaded by it',
            "Look for a mistake in it, or create the topics; whole names must match.",
        )
    elsewhere = [topic for topic in taken if topic not in loaded]
    if elsewhere:
        found.warning(
            "topic-pattern",
            f"no [[table]] takes {_named(elsewhere)}: what they hold is not loaded",
            "Add a [[table]] for them, or narrow the expression.",
        )
    for topic in loaded:
        # Whether the tables tell two connectors' rows apart is asked of the tables.
        targets = {table.target for table in configuration.tables}
        refusal = why_refused(configuration, connector.name, topic, targets)
        if refusal is not None:
            found.error("topic-pattern", refusal.message, refusal.hint)
    found.ok("topic-pattern", f"takes {_named(loaded)}")
    look.findings += found.findings


def _named(topics: list[str]) -> str:
    more = f" and {len(topics) - _NAMED_MAX} more" if len(topics) > _NAMED_MAX else ""
    return f"{', '.join(topics[:_NAMED_MAX])}{more}"


def _look_at_own_topics(
    configuration: Configuration,
    connector: ConnectorConfiguration,
    cluster: Cluster,
    bytes_max: int,
    look: KafkaLook,
) -> None:
    fleet = () if configuration.fleet is None else (configuration.fleet_topic,)
    for name in (*configuration.own_topics, *fleet):
        found = Examination(f"{connector.name}: topic {name}")
        topic = _describe(found, cluster, name)
        if topic is not None:
            check_replication(found, topic, len(cluster.brokers), connector.brokers)
            if name in fleet:
                check_fleet(found, topic, connector.brokers)
            elif name in (configuration.ledger_topic, configuration.decisions_topic):
                check_ledger(found, topic, connector.brokers)
            else:
                keeps = name != configuration.duplicates_topic
                check_dead_letters(found, topic, bytes_max, connector.brokers, keeps=keeps)
        elif not found.findings:
            _check_future(found, len(cluster.brokers), min(3, len(cluster.brokers)), "sluice run")
        look.findings += found.findings


def _look_at_internal_topics(
    connector: ConnectorConfiguration,
    cluster: Cluster,
    settings: Mapping[int, Mapping[str, str]],
    look: KafkaLook,
) -> None:
    for name, factor in _INTERNAL.items():
        found = Examination(f"{connector.name}: topic {name}")
        topic = _describe(found, cluster, name)
        if topic is not None:
            check_replication(found, topic, len(cluster.brokers), connector.brokers)
        elif not found.findings and settings:
            replicas = min(int(values.get(factor, 3)) for values in settings.values())
            _check_future(found, len(cluster.brokers), replicas, "the first transaction", factor)
        look.findings += found.findings


def _check_future(
    found: Examination, brokers: int, replicas: int, maker: str, factor: str = ""
) -> None:
    """A topic that is still to be made."""
    wanted = min(3, brokers)
    if replicas < wanted:
        found.error(
            "replication",
            f"{maker} will create it with {replicas} replicas, where {wanted} are possible",
            f"{factor}={wanted} on every broker",
        )
    elif replicas > brokers:
        found.error(
            "replication",
            f"{maker} cannot create it: {replicas} replicas are wanted, brokers: {brokers}",
            f"{factor}={wanted} on every broker, or start the others",
        )
    found.ok("replication", f"{maker} will create it with {replicas} replicas")


def _describe(found: Examination, cluster: Cluster, name: str) -> TopicFacts | None:
    try:
        return cluster.topic(name)
    except SluiceError as error:
        found.failed("topic", error)
        return None


def _check_group(found: Examination, cluster: Cluster, group: str) -> None:
    members = cluster.members(group)
    if members:
        found.error(
            "group",
            f"has {len(members)} members that may commit offsets: {', '.join(members[:3])}",
            "Stop them: this group is Sluice's, and its offsets carry the intents.",
        )
    found.ok("group", "no members")
