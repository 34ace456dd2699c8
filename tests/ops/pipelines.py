"""A configured pipeline on the test broker, with what a driver would have recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.config import Configuration, load
from sluice.core.ledger import (
    Background,
    Commit,
    record_entry,
    spec_entry,
)
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record, decode
from sluice.kafka.recorder import Recorder
from sluice.ops.partition_decisions.situation import PartitionSelection
from tests.kafka.groups import SETTLED, Group
from tests.support.kafka import Kafka, numbered

CONFIGURATION = """\
[pipeline]
name = "{pipeline}"
[[connector]]
name = "dc1"
brokers = "{brokers}"
topics = ["{topic}"]
[batch]
[clickhouse]
database = "{database}"
shards = {{ s1 = ["{url}"] }}
durability = "single"
[[table]]
name = "orders"
topics = ["{topic}"]
[ledger]
topic = "{ledger}"
[dead_letters]
topic = "{dead_letters}"
"""


class Pipeline(Group):
    """A group and its configuration."""

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        partitions: int = 1,
        url: str = "http://127.0.0.1:1",
        database: str = "shop",
    ) -> None:
        super().__init__(kafka, partitions)
        self.path = folder / "sluice.toml"
        self.path.write_text(
            CONFIGURATION.format(
                pipeline=self.pipeline,
                brokers=kafka.brokers,
                topic=self.topic,
                ledger=self.ledger,
                dead_letters=self.dead_letters,
                url=url,
                database=database,
            )
        )
        self.configuration: Configuration = load(self.path, {})

    @property
    def topic_id(self) -> str:
        """Short id of the topic as it is now."""
        return self.kafka.log.topics([self.topic])[self.topic][0]

    def select(self, *partitions: int, take_over: bool = False) -> PartitionSelection:
        """What a plan decides about."""
        return PartitionSelection("dc1", self.topic, partitions or (0,), take_over)

    def fill(self, count: int = 100, partition: int = 0) -> None:
        """Messages in the topic."""
        self.kafka.produce(self.topic, numbered(count), partition)

    def drive(
        self,
        record: Record,
        *,
        owner: str = "driver",
        partition: int = 0,
        background: Background | None = None,
        spec: LoadSpec | None = None,
    ) -> Recorder:
        """A driver takes over and commits this record, with its ledger entries."""
        source = self.sources[partition]
        made = replace(record, owner=owner, topic_id=self.topic_id)
        entries = [record_entry(source, made, background or Background())]
        if spec is not None:
            made = replace(made, spec=spec.digest())
            entries = [
                spec_entry(spec.digest(), spec.canonical()),
                record_entry(source, made, background or Background()),
            ]
        driver = self.recorder(owner)
        taken = driver.take_over([source])
        driver.finish_take_over(taken, Commit({source: made}, tuple(entries)))
        return driver

    def record(self, partition: int = 0) -> Record:
        """The valid record that the group holds."""
        found = self.committed(partition)
        assert found is not None
        return decode(found.offset, found.metadata)

    def ledger_bodies(self, kind: str, partition: int = 0) -> list[dict[str, Any]]:
        """Committed ledger entries of a type."""
        bodies = [json.loads(message.value()) for message in self.kafka.read(self.ledger)]
        source = TopicPartition(self.topic, partition)
        return [
            body
            for body in bodies
            if body["type"] == kind and body.get("partition") == source.partition
        ]


def settled(at: int, **changes: Any) -> Record:
    """A settle."""
    return replace(SETTLED, begin=at, end=at, **changes)
