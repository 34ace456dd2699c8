"""What clickhouse_sinker loads of the benchmark's messages: rows/s, and its CPU a row.

    python scripts/sinker_bench.py BINARY [--partitions 500] [--rows 6000000] [--rounds 3]

The broker, the messages, the table and the server are those of `sluice bench`; run that directly
before or after it: `sluice bench --rows 6000000 --partitions 500 --partial-ranges --max-delay 1s`.
BINARY is built from its sources: `CGO_ENABLED=0 go build ./cmd/clickhouse_sinker`. It speaks
HTTP to the server, leaves the columns of the lineage to their defaults, and buffers 262,144 rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sluice.clickhouse.http import Server
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.local.bench import DATABASE, TABLE
from sluice.testbed.local.orders import LINEAGE, Orders, TableKind
from sluice.testbed.local.processes import usage
from sluice.testbed.local.producing import create_topics, held_back
from sluice.testbed.local.running import running_broker, running_clickhouse

_BUFFERED_ROWS = 262_144
_ROUND_SECONDS_MAX = 600.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Round:
    """:param seconds: from the first row in the table to the last one.
    :param seconds_from_start: from the start of the process to the last row.
    :param cpu_seconds: of the process.
    """

    rows: int
    seconds: float
    seconds_from_start: float
    cpu_seconds: float

    @property
    def text(self) -> str:
        return (
            f"{self.rows / self.seconds:,.0f} rows/s from the first row to the last, "
            f"{self.rows / self.seconds_from_start:,.0f} with its start; "
            f"{self.cpu_seconds / self.rows * 1e6:.2f} us of its CPU a row"
        )


def _settings(brokers: str, url: str, topic: str) -> str:
    return json.dumps(
        {
            "clickhouse": {
                "hosts": [["127.0.0.1"]],
                "port": urlsplit(url).port,
                "db": DATABASE,
                "username": "default",
                "protocol": "http",
            },
            "kafka": {"brokers": brokers},
            "task": {
                "name": topic,
                "topic": topic,
                "consumerGroup": topic,
                "earliest": True,
                "parser": "json",
                "autoSchema": True,
                "tableName": TABLE,
                "excludeColumns": [column.partition(" ")[0] for column in LINEAGE],
                "bufferSize": _BUFFERED_ROWS,
            },
        }
    )


def _round(binary: str, settings: Path, server: Server, rows: int) -> _Round:
    """Run it until all rows are there.

    :raises RuntimeError: it ended, or took too long.
    """
    log = settings.with_suffix(".log")
    began, first, count = time.monotonic(), 0.0, 0
    with (
        log.open("w") as sink,
        subprocess.Popen(
            [binary, "--local-cfg-file", str(settings), "--http-port", "0"],
            stdout=sink,
            stderr=sink,
            cwd=settings.parent,  # it writes a log of its own there
        ) as process,
    ):
        try:
            while count < rows:
                time.sleep(_LOOK_SECONDS)
                count = int(server.query(f"SELECT count() AS n FROM {DATABASE}.{TABLE}")[0]["n"])
                now = time.monotonic()
                first = first or (now if count else 0.0)
                if process.poll() is not None or now - began > _ROUND_SECONDS_MAX:
                    raise RuntimeError(
                        f"{count:,} of {rows:,} rows came:\n{log.read_text()[-2000:]}"
                    )
            used = usage(process.pid)
            assert used is not None, "it runs"
            return _Round(count, now - first, now - began, used.cpu_seconds)
        finally:
            process.terminate()


def main() -> None:
    """Measure, and print each round and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary", type=Path)
    parser.add_argument("--partitions", type=int, default=500)
    parser.add_argument("--rows", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = []
    with (
        tempfile.TemporaryDirectory() as name,
        running_broker(Path(name) / "kafka") as broker,
        running_clickhouse(Path(name) / "clickhouse") as embedded,
        Server(embedded.url, "default", "") as server,
    ):
        access = KafkaAccess("local", broker.brokers)
        server.execute(f"CREATE DATABASE {DATABASE}")
        for number in range(1, options.rounds + 1):
            topic = f"orders-{number}"
            sources = [TopicPartition(topic, index) for index in range(options.partitions)]
            create_topics(access, [topic], options.partitions)
            with held_back(access, sources, Orders(number), options.rows):
                pass
            server.execute(f"DROP TABLE IF EXISTS {DATABASE}.{TABLE}")
            server.execute(TableKind().statement(f"{DATABASE}.{TABLE}"))
            settings = Path(name) / f"{topic}.json"
            settings.write_text(_settings(broker.brokers, embedded.url, topic))
            rounds.append(_round(str(options.binary.resolve()), settings, server, options.rows))
            print(f"round {number}: {rounds[-1].text}", flush=True)
    middle = statistics.median(one.rows / one.seconds for one in rounds)
    print(f"\n{middle:,.0f} rows/s (median), {options.partitions} partitions")


if __name__ == "__main__":
    main()
