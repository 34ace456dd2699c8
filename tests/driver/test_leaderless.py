"""Taking over while some partitions have no leader, on a real broker that has lost a disk."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from confluent_kafka.admin import NewPartitions

from sluice.core.errors import TransientError
from sluice.core.ledger import Background, Commit, record_entry, spec_entry
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record, decode
from sluice.driver.effects import StopPartition
from sluice.driver.observing import TopicObserver
from sluice.driver.ports import no_cuts
from sluice.driver.state import PartitionState
from sluice.ops.status import read_status
from sluice.testbed.local.broker import PROPERTIES_VARIABLE
from sluice.testbed.local.running import Broker, running_program
from tests.driver.starting import spec_of, start
from tests.kafka.groups import NOW, SETTLED, Group, intend
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka, numbered


class TwoDisks(Broker):
    """A broker that is given a second log directory, and may lose it."""

    has_second = False

    @property
    def second(self) -> Path:
        return self.folder / "second"

    @property
    def environment(self) -> dict[str, str]:
        if not self.has_second:
            return {}
        file = self.folder / "disks.properties"
        file.write_text(f"log.dirs={self.folder / 'log'},{self.second}\n")
        return {PROPERTIES_VARIABLE: str(file)}

    def add_second(self) -> None:
        """An empty one, on which all partitions come that are made next."""
        told = (self.folder / "log" / "meta.properties").read_text().splitlines()
        drawn = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        kept = [line for line in told if not line.startswith(("directory.id", "#"))]
        self.second.mkdir()
        text = "\n".join([*kept, f"directory.id={drawn}"])
        (self.second / "meta.properties").write_text(f"{text}\n")
        self.has_second = True

    def lose_second(self) -> None:
        self.second.rename(self.folder / "away")
        self.second.write_text("no directory")

    def find_second(self) -> None:
        self.second.unlink()
        (self.folder / "away").rename(self.second)

    def changed(self, change: Callable[[], None]) -> None:
        self.stop()
        change()
        self.start()


def record_of_old(group: Group) -> list[Record]:
    """A driver recorded one partition on the disk that stays, and three on the other one, where one
    more was never recorded: it is gone."""
    ends = group.kafka.log.epoch_ends(group.sources)
    topic_id = group.kafka.log.topics([group.topic])[group.topic][0]
    today = spec_of("a", topic=group.topic)
    settled = replace(SETTLED, owner="old", topic_id=topic_id, spec=today.digest())
    doubt = intend("old", 0, 10, topic_id=topic_id, spec=today.digest())
    made = [settled, replace(settled, begin=5, end=5), doubt, replace(settled, begin=5, end=5)]
    records = {
        source: replace(record, epoch=ends[source].epoch)
        for source, record in zip(group.sources, made, strict=False)
    }
    background = Background(insert_counters={"a/s1": 0}, since_ms=NOW)
    entries = (
        spec_entry(today.digest(), today.canonical()),
        *(
            record_entry(s, r, background if r.in_doubt else Background())
            for s, r in records.items()
        ),
    )
    old = group.recorder("old")
    old.finish_take_over(old.take_over(records), Commit(records, entries))
    return list(records.values())


def observer(group: Group, states: list[PartitionState]) -> TopicObserver:
    held = {state.source: state for state in states}
    return TopicObserver("dc1", held, group.kafka.log, None, lambda state: None, None, no_cuts, NOW)


def test_what_has_no_leader_waits_alone_and_is_looked_at_before_anything_is_sent(
    tmp_path: Path,
) -> None:
    with running_program(TwoDisks(tmp_path / "kafka")) as broker:
        kafka = Kafka(broker)
        group = Pipeline(kafka, tmp_path)
        group.recorder("nobody").take_over(group.sources)  # makes Kafka's own topics
        broker.changed(broker.add_second)
        kafka.admin.create_partitions([NewPartitions(group.topic, 5)])[group.topic].result(30)
        group.sources = [TopicPartition(group.topic, number) for number in range(5)]
        kafka.until(lambda: has_leaders(kafka, group, 5))
        for number in range(5):
            kafka.produce(group.topic, numbered(20), number)
        recorded = record_of_old(group)
        broker.changed(broker.lose_second)
        kafka.until(lambda: has_leaders(kafka, group, 1))

        started, _ = start(group, spec_of("a", topic=group.topic), why=None)
        states = started.states
        assert [state.source for state in states] == group.sources[:4]
        assert [state.stopped for state in states] == [None] * 4
        assert [state.is_unseen for state in states] == [False, True, True, True]
        assert [state.stable_end for state in states] == [20, 5, 10, 5]
        assert [(s.record.begin, s.record.end) for s in states] == [
            (record.begin, record.end) for record in recorded
        ]
        held = [group.committed(number) for number in range(5)]
        assert [at is not None and decode(at.offset, at.metadata).owner for at in held] == [
            *["new"] * 4,
            False,
        ]
        assert started.recorded is None or group.sources[4] not in started.recorded

        told = [status.stable_end for status in read_status(group.configuration)]
        assert told == [20, None, None, None, None]
        observing = observer(group, states)
        assert list(observing.see_ends(group.sources[:4], NOW)) == []
        assert [state.is_unseen for state in states] == [False, True, True, True]
        broker.changed(broker.find_second)
        kafka.until(lambda: has_leaders(kafka, group, 5))
        kafka.delete_records(group.topic, 8, 3)
        (stop,) = observing.see_ends(group.sources[:4], NOW)
        assert isinstance(stop, StopPartition) and stop.source == group.sources[3]
        assert "messages expired before they were loaded" in str(stop.error)
        assert [state.is_unseen for state in states] == [False, False, False, True]
        assert [state.stable_end for state in states] == [20, 20, 20, 5]
        again, _ = start(group, spec_of("a", topic=group.topic), why=None)
        (new,) = (state for state in again.states if state.source == group.sources[4])
        assert new.settled == 0 and new.stable_end == 20
        group.close()


def has_leaders(kafka: Kafka, group: Group, count: int) -> bool:
    """Whether so many partitions of its topic have one, and answer."""
    try:
        return len(kafka.log.stable_ends(group.sources, partial=True)) == count
    except TransientError:
        return False
