"""One block on its staged way into its target: filled, sealed, claimed, moved (R21).

Attempts may meet at any step. What is there decides: the marker which rows are sealed, the names
of the tables that hold them who moves them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from sluice.clickhouse.comparing import zone_matters
from sluice.clickhouse.copying import read_definitions, tables_behind
from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import TABLE_EXISTS, UNKNOWN_TABLE
from sluice.clickhouse.parts import crowding
from sluice.clickhouse.probe import rows_by_partition
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.replicas import refuse_other_table
from sluice.clickhouse.schema import TableFacts, check_header, describe_table
from sluice.clickhouse.staging import (
    Marker,
    StagingTable,
    attempt_of,
    marker_name,
    read_markers,
    staging_prefix,
    staging_tables,
    why_not_staged,
)
from sluice.clickhouse.vanishing import (
    require_all_rows,
    require_unchanged,
    seeing_all,
    why_rows_go,
)
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.load_spec import TableSpec, lacking_lineage
from sluice.core.receipts import Receipt
from sluice.core.tokens import row_source
from sluice.decode.messages.decoded import Block
from sluice.worker.asking import require_same_table
from sluice.worker.assignment import TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.errors import BlockRefusedError, OvertakenError, SealedError
from sluice.worker.filling import Filling
from sluice.worker.inserting import seconds_for
from sluice.worker.leases import HeldLease
from sluice.worker.moving import Mover, Rows
from sluice.worker.statements import Statements
from sluice.worker.worker_cache import WorkerCache

#: A target is left alone above so many times the parts from which its server delays inserts.
_CROWDING_MAX = 2.0
#: Somebody else may do a step between a look and this attempt's own, but not for ever.
_LOOKS = 5


def stage_block(
    cache: WorkerCache,
    environment: TaskEnvironment,
    bundle: Bundle,
    table: TableSpec,
    shard: str,
    decoded: Block,
    lease: HeldLease,
) -> Receipt:
    """Bring the block into the target in a shard, whatever was done of it before.

    :param decoded: the rows that belong there.
    :raises BlockRefusedError: it can never be stored, or only a person can tell what is stored.
    :raises SluiceError: it may be there or not, or a later attempt may work.
    """
    block = StagedBlock(cache, environment, bundle, table, shard, decoded, lease)
    block.seal()
    return block.move()


def seal_blocks(
    cache: WorkerCache,
    environment: TaskEnvironment,
    bundle: Bundle,
    table: TableSpec,
    parts: list[tuple[str, Block]],
    lease: HeldLease,
) -> Iterator[SealedBlock]:
    """Seal the block of each shard, one after the other; the last one first in the list, from which
    each goes when it is stored. Raises as `stage_block` does."""
    while parts:
        shard, block = parts.pop()
        staged = StagedBlock(cache, environment, bundle, table, shard, block, lease)
        offsets = block.offsets
        del block
        staged.seal()
        yield SealedBlock(table.entry, offsets, staged.move)


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A block that waits to be moved.

    :param offsets: of its rows.
    :param move: moves it; raises as `stage_block` does.
    """

    entry: str
    offsets: NDArray[np.uint64]
    move: Callable[[], Receipt]


class StagedBlock:
    """One attempt at one block: `seal`, then `move`. Both raise as `stage_block` does.

    :param decoded: the rows that belong into the target.
    """

    def __init__(
        self,
        cache: WorkerCache,
        environment: TaskEnvironment,
        bundle: Bundle,
        table: TableSpec,
        shard: str,
        decoded: Block,
        lease: HeldLease,
    ) -> None:
        self._cache, self._environment, self._bundle = cache, environment, bundle
        self._table, self._shard, self._lease = table, shard, lease
        self._url = environment.clickhouse.shards[shard][0]
        self._block: Block | None = decoded
        self._columns = decoded.columns
        self._receipt = Receipt(
            entry=table.entry,
            target=table.target,
            shard=shard,
            token=bundle.token(environment.pipeline, environment.kafka.connector, table, shard),
            rows=decoded.rows,
            bytes=len(decoded.native),
            checksum=decoded.checksum,
            replica=self._url,
            entries=decoded.clickhouse_partitions,
            insert_ms=0,
            acknowledged_at_ms=0,
            messages=None if decoded.messages == decoded.rows else decoded.messages,
        )
        #: Rows of the block may come into the target, now or by a later attempt.
        self._may_be_sealed = False
        self._seconds = 0.0
        self._left: list[tuple[StagingTable, TableFacts]] = []

    def seal(self) -> None:
        """Have the block sealed, by this attempt if by none before. Its rows go from memory."""
        with self._as_block():
            self._seal()
        self._block = None

    def move(self) -> Receipt:
        """Move what is sealed into the target, and into the tables behind it."""
        with self._as_block():
            for _ in range(_LOOKS):
                if all(self._mover(stored, facts).move(stored) for stored, facts in self._left):
                    break
                self._seal()  # there is a marker: another look
            else:
                raise OvertakenError(f"others were quicker {_LOOKS} times with {self._marker_name}")
        now_ms = time.time_ns() // 1_000_000
        took_ms = int(self._seconds * 1000)
        return replace(self._receipt, insert_ms=took_ms, acknowledged_at_ms=now_ms)

    @contextmanager
    def _as_block(self) -> Iterator[None]:
        """Errors say what becomes of the block."""
        began = time.monotonic()
        try:
            with _overtaken(self._table):
                yield
        except TerminalError as error:
            self._cache.forget(self._url)
            is_unstored = not self._may_be_sealed
            raise BlockRefusedError(self._table.entry, error, is_unstored=is_unstored) from error
        except SluiceError as error:
            self._cache.forget(self._url)
            if self._may_be_sealed and not isinstance(error, InDoubtError | BlockRefusedError):
                # Whoever plans the range anew would load sealed rows again.
                raise SealedError(str(error), error.hint) from error
            raise
        finally:
            self._seconds += time.monotonic() - began

    # What an attempt needs, made when a server is asked first

    @cached_property
    def _statements(self) -> Statements:
        cache, environment, bundle = self._cache, self._environment, self._bundle
        connector = environment.kafka.connector
        return Statements(
            server=cache.server(environment, self._url),
            table=self._table,
            token=bundle.staged_token(environment.pipeline, connector, self._table, self._shard),
            attempt=attempt_of(bundle.deadline_ms, os.urandom(4)),
            # Its tables are new, and a view may make the same rows as another one.
            profile=cache.profile(environment, self._url, 1, deduplicates=False),
            lease=self._lease,
            seconds=seconds_for(environment, bundle),
        )

    @property
    def _server(self) -> Server:
        return self._statements.server

    @cached_property
    def _marker_name(self) -> str:
        return marker_name(self._table.table, self._statements.token)

    @cached_property
    def _loader(self) -> str:
        record = self._bundle.members[0].record
        return row_source(
            pipeline=self._environment.pipeline,
            connector=self._environment.kafka.connector,
            topic_id=record.topic_id,
            entry=self._table.entry,
            generation=record.generation,
        )

    # Looking

    def _look(self) -> TableFacts:
        """What the target and all behind it are like now. Before the first block of a load spec at
        a server, and when they have changed: it is what the block is made for."""
        key = (self._server.url, self._bundle.spec, self._table.entry, self._shard)
        known = self._cache.staged.get(key)
        if known is not None and known[1] == read_definitions(self._server, known[0]):
            return known[0]
        self._server.ping()
        facts = self._described()
        while True:
            definitions = read_definitions(self._server, facts)
            before, facts = facts, self._described()
            if before == facts:
                break
        self._cache.staged[key] = (facts, definitions)
        return facts

    def _described(self) -> TableFacts:
        table, urls = self._table, self._environment.clickhouse.shards[self._shard]
        facts = describe_table(self._server, table.database, table.table)
        refuse_other_table(facts, table, self._shard, urls)
        columns = {column.name: column for column in table.columns}
        check_header([columns[name] for name in self._columns], facts)
        return facts

    def _require_same_table(self, facts: TableFacts, *, is_first: bool) -> None:
        moves = self._statements.moves
        matters = not moves or zone_matters(self._table, facts, tokens=True)
        told = {"tokens": True, "zone_matters": matters, "is_first": is_first}
        require_same_table(self._server, self._table, self._shard, **told)

    # Sealing

    def _seal(self) -> None:
        """Look until there is a marker, of this attempt or of another one."""
        database = self._table.database
        facts = self._look()
        for _ in range(_LOOKS):
            found = staging_tables(self._server, database, self._marker_name)
            if any(each.name == self._marker_name for each in found):
                self._may_be_sealed = True
                marker = self._marker(facts)
                targets = self._targets(facts, marker)
                self._left = [(each, targets[each.behind]) for each in self._stored(marker, found)]
                return
            if self._block is None:
                break
            if self._fill_and_seal(facts, self._block):
                return
        raise OvertakenError(f"the marker {self._marker_name} comes and goes")

    def _fill_and_seal(self, facts: TableFacts, block: Block) -> bool:
        """Seal a stored block of this attempt's own; False: another attempt has sealed one."""
        table, moves = self._table, self._statements.moves
        why = why_not_staged(facts, table.lineage, table.rows, moves=moves)
        if why is not None:
            raise TerminalError(
                f"{facts.target} on {facts.url} cannot have staged blocks: {why}",
                'Use delivery = "block" in its [[table]]; `sluice doctor` says what it needs.',
            )
        if crowding(self._server, facts) > _CROWDING_MAX:
            # A server holds up inserts where merges fall behind, and moves as many parts as it is
            # told to.
            raise TransientError(
                f"{self._table.target} on {self._server.url} has more than twice the parts from "
                "which the server delays inserts (parts_to_delay_insert), or a table behind it has",
                "Merges fall behind: raise max_messages or max_delay, or give the server more CPU.",
            )

        def check() -> float:
            self._require_same_table(facts, is_first=self._bundle.is_first)
            return self._statements.check()

        filling = Filling(self._statements, facts, self._marker_name, self._bundle.deadline_ms)
        filling.fill(block, check)
        self._may_be_sealed = True
        marker = self._marker_of(facts, filling.attempt, block)
        try:
            self._statements.run(marker.statement(self._table.database, self._marker_name, "Null"))
        except ServerError as error:
            if error.code != TABLE_EXISTS:
                raise
            filling.drop()
            return False
        targets = (facts, *tables_behind(facts))
        self._left = [(each, targets[each.behind]) for each in filling.stored()]
        return True

    def _marker_of(self, facts: TableFacts, attempt: str, block: Block) -> Marker:
        block_range = self._bundle.first
        return Marker(
            attempt=attempt,
            uuid=facts.uuid,
            loader=self._loader,
            topic=block_range.source.topic,
            partition=block_range.source.partition,
            begin=block_range.begin,
            end=block_range.end,
            rows=block.rows,
            checksum=block.checksum,
            deadline_ms=self._bundle.deadline_ms,
            behind=tuple((each.database, each.table, each.uuid) for each in tables_behind(facts)),
        )

    # What others have sealed

    def _marker(self, facts: TableFacts) -> Marker:
        """What is sealed.

        :raises TerminalError: other rows than those of this attempt.
        """
        markers = read_markers(self._server, self._table.database, [self._marker_name])
        marker = markers.get(self._marker_name)
        if marker is None:
            raise OvertakenError(f"the marker {self._marker_name} has gone")
        self._require_same_table(facts, is_first=False)
        mine = self._receipt
        if (marker.rows, marker.checksum) != (mine.rows, mine.checksum):
            raise TerminalError(
                f"{self._table.target} on {self._server.url}: the block of {self._bundle.first} "
                f"that is sealed there has {marker.rows} rows and the checksum {marker.checksum}, "
                f"and this attempt made {mine.rows} rows, {mine.checksum}: the load spec was "
                "changed while the range was in doubt",
                "Start the driver with the configuration, the packages and the tables that it had "
                "before; or compare the table with the topic (`sluice audit`), then `sluice "
                "resolve`.",
            )
        return marker

    def _targets(self, facts: TableFacts, marker: Marker) -> list[TableFacts]:
        """The tables that a sealed block is for, in the order of their numbers.

        :raises TerminalError: one is gone, or another one is in its place.
        """
        found = [facts]
        for database, table, _ in marker.behind:
            found.append(describe_table(self._server, database, table))
        uuids = (marker.uuid, *(uuid for _, _, uuid in marker.behind))
        for each, uuid in zip(found, uuids, strict=True):
            if each.uuid != uuid:
                raise TerminalError(
                    f"{each.target} on {self._server.url} is another table than the one that the "
                    f"block of {self._bundle.first} was sealed for: some of it may be in the other",
                    "Compare the table with the topic (`sluice audit`), then `sluice resolve`.",
                )
        return found

    def _stored(self, marker: Marker, found: list[StagingTable]) -> list[StagingTable]:
        """The tables of a sealed block that are not moved yet.

        A server may list a table under neither name while it renames it [measured, 26.9]. So one is
        gone only if several looks miss it, and what ran during one has ended before the next: an
        attempt renames it once.

        :param found: by the first look.
        """
        seen: dict[int, StagingTable] = {}
        for _ in range(_LOOKS):
            seen |= _by_number(found, marker.attempt)
            if len(seen) > len(marker.behind):
                break
            self._statements.wait_for_others()
            found = staging_tables(self._server, self._table.database, self._marker_name)
        return [seen[number] for number in sorted(seen)]

    # Moving

    def _mover(self, stored: StagingTable, target: TableFacts) -> Mover:
        """Of a table of the block."""
        if stored.behind:
            rows = Rows(0, False, lambda _: "what views make has no lineage", lambda _: {})
        else:
            lacking = lacking_lineage(self._table.lineage, self._table.rows)
            why = f"{target.target} has no lineage column {', '.join(lacking)}" if lacking else None
            rows = Rows(
                self._receipt.rows,
                not lacking,
                lambda facts: why or why_rows_go(facts),
                partial(_rows_there, self._server, self._bundle, self._loader),
            )
        return Mover(self._statements, target, rows)


def _by_number(found: list[StagingTable], attempt: str) -> dict[int, StagingTable]:
    """The tables of an attempt by what they are behind.

    :raises OvertakenError: one has two names, as while a server without UUIDs renames it.
    """
    own = [each for each in found if each.attempt == attempt]
    by_number = {each.behind: each for each in own}
    if len(by_number) < len(own):
        names = ", ".join(each.name for each in own)
        raise OvertakenError(f"a table of the block has two names at once, of {names}")
    return by_number


@contextmanager
def _overtaken(table: TableSpec) -> Iterator[None]:
    """A server that lists tables fails if it comes upon one that another attempt has renamed or
    dropped meanwhile [measured, 18.16]."""
    try:
        yield
    except ServerError as error:
        if error.code != UNKNOWN_TABLE or staging_prefix(table.table) not in str(error):
            raise
        raise OvertakenError(f"another attempt was quicker: {error}") from error


def _rows_there(server: Server, bundle: Bundle, loader: str, facts: TableFacts) -> dict[str, int]:
    """How many rows of the block the target has, by ClickHouse partition (R11)."""
    block_range = bundle.first
    settings = seeing_all(server)
    require_unchanged(server, facts, bundle.since_ms)
    require_all_rows(server, facts, settings)
    found = rows_by_partition(
        server,
        facts,
        block_range.source.topic,
        block_range.source.partition,
        block_range.begin,
        block_range.end,
        loader,
        settings,
    )
    require_unchanged(server, facts, bundle.since_ms)
    return found
