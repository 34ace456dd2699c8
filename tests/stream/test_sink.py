"""The sink as Spark drives it: streams, batches, and the example of docs/STREAMS.md."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sluice.clickhouse.http import Server
from sluice.stream.updating import update_into
from tests.stream.examples import code_of, create_table, rows_of_clicks, write_clicks
from tests.support.fixtures import fresh_database
from tests.support.spark_session import start_session


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

    def __init__(
        self,
        url: str,
        database: str,
        columns: str,
        rest: str = "",
        *,
        engine: str = "MergeTree ORDER BY tuple()",
        table: str = "t",
    ) -> None:
        self.server = Server(url)
        self.database = database
        self.options = {"url": url, "database": database, "table": table}
        self.server.execute(f"CREATE TABLE {database}.{table} ({columns}) ENGINE = {engine} {rest}")

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

    def rows(self, columns: str = "*", final: str = "") -> list[tuple[Any, ...]]:
        rows = self.server.query(f"SELECT {columns} FROM {self.database}.t {final} ORDER BY ALL")
        return [tuple(row.values()) for row in rows]

    def tables(self) -> list[str]:
        rows = self.server.query(
            f"SELECT name FROM system.tables WHERE database = '{self.database}'"
        )
        return [row["name"] for row in rows]


@pytest.mark.slow
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


@pytest.mark.slow
def test_batches_add_and_replace_and_a_name_is_loaded_once(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    place = Place(embedded_url, database, "id Int64, r Float64", "PARTITION BY id % 3")

    def dies_at_first(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        yield from batches
        if task.attemptNumber() == 0:  # when its rows are staged
            os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.range(0, 50_000, 1, 3).selectExpr("id", "rand() AS r")
    place.save(frame.mapInArrow(dies_at_first, frame.schema), "append", nulls="check")
    assert [row[0] for row in place.rows()] == list(range(50_000))
    place.save(spark.range(10).selectExpr("id", "0.5D AS r"), "append", query="once")
    with pytest.raises(Exception, match=r"AlreadyLoadedError.*10 rows"):
        place.save(spark.range(20).selectExpr("id", "0.5D AS r"), "append", query="once")
    assert place.rows("count()") == [(50_010,)]
    place.save(spark.range(7).selectExpr("id", "0.25D AS r"), "overwrite")
    assert place.rows() == [(number, 0.25) for number in range(7)]
    assert [name for name in place.tables() if "mark" not in name] == ["t"]


@pytest.mark.slow
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


def _forget_last_epoch(folder: Path) -> None:
    """Its entry of the commit log: Spark will run it again."""
    log = folder / "checkpoint" / "commits"
    last = max(int(each.name) for each in log.glob("[0-9]*"))
    for name in (f"{last}", f".{last}.crc"):
        (log / name).unlink()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["staged", "direct"])
def test_a_stream_of_several_epochs(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path, mode: str
) -> None:
    """The second time there is nothing to do, the third time the last epoch comes again; with
    another checkpoint all of them do, and are refused."""
    rest = "SETTINGS non_replicated_deduplication_window = 1000"
    place = Place(embedded_url, database, "n Int64, r Float64", rest)
    again = "rand()" if mode == "staged" else "0.5D"  # staged rows need not be the same ones
    frame = _numbers(spark, tmp_path, 3).selectExpr("n", f"{again} AS r")
    found = list[list[tuple[Any, ...]]]()
    for number in range(3):
        place.stream(frame, tmp_path, nulls="check", mode=mode)
        found.append(place.rows())
        if number == 1:
            _forget_last_epoch(tmp_path)
    assert [row[0] for row in found[0]] == list(range(30))
    assert found[0] == found[1] == found[2]
    assert len(place.tables()) == 2
    with pytest.raises(Exception, match=r"OtherCheckpointError[\s\S]*in the table twice"):
        place.stream(frame, tmp_path / "other", nulls="check", mode=mode)
    assert place.rows() == found[0]


@pytest.mark.slow
def test_two_queries_of_one_name_at_once(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    """Each has a checkpoint of its own: the rows of one of them are there, the other one stops."""
    place = Place(embedded_url, database, "n Int64, who String")
    frame = _numbers(spark, tmp_path, 4)
    queries = [
        frame.selectExpr("n", f"'{who}' AS who")
        .writeStream.format("sluice")
        .options(**place.options, query=f"q {database}", nulls="check")
        .option("checkpointLocation", str(tmp_path / who))
        .start()
        for who in ("first", "second")
    ]
    with pytest.raises(Exception, match=r"OvertakenError|OtherCheckpointError"):
        while True:
            for query in queries:
                query.awaitTermination(1)
    for query in queries:
        if query.isActive:
            query.processAllAvailable()
            query.stop()
    ((winner,),) = place.rows("DISTINCT who")
    assert place.rows() == [(number, winner) for number in range(40)]


@pytest.mark.slow
def test_complete_mode_replaces_the_table(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    place = Place(embedded_url, database, "k Int64, c Int64")
    counts = _numbers(spark, tmp_path, 3).groupBy((_n() % 4).alias("k")).count()
    place.stream(counts.selectExpr("k", "count AS c"), tmp_path, "complete", nulls="check")
    assert place.rows() == [(0, 8), (1, 8), (2, 7), (3, 7)]
    assert len(place.tables()) == 2


@pytest.mark.slow
def test_update_mode_keeps_the_last_value_of_each_key(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    """By `foreachBatch`: Spark lets no Python sink take updates. An epoch that comes again, since
    its entry of the commit log is gone, adds nothing; a merge would remove what was overwritten."""
    engine = "ReplacingMergeTree ORDER BY k SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1"
    place = Place(embedded_url, database, "k Int64, c Int64", engine=engine)
    counts = _numbers(spark, tmp_path, 3).groupBy((_n() % 4).alias("k")).count()
    counts = counts.selectExpr("k", "count AS c")
    with pytest.raises(Exception, match=r"(?i)update"):
        place.stream(counts, tmp_path / "refused", "update")
    options = {**place.options, "query": f"q {database}", "nulls": "check"}
    rows = list[tuple[int, int]]()
    for _ in range(2):
        writer = counts.writeStream.outputMode("update").foreachBatch(update_into(options))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert place.rows("*", "FINAL") == [(0, 8), (1, 8), (2, 7), (3, 7)]
        rows.append(place.rows("count(), sum(c)")[0])  # with those that were overwritten
        _forget_last_epoch(tmp_path)
    assert rows[0] == rows[1]
    plain = Place(embedded_url, database, "k Int64, c Int64", table="plain")
    write = update_into({**plain.options, "query": "other"})
    writer = counts.writeStream.outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(tmp_path / "other"))
    with pytest.raises(Exception, match="it would keep each value"):
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.slow
def test_a_batch_with_a_version_is_loaded_once(
    spark: SparkSession, embedded_url: str, database: str
) -> None:
    place = Place(embedded_url, database, "id Int64")
    for version, rows in (("7", 5), ("7", 5), ("9", 0), ("9", 3), ("9", 3)):
        place.save(spark.range(rows), "append", query="q", version=version)
    assert place.rows("count()") == [(8,)]
    with pytest.raises(Exception, match=r"CheckpointSetBackError.*epoch 7"):
        place.save(spark.range(5), "append", query="q", version="7")
    with pytest.raises(Exception, match="OtherCheckpointError"):
        place.save(spark.range(5), "append", query="q", version="10", checkpoint="c")
    with pytest.raises(Exception, match="option version is there without query"):
        place.save(spark.range(5), "append", version="7")
    assert place.rows("count()") == [(8,)]
    assert len(place.tables()) == 2


@pytest.mark.slow
def test_a_batch_within_foreach_batch_needs_a_name(
    spark: SparkSession, embedded_url: str, database: str, tmp_path: Path
) -> None:
    """Spark repeats an epoch of which it does not know that it was committed."""
    place = Place(embedded_url, database, "n Nullable(Int64)")
    numbers = _numbers(spark, tmp_path, 2)

    def drain(options: dict[str, str]) -> None:
        def write(frame: DataFrame, epoch: int) -> None:
            told = {each: text.format(epoch=epoch) for each, text in options.items()}
            place.save(frame, "append", **told)

        writer = numbers.writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="within foreachBatch has no option query"):
        drain({})
    assert place.rows("count()") == [(0,)]
    named = {"query": "n", "version": "{epoch}"}
    drain(named)
    rows = place.rows("count(), uniqExact(n)")
    assert rows[0][0] == rows[0][1] > 0
    _forget_last_epoch(tmp_path)
    drain(named)
    assert place.rows("count(), uniqExact(n)") == rows


def _n() -> Any:
    from pyspark.sql import functions

    return functions.col("n")


@pytest.mark.slow
def test_the_example_of_the_document(
    spark: SparkSession,
    embedded_url: str,
    embedded: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = code_of("docs/STREAMS.md", "python", "by_minute")
    create_table(embedded, "docs/STREAMS.md", "clicks_by_minute")
    write_clicks(tmp_path)

    def run(what: str) -> str:
        monkeypatch.setattr("sys.argv", ["clicks.py", what, str(tmp_path), embedded_url])
        exec(program, {})
        return capsys.readouterr().out

    for _ in range(2):  # the second time there is nothing to do
        run("load")
    rows = embedded.query("SELECT * FROM shop.clicks_by_minute ORDER BY minute, country")
    found = [(row["minute"], row["country"], row["clicks"], row["users"]) for row in rows]
    assert found == rows_of_clicks()
    assert run("audit") == "missing or other: 0\ndoubled or other: 0\n"
    embedded.execute(
        "INSERT INTO shop.clicks_by_minute SELECT * FROM shop.clicks_by_minute LIMIT 1"
    )
    assert run("audit") == "missing or other: 0\ndoubled or other: 1\n"
    embedded.execute("DROP DATABASE shop SYNC")


@pytest.mark.slow
def test_the_example_of_the_readme(
    spark: SparkSession, embedded_url: str, embedded: Server, tmp_path: Path
) -> None:
    embedded.execute("DROP DATABASE IF EXISTS shop SYNC")
    embedded.execute("CREATE DATABASE shop")
    embedded.execute(
        "CREATE TABLE shop.by_country (country String, orders Int64) ENGINE = MergeTree "
        "ORDER BY country"
    )
    (tmp_path / "incoming").mkdir()
    for name, country in (("a", "DE"), ("b", "FR"), ("c", "DE")):
        line = json.dumps({"country": country})
        (tmp_path / "incoming" / f"{name}.json").write_text(f"{line}\n{line}\n")
    program = code_of("README.md", "python", "writeStream")
    program = program.replace("http://localhost:8123", embedded_url)
    program = re.sub(r'"(incoming|checkpoint)"', rf'"{tmp_path}/\1"', program)
    names: dict[str, Any] = {"spark": spark}
    exec(program, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    rows = embedded.query("SELECT * FROM shop.by_country ORDER BY country")
    assert [tuple(row.values()) for row in rows] == [("DE", 4), ("FR", 2)]
    embedded.execute("DROP DATABASE shop SYNC")
