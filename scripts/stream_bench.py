"""The sink `sluice` beside Spark's JDBC writer: rows/s, and CPU of Spark and of ClickHouse a row.

    python scripts/stream_bench.py [--rows 3000000] [--jars FOLDER] [--epochs 3]

FOLDER has clickhouse-jdbc and what it needs; without it only the sink is measured. Rows have ten
columns and are made by Spark; "noop" is what that alone costs. With --epochs they are read from
Parquet files by a stream, in so many epochs, and JDBC writes by foreachBatch. Rounds take turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

from sluice.clickhouse.http import Server
from sluice.spark.context import LOGGING, start_context
from sluice.spark.java import set_java_home
from sluice.testbed.local.running import running_clickhouse

_DDL = (
    "CREATE TABLE bench.t (id Int64, user_id Int32, ts DateTime, day Date, amount Decimal(18, 2), "
    "price Float64, is_new Bool, country LowCardinality(String), name String, note String) "
    "ENGINE = MergeTree ORDER BY (user_id, ts)"
)
_COLUMNS = (
    "id",
    "cast(id % 100000 AS int) AS user_id",
    "timestamp_seconds(1760000000 + id div 50) AS ts",
    "date_add(date'2026-01-01', cast(id % 30 AS int)) AS day",
    "cast(id % 100000 / 100 AS decimal(18, 2)) AS amount",
    "id * 0.5D AS price",
    "id % 3 = 0 AS is_new",
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


class Writers:
    """How rows get into the table, each a batch or a stream that ends."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, rows: int, epochs: int) -> None:
        self._url = url
        self._checkpoint = folder / "checkpoint"
        self._frame = spark.range(0, rows, 1, 2).selectExpr(*_COLUMNS)
        self._stream: DataFrame | None = None
        if epochs:
            files = str(folder / "files")
            self._frame.repartition(2 * epochs).write.parquet(files)
            reader = spark.readStream.schema(self._frame.schema).option("maxFilesPerTrigger", 2)
            self._stream = reader.parquet(files)

    def noop(self) -> None:
        """Nothing."""
        self._write(lambda frame: frame.write.format("noop").mode("overwrite").save())

    def sluice(self, compression: str) -> None:
        """The sink."""
        options = {"url": self._url, "database": "bench", "table": "t", "nulls": "check"}
        options["compression"] = compression
        if self._stream is None:
            self._frame.write.format("sluice").mode("append").options(**options).save()
        else:
            query = self._stream.writeStream.format("sluice").options(**options, query="bench")
            self._run(query)
            server = Server(self._url)
            for row in server.query("SELECT name FROM system.tables WHERE database = 'bench'"):
                if row["name"] != "t":
                    server.execute(f"DROP TABLE bench.{row['name']} SYNC")

    def jdbc(self) -> None:
        """Spark's own writer."""
        options = {
            "url": f"jdbc:clickhouse://{self._url.removeprefix('http://')}/bench?compress=false",
            "driver": "com.clickhouse.jdbc.ClickHouseDriver",
            "dbtable": "t",
            "batchsize": "100000",
            "isolationLevel": "NONE",
        }
        self._write(
            lambda frame: frame.write.format("jdbc").mode("append").options(**options).save()
        )

    def _write(self, write: Callable[[DataFrame], None]) -> None:
        if self._stream is None:
            write(self._frame)
        else:
            self._run(self._stream.writeStream.foreachBatch(lambda frame, _: write(frame)))

    def _run(self, query: DataStreamWriter) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        query = query.option("checkpointLocation", str(self._checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--jars", type=Path)
    parser.add_argument("--compressions", default="lz4")
    arguments = parser.parse_args()
    set_java_home()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_clickhouse(Path(folder) / "clickhouse") as clickhouse,
    ):
        server = Server(clickhouse.url)
        server.execute("CREATE DATABASE bench")
        server.execute(_DDL)
        jars = ",".join(map(str, arguments.jars.glob("*.jar"))) if arguments.jars else ""
        # As a user's Spark: both compilers, and the heap that JDBC's batches want.
        properties = {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": LOGGING}
        properties |= {"spark.jars": jars} if jars else {}
        start_context("bench", "local[2]", properties)
        spark = SparkSession.builder.getOrCreate()
        here = Writers(spark, clickhouse.url, Path(folder), arguments.rows, arguments.epochs)
        writers: dict[str, Callable[[], None]] = {"noop": here.noop}
        for each in arguments.compressions.split(","):
            writers[f"sluice {each}"] = partial(here.sluice, each)
        if jars:
            writers["jdbc"] = here.jdbc
        try:
            measure(arguments.rounds, arguments.rows, server, writers, clickhouse.pid)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
