"""What `doctor` asks of topics: the sources, Sluice's own, and Kafka's own."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.kafka.topics import FLEET_TOPIC_SETTINGS, OWN_MESSAGE_BYTES_MAX, TopicFacts
from sluice.ops.doctor_findings import Examination

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
