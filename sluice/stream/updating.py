"""Output mode update: Spark lets no Python sink take it, and `foreachBatch` does.

counts.writeStream.outputMode("update").foreachBatch(update_into(options))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.system import said_of_table
from sluice.clickhouse.vanishing import key_elements
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.stream.marks import Marks
from sluice.stream.names import query_prefix
from sluice.stream.options import SinkOptions, read_options
from sluice.stream.source import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CHECKPOINT_PROPERTY = "sql.streaming.queryId"


def update_into(options: Mapping[str, str]) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls with each epoch: its rows are in the table once, as those of a
    batch with the query's name, the checkpoint's id, and the epoch's number for a version.

    The table keeps the last row of each key, which is the one that was inserted last, unless it has
    a version column: epochs arrive in their order, and Spark has one row for each key in an epoch.

    :param options: of the sink; `query` is needed.
    :raises ConfigurationError: they are of no use.
    """
    sink = read_options(options)
    if not sink.query or sink.version is not None or sink.checkpoint:
        raise ConfigurationError(
            "update_into takes the query's name, and gives version and checkpoint itself",
            "Write the option query, and neither of the others.",
        )

    if len(sink.shards) > 1 and not sink.sharding:
        raise ConfigurationError(
            "update_into has several shards and no sharding: a key could get rows on each of them",
            "Shard by a column that is one of the keys.",
        )

    def write(frame: DataFrame, epoch: int) -> None:
        context = frame.sparkSession.sparkContext
        checkpoint = context.getLocalProperty(_CHECKPOINT_PROPERTY)
        if not checkpoint:
            raise TerminalError(
                f"Spark does not tell its driver {_CHECKPOINT_PROPERTY}",
                "Give update_into(…) to foreachBatch of a stream, without Spark Connect.",
            )
        with connect(sink) as servers:
            for server in servers.values():
                check_table(server, sink)
            check_shards(next(iter(servers.values())), sink)
        given = {**options, "version": str(epoch), "checkpoint": checkpoint}
        frame.write.format("sluice").mode("append").options(**given).save()

    return write


def check_table(server: Server, sink: SinkOptions) -> None:
    """Whether a table keeps one row of each key; that its ORDER BY is the key, nobody can see.

    :raises TerminalError: it does not.
    """
    facts = describe_table(server, sink.database, sink.table)
    if "Replacing" not in facts.engine:
        raise TerminalError(
            f"{facts.target} on {facts.url} is a {facts.engine}: it would keep each value that a "
            "key had",
            "Make it a ReplacingMergeTree, ordered by the keys of the aggregation.",
        )
    key = key_elements(facts.sorting_key)
    select = "SELECT name FROM system.columns"
    rows = said_of_table(server, select, sink.database, sink.table, "AND is_in_partition_key")
    outside = [name for row in rows if (name := str(row["name"])) not in key]
    if outside:
        raise TerminalError(
            f"{facts.target} on {facts.url} is partitioned by {facts.partition_key}, and "
            f"{', '.join(outside)} is no column of its sorting key ({facts.sorting_key}): a key "
            "could have rows in several partitions, which are not replaced by each other",
            "Make a table whose PARTITION BY has only columns of its ORDER BY, which are the keys "
            "of the aggregation.",
        )
    if sink.sharding and sink.sharding not in key:
        raise TerminalError(
            f"option sharding: {sink.sharding} is no column of the sorting key of {facts.target} "
            f"on {facts.url} ({facts.sorting_key}): a key could get rows on several shards",
            "Shard by a column that is one of the keys.",
        )


def check_shards(first: Server, sink: SinkOptions) -> None:
    """Whether each key goes where its earlier rows are.

    :param first: the server of the first shard.
    :raises ConfigurationError: not all do.
    """
    latest = Marks(first, sink.database, query_prefix(sink.query)).latest()
    if latest is not None and latest.shards != sink.shards:
        raise ConfigurationError(
            f'the query "{sink.query}" has updated {sink.database}.{latest.table} on the shards '
            f"{', '.join(latest.shards)}, and now names {', '.join(sink.shards)}: keys would go to "
            "other shards, and the rows that they have would not be replaced",
            "Name the shards that it had, in the same order; or start it over into empty tables, "
            "with a new checkpoint and a new name (option `query`).",
        )
