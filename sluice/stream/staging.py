"""The staging table of one task attempt: made like the target, filled, counted."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_insert, query_id_of
from sluice.clickhouse.moving import StagedRowsError
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.staging import create_like, stored_rows
from sluice.core.errors import InDoubtError, TransientError

#: A staging table knows a chunk that is sent again.
_WINDOW = {"non_replicated_deduplication_window": "10000"}
#: Of an insert: each row stays as it was sent.
_INSERT_SETTINGS = {"optimize_on_insert": "0", "input_format_null_as_default": "0"}
#: What the target is, a table like it may be.
CREATE_SETTINGS = {
    "allow_suspicious_low_cardinality_types": "1",
    "allow_suspicious_codecs": "1",
}
_ATTEMPTS = 6
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class InsertManner:
    """How chunks are sent. Travels to the tasks.

    :param settings: of each insert, as `clickhouse.capabilities.insert_settings` gives them.
    :param compression: of Arrow's buffers: "lz4", "zstd" or "none".
    """

    settings: Mapping[str, str]
    compression: str
    timeout_seconds: float

    def body(self, batches: list[pa.RecordBatch]) -> pa.Buffer:
        """One chunk as an Arrow stream of one batch."""
        # A server knows a block by its token and by how many batches it came in [measured, 26.9].
        (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        codec = None if self.compression == "none" else self.compression
        options = pa.ipc.IpcWriteOptions(compression=codec)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return sink.getvalue()


def _nothing() -> None:
    """Where a table is nobody else's, and all of its rows are counted."""


def insert_chunk(
    server: Server,
    target: tuple[str, str],
    token: str,
    batches: list[pa.RecordBatch],
    manner: InsertManner,
    before: Callable[[], None] = _nothing,
    after: Callable[[], None] = _nothing,
) -> None:
    """Insert a chunk, again and again while the answer is lost or the server is away: under its
    token it is there once.

    :param target: database and table, which has a deduplication window.
    :param before: called each time before it is sent.
    :param after: called when the server has said that it has the chunk, before that is believed.
    :raises SluiceError: of any kind, of `before` or `after`, too; the chunk may be there.
    """
    body = memoryview(manner.body(batches))
    names = batches[0].schema.names
    for attempt in range(_ATTEMPTS):
        plan = plan_insert(
            *target,
            names,
            body,
            token,
            query_id_of(token, uuid.uuid4().hex[:8]),
            {**manner.settings, **_INSERT_SETTINGS},
            "ArrowStream",
        )
        try:
            before()
            server.insert(plan, lambda: manner.timeout_seconds, manner.timeout_seconds)
            after()
            return
        except (InDoubtError, TransientError):
            if attempt + 1 == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_SECONDS * 2**attempt)


@dataclass(slots=True)
class Stage:
    """Takes the rows of one attempt into a table of its own, which is made with the first of them.

    :param table: a name that no other attempt ever has.
    """

    server: Server
    facts: TableFacts
    table: str
    manner: InsertManner
    rows: int = 0
    chunks: int = field(default=0, init=False)

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Stage a chunk.

        :raises ServerError: of any kind; this attempt is to be given up.
        """
        if not self.chunks:
            where = (self.facts.database, self.table)
            create = create_like(self.facts, *where, moves=True, more=_WINDOW)
            self.server.execute(create, settings=CREATE_SETTINGS)
        token = f"{self.table}/{self.chunks}"
        insert_chunk(self.server, (self.facts.database, self.table), token, batches, self.manner)
        self.chunks += 1
        self.rows += sum(batch.num_rows for batch in batches)

    def check(self) -> None:
        """See that the table has exactly the rows that were added.

        :raises StagedRowsError: it has not; this attempt is to be given up.
        :raises ServerError: terminal or transient.
        """
        if not self.chunks:
            return
        found = stored_rows(self.server, self.facts.database, [self.table])[self.table]
        if found != self.rows:
            raise StagedRowsError(
                f"{self.facts.target}: {self.rows} rows were staged in {self.table} on "
                f"{self.server.url}, and {found} are there",
                "A TTL of the table may remove rows at once; leave those out of the query. Nothing "
                "of this epoch is in the table; start the query again.",
            )
