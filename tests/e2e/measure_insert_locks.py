"""Several partitions into one table of one shard, with a quorum of two on a server that takes one
quorum insert at a time: with insert locks, and without.

    python -m tests.e2e.measure_insert_locks --replicas 3 --partitions 8 --rows 400000 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import uuid
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.running import Broker, running_broker
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
REFUSED = "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What one run came to.

    :param seconds: from the first block's insert to the last one's acknowledgement.
    :param refusals: answers 286, as the driver heard of them.
    """

    rows: int
    seconds: float
    refusals: int
    receipts: list[dict[str, Any]]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds


def load(
    folder: Path,
    broker: Broker,
    cluster: Cluster,
    *,
    insert_locks: bool,
    partitions: int,
    rows: int,
    max_messages: int,
) -> Loaded:
    """Load a topic of so many rows to its end, and compare each replica with it."""
    world = World(folder, broker, cluster.servers[0], name=f"q{uuid.uuid4().hex[:8]}")
    table, topic = f"turns_{world.name}", f"insert_locks-{world.name}"
    world.create_topic(topic, partitions)
    cluster.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )
    urls = '", "'.join(server.url for server in cluster.servers)
    configuration = world.configure({table: [topic]}, max_messages=max_messages, url=urls)
    text = configuration.read_text().replace('durability = "single"', 'durability = "quorum"')
    text = text.replace("local[2]", f"local[{partitions}]")
    if insert_locks:
        lock = f'zookeeper = "127.0.0.1:{cluster.zookeeper.port}/loaders"\n[[table]]'
        text = text.replace("[[table]]", lock)
    configuration.write_text(text)
    truth = Truth()
    world.produce(topic, rows, truth, partitions=partitions)
    try:
        driver = world.drain(configuration, timeout_seconds=900)
        cluster.execute(f"SYSTEM SYNC REPLICA {table}")
        for each in cluster.servers:
            world.clickhouse = each
            assert_exact(world, table, truth)
        receipts: list[dict[str, Any]] = [e for e in world.ledger() if e["type"] == "receipt"]
        ends = [int(each["acknowledged_at_ms"]) for each in receipts]
        begins = [end - int(each["insert_ms"]) for end, each in zip(ends, receipts, strict=True)]
        seconds = (max(ends) - min(begins)) / 1000
        refusals = driver.text().count(f"{REFUSED} (286)")
        return Loaded(truth.rows, seconds, refusals, receipts)
    finally:
        world.close()
        cluster.execute(f"DROP TABLE {table}")


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--max-messages", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    found: dict[bool, list[Loaded]] = {False: [], True: []}
    with (
        TemporaryDirectory() as folder,
        running_broker(Path(folder) / "kafka") as broker,
        running_cluster(1, chosen.replicas) as cluster,
    ):
        for _ in range(chosen.rounds):
            for insert_locks in (False, True):
                loaded = load(
                    Path(folder),
                    broker,
                    cluster,
                    insert_locks=insert_locks,
                    partitions=chosen.partitions,
                    rows=chosen.rows,
                    max_messages=chosen.max_messages,
                )
                found[insert_locks].append(loaded)
                waited = sum(each.get("queueing", {}).get("wait_ms", 0) for each in loaded.receipts)
                print(
                    f"{'with insert locks' if insert_locks else 'without   '}  "
                    f"{loaded.rows_per_second:9,.0f} "
                    f"rows/s  {len(loaded.receipts)} blocks  {loaded.refusals} times 286  "
                    f"waited {waited / 1000:.1f} s",
                    flush=True,
                )
    for insert_locks, rounds in found.items():
        median = statistics.median(each.rows_per_second for each in rounds)
        print(f"median {'with insert locks' if insert_locks else 'without'}: {median:,.0f} rows/s")


if __name__ == "__main__":
    main()
