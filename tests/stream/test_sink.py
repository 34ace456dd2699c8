"""The sink as Spark drives it: streams, batches, and the example of docs/STREAMS.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.clickhouse.http import Server
from tests.support.fixtures import fresh_database
from tests.support.spark_session import start_session

_DOCUMENT = Path(__file__).parents[2] / "docs" / "STREAMS.md"


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    properties = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    session = start_session("test", "local[2,3]", properties)
    yield session
    session.stop()


@pytest.fixture
def database(embedded_url: str) -> Iterator[str]:
    yield from fresh_database(embedded_url)


class Place:
    """A table, and writers into it."""

    def __init__(self, url: str, database: str, columns: str, rest: str = "") -> None:
        self.server = Server(url)
        self.database = database
        self.options = {"url": url, "database": database, "table": "t"}
        self.server.execute(
            f"CREATE TABLE {database}.t ({columns}) ENGINE = MergeTree ORDER BY tuple() {rest}"
        )

    def save(self, frame: DataFrame, mode: str, **options: str) -> None:
        writer = frame.write.format("sluice").mode(mode)
        writer.options(**self.options, **options).save()

    def stream(
        self, frame: DataFrame, folder: Path, output: str = "append", **options: str
    ) -> None:
        """All that is there, in several epochs."""
        writer = frame.writeStream.format("sluice").outputMode(output)
        writer = writer.options(**self.options, **{"query": f"q {self.database}", **options})
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        rows = self.server.query(f"SELECT {columns} FROM {self.database}.t ORDER BY ALL")
        return [tuple(row.values()) for row in rows]

    def tables(self) -> list[str]:
        rows = self.server.query(
            f"SELECT name FROM system.tables WHERE database = '{self.database}'"
        )
        return [row["name"] for row in rows]


def test_sparks_own_values_of_each_type(
    spark: SparkSession, embedded_url: str, database: str
) -> None:
    columns = {
        "flag": ("true", "Bool", True),
        "small": ("-128Y", "Int8", -128),
        "large": ("9223372036854775807L", "UInt64", 9223372036854775807),
        "single": ("0.5F", "Float32", 0.5),
        "double": ("0.1D", "Float64", 0.1),
        "exact": ("-99999999.99BD", "Decimal(38, 10)", -99999999.99),
        "text": ("'ä'", "LowCardinality(String)", "ä"),
        "bytes": ("X'0041'", "FixedString(2)", "\0A"),
        "day": ("date'2149-06-06'", "Date", "2149-06-06"),
        "moment": (
            "timestamp'2026-10-25 02:30:00.123456+02:00'",
            "DateTime64(6, 'UTC')",
            "2026-10-25 00:30:00.123456",
        ),
        "wall": (
            "timestamp_ntz'2026-10-25 02:30:00'",
            "DateTime('UTC')",
            "2026-10-25 02:30:00",
        ),
        "items": ("array(1, 2)", "Array(UInt8)", [1, 2]),
        "counts": ("map('a', 1)", "Map(String, UInt16)", {"a": 1}),
        "pair": (
            "named_struct('a', 1L, 'b', cast(null AS string))",
            "Tuple(a UInt8, b Nullable(String))",
            {"a": 1, "b": None},
        ),
        "nothing": ("cast(null AS int)", "Nullable(Int32)", None),
    }
    place = Place(
        embedded_url,
        database,
        ", ".join(f"{name} {kind}" for name, (_, kind, _) in columns.items()),
    )
    frame = spark.range(3).selectExpr(
        *(f"{sql} AS {name}" for name, (sql, _, _) in columns.items())
    )
    place.save(frame, "append")
    rows = place.server.query(f"SELECT * FROM {database}.t")
    assert rows == [{name: value for name, (_, _, value) in columns.items()}] * 3


def test_batches_add_and_replace_and_a_name_is_loaded_once(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    place = Place(embedded_url, database, "id Int64, r Float64", "PARTITION BY id % 3")

    def fails_at_first(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        yield from batches
        if task.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails when its rows are staged")

    frame = spark.range(0, 50_000, 1, 3).selectExpr("id", "rand() AS r")
    place.save(frame.mapInArrow(fails_at_first, frame.schema), "append", nulls="check")
    assert [row[0] for row in place.rows()] == list(range(50_000))
    place.save(spark.range(10).selectExpr("id", "0.5D AS r"), "append", query="once")
    with pytest.raises(Exception, match=r"AlreadyLoadedError.*10 rows"):
        place.save(spark.range(20).selectExpr("id", "0.5D AS r"), "append", query="once")
    assert place.rows("count()") == [(50_010,)]
    place.save(spark.range(7).selectExpr("id", "0.25D AS r"), "overwrite")
    assert place.rows() == [(number, 0.25) for number in range(7)]
    assert [name for name in place.tables() if "mark" not in name] == ["t"]


def test_a_batch_that_fails_leaves_nothing(
    spark: SparkSession, embedded_url: str, database: str
) -> None:
    place = Place(embedded_url, database, "id UInt8")
    with pytest.raises(Exception, match=r"column id \(bigint into UInt8\): 256 cannot be"):
        place.save(spark.range(0, 300, 1, 3), "append")
    assert place.rows() == []
    with pytest.raises(Exception, match="option tabel is unknown"):
        place.save(spark.range(1), "append", tabel="x")
    with pytest.raises(Exception, match="option password: Spark shows options"):
        place.save(spark.range(1), "append", password="secret")


def _numbers(spark: SparkSession, folder: Path, epochs: int) -> DataFrame:
    """A stream of files with ten numbers each, a file an epoch."""
    (folder / "in").mkdir()
    for epoch in range(epochs):
        lines = (json.dumps({"n": epoch * 10 + each}) for each in range(10))
        (folder / "in" / f"{epoch}.json").write_text("\n".join(lines))
    reader = spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1)
    return reader.json(str(folder / "in"))


@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_stream_of_several_epochs(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path, mode: str
) -> None:
    rest = "SETTINGS non_replicated_deduplication_window = 1000"
    place = Place(embedded_url, database, "n Int64", rest)
    frame = _numbers(spark, tmp_path, 3)
    for _ in range(2):  # the second time there is nothing to do
        place.stream(frame, tmp_path, nulls="check", mode=mode)
    assert place.rows() == [(number,) for number in range(30)]
    assert len(place.tables()) == 2


def test_complete_mode_replaces_the_table(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    place = Place(embedded_url, database, "k Int64, c Int64")
    counts = _numbers(spark, tmp_path, 3).groupBy((_n() % 4).alias("k")).count()
    place.stream(counts.selectExpr("k", "count AS c"), tmp_path, "complete", nulls="check")
    assert place.rows() == [(0, 8), (1, 8), (2, 7), (3, 7)]
    assert len(place.tables()) == 2
    with pytest.raises(Exception, match=r"(?i)update"):
        place.stream(counts.selectExpr("k", "count AS c"), tmp_path / "u", "update", query="u")


def _n() -> Any:
    from pyspark.sql import functions

    return functions.col("n")


def test_the_example_of_the_document(
    spark: SparkSession, embedded_url: str, embedded: Server, tmp_path: Path
) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", _DOCUMENT.read_text(), re.DOTALL)
    ddl = next(text for kind, text in blocks if kind == "sql")
    program = next(text for kind, text in blocks if kind == "python")
    embedded.execute("DROP DATABASE IF EXISTS shop")
    embedded.execute("CREATE DATABASE shop")
    embedded.execute(ddl.rstrip().rstrip(";"))
    _write(
        tmp_path / "users", "u", [{"user": n, "country": "DE" if n % 2 else "FR"} for n in range(9)]
    )
    for part in range(3):
        clicks = [
            {
                "user": n % 9,
                "at": f"2026-01-01T00:{part * 20 + n // 30:02d}:{n % 60:02d}Z",
                "amount": n / 100,
            }
            for n in range(60)
        ]
        _write(tmp_path / "clicks", str(part), clicks)
    for _ in range(2):  # the second time there is nothing to do
        exec(program, {"spark": spark, "folder": tmp_path, "url": embedded_url})
    rows = embedded.query("SELECT * FROM shop.clicks_by_minute ORDER BY minute, country")
    assert [(row["minute"], row["country"], row["clicks"], row["users"]) for row in rows] == [
        (f"2026-01-01 00:{minute:02d}:00", country, clicks, users)
        for minute in (0, 1, 20, 21)
        for country, clicks, users in _expected(minute)
    ]
    embedded.execute("DROP DATABASE shop")


def _expected(minute: int) -> list[tuple[str, int, int]]:
    numbers = range(30) if minute % 20 == 0 else range(30, 60)
    found = []
    for country, odd in (("DE", 1), ("FR", 0)):
        users = [n % 9 for n in numbers if n % 9 % 2 == odd]
        found.append((country, len(users), len(set(users))))
    return found


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
