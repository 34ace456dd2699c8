"""Inserting one block: into one shard, under its token."""

from __future__ import annotations

import os
import time

from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_insert, query_id_of
from sluice.clickhouse.reactions import ANALYSIS_CODES, TerminalServerError
from sluice.clickhouse.schema import check_header, describe_table
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.receipts import Receipt
from sluice.core.text import TableText
from sluice.core.tokens import block_token
from sluice.decode.messages.decoded import Block
from sluice.spark.asking import require_same_hash
from sluice.spark.assignment import Assignment, Surroundings
from sluice.spark.leases import HeldLease
from sluice.spark.workshop import Workshop


class BlockRefusedError(TransientError):
    """Carries a block that can never be stored out of the table loop."""

    def __init__(self, entry: str, error: TerminalError, *, is_unstored: bool) -> None:
        super().__init__(f"{entry}: {error}")
        self.entry = entry
        self.error = error
        self.is_unstored = is_unstored
        self.inserted: tuple[str, ...] = ()


def insert_block(
    workshop: Workshop,
    around: Surroundings,
    assignment: Assignment,
    table: TableText,
    shard: str,
    decoded: Block,
    lease: HeldLease,
) -> Receipt:
    """Insert the block into a shard.

    :param decoded: the rows that belong there.
    :raises BlockRefusedError: it can never be stored.
    :raises SluiceError: it may be there or not, or a later attempt may work.
    """
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
        return _insert_into(
            workshop,
            around,
            url,
            table,
            shard,
            decoded,
            token,
            record.text,
            lease,
            assignment.is_first,
        )
    except SluiceError:
        workshop.forget(url)
        raise


def _insert_into(
    workshop: Workshop,
    around: Surroundings,
    url: str,
    table: TableText,
    shard: str,
    decoded: Block,
    token: str,
    digest: str,
    lease: HeldLease,
    is_first: bool,
) -> Receipt:
    server = workshop.server(around, url)
    key = (url, digest, table.entry)
    if key not in workshop.checked:
        try:
            facts = describe_table(server, table.database, table.table)
            known = {column.name: column for column in table.columns}
            check_header([known[name] for name in decoded.columns], facts)
        except TerminalError as error:
            raise BlockRefusedError(table.entry, error, is_unstored=True) from error
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

    def check() -> float:
        if not tokens:
            require_same_hash(server, table, is_first=is_first)
        return lease.check(server.clock_ms())

    try:
        reply = server.insert(plan, check, around.insert_timeout_seconds)
    except TerminalServerError as error:
        is_unstored = _stored_nothing(server, table, error)
        raise BlockRefusedError(table.entry, error, is_unstored=is_unstored) from error
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
        messages=None if decoded.messages == decoded.rows else decoded.messages,
    )


def _stored_nothing(server: Server, table: TableText, refusal: TerminalServerError) -> bool:
    """Whether a refused insert has surely stored nothing of its block.

    A view that cannot take it may be told of only when the block is in the table already.
    """
    if refusal.code not in ANALYSIS_CODES:
        return False
    try:
        facts = describe_table(server, table.database, table.table)
    except TerminalError:
        return True  # the table is not there, or not for us: nor was it a moment ago
    except SluiceError:
        return False
    return not any(True for _ in facts.all_dependents())
