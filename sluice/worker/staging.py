"""One block on its staged way into its target: filled, sealed, claimed, moved (R21).

Attempts may meet at any step. What is there decides: the marker which rows are sealed, the names
of the tables that hold them who moves them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from sluice.clickhouse.comparing import zone_matters
from sluice.clickhouse.copying import read_definitions, tables_behind
from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import (
    TABLE_EXISTS,
    UNKNOWN_TABLE,
    Mover,
    OvertakenError,
    Rows,
    untold,
)
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts, check_header, describe_table
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import (
    COLUMN_EXISTS,
    Marker,
    StagingTable,
    attempt_of,
    done_statement,
    marker_name,
    staging_prefix,
    staging_tables,
    why_not_staged,
)
from sluice.clickhouse.statements import Statements
from sluice.clickhouse.topology import refuse_other_table
from sluice.clickhouse.vanishing import why_rows_go
from sluice.clickhouse.window import crowding
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.load_spec import TableSpec, lacking_lineage
from sluice.core.receipts import Receipt
from sluice.core.tokens import row_source
from sluice.decode.messages.decoded import Block
from sluice.machine.clock import now_ms
from sluice.worker.asking import require_same_table
from sluice.worker.errors import BlockRefusedError, SealedError
from sluice.worker.filling import Filling
from sluice.worker.inserting import ShardBlock
from sluice.worker.sealed import Sealed, rows_there

#: A target is left alone above so many times the parts from which its server delays inserts.
_CROWDING_MAX = 2.0
#: Somebody else may do a step between a look and this attempt's own, but not for ever.
_LOOKS = 5


def stage_block(block: ShardBlock) -> Receipt:
    """Bring the block into the target in its shard, whatever was done of it before.

    :raises BlockRefusedError: it can never be stored, or only a person can tell what is stored.
    :raises SluiceError: it may be there or not, or a later attempt may work.
    """
    staged = StagedBlock(block)
    staged.seal()
    return staged.move()


def seal_blocks(blocks: Iterable[ShardBlock]) -> Iterator[SealedBlock]:
    """Seal the block of each shard, one after the other; its rows go when they are stored. Raises
    as `stage_block` does."""
    for block in blocks:
        staged = StagedBlock(block)
        entry, offsets = block.table.entry, block.decoded.offsets
        del block
        staged.seal()
        yield SealedBlock(entry, offsets, staged.move)


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
    """One attempt at one block: `seal`, then `move`. Both raise as `stage_block` does."""

    def __init__(self, block: ShardBlock) -> None:
        self._cache, self._environment = block.cache, block.environment
        self._bundle, self._table, self._shard = block.bundle, block.table, block.shard
        self._lease, self._seconds_max = block.lease, block.seconds
        self._url = block.environment.clickhouse.shards[block.shard][0]
        self._block: Block | None = block.decoded
        self._columns = block.decoded.columns
        self._receipt = block.receipt(self._url, block.token, insert_ms=0, acknowledged_at_ms=0)
        #: Rows of the block may come into the target, now or by a later attempt.
        self._may_be_sealed = False
        self._seconds = 0.0
        self._left: list[tuple[StagingTable, TableFacts]] = []
        self._marker: Marker | None = None

    def seal(self) -> None:
        """Have the block sealed, by this attempt if by none before. Its rows go from memory."""
        with self._as_block():
            self._seal()
        self._block = None

    def move(self) -> Receipt:
        """Move what is sealed into the target, and into the tables behind it."""
        with self._as_block():
            for _ in range(_LOOKS):
                if self._move_all():
                    break
                self._seal()  # there is a marker: another look
            else:
                raise OvertakenError(f"others were quicker {_LOOKS} times with {self._marker_name}")
        took_ms = int(self._seconds * 1000)
        return replace(self._receipt, insert_ms=took_ms, acknowledged_at_ms=now_ms())

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
        server = cache.server(environment, self._url)
        # Its tables are new, and a view may make the same rows as another one.
        profile = cache.profile(environment, self._url, 1, deduplicates=False)
        return Statements(
            server=server,
            database=self._table.database,
            target=self._table.target,
            token=bundle.staged_token(environment.pipeline, connector, self._table, self._shard),
            attempt=attempt_of(bundle.deadline_ms, os.urandom(4)),
            moves=profile.tokens,
            settings=profile.settings,
            check=lambda: self._lease.check(server.clock_ms()),
            seconds=self._seconds_max,
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
                sealed = Sealed(self._statements, self._marker_name, self._bundle.first)
                marker = sealed.marker()
                self._require_mine(facts, marker)
                targets = sealed.targets(facts, marker)
                self._marker, stored = sealed.stored(marker, found)
                self._left = [(each, targets[each.behind]) for each in stored]
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
        marker = self._marker_of(facts, filling, block)
        try:
            self._statements.run(marker.statement(self._table.database, self._marker_name, "Null"))
        except ServerError as error:
            if error.code != TABLE_EXISTS:
                raise
            filling.drop()
            return False
        targets = (facts, *tables_behind(facts))
        self._marker = marker
        self._left = [(each, targets[each.behind]) for each in filling.stored()]
        return True

    def _marker_of(self, facts: TableFacts, filling: Filling, block: Block) -> Marker:
        block_range = self._bundle.first
        return Marker(
            attempt=filling.attempt,
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
            rows_behind=filling.rows_behind,
        )

    # What others have sealed

    def _require_mine(self, facts: TableFacts, marker: Marker) -> None:
        """:raises TerminalError: what is sealed are other rows than those of this attempt."""
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

    # Moving

    def _move_all(self) -> bool:
        """Have all of what is sealed in its targets; False: somebody else was quicker."""
        assert self._marker is not None
        names: list[str] = []
        for stored, facts in self._left:
            name = stored.name
            if not self._marker.is_done:
                moved = self._mover(stored, facts, self._marker).move(stored.name, stored.claim)
                if moved is None:
                    return False
                name = moved
            names.append(name)
        if not self._marker.is_done:
            self._run(done_statement(self._table.database, self._marker_name), COLUMN_EXISTS)
        for name in names:
            drop = f"DROP TABLE {qualified(self._table.database, name)}"
            self._run(drop, (UNKNOWN_TABLE,))
        return True

    def _run(self, sql: str, harmless: Collection[int]) -> None:
        """A statement that another attempt may have been quicker with."""
        try:
            self._statements.run(sql)
        except ServerError as error:
            if error.code not in harmless:
                raise

    def _mover(self, stored: StagingTable, target: TableFacts, marker: Marker) -> Mover:
        """Of a table of the block."""
        if stored.behind:
            counted = marker.rows_behind[stored.behind - 1]
            rows = untold("what views make has no lineage", counted)
        else:
            lacking = lacking_lineage(self._table.lineage, self._table.rows)
            why = f"{target.target} has no lineage column {', '.join(lacking)}" if lacking else None
            rows = Rows(
                self._receipt.rows,
                not lacking,
                lambda facts: why or why_rows_go(facts),
                partial(rows_there, self._server, self._bundle, self._loader),
            )
        return Mover(self._statements, target, rows)


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
