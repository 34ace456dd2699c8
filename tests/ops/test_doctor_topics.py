"""What the doctor makes of facts about topics."""

from __future__ import annotations

import pytest

from sluice.config import FleetConfiguration
from sluice.core.fleet.records import Report
from sluice.kafka.topics import TopicFacts
from sluice.ops.doctor_findings import Examination
from sluice.ops.doctor_kafka import (
    SourceNeeds,
    check_dead_letters,
    check_fleet,
    check_ledger,
    check_replication,
    check_silent_after,
    check_source,
)
from tests.ops.doctor_facts import bad


def topic(replication: int = 3, partitions: int = 1, **settings: str) -> TopicFacts:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return TopicFacts("t", partitions, replication, named)


@pytest.mark.parametrize(
    ("facts", "brokers", "checks"),
    [
        (topic(3, min_insync_replicas="2"), 3, {}),
        (topic(2, min_insync_replicas="2"), 3, {"replication": "error"}),
        (topic(2, min_insync_replicas="2"), 2, {}),
        (topic(1), 1, {}),
        (topic(1), 2, {"replication": "error"}),
        (topic(3), 5, {"min-insync-replicas": "warning"}),
        (
            topic(3, min_insync_replicas="2", unclean_leader_election_enable="true"),
            3,
            {"unclean-leader-election": "warning"},
        ),
    ],
)
def test_replication(facts: TopicFacts, brokers: int, checks: dict[str, str]) -> None:
    found = Examination("here")
    check_replication(found, facts, brokers, "b:9092")
    assert {name: finding.level for name, finding in bad(found).items()} == checks


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("settings", "checks"),
    [
        ({}, {}),
        ({"retention_ms": "-1"}, {}),
        ({"retention_ms": str(DAY_MS)}, {}),
        ({"retention_ms": str(DAY_MS - 1)}, {"retention": "warning"}),
        ({"retention_bytes": "1000"}, {"retention": "warning"}),
        ({"cleanup_policy": "compact"}, {"cleanup-policy": "error"}),
        ({"cleanup_policy": "compact,delete"}, {"cleanup-policy": "error"}),
        (
            {"cleanup_policy": "compact", "min_compaction_lag_ms": str(DAY_MS)},
            {"cleanup-policy": "warning"},
        ),
        (
            {"cleanup_policy": "compact", "min_compaction_lag_ms": "600000"},
            {"cleanup-policy": "error"},
        ),
        ({"min_insync_replicas": "1"}, {"min-insync-replicas": "warning"}),
        (
            {"unclean_leader_election_enable": "true"},
            {"unclean-leader-election": "warning"},
        ),
    ],
)
def test_sources(settings: dict[str, str], checks: dict[str, str]) -> None:
    found = Examination("here")
    facts = topic(**{"min_insync_replicas": "2", **settings})
    check_source(found, facts, SourceNeeds("b:9092", lease_seconds=600, count=3))
    assert {name: finding.level for name, finding in bad(found).items()} == checks
    for finding in bad(found).values():
        assert "kafka-configs.sh --bootstrap-server b:9092 --alter" in finding.fix


@pytest.mark.parametrize(
    ("replication", "brokers", "level"), [(1, 1, None), (1, 2, "warning"), (2, 5, None)]
)
def test_copies_of_a_source(replication: int, brokers: int, level: str | None) -> None:
    found = Examination("here")
    needs = SourceNeeds("b:9092", lease_seconds=600, count=brokers)
    check_source(found, topic(replication, min_insync_replicas="2"), needs)
    finding = bad(found).get("replication")
    assert (finding and finding.level) == level
    if finding is not None:
        assert "kafka-reassign-partitions.sh --bootstrap-server b:9092" in finding.fix


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (topic(retention_ms="-1", retention_bytes="-1"), None),
        (topic(partitions=2), "error"),
        (topic(cleanup_policy="compact"), "error"),
        (topic(retention_ms=str(6 * DAY_MS)), "error"),
        (topic(retention_ms=str(7 * DAY_MS)), "warning"),
        (topic(retention_bytes="1000000"), "error"),
    ],
)
def test_ledgers(facts: TopicFacts, level: str | None) -> None:
    found = Examination("here")
    check_ledger(found, facts, "b:9092")
    assert [finding.level for finding in bad(found).values()] == ([level] if level else [])


def test_a_ledger_takes_the_longest_list_of_a_probe() -> None:
    """As one does that Sluice made; Kafka's own default is less."""
    found = Examination("here")
    check_ledger(found, topic(max_message_bytes="16777216"), "b:9092")
    assert bad(found) == {}
    check_ledger(found, topic(max_message_bytes="1048588"), "b:9092")
    finding = bad(found)["ledger-size"]
    assert finding.level == "warning" and finding.fix.endswith("max.message.bytes=16777216")


def test_the_topic_of_a_fleet() -> None:
    def look(partitions: int = 1, **settings: str) -> dict[str, str]:
        found = Examination("here")
        check_fleet(found, topic(1, partitions, **settings), "b:9092")
        return {finding.level: finding.fix for finding in bad(found).values()}

    assert look() == look(cleanup_policy="compact") == {}
    assert "cleanup.policy=compact" in look(cleanup_policy="delete")["warning"]
    kind = "message_timestamp_type"
    assert "LogAppendTime" in look(**{kind: "CreateTime"})["warning"]
    assert look(partitions=2).keys() == {"error"}


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ({}, None),
        ({"b": 8, "c": 8}, None),
        ({"a": 20}, None),  # the one whose place it takes
        ({"a": 20, "b": 20, "c": 8}, "8 s here, and 20 s for b: "),
        ({"d": 20, "c": 20, "b": 4.5}, "8 s here, and 4.5 s for b; 20 s for c, d: "),
    ],
)
def test_members_with_another_silent_after(reports: dict[str, float], words: str | None) -> None:
    found, fleet = Examination("here"), FleetConfiguration(member="a")
    said = [Report(f"run-{name}", name, 1, silent_seconds=s) for name, s in reports.items()]
    check_silent_after(found, fleet, "host", said)
    told = [(each.level, each.what) for each in bad(found).values()]
    assert [level for level, _ in told] == (["warning"] if words else [])
    assert all(words is not None and words in what for _, what in told)


def test_a_member_without_a_name_is_called_like_its_host() -> None:
    for host, checks in (("one", set[str]()), ("two", {"silent-after"})):
        found = Examination("here")
        report = Report("run-1", "east.one", 1, silent_seconds=20)
        check_silent_after(found, FleetConfiguration(data_center="east"), host, [report])
        assert bad(found).keys() == checks


def test_dead_letters_take_what_a_source_takes() -> None:
    def of(facts: TopicFacts) -> str:
        found = Examination("here")
        check_dead_letters(found, facts, 2_000_000, "b:9092")
        return " ".join(finding.level + finding.fix for finding in bad(found).values())

    assert of(topic(max_message_bytes="2000000")) == ""
    assert "max.message.bytes=2004096" in of(topic(max_message_bytes="1000000"))
    assert "error" in of(topic(cleanup_policy="compact"))
    assert "warning" in of(topic(retention_ms="1000"))


def test_copies_of_duplicates_may_expire() -> None:
    """Nothing else needs them; but they replace each other no more than dead letters do."""
    for facts, wrong in (
        (topic(retention_ms="1000"), {}),
        (topic(cleanup_policy="compact"), {"dead-letters": "error"}),
    ):
        found = Examination("here")
        check_dead_letters(found, facts, 2_000_000, "b:9092", keeps=False)
        assert {name: each.level for name, each in bad(found).items()} == wrong
