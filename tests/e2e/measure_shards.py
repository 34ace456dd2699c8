"""One range into a table of several shards: its blocks one after the other, and side by side.

    python -m tests.e2e.measure_shards --shards 4 --replicas 2 --messages 20000 --delay 0 --rounds 5

The servers are 18.16.1; with more than one replica a quorum of two is waited for. `--delay` is
seconds that everything takes on its way to a server, as to another data center.
"""

from __future__ import annotations

import argparse
import statistics
import uuid
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from sluice.config import load
from sluice.core.receipts import Loaded
from sluice.driver.specs import read_spec
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.running import running_broker
from sluice.worker import loading
from tests.support.range_task import Task
from tests.support.world import COLUMNS, LINEAGE, Truth, World

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")


def load_once(world: World, cluster: Cluster, shards: str, topic: str, messages: int) -> float:
    """Load the whole topic into a new table as one range; gives the seconds of its inserts."""
    table = f"t{uuid.uuid4().hex[:8]}"
    cluster.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{{shard}}/{table}', '{{replica}}') ORDER BY (user_id, ts)"
    )
    sharding = 'sharding = { by = "key", column = "user_id" }'
    path = world.configure({table: [topic]}, shards=shards, table_settings=sharding)
    if len(cluster.servers) > len(cluster.shards):
        path.write_text(path.read_text().replace('"single"', '"quorum"'))
    configuration = load(path, {})
    outcome = Task(configuration, topic, messages, read_spec(configuration, "dc1")).load().outcome
    assert isinstance(outcome, Loaded), outcome
    assert outcome.rows == messages and len(outcome.receipts) == len(cluster.shards)
    cluster.execute(f"DROP TABLE {table}")
    return outcome.stages.insert


def main() -> None:
    """Measure, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    found: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(running_broker(folder / "kafka"))
        cluster = stack.enter_context(running_cluster(chosen.shards, chosen.replicas))
        world = World(folder, broker, cluster.servers[0], name=f"s{uuid.uuid4().hex[:8]}")
        stack.callback(world.close)
        topic = f"shards-{world.name}"
        world.create_topic(topic, 1)
        world.produce(topic, chosen.messages, Truth(), partitions=1)
        urls: dict[str, list[str]] = {}
        for shard, servers in cluster.shards.items():
            for server in servers:
                way = stack.enter_context(Proxy(Inserts, ("127.0.0.1", server.settings.ports[0])))
                if chosen.delay:
                    way.strike(LinkFault(Kind.DELAY, seconds=chosen.delay))
                urls.setdefault(shard, []).append(f"http://127.0.0.1:{way.port}")
        pairs = (f"{shard} = {of}" for shard, of in urls.items())
        shards = f"{{ {', '.join(pairs)} }}".replace("'", '"')
        load_once(world, cluster, shards, topic, chosen.messages)  # compiles, connects
        for _ in range(chosen.rounds):
            for parallel in (False, True):
                with mock.patch.object(loading, "may_go_parallel", lambda *_, it=parallel: it):
                    seconds = load_once(world, cluster, shards, topic, chosen.messages)
                found[parallel].append(seconds)
    for parallel, rounds in found.items():
        told = ", ".join(f"{1000 * each:.0f}" for each in rounds)
        name = "side by side" if parallel else "one after the other"
        print(f"{name}: {1000 * statistics.median(rounds):.0f} ms ({told})")


if __name__ == "__main__":
    main()
