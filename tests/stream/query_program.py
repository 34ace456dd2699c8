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
    :param slow: of the first attempt of the first task, seconds before it ends.
    """

    url: str
    database: str
    table: str
    query: str
    checkpoint: str
    last_epoch: int
    master: str = "local[2,3]"
    tasks: int = 1
    slow: float = 0.0
    options: dict[str, str] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        return json.dumps(asdict(self))


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
    slow = program.slow

    def mark_attempts(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        name = f"{os.getpid()}-{task.taskAttemptId()}"
        for batch in batches:
            yield batch.set_column(3, "attempt", pa.array([name] * batch.num_rows))
        if slow and task.attemptNumber() == 0 and task.partitionId() == 0:
            time.sleep(slow)

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
