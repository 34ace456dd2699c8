"""What a batch of many small ranges costs the driver's Python, without Spark and without waiting.

`python -m tests.driver.batch_cost --topics 1000 --partitions 1` runs the real loop on a real
broker: stable ends, planning, the check of what is committed, transactions with offsets and ledger,
settling. Spark and the windows are in memory: jobs come back at once, packed and unpacked as
Spark's are. So all CPU time is work; what a worker would do of it is not counted.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import confluent_kafka as ck

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.budget import TargetShard, WindowState
from sluice.core.errors import SluiceError, TransientError
from sluice.core.ledger import Commit
from sluice.core.planning import Limits
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Loaded, Receipt, Stages, TaskReport
from sluice.driver.loop import ConnectorLoop
from sluice.driver.ports import LoopParts, ShardWindow
from sluice.driver.start import Started
from sluice.driver.state import Holds
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.log import SourceLog
from sluice.kafka.recorder import Recorder
from sluice.kafka.topics import ensure_own_topic
from sluice.kafka.transactions import RecorderNames
from sluice.kafka.wire.ends import StableEnds
from sluice.machine.collector import relax_collector
from sluice.spark.jobs import Inbox, JobResult
from sluice.testbed.local.producing import create_topics
from sluice.testbed.local.running import running_broker
from sluice.worker.assignment import Assignment, Job, TaskEnvironment
from tests.driver.loop_world import World

_ROUNDS = 5
_STAGES = Stages(0.01, 0.001, 0.01, 0.01, 0.001, 0.0, 0.03, 0.02)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class InstantSpark:
    """Jobs that are loaded at once.

    :param worked: CPU seconds of what a worker would do.
    """

    def __init__(self, slots: int) -> None:
        self.slots = self.slots_max = slots
        self.jobs = 0
        self.worked = 0.0

    def submit(
        self, job: Job, environment: TaskEnvironment, finished: Callable[[Any], None]
    ) -> None:
        self.jobs += 1
        sent = [pickle.dumps(task) for task in job.tasks]
        began = time.thread_time()
        answers = [pickle.dumps(tuple(map(_report, pickle.loads(packed)))) for packed in sent]
        self.worked += time.thread_time() - began
        finished(JobResult(job, tuple(r for packed in answers for r in pickle.loads(packed))))

    def warm(self, *, wait: bool = False) -> None:
        """Nothing gets cold."""


def _report(assignment: Assignment) -> TaskReport:
    block_range = assignment.block_range
    token = f"p/0/c/{assignment.record.topic_id}/{block_range}/t+d.t/s1"
    receipt = Receipt(
        "t", "d.t", "s1", token, block_range.span, 1000, "0123456789abcdef", "http://h:8123", 1, 3
    )
    loaded = Loaded((receipt,), (), block_range.span, 100, 0, _STAGES)
    return TaskReport(block_range, assignment.record.batch, loaded)


class WideWindows:
    """Room for everything."""

    def __init__(self, target_shards: list[TargetShard]) -> None:
        self._target_shards = target_shards

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        return {
            s: ShardWindow(WindowState(100_000, 0, "d.t"), now_ms(), None)
            for s in self._target_shards
        }

    def outage(self, target_shard: TargetShard) -> str | None:
        return None

    def refusal(self, target_shard: TargetShard) -> SluiceError | None:
        return None


def _loop(
    world: World, access: KafkaAccess, log: SourceLog, spark: InstantSpark
) -> tuple[ConnectorLoop, Recorder]:
    names = RecorderNames("sluice.p.c", "sluice.ledger", "sluice.letters", "me")
    recorder = Recorder(access, names, now_ms=now_ms)
    limits = Limits(250_000, 1 << 26, 500)
    world.planner = replace(world.planner, limits=limits, members_max=1_000)
    states = [world.settled(source) for source in world.ends]
    ids = log.topics({source.topic for source in world.ends})
    for state in states:
        state.record = replace(state.record, topic_id=ids[state.source.topic][0])
    taken = recorder.take_over(world.ends)
    recorder.finish_take_over(taken, Commit({state.source: state.record for state in states}))
    environment = TaskEnvironment(
        "p",
        access,
        ClickHouseAccess({"s1": ("http://h",)}, "", "", "single"),
        {},
    )
    parts = LoopParts(
        log=recorder,
        offsets=log,
        windows=WideWindows(list(world.tables)),
        jobs=spark,
        prober=world,
        now_ms=now_ms,
        inbox=Inbox(),
    )
    loop = ConnectorLoop(
        "loop",
        parts,
        world.planner,
        environment,
        states,
        Holds([]),
        1,
        lambda sources: Started(),
    )
    return loop, recorder


def measure(topics: int, partitions: int, slots: int, folder: Path) -> None:
    """Print the cost of each round: one message in every partition.

    :param partitions: of each topic.
    """
    names = [f"a-{number}" for number in range(topics)]
    sources = [TopicPartition(name, number) for name in names for number in range(partitions)]
    with running_broker(folder) as broker:
        access = KafkaAccess("c", broker.brokers)
        create_topics(access, names, partitions)
        admin = make_admin(access)
        log = SourceLog(admin, StableEnds(access))
        for topic in ("sluice.ledger", "sluice.letters"):
            ensure_own_topic(admin, topic)
        while True:
            try:
                log.stable_ends(sources)
                break
            except TransientError:
                time.sleep(0.2)
        world, spark = World(sources), InstantSpark(slots)
        loop, recorder = _loop(world, access, log, spark)
        relax_collector()
        producer = ck.Producer({"bootstrap.servers": broker.brokers, "linger.ms": 50})
        for _ in range(_ROUNDS):
            for source in sources:
                producer.produce(source.topic, b"x" * 100, partition=source.partition)
            producer.flush()
            began, batches, jobs = time.process_time(), loop.counters.batches, spark.jobs
            worked = spark.worked
            looked_at = time.monotonic()
            ends = log.stable_ends(sources)
            looked, waited = time.process_time() - began, time.monotonic() - looked_at
            loop.run(ends, 5.0)
            used = time.process_time() - began - (spark.worked - worked)
            batches, jobs = loop.counters.batches - batches, spark.jobs - jobs
            print(
                f"{len(sources):,} ranges in {batches} batches and {jobs} jobs: "
                f"{used / batches * 1e3:.1f} ms of CPU for each batch, "
                f"{used / len(sources) * 1e6:.0f} µs for each range; "
                f"a look at all ends {looked * 1e3:.1f} ms, waited for {waited * 1e3:.0f} ms",
                flush=True,
            )
        recorder.close()
        producer.flush()
        del producer, loop, recorder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.driver.batch_cost")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=2)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-batch-cost-") as folder:
        measure(parsed.topics, parsed.partitions, parsed.slots, Path(folder) / "kafka")


if __name__ == "__main__":
    main()
