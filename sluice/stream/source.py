"""The data source `sluice` for Spark's `write` and `writeStream`.

    spark.dataSource.register(SluiceSink)       # not needed where sluice is installed

Spark calls `streamWriter` (or `writer`) on its driver for each epoch, `write` in each attempt of
each task, and `commit` on the driver in a process of its own, of a stream with a writer that knows
nothing but the options: what it needs comes with the messages.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from sluice.core.errors import ConfigurationError, SluiceError, TerminalError
from sluice.stream.columns import check_target, plan_columns
from sluice.stream.commit import Committer, Epoch, QueryIdentity, patiently
from sluice.stream.direct import Direct, read_memory
from sluice.stream.errors import HalfLoadedError
from sluice.stream.homes import Homes
from sluice.stream.marks import Winner, drop_table
from sluice.stream.names import query_prefix, staged_name
from sluice.stream.options import SinkOptions, read_options
from sluice.stream.sharding import Splitter, check_sharding
from sluice.stream.staging import InsertManner, Stage
from sluice.stream.values import ColumnPlan, convert

#: What Spark tells a task of its query.
_EPOCH_PROPERTY = "streaming.sql.batchId"
_CHECKPOINT_PROPERTY = "sql.streaming.queryId"
#: Who counts the versions of a batch, unless the user says so.
_BATCH = "batch"
#: A sealed batch without a name is known to nobody else: its commit waits so long for its server.
_SEALED_SECONDS = 600.0
#: A batch without a version is no version 0.
_SINGLE_BATCH = "batch without version"
_logger = logging.getLogger("sluice.stream")


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
        _check_replacing(options, overwrite)
        if not options.query:
            raise ConfigurationError(
                "option query is missing: under this name ClickHouse remembers what was committed",
                'Write .option("query", "a name of this query alone") before start.',
            )
        if options.version is not None or options.checkpoint:
            raise ConfigurationError(
                "options version and checkpoint are for batches: a stream has its epochs",
                "Leave them out of writeStream.",
            )
        return StreamWriter(options, schema, overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Of one batch; `overwrite` with mode("overwrite")."""
        options = read_options(self.options)
        if options.mode == "direct":
            raise ConfigurationError(
                'mode = "direct" is for streams', "Leave the option out of df.write."
            )
        if options.version is not None and not options.query:
            raise ConfigurationError(
                "option version is there without query: under both ClickHouse remembers a batch",
                'Write .option("query", …), too.',
            )
        if (options.checkpoint or options.takeover) and options.version is None:
            raise ConfigurationError(
                "options checkpoint and takeover say who counts versions, and there is none",
                "Leave them out, or write option version, too.",
            )
        _check_replacing(options, overwrite)
        return BatchWriter(options, schema, overwrite)


def _check_replacing(options: SinkOptions, overwrite: bool) -> None:
    if overwrite and len(options.shards) > 1:
        raise ConfigurationError(
            "the tables of several shards cannot be replaced at once: output mode complete and "
            'mode("overwrite") go to one server',
            "Use option url, or add rows in mode append.",
        )


@dataclass
class Staged(WriterCommitMessage):  # type: ignore[misc]
    """What a task attempt staged.

    :param tables: none if it had no rows.
    """

    checkpoint: str
    epoch: int
    tables: tuple[Winner, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What the driver found out once for all tasks of an epoch.

    :param facts: of the table on each shard.
    """

    options: SinkOptions
    facts: Mapping[str, TableFacts]
    columns: tuple[ColumnPlan, ...]
    manner: InsertManner

    def stage(
        self, name: str, partition: int, batches: Iterator[pa.RecordBatch]
    ) -> tuple[tuple[Winner, ...], int]:
        """Stage all rows of a task attempt in tables of this name.

        :param partition: the number of the task.
        :returns: the tables that have rows, and how many there are.
        :raises SluiceError: this attempt is to be given up.
        """
        shards = self.options.shards
        splitter = Splitter(
            shards, self.options.sharding, self.options.batch_rows, self.options.batch_bytes
        )
        converted = (convert(batch, self.columns) for batch in batches)
        with connect(self.options) as servers:
            stages = {
                shard: Stage(servers[shard], self.facts[shard], name, self.manner)
                for shard in shards
            }
            for shard, chunk in splitter.chunks(converted, shards[partition % len(shards)]):
                stages[shard].add(chunk)
            for stage in stages.values():
                stage.check()
        tables = tuple(
            Winner(shard, name, stage.rows) for shard, stage in stages.items() if stage.rows
        )
        return tables, sum(stage.rows for stage in stages.values())


def plan_tasks(options: SinkOptions, schema: StructType, *, replaces: bool = False) -> TaskPlan:
    """Look at the table, and refuse what does not fit, before there is a row.

    :param replaces: see `check_target`.
    :raises SluiceError: see `plan_columns`, `check_target` and `check_sharding`.
    """
    check_sharding(options, schema)
    facts, columns, settings = {}, list[tuple[ColumnPlan, ...]](), dict[str, str]()
    with connect(options) as servers:
        for shard, server in servers.items():
            facts[shard] = describe_table(server, options.database, options.table)
            engine = server.query(
                "SELECT engine FROM system.databases WHERE name = {name:String}",
                {"name": options.database},
            )[0]["engine"]
            check_target(facts[shard], options.mode, str(engine), replaces=replaces)
            checks_nulls = options.nulls == "check"
            columns.append(plan_columns(schema, facts[shard], checks_nulls=checks_nulls))
            settings |= insert_settings(read_capabilities(server))
    if any(each != columns[0] for each in columns):
        raise ConfigurationError(
            f"{options.database}.{options.table} has other types on some of the shards",
            "Make the tables alike.",
        )
    manner = InsertManner(settings, options.compression, options.timeout_seconds)
    return TaskPlan(options, facts, columns[0], manner)


@contextmanager
def connect(options: SinkOptions) -> Iterator[dict[str, Server]]:
    """A connection to the server of each shard, which opens late."""
    access = options.access.renewed()
    with ExitStack() as stack:
        yield {
            shard: stack.enter_context(access.connect(url))
            for shard, (url,) in access.shards.items()
        }


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes one epoch of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, replaces: bool) -> None:
        self._options = options
        self._schema = schema
        self._replaces = replaces
        self._plan = plan_tasks(options, schema, replaces=replaces)
        with connect(options) as servers:
            Homes(servers, options.database, options.query).check()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage what one attempt of one task has."""
        task = _task()
        epoch = int(_told(task, _EPOCH_PROPERTY))
        checkpoint = _told(task, _CHECKPOINT_PROPERTY)
        prefix = query_prefix(self._options.query)
        if self._options.mode == "direct":
            token = f"{prefix}{checkpoint}/{epoch}/{task.partitionId()}"
            return Staged(checkpoint, epoch, (), self._insert(checkpoint, epoch, token, iterator))
        with connect(self._options) as servers:
            _committer(servers, self._options, checkpoint).check()
        partition = task.partitionId()
        name = staged_name(prefix, checkpoint, epoch, partition, uuid.uuid4().hex[:12])
        return Staged(checkpoint, epoch, *self._plan.stage(name, partition, iterator))

    def _insert(
        self, checkpoint: str, epoch: int, token: str, batches: Iterator[pa.RecordBatch]
    ) -> int:
        """Mode direct: into the target itself; gives how many rows there were."""
        plan, options = self._plan, self._options
        (facts,) = plan.facts.values()
        with connect(options) as servers:
            (server,) = servers.values()
            memory = read_memory(server, facts)
            committer = _committer(servers, options, checkpoint)
            mark = committer.begin(epoch, memory, options.batch_rows)
            if mark.state == "done":
                return 0
            direct = Direct(server, facts, mark, token, plan.manner)
            return direct.insert(convert(batch, plan.columns) for batch in batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See `Committer.commit`. Spark may call it several times for an epoch. One without tasks
        does not tell the checkpoint, and what was sealed is finished all the same."""
        staged = _messages(messages)
        if not staged:
            with connect(self._options) as servers:
                committer = _committer(servers, self._options, "")
                patiently(lambda: committer.finish_sealed(committer.marks.latest()))
            return
        (checkpoint,) = {each.checkpoint for each in staged}
        if {each.epoch for each in staged} != {batchId}:
            raise TerminalError(f"Spark commits epoch {batchId} with the rows of another one", _BUG)
        options = self._options
        epoch = _epoch(batchId, staged, self._replaces, is_direct=options.mode == "direct")
        with connect(options) as servers:
            committer = _committer(servers, options, checkpoint)
            patiently(lambda: committer.commit(epoch))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: a mark whose answer was lost may name what was staged. The next commit removes
        what none names."""


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writes one batch: an epoch of its own, or the one that its version names."""

    def __init__(self, options: SinkOptions, schema: StructType, replaces: bool) -> None:
        self._options = options
        self._replaces = replaces
        query = options.query or f"batch {uuid.uuid4()}"
        counted_by = options.checkpoint or _BATCH
        checkpoint = _SINGLE_BATCH if options.version is None else counted_by
        self._who = QueryIdentity(query, checkpoint, options.takeover)
        self._number = options.version or 0
        self._plan = plan_tasks(options, schema, replaces=replaces)
        self._is_known = False
        if options.query:
            with connect(options) as servers:
                committer = self._committer(servers)
                committer.homes.check()
                if options.version is None:
                    committer.refuse_known()
                else:
                    self._is_known = committer.knows(self._number)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage what one attempt of one task has; nothing of a version that is there.

        :raises ConfigurationError: a query writes an epoch as a batch without a name.
        """
        if not self._options.query and _task().getLocalProperty(_CHECKPOINT_PROPERTY):
            raise ConfigurationError(
                "df.write within foreachBatch has no option query: Spark repeats an epoch whose "
                "commit it does not know, and its rows would be there twice",
                'Write .option("query", "a name of this query alone"), and .option("version", the '
                "number of the epoch that foreachBatch gives), too; or writeStream.format("
                '"sluice") without foreachBatch.',
            )
        if self._is_known:
            return Staged(self._who.checkpoint, self._number, (), 0)
        partition, unique = _task().partitionId(), uuid.uuid4().hex[:12]
        prefix = query_prefix(self._who.query)
        name = staged_name(prefix, self._who.checkpoint, self._number, partition, unique)
        tables, rows = self._plan.stage(name, partition, iterator)
        return Staged(self._who.checkpoint, self._number, tables, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Get it all into the table."""
        staged = _messages(messages)
        if len(staged) != len(messages):
            raise TerminalError("Spark commits a batch some of whose tasks have no message", _BUG)
        with connect(self._options) as servers:
            committer = self._committer(servers)
            epoch = _epoch(self._number, staged, self._replaces)
            try:
                is_ours = self._is_known or patiently(
                    lambda: committer.commit(epoch),
                    lambda seconds: self._waits_for(committer) and seconds < _SEALED_SECONDS,
                )
            except SluiceError as error:
                if self._waits_for(committer):
                    raise self._half_loaded(error) from error
                raise
            if not is_ours and self._options.version is None:
                committer.refuse_known()
            if not self._options.query:
                self._forget(committer)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged, unless a mark names it, or may: that of a batch with a name."""
        if self._options.query:
            return
        with connect(self._options) as servers:
            committer = self._committer(servers)
            if committer.marks.latest() is None:
                for each in _messages(messages):
                    for staged in each.tables:
                        drop_table(servers[staged.shard], self._options.database, staged.table)

    def _waits_for(self, committer: Committer) -> bool:
        return committer.may_be_sealed and not self._options.query

    def _half_loaded(self, error: SluiceError) -> HalfLoadedError:
        name, where = self._who.query, f"{self._options.database}.{self._options.table}"
        return HalfLoadedError(
            f"the batch was sealed for {where}, and this could not be ended, so that none, some or "
            f"all of its rows are there: {error}",
            f"{error.hint} Do not write the batch again as it was: what is there would be doubled. "
            f'Write it again with .option("query", "{name}"), once that is mended: it finishes '
            "what was sealed, and is refused then (AlreadyLoadedError), or loads the batch if "
            "nothing was.",
        )

    def _forget(self, committer: Committer) -> None:
        try:
            committer.forget()
        except SluiceError as error:
            _logger.warning(
                "The batch is in %s.%s. Tables without rows that remembered it are left, and may "
                "be dropped: %s*: %s",
                self._options.database,
                self._options.table,
                query_prefix(self._who.query),
                error,
            )

    def _committer(self, servers: Mapping[str, Server]) -> Committer:
        return Committer(servers, self._options.database, self._options.table, self._who)


def _committer(servers: Mapping[str, Server], options: SinkOptions, checkpoint: str) -> Committer:
    who = QueryIdentity(options.query, checkpoint, options.takeover)
    return Committer(servers, options.database, options.table, who)


def _epoch(number: int, staged: list[Staged], replaces: bool, *, is_direct: bool = False) -> Epoch:
    winners = tuple(table for each in staged for table in each.tables)
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
