"""The range task: exactly one range from Kafka into every table of its topic.

Runs in Spark's Python workers. `load_range` never raises: whatever happens is an outcome,
because an exception would cost the receipts of the whole job (H22).
"""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.dead_letters import PARKED
from sluice.core.dynamic import NewField
from sluice.core.errors import InDoubtError, SluiceError, TerminalError
from sluice.core.formats import REGISTRY_OPTION
from sluice.core.ranges import Interval, intervals_of
from sluice.core.receipts import (
    DeadLetter,
    DeadLetterReason,
    Failed,
    Loaded,
    NeedsGrant,
    Outcome,
    Outdated,
    Receipt,
    TaskReport,
    TooHeavy,
    UnknownSchemas,
)
from sluice.core.text import ConfigurationText, TableText
from sluice.core.tokens import row_source
from sluice.decode.engine.session import release_memory
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Block, Decoded
from sluice.decode.messages.fault import NO_ROUTE
from sluice.decode.schema.registry import UnknownSchemasError
from sluice.decode.sharding.stored import without_rows
from sluice.decode.text.fields import new_fields
from sluice.kafka.reader import RangeReader, ReadResult, read_originals
from sluice.kafka.readers import Reader
from sluice.worker.asking import ask_for_fields, asked_for_columns, asked_for_schemas, words_of
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.errors import BlockRefusedError, NeedsGrantError, OutdatedTextError
from sluice.worker.inserting import insert_block, may_go_parallel
from sluice.worker.leases import HeldLease
from sluice.worker.parallel import decisive, send_parallel, send_sequentially
from sluice.worker.routing import Router
from sluice.worker.stage_clocks import StageClocks
from sluice.worker.worker_cache import WorkerCache

#: Rows of a block: below what servers squash or split. A message of several rows counts with all.
ROWS_MAX = 1_000_000
#: Messages above this size, on average over a range, leave large holes in the heap.
LARGE_MESSAGE_BYTES = 4096


_cache = WorkerCache()


def load_range(
    environment: TaskEnvironment, assignment: Assignment, task_attempt: int
) -> TaskReport:
    """Load one range and report. Never raises an Exception."""
    _cache.begin_range()
    try:
        outcome = _refused(assignment, task_attempt) or _load(_cache, environment, assignment)
    except NeedsGrantError as error:
        outcome = error.need
    except BlockRefusedError as refused:
        is_unstored = refused.is_unstored and assignment.is_first
        outcome = Failed(refused.error, refused.entry, is_unstored, refused.inserted)
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
        may_land=_cache.may_land,
        may_lack_part=_cache.may_lack_part,
    )


def _refused(assignment: Assignment, task_attempt: int) -> Outcome | None:
    """A task that Spark started again loads nothing: before a repeat, the driver has to look
    whether ClickHouse still remembers the first attempt's blocks (R10)."""
    if task_attempt == 0:
        return None
    return Failed(
        InDoubtError(
            f"Spark started the task of {assignment.block_range} again (attempt {task_attempt})",
            "The driver looks at the windows and sends the range again; no action is needed.",
        )
    )


def _load(cache: WorkerCache, environment: TaskEnvironment, assignment: Assignment) -> Outcome:
    """1. Lease. 2. Fetch and weigh. 3. For each table: decode, split by shards, check the grant,
    insert; nothing of any table before all were decoded that may refuse the range.
    4. Fetch the originals of the bad messages."""
    block_range, record = assignment.block_range, assignment.record
    lease = HeldLease(block_range, record.deadline_ms, assignment.sent_at_ms)
    text = cache.text(environment, record.text)
    tables = text.tables_of(block_range.source.topic)
    loading = _Loading(cache, environment, assignment, lease, text)
    router = Router(block_range.source, tables, assignment.rest, cache.buffer)
    loading.watch(tables, router)
    try:
        result = _fetch(cache, environment, assignment, router, loading.clocks)
        loading.clocks.fetch = time.monotonic() - loading.clocks.started
        large = result.bytes > LARGE_MESSAGE_BYTES * result.messages
        if large:
            _trim_heap()
        if result.heavy_at is not None:
            return TooHeavy(result.heavy_at, result.bytes)
        heavy_at = loading.decode_first(tables, router)
        if heavy_at is not None:
            return TooHeavy(heavy_at, result.bytes)
        if loading.fields:
            return asked_for_columns(tables, loading.fields)
        if loading.schemas:
            return asked_for_schemas(tables, loading.schemas)
        try:
            loading.load(tables, router)
        except OutdatedTextError as refused:
            inserted = tuple(receipt.entry for receipt in loading.receipts)
            return Outdated(refused.entry, str(refused), inserted)
        if large:
            release_memory()
    finally:
        cache.keep(router.buffers)
    return loading.loaded(result, router)


@dataclass(slots=True)
class _Loading:
    """A range whose messages are here, on its way into its tables."""

    cache: WorkerCache
    environment: TaskEnvironment
    assignment: Assignment
    lease: HeldLease
    text: ConfigurationText
    clocks: StageClocks = field(default_factory=StageClocks)
    decoded: dict[str, tuple[Decoded, int]] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    faults: dict[int, list[DeadLetterReason]] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    empty: dict[str, tuple[Interval, ...]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    values: dict[int, bytes] = field(default_factory=dict)
    values_bytes: int = 0
    fields: dict[str, tuple[NewField, ...]] = field(default_factory=dict)
    schemas: dict[str, UnknownSchemas] = field(default_factory=dict)

    def watch(self, tables: Iterable[TableText], router: Router) -> None:
        """Let the buffers look at messages for decoders that are there already."""
        for table in tables:
            decoder = self.cache.decoders.get((self.assignment.record.text, table.entry))
            if decoder is not None and not table.parked:
                decoder.watch(router.view_of(table.entry).buffer)

    def decode_first(self, tables: Iterable[TableText], router: Router) -> int | None:
        """Decode, before anything is inserted, the entries for which a range may be refused.

        :returns: None, or the end at which no block would have more than ROWS_MAX rows.
        """
        ends: list[int] = []
        for table in tables:
            if _may_refuse(table) and not table.parked:
                try:
                    decoded, given = self._decode(table, router)
                except UnknownSchemasError as error:
                    self.schemas[table.entry] = error.found
                    continue
                self.decoded[table.entry] = decoded, given
                end = end_of_rows(decoded.offsets) if table.rows == "many" else None
                ends += [] if end is None else [end]
        return min(ends, default=None)

    def load(self, tables: Iterable[TableText], router: Router) -> None:
        """Decode and insert, table by table."""
        for table in tables:
            if table.parked:
                self._park(table, router)
                continue
            if table.entry not in self.decoded:
                self.decoded[table.entry] = self._decode(table, router)
            decoded, given = self.decoded.pop(table.entry)
            for bad in decoded.bad:
                fault = DeadLetterReason(table.entry, bad.reason, words_of(table, bad), bad.column)
                self.faults.setdefault(bad.offset, []).append(fault)
            ask_for_fields(self.assignment, table, decoded)
            if decoded.empty:
                self.empty[table.entry] = intervals_of(decoded.empty)
            passed = router.values - given + len(decoded.empty)
            if passed and not self.assignment.rest:
                self.passed[table.entry] = passed
            if decoded.dropped_rows:
                self.dropped[table.entry] = decoded.dropped_rows
            if decoded.rows == 0:
                continue
            parts = self._split(table, decoded)
            del decoded
            self._insert(table, parts)

    def _split(self, table: TableText, decoded: Decoded) -> list[tuple[str, Block]]:
        """The block of each shard, the last one first. Before any of them is inserted, all are
        compared with the grant: above it, nobody inserts anything of this entry."""
        began = time.monotonic()
        splitter = self.cache.splitter(self.assignment.record.text, table, decoded.columns)
        parts = splitter.split(decoded)
        parts.reverse()
        self.clocks.decode += time.monotonic() - began
        entries = max(block.clickhouse_partitions for _, block in parts)
        if entries > self.assignment.record.grant:
            raise NeedsGrantError(NeedsGrant(table.entry, entries))
        return parts

    def _insert(self, table: TableText, parts: list[tuple[str, Block]]) -> None:
        """Insert into all shards; each block goes when it is stored."""
        began = time.monotonic()

        def send(shard: str, block: Block) -> Receipt:
            return insert_block(
                self.cache, self.environment, self.assignment, table, shard, block, self.lease
            )

        is_alone = len(parts) == 1 or not may_go_parallel(
            self.environment, [name for name, _ in parts]
        )
        deliver = send_sequentially if is_alone else send_parallel
        receipts, errors = deliver(parts, send)
        self.receipts += receipts
        waits = [receipt.insert_ms / 1000 for receipt in receipts]
        self.clocks.insert += time.monotonic() - began
        self.clocks.wait += sum(waits) if is_alone else max(waits, default=0.0)
        if errors:
            error = decisive(errors, receipts)
            if isinstance(error, BlockRefusedError):
                error.inserted = tuple(receipt.entry for receipt in self.receipts)
            raise error

    def _park(self, table: TableText, router: Router) -> None:
        """All that the entry takes becomes letters of the parking topic."""
        fault = DeadLetterReason(table.entry, PARKED, f"{table.target} takes no blocks for now")
        with router.messages_of(table.entry) as buffer:
            for offset in map(int, buffer.offsets):
                self.faults.setdefault(offset, []).append(fault)
            passed = router.values - buffer.messages
        if passed and not self.assignment.rest:
            self.passed[table.entry] = passed

    def _decode(self, table: TableText, router: Router) -> tuple[Decoded, int]:
        """The rows of an entry, and how many messages it was given."""
        began = time.monotonic()
        source, record = self.assignment.block_range.source, self.assignment.record
        decoder = self.cache.decoder(self.environment, record.text, table)
        loaded_by = row_source(
            pipeline=self.text.pipeline,
            connector=self.text.connector,
            topic_id=record.topic_id,
            entry=table.entry,
            generation=record.generation,
        )
        with router.messages_of(table.entry) as buffer:
            decoded = decoder.decode(buffer, source.topic, source.partition, loaded_by)
            given = buffer.messages
            found = new_fields(table, buffer, decoded)
            stored = self.assignment.stored.get(table.entry)
            if found:
                # The range is refused, and decoded again: then these messages may make the rows
                # that a probe has found.
                self.fields[table.entry] = found
            elif stored:
                decoded = without_rows(table, decoded, stored)
            self._keep_values(buffer, decoded)
        self.clocks.decode += time.monotonic() - began
        return decoded, given

    def _keep_values(self, buffer: MessageBuffer, decoded: Decoded) -> None:
        """Of bad messages, as many as dead letters may hold: the buffer goes before they are
        made. Those that are missing are read again."""
        bad = [one for one in decoded.bad if one.offset not in self.values]
        indices = np.array([one.index for one in bad], np.int64)
        for one, value in zip(bad, buffer.iterate(indices), strict=True):
            self.values_bytes += len(value)
            if self.values_bytes > self.environment.dead_letter_bytes_max:
                break
            self.values[one.offset] = value

    def _letters(self, reader: Reader) -> tuple[DeadLetter, ...]:
        environment, block_range = self.environment, self.assignment.block_range
        bytes_max = environment.dead_letter_bytes_max
        if isinstance(reader, RangeReader):
            return reader.letters(block_range, self.faults, self.values, bytes_max)
        return read_originals(environment.kafka, block_range, self.faults, bytes_max)

    def loaded(self, result: ReadResult, router: Router) -> Loaded:
        """What the task reports, with the originals of the bad messages."""
        environment = self.environment
        if self.text.unrouted == "dead-letter":
            for offset in router.unrouted:
                self.faults[offset] = [
                    DeadLetterReason("", NO_ROUTE, "no table entry takes this message")
                ]
        letters: tuple[DeadLetter, ...] = ()
        if self.faults:
            began = time.monotonic()
            letters = self._letters(self.cache.reader(environment, looks=router.looks))
            self.clocks.letters = time.monotonic() - began
        return Loaded(
            receipts=tuple(self.receipts),
            dead_letters=letters,
            messages=result.messages,
            bytes=result.bytes,
            skipped=result.skipped,
            stages=self.clocks.stages(),
            passed=self.passed,
            unrouted=len(router.unrouted),
            empty=self.empty,
            dropped_rows=self.dropped,
        )


def _may_refuse(table: TableText) -> bool:
    """Whether messages of an entry may refuse their range: they may have too many rows, fields
    that are to get columns, or schemas that the registry does not know."""
    has_registry = any(name == REGISTRY_OPTION for name, _ in table.options)
    return table.rows == "many" or table.dynamic is not None or has_registry


def end_of_rows(offsets: NDArray[np.uint64], rows_max: int = ROWS_MAX) -> int | None:
    """Where a range has to end so that its block stays within the limit; one message is always
    allowed.

    :param offsets: of all rows.
    :returns: None if it is within, or of one message.
    """
    if len(offsets) <= rows_max:
        return None
    ordered = np.sort(offsets)
    crossing = np.searchsorted(ordered, ordered[rows_max], side="left")
    if crossing == 0:
        crossing = np.searchsorted(ordered, ordered[0], side="right")
    return None if crossing == len(ordered) else int(ordered[crossing])


def _trim_heap() -> None:
    """Give the C library's free pages back: the client's buffers for large messages."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # not every C library has it
    if trim is not None:
        trim(0)


def _fetch(
    cache: WorkerCache,
    environment: TaskEnvironment,
    assignment: Assignment,
    router: Router,
    clocks: StageClocks,
) -> ReadResult:
    """Read the range into the buffers of its entries."""
    reader = cache.reader(environment, looks=router.looks)
    block_range, bytes_max = assignment.block_range, assignment.bytes_max
    epoch = assignment.record.epoch
    view = router.only_view
    if view is None:
        deliver = clocks.checking(router.deliver)
        if isinstance(reader, RangeReader):
            look = router.look if router.looks else None
            return reader.read(block_range, bytes_max, deliver, look, epoch)
        return reader.read(block_range, bytes_max, deliver, epoch)
    if isinstance(reader, RangeReader):
        add = clocks.checking(view.buffer.add)
        result = reader.read(block_range, bytes_max, add, None, epoch)
    else:
        add_text = clocks.checking(view.buffer.add_text)
        result = reader.read_text(block_range, bytes_max, add_text, epoch)
    router.values = view.buffer.messages
    return result
