"""A streaming query as a process of its own, to be killed.

`python -m tests.stream.query_program JSON`. Its rows are those of `rate-micro-batch`: epoch e has
the values from e * ROWS on, whoever runs it. Two columns are others each time: a number from
rand(), and the attempt that made the row.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROWS = 40
DDL = (
    "CREATE TABLE {name} (value Int64, text String, r Float64, attempt String) "
    "ENGINE = MergeTree PARTITION BY value % 2 ORDER BY value "
    "SETTINGS non_replicated_deduplication_window = 1000"
)


@dataclass
class Program:
    """:param last_epoch: the process ends by itself when this epoch is committed.
    :param attempts: a folder where each attempt of a task leaves a file as it begins; "" for none.
    """

    url: str
    database: str
    table: str
    query: str
    checkpoint: str
    last_epoch: int
    master: str = "local[2,3]"
    tasks: int = 1
    attempts: str = ""
    options: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of one task, as it told of itself.

    :param pid: of its Python worker, whose JVM is an executor.
    :param number: from 0, of this task in this epoch.
    """

    epoch: int
    partition: int
    number: int
    pid: int


def note_attempt(folder: str, task: Any) -> None:
    """Leave a file whose name says which attempt this is."""
    epoch = task.getLocalProperty("streaming.sql.batchId")
    name = f"{epoch}-{task.partitionId()}-{task.attemptNumber()}-{os.getpid()}"
    (Path(folder) / name).touch()


def read_attempts(folder: Path) -> list[Attempt]:
    """All that `note_attempt` left."""
    return [Attempt(*map(int, each.name.split("-"))) for each in folder.iterdir()]


def run(program: Program) -> str:
    """Run it to its last epoch; gives why it failed, "" if it did not."""
    from tests.support.spark_session import start_session

    spark = start_session("query", program.master, program.properties)
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", program.tasks)
        .load()
        .selectExpr("value", "concat('v', value) AS text", "rand() AS r", "'' AS attempt")
    )
    attempts = program.attempts

    def mark_attempts(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        name = f"{os.getpid()}-{task.taskAttemptId()}"
        if attempts:
            note_attempt(attempts, task)
        for batch in batches:
            yield batch.set_column(3, "attempt", pa.array([name] * batch.num_rows))

    query = (
        frame.mapInArrow(mark_attempts, frame.schema)
        .writeStream.format("sluice")
        .options(url=program.url, database=program.database, table=program.table)
        .options(query=program.query, nulls="check", **program.options)
        .option("checkpointLocation", program.checkpoint)
        .start()
    )
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= program.last_epoch:
            query.stop()
        time.sleep(0.05)
    failed = query.exception()
    return "" if failed is None else str(failed)


if __name__ == "__main__":
    print(run(Program(**json.loads(sys.argv[1]))), file=sys.stderr)
    sys.stderr.flush()
    os._exit(0)
