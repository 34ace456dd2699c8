"""Output mode update: Spark lets no Python sink take it, and `foreachBatch` does.

counts.writeStream.outputMode("update").foreachBatch(update_into(options))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sluice.clickhouse.schema import describe_table
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.stream.options import read_options
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
        _check_replacing()
        given = {**options, "version": str(epoch), "checkpoint": checkpoint}
        frame.write.format("sluice").mode("append").options(**given).save()

    def _check_replacing() -> None:
        with connect(sink) as servers:
            for server in servers.values():
                facts = describe_table(server, sink.database, sink.table)
                if "Replacing" not in facts.engine:
                    raise TerminalError(
                        f"{facts.target} on {facts.url} is a {facts.engine}: it would keep each "
                        "value that a key had",
                        "Make it a ReplacingMergeTree, ordered by the keys of the aggregation.",
                    )

    return write
