"""Which shard each row goes to, and how many rows go together into one insert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import types as spark_types

from sluice.core.errors import ConfigurationError
from sluice.core.suggestions import suggest
from sluice.stream.options import SinkOptions

_WHOLE_NUMBERS = (
    spark_types.ByteType,
    spark_types.ShortType,
    spark_types.IntegerType,
    spark_types.LongType,
)


def check_sharding(options: SinkOptions, schema: spark_types.StructType) -> None:
    """Whether the options say where each row goes.

    :raises ConfigurationError: they do not.
    """
    if len(options.shards) > 1 and options.mode == "direct":
        raise ConfigurationError(
            'mode = "direct" goes to one server', "Leave the option mode out, or name one server."
        )
    if not options.sharding:
        return
    if len(options.shards) == 1:
        raise ConfigurationError(
            "option sharding decides nothing: there is one shard", "Leave it out, or name shards."
        )
    types = {field.name: field.dataType for field in schema.fields}
    if options.sharding not in types:
        raise ConfigurationError(
            f"option sharding: the query has no column {options.sharding}",
            suggest(options.sharding, types),
        )
    found = types[options.sharding]
    if not isinstance(found, _WHOLE_NUMBERS):
        raise ConfigurationError(
            f"option sharding: column {options.sharding} is {found.simpleString()}, and only whole "
            "numbers can be divided",
            "Give query and table a column for it, such as xxhash64(…).",
        )


@dataclass(frozen=True, slots=True)
class Splitter:
    """Splits what a task has over the shards.

    :param column: see `SinkOptions.sharding`; null belongs to the first shard.
    """

    shards: tuple[str, ...]
    column: str
    batch_rows: int
    batch_bytes: int

    def chunks(
        self, batches: Iterator[pa.RecordBatch], own: str
    ) -> Iterator[tuple[str, list[pa.RecordBatch]]]:
        """So many batches together as one insert takes, and the shard that they are for.

        :param own: the shard of all rows where no column decides.
        """
        gathered: dict[str, list[pa.RecordBatch]] = {shard: [] for shard in self.shards}
        rows, size_bytes = dict.fromkeys(self.shards, 0), dict.fromkeys(self.shards, 0)
        for batch in batches:
            for shard, piece in self._split(batch, own):
                gathered[shard].append(piece)
                rows[shard] += piece.num_rows
                size_bytes[shard] += piece.nbytes
                if rows[shard] >= self.batch_rows or size_bytes[shard] >= self.batch_bytes:
                    yield shard, gathered[shard]
                    gathered[shard], rows[shard], size_bytes[shard] = [], 0, 0
        for shard, left in gathered.items():
            if left:
                yield shard, left

    def _split(self, batch: pa.RecordBatch, own: str) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not self.column:
            pieces = [(own, batch)]
        else:
            # As UInt64, what toUInt64(…) % n gives in ClickHouse for a negative number, too.
            numbers = batch.column(self.column).fill_null(0).cast(pa.int64(), safe=False)
            places = numbers.to_numpy(zero_copy_only=False).view(np.uint64) % len(self.shards)
            pieces = [
                (shard, batch.filter(pa.array(places == place)))
                for place, shard in enumerate(self.shards)
            ]
        return ((shard, piece) for shard, piece in pieces if piece.num_rows)
