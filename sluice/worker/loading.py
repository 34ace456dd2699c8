"""The task: exactly one range, or one bundle of ranges, from Kafka into every table of its topic.

Runs in Spark's Python workers. `load_bundle` never raises: whatever happens is an outcome,
because an exception would cost the receipts of the whole job (H22). What is called an offset
here is the message's place in its bundle (`core.bundles.place_of`); of a range alone both are
the same.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import written_offsets
from sluice.claims.port import StoreAwayError, StoreRefusedError
from sluice.clickhouse.reactions import name_of
from sluice.core.claims import loader_number
from sluice.core.dead_letters import DUPLICATE, PARKED
from sluice.core.dynamic import NewField
from sluice.core.errors import InDoubtError, SluiceError, TerminalError
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.receipts import (
    IGNORED_FIELDS_MAX,
    BundleTooHeavy,
    ClaimedRows,
    DeadLetter,
    DeadLetterReason,
    Duplicates,
    Failed,
    Loaded,
    NeedsReservation,
    Outcome,
    Outdated,
    Receipt,
    Stages,
    TaskReport,
    TooHeavy,
    UnknownSchemas,
    Untried,
)
from sluice.decode.engine.session import release_memory
from sluice.decode.keys.kept import without_rows
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage, Block, Decoded
from sluice.decode.messages.fault import NO_ROUTE
from sluice.decode.schema.registry import UnknownSchemasError
from sluice.decode.text.fields import new_fields
from sluice.decode.values.steps import TooLargeError
from sluice.kafka.errors import UnreadRangeError
from sluice.kafka.reader import Wanted
from sluice.kafka.readers import Reader
from sluice.worker.asking import ask_for_fields, asked_for_columns, asked_for_schemas, words_of
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.bundle import Bundle, Reading, fetch
from sluice.worker.claiming import Claimed, claim, duplicate_faults
from sluice.worker.errors import BlockRefusedError, NeedsReservationError, OutdatedTextError
from sluice.worker.inserting import (
    ShardBlock,
    decisive,
    insert_block,
    may_go_parallel,
    require_takers,
    send_parallel,
    send_sequentially,
)
from sluice.worker.leases import HeldLease
from sluice.worker.routing import Router
from sluice.worker.stage_clocks import StageClocks
from sluice.worker.staging import SealedBlock, seal_blocks, stage_block
from sluice.worker.worker_cache import WorkerCache

#: Rows of a block: below what servers squash or split. A message of several rows counts with all.
ROWS_MAX = 1_000_000
#: Messages above this size, on average over a range, leave large holes in the heap.
LARGE_MESSAGE_BYTES = 4096


_cache = WorkerCache()


def load_bundle(
    environment: TaskEnvironment, members: Sequence[Assignment], task_attempt: int
) -> tuple[TaskReport, ...]:
    """Load the ranges of one bundle, or one range alone, and report on each: what is not loaded
    is so for all of them, but where the messages of one could not be read. Never raises an
    Exception.

    :param members: in the order of the bundle.
    """
    _cache.begin_range(environment.clickhouse.looks)
    clocks = StageClocks(environment.is_traced)
    with clocks.tracing("task") as facts:
        outcome = _outcome(environment, members, task_attempt, clocks)
        facts |= {"sluice.outcome": _word_of(outcome), "sluice.task.attempt": task_attempt}
    outcomes = outcome if isinstance(outcome, tuple) else (outcome,) * len(members)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return tuple(
        TaskReport(
            block_range=member.block_range,
            batch=member.record.batch,
            outcome=one,
            task_attempt=task_attempt,
            worker_memory_bytes=memory,
            may_land=_cache.may_land,
            may_lack_part=_cache.may_lack_part,
            spans=tuple(clocks.spans) if member is members[0] else (),
        )
        for member, one in zip(members, outcomes, strict=True)
    )


def _word_of(outcome: Outcome | tuple[Outcome, ...]) -> str:
    """Of a span: no words of an error, which may name values."""
    told = outcome[0] if isinstance(outcome, tuple) else outcome
    return name_of(told.error) if isinstance(told, Failed) else type(told).__name__


def _outcome(
    environment: TaskEnvironment,
    members: Sequence[Assignment],
    task_attempt: int,
    clocks: StageClocks,
) -> Outcome | tuple[Outcome, ...]:
    """What became of the bundle, or of each member."""
    try:
        bundle = Bundle(tuple(members))
        return _refused(bundle, task_attempt) or _load(_cache, environment, bundle, clocks)
    except NeedsReservationError as error:
        return error.need
    except BlockRefusedError as refused:
        is_unstored = refused.is_unstored and bundle.is_first
        return Failed(refused.error, refused.entry, is_unstored, refused.inserted)
    except SluiceError as error:
        return Failed(error)
    except Exception as error:
        import traceback

        return Failed(
            TerminalError(
                f"{members[0].block_range}: unexpected {type(error).__name__}: {error}\n"
                + "".join(traceback.format_exception(error)[-3:]),
                "This is a bug: report it. The range stays in doubt; `sluice resolve` decides.",
            )
        )


def _refused(bundle: Bundle, task_attempt: int) -> Outcome | None:
    """A task that Spark started again loads nothing: before a repeat, the driver has to look
    whether ClickHouse still remembers the first attempt's blocks (R10)."""
    if task_attempt == 0:
        return None
    return Failed(
        InDoubtError(
            f"Spark started the task of {bundle} again (attempt {task_attempt})",
            "The driver looks at the windows and sends the range again; no action is needed.",
        )
    )


def _load(
    cache: WorkerCache, environment: TaskEnvironment, bundle: Bundle, clocks: StageClocks
) -> Outcome | tuple[Outcome, ...]:
    """1. Lease. 2. Fetch and weigh. 3. For each table: decode, claim the keys, split by shards,
    check the reservation, insert; nothing of any table before all were decoded that may refuse the
    range.
    4. Fetch the originals of the bad messages."""
    lease = HeldLease(bundle.first, bundle.deadline_ms, bundle.sent_at_ms)
    spec = cache.spec(environment, bundle.spec)
    tables = _tables_of(bundle, spec)
    require_takers(environment.clickhouse, tables)
    loading = _Loading(cache, environment, bundle, lease, spec, clocks)
    router = Router(bundle.origins(spec, None), tables, bundle.background.rest, cache.buffer)
    loading.watch(tables, router)
    try:
        with clocks.timing("fetch"), clocks.tracing("fetch") as facts:
            reading = fetch(cache, environment, bundle, router, clocks)
            facts["sluice.messages"] = reading.messages
        large = reading.bytes > LARGE_MESSAGE_BYTES * reading.messages
        if large:
            _trim_heap()
        if reading.too_heavy is not None:
            return reading.too_heavy
        if reading.unread is not None:
            number, error = reading.unread
            outcomes: list[Outcome] = [Untried()] * len(bundle.members)
            outcomes[number] = Failed(error, inserted_nothing=True)
            return tuple(outcomes)
        heavy_at = loading.decode_first(tables, router)
        if heavy_at is not None:
            if bundle.is_alone:
                return TooHeavy(heavy_at, reading.bytes, by_rows=True)
            return BundleTooHeavy(by_rows=True)
        if loading.fields:
            return asked_for_columns(tables, loading.fields)
        if loading.schemas:
            return asked_for_schemas(tables, loading.schemas)
        try:
            loading.load(tables, router)
        except (StoreAwayError, StoreRefusedError) as error:
            # The driver sees what is refused, and waits: no range is at fault.
            away = StoreAwayError(str(error), error.hint)
            return Failed(away, inserted_nothing=not loading.inserted)
        except OutdatedTextError as refused:
            return Outdated(refused.entry, str(refused), loading.inserted)
        if large:
            release_memory()
    finally:
        cache.keep(router.buffers)
    return loading.loaded(reading, router)


def _tables_of(bundle: Bundle, spec: LoadSpec) -> tuple[TableSpec, ...]:
    """The entries that all members go to.

    :raises TerminalError: they go to different ones.
    """
    topics = {member.block_range.source.topic for member in bundle.members}
    found = {topic: tuple(spec.tables_of(topic)) for topic in topics}
    first = found[bundle.first.source.topic]
    if any(tables != first for tables in found.values()):
        raise TerminalError(
            f"{bundle}: its topics go to different tables",
            "This is a bug: report it. Nothing of them was inserted.",
        )
    return first


def _reason_of(table: TableSpec, bad: BadMessage, masked: frozenset[str]) -> DeadLetterReason:
    return DeadLetterReason(table.entry, bad.reason, words_of(table, bad, masked), bad.column)


@dataclass(slots=True)
class _Loading:
    """A bundle whose messages are here, on its way into its tables.

    :param shares: of each member, what was acknowledged; `receipts` are of whole blocks.
    :param given: of each member, by table entry, how many messages the entry was given.
    """

    cache: WorkerCache
    environment: TaskEnvironment
    bundle: Bundle
    lease: HeldLease
    spec: LoadSpec
    clocks: StageClocks = field(default_factory=StageClocks)
    decoded: dict[str, Decoded] = field(default_factory=dict)
    receipts: list[Receipt] = field(default_factory=list)
    sealed: list[SealedBlock] = field(default_factory=list)
    faults: dict[int, list[DeadLetterReason]] = field(default_factory=dict)
    shares: list[tuple[Receipt | None, ...]] = field(default_factory=list)
    given: dict[str, list[int]] = field(default_factory=dict)
    empty: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    ignored: dict[str, tuple[str, ...]] = field(default_factory=dict)
    duplicates: dict[str, Claimed] = field(default_factory=dict)
    claimed: dict[str, ClaimedRows] = field(default_factory=dict)
    values: dict[int, bytes] = field(default_factory=dict)
    values_bytes: int = 0
    fields: dict[str, tuple[NewField, ...]] = field(default_factory=dict)
    schemas: dict[str, UnknownSchemas] = field(default_factory=dict)

    def watch(self, tables: Iterable[TableSpec], router: Router) -> None:
        """Let the buffers look at messages for decoders that are there already."""
        for table in tables:
            decoder = self.cache.decoders.get((self.bundle.spec, table.entry))
            if decoder is not None and not table.parked:
                decoder.watch(router.view_of(table.entry).buffer)

    def decode_first(self, tables: Iterable[TableSpec], router: Router) -> int | None:
        """Decode, before anything is inserted, the entries for which a range may be refused.

        :returns: None, or the end at which no block would have more than ROWS_MAX rows, and no
            entry's messages would be too large when decompressed.
        """
        ends: list[int] = []
        for table in tables:
            if _may_refuse(table) and not table.parked:
                try:
                    decoded = self._decode(table, router)
                except UnknownSchemasError as error:
                    self.schemas[table.entry] = error.found
                    continue
                except TooLargeError as error:
                    ends.append(error.end)
                    continue
                self.decoded[table.entry] = decoded
                end = end_of_rows(decoded.offsets) if table.rows == "many" else None
                ends += [] if end is None else [end]
        return min(ends, default=None)

    def load(self, tables: Iterable[TableSpec], router: Router) -> None:
        """Decode and insert, table by table."""
        for table in tables:
            if table.parked:
                self._park(table, router)
                continue
            if table.entry not in self.decoded:
                self.decoded[table.entry] = self._decode(table, router)
            decoded = self.decoded.pop(table.entry)
            for bad in decoded.bad:
                fault = _reason_of(table, bad, self.environment.masked)
                self.faults.setdefault(bad.offset, []).append(fault)
            ask_for_fields(self.bundle, table, decoded)
            if decoded.empty:
                self.empty[table.entry] = decoded.empty
            if decoded.dropped_rows:
                self.dropped[table.entry] = decoded.dropped_rows
            if decoded.ignored:
                self.ignored[table.entry] = decoded.ignored[:IGNORED_FIELDS_MAX]
            if decoded.rows and table.deduplicate is not None:
                decoded = self._claim(table, decoded)
            if decoded.rows == 0:
                continue
            parts = self._split(table, decoded)
            del decoded
            deliver = self._seal if self.spec.commit == "bundle" else self._insert
            deliver(table, parts)
        self._move()

    def _claim(self, table: TableSpec, decoded: Decoded) -> Decoded:
        """The block without duplicates (R20), after everything that may leave a message out."""
        clocks, cache, spec = self.clocks, self.cache, self.spec
        with clocks.timing("claim"), clocks.tracing("claim", table.entry):
            origins = self.bundle.origins(spec, table)
            row_keys = cache.row_keys(self.bundle.spec, table, decoded.columns)
            loader = loader_number(spec.pipeline, spec.connector, table.entry)
            store = cache.claims(self.environment)
            self.lease.check()  # nobody may claim any more for what nobody will insert
            claimed = claim(store, self.bundle, table, row_keys, decoded, origins, loader)
        if stored := self.bundle.background.stored.get(table.entry):
            # A message of which a probe found a row is none that made no row.
            there = np.array([offset for offset, _, _ in stored], np.uint64)
            claimed = replace(claimed, places=np.setdiff1d(claimed.places, there))
        self.claimed[table.entry] = claimed.counts
        if claimed.left_out:
            self.duplicates[table.entry] = claimed
        for place, fault in duplicate_faults(table, self.bundle, claimed):
            self.faults.setdefault(place, []).append(fault)
        return claimed.block

    def _split(self, table: TableSpec, decoded: Decoded) -> list[tuple[str, Block]]:
        """The block of each shard, the last one first. Before any of them is inserted, all are
        compared with the reservation: above it, nobody inserts anything of this entry."""
        with self.clocks.timing("decode"):
            splitter = self.cache.splitter(self.bundle.spec, table, decoded.columns)
            parts = splitter.split(decoded, with_offsets=not self.bundle.is_alone)
            parts.reverse()
        entries = max(block.clickhouse_partitions for _, block in parts)
        if entries > self.bundle.reservation and not (table.is_replacing or table.is_staged):
            raise NeedsReservationError(
                NeedsReservation(table.entry, entries, inserted=bool(self.receipts))
            )
        return parts

    def _of_shard(self, table: TableSpec, shard: str, block: Block) -> ShardBlock:
        within = (self.cache, self.environment, self.bundle)
        return ShardBlock(*within, table, shard, block, self.lease)

    @property
    def inserted(self) -> tuple[str, ...]:
        """The entries of which something may be in their tables, or come there."""
        stored = [receipt.entry for receipt in self.receipts]
        return (*stored, *(block.entry for block in self.sealed))

    def _seal(self, table: TableSpec, parts: list[tuple[str, Block]]) -> None:
        """Have the blocks of all shards ready to be moved."""
        # Each goes from the list when it is its turn
        blocks = (self._of_shard(table, *parts.pop()) for _ in range(len(parts)))
        try:
            with self.clocks.timing("insert"), self.clocks.tracing("seal", table.entry):
                for block in seal_blocks(blocks):
                    self.sealed.append(block)
        except BlockRefusedError as error:
            error.inserted = self.inserted
            raise

    def _move(self) -> None:
        """Move what is sealed, in the order of the entries."""
        with self.clocks.timing("insert"):
            for block in self.sealed:
                receipt = _told(self.clocks, block.entry, "", block.move)
                self.receipts.append(receipt)
                self.shares.append(self.bundle.shares(receipt, block.offsets))

    def _insert(self, table: TableSpec, parts: list[tuple[str, Block]]) -> None:
        """Insert into all shards; each block goes when it is stored."""
        deliver_block = stage_block if table.is_staged else insert_block

        def send(shard: str, block: Block) -> Receipt:
            given = self._of_shard(table, shard, block)
            return _told(self.clocks, table.entry, shard, lambda: deliver_block(given))

        shards = [name for name, _ in parts]
        is_alone = len(parts) == 1 or not may_go_parallel(self.environment, shards)
        deliver = send_sequentially if is_alone else send_parallel
        offsets = {shard: block.offsets for shard, block in parts}
        with self.clocks.timing("insert"):
            receipts, errors = deliver(parts, send)
            self.receipts += receipts
            for receipt in receipts:
                self.shares.append(self.bundle.shares(receipt, offsets[receipt.shard]))
        waits = [receipt.insert_ms / 1000 for receipt in receipts]
        self.clocks.seconds["wait"] += sum(waits) if is_alone else max(waits, default=0.0)
        if errors:
            error = decisive(errors, receipts)
            if isinstance(error, BlockRefusedError):
                error.inserted = self.inserted
            raise error

    def _park(self, table: TableSpec, router: Router) -> None:
        """All that the entry takes becomes dead letters of the parking topic."""
        error = f"{table.target} takes no blocks for now"
        fault = DeadLetterReason(table.entry, PARKED, error, into="parking")
        with router.messages_of(table.entry) as buffer:
            for offset in map(int, buffer.offsets):
                self.faults.setdefault(offset, []).append(fault)
            self.given[table.entry] = self.bundle.counted(buffer.offsets)

    def _decode(self, table: TableSpec, router: Router) -> Decoded:
        """The rows of an entry."""
        entry, timing = table.entry, self.clocks.timing("decode")
        tracing, messages = self.clocks.tracing("decode", entry), router.messages_of(entry)
        with timing, tracing as facts, messages as buffer:
            decoder = self.cache.decoder(self.environment, self.bundle.spec, table)
            decoded = decoder.decode(buffer, self.bundle.origins(self.spec, table))
            facts |= {"sluice.rows": decoded.rows, "sluice.bad_messages": len(decoded.bad)}
            self.given[table.entry] = self.bundle.counted(buffer.offsets)
            found = new_fields(table, buffer, decoded)
            stored = self.bundle.background.stored.get(table.entry)
            if found:
                # The range is refused, and decoded again: then these messages may make the rows
                # that a probe has found.
                self.fields[table.entry] = found
            elif stored:
                decoded = without_rows(table, decoded, stored)
            self._keep_values(buffer, decoded)
        return decoded

    def _keep_values(self, buffer: MessageBuffer, decoded: Decoded) -> None:
        """Of bad messages, as many as dead letters may hold: the buffer goes before they are
        made. Those that are missing are read again."""
        facts = buffer.facts
        bad = [
            one
            for one in decoded.bad
            if one.offset not in self.values
            and not (facts is not None and facts.tombstones and facts.tombstones[one.index])
        ]
        indices = np.array([one.index for one in bad], np.int64)
        for one, value in zip(bad, buffer.iterate(indices), strict=True):
            self.values_bytes += len(value)
            if self.values_bytes > self.environment.dead_letter_bytes_max:
                break
            self.values[one.offset] = value

    def _dead_letters(
        self, reader: Reader, faults: Sequence[Mapping[int, Sequence[DeadLetterReason]]]
    ) -> list[tuple[DeadLetter, ...]]:
        """The dead letters of each member, which share what a task may send."""
        left = self.environment.dead_letter_bytes_max
        found: list[tuple[DeadLetter, ...]] = []
        for member, wanted in zip(self.bundle.members, faults, strict=True):
            dead_letters: tuple[DeadLetter, ...] = ()
            if wanted:
                read = Wanted(member.block_range, member.record.epoch)
                dead_letters = reader.dead_letters(read, wanted, self.values, left)
            left -= sum(len(letter.value or b"") for letter in dead_letters)
            found.append(dead_letters)
        _require_topics_still(self.bundle, reader)
        return found

    def loaded(self, reading: Reading, router: Router) -> tuple[Loaded, ...]:
        """What the task reports of each member, with the originals of the bad messages."""
        bundle = self.bundle
        if self.spec.unrouted == "dead-letter":
            for offset in router.unrouted:
                self.faults[offset] = [
                    DeadLetterReason("", NO_ROUTE, "no table entry takes this message")
                ]
        faults = self._faults_of_members()
        letters: list[tuple[DeadLetter, ...]] = [() for _ in bundle.members]
        if self.faults:
            with self.clocks.timing("dead_letters"):
                reader = self.cache.reader(self.environment, looks=router.needs_headers)
                letters = self._dead_letters(reader, faults)
        unrouted = bundle.divided(router.unrouted)
        duplicates = _duplicates_of_members(bundle, self.duplicates)
        empty = bundle.divided_intervals(self.empty)
        stages = self.clocks.stages()
        return tuple(
            Loaded(
                receipts=tuple(one for shares in self.shares if (one := shares[n]) is not None),
                dead_letters=tuple(one for one in letters[n] if one.reason != DUPLICATE),
                messages=result.messages,
                bytes=result.bytes,
                skipped=result.skipped,
                # What all members took together is told of the first one.
                stages=stages if n == 0 else Stages(),
                passed=_passed(self, n, result.messages - result.skipped, duplicates[n]),
                unrouted=len(unrouted[n]),
                empty=empty[n],
                dropped_rows=self.dropped if n == 0 else {},
                duplicates=duplicates[n],
                copies=tuple(one for one in letters[n] if one.reason == DUPLICATE),
                claimed=self.claimed if n == 0 else {},
                ignored=self.ignored if n == 0 else {},
                oldest_ms=result.oldest_ms,
                last_ms=result.last_ms,
            )
            for n, result in enumerate(reading.results)
        )

    def _faults_of_members(self) -> list[dict[int, list[DeadLetterReason]]]:
        if self.bundle.is_alone:
            return [self.faults]
        places = sorted(self.faults)
        reasons = iter(places)
        return [
            {offset: self.faults[next(reasons)] for offset in offsets}
            for offsets in self.bundle.divided(places)
        ]


def _require_topics_still(bundle: Bundle, reader: Reader) -> None:
    """Originals are read after the rest."""
    try:
        bundle.require_topics(reader)
    except UnreadRangeError as unread:
        raise unread.reason from None


def _duplicates_of_members(
    bundle: Bundle, duplicates: Mapping[str, Claimed]
) -> list[dict[str, Duplicates]]:
    """By table entry; rows that were left out are told of the first member."""
    found: list[dict[str, Duplicates]] = [{} for _ in bundle.members]
    for entry, claimed in duplicates.items():
        for n, offsets in enumerate(bundle.divided(claimed.places.tolist())):
            if offsets or n == 0:
                written = written_offsets(np.array(offsets, np.uint64))
                rows = claimed.left_out if n == 0 else 0
                found[n][entry] = Duplicates(rows, len(offsets), written)
    return found


def _passed(
    loading: _Loading, number: int, values: int, duplicates: Mapping[str, Duplicates]
) -> dict[str, int]:
    """By table entry, the messages of a member that are neither its rows nor its dead letters.

    :param values: messages of the member that have one.
    """
    if loading.bundle.background.rest:
        return {}
    passed = {entry: values - given[number] for entry, given in loading.given.items()}
    for entry, places in loading.empty.items():
        passed[entry] += len(loading.bundle.divided(places)[number])
    for entry, told in duplicates.items():
        passed[entry] += told.messages
    return {entry: count for entry, count in passed.items() if count}


def _told(clocks: StageClocks, entry: str, shard: str, insert: Callable[[], Receipt]) -> Receipt:
    """An insert, with a span that says where the block is."""
    with clocks.tracing("insert", entry, shard) as facts:
        receipt = insert()
        facts |= {
            "sluice.shard": receipt.shard,
            "sluice.token": receipt.token,
            "sluice.replica": receipt.replica,
            "sluice.rows": receipt.rows,
            "sluice.bytes": receipt.bytes,
            "sluice.failed_over": " ".join(receipt.failed_over),
        }
    return receipt


def _may_refuse(table: TableSpec) -> bool:
    """Whether messages of an entry may refuse their range: they may have too many rows or bytes,
    fields that are to get columns, or schemas that the registry does not know."""
    depends = bool(table.registry or table.decompress)
    return table.rows == "many" or table.dynamic is not None or depends


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
