"""The broker's classes, read and verified once for all later starts, as Spark's are.

A start takes 1.5 s of CPU then instead of 2.5 [measured]; a run of all tests makes dozens.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sluice.spark.archives import path_of, set_up
from sluice.spark.java import require_java
from sluice.testbed.local.jars import kafka_jars
from sluice.testbed.local.running import Broker, running_program


def archive_path(java: Path, jars: Path) -> Path:
    """Where the archive of this Java and these jars is, if it was made: beside them."""
    # Which ones is said by their names; the folder is made anew where they change.
    names = "\n".join(sorted(jar.name for jar in jars.glob("*.jar")))
    return path_of("kafka", jars, java, f"{jars}\n{names}")


class _Recorded(Broker):
    """A broker that Java is to make an archive of, when it ends."""

    def __init__(self, data: Path, options: str) -> None:
        super().__init__(data)
        self._options = options

    @property
    def environment(self) -> dict[str, str]:
        return {"JDK_JAVA_OPTIONS": self._options}


def _run(options: str) -> None:
    """What brokers of tests do: a topic, a transaction with offsets of a group, and reading it."""
    with tempfile.TemporaryDirectory() as folder:
        broker = _Recorded(Path(folder) / "kafka", options)
        with running_program(broker):
            _use(broker.brokers)


def _use(brokers: str) -> None:
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic("a", 1, 1)])["a"].result(30)
    consumer = ck.Consumer({"bootstrap.servers": brokers, "group.id": "a"})
    consumer.assign([ck.TopicPartition("a", 0, 0)])
    producer = ck.Producer({"bootstrap.servers": brokers, "transactional.id": "a", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("a", b"a", partition=0)
    offsets = [ck.TopicPartition("a", 0, 0)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    consumer.consume(1, 30)
    consumer.close()


def main() -> int:
    """Make it unless it is there."""
    jars = kafka_jars()
    return set_up("Kafka", archive_path(require_java(), jars), _run)


if __name__ == "__main__":
    sys.exit(main())
