"""The data source `sluice` for Spark's `write` and `writeStream`.

    spark.dataSource.register(SluiceSink)       # not needed where sluice is installed

Spark calls `streamWriter` (or `writer`) on its driver for each epoch, `write` in each attempt of
each task, and `commit` on the driver in a process of its own, of a stream with a writer that knows
nothing but the options: what it needs comes with the messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.stream.columns import check_target, plan_columns
from sluice.stream.commit import Committer, Epoch, QueryIdentity, patiently
from sluice.stream.direct import Direct, read_memory
from sluice.stream.marks import drop_table
from sluice.stream.names import query_prefix, staged_name
from sluice.stream.options import SinkOptions, read_options
from sluice.stream.staging import InsertManner, Stage
from sluice.stream.values import ColumnPlan, convert

#: What Spark tells a task of its query.
_EPOCH_PROPERTY = "streaming.sql.batchId"
_CHECKPOINT_PROPERTY = "sql.streaming.queryId"
#: A batch has no checkpoint and one epoch.
_BATCH = "batch"


class SluiceSink(DataSource):  # type: ignore[misc]
    """ClickHouse tables, written to exactly once."""

    @classmethod
    def name(cls) -> str:
        """The format's name in Spark."""
        return "sluice"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Of one epoch; `overwrite` with the output mode complete."""
        options = read_options(self.options)
        if overwrite and options.mode == "direct":
            raise ConfigurationError(
                'output mode complete does not go with mode = "direct"',
                "Leave the option mode out.",
            )
        if not options.query:
            raise ConfigurationError(
                "option query is missing: under this name ClickHouse remembers what was committed",
                'Write .option("query", "a name of this query alone") before start.',
            )
        return StreamWriter(options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Of one batch; `overwrite` with mode("overwrite")."""
        options = read_options(self.options)
        if options.mode == "direct" or options.takeover:
            raise ConfigurationError(
                "options mode and takeover are for streams", "Leave them out of df.write."
            )
        return BatchWriter(options, schema, overwrite)


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]
    """What a task attempt staged: a table, "" if it had no rows."""

    checkpoint: str
    epoch: int
    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What the driver found out once for all tasks of an epoch."""

    options: SinkOptions
    facts: TableFacts
    columns: tuple[ColumnPlan, ...]
    manner: InsertManner

    def stage(self, name: str, batches: Iterator[pa.RecordBatch]) -> int:
        """Stage all rows of a task attempt in a table of this name; gives how many there are.

        :raises SluiceError: this attempt is to be given up.
        """
        with connect(self.options) as server:
            stage = Stage(server, self.facts, name, self.manner)
            for chunk in chunks(batches, self.columns, self.options):
                stage.add(chunk)
            stage.check()
            return stage.rows


def plan_tasks(options: SinkOptions, schema: StructType) -> TaskPlan:
    """Look at the table, and refuse what does not fit, before there is a row.

    :raises SluiceError: see `plan_columns` and `check_target`.
    """
    with connect(options) as server:
        facts = describe_table(server, options.database, options.table)
        engine = server.query(
            "SELECT engine FROM system.databases WHERE name = {name:String}",
            {"name": options.database},
        )[0]["engine"]
        check_target(facts, options.mode, str(engine))
        columns = plan_columns(schema, facts, checks_nulls=options.nulls == "check")
        settings = insert_settings(read_capabilities(server))
    manner = InsertManner(settings, options.compression, options.timeout_seconds)
    return TaskPlan(options, facts, columns, manner)


def connect(options: SinkOptions) -> Server:
    """A connection to the server, which opens late."""
    return options.access.renewed().connect(options.url)


def chunks(
    batches: Iterator[pa.RecordBatch], columns: tuple[ColumnPlan, ...], options: SinkOptions
) -> Iterator[list[pa.RecordBatch]]:
    """Spark's batches, converted, so many together as one insert takes."""
    gathered, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        gathered.append(convert(batch, columns))
        rows += batch.num_rows
        size_bytes += gathered[-1].nbytes
        if rows >= options.batch_rows or size_bytes >= options.batch_bytes:
            yield gathered
            gathered, rows, size_bytes = [], 0, 0
    if gathered:
        yield gathered


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes one epoch of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, replaces: bool) -> None:
        self._options = options
        self._schema = schema
        self._replaces = replaces
        self._plan = plan_tasks(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage what one attempt of one task has."""
        task = _task()
        epoch = int(_told(task, _EPOCH_PROPERTY))
        checkpoint = _told(task, _CHECKPOINT_PROPERTY)
        prefix = query_prefix(self._options.query)
        if self._options.mode == "direct":
            token = f"{prefix}{checkpoint}/{epoch}/{task.partitionId()}"
            return Staged(checkpoint, epoch, "", self._insert(checkpoint, epoch, token, iterator))
        with connect(self._options) as server:
            _committer(server, self._options, checkpoint).check()
        name = staged_name(prefix, checkpoint, epoch, task.partitionId(), uuid.uuid4().hex[:12])
        rows = self._plan.stage(name, iterator)
        return Staged(checkpoint, epoch, name if rows else "", rows)

    def _insert(
        self, checkpoint: str, epoch: int, token: str, batches: Iterator[pa.RecordBatch]
    ) -> int:
        """Mode direct: into the target itself; gives how many rows there were."""
        plan, options = self._plan, self._options
        with connect(options) as server:
            memory = read_memory(server, plan.facts)
            mark = _committer(server, options, checkpoint).begin(epoch, memory)
            if mark.state == "done":
                return 0
            direct = Direct(server, plan.facts, mark, token, plan.manner, options.batch_rows)
            return direct.insert(convert(batch, plan.columns) for batch in batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See `Committer.commit`. Spark may call it several times for an epoch."""
        staged = _messages(messages)
        if not staged:
            return
        (checkpoint,) = {each.checkpoint for each in staged}
        if {each.epoch for each in staged} != {batchId}:
            raise TerminalError(f"Spark commits epoch {batchId} with the rows of another one", _BUG)
        options = self._options
        epoch = _epoch(batchId, staged, self._replaces, is_direct=options.mode == "direct")
        with connect(options) as server:
            committer = _committer(server, options, checkpoint)
            patiently(lambda: committer.commit(epoch))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: a mark whose answer was lost may name what was staged. The next commit removes
        what none names."""


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one batch."""

    def __init__(self, options: SinkOptions, schema: StructType, replaces: bool) -> None:
        self._options = options
        self._replaces = replaces
        self._query = options.query or f"batch {uuid.uuid4()}"
        self._plan = plan_tasks(options, schema)
        if options.query:
            with connect(options) as server:
                self._committer(server).refuse_known()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage what one attempt of one task has."""
        unique = uuid.uuid4().hex[:12]
        name = staged_name(query_prefix(self._query), _BATCH, 0, _task().partitionId(), unique)
        rows = self._plan.stage(name, iterator)
        return Staged(_BATCH, 0, name if rows else "", rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Get it all into the table."""
        staged = _messages(messages)
        if len(staged) != len(messages):
            raise TerminalError("Spark commits a batch some of whose tasks have no message", _BUG)
        with connect(self._options) as server:
            committer = self._committer(server)
            epoch = _epoch(0, staged, self._replaces)
            if not patiently(lambda: committer.commit(epoch)):
                committer.refuse_known()
            if not self._options.query:
                committer.forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged, unless a mark names it, or may: that of a batch with a name."""
        if self._options.query:
            return
        with connect(self._options) as server:
            committer = self._committer(server)
            if committer.marks.latest() is None:
                for each in _messages(messages):
                    if each.table:
                        drop_table(server, self._options.database, each.table)

    def _committer(self, server: Server) -> Committer:
        who = QueryIdentity(self._query, _BATCH)
        return Committer(server, self._options.database, self._options.table, who)


def _committer(server: Server, options: SinkOptions, checkpoint: str) -> Committer:
    who = QueryIdentity(options.query, checkpoint, options.takeover)
    return Committer(server, options.database, options.table, who)


def _epoch(number: int, staged: list[Staged], replaces: bool, *, is_direct: bool = False) -> Epoch:
    winners = tuple(each.table for each in staged if each.table)
    return Epoch(number, winners, sum(each.rows for each in staged), replaces, is_direct)


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [each for each in messages if isinstance(each, Staged)]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise TerminalError("this is no task of Spark", _BUG)
    return task


def _told(task: TaskContext, name: str) -> str:
    value = task.getLocalProperty(name)
    if value is None:
        raise TerminalError(
            f"Spark does not tell its tasks {name}",
            "Use the micro-batch engine of Spark 4.1 or later, without continuous processing.",
        )
    return str(value)


_BUG = "This is a bug of Spark or of Sluice: report it."
