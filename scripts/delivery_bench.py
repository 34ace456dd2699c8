"""What each delivery costs a server and a worker: the matrix of docs/DELIVERIES.md.

    python scripts/delivery_bench.py [--rows 100000] [--blocks 20]

Blocks of so many rows, of six columns, go into tables of the embedded engine and of Debian's
ClickHouse 18.16.1, each under each delivery that it allows, as a worker delivers them. Told are CPU
of the server and of the worker (the client alone: blocks are made before), statements and looks of
a block, and the parts that it makes where rows are read. Deliveries take turns; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.stream_bench import cpu_seconds
from sluice.clickhouse.http import Server
from sluice.core.load_spec import Delivery
from sluice.testbed.local.cluster.zookeeper import ZooKeeper
from sluice.testbed.local.running import running_clickhouse
from sluice.worker.worker_cache import WorkerCache
from tests.support.children import running
from tests.support.clickhouse_server import run_clickhouse
from tests.support.delivered import OLD, DeliveredTable, SteppedServer


@dataclass(frozen=True, slots=True)
class Case:
    """A delivery, and the table that it goes into."""

    name: str
    delivery: Delivery
    engine: str = ""
    has_views: bool = False
    partitions: int = 1


CASES = (
    *(Case("block", "block", partitions=each) for each in (1, 10)),
    Case("block, two views", "block", has_views=True, partitions=2),
    *(Case("replacing", "replacing", partitions=each) for each in (1, 10)),
    *(Case("staged", "staged", partitions=each) for each in (1, 10)),
    Case("staged, two views", "staged", has_views=True, partitions=2),
    Case("staged, AggregatingMergeTree", "staged", engine="AggregatingMergeTree"),
)


class CountingServer(SteppedServer):
    """A client that counts what it sends."""

    def __init__(self, url: str) -> None:
        super().__init__(url, lambda number, is_done: None)
        self.looks = 0

    def query(self, *told: Any, **more: Any) -> list[dict[str, Any]]:
        self.looks += 1
        return super().query(*told, **more)


@dataclass(slots=True)
class Cost:
    """Of one round of a case."""

    server: float
    worker: float
    seconds: float
    statements: float
    looks: float
    parts: float


def measure(case: Case, url: str, pid: int, rows: int, blocks: int) -> Cost:
    """One round, into a table of its own."""
    table = DeliveredTable(
        *(url, case.delivery, case.engine),
        has_views=case.has_views,
        block_rows=rows,
        partitions=case.partitions,
    )
    if case.has_views and case.delivery == "block":
        table.settings = "SETTINGS non_replicated_deduplication_window = 1000"
    table.create()
    spec, cache = table.spec, WorkerCache()
    cache.servers[url] = server = CountingServer(url)
    made = [table.decoded(number) for number in range(blocks + 1)]
    table.deliver(cache, made[0], 0, spec, is_first=True)  # what is read once for each load spec
    sent, looked = len(server.statements), server.looks
    begun, on_server, mine = time.monotonic(), cpu_seconds(pid), time.process_time()
    for number in range(1, blocks + 1):
        table.deliver(cache, made[number], number, spec, is_first=True)
    cost = Cost(
        *((cpu_seconds(pid) - on_server), time.process_time() - mine, time.monotonic() - begun),
        (len(server.statements) - sent) / blocks,
        (server.looks - looked) / blocks,
        parts_of(table) / (blocks + 1),
    )
    expected = ((blocks + 1) * rows,) * 2
    assert table.rows() == expected, (case, table.rows(), expected)
    table.drop()
    return cost


def parts_of(table: DeliveredTable) -> int:
    """How many came into it and behind its views, before any merge."""
    names = [table.name, f"{table.name}_sums", f"{table.name}_copies"]
    with Server(table.url) as server:
        found = server.query(
            "SELECT count() AS parts FROM system.parts "
            "WHERE level = 0 AND rows > 0 AND has({names:Array(String)}, table)",
            {"names": names},
        )
    return int(found[0]["parts"])


@contextmanager
def servers() -> Iterator[dict[str, tuple[str, int]]]:
    """The URL and process of each, by what it is called."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_clickhouse(Path(folder) / "data") as embedded,
        running(ZooKeeper) as zookeeper,
        run_clickhouse("r1", zookeeper.port) as old,
    ):
        yield {"embedded": (embedded.url, embedded.pid), "18.16.1": (old.url, old.pid)}


def is_possible(case: Case, url: str) -> bool:
    """Whether the server takes it; an old one copies, and only rows tell what it has copied."""
    with Server(url) as server:
        return server.version() > OLD or not (case.has_views or case.engine)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="of a block")
    parser.add_argument("--blocks", type=int, default=20, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many are told")
    options = parser.parse_args()
    print(f"{options.rows:,} rows a block, on {os.cpu_count()} cores")
    print("| server | delivery | partitions | server, µs a row | worker, µs a row | ms a block |")
    print("  statements, looks a block | parts a block |", flush=True)
    with servers() as found:
        for name, (url, pid) in found.items():
            cases = [case for case in CASES if is_possible(case, url)]
            rounds: list[list[Cost]] = [
                [measure(case, url, pid, options.rows, options.blocks) for case in cases]
                for _ in range(options.rounds)
            ]
            for number, case in enumerate(cases):
                costs = [each[number] for each in rounds]
                print_case(name, case, costs, options.rows * options.blocks, options.blocks)


def print_case(server: str, case: Case, costs: list[Cost], rows: int, blocks: int) -> None:
    """One line of the matrix."""

    def median(name: str) -> float:
        return float(statistics.median(getattr(each, name) for each in costs))

    told = (
        *(server, case.name, str(case.partitions)),
        *(f"{median(each) / rows * 1e6:.2f}" for each in ("server", "worker")),
        f"{median('seconds') / blocks * 1e3:.0f}",
        f"{median('statements'):.0f}, {median('looks'):.0f}",
        f"{median('parts'):.0f}",
    )
    print(f"| {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
