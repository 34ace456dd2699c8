"""The sink `sluice` beside Spark's JDBC writer: rows/s, and CPU of Spark and of ClickHouse a row.

    python scripts/stream_bench.py [--rows 2000000] [--jars FOLDER]

FOLDER has clickhouse-jdbc and what it needs; without it only the sink is measured. Rows have nine
columns and are made by Spark; "noop" is what that alone costs. Rounds take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sluice.clickhouse.http import Server
from sluice.spark.context import start_context
from sluice.spark.java import set_java_home
from sluice.testbed.local.running import running_clickhouse

_DDL = (
    "CREATE TABLE bench.t (id Int64, user_id Int32, ts DateTime, day Date, amount Decimal(18, 2), "
    "price Float64, country LowCardinality(String), name String, note String) "
    "ENGINE = MergeTree ORDER BY (user_id, ts)"
)
_COLUMNS = (
    "id",
    "cast(id % 100000 AS int) AS user_id",
    "timestamp_seconds(1760000000 + id div 50) AS ts",
    "date_add(date'2026-01-01', cast(id % 30 AS int)) AS day",
    "cast(id % 100000 / 100 AS decimal(18, 2)) AS amount",
    "id * 0.5D AS price",
    "concat('c', id % 40) AS country",
    "concat('name of ', id % 5000) AS name",
    "concat('some note that is a bit longer ', id) AS note",
)


def cpu_seconds(root: int) -> float:
    """Of a process and all below it that live."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            try:
                fields = (each / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(each.name))
            used[int(each.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total, left = 0.0, [root]
    while left:
        process = left.pop()
        total += used.get(process, 0.0)
        left += children.get(process, [])
    return total


def measure(
    rounds: int, rows: int, server: Server, writers: dict[str, Callable[[], None]], pid: int
) -> None:
    """Each writer in turn, after one round that nobody counts."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in writers}
    for number in range(rounds + 1):
        for name, write in writers.items():
            server.execute("TRUNCATE TABLE bench.t")
            begun, spark, clickhouse = time.monotonic(), cpu_seconds(os.getpid()), cpu_seconds(pid)
            spark -= cpu_seconds(pid)
            write()
            wall = time.monotonic() - begun
            spark = cpu_seconds(os.getpid()) - cpu_seconds(pid) - spark
            clickhouse = cpu_seconds(pid) - clickhouse
            there = int(server.query("SELECT count() AS count FROM bench.t")[0]["count"])
            assert there == (0 if name == "noop" else rows), (name, there)
            if number:
                found[name].append((wall, spark, clickhouse))
    for name, each in found.items():
        wall, spark, clickhouse = (statistics.median(values) for values in zip(*each, strict=True))
        print(
            f"{name:16} {rows / wall:>12,.0f} rows/s   Spark {1e6 * spark / rows:6.2f} µs a row   "
            f"ClickHouse {1e6 * clickhouse / rows:6.2f} µs a row",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--compressions", default="lz4")
    arguments = parser.parse_args()
    set_java_home()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_clickhouse(Path(folder)) as clickhouse,
    ):
        url, port = clickhouse.url, clickhouse.port
        server = Server(url)
        server.execute("CREATE DATABASE bench")
        server.execute(_DDL)
        jars = ",".join(map(str, arguments.jars.glob("*.jar"))) if arguments.jars else ""
        properties = {"spark.driver.memory": "1500m", **({"spark.jars": jars} if jars else {})}
        start_context("bench", "local[2]", properties)
        spark = SparkSession.builder.getOrCreate()
        frame = spark.range(0, arguments.rows, 1, 2).selectExpr(*_COLUMNS)

        def sink(compression: str) -> Callable[[], None]:
            def write() -> None:
                writer: Any = frame.write.format("sluice").mode("append")
                writer = writer.options(url=url, database="bench", table="t", nulls="check")
                writer.option("compression", compression).save()

            return write

        def jdbc() -> None:
            writer: Any = frame.write.format("jdbc").mode("append")
            writer = writer.option(
                "url", f"jdbc:clickhouse://127.0.0.1:{port}/bench?compress=false"
            )
            writer = writer.option("driver", "com.clickhouse.jdbc.ClickHouseDriver")
            writer.option("dbtable", "t").option("batchsize", 100_000).option(
                "isolationLevel", "NONE"
            ).save()

        writers: dict[str, Callable[[], None]] = {
            "noop": lambda: frame.write.format("noop").mode("overwrite").save()
        }
        writers |= {f"sluice {each}": sink(each) for each in arguments.compressions.split(",")}
        if jars:
            writers["jdbc"] = jdbc
        try:
            measure(arguments.rounds, arguments.rows, server, writers, clickhouse.pid)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
