"""The probe: what of a range is missing in the tables (R11).

It may be believed only when nobody can insert any more: the lease has run out, no query of
ours runs on any replica, and the replicas have everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.insert import query_id_prefix
from sluice.clickhouse.probe import (
    StoredRun,
    present_offsets,
    replicas_in_sync,
    running_query_ids,
    stored_rows,
)
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.vanishing import (
    CannotTellError,
    require_all_rows,
    require_unchanged,
    seeing_all,
    why_not_seen,
)
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.ledger import Rest, Stored
from sluice.core.load_spec import LoadSpec, TableSpec, lacking_lineage
from sluice.core.ranges import Interval, Range, contains, intervals_of, subtract
from sluice.core.records import Record
from sluice.core.rests import StoredRows, written_rows
from sluice.core.routing import Looked, looked, takes
from sluice.core.tokens import block_token, row_source
from sluice.driver.ports import ProbeFound
from sluice.driver.shards import on_shard
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.reader import RangeReader, Seen

_NO_LIMIT = 1 << 62
#: Brokers take messages of a megabyte, and a record may name several entries.
STORED_BYTES_MAX = 250_000


class StillRunningError(TransientError):
    """An insert of this range runs on a server, or replicas are behind."""

    hint = "The probe is repeated; nothing is loaded before it can be believed."


class ReplicaMissingError(TransientError):
    """A replica of the shard does not answer."""

    hint = (
        "Bring it back, or take it out of [clickhouse] shards if it is gone for good: until then "
        "nobody knows what it has, or may still store, and the range waits."
    )


class DoubledRowsError(TerminalError):
    """A probe found rows twice."""

    hint = "Run `sluice audit`, remove the doubled rows, then `sluice resolve`."


def why_no_probe(facts: TableFacts, lineage: Collection[str], rows: str) -> str | None:
    """Why a probe of this table could not tell what is missing; None if it can. Pure.

    :param lineage: the lineage columns that the entry's blocks carry.
    :param rows: of a message, "one" or "many".
    """
    lacking = lacking_lineage(lineage, rows)
    if lacking:
        return f"{facts.target} has no lineage column {', '.join(lacking)}"
    return why_not_seen(facts)


def why_no_probe_now(access: ClickHouseAccess, spec: LoadSpec, topic: str) -> str | None:
    """The same for all tables of a topic, as they are now."""
    for table in spec.tables_of(topic):
        for shard in table.shards:
            if shard not in access.shards:
                return f"shard {shard} of table entry {table.entry} is not configured any more"
            describe = partial(describe_table, database=table.database, table=table.table)
            facts = on_shard(access, shard, describe)
            why = why_no_probe(facts, table.lineage, table.rows)
            if why is not None:
                return why
    return None


def first_overlap(
    present: Mapping[str, Sequence[Interval]],
) -> tuple[Interval, tuple[str, str]] | None:
    """The first offsets that stand in two shards, and which; None if there are none.

    :param present: by shard, intervals that do not overlap each other.
    """
    placed = sorted((i, shard) for shard, intervals in present.items() for i in intervals)
    for ((_, end), shard), ((begin, other_end), other) in pairwise(placed):
        if begin < end:
            first, second = sorted((shard, other))
            return (begin, min(end, other_end)), (first, second)
    return None


@dataclass(frozen=True, slots=True)
class _Found:
    """What a shard has of a range.

    :param rows: of messages of several rows that may be there in part; see `StoredRows`.
    """

    offsets: list[Interval]
    rows: list[tuple[int, int, int]]


def _bounded(block_range: Range, table: TableSpec, rows: StoredRows) -> StoredRows:
    """:raises CannotTellError: they are more than the ledger takes."""
    if len(written_rows(rows)) > STORED_BYTES_MAX:
        raise CannotTellError(
            f"{block_range} cannot be probed: {table.target} has rows of its messages in "
            f"{len(rows)} pieces, more than the ledger takes"
        )
    return rows


class ClickHouseProber:
    """Runs probes in the background.

    :param pipeline: part of the tokens, from which the query ids derive.
    """

    def __init__(self, access: ClickHouseAccess, pipeline: str, kafka: KafkaAccess) -> None:
        self._access = access
        self._pipeline = pipeline
        self._kafka = kafka
        #: Replicas of each shard that are gone from the cluster since the start.
        self._gone: dict[str, frozenset[str]] = {}
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="probe")

    def submit(
        self,
        block_range: Range,
        record: Record,
        spec: LoadSpec,
        finished: Callable[[ProbeFound], None],
        known: Rest,
        since_ms: int,
        in_parts: Collection[str] = (),
    ) -> None:
        """See `sluice.driver.ports.Prober`."""
        self._pool.submit(self._run, block_range, record, spec, finished, known, since_ms, in_parts)

    def use(self, access: ClickHouseAccess) -> None:
        """Ask these replicas from now on; called from any thread."""
        for shard, urls in self._access.shards.items():
            gone = self._gone.get(shard, frozenset()) | frozenset(urls)
            self._gone[shard] = gone - frozenset(access.shards[shard])
        self._access = access

    def close(self) -> None:
        """End without waiting."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(
        self,
        block_range: Range,
        record: Record,
        spec: LoadSpec,
        finished: Callable[[ProbeFound], None],
        known: Rest,
        since_ms: int,
        in_parts: Collection[str] = (),
    ) -> None:
        try:
            rest: Rest = {}
            stored: Stored = {}
            for table in spec.tables_of(block_range.source.topic):
                if table.entry in known:
                    rest[table.entry] = known[table.entry]
                    continue
                was_in_parts = table.entry in in_parts
                rest[table.entry], rows = self._missing(
                    block_range, record, table, since_ms, was_in_parts=was_in_parts
                )
                if rows:
                    stored[table.entry] = rows
            finished(ProbeFound(block_range.source, rest, stored=stored))
        except SluiceError as error:
            finished(ProbeFound(block_range.source, {}, error))
        except Exception as error:
            failure = TransientError(f"probing {block_range}: {type(error).__name__}: {error}")
            finished(ProbeFound(block_range.source, {}, failure))

    def _missing(
        self,
        block_range: Range,
        record: Record,
        table: TableSpec,
        since_ms: int,
        *,
        was_in_parts: bool = False,
    ) -> tuple[tuple[Interval, ...], StoredRows]:
        """The offsets that are missing, and which of their rows are not.

        The union over the shards: each message has its rows in one of them. All of them are
        quiet before the first is looked at. A server that stores a block in several parts may have
        some rows of a message of several rows, and only who decodes it again knows how many it
        has: there the whole range is to be loaded but for the rows that were found.
        """
        for shard in table.shards:
            self._require_all(block_range, shard)
        for shard in table.shards:
            gone = [u for u in sorted(self._gone.get(shard, ())) if self._still_serves(u, table)]
            urls = [*self._access.shards[shard], *gone]
            # Nobody inserts any more at any of them; so what one of them has, the others can have.
            for url in urls:
                self._require_ended(url, block_range, record, table, shard)
            for url in urls:
                self._require_fetched(url, table)
        found_in = {
            shard: self._present(
                block_range, record, table, shard, since_ms, was_in_parts=was_in_parts
            )
            for shard in table.shards
        }
        present = {shard: found.offsets for shard, found in found_in.items()}
        twice = first_overlap(present)
        if twice is not None:
            (begin, end), shards = twice
            raise DoubledRowsError(
                f"{table.target}: offsets [{begin}, {end}) of {block_range.source} have rows in "
                f"the shards {' and '.join(shards)}"
            )
        stored = tuple(sorted(row for found in found_in.values() for row in found.rows))
        if stored:
            return ((block_range.begin, block_range.end),), _bounded(block_range, table, stored)
        found = [interval for intervals in present.values() for interval in intervals]
        missing = subtract((block_range.begin, block_range.end), found)
        if table.route is None or not missing:
            return missing, ()
        # Most gaps may be messages of other entries; what is recorded names each gap.
        routed = self._routed(block_range, table)
        return intervals_of(offset for offset in routed if contains(missing, offset)), ()

    def _present(
        self,
        block_range: Range,
        record: Record,
        table: TableSpec,
        shard: str,
        since_ms: int,
        *,
        was_in_parts: bool,
    ) -> _Found:
        """What a shard has of a range.

        :raises CannotTellError: rows may have gone, are hidden, or do not say who loaded them.
        """
        url = self._access.shards[shard][0]
        with self._access.connect(url) as server:
            facts = describe_table(server, table.database, table.table)
            why = why_no_probe(facts, table.lineage, table.rows)
            if why is not None:
                raise CannotTellError(f"{block_range} cannot be probed: {why}")
            source = block_range.source
            settings = seeing_all(server)
            require_unchanged(server, facts, since_ms)
            require_all_rows(server, facts, settings)
            loaded_by = row_source(
                pipeline=self._pipeline,
                connector=self._kafka.connector,
                topic_id=record.topic_id,
                entry=table.entry,
                generation=record.generation,
            )
            where = (source.topic, source.partition, block_range.begin, block_range.end, loaded_by)
            present = present_offsets(server, facts, *where, settings)
            rows: list[StoredRun] = []
            if table.rows == "many" and (facts.partition_key or was_in_parts):
                rows = stored_rows(server, facts, *where, settings)
            # Whoever deletes after the first look is seen by the second.
            require_unchanged(server, facts, since_ms)
        for run in present:
            if run.doubled:
                raise DoubledRowsError(
                    f"{table.target}: offsets [{run.begin}, {run.end}) of {source} "
                    f"have {run.rows} rows each"
                )
        return _Found(
            [(run.begin, run.end) for run in present],
            [(row.offset, row.first, row.beyond) for row in rows],
        )

    def _require_all(self, block_range: Range, shard: str) -> None:
        """:raises ReplicaMissingError: names each replica of the shard that does not answer."""
        urls, away = self._access.shards[shard], []
        for url in urls:
            try:
                with self._access.connect(url) as server:
                    server.ping()
            except TransientError as error:
                away.append(str(error))
        if away:
            raise ReplicaMissingError(
                f"{block_range} has to be probed, which needs all {len(urls)} replicas of shard "
                f"{shard}, and {len(away)} of them cannot be reached: {'; '.join(away)}"
            )

    def _still_serves(self, url: str, table: TableSpec) -> bool:
        """Whether a replica that is gone from the cluster is there all the same, with the table:
        an insert may be on its way into it."""
        try:
            with self._access.connect(url) as server:
                server.ping()
                describe_table(server, table.database, table.table)
        except SluiceError:
            return False
        return True

    def _routed(self, block_range: Range, table: TableSpec) -> list[int]:
        """The offsets of a range that an entry's route takes."""
        seen: list[Looked] = []
        found: list[int] = []

        def look(messages: list[Seen]) -> None:
            seen[:] = [looked(key, headers) for key, headers, _ in messages]

        def deliver(_: list[bytes], offsets: Sequence[int]) -> None:
            taken = zip(offsets, seen, strict=True)
            found.extend(o for o, message in taken if takes(table.entry, table.route, message))

        reader = RangeReader(self._kafka)
        try:
            reader.read(block_range, _NO_LIMIT, deliver, look)
        finally:
            reader.close()
        return found

    def _require_ended(
        self, url: str, block_range: Range, record: Record, table: TableSpec, shard: str
    ) -> None:
        """:raises StillRunningError: somebody may still insert this block."""
        with self._access.connect(url) as server:
            for rest in sorted({"", record.rest}):
                token = block_token(
                    pipeline=self._pipeline,
                    generation=record.generation,
                    connector=self._kafka.connector,
                    topic_id=record.topic_id,
                    block_range=block_range,
                    entry=table.entry,
                    target=table.target,
                    shard=shard,
                    rest=rest,
                    bundle="" if rest else record.bundle,
                )
                running = running_query_ids(server, query_id_prefix(token))
                if running:
                    raise StillRunningError(f"{url} still runs {running[0]} for {block_range}")

    def _require_fetched(self, url: str, table: TableSpec) -> None:
        """:raises StillRunningError: this replica may lack what another one has."""
        with self._access.connect(url) as server:
            facts = describe_table(server, table.database, table.table)
            sync = replicas_in_sync(server, facts)
            if not sync.in_sync:
                raise StillRunningError(f"{table.target}: {sync.why}")
