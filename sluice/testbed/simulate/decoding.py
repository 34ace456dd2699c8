"""What stands for buffers, decoders and their blocks, and for what splits blocks over shards."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sluice.core.bundles import place_of
from sluice.core.dynamic import INT, NewField, answer_to
from sluice.core.errors import SluiceError, TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.receipts import Receipt
from sluice.core.rests import StoredRows
from sluice.decode.messages.decoded import BadMessage, Decoded
from sluice.decode.messages.facts import Origins
from sluice.decode.messages.fault import UNKNOWN_FIELD, UNKNOWN_SCHEMA
from sluice.decode.schema.registry import require_known
from sluice.testbed.simulate.clickhouse import ROW_NUMBERS, Block, Row, clickhouse_partition
from sluice.testbed.simulate.messages import Judged, field_of, judge, rows_of, schema_of
from sluice.testbed.simulate.world import World

#: What a task says of rows that its decoder does not make.
OTHER_ROWS = "has other rows than the messages make"


def strange_field(table: TableSpec, number: int) -> str | None:
    """The field for which a message makes no row under this load spec."""
    if table.dynamic is None:
        return None
    name = field_of(number)
    known = name in table.dynamic.passed_over or any(c.name == name for c in table.columns)
    return None if known else name


class ListBuffer:
    """Stands for the real `MessageBuffer`."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.offsets: list[int] = []
        #: Nothing here asks for what Kafka itself says of a message.
        self.facts: None = None

    def add(self, values: list[bytes], offsets: Sequence[int]) -> None:
        """Take the messages of one poll."""
        self.values += values
        self.offsets += offsets

    @property
    def messages(self) -> int:
        """How many messages are held."""
        return len(self.values)

    def iterate(self, indices: Iterable[int]) -> Iterator[bytes]:
        """The messages at these places."""
        return (self.values[index] for index in indices)


@dataclass(frozen=True, slots=True)
class DecodedRows(Decoded):
    """The real record, of rows that are there as they are."""

    native: Block  # type: ignore[assignment]


def without_rows(table: TableSpec, decoded: DecodedRows, stored: StoredRows) -> DecodedRows:
    """Stands for `sluice.decode.keys.kept.without_rows`."""
    pairs = {(offset, row) for offset, first, end in stored for row in range(first, end)}
    block = decoded.native
    rest = tuple(row for row in block.rows if (row.offset, row.number % ROW_NUMBERS) not in pairs)
    if len(block.rows) - len(rest) != len(pairs):
        raise TerminalError(f"{table.target} {OTHER_ROWS}")
    return with_rows(decoded, rest, divisor_of(table))


def with_rows(decoded: DecodedRows, rows: tuple[Row, ...], divisor: int) -> DecodedRows:
    """The same block with only these rows."""
    block = Block(len(rows))
    block.rows, block.columns = rows, decoded.native.columns
    block.origins, block.entry = decoded.native.origins, decoded.native.entry
    numbers = {source: number for number, source in enumerate(block.sources)}
    places = [place_of(numbers[row.source], row.offset) for row in rows]
    offsets = np.array(places, np.uint64)
    parts = len({clickhouse_partition(row, divisor) for row in rows})
    return replace(
        decoded,
        native=block,
        rows=len(rows),
        clickhouse_partitions=min(parts, decoded.clickhouse_partitions),
        messages=len(set(places)),
        offsets=offsets,
    )


def divisor_of(table: TableSpec) -> int:
    """Of the table's partition key; 0: it is not partitioned."""
    key = table.partition_key
    return int(key.rstrip(")").rpartition(" ")[2]) if key else 0


def new_fields(table: TableSpec, buffer: ListBuffer, decoded: DecodedRows) -> tuple[NewField, ...]:
    """Stands for `sluice.decode.text.fields.new_fields`."""
    found: dict[str, NewField] = {}
    columns = frozenset(column.name for column in table.columns)
    for value in buffer.iterate([bad.index for bad in decoded.bad]):
        name = field_of(judge(value, 0, False).number)
        if name is None or table.dynamic is None:
            continue
        answer = answer_to(table.dynamic, columns, name)
        if answer is not None:
            found[name] = NewField(name, INT if answer == "add" else "")
    return tuple(found.values())


class VersionedDecoder:
    """Stands for the real `Decoder`.

    :param version: of the engine that is installed where it runs.
    :param registry: where this process asks for schemas; "": messages name none.
    """

    def __init__(self, table: TableSpec, version: int, registry: str) -> None:
        self._version = version
        self._table = table
        self._columns = tuple(column.name for column in table.columns)
        self._is_partitioned = table.entry == "parted"
        self._divisor = divisor_of(table)
        self._registry = registry
        self._listed = None if table.schemas is None else frozenset(table.schemas)

    def watch(self, buffer: ListBuffer) -> None:
        """Nothing is looked at when messages come."""

    def decode(self, buffer: ListBuffer, origins: Origins) -> DecodedRows:
        """Judge every message of a buffer."""
        rows: list[Row] = []
        bad: list[BadMessage] = []
        empty: list[int] = []
        every = [judge(value, self._version, self._is_partitioned) for value in buffer.values]
        self._require_schemas(every)
        places = np.array(buffer.offsets, np.uint64)
        numbers, offsets = origins.numbers(places), origins.offsets(places).tolist()
        for index, (judged, place) in enumerate(zip(every, buffer.offsets, strict=True)):
            member = origins.members[0 if numbers is None else numbers[index]]
            strange = strange_field(self._table, judged.number)
            if self._is_unlisted(judged):
                bad.append(BadMessage(index, place, UNKNOWN_SCHEMA, "not in time"))
            elif strange is not None:
                bad.append(BadMessage(index, place, UNKNOWN_FIELD, "no column", strange))
            elif judged.value is None:
                bad.append(BadMessage(index, place, "value", "simulated", "value"))
            else:
                made = rows_of(judged, self._table.entry, is_many=self._table.rows == "many")
                rows += [Row(member.source, offsets[index], *row) for row in made]
                empty += [] if made else [place]
        block = Block()
        block.origins, block.columns, block.entry = origins, self._columns, self._table.entry
        none = np.array([], np.uint64)
        decoded = DecodedRows(
            block, 0, self._columns, none, len(rows), "", 0, tuple(bad), tuple(empty)
        )
        if self._table.is_staged:
            # A marker names the rows by it.
            decoded = replace(decoded, checksum=f"{zlib.crc32(f'{rows}'.encode()):x}")
        return with_rows(decoded, tuple(rows), self._divisor)

    def _require_schemas(self, messages: Sequence[Judged]) -> None:
        """:raises UnknownSchemasError: the registry does not know all that may be named."""
        named: dict[int, int] = {}
        for each in messages if self._registry else ():
            number = schema_of(each.number)
            if number is not None and not self._is_unlisted(each):
                named[number] = named.get(number, 0) + 1
        if named:
            require_known(self._registry, named, len(messages))

    def _is_unlisted(self, judged: Judged) -> bool:
        """Whether the load spec says that there is no such schema."""
        if not self._registry or self._listed is None:
            return False
        number = schema_of(judged.number)
        return number is not None and number not in self._listed


class OffsetSplitter:
    """Stands for the real `Splitter`."""

    def __init__(self, table: TableSpec) -> None:
        self._table = table

    def split(
        self, decoded: DecodedRows, *, with_offsets: bool = False
    ) -> list[tuple[str, DecodedRows]]:
        """The shards that rows go to, by name, each with its block."""
        shards, divisor = self._table.shards, divisor_of(self._table)
        if len(shards) == 1:
            return [(shards[0], decoded)]
        parts = []
        for place, shard in enumerate(shards):
            rows = tuple(row for row in decoded.native.rows if row.offset % len(shards) == place)
            if rows:
                parts.append((shard, with_rows(decoded, rows, divisor)))
        return parts


def sending_parallel(world: World) -> Callable[..., tuple[list[Receipt], list[SluiceError]]]:
    """Stands for `sluice.worker.inserting.send_parallel`: one actor for each shard."""

    def send_parallel(
        parts: list[tuple[str, Any]], send: Callable[[str, Any], Receipt]
    ) -> tuple[list[Receipt], list[SluiceError]]:
        order = [shard for shard, _ in reversed(parts)]
        receipts: dict[str, Receipt] = {}
        errors: dict[str, Exception] = {}

        def send_one(shard: str, block: Any) -> None:
            try:
                receipts[shard] = send(shard, block)
            except Exception as error:
                errors[shard] = error

        while parts:
            shard, block = parts.pop()
            world.scheduler.spawn(world.process, partial(send_one, shard, block))
        pause_ms = 5
        while len(receipts) + len(errors) < len(order):
            world.sleep(pause_ms)
            pause_ms = min(2 * pause_ms, 1_000)
        failed: list[SluiceError] = []
        for shard in order:
            why = errors.get(shard)
            if isinstance(why, SluiceError):
                failed.append(why)
            elif why is not None:
                raise why
        return [receipts[shard] for shard in order if shard in receipts], failed

    return send_parallel
