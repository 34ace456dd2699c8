"""One block on its staged way into its target: filled, sealed, claimed, moved (R21).

Attempts may meet at any step. What is there decides: the marker which rows are sealed, the name
of the stored block who moves them.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from sluice.clickhouse.comparing import zone_matters
from sluice.clickhouse.insert import InsertPlan, plan_insert, plan_statement, query_id_of
from sluice.clickhouse.moving import (
    RUN_UNKNOWN,
    TABLE_EXISTS,
    UNKNOWN_TABLE,
    Claim,
    has_moved,
    left_to_move,
    move_statement,
    read_parts,
    run_name,
    stored_rows_of,
)
from sluice.clickhouse.parts import crowding
from sluice.clickhouse.probe import rows_by_partition
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.replicas import refuse_other_table
from sluice.clickhouse.schema import TableFacts, check_header, describe_table
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import (
    Marker,
    StagingTable,
    add_columns_of,
    attempt_of,
    block_name,
    create_like,
    marker_name,
    read_markers,
    staging_tables,
    why_not_staged,
)
from sluice.clickhouse.vanishing import (
    CannotTellError,
    require_all_rows,
    require_unchanged,
    seeing_all,
    why_not_seen,
)
from sluice.clickhouse.window import read_insert_counter, read_server_run
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.load_spec import TableSpec, lacking_lineage
from sluice.core.receipts import Receipt
from sluice.core.tokens import row_source
from sluice.decode.messages.decoded import Block
from sluice.worker.asking import require_same_table
from sluice.worker.assignment import TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.errors import BlockRefusedError, OvertakenError, SealedError
from sluice.worker.failover import wait_for_earlier
from sluice.worker.inserting import (
    RefusedValuesError,
    data_refused,
    insert_surely,
    seconds_for,
)
from sluice.worker.leases import HeldLease
from sluice.worker.worker_cache import WorkerCache

#: A target is left alone above so many times the parts from which its server delays inserts.
_CROWDING_MAX = 2.0
#: Somebody else may do a step between a look and this attempt's own, but not for ever.
_LOOKS = 5
_OTHER_STRUCTURE = 122


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
    url = environment.clickhouse.shards[shard][0]
    way = _Way(cache, environment, bundle, table, shard, decoded, lease, url)
    began = time.monotonic()
    try:
        way.go()
    except TerminalError as error:
        cache.forget(url)
        raise BlockRefusedError(table.entry, error, is_unstored=not way.may_be_sealed) from error
    except SluiceError as error:
        cache.forget(url)
        if way.may_be_sealed and not isinstance(error, InDoubtError | BlockRefusedError):
            # Whoever plans the range anew would load sealed rows again.
            raise SealedError(str(error), error.hint) from error
        raise
    return Receipt(
        entry=table.entry,
        target=table.target,
        shard=shard,
        token=bundle.token(environment.pipeline, environment.kafka.connector, table, shard),
        rows=decoded.rows,
        bytes=len(decoded.native),
        checksum=decoded.checksum,
        replica=url,
        entries=decoded.clickhouse_partitions,
        insert_ms=int((time.monotonic() - began) * 1000),
        acknowledged_at_ms=time.time_ns() // 1_000_000,
        messages=None if decoded.messages == decoded.rows else decoded.messages,
    )


class _Attempt:
    """One attempt at one block, until it is sealed.

    :param url: of the one server where the block is sealed.
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
        url: str,
    ) -> None:
        self.token = bundle.staged_token(
            environment.pipeline, environment.kafka.connector, table, shard
        )
        #: Rows of the block may come into the target, now or by a later attempt.
        self.may_be_sealed = False
        self._cache = cache
        self._environment = environment
        self._bundle = bundle
        self._table = table
        self._shard = shard
        self._decoded = decoded
        self._lease = lease
        self._server = cache.server(environment, url)
        self._profile = cache.profile(environment, url, 1, deduplicates=True)
        self._seconds = seconds_for(environment, bundle)
        self._name = marker_name(table.table, self.token)
        self._attempt = attempt_of(bundle.deadline_ms, os.urandom(4))
        record = bundle.members[0].record
        self._loader = row_source(
            pipeline=environment.pipeline,
            connector=environment.kafka.connector,
            topic_id=record.topic_id,
            entry=table.entry,
            generation=record.generation,
        )
        self._facts = self._look_at_target()

    # Before anything

    def _look_at_target(self) -> TableFacts:
        """Before the first block of a load spec at a server: the table is what it is made for."""
        key = (self._server.url, self._bundle.spec, self._table.entry, self._shard)
        known = self._cache.staged.get(key)
        if known is not None:
            return known
        table, urls = self._table, self._environment.clickhouse.shards[self._shard]
        self._server.ping()
        try:
            facts = describe_table(self._server, table.database, table.table)
            refuse_other_table(facts, table, self._shard, urls)
            columns = {column.name: column for column in table.columns}
            check_header([columns[name] for name in self._decoded.columns], facts)
            why = why_not_staged(facts, table.lineage, table.rows, moves=self._profile.tokens)
            if why is not None:
                raise TerminalError(
                    f"{facts.target} on {facts.url} cannot have staged blocks: {why}",
                    'Use delivery = "block" in its [[table]]; `sluice doctor` says what it needs.',
                )
        except TerminalError as error:
            raise BlockRefusedError(table.entry, error, is_unstored=True) from error
        self._cache.staged[key] = facts
        return facts

    # Statements

    def _plan(self, sql: str) -> InsertPlan:
        query_id = query_id_of(self.token, os.urandom(4).hex())
        return plan_statement(self._table.target, sql, query_id, self._profile.settings)

    def _check(self) -> float:
        return self._lease.check(self._server.clock_ms())

    def _run(self, sql: str) -> None:
        """Send a statement within the lease."""
        self._server.insert(self._plan(sql), self._check, self._seconds)

    # Filling and sealing

    def _fill_and_seal(self) -> StagingTable | None:
        """A stored block of this attempt's own, sealed; None: another attempt has sealed one."""
        if crowding(self._server, self._facts) > _CROWDING_MAX:
            # A server holds up inserts where merges fall behind, and moves as many parts as it is
            # told to.
            raise TransientError(
                f"{self._table.target} on {self._server.url} has more than twice the parts from "
                "which the server delays inserts (parts_to_delay_insert)",
                "Merges fall behind: raise max_messages or max_delay, or give the server more CPU.",
            )
        name = f"{self._name}_{self._attempt}"
        self._run(create_like(self._facts, name))
        self._insert(name)
        self._verify(name)
        self.may_be_sealed = True
        block_range = self._bundle.first
        marker = Marker(
            attempt=self._attempt,
            uuid=self._facts.uuid,
            loader=self._loader,
            topic=block_range.source.topic,
            partition=block_range.source.partition,
            begin=block_range.begin,
            end=block_range.end,
            rows=self._decoded.rows,
            checksum=self._decoded.checksum,
            deadline_ms=self._bundle.deadline_ms,
        )
        try:
            self._run(marker.statement(self._table.database, self._name, "Null"))
        except ServerError as error:
            if error.code != TABLE_EXISTS:
                raise
            self._run(f"DROP TABLE {qualified(self._table.database, name)}")
            return None
        return StagingTable(name, self._table.table, block_name(self.token), self._attempt)

    def _insert(self, name: str) -> None:
        def plan() -> InsertPlan:
            return plan_insert(
                self._table.database,
                name,
                self._decoded.columns,
                self._decoded.native,
                None,
                query_id_of(self.token, os.urandom(4).hex()),
                self._profile.settings,
            )

        def check() -> float:
            self._require_same_table(is_first=self._bundle.is_first)
            return self._check()

        try:
            insert_surely(self._server, plan, check, self._seconds)
        except RefusedValuesError as refused:
            raise data_refused(refused, "nothing of it is in the target") from None

    def _require_same_table(self, *, is_first: bool) -> None:
        matters = not self._profile.tokens or zone_matters(self._table, self._facts, tokens=True)
        told = {"tokens": True, "zone_matters": matters, "is_first": is_first}
        require_same_table(self._server, self._table, self._shard, **told)

    def _verify(self, name: str) -> None:
        """What arrived is what was sent.

        :raises InDoubtError: it is not; nothing of it is sealed.
        """
        rows = sum(stored_rows_of(read_parts(self._server, self._table.database, name)).values())
        if rows != self._decoded.rows:
            raise InDoubtError(
                f"{self._table.database}.{name} on {self._server.url} has {rows} rows of a block "
                f"of {self._decoded.rows}",
                "The block is stored anew; no action is needed.",
            )

    def _marker(self) -> Marker:
        """What is sealed.

        :raises TerminalError: other rows than those of this attempt.
        """
        markers = read_markers(self._server, self._table.database, [self._name])
        marker = markers.get(self._name)
        if marker is None:
            raise OvertakenError(f"the marker {self._name} has gone")
        self._require_same_table(is_first=False)
        if marker.uuid != self._facts.uuid:
            raise TerminalError(
                f"{self._table.target} on {self._server.url} is another table than the one that "
                f"the block of {self._bundle.first} was sealed for: some of it may be in the other",
                "Compare the table with the topic (`sluice audit`), then `sluice resolve`.",
            )
        if (marker.rows, marker.checksum) != (self._decoded.rows, self._decoded.checksum):
            raise TerminalError(
                f"{self._table.target} on {self._server.url}: the block of {self._bundle.first} "
                f"that is sealed there has {marker.rows} rows and the checksum {marker.checksum}, "
                f"and this attempt made {self._decoded.rows} rows, {self._decoded.checksum}: the "
                "load spec was changed while the range was in doubt",
                "Start the driver with the configuration, the packages and the tables that it had "
                "before; or compare the table with the topic (`sluice audit`), then `sluice "
                "resolve`.",
            )
        return marker


class _Way(_Attempt):
    """The whole way of a block: what one attempt does of it."""

    def go(self) -> None:
        """Do what is left to do."""
        for _ in range(_LOOKS):
            found = staging_tables(self._server, self._table.database, self._name)
            if not any(each.name == self._name for each in found):
                sealed = self._fill_and_seal()
                if sealed is None:
                    continue
                stored: StagingTable | None = sealed
            else:
                self.may_be_sealed = True
                stored = self._stored(self._marker(), found)
            if stored is None:
                return
            name = self._claim(stored)
            if name is not None:
                self._move(stored, name)
                return
        raise OvertakenError(f"other attempts at {self._name} were quicker {_LOOKS} times")

    # Claiming and moving

    def _stored(self, marker: Marker, found: list[StagingTable]) -> StagingTable | None:
        """The stored block that a marker names; None: all of it was moved.

        A server may list a table under neither name while it renames it [measured, 26.9]. So it is
        gone only if several looks miss it, and what ran during one has ended before the next: an
        attempt renames it once.

        :param found: by the first look.
        """
        for _ in range(_LOOKS):
            for each in found:
                if each.attempt == marker.attempt:
                    return each
            wait_for_earlier(self._server, self.token, self._seconds, self._lease.check)
            found = staging_tables(self._server, self._table.database, self._name)
        return None

    def _claim(self, stored: StagingTable) -> str | None:
        """The stored block's new name; None: somebody was quicker. Then nobody else can begin to
        move any of it, and nobody does any more."""
        if stored.claim is not None:
            claim = replace(stored.claim, by=self._attempt)
        else:
            block = read_insert_counter(self._server, self._facts)
            claim = Claim(self._attempt, block, self._run_now())
        name = f"{self._name}_{stored.attempt}{claim.suffix}"
        database = self._table.database
        before, after = qualified(database, stored.name), qualified(database, name)
        try:
            self._run(f"RENAME TABLE {before} TO {after}")
        except ServerError as error:
            if error.code != UNKNOWN_TABLE:
                raise
            return None
        if stored.claim is not None:
            wait_for_earlier(self._server, self.token, self._seconds, self._lease.check)
        return name

    def _run_now(self) -> str:
        """Which process serves the server, where it moves partitions at all."""
        return run_name(read_server_run(self._server)) if self._profile.tokens else RUN_UNKNOWN

    def _move(self, before: StagingTable, name: str) -> None:
        """Move what is not moved yet, and drop the stored block.

        :param before: as it was before it was claimed.
        """
        table, source = self._table, (self._table.database, name)
        # Nobody moves any more: what one process of the server did until now is done or not.
        is_clear = before.claim is None or before.claim.is_clear(self._run_now())
        left = self._all_of(name) if is_clear else self._open(before, name)
        try:
            try:
                self._move_all(source, left)
            except ServerError as error:
                if error.code != _OTHER_STRUCTURE or not self._add_columns(name):
                    raise
                self._move_all(source, left)
            self._run(f"DROP TABLE {qualified(*source)}")
        except ServerError as error:
            if error.code == UNKNOWN_TABLE:
                raise OvertakenError(f"another attempt moves {name} by now: {error}") from error
            if error.code == _OTHER_STRUCTURE:
                raise TerminalError(
                    f"{table.target} was altered after a block for it was sealed: {error}",
                    f"Alter {table.database}.{name} the same way; the block is moved then.",
                ) from error
            raise

    def _move_all(self, source: tuple[str, str], left: list[str]) -> None:
        """Move these partitions; those that are moved go from the list."""
        target, moves = (self._table.database, self._table.table), self._profile.tokens
        while left:
            self._run(move_statement(source, target, left[0], moves=moves))
            del left[0]

    def _add_columns(self, name: str) -> bool:
        """Give a stored block the columns that the target got since; whether there were any."""
        database = self._table.database
        facts = describe_table(self._server, database, self._table.table)
        rows = self._server.query(
            "SELECT name FROM system.columns "
            "WHERE database = {database:String} AND table = {table:String}",
            {"database": database, "table": name},
        )
        statement = add_columns_of(facts, name, {str(row["name"]) for row in rows})
        if statement is not None:
            self._run(statement)
        return statement is not None

    def _all_of(self, name: str) -> list[str]:
        return list(stored_rows_of(read_parts(self._server, self._table.database, name)))

    def _open(self, before: StagingTable, name: str) -> list[str]:
        """What is left to move, where a move may have been done of which nobody knows.

        :raises TerminalError: nobody can tell.
        """
        assert before.claim is not None
        table, database = self._table, self._table.database
        facts = describe_table(self._server, database, table.table)
        lacking = lacking_lineage(table.lineage, table.rows)
        parts = read_parts(self._server, database, name)
        there = read_parts(self._server, database, table.table)
        answers = {
            each: has_moved(before.claim, each, parts, there, is_unique=not lacking)
            for each in stored_rows_of(parts)
        }
        if None not in answers.values():
            return [each for each, moved in answers.items() if not moved]
        why = why_not_seen(facts)
        if lacking:
            why = f"{facts.target} has no lineage column {', '.join(lacking)}"
        if why is None:
            left = left_to_move(stored_rows_of(parts), self._rows_there(facts), self._decoded.rows)
            if left is not None:
                return left
            why = "the numbers of rows in both do not fit together"
        unknown = ", ".join(each for each, moved in answers.items() if moved is None)
        raise CannotTellError(
            f"the server {self._server.url} was started again while ClickHouse partitions of "
            f"{database}.{name} were moved into {table.target}: nobody can tell whether {unknown} "
            f"were moved, since the target has other parts by now, and its rows do not tell: {why}",
            f"Compare the two tables. Drop from {database}.{name} the partitions whose rows are in "
            "the target; move the others (ALTER TABLE … MOVE PARTITION ID … TO TABLE …), and drop "
            "the table: then the block counts as loaded.",
        )

    def _rows_there(self, facts: TableFacts) -> dict[str, int]:
        """How many rows of the block the target has, by ClickHouse partition (R11)."""
        block_range = self._bundle.first
        settings = seeing_all(self._server)
        require_unchanged(self._server, facts, self._bundle.since_ms)
        require_all_rows(self._server, facts, settings)
        found = rows_by_partition(
            self._server,
            facts,
            block_range.source.topic,
            block_range.source.partition,
            block_range.begin,
            block_range.end,
            self._loader,
            settings,
        )
        require_unchanged(self._server, facts, self._bundle.since_ms)
        return found
