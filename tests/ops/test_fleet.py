"""The drivers of a pipeline, by what Kafka says of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.main import main
from sluice.core.decided import apply_entry, taken_entry
from sluice.core.fleet.fold import Heard
from sluice.core.fleet.placement import spread
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import Member, View
from sluice.core.ledger import Commit
from sluice.core.ranges import TopicPartition
from sluice.kafka.decisions import write_decisions
from sluice.kafka.fleet import FleetTopic
from sluice.ops.fleet import members_of, planned_of
from tests.kafka.groups import NOW, SETTLED, intend
from tests.ops.pipelines import Pipeline, settled
from tests.support.kafka import Kafka


def test_who_reports_is_silent_or_never_did() -> None:
    lives = Report("run-1", "a", 9, wall_ms=5, slots=4, work=2, floors={"d.t/s1": 7})
    heard = {
        "run-1": Heard(lives, 100_000, 0, 0),
        "run-2": Heard(Report("run-2", "b", 9, is_leaving=True), 80_000, 0, 0),
    }
    found = members_of("dc1", heard, {"run-1": 3, "run-0": 1}, 108_000)
    assert [(each.member, each.owner, each.state, each.partitions) for each in found] == [
        ("a", "run-1", "reports", 3),
        ("b", "run-2", "silent", 0),
        (None, "run-0", "no report", 1),
    ]
    assert found[0].reported_seconds == 8 and found[0].floors == {"d.t/s1": 7}


def test_why_a_busy_partition_would_move() -> None:
    """Two that are with one member."""
    members = tuple(Member(name, name, "s") for name in "ab")
    sources = [TopicPartition("orders", number) for number in range(8)]
    homes = spread(members, sources, {})
    busy = [source for source in sources if homes[source] == "a"][:2]
    view = View("", 9, members, busy=dict.fromkeys(busy, 3))
    moves = {each.why for each in planned_of("dc1", homes, view) if each.why}
    assert moves == {"busy partitions are shared evenly"}
    assert not any(each.why for each in planned_of("dc1", homes, replace(view, busy={})))


@pytest.mark.slow
def test_a_real_pipeline(
    kafka: Kafka,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipeline = Pipeline(kafka, tmp_path, partitions=4)
    for partition in range(3):
        pipeline.fill(1_000, partition)
        pipeline.drive(settled(100), partition=partition)
    pipeline.drive(intend("", 0, 10), partition=3)
    capsys.readouterr()
    # Nobody reports yet.
    assert main(["fleet", str(pipeline.path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["owner"], shown["state"], shown["partitions"]) == ("driver", "no report", 4)
    topic = FleetTopic(kafka.access(), pipeline.configuration.fleet_topic, is_made=True)
    said = Report("driver", "east-1", 1, floors={"shop.orders/s1": 12}, busy={"orders/3": 2})
    topic.send(replace(said, silent_seconds=600))
    assert topic.flush(10)
    topic.close()
    assert main(["fleet", str(pipeline.path)]) == 0
    out = capsys.readouterr().out
    assert "east-1" in out and "reports" in out and "shop.orders/s1" in out
    assert "orders/3" in out and "4 times" in out
    drain = ["drain", str(pipeline.path), "--by", "alice", "--why", "a machine", "--member"]
    assert main([*drain, "east-2"]) == 1
    assert "Name one of: east-1." in capsys.readouterr().err
    assert main([*drain, "east-1"]) == 0
    assert capsys.readouterr().out == (
        "connector dc1: member east-1 settles what is out, and ends\n"
    )
    kafka.until_stable(pipeline.ledger)
    assert main(["ledger", str(pipeline.path)]) == 0
    assert "member east-1, by alice: a machine" in capsys.readouterr().out
    pipeline.path.write_text(pipeline.path.read_text() + "[fleet]\n")
    assert main(["status", str(pipeline.path)]) == 0
    assert "member east-1 (driver) reports, last" in capsys.readouterr().out
    configuration, access = pipeline.configuration, kafka.access()
    topics = configuration.ledger_topic, configuration.decisions_topic
    for entry, words in (
        (apply_entry(1, 0, "{}", "alice", ""), "not version 1 yet"),
        (taken_entry(1, "driver", ""), "version 1"),
        (apply_entry(2, 1, "{}", "alice", ""), "not version 2 yet"),
        (taken_entry(2, "driver", "no shard s9"), "refuses version 2: no shard s9"),
    ):
        write_decisions(access, configuration.group("dc1"), *topics, [entry], NOW)
        assert main(["fleet", str(pipeline.path), "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)
        assert shown["applied"] == words
    pipeline.close()


@pytest.mark.slow
def test_what_would_move_and_why(
    kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two members one has all, one that died still has some, and one has no record."""
    pipeline = Pipeline(kafka, tmp_path, partitions=40)
    for owner, sources in (("run-1", pipeline.sources[:30]), ("run-9", pipeline.sources[30:39])):
        driver = pipeline.recorder(owner)
        made = replace(SETTLED, owner=owner, topic_id=pipeline.topic_id)
        driver.finish_take_over(driver.take_over(sources), Commit(dict.fromkeys(sources, made)))
    topic = FleetTopic(kafka.access(), pipeline.configuration.fleet_topic, is_made=True)

    def report(number: int, near: str) -> None:
        for owner, name, data_center in (("run-1", "a", "west"), ("run-2", "b", "east")):
            said = Report(owner, name, number, data_center=data_center, near=near)
            topic.send(replace(said, silent_seconds=600))
        assert topic.flush(10)

    report(1, near="")

    def planned(*options: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["fleet", str(pipeline.path), *options, "--json"]) == 0
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    found = planned("--plan")
    assert [each["partition"] for each in found] == list(range(40))
    shares = Counter(each["to"] for each in found)
    assert shares.keys() == {"a", "b"} and min(shares.values()) >= 8
    whys = {(each["member"], each["to"] == "a", each["why"]) for each in found}
    assert whys == {
        ("a", True, ""),
        ("a", False, "it is on its way"),
        (None, True, "no driver reports as its owner"),
        (None, False, "no driver reports as its owner"),
    } | {(None, found[39]["to"] == "a", "it has no record yet")}
    assert {each["to"] for each in planned("--leave", "a")} == {"b"}
    joined = planned("--join", "c:100")
    assert sum(each["to"] == "c" for each in joined) > 30
    assert {each["why"] for each in joined if each["member"] and each["to"] == "c"} == {"c joins"}
    report(2, near="east")
    found = planned("--plan")
    assert {each["to"] for each in found} == {"b"}
    assert {each["why"] for each in found if each["member"] == "a"} == {"east is preferred"}
    assert main(["fleet", str(pipeline.path), "--plan"]) == 0
    out = capsys.readouterr().out
    assert "planned" in out and "east is preferred" in out
    for options, words in (
        (("--leave", "x"), 'no member "x" reports'),
        (("--join", "b"), 'a member "b" reports already'),
    ):
        assert main(["fleet", str(pipeline.path), *options]) == 2
        assert words in capsys.readouterr().err
    topic.close()
    pipeline.close()
