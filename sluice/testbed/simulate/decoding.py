"""Messages, and a decoder that judges them: good, bad, bad for one table, or by its version.

A message says what it is: kind, its own number, and the value that partition keys look at.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.bundles import place_of
from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.core.rests import StoredRows
from sluice.decode.messages.fault import UNKNOWN_FIELD, UNKNOWN_SCHEMA
from sluice.decode.messages.origins import Origins
from sluice.decode.schema.registry import require_known
from sluice.testbed.simulate.clickhouse import ROW_NUMBERS, Block, Row, clickhouse_partition
from sluice.testbed.simulate.kafka import Stored
from sluice.testbed.simulate.registry import schema_of

#: So many messages long a field comes up that was not there before.
_NEW_AGE = 40
_NEW_MAX = 6
#: What a task says of rows that its decoder does not make.
OTHER_ROWS = "has other rows than the messages make"
#: The table entry that loads a topic into a table again, and what its rows say more than others.
AGAIN = "again"
AGAIN_NUMBERS = 1 << 20
#: Values lie in [0, VALUES).
VALUES = 6


@dataclass(frozen=True, slots=True)
class Judged:
    """What a decoder makes of a message for one table: its value, or None if it is bad."""

    number: int
    value: int | None


def field_of(number: int) -> str | None:
    """The field that a message has and that no table has from the beginning; None for most."""
    if number < 0:
        return None  # of an aborted transaction
    if number % 5 == 3:
        return f"new{(number // _NEW_AGE) % _NEW_MAX}"
    if number % 11 == 4:
        return f"old{number % 3}"
    return None


def strange_field(table: TableSpec, number: int) -> str | None:
    """The field for which a message makes no row under this load spec."""
    if table.dynamic is None:
        return None
    name = field_of(number)
    known = name in table.dynamic.passed_over or any(c.name == name for c in table.columns)
    return None if known else name


def judge(value: bytes, decoder: int, is_partitioned: bool) -> Judged:
    """What the decoder of this version makes of a message.

    Kinds: g good; b bad; c bad for partitioned tables; x bad for odd decoders; v good,
    with a value that depends on the decoder.
    """
    head, _, _ = value.partition(b";")
    kind, number, content = head[:1], *head[1:].split(b",")
    found = int(content)
    bad = kind == b"b" or (kind == b"c" and is_partitioned) or (kind == b"x" and decoder % 2 == 1)
    if kind == b"v":
        found = (found + decoder) % VALUES
    return Judged(int(number), None if bad else found)


def rows_of(judged: Judged, entry: str, *, is_many: bool) -> list[tuple[int, int]]:
    """Number and value of each row that a good message makes.

    :param entry: of the tables.
    :param is_many: messages have none, one or several rows, whose values lie in different
        ClickHouse partitions.
    """
    assert judged.value is not None
    first = AGAIN_NUMBERS if entry == AGAIN else 0
    if not is_many:
        return [(first + judged.number, judged.value)]
    first += judged.number * ROW_NUMBERS
    return [(first + row, (judged.value + row) % VALUES) for row in range(judged.number % 4)]


def make_message(
    rng: random.Random, number: int, now_ms: int, oversize: int
) -> tuple[Stored, str | None]:
    """A message, and the kind of fault that it stands for.

    :param oversize: more bytes than the dead-letter topic takes.
    """
    point, content = rng.random(), rng.randrange(VALUES)
    kind, fault, padding = b"g", None, rng.randrange(20)
    if point < 0.02:
        kind, fault = b"b", "bad message"
    elif point < 0.03:
        kind, fault = b"c", "message bad for one table only"
    elif point < 0.05:
        kind, fault = b"x", "message that decoders judge differently"
    elif point < 0.08:
        kind, fault = b"v", "message that decoders judge differently"
    elif point < 0.09:
        return Stored(None, b"key", (), number, now_ms), "tombstone"
    elif point < 0.10:
        fault, padding = "heavy message", rng.randrange(200, 900)
    elif point < 0.103:
        kind, fault, padding = b"b", "oversize dead letter", oversize
    value = b"%s%d,%d;%s" % (kind, number, content, b"." * padding)
    return Stored(value, None, (("h", b"1"),), number, now_ms), fault


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
class Bad:
    """Stands for the real `BadMessage`."""

    index: int
    offset: int
    reason: str = "value"
    error: str = "simulated"
    column: str = "value"


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Stands for the real `Decoded`."""

    native: Block
    rows: int
    columns: tuple[str, ...]
    bad: tuple[Bad, ...]
    clickhouse_partitions: int
    checksum: str
    messages: int
    offsets: NDArray[np.uint64]
    empty: tuple[int, ...] = ()
    dropped_rows: int = 0


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
        bad: list[Bad] = []
        empty: list[int] = []
        every = [judge(value, self._version, self._is_partitioned) for value in buffer.values]
        self._require_schemas(every)
        places = np.array(buffer.offsets, np.uint64)
        numbers, offsets = origins.numbers(places), origins.offsets(places).tolist()
        for index, (judged, place) in enumerate(zip(every, buffer.offsets, strict=True)):
            member = origins.members[0 if numbers is None else numbers[index]]
            strange = strange_field(self._table, judged.number)
            if self._is_unlisted(judged):
                bad.append(Bad(index, place, UNKNOWN_SCHEMA, "not in time", ""))
            elif strange is not None:
                bad.append(Bad(index, place, UNKNOWN_FIELD, "no column", strange))
            elif judged.value is None:
                bad.append(Bad(index, place))
            else:
                made = rows_of(judged, self._table.entry, is_many=self._table.rows == "many")
                rows += [Row(member.source, offsets[index], *row) for row in made]
                empty += [] if made else [place]
        block = Block()
        block.origins, block.columns, block.entry = origins, self._columns, self._table.entry
        none = np.array([], np.uint64)
        decoded = DecodedRows(
            block, 0, self._columns, tuple(bad), len(rows), "", 0, none, tuple(empty)
        )
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
