"""What continuous proof costs: `python -m tests.verify.continuous_cost --messages 400000`."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from sluice.clickhouse.http import Server
from sluice.driver.children import own_process
from sluice.testbed.local.running import running_broker, running_clickhouse
from tests.support.kafka import Kafka
from tests.support.world import order
from tests.verify.test_audit import Scene

WHOLE = '[audit]\nevery = "10m"\nshare = 1.0\n'
IDLE = '[verify]\nevery = "10s"\n[audit]\nevery = "10s"\n'


def played(scene: Scene, messages: int) -> str:
    """A topic of four partitions, loaded and settled; gives its name."""
    scene.create()
    topic = scene.kafka.topic(4)
    each = messages // 4
    for partition in range(4):
        for begin in range(0, each, 50_000):
            numbers = range(begin, min(begin + 50_000, each))
            scene.kafka.produce(topic, [order(number) for number in numbers], partition)
        scene.server.execute(
            f"INSERT INTO {scene.database}.orders "
            f"SELECT number, '{topic}', {partition}, number, 0 FROM numbers({each})"
        )
        scene.settle(topic, each, partition)
    return topic


def looks(scene: Scene, topic: str, sections: str, count: int) -> None:
    """Print what the first looks say."""
    path = scene.configuration(topic, more=sections).path
    begin = json.dumps({"driver_ms": int(time.time() * 1000)})
    command, environment = own_process("sluice.verify.continuous", str(path), begin)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        for _ in range(count):
            turn = json.loads(child.stdout.readline())
            took = (turn["ended_ms"] - turn["began_ms"]) / 1000
            print(
                f"{turn['what']}: {took:.1f} s, covered {turn['covered']}, left out "
                f"{turn['left_out']}; processor time so far {turn['cpu_seconds']:.2f} s, "
                f"{turn['memory_bytes'] >> 20} MB {turn['error']}"
            )
        child.stdin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    messages = parser.parse_args().messages
    with (
        TemporaryDirectory() as name,
        running_broker(Path(name) / "kafka") as broker,
        running_clickhouse(Path(name) / "clickhouse") as clickhouse,
        Server(clickhouse.url) as server,
    ):
        server.execute("CREATE DATABASE proof")
        scene = Scene(Path(name), Kafka(broker), server, "proof")
        topic = played(scene, messages)
        looks(scene, topic, WHOLE, 1)
        looks(scene, topic, IDLE, 10)


if __name__ == "__main__":
    main()
