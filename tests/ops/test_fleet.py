"""How drivers would share a pipeline, by what Kafka says of it."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

from sluice.cli.main import main
from sluice.core.fleet.fold import Heard
from sluice.core.fleet.records import Report
from sluice.core.ranges import TopicPartition
from sluice.kafka.fleet import FleetTopic
from sluice.ops.fleet import Load, members_of, plan_of, read_plans
from tests.kafka.groups import intend
from tests.ops.pipelines import Pipeline, settled
from tests.support.kafka import Kafka, numbered


def load(partition: int, owner: str, work: int = 100, *, is_frozen: bool = False) -> Load:
    return Load(TopicPartition("orders", partition), owner, 10, 5.0, work, 1, is_frozen)


def test_who_owns_today_is_the_first_member() -> None:
    loads = [load(number, "run-1") for number in range(6)]
    found = plan_of("dc1", loads, [1, 1])
    assert [(s.member, s.partitions_now, s.partitions) for s in found.shares] == [
        ("run-1", 6, 3),
        ("new-1", 0, 3),
    ]
    first, second = found.shares
    assert (first.messages_a_second, first.lag, first.work_percent, first.brokers) == (
        15,
        30,
        50,
        1,
    )
    assert {(move.before, move.after) for move in found.moves} == {("run-1", "new-1")}
    assert (found.uneven_before, found.uneven_after) == (100, 0)
    assert second.slots == 1


def test_of_more_owners_than_members_those_with_little_leave() -> None:
    loads = [load(0, "run-1"), load(1, "run-2", 300), load(2, "run-2"), load(3, "")]
    found = plan_of("dc1", loads, [4])
    assert [(s.member, s.slots, s.partitions_now, s.partitions) for s in found.shares] == [
        ("run-2", 4, 2, 4)
    ]
    assert [(move.partition, move.before, move.why) for move in found.moves] == [
        (0, "run-1", "run-1 is no member"),
        (3, "", "nobody has it yet"),
    ]


def test_what_is_frozen_stays() -> None:
    loads = [load(number, "run-1", is_frozen=number < 4) for number in range(6)]
    found = plan_of("dc1", loads, [1, 1])
    assert [move.partition for move in found.moves] == [4, 5]


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
    before = [pipeline.committed(partition) for partition in range(4)]

    def meanwhile(seconds: float) -> None:
        assert seconds == 0.2
        kafka.produce(pipeline.topic, numbered(500), 0)
        Event().wait(seconds)

    (found,) = read_plans(pipeline.configuration, [1, 1], 0.2, meanwhile)
    mine, new = found.shares
    assert (mine.member, mine.partitions_now, new.member) == ("driver", 4, "new-1")
    assert mine.partitions + new.partitions == 4
    assert mine.lag + new.lag == 3 * 900 + 500
    assert 0 < mine.messages_a_second + new.messages_a_second <= 500 / 0.2
    assert mine.brokers == new.brokers == 1
    # Nobody was fenced, and nothing was written.
    assert [pipeline.committed(partition) for partition in range(4)] == before
    words = ["fleet", "plan", str(pipeline.path), "--slots", "1,1", "--measure", "1ms"]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert [share["member"] for share in shown["shares"]] == ["driver", "new-1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "connector dc1: 2 partitions would move" in out
    assert "driver has 200 % of its share of the work, new-1 0 %" in out
    # Nobody reports yet.
    assert main(["fleet", str(pipeline.path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["owner"], shown["state"], shown["partitions"]) == ("driver", "no report", 4)
    topic = FleetTopic(kafka.access(), pipeline.configuration.fleet_topic, is_made=True)
    topic.send(Report("driver", "east-1", 1, floors={"shop.orders/s1": 12}))
    assert topic.flush(10)
    topic.close()
    assert main(["fleet", str(pipeline.path)]) == 0
    out = capsys.readouterr().out
    assert "east-1" in out and "reports" in out and "shop.orders/s1" in out
    pipeline.path.write_text(pipeline.path.read_text() + "[fleet]\n")
    assert main(["status", str(pipeline.path)]) == 0
    assert "member east-1 (driver) reports, last" in capsys.readouterr().out
    pipeline.close()
