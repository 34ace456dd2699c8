"""What `doctor` looks at in a Kafka cluster: brokers, the consumer group, and topics: the
sources, Sluice's own, and Kafka's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from socket import gethostname

from sluice.config import Configuration, ConnectorConfiguration, FleetConfiguration
from sluice.config.applied import document_of
from sluice.config.topics import why_refused
from sluice.core.errors import SluiceError, TransientError
from sluice.core.fleet.records import Report
from sluice.core.records import RECORD_BYTES_MAX
from sluice.core.topics import is_reserved, matches
from sluice.driver.applying import newest_version
from sluice.driver.record_updates import RESETTLE_MS
from sluice.driver.specs import kafka_access
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.errors import KafkaDeniedError, KafkaRefusedError
from sluice.kafka.topics import (
    FLEET_TOPIC_SETTINGS,
    OWN_MESSAGE_BYTES_MAX,
    OWN_TOPIC_SETTINGS,
    TopicFacts,
)
from sluice.kafka.transactions import SEND_BYTES_MAX, RecorderNames
from sluice.kafka.wire.messages import FETCH
from sluice.machine.clock import now_ms
from sluice.ops.doctor_findings import LOGIN_CHECK, Examination, Finding
from sluice.ops.doctor_rights import check_kafka_rights
from sluice.ops.fleet import is_reporting, read_reports

#: How long a restart may take, a person's reaction included.
RESTART_SECONDS = 3600.0
#: Messages that expire sooner are lost by an outage that a night can bring.
RETENTION_SECONDS_MIN = 24 * 3600.0
_LEDGER_RETENTION_SECONDS_MIN = 7 * 24 * 3600.0
#: Room that a dead letter needs beside the message itself.
_DEAD_LETTER_OVERHEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SourceNeeds:
    """What a source topic is measured by.

    :param brokers: bootstrap servers, for the commands that fix.
    :param count: of the brokers in the cluster.
    """

    brokers: str
    lease_seconds: float
    count: int = 1


def set_topic(brokers: str, topic: str, **settings: object) -> str:
    """The command that changes settings of a topic; names with underscores for dots."""
    pairs = ",".join(f"{name.replace('_', '.')}={value}" for name, value in settings.items())
    return (
        f"kafka-configs.sh --bootstrap-server {brokers} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {pairs}"
    )


def _seconds(topic: TopicFacts, name: str) -> float | None:
    """A setting in milliseconds; None for "never" and for one that is not told."""
    milliseconds = int(topic.settings.get(name, -1))
    return None if milliseconds < 0 else milliseconds / 1000


def _days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else f"{seconds / 3600:.1f} hours"


def check_source(found: Examination, topic: TopicFacts, needs: SourceNeeds) -> None:
    """A topic that is loaded: nothing may vanish before it is loaded, or between attempts."""
    _check_compaction(found, topic, needs)
    _check_retention(found, topic, needs)
    _check_copies(found, topic, needs)


def _check_copies(found: Examination, topic: TopicFacts, needs: SourceNeeds) -> None:
    """Whether a message that a producer was promised, and that may be loaded, can go again. Its
    partition stops then; what was lost in Kafka comes back to no table that did not have it."""
    lost = "what was acknowledged to producers, and may be loaded, is replaced by other messages"
    wanted = min(2, needs.count)
    if topic.replication < wanted:
        found.warning(
            "replication",
            f"{topic.replication} replica: when its broker loses power or its disk, {lost}",
            f"kafka-reassign-partitions.sh --bootstrap-server {needs.brokers}: give each partition "
            f"of {topic.name} {min(3, needs.count)} replicas",
        )
    if topic.replication > 1 and int(topic.settings.get("min.insync.replicas", 1)) < 2:
        found.warning(
            "min-insync-replicas",
            f"min.insync.replicas = 1: a message that only one broker has counts as written; when "
            f"that broker loses power, {lost}",
            set_topic(needs.brokers, topic.name, min_insync_replicas=2),
        )
    if topic.settings.get("unclean.leader.election.enable", "false") == "true":
        found.warning(
            "unclean-leader-election",
            f"a replica that lags may become leader: {lost}, and the partition stops",
            set_topic(needs.brokers, topic.name, unclean_leader_election_enable="false"),
        )
    found.ok("replication", f"{topic.replication} replicas")


def _check_compaction(found: Examination, topic: TopicFacts, needs: SourceNeeds) -> None:
    policy = topic.settings.get("cleanup.policy", "delete")
    if "compact" not in policy:
        found.ok("cleanup-policy", f"cleanup.policy is {policy}")
        return
    needed = needs.lease_seconds + RESTART_SECONDS
    lag = (_seconds(topic, "min.compaction.lag.ms")) or 0.0
    if lag > needed:
        found.warning(
            "cleanup-policy",
            f"the topic is compacted; messages stay for {_days(lag)} (min.compaction.lag.ms), "
            "and a range in doubt must be loaded again within that time",
            set_topic(needs.brokers, topic.name, cleanup_policy="delete"),
        )
        return
    found.error(
        "cleanup-policy",
        f"cleanup.policy is {policy}: a range would hold other messages when it is loaded again",
        f"{set_topic(needs.brokers, topic.name, cleanup_policy='delete')}, or at least "
        f"min.compaction.lag.ms={int(needed * 2000)}",
    )


def _check_retention(found: Examination, topic: TopicFacts, needs: SourceNeeds) -> None:
    seconds = _seconds(topic, "retention.ms")
    wanted = max(RETENTION_SECONDS_MIN, 6 * needs.lease_seconds)
    if "delete" not in topic.settings.get("cleanup.policy", "delete"):
        return
    if seconds is not None and seconds < wanted:
        found.warning(
            "retention",
            f"messages expire after {_days(seconds)}; an outage of that length loses them",
            set_topic(needs.brokers, topic.name, retention_ms=int(wanted * 1000)),
        )
    size = int(topic.settings.get("retention.bytes", -1))
    if size >= 0:
        found.warning(
            "retention",
            f"retention.bytes = {size} lets messages of any age expire, loaded or not",
            set_topic(needs.brokers, topic.name, retention_bytes=-1),
        )
    found.ok("retention", f"messages stay for {'ever' if seconds is None else _days(seconds)}")


def check_replication(found: Examination, topic: TopicFacts, brokers: int, bootstrap: str) -> None:
    """A topic that carries intents: one broker's loss must not lose an acknowledged write.

    That there is only one broker is said once, about the cluster.
    """
    wanted = min(3, brokers)
    if topic.replication < wanted:
        found.error(
            "replication",
            f"{topic.replication} of {wanted} possible replicas; a lost broker loses intents",
            f"kafka-reassign-partitions.sh --bootstrap-server {bootstrap}: give each partition of "
            f"{topic.name} {wanted} replicas",
        )
    insync = int(topic.settings.get("min.insync.replicas", 1))
    if topic.replication > 1 and insync < 2:
        found.warning(
            "min-insync-replicas",
            "min.insync.replicas = 1: a write that only one broker has counts as done",
            set_topic(bootstrap, topic.name, min_insync_replicas=2),
        )
    if topic.settings.get("unclean.leader.election.enable", "false") == "true":
        found.warning(
            "unclean-leader-election",
            "a replica that lags may become leader, and roll acknowledged writes back",
            set_topic(bootstrap, topic.name, unclean_leader_election_enable="false"),
        )
    found.ok("replication", f"{topic.replication} replicas")


#: What the topic of a fleet needs, and what goes wrong without it.
_FLEET_NEEDS = {
    "cleanup.policy": "else it grows by 6 MB a day for each member, and members that start late "
    "read all of it",
    "message.timestamp.type": "else nobody knows whose clock is off",
    "unclean.leader.election.enable": "else reports are lost, and members seem silent",
}


def check_fleet(found: Examination, topic: TopicFacts, bootstrap: str) -> None:
    """Where the members of a fleet report: what is wrong there costs time, and no rows."""
    if topic.partitions != 1:
        found.error(
            "fleet-topic",
            f"{topic.partitions} partitions; the order of reports needs exactly one",
            f"Stop all members, delete the topic {topic.name}, and start: it is made again.",
        )
    for name, why in _FLEET_NEEDS.items():
        wanted = FLEET_TOPIC_SETTINGS[name]
        held = topic.settings.get(name, wanted)
        if held != wanted:
            change = set_topic(bootstrap, topic.name, **{name.replace(".", "_"): wanted})
            found.warning("fleet-topic", f"{name} is {held}, not {wanted}: {why}", change)
    found.ok("fleet-topic", "compacted, with the broker's clock")


def check_silent_after(
    found: Examination, fleet: FleetConfiguration, host: str, reports: Iterable[Report]
) -> None:
    """Of two members the longer `silent_after` counts: where they differ it costs time, no rows.

    :param host: that the configured member runs on. It takes the place of one of its name, whose
        reports are not looked at.
    :param reports: the last ones of those that report now.
    """
    own, seconds = fleet.name(host), fleet.silent_after_seconds
    others: dict[float, set[str]] = {}
    for report in reports:
        if report.member != own and report.silent_seconds != seconds:
            others.setdefault(report.silent_seconds, set()).add(report.member)
    if others:
        theirs = "; ".join(f"{s:g} s for {', '.join(sorted(n))}" for s, n in sorted(others.items()))
        found.warning(
            "silent-after",
            f"silent_after is {seconds:g} s here, and {theirs}: of two members the longer one "
            "counts, so it takes that long until one takes over what the other had",
            "Give all members the same silent_after in [fleet], and start those anew, one at a "
            "time, that run with another one.",
        )
    found.ok("silent-after", f"{seconds:g} s, and no member that reports has another one")


def check_ledger(found: Examination, topic: TopicFacts, bootstrap: str) -> None:
    """The ledger is the second copy of every intent and must outlast any outage (H3)."""
    if topic.partitions != 1:
        found.error(
            "ledger",
            f"{topic.partitions} partitions; the order of entries needs exactly one",
            "Name a new topic in [ledger]; `sluice run` creates it.",
        )
    policy = topic.settings.get("cleanup.policy", "delete")
    if "compact" in policy:
        found.error(
            "ledger",
            f"cleanup.policy is {policy}, which drops history",
            set_topic(bootstrap, topic.name, cleanup_policy="delete"),
        )
    seconds = _seconds(topic, "retention.ms")
    forever = set_topic(bootstrap, topic.name, retention_ms=-1, retention_bytes=-1)
    if int(topic.settings.get("retention.bytes", -1)) >= 0:
        found.error("ledger", "retention.bytes is set: intents in doubt may expire", forever)
    elif seconds is not None and seconds < _LEDGER_RETENTION_SECONDS_MIN:
        found.error("ledger", f"entries expire after {_days(seconds)}", forever)
    elif seconds is not None:
        found.warning(
            "ledger",
            f"entries expire after {_days(seconds)}, which must exceed the longest outage",
            forever,
        )
    found.ok("ledger", "nothing expires")
    size = int(topic.settings.get("max.message.bytes", OWN_MESSAGE_BYTES_MAX))
    if size < OWN_MESSAGE_BYTES_MAX:
        found.warning(
            "ledger-size",
            f"takes messages of {size} bytes: when a probe finds more missing than fits into one, "
            "the connector can record nothing until this is raised",
            set_topic(bootstrap, topic.name, max_message_bytes=OWN_MESSAGE_BYTES_MAX),
        )
    found.ok("ledger-size", f"takes messages of {size} bytes")


def check_dead_letters(
    found: Examination,
    topic: TopicFacts,
    source_bytes_max: int,
    bootstrap: str,
    *,
    keeps: bool = True,
) -> None:
    """Dead letters stay until a person has looked.

    :param source_bytes_max: the largest message that a source topic takes.
    :param keeps: False: nobody else needs what it has, as copies of duplicates.
    """
    seconds = _seconds(topic, "retention.ms")
    policy = topic.settings.get("cleanup.policy", "delete")
    if "compact" in policy:
        found.error(
            "dead-letters",
            f"cleanup.policy is {policy}: dead letters of one key replace each other",
            set_topic(bootstrap, topic.name, cleanup_policy="delete"),
        )
    expires = seconds is not None or int(topic.settings.get("retention.bytes", -1)) >= 0
    if keeps and expires:
        found.warning(
            "dead-letters",
            "dead letters expire, and `sluice audit` then counts their messages as missing",
            set_topic(bootstrap, topic.name, retention_ms=-1, retention_bytes=-1),
        )
    size = int(topic.settings.get("max.message.bytes", source_bytes_max))
    if size < source_bytes_max:
        found.warning(
            "dead-letters",
            f"takes messages of {size} bytes, a source topic of {source_bytes_max}: larger ones "
            "are truncated",
            set_topic(
                bootstrap,
                topic.name,
                max_message_bytes=source_bytes_max + _DEAD_LETTER_OVERHEAD_BYTES,
            ),
        )
    kept = "" if expires else ", and keeps them"
    found.ok("dead-letters", f"takes messages of {size} bytes{kept}")


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
        cluster = BrokerFacts(kafka_access(configuration, connector.name))
    except TransientError as error:
        contact.error("kafka", f"cannot be reached: {error.message}", error.hint)
        return KafkaLook(contact.findings)
    except SluiceError as error:
        check = LOGIN_CHECK if isinstance(error, KafkaRefusedError) else "client"
        contact.error(check, error.message, error.hint)
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
    if any(finding.check == "broker-settings" and finding.passing for finding in look.findings):
        return look  # each of the others would wait for a broker that does not answer
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
    :param highest_version: of a request that a broker speaks, see `BrokerFacts`.
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
            f"{fix}, or let Sluice's user see the brokers' settings (DescribeConfigs). What is not "
            "Apache Kafka, as Redpanda, has no such setting: no promise can be made on it",
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
    cluster: BrokerFacts,
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
    cluster: BrokerFacts,
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
    cluster: BrokerFacts,
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
                _check_members(found, configuration, connector.name)
            elif name in (configuration.ledger_topic, configuration.decisions_topic):
                check_ledger(found, topic, connector.brokers)
                if name == configuration.decisions_topic:
                    _check_applied(found, configuration, connector.name)
            else:
                keeps = name != configuration.duplicates_topic
                check_dead_letters(found, topic, bytes_max, connector.brokers, keeps=keeps)
        elif not found.findings:
            settings = FLEET_TOPIC_SETTINGS if name in fleet else OWN_TOPIC_SETTINGS
            brokers = len(cluster.brokers)
            if _takes_creation(found, partial(cluster.require_create, name, settings)):
                _check_future(found, brokers, min(3, brokers), "sluice run")
        look.findings += found.findings


def _check_applied(found: Examination, configuration: Configuration, connector: str) -> None:
    """Whether what the file says is loaded."""

    def look() -> None:
        access = kafka_access(configuration, connector)
        version = newest_version(access, configuration.decisions_topic)
        if version is None:
            found.ok("applied", "nothing was ever applied: drivers load by their files")
        elif version.document == document_of(configuration):
            found.ok("applied", f"{version.name} is what the file has")
        else:
            found.warning(
                "applied",
                f"{version}, is what drivers load by, and {configuration.path} has other tables "
                "or topics",
                f"`sluice apply {configuration.path}` shows the difference, and applies the file",
            )

    found.attempt("applied", look)


def _check_members(found: Examination, configuration: Configuration, connector: str) -> None:
    fleet = configuration.fleet
    assert fleet is not None

    def look() -> None:
        heard, at_ms = read_reports(configuration, connector).values(), now_ms()
        reports = [each.report for each in heard if is_reporting(each, at_ms)]
        check_silent_after(found, fleet, gethostname(), reports)

    found.attempt("silent-after", look)


def _look_at_internal_topics(
    connector: ConnectorConfiguration,
    cluster: BrokerFacts,
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


def _takes_creation(found: Examination, create: Callable[[], bool]) -> bool:
    """Whether the cluster takes a topic with the settings that it will be made with. One that is
    there, and is not seen, is told among the rights."""
    try:
        return create()
    except KafkaDeniedError:
        return False  # told among the rights
    except SluiceError as error:
        found.refused("creation", error)
        return False


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


def _describe(found: Examination, cluster: BrokerFacts, name: str) -> TopicFacts | None:
    try:
        return cluster.topic(name)
    except SluiceError as error:
        found.failed("topic", error)
        return None


def _check_group(found: Examination, cluster: BrokerFacts, group: str) -> None:
    members = cluster.members(group)
    if members:
        found.error(
            "group",
            f"has {len(members)} members that may commit offsets: {', '.join(members[:3])}",
            "Stop them: this group is Sluice's, and its offsets carry the intents.",
        )
    found.ok("group", "no members")
