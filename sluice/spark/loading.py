"""The range task: exactly one range from Kafka into every table of its topic.

Runs in Spark's Python workers. `load_range` never raises: whatever happens is an outcome,
because an exception would cost the receipts of the whole job (G).
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_insert, query_id_of
from sluice.clickhouse.schema import check_header, describe_table
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.ranges import contains
from sluice.core.receipts import (
    DeadLetter,
    Failed,
    Loaded,
    NeedsGrant,
    Outcome,
    Receipt,
    Stages,
    TaskReport,
    TooHeavy,
)
from sluice.core.text import ConfigurationText, TableText, parse_text
from sluice.core.tokens import block_token
from sluice.decode.buffer import MessageBuffer
from sluice.decode.decoder import Decoded, Decoder
from sluice.decode.session import release_memory
from sluice.kafka.reader import Fault, RangeReader, ReadResult, read_originals
from sluice.kafka.readers import Reader, make_reader
from sluice.spark.assignment import Assignment, Surroundings
from sluice.spark.leases import HeldLease

_P = ParamSpec("_P")

#: Messages above this size, on average over a range, leave large holes in the heap.
LARGE_MESSAGE_BYTES = 4096


class _NeedsGrantError(TransientError):
    """Carries a refused block's need out of the table loop."""

    def __init__(self, entry: str, entries: int) -> None:
        super().__init__(f"{entry} needs {entries} window entries")
        self.entry = entry
        self.entries = entries


@dataclass(slots=True)
class Workshop:
    """What a worker process keeps between tasks: connections, decoders, texts.

    Not thread-safe; a Spark worker runs one task at a time.
    """

    readers: dict[str, Reader] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    settings: dict[tuple[str, str], tuple[dict[str, str], bool]] = field(default_factory=dict)
    texts: dict[str, ConfigurationText] = field(default_factory=dict)
    decoders: dict[tuple[str, str], Decoder] = field(default_factory=dict)
    checked: set[tuple[str, str, str]] = field(default_factory=set)
    spare: MessageBuffer | None = None

    def buffers(self, names: Iterable[str]) -> dict[str, MessageBuffer]:
        """Empty buffers; the first is the one that was kept, whose memory is there already."""
        made: dict[str, MessageBuffer] = {}
        for name in names:
            made[name], self.spare = self.spare or MessageBuffer(), None
        return made

    def keep(self, buffers: dict[str, MessageBuffer]) -> None:
        """Take buffers back: one is kept, the others are closed."""
        for buffer in buffers.values():
            if self.spare is None:
                buffer.clear()
                self.spare = buffer
            else:
                buffer.close()

    def reader(self, around: Surroundings) -> Reader:
        """The reader of this connector."""
        key = f"{around.kafka.connector}@{around.kafka.brokers}"
        if key not in self.readers:
            self.readers[key] = make_reader(around.kafka)
        return self.readers[key]

    def text(self, around: Surroundings, digest: str) -> ConfigurationText:
        """The text that decides the rows."""
        if digest not in self.texts:
            self.texts[digest] = parse_text(around.texts[digest])
        return self.texts[digest]

    def decoder(self, digest: str, table: TableText) -> Decoder:
        """The compiled decoder of a table of a text."""
        key = (digest, table.entry)
        if key not in self.decoders:
            self.decoders[key] = Decoder(table)
        return self.decoders[key]

    def server(self, around: Surroundings, url: str) -> Server:
        """The connection to a replica."""
        access = around.clickhouse
        if url not in self.servers:
            self.servers[url] = Server(url, access.user, access.password)
        return self.servers[url]

    def insert_settings(self, around: Surroundings, url: str) -> tuple[dict[str, str], bool]:
        """Settings of every insert into this server, and whether it knows tokens."""
        key = (url, around.clickhouse.durability)
        if key not in self.settings:
            capabilities = read_capabilities(self.server(around, url))
            self.settings[key] = (
                insert_settings(
                    capabilities, around.clickhouse.durability, around.insert_timeout_seconds
                ),
                capabilities.tokens,
            )
        return self.settings[key]

    def forget(self, url: str) -> None:
        """After an error: the server may come back as another version."""
        self.settings = {key: kept for key, kept in self.settings.items() if key[0] != url}
        self.checked = {key for key in self.checked if key[0] != url}


_workshop = Workshop()


def load_range(around: Surroundings, assignment: Assignment, task_attempt: int) -> TaskReport:
    """Load one range and report. Never raises an Exception."""
    try:
        outcome = _refused(assignment, task_attempt) or _load(_workshop, around, assignment)
    except _NeedsGrantError as need:
        outcome = NeedsGrant(need.entry, need.entries)
    except SluiceError as error:
        outcome = Failed(error)
    except Exception as error:
        import traceback

        outcome = Failed(
            TerminalError(
                f"{assignment.block_range}: unexpected {type(error).__name__}: {error}\n"
                + "".join(traceback.format_exception(error)[-3:]),
                "This is a bug: report it. The range stays in doubt; `sluice resolve` decides.",
            )
        )
    return TaskReport(
        block_range=assignment.block_range,
        batch=assignment.record.batch,
        outcome=outcome,
        task_attempt=task_attempt,
        worker_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def _refused(assignment: Assignment, task_attempt: int) -> Outcome | None:
    """A task that Spark started again loads nothing: before a repeat, the driver has to look
    whether ClickHouse still remembers the first attempt's blocks (rule 10)."""
    if task_attempt == 0:
        return None
    return Failed(
        InDoubtError(
            f"Spark started the task of {assignment.block_range} again (attempt {task_attempt})",
            "The driver looks at the windows and sends the range again; no action is needed.",
        )
    )


@dataclass(slots=True)
class _Clocks:
    """Adds up where the time goes."""

    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=time.process_time)
    fetch: float = 0.0
    check: float = 0.0
    decode: float = 0.0
    insert: float = 0.0
    wait: float = 0.0
    letters: float = 0.0

    def checking(self, deliver: Callable[_P, None]) -> Callable[_P, None]:
        """`deliver`, timed: once for each poll, not for each message."""

        def timed(*values: _P.args, **named: _P.kwargs) -> None:
            began = time.monotonic()
            deliver(*values, **named)
            self.check += time.monotonic() - began

        return timed

    def stages(self) -> Stages:
        return Stages(
            fetch=self.fetch,
            check=self.check,
            decode=self.decode,
            insert=self.insert,
            wait=self.wait,
            letters=self.letters,
            total=time.monotonic() - self.started,
            cpu=time.process_time() - self.cpu_started,
        )


def _load(workshop: Workshop, around: Surroundings, assignment: Assignment) -> Outcome:
    """1. Lease. 2. Fetch and weigh. 3. For each table: decode, check the grant, insert.
    4. Fetch the originals of the bad messages."""
    block_range, record = assignment.block_range, assignment.record
    lease = HeldLease(block_range, record.deadline_ms, assignment.sent_at_ms)
    text = workshop.text(around, record.text)
    tables = text.tables_of(block_range.source.topic)
    clocks = _Clocks()
    receipts: list[Receipt] = []
    faults: dict[int, list[Fault]] = {}
    buffers = workshop.buffers([table.entry for table in tables] if assignment.rest else [""])
    try:
        result = _fetch(workshop.reader(around), assignment, buffers, clocks)
        clocks.fetch = time.monotonic() - clocks.started
        large = result.bytes > LARGE_MESSAGE_BYTES * result.messages
        if large:
            _trim_heap()
        if result.heavy_at is not None:
            return TooHeavy(result.heavy_at, result.bytes)
        for table in tables:
            began = time.monotonic()
            buffer = buffers[table.entry if assignment.rest else ""]
            decoded = workshop.decoder(record.text, table).decode(
                buffer, block_range.source.topic, block_range.source.partition
            )
            clocks.decode += time.monotonic() - began
            for bad in decoded.bad:
                fault = Fault(table.entry, bad.reason, bad.error, bad.column)
                faults.setdefault(bad.offset, []).append(fault)
            if decoded.rows == 0:
                continue
            if decoded.clickhouse_partitions > record.grant:
                raise _NeedsGrantError(table.entry, decoded.clickhouse_partitions)
            began = time.monotonic()
            receipts.append(_insert(workshop, around, assignment, table, decoded, lease))
            clocks.insert += time.monotonic() - began
            clocks.wait += receipts[-1].insert_ms / 1000
            del decoded
        if large:
            release_memory()
    finally:
        workshop.keep(buffers)
    letters: tuple[DeadLetter, ...] = ()
    if faults:
        began = time.monotonic()
        letters = read_originals(around.kafka, block_range, faults, around.dead_letter_bytes_max)
        clocks.letters = time.monotonic() - began
    return Loaded(
        receipts=tuple(receipts),
        dead_letters=letters,
        messages=result.messages,
        bytes=result.bytes,
        skipped=result.skipped,
        stages=clocks.stages(),
    )


def _trim_heap() -> None:
    """Give the C library's free pages back: the client's buffers for large messages."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not every C library has it
    if trim is not None:
        trim(0)


def _fetch(
    reader: Reader,
    assignment: Assignment,
    buffers: dict[str, MessageBuffer],
    clocks: _Clocks,
) -> ReadResult:
    if not assignment.rest:
        if not isinstance(reader, RangeReader):
            add_text = clocks.checking(buffers[""].add_text)
            return reader.read_text(assignment.block_range, assignment.bytes_max, add_text)
        add = clocks.checking(buffers[""].add)
        return reader.read(assignment.block_range, assignment.bytes_max, add)

    def deliver(values: list[bytes], offsets: Sequence[int]) -> None:
        for entry, buffer in buffers.items():
            rest = assignment.rest.get(entry, ())
            wanted = [i for i, offset in enumerate(offsets) if contains(rest, offset)]
            if wanted:
                buffer.add([values[i] for i in wanted], [offsets[i] for i in wanted])

    return reader.read(assignment.block_range, assignment.bytes_max, clocks.checking(deliver))


def _insert(
    workshop: Workshop,
    around: Surroundings,
    assignment: Assignment,
    table: TableText,
    decoded: Decoded,
    lease: HeldLease,
) -> Receipt:
    """Insert the block into the one shard of this version, replica by replica."""
    (shard,) = table.shards
    block_range, record = assignment.block_range, assignment.record
    token = block_token(
        pipeline=around.pipeline,
        generation=record.generation,
        connector=around.kafka.connector,
        topic_id=record.topic_id,
        block_range=block_range,
        entry=table.entry,
        target=table.target,
        shard=shard,
        rest=record.rest,
    )
    # In this version a shard is one replica: which replica to prefer, and when to fail
    # over, needs the topology of the cluster.
    url = around.clickhouse.shards[shard][0]
    try:
        return _insert_into(workshop, around, url, table, decoded, token, record.text, lease)
    except SluiceError:
        workshop.forget(url)
        raise


def _insert_into(
    workshop: Workshop,
    around: Surroundings,
    url: str,
    table: TableText,
    decoded: Decoded,
    token: str,
    digest: str,
    lease: HeldLease,
) -> Receipt:
    server = workshop.server(around, url)
    key = (url, digest, table.entry)
    if key not in workshop.checked:
        facts = describe_table(server, table.database, table.table)
        known = {column.name: column for column in table.columns}
        check_header([known[name] for name in decoded.columns], facts)
        workshop.checked.add(key)
    settings, tokens = workshop.insert_settings(around, url)
    plan = plan_insert(
        table.database,
        table.table,
        decoded.columns,
        decoded.native,
        token if tokens else None,
        query_id_of(token, os.urandom(4).hex()),
        settings,
    )
    reply = server.insert(
        plan, lambda: lease.check(server.clock_ms()), around.insert_timeout_seconds
    )
    (shard,) = table.shards
    return Receipt(
        entry=table.entry,
        target=table.target,
        shard=shard,
        token=token,
        rows=decoded.rows,
        bytes=len(decoded.native),
        checksum=decoded.checksum,
        replica=url,
        entries=decoded.clickhouse_partitions,
        insert_ms=int(reply.seconds * 1000),
        acknowledged_at_ms=time.time_ns() // 1_000_000,
    )
