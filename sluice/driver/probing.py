"""The probe: what of a range is missing in the tables (R11).

It may be believed only when nobody can insert any more: the lease has run out, no query of
ours runs on any replica, and the replicas have everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import QUERY_ID_PREFIX, query_id_prefix
from sluice.clickhouse.probe import (
    StoredRun,
    present_offsets,
    running_query_ids,
    stored_rows,
    why_not_in_sync,
)
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.topology import refuse_other_path
from sluice.clickhouse.vanishing import (
    CannotTellError,
    lacking_in_key,
    require_all_rows,
    require_unchanged,
    seeing_all,
    why_not_seen,
)
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.lease import CLOCK_SKEW_MS_MAX
from sluice.core.ledger import Rest, Stored
from sluice.core.load_spec import LoadSpec, TableSpec, lacking_lineage
from sluice.core.ranges import Interval, Range, contains, intervals_of, subtract
from sluice.core.records import Record
from sluice.core.rests import StoredRows, written_rows
from sluice.core.tokens import block_token, row_source
from sluice.decode.routing import Routes
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.shards import on_shard
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.reader import RangeReader

_NO_LIMIT = 1 << 62
#: By a server's own clock, after a lease: for what it has wholly received, and a second since the
#: clock is told in seconds.
_STORED_WITHIN_MS = CLOCK_SKEW_MS_MAX + 1_000
#: Brokers take messages of a megabyte, and a record may name several entries.
STORED_BYTES_MAX = 250_000


class StillRunningError(TransientError):
    """An insert of this range runs on a server, or may still come."""

    hint = "The probe is repeated; nothing is loaded before it can be believed."


class ReplicaBehindError(StillRunningError):
    """A replica may lack what another one has."""

    hint = (
        "The probe is repeated; nothing is loaded before it can be believed. A replica that is "
        "named as not active is waited for, too, where it is not configured any more: if it is "
        "gone for good, SYSTEM DROP REPLICA 'NAME' FROM TABLE … at another one takes it out."
    )


class ReplicaMissingError(TransientError):
    """A replica of the shard does not answer."""

    hint = (
        "Bring it back, or take it out of [clickhouse] shards if it is gone for good, and out of "
        "its table with SYSTEM DROP REPLICA 'NAME' FROM TABLE … at another one: until then nobody "
        "knows what it has, or may still store, and the range waits."
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


def why_no_probe_now(
    access: ClickHouseAccess, spec: LoadSpec, topic: str, *, is_recorded: bool = False
) -> str | None:
    """The same for all tables of a topic, as they are now.

    :param is_recorded: it is the load spec of the range's record, under which a table that keeps
        one of equal rows is not looked at, but sent everything again (R22).
    """
    for table in spec.tables_of(topic):
        is_unasked = table.is_staged or (is_recorded and table.is_replacing)
        for shard in () if is_unasked else table.shards:
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


class Probe:
    """Ranges of one topic that are looked for together, and what is found of each."""

    def __init__(self, sought: Sequence[Sought]) -> None:
        self.sought = {each.block_range: each for each in sought}
        self._rest: dict[Range, Rest] = {each: {} for each in self.sought}
        self._stored: dict[Range, Stored] = {each: {} for each in self.sought}
        self._failed: dict[Range, SluiceError] = {}

    def __str__(self) -> str:
        first, *others = self.sought
        return f"{first} and {len(others)} more" if others else str(first)

    def look_in(self, tables: Collection[TableSpec]) -> None:
        """Look into these tables, whatever is known. A table that takes everything again does not
        tell the rows of a partition that was rewound from those of before: of what is only parked
        all is missing."""
        for each, sought in self.sought.items() if tables else ():
            entries = {t.entry for t in tables if t.deduplicate or not sought.record.generation}
            known = {entry: rest for entry, rest in sought.known.items() if entry not in entries}
            self.sought[each] = replace(sought, known=known)

    def take_known(self, table: TableSpec) -> None:
        """Take what is known to be missing of those that are not looked for in this table."""
        for each, sought in self.sought.items():
            if table.entry in sought.known:
                stored = sought.stored.get(table.entry, ())
                self.take(each, table, sought.known[table.entry], stored)

    def sought_in(self, table: TableSpec) -> list[Range]:
        """The ranges that are looked for in a table, without those that failed."""
        return [
            each
            for each, sought in self.sought.items()
            if each not in self._failed and table.entry not in sought.known
        ]

    def take(
        self, each: Range, table: TableSpec, missing: tuple[Interval, ...], stored: StoredRows
    ) -> None:
        """Take what was found of a range in a table."""
        self._rest[each][table.entry] = missing
        if stored:
            self._stored[each][table.entry] = stored

    def fail(self, each: Range, error: SluiceError) -> None:
        """Of this range it cannot be told; the first error counts."""
        self._failed.setdefault(each, error)

    def fail_all(self, error: SluiceError) -> None:
        """Of none of them it can be told."""
        for each in self.sought:
            self.fail(each, error)

    @contextmanager
    def failing(self, each: Range) -> Iterator[None]:
        """What goes wrong for good in here concerns this range only."""
        try:
            yield
        except TerminalError as error:
            self.fail(each, error)

    def answers(self) -> Iterator[ProbeFound]:
        """One for each range."""
        for each in self.sought:
            error = self._failed.get(each)
            if error is not None:
                yield ProbeFound(each.source, {}, error)
            else:
                yield ProbeFound(each.source, self._rest[each], stored=self._stored[each])


def _bounded(block_range: Range, table: TableSpec, rows: StoredRows) -> StoredRows:
    """:raises CannotTellError: they are more than the ledger takes."""
    if len(written_rows(rows)) > STORED_BYTES_MAX:
        raise CannotTellError(
            f"{block_range} cannot be probed: {table.target} has rows of its messages in "
            f"{len(rows)} pieces, more than the ledger takes"
        )
    return rows


def require_all_answer(access: ClickHouseAccess, shard: str, what: str) -> None:
    """:raises ReplicaMissingError: names each replica of the shard that does not answer.

    :param what: needs them, in words.
    """
    urls, away = access.shards[shard], []
    for url in urls:
        try:
            with access.connect(url) as server:
                server.ping()
        except TransientError as error:
            away.append(str(error))
    if away:
        raise ReplicaMissingError(
            f"{what} needs all {len(urls)} replicas of shard {shard}, and "
            f"{len(away)} of them cannot be reached: {'; '.join(away)}"
        )


def require_one_table(access: ClickHouseAccess, urls: Iterable[str], table: TableSpec) -> None:
    """Who reads rows reads them of one replica, and what the others have counts as there, too.

    :raises OtherPathError: they are replicas of different tables, as where somebody has made one of
        them anew (H15).
    """
    known: tuple[str, str] | None = None
    for url in urls:
        path = _path_at(access, url, table)
        if known is None:
            known = (url, path) if path else None
        elif path:
            where = f"{table.target} on {url}, unlike on {known[0]},"
            refuse_other_path(where, path, known[1])


def _path_at(access: ClickHouseAccess, url: str, table: TableSpec) -> str:
    with access.connect(url) as server:
        return describe_table(server, table.database, table.table).zookeeper_path


def require_fetched(access: ClickHouseAccess, url: str, table: TableSpec) -> None:
    """:raises ReplicaBehindError: this replica may lack what another one has."""
    with access.connect(url) as server:
        facts = describe_table(server, table.database, table.table)
        if why := why_not_in_sync(server, facts):
            raise ReplicaBehindError(f"{table.target}: {why}")


class ClickHouseProber:
    """Runs probes in the background.

    :param pipeline: part of the tokens, from which the query ids derive.
    """

    def __init__(self, access: ClickHouseAccess, pipeline: str, kafka: KafkaAccess) -> None:
        self._access = access
        self._pipeline = pipeline
        self._kafka = kafka
        #: All that each shard has had since the start.
        self._were: dict[str, frozenset[str]] = {}
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="probe")

    def submit(
        self,
        sought: Sequence[Sought],
        spec: LoadSpec,
        since_ms: int,
        finished: Callable[[ProbeEnded], None],
    ) -> None:
        """See `sluice.driver.ports.Prober`."""
        self._pool.submit(self._run, sought, spec, since_ms, finished)

    def use(self, access: ClickHouseAccess) -> None:
        """Ask these replicas from now on; called from any thread."""
        for shard, urls in self._access.shards.items():
            self._were[shard] = self._were.get(shard, frozenset()) | frozenset(urls)
        self._access = access

    def close(self) -> None:
        """End without waiting."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(
        self,
        sought: Sequence[Sought],
        spec: LoadSpec,
        since_ms: int,
        finished: Callable[[ProbeEnded], None],
    ) -> None:
        probe, tables = Probe(sought), spec.tables_of(sought[0].block_range.source.topic)
        try:
            may_be_parked = sought[0].may_be_parked
            looked_at = [table for table in tables if self._is_looked_at(table, may_be_parked)]
            probe.look_in(looked_at)
            for table in tables:
                self._look(probe, table, since_ms)
        except SluiceError as error:
            probe.fail_all(error)
        except Exception as error:
            ranges = ", ".join(map(str, probe.sought))
            probe.fail_all(TransientError(f"probing {ranges}: {type(error).__name__}: {error}"))
        finished(ProbeEnded(tuple(probe.answers())))

    def _is_looked_at(self, table: TableSpec, may_be_parked: Collection[str]) -> bool:
        """Whether a table that takes everything again (R22) is looked at all the same: of an entry
        that deduplicates, a repeat may take for duplicates what an earlier attempt has inserted, as
        the claims of that one may be over (R20); and one that may be parked by then. Where rows
        cannot be told, all of it is missing.

        :raises SluiceError: a server does not answer.
        """
        if not table.is_replacing or table.parked:
            return False
        if table.deduplicate is None and table.entry not in may_be_parked:
            return False
        describe = partial(describe_table, database=table.database, table=table.table)
        shards = [shard for shard in table.shards if shard in self._access.shards]
        facts = (on_shard(self._access, shard, describe) for shard in shards)
        return all(why_no_probe(each, table.lineage, table.rows) is None for each in facts)

    def _look(self, probe: Probe, table: TableSpec, since_ms: int) -> None:
        """What is missing in one table.

        The union over the shards: each message has its rows in one of them. All of them are
        quiet before the first is looked at.

        :raises SluiceError: of no range that is sought there it can be told.
        """
        probe.take_known(table)
        if not probe.sought_in(table):
            return
        if table.is_staged:
            # Whoever loads the range again finds what there is of the whole block (R21).
            for each in probe.sought_in(table):
                probe.take(each, table, ((each.begin, each.end),), ())
            return
        for shard in table.shards:
            require_all_answer(self._access, shard, f"the probe of {probe}")
        read_of = dict[str, str]()
        for shard in table.shards:
            # In this order: `use` tells who was there before it tells who is.
            there = self._access.shards[shard]
            # What comes to the cluster later was asked nothing, and may have nothing yet.
            read_of[shard] = there[0]
            gone = sorted(self._were.get(shard, frozenset()).difference(there))
            urls = [*there, *(url for url in gone if self._still_serves(url, table))]
            # Nobody inserts any more at any of them; so what one of them has, the others can have.
            for url in urls:
                self._require_ended(url, probe, table, shard)
            # Those that are gone may be tables of their own: no block and no probe goes there.
            require_one_table(self._access, there, table)
            for url in urls:
                require_fetched(self._access, url, table)
        found: dict[Range, dict[str, _Found]] = {}
        for shard, url in read_of.items():
            self._present(probe, table, (shard, url), since_ms, found)
        for each in probe.sought_in(table):
            with probe.failing(each):
                probe.take(each, table, *self._missing(each, table, found[each]))

    def _missing(
        self, block_range: Range, table: TableSpec, found_in: Mapping[str, _Found]
    ) -> tuple[tuple[Interval, ...], StoredRows]:
        """The offsets of a range that are missing, and which of their rows are not.

        A server that stores a block in several parts may have some rows of a message of several
        rows, and only who decodes it again knows how many it has: there the whole range is to be
        loaded but for the rows that were found.

        :param found_in: by shard.
        """
        present = {shard: found.offsets for shard, found in found_in.items()}
        twice = first_overlap(present)
        if twice is not None:
            (begin, end), shards = twice
            raise DoubledRowsError(
                f"{table.target}: offsets [{begin}, {end}) of {block_range.source} have rows in "
                f"the shards {' and '.join(shards)}",
                "Run `sluice doctor`: if it says that these shards are one table, delete nothing, "
                "and do what it says. Else `sluice audit`, remove the doubled rows, then `sluice "
                "resolve`.",
            )
        stored = tuple(sorted(row for found in found_in.values() for row in found.rows))
        if stored:
            return ((block_range.begin, block_range.end),), _bounded(block_range, table, stored)
        found = [interval for intervals in present.values() for interval in intervals]
        missing = subtract((block_range.begin, block_range.end), found)
        if table.route is None or not missing or not found:
            return missing, ()
        # Most gaps may be messages of other entries; what is recorded names each gap.
        routed = self._routed(block_range, table)
        return intervals_of(offset for offset in routed if contains(missing, offset)), ()

    def _present(
        self,
        probe: Probe,
        table: TableSpec,
        where: tuple[str, str],
        since_ms: int,
        found: dict[Range, dict[str, _Found]],
    ) -> None:
        """What a shard has of each range.

        :param where: the shard, and its replica of which rows are read.
        :param found: is added to.
        :raises CannotTellError: rows may have gone, or are hidden.
        """
        shard, url = where
        with self._access.connect(url) as server:
            facts = describe_table(server, table.database, table.table)
            why = why_no_probe(facts, table.lineage, table.rows)
            if why is not None:
                raise CannotTellError(f"{probe} cannot be probed: {why}")
            settings = seeing_all(server)
            require_unchanged(server, facts, since_ms)
            require_all_rows(server, facts, settings)
            for each in probe.sought_in(table):
                with probe.failing(each):
                    rows = self._rows_of(server, facts, probe.sought[each], table, settings)
                    found.setdefault(each, {})[shard] = rows
            # Whoever deletes after the first look is seen by the second.
            require_unchanged(server, facts, since_ms)

    def _rows_of(
        self,
        server: Server,
        facts: TableFacts,
        sought: Sought,
        table: TableSpec,
        settings: Mapping[str, str],
    ) -> _Found:
        """What a shard has of one range.

        :raises CannotTellError: rows do not say who loaded them.
        """
        block_range, record = sought.block_range, sought.record
        if table.is_replacing and record.generation:
            raise CannotTellError(
                f"{block_range} was loaded before it was rewound, and {table.target} does not tell "
                "its rows of then from those of now"
            )
        loaded_by = row_source(
            pipeline=self._pipeline,
            connector=self._kafka.connector,
            topic_id=record.topic_id,
            entry=table.entry,
            generation=table.row_generation(record.generation),
        )
        present = present_offsets(server, facts, block_range, loaded_by, settings)
        rows: list[StoredRun] = []
        if table.rows == "many" and (facts.partition_key or table.entry in sought.in_parts):
            rows = stored_rows(server, facts, block_range, loaded_by, settings)
        for run in present:
            if run.doubled and lacking_in_key(facts):
                raise DoubledRowsError(
                    f"{table.target}: offsets [{run.begin}, {run.end}) of {block_range.source} "
                    f"have {run.rows} rows each"
                )
        return _Found(
            [(run.begin, run.end) for run in present],
            [(row.offset, row.first, row.beyond) for row in rows],
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
        routes = Routes({table.entry: table.route})
        found: list[int] = []

        def deliver(values: list[bytes], offsets: Sequence[int]) -> None:
            messages = zip(offsets, routes.read(values), strict=True)
            found.extend(offset for offset, each in messages if routes.takes(table.entry, each))

        reader = RangeReader(self._kafka)
        try:
            reader.read(block_range, _NO_LIMIT, deliver, routes.look)
        finally:
            reader.close()
        return found

    def _require_ended(self, url: str, probe: Probe, table: TableSpec, shard: str) -> None:
        """Ranges of which somebody may still insert a block fail.

        Whoever inserts asks the server's clock whether its lease goes on; so it is asked here, too:
        a driver whose clock was set ahead would take a lease for over that is not.
        """
        with self._access.connect(url) as server:
            server.ping()
            clock_ms = server.clock_ms()
            running = running_query_ids(server, QUERY_ID_PREFIX)
        for each in probe.sought_in(table):
            until_ms = probe.sought[each].record.deadline_ms + _STORED_WITHIN_MS
            if clock_ms is not None and clock_ms <= until_ms:
                left = (until_ms - clock_ms) / 1000
                why = f"by the clock of {url} an insert of {each} may come for {left:.0f} s more"
                probe.fail(each, StillRunningError(why))
            for token in self._tokens_of(probe.sought[each].record, each, table, shard):
                prefix = query_id_prefix(token)
                of_range = [query_id for query_id in running if query_id.startswith(prefix)]
                if of_range:
                    probe.fail(
                        each, StillRunningError(f"{url} still runs {of_range[0]} for {each}")
                    )

    def _tokens_of(
        self, record: Record, block_range: Range, table: TableSpec, shard: str
    ) -> list[str]:
        """The tokens under which a range's block may be on its way."""
        return [
            block_token(
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
            for rest in sorted({"", record.rest})
        ]
