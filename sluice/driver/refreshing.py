"""Reads the tables' structure again and again, in a thread of its own (R8).

Columns may be added while a driver runs. the connector's loop must never wait for ClickHouse, so
it gets each reading as an event. One cheap query for each server tells whether anything has
changed; only then everything is read, and examined as at a start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.comparing import Today, definition, why_not_insertable
from sluice.clickhouse.schema import Structure, TableFacts, read_structures
from sluice.clickhouse.sql import split_name
from sluice.clickhouse.topology import refuse_other_path
from sluice.config import Configuration, TableConfiguration
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.positional import order_of_table, order_option
from sluice.driver.background import Background
from sluice.driver.effects import Wanted
from sluice.driver.growing import Grower
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import Clock, SchemaRead
from sluice.driver.shards import on_replicas
from sluice.driver.specs import access_of, lineage_columns, read_today, uuids_of
from sluice.kafka.errors import PASSING

_logger = logging.getLogger("sluice.schema")

READ_EVERY_SECONDS = 60.0
#: After a reading that failed.
AGAIN_SECONDS = 2.0
#: How long a request waits at most until it is noticed.
POLL_SECONDS = 0.25

_OfShard = dict[tuple[str, str], Structure]
_Structures = dict[str, _OfShard]


class SchemaChangedError(TerminalError):
    """A table is not what its blocks were made for."""

    hint = (
        "Undo the ALTER, or look whether it was meant; then start the driver again: what is in "
        "doubt is probed, and all that follows is loaded as the table is then."
    )


def _refuse_other_structures(first: str, known: _OfShard, url: str, structures: _OfShard) -> None:
    """:raises TransientError: two replicas have a table with different columns or keys.
    :raises OtherPathError: they are replicas of different tables.
    """
    for name in sorted(known.keys() | structures.keys()):
        one, other = known.get(name), structures.get(name)
        if one and other:
            if other.zookeeper_path and one.zookeeper_path:
                where = f"{'.'.join(name)} on {url}, unlike on {first},"
                refuse_other_path(where, other.zookeeper_path, one.zookeeper_path)
            # Without a session with ZooKeeper a server may say none.
            other = replace(other, zookeeper_path=one.zookeeper_path)
        if one != other:
            raise TransientError(
                f"{'.'.join(name)} is not the same on {first} and on {url}",
                "An ALTER may be on its way from one to the other (system.replicas on the server "
                "that is behind); otherwise give the table the same definition on both, and both "
                "the same time zone.",
            )


@dataclass(frozen=True, slots=True)
class Refreshed:
    """A load spec brought up to date with the tables.

    :param spec: the same object if nothing has changed.
    :param barred: why nothing can be loaded, by table entry: a column that blocks carry is gone
        or of another type, the table is partitioned otherwise, or its columns have another order
        and messages say none.
    :param changes: what has changed, in words.
    :param altered: as `barred`, by table entry, of those that may be parked.
    """

    spec: LoadSpec
    barred: Mapping[str, SluiceError]
    changes: tuple[str, ...] = ()
    altered: Mapping[str, SluiceError] = field(default_factory=dict)


def refreshed(
    configuration: Configuration, spec: LoadSpec, today: Today, meant: Collection[str] = ()
) -> Refreshed:
    """Bring a load spec up to date with its tables; pure.

    A table that cannot be described keeps its load spec: whoever looks at its window says so.

    :param spec: the load spec that new ranges are loaded under.
    :param meant: parked entries whose tables were altered on purpose, so that their columns are
        taken up as they are, as a start does: nothing new of them is on its way.
    """
    entries = {table.name: table for table in configuration.tables}
    tables: list[TableSpec] = []
    barred: dict[str, SluiceError] = {}
    altered: dict[str, SluiceError] = {}
    changes: list[str] = []
    for table in spec.tables:
        facts = today.tables.get(table.target)
        if facts is None:
            tables.append(table)
            continue
        try:
            is_meant = table.entry in meant
            table_now = _as_it_is(entries[table.entry], table, facts, today, is_meant=is_meant)
        except SchemaChangedError as error:
            (altered if entries[table.entry].on_error == "park" else barred)[table.entry] = error
            tables.append(table)
            continue
        changes += _changes(table, table_now)
        tables.append(table_now)
    spec_now = replace(spec, tables=tuple(tables))
    return Refreshed(spec if spec_now == spec else spec_now, barred, tuple(changes), altered)


def _as_it_is(
    entry: TableConfiguration, table: TableSpec, facts: TableFacts, today: Today, *, is_meant: bool
) -> TableSpec:
    """The entry with its table as it is now.

    :param is_meant: other columns are no reason against it; another order of them is.
    :raises SchemaChangedError: the table takes no blocks of the entry any more, or would have
        values of its messages in other columns.
    """
    known = replace(today, tokens=True)
    then = replace(table, columns=facts.columns) if is_meant else table
    why = why_not_insertable(then, known)
    if why is not None:
        raise SchemaChangedError(f"table entry {table.entry}: {why}")
    found = replace(
        table,
        columns=facts.columns,
        lineage=lineage_columns(entry, facts),
        sorting_key=facts.sorting_key,
        time_zone=today.time_zone,
        uuids=uuids_of(table.target, table.shards, today.uuids),
    )
    before, now = ([column.name for column in order_of_table(one)] for one in (table, found))
    if before != now:
        # Whether the producers have changed it, too, nobody knows: who asks may mean another entry.
        raise SchemaChangedError(
            f"table entry {table.entry}: the values of a message of {table.format} go into the "
            f"columns of {table.target} in their order, which was {', '.join(before)}, and is "
            f"{', '.join(now)} now",
            f"Write the order of the messages into [table.options], as {order_option(table)}, or "
            "undo the ALTER; then start the driver again. If you do neither, it loads by the new "
            "order.",
        )
    return found


def _changes(before: TableSpec, after: TableSpec) -> Iterator[str]:
    then = {column.name: column for column in before.columns}
    now = {column.name: column for column in after.columns}
    for name in [*then, *(name for name in now if name not in then)]:
        if then.get(name) != now.get(name):
            was = f"was {definition(then[name])}" if name in then else "was added"
            yield (
                f"{after.target}: column {name} {was}, "
                + (f"and is {definition(now[name])}" if name in now else "and is gone")
            )
    if before.sorting_key != after.sorting_key:
        yield f"{after.target} is sorted by {after.sorting_key}"
    if before.time_zone != after.time_zone:
        yield f"the time zone is {after.time_zone}"
    for shard, name, uuid in sorted({*after.uuids} - {*before.uuids}):
        yield f"{name} in shard {shard} is the table with the uuid {uuid}"


class SchemaReader(Background):
    """Reads on a timer, and when asked to.

    :param specs: the tables of all that may be sent are read. It begins with today's.
    :param examine: raises what forbids to load under what the tables are now; the load spec of
        before stays in use then.
    :param put: takes each reading, from this thread.
    :param version: of the configuration.
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: LoadSpecs,
        now_ms: Clock,
        examine: Callable[[], None],
        put: Callable[[SchemaRead], None],
        version: int = 0,
    ) -> None:
        super().__init__("schema", "reading the tables' columns", POLL_SECONDS)
        #: What is read for from the next reading on.
        self._next: tuple[Configuration, LoadSpec, int] | None = None
        self._version, self._lock = version, threading.Lock()
        self._configuration = configuration
        self._access = access_of(configuration).patient()
        self._specs, self._spec = specs, specs.today.spec
        self._now_ms = now_ms
        self._examine = examine
        self._put = put
        self._before: _Structures | None = None
        self._today: Today | None = None
        self._barred: Mapping[str, SluiceError] = {}
        self._altered: Mapping[str, SluiceError] = {}
        self._grower = Grower()
        self._failed = ""
        self._is_wanted = True
        self._is_asked = False
        self._next_ms = 0

    def start(self) -> None:
        """Begin: the first reading is at once, since tables may have been altered meanwhile."""
        self._begin()

    def use(self, configuration: Configuration, access: ClickHouseAccess) -> None:
        """Ask these replicas from now on; called from any thread."""
        with self._lock:
            clickhouse = configuration.clickhouse
            self._configuration = replace(self._configuration, clickhouse=clickhouse)
            self._access = access

    def change(self, configuration: Configuration, spec: LoadSpec, version: int) -> None:
        """What is loaded is this from now on; called from any thread."""
        self._next = configuration, spec, version
        self._is_wanted = True

    def request(self) -> None:
        """Read soon; called from any thread."""
        self._is_wanted = True

    def want(self, wanted: Wanted) -> None:
        """Give fields columns, and read soon; called from any thread."""
        self._grower.want(wanted)
        self._is_wanted = True

    def ask(self) -> None:
        """A person wants it read, and what was refused tried again; called from any thread."""
        self._is_asked = self._is_wanted = True

    def _step(self) -> None:
        now_ms = self._now_ms()
        # A clock that was set back must not put the next reading off.
        is_due = not 0 <= self._next_ms - now_ms <= READ_EVERY_SECONDS * 1000
        if not (self._is_wanted or is_due):
            return
        self._is_wanted = has_read = False
        try:
            has_read = self._read()
        finally:  # also after a bug, on which the thread goes on
            if not has_read:
                self._is_wanted = True
        if has_read:
            self._next_ms = self._now_ms() + int(READ_EVERY_SECONDS * 1000)
        else:
            self._ended.wait(AGAIN_SECONDS)

    def _read(self) -> bool:
        """Read and tell; False if it did not work."""
        started_ms = self._now_ms()
        self._go_over()
        asked, self._is_asked = self._is_asked, False
        if asked:
            self._grower.forget_refusals()
        try:
            grown = self._grower.grow(self._spec, self._access)
            structures, unread = self._structures()
            today = None
            self._spec = grown
            # A person who asks has seen what was altered, and means it, but for an order.
            meant = frozenset(self._altered) if asked else frozenset[str]()
            if structures != self._before or meant:
                today = self._read_today(unread)
                # What is not taken up, or not whole, is looked at again by the next reading.
                is_whole = self._take(today, meant) and not unread
                self._today, self._before = today, structures if is_whole else None
        except SluiceError as error:
            self._is_asked |= asked
            self._say_failure(error)
            return False
        except Exception:
            self._is_asked |= asked
            _logger.exception("reading the tables' columns ends on a bug")
            return False
        if unread:
            self._say_failure(next(iter(unread.values())))
        elif self._failed and self._before is not None:
            _logger.warning("the tables' columns can be read again")
            self._failed = ""
        barred, altered = {**self._barred}, {**self._altered}
        for entry, why in self._grower.refused.items():
            (altered if entry in self._configuration.parkable else barred)[entry] = why
        version = self._version
        told = self._spec, barred, altered, asked, version, frozenset(unread)
        self._put(SchemaRead(started_ms, today, *told))
        return not unread

    def _go_over(self) -> None:
        """To what was applied meanwhile."""
        following, self._next = self._next, None
        if following is None:
            return
        with self._lock:
            configuration, spec, self._version = following
            clickhouse = self._configuration.clickhouse
            self._configuration = replace(configuration, clickhouse=clickhouse)
        self._spec, self._before = spec, None
        self._barred, self._altered = {}, {}

    def _structures(self) -> tuple[_Structures, Mapping[str, SluiceError]]:
        """Of all tables, in all shards that any of them needs; and why some were not read, of which
        they are those of before: no replica answers, or they do not say the same. An ALTER reaches
        them one after the other, and what one that is behind says is past.

        :raises SluiceError: none was.
        """
        known = {table for spec in (self._spec, *self._specs.live) for table in spec.tables}
        names = {(table.database, table.table) for table in known}
        for table in known:
            names |= {split_name(name) for _, name, _ in table.uuids if name != table.target}
        tables = sorted(names)
        needed = {shard for table in known for shard in table.shards}
        found: _Structures = {}
        unread: dict[str, SluiceError] = {}
        for shard in sorted(needed & self._access.shards.keys()):
            try:
                found[shard] = self._structures_in(shard, tables)
            except SluiceError as error:
                unread[shard] = error
        if unread and not found:
            raise next(iter(unread.values()))
        before = self._before or {}
        return found | {shard: before[shard] for shard in unread if shard in before}, unread

    def _structures_in(self, shard: str, tables: list[tuple[str, str]]) -> _OfShard:
        said = on_replicas(self._access, shard, lambda server: read_structures(server, tables))
        (first, found), *others = said.items()
        for url, structures in others:
            _refuse_other_structures(first, found, url, structures)
        return found

    def _read_today(self, unread: Mapping[str, SluiceError]) -> Today:
        """What the tables are now. Of those in a shard that was not read it is what they were: what
        was found of them may not be forgotten.

        :raises SluiceError: they cannot be read.
        """
        specs, before = [self._spec, *self._specs.live], self._today
        if not unread:
            return read_today(self._configuration, specs)
        tables = {table for spec in specs for table in spec.tables}
        left = {table.target for table in tables if unread.keys() & {*table.shards}}
        if before is None or left.issuperset(table.target for table in tables):
            raise next(iter(unread.values()))
        now = read_today(self._configuration, specs, unread)
        return replace(
            now,
            tables={
                **{name: before.tables[name] for name in left & {*before.tables}},
                **now.tables,
            },
            tokens=now.tokens and before.tokens,
            paths={**before.paths, **now.paths},
            uuids={**before.uuids, **now.uuids},
        )

    def _take(self, today: Today, meant: Collection[str]) -> bool:
        """Judge what was read; False if the new load spec was refused.

        :param meant: see `refreshed`.
        :raises SluiceError: it cannot be examined now (`PASSING`).
        """
        found = refreshed(self._configuration, self._spec, today, meant)
        barred, altered = dict(found.barred), dict(found.altered)
        spec = self._spec
        try:
            if found.spec is not spec:
                self._examine()
                spec = found.spec
        except PASSING:
            raise
        except SluiceError as error:
            self._say_failure(error)
            altered |= {entry: why for entry, why in self._altered.items() if entry in meant}
            if not today.tokens:
                # Blocks of the load spec of before would be hashed together with what was added.
                barred |= {table.entry: error for table in spec.tables}
        # Who has asked in vain hears why once more.
        before = (why for entry, why in self._altered.items() if entry not in meant)
        known = set(map(str, (*self._barred.values(), *before)))
        for why in {str(why): why for why in (*barred.values(), *altered.values())}.values():
            if str(why) not in known:
                _logger.error("%s. Try: %s", why, why.hint)
        if spec is not self._spec:
            _logger.warning(
                "the tables have changed; new ranges are loaded under load spec %s: %s",
                spec.digest(),
                "; ".join(found.changes),
            )
        self._spec, self._barred, self._altered = spec, barred, altered
        return spec is found.spec

    def _say_failure(self, error: SluiceError) -> None:
        """Each failure once: it is tried again every few seconds."""
        if str(error) != self._failed:
            self._failed = str(error)
            _logger.warning(
                "the tables' columns cannot be taken up, those of before stay in use: %s. Try: %s",
                error,
                error.hint,
            )
