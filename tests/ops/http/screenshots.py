"""Takes the pictures of the status page that README.md shows, in a real Chromium:

.venv/bin/python -m tests.ops.http.screenshots docs/images
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sluice.core.decided import Frozen, Subject
from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.core.replicas import Condition, ReplicaHealth
from sluice.driver.counters import Inserted
from sluice.driver.loop import ConnectorLoop
from sluice.driver.ports import ReplicaState
from sluice.ops.proof import _begun
from sluice.verify.continuous import Turn
from tests.driver.loop_world import World, run, table_spec
from tests.ops.http.scene import Served, run_of
from tests.support.browser import chromium

R1, R2 = "http://clickhouse-1:8123", "http://clickhouse-2:8123"
#: File, width, height, and how Chromium is told which colours are preferred: 1 is light.
PICTURES = (
    ("page-light.png", 1000, 1000, 1),
    ("page-dark.png", 1000, 1000, 0),
    ("page-phone.png", 390, 1000, 1),
)


class Watch:
    """What is known of two replicas, of which one is away."""

    differs = ""

    def current(self) -> list[ReplicaState]:
        well = ReplicaHealth(Condition(delay_seconds=1, queue=3, active=1, total=2))
        away = ReplicaHealth(None, "it does not answer")
        return [ReplicaState("s1", R1, well), ReplicaState("s1", R2, away)]


def scene() -> ConnectorLoop:
    """A pipeline with something to see: it loads, a table is frozen, one has dead letters, and a
    replica is away."""
    names = ("orders", "payments", "clicks")
    tables = tuple(replace(table_spec(name, (name,)), database="shop") for name in names)
    sources = [TopicPartition(name, number) for name in names for number in range(8)]
    world = World(sources, tables)
    world.shards = {"s1": (R1, R2)}
    world.ends = dict.fromkeys(sources, 10)
    loop = run(world)
    loop.replicas = Watch()
    now = time.time_ns() // 1_000_000
    loop.round_at_ms = now + 3_600_000
    for source, state in loop.states.items():
        state.settled_at_ms = now - 900
        if source.topic == "orders":
            state.waiting_since_ms, state.stable_end = now + 57_000, state.settled + 1_200
        if source.topic == "payments":
            state.settled_at_ms = now - 1_500_000
            state.waiting_since_ms, state.stable_end = now - 1_490_000, state.settled + 41_700
            state.behind_since_ms = state.waiting_since_ms
    first = loop.states[TopicPartition("clicks", 3)]
    first.record = replace(first.record, kind=world.jobs[0].assignments[0].record.kind, end=510)
    first.background = replace(first.background, since_ms=now - 12_000)
    first.fail(TransientError("CONNECTION_REFUSED: clickhouse-2:8123"), now + 64_000)
    loop.dead_letters.counts[("clicks", "not_json")] = 17
    loop.dead_letters.counts[("clicks", "out_of_range")] = 3
    why = "a column is added on both replicas"
    loop.freezing.standing = (Frozen(Subject("table", "payments"), "alice", why, now - 1_495_000),)
    loop.counters.rows = 48_203_116
    for name, rows in (("orders", 31_420_870), ("payments", 9_114_002), ("clicks", 7_668_244)):
        loop.counters.inserted[f"shop.{name}", "s1", R1] = Inserted(900, 900, rows, rows * 120)
    return loop


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """The page of the scene, whose tables take rows meanwhile."""
    loop, stop = scene(), threading.Event()
    made = Served(folder, [run_of(loop)])
    now = time.time_ns() // 1_000_000
    made.proof._records["verify"] = _begun("verify", 60.0, now)
    made.proof._records["verify"].take(Turn("verify", now - 41_000, now - 40_000, covered=18_442))
    made.proof._records["audit"] = _begun("audit", 600.0, now)
    made.proof._records["audit"].take(
        Turn("audit", now - 220_000, now - 180_000, covered=2_104_882)
    )

    def count() -> None:
        while not stop.wait(0.2):
            loop.counters.rows += 16_000
            for name, rows in (("orders", 15_400), ("clicks", 600)):
                loop.counters.inserted[f"shop.{name}", "s1", R1].rows += rows

    threading.Thread(target=count, daemon=True).start()
    try:
        made.ask("/status")
        time.sleep(5)  # so that there are rates
        yield made
    finally:
        stop.set()
        made.server.stop()


def take(target: Path) -> None:
    """Write the pictures into a folder."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as page:
        for name, width, height, colours in PICTURES:
            chromium(
                Path(folder) / name,
                *("--virtual-time-budget=4000", "--hide-scrollbars"),
                f"--blink-settings=preferredColorScheme={colours}",
                f"--window-size={width},{height}",
                f"--screenshot={target / name}",
                f"http://127.0.0.1:{page.port}/",
            )


if __name__ == "__main__":
    take(Path(sys.argv[1]).resolve())
