"""Inserting one block: into one shard, under its token, at any of its replicas; and
the blocks of one table entry, sent to several shards at the same time.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.comparing import zone_matters
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import InsertPlan, plan_insert, query_id_of
from sluice.clickhouse.probe import PRESENT_TIMEOUT_SECONDS
from sluice.clickhouse.reactions import (
    ANALYSIS_CODES,
    DATA_CODES,
    ServerError,
    TerminalServerError,
    data_refusal,
    is_too_many_partitions,
    may_lack_part,
)
from sluice.clickhouse.schema import TableFacts, check_header, describe_table
from sluice.clickhouse.sql import OF_RANGE, range_parameters
from sluice.clickhouse.statements import wait_for_earlier
from sluice.clickhouse.topology import refuse_other_table
from sluice.clickhouse.vanishing import require_all_rows, seeing_all
from sluice.clickhouse.window import (
    read_quorums_given_up,
    read_server_run,
    tables_with_windows,
    why_window_forgot,
)
from sluice.core.budget import (
    TargetShard,
)
from sluice.core.bundles import replica_number
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.load_spec import TableSpec
from sluice.core.ranges import Range
from sluice.core.receipts import NeedsReservation, Receipt
from sluice.core.replicas import turn
from sluice.core.server_runs import is_same_run
from sluice.decode.messages.decoded import Block
from sluice.machine.clock import now_ms
from sluice.worker.asking import require_same_table
from sluice.worker.assignment import TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.errors import (
    BlockRefusedError,
    ForgottenError,
    NeedsReservationError,
    OutdatedTextError,
    QuorumGivenUpError,
    ReplicasFrozenError,
)
from sluice.worker.failover import FailoverAttempt, offer_block
from sluice.worker.insert_lock import InsertLock
from sluice.worker.leases import HeldLease
from sluice.worker.worker_cache import ServerProfile, WorkerCache

#: So many equal answers, this far apart, are a function of the block.
SAME_ANSWERS = 3
_AGAIN_SECONDS = 0.5

#: A connection is given at least so long; the lease may still end it earlier.
_SECONDS_MIN = 1.0
#: Above it a server refuses a block of a table, or of a view's target.
_PARTITIONS_MAX = "max_partitions_per_insert_block"


@dataclass(frozen=True, slots=True)
class ShardBlock:
    """A block on its way into a table of one shard.

    :param decoded: the rows that belong there.
    :param lease: that it is sent within.
    """

    cache: WorkerCache
    environment: TaskEnvironment
    bundle: Bundle
    table: TableSpec
    shard: str
    decoded: Block
    lease: HeldLease

    @property
    def token(self) -> str:
        """See `Bundle.token`."""
        environment = self.environment
        connector = environment.kafka.connector
        return self.bundle.token(environment.pipeline, connector, self.table, self.shard)

    @property
    def seconds(self) -> float:
        """What it may take, all of its replicas together."""
        return max(self.environment.insert_timeout_seconds, self.bundle.insert_seconds)

    def receipt(self, url: str, token: str, *, insert_ms: int, acknowledged_at_ms: int) -> Receipt:
        """What a server acknowledges."""
        table, decoded = self.table, self.decoded
        return Receipt(
            entry=table.entry,
            target=table.target,
            shard=self.shard,
            token=token,
            rows=decoded.rows,
            bytes=len(decoded.native),
            checksum=decoded.checksum,
            replica=url,
            entries=decoded.clickhouse_partitions,
            insert_ms=insert_ms,
            acknowledged_at_ms=acknowledged_at_ms,
            messages=None if decoded.messages == decoded.rows else decoded.messages,
        )


def insert_block(block: ShardBlock) -> Receipt:
    """Insert the block into its shard: at its own replica, else at the next one (see `failover`).

    :raises BlockRefusedError: it can never be stored.
    :raises SluiceError: it may be there or not, or a later attempt may work.
    """
    cache, environment, bundle = block.cache, block.environment, block.bundle
    token, access = block.token, environment.clickhouse
    # A table that is not replicated has a window of its own on each server.
    path = dict(block.table.zookeeper_paths).get(block.shard)
    number = replica_number(bundle.first.source, bundle.name)
    urls = access.taking(block.shard, is_replicated=path is not None)
    order = turn(urls, number, access.preferred)
    # All who load this table queue under its path, whatever they call table and shard.
    mine = InsertLock(None if path is None else cache.table_locks(environment), path or "")

    def send(url: str, attempt: FailoverAttempt) -> Receipt:
        attempts[:] = [attempt]
        try:
            return _insert_into(block, url, token, attempt, mine)
        except SluiceError as error:
            if may_lack_part(error):
                cache.lacks_part()
            mine.failed(error)
            cache.forget(url)
            raise

    attempts: list[FailoverAttempt] = []
    receipt = None
    try:
        receipt = offer_block(order, cache.breaker, block.seconds, send, access.behind)
    finally:
        mine.end(is_stored=receipt is not None)
        if any(attempt.may_land for attempt in attempts):
            cache.lands_late()
    return replace(receipt, queueing=mine.queueing)


def require_takers(access: ClickHouseAccess, tables: Iterable[TableSpec]) -> None:
    """Before anything is sent anywhere. A driver sends no range that nobody may take.

    :raises ReplicasFrozenError: a shard of these tables has no replica that may be sent blocks.
    """
    for table in tables if access.frozen else ():
        replicated = dict(table.zookeeper_paths)
        for shard in table.shards:
            if not access.taking(shard, is_replicated=shard in replicated):
                raise ReplicasFrozenError(f"{table.target}: all replicas of {shard} are frozen")


def may_go_parallel(environment: TaskEnvironment, shards: Sequence[str]) -> bool:
    """Whether blocks may be inserted into these shards at the same time.

    A connection serves one at a time, so no two may share a server; and who takes insert locks
    waits for one lock at a time, so that nobody waits in a circle.
    """
    access = environment.clickhouse
    servers = [url for shard in shards for url in access.shards[shard]]
    return not access.zookeeper and len(set(servers)) == len(servers)


def _insert_into(
    block: ShardBlock, url: str, token: str, attempt: FailoverAttempt, mine: InsertLock
) -> Receipt:
    cache, environment, bundle = block.cache, block.environment, block.bundle
    table, shard, lease = block.table, block.shard, block.lease
    server = cache.server(environment, url)
    is_first = bundle.is_first and attempt.is_clean
    if not is_first:
        wait_for_earlier(server, token, block.seconds, lease.check)
    looked = _look(block, url, attempt)
    is_known = not table.is_replacing  # whether a window knows the block again (R22)
    quorum = quorum_of(environment, table, shard)
    profile = cache.profile(environment, url, quorum, deduplicates=is_known)
    attempt.admit(url, str(profile))

    def plan() -> InsertPlan:
        return plan_insert(
            table.database,
            table.table,
            block.decoded.columns,
            block.decoded.native,
            token if profile.tokens and is_known else None,
            query_id_of(token, os.urandom(4).hex()),
            _reserved(profile.settings, bundle.reservation) if is_known else profile.settings,
        )

    if profile.one_by_one:
        mine.take(min(block.seconds, lease.check()))
    seconds = max(_SECONDS_MIN, attempt.seconds_left())

    is_hashed = is_known and not profile.tokens
    is_bound = cache.checked[url, bundle.spec, table.entry, shard] or is_hashed

    def check() -> float:
        told = {"tokens": not is_hashed, "zone_matters": is_bound, "is_first": is_first}
        require_same_table(server, table, shard, **told)
        return mine.before_sending(min(seconds, lease.check(server.clock_ms())))

    repeated = None if is_first or not is_known else looked
    given_up = read_quorums_given_up(server, repeated) if repeated and quorum > 1 else 0
    try:
        reply = insert_surely(server, plan, check, seconds)
    except RefusedValuesError as refused:
        raise _final(refused, server, table, bundle, attempt) from None
    except TerminalServerError as error:
        raise _refused_block(error, server, table, profile, bundle.reservation, attempt) from error
    if repeated is not None:
        _require_same_run(server, bundle, shard, f"{table.target} on {url} has the block")
        if quorum > 1:
            _require_quorum(server, repeated, given_up)
    took_ms = int(reply.seconds * 1000)
    return block.receipt(url, token, insert_ms=took_ms, acknowledged_at_ms=now_ms())


def _refused_block(
    error: TerminalServerError,
    server: Server,
    table: TableSpec,
    profile: ServerProfile,
    reservation: int,
    attempt: FailoverAttempt,
) -> SluiceError:
    """What a server's refusal of a block means."""
    is_held = _PARTITIONS_MAX in profile.settings and not table.is_replacing
    if is_held and is_too_many_partitions(error):
        # Of a view's table: the block itself was counted before.
        return NeedsReservationError(NeedsReservation(table.entry, 2 * reservation, views=True))
    is_unstored = attempt.is_clean and _stored_nothing(server, table, error)
    return BlockRefusedError(table.entry, error, is_unstored=is_unstored)


class RefusedValuesError(TransientError):
    """Carries an answer that is a function of the block's values, and how often it came."""

    def __init__(self, error: ServerError, answers: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.answers = answers


def insert_surely(
    server: Server, plan: Callable[[], InsertPlan], check: Callable[[], float], seconds: float
) -> InsertReply:
    """Insert a block. An answer that says something of its values is asked for again: the same one
    each time is the only one that the block will get.

    :raises RefusedValuesError: it came each time, so nothing of an attempt runs any more.
    """
    codes: set[int] = set()
    for number in range(1, SAME_ANSWERS + 1):
        try:
            return server.insert(plan(), check, seconds)
        except ServerError as error:
            codes.add(error.code)
            if error.code not in DATA_CODES or len(codes) > 1:
                raise
            if number == SAME_ANSWERS:
                raise RefusedValuesError(error, number) from None
        time.sleep(_AGAIN_SECONDS)
    raise AssertionError("every round returns or raises")


def data_refused(refused: RefusedValuesError, more: str) -> TerminalServerError:
    """What such an answer says, for a person; see `reactions.data_refusal`."""
    return data_refusal(refused.error, refused.answers, more)


def _final(
    refused: RefusedValuesError,
    server: Server,
    table: TableSpec,
    bundle: Bundle,
    attempt: FailoverAttempt,
) -> BlockRefusedError:
    """What an answer that will not change means for the block."""
    rows = _rows_of(server, table, bundle)
    error = data_refused(refused, rows.words)
    return BlockRefusedError(table.entry, error, is_unstored=attempt.is_clean and rows.is_unstored)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a table has of a block that was refused, in words.

    :param is_unstored: nothing, and nor has a table behind it.
    """

    words: str
    is_unstored: bool


def _rows_of(server: Server, table: TableSpec, bundle: Bundle) -> _Rows:
    """Look into the table. One view behind it has stored nothing if it refused the block; of
    several, the others may have."""
    facts = describe_table(server, table.database, table.table)
    views = [dependent.view for dependent in facts.all_dependents()]
    behind = f"behind it: {', '.join(views)}" if views else "no view is behind it"
    if not set(table.lineage) >= {"_topic", "_partition", "_offset"}:
        return _Rows(f"without lineage columns nobody knows what is stored; {behind}", False)
    ranges = [member.block_range for member in bundle.members]
    try:
        count = _count_of(server, facts, ranges)
    except SluiceError as error:
        return _Rows(f"nobody knows what {table.target} has of {bundle}: {error}; {behind}", False)
    words = f"{table.target} has {count or 'no'} rows of {bundle}; {behind}"
    return _Rows(words, count == 0 and len(views) <= 1)


def _count_of(server: Server, facts: TableFacts, ranges: Iterable[Range]) -> int:
    """The rows that a table has of ranges, by its lineage columns.

    :raises SluiceError: they cannot be counted, or none is shown and some may be hidden.
    """
    settings = seeing_all(server)
    count = 0
    for block_range in ranges:
        (found,) = server.query(
            f"SELECT count() AS n {OF_RANGE}",
            range_parameters(facts.database, facts.table, block_range),
            settings,
            PRESENT_TIMEOUT_SECONDS,
        )
        count += int(found["n"])
    if not count:
        require_all_rows(server, facts, settings)
    return count


def quorum_of(environment: TaskEnvironment, table: TableSpec, shard: str) -> int:
    """How many replicas have to have a block: never fewer than an attempt before this one may
    have waited for. See `TableSpec.quorums`."""
    return max(dict(table.quorums).get(shard, 1), environment.clickhouse.quorum_of(shard))


def _look(block: ShardBlock, url: str, attempt: FailoverAttempt) -> TableFacts | None:
    """Before the first insert of a load spec at a replica, and before each that may not be the
    first of its block.

    :returns: what the table is; None where nobody has to look.
    :raises BlockRefusedError: this replica's table is not what the block is for.
    :raises ForgottenError: it may not remember the block any more.
    """
    cache, environment, bundle = block.cache, block.environment, block.bundle
    table, shard = block.table, block.shard
    key = (url, bundle.spec, table.entry, shard)
    is_first = bundle.is_first and attempt.is_clean
    if key in cache.checked and (is_first or table.is_replacing):
        return None
    server = cache.server(environment, url)
    server.ping()  # a server that is frozen is found out in seconds
    try:
        facts = describe_table(server, table.database, table.table)
        refuse_other_table(facts, table, shard, environment.clickhouse.shards[shard])
        known = {column.name: column for column in table.columns}
        check_header([known[name] for name in block.decoded.columns], facts)
    except TerminalError as error:
        raise BlockRefusedError(table.entry, error, is_unstored=attempt.is_clean) from error
    if not (is_first or table.is_replacing):
        doubt = f": {attempt.doubt}" if attempt.doubt else ""
        _require_remembered(server, facts, bundle, TargetShard(table.entry, shard), doubt)
    cache.checked[key] = zone_matters(table, facts, tokens=True)
    return facts


def _require_remembered(
    server: Server, facts: TableFacts, bundle: Bundle, own: TargetShard, doubt: str
) -> None:
    """As the driver does before it sends a range again (R10), since then tasks queue.

    :param doubt: why the block may be stored, for the message.
    :raises ForgottenError: it may not be known any more, or be known and not be there.
    """
    if facts.window_blocks == 0:
        return  # it never deduplicates, and runs for a benchmark only
    at_ms = now_ms()
    for target, there in tables_with_windows(facts):
        insert_counter = bundle.background.insert_counters.get(replace(own, target=target).key, 0)
        why = why_window_forgot(server, there, insert_counter, bundle.background.since_ms, at_ms)
        if why:
            raise ForgottenError(
                f"{there.target} on {server.url} may not remember it: {why}{doubt}"
            )
    _require_same_run(server, bundle, own.shard, f"{facts.target} on {server.url}")


def _require_same_run(server: Server, bundle: Bundle, shard: str, where: str) -> None:
    """Where tables are not replicated, what they know of a block that was sent before is worth
    something only in the process that it was sent to: a part may be lost with its end.

    :raises ForgottenError: it is another process.
    """
    before = bundle.background.servers.get(shard)
    if before is not None and not is_same_run(before, read_server_run(server)):
        raise ForgottenError(f"{where}, and that server was started again meanwhile")


def _require_quorum(server: Server, facts: TableFacts, given_up: int) -> None:
    """Of a block that it knows and does not have, a server says OK as soon as nobody waits for the
    quorum any more, whether that was reached or given up (H26). What was given up no window knows:
    if it was before the insert, the block was a new one to the server, whose own check is good.

    :param given_up: how many quorums were before the insert.
    :raises QuorumGivenUpError: one was meanwhile.
    """
    if read_quorums_given_up(server, facts) != given_up:
        raise QuorumGivenUpError(
            f"{facts.target} on {server.url} acknowledged a block that was sent before, and the "
            "replicas gave a part up meanwhile, which too few of them had: it may be this block's"
        )


def _reserved(settings: Mapping[str, str], reservation: int) -> Mapping[str, str]:
    """The server holds blocks to the reservation in the tables of views, too, where nobody else
    counts (R10). It decides about no row: a block that was refused is sent again."""
    return (
        {**settings, _PARTITIONS_MAX: str(reservation)} if _PARTITIONS_MAX in settings else settings
    )


def _stored_nothing(server: Server, table: TableSpec, refusal: TerminalServerError) -> bool:
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


#: Shards of one range that are sent to at once.
SENDERS_MAX = 16

_logger = logging.getLogger("sluice.spark")

Send = Callable[[str, Block], Receipt]
#: Shards with their blocks, the last one first: taken out one by one, so that a block's memory
#: goes when it is stored.
Parts = list[tuple[str, Block]]


def send_sequentially(parts: Parts, send: Send) -> tuple[list[Receipt], list[SluiceError]]:
    """Send one block after the other; the first error is the last attempt."""
    receipts: list[Receipt] = []
    while parts:
        try:
            receipts.append(send(*parts.pop()))
        except SluiceError as error:
            return receipts, [error]
    return receipts, []


def send_parallel(parts: Parts, send: Send) -> tuple[list[Receipt], list[SluiceError]]:
    """Send each block to its shard, and wait for all of them: what is still on its way must not
    outlive the task's report.

    :param send: called for each shard once, from this thread and others. No two shards share a
        server.
    :returns: receipts and errors, each in the order of the shards.
    """
    order = [shard for shard, _ in reversed(parts)]
    receipts: dict[str, Receipt] = {}
    errors: dict[str, Exception] = {}

    def send_some() -> None:
        while True:
            try:
                shard, block = parts.pop()
            except IndexError:
                return
            try:
                receipts[shard] = send(shard, block)
            except Exception as error:
                errors[shard] = error

    threads = [
        threading.Thread(target=send_some, name=f"insert-{number}")
        for number in range(1, min(SENDERS_MAX, len(order)))
    ]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        _logger.warning("blocks of %d shards go out more slowly: %s", len(order), error)
    finally:
        try:
            send_some()
        finally:
            for thread in started:
                thread.join()
    failed: list[SluiceError] = []
    for why in (errors[shard] for shard in order if shard in errors):
        if not isinstance(why, SluiceError):
            raise why
        failed.append(why)
    return [receipts[shard] for shard in order if shard in receipts], failed


def decisive(errors: list[SluiceError], receipts: list[Receipt]) -> SluiceError:
    """What several shards' errors mean for the range. Pure.

    What may be stored comes first: the range may not be loaded under another load spec then, nor
    parked. A refusal that surely stored nothing comes last: it shows again when everything else
    is stored.

    :param errors: of one entry; one at least.
    :param receipts: of the same entry.
    :returns: one of them; its message names the others.
    """
    error = min(errors, key=_rank)
    if isinstance(error, BlockRefusedError):
        error.is_unstored = error.is_unstored and not receipts
    others = "; ".join(str(each) for each in errors if each is not error)
    if others:
        error.message = f"{error.message}; in other shards: {others}"
        error.args = (error.message,)
    return error


def _rank(error: SluiceError) -> int:
    if isinstance(error, InDoubtError):
        return 0
    if isinstance(error, BlockRefusedError):
        return 4 if error.is_unstored else 1
    if isinstance(error, TerminalError):
        return 1  # of a server after another one, at which the block may be
    return 2 if isinstance(error, OutdatedTextError) else 3
