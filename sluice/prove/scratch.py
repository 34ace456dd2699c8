"""A scratch database on the servers of one shard, and blocks that get there as `run` sends them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.capabilities import Capabilities, insert_settings, read_capabilities
from sluice.clickhouse.http import INSERT_TIMEOUT_SECONDS, Server
from sluice.clickhouse.insert import plan_insert, query_id_of
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts, describe_table, merge_tree_defaults
from sluice.clickhouse.sql import identifier, qualified
from sluice.clickhouse.system import said_of_table
from sluice.core.errors import ConfigurationError, InDoubtError, SluiceError, TerminalError
from sluice.decode.engine.native import column_head, repeated_texts
from sluice.producer.wire import varint

DDL_TIMEOUT_SECONDS = 60.0
#: Rows of a block unless an experiment needs more.
ROWS = 100
TOPIC = "sluice-prove"
LOADED_BY = "sluice-prove/c/t/e/0"
_COLUMNS = (
    "id UInt64, p UInt16, v UInt8, ts DateTime, "
    "_topic String, _partition UInt32, _offset UInt64, _row UInt32, _source String"
)
_NAMES = ("id", "p", "v", "ts", "_topic", "_partition", "_offset", "_row", "_source")
#: Windows are cleaned each second, where the server lets a table say so: half a minute is usual.
_CLEANING = {
    "cleanup_delay_period": 1,
    "cleanup_delay_period_random_add": 0,
    "max_cleanup_delay_period": 1,
}
_SYNC_SINCE = (21, 1)
_POLL_SECONDS = 0.2


class StoppedError(Exception):
    """Somebody asked to stop."""


def block(
    begin: int = 0,
    rows: int = ROWS,
    *,
    ids_from: int | None = None,
    clickhouse_partitions: Sequence[int] = (0,),
    value: int = 1,
    value_type: str = "UInt8",
    moments: Sequence[int] = (0,),
) -> bytes:
    """One Native block for a scratch table.

    :param begin: the first offset.
    :param ids_from: the first id; None: that of the offset.
    :param clickhouse_partitions: of the rows, in turn.
    :param value_type: what the block calls the type of `v`, which is UInt8 in the table.
    :param moments: in `ts`, seconds since 1970, in turn.
    """
    offsets = np.arange(begin, begin + rows, dtype="<u8")
    first = begin if ids_from is None else ids_from

    def column(name: str, of_type: str, values: NDArray[np.generic]) -> bytes:
        return column_head(name, of_type) + values.tobytes()

    def in_turn(values: Sequence[int], kind: str) -> NDArray[np.generic]:
        return np.resize(np.array(values, kind), rows)

    width = {"UInt8": "<u1", "UInt16": "<u2"}[value_type]
    return b"".join(
        (
            varint(len(_NAMES)) + varint(rows),
            column("id", "UInt64", offsets - begin + first),
            column("p", "UInt16", in_turn(clickhouse_partitions, "<u2")),
            column("v", value_type, in_turn([value], width)),
            column("ts", "DateTime", in_turn(moments, "<u4")),
            repeated_texts("_topic", "String", [TOPIC], None, rows),
            column("_partition", "UInt32", in_turn([0], "<u4")),
            column("_offset", "UInt64", offsets),
            column("_row", "UInt32", in_turn([0], "<u4")),
            repeated_texts("_source", "String", [LOADED_BY], None, rows),
        )
    )


@dataclass(frozen=True, slots=True)
class Place:
    """One server of the shard."""

    url: str
    server: Server
    capabilities: Capabilities


class Scratch:
    """The scratch database while it is there.

    :param places: the servers; more than one are replicas of one shard.
    :param replicated: whether its tables are Replicated.
    :param window: entries that the windows of its tables keep.
    :param stop: set when somebody asks to stop.
    """

    def __init__(
        self,
        access: ClickHouseAccess,
        places: Sequence[Place],
        database: str,
        window: int,
        stop: threading.Event,
        *,
        replicated: bool,
    ) -> None:
        self.access = access
        self.places = places
        self.database = database
        self.window = window
        self.replicated = replicated
        self._stop = stop
        self._made = 0
        wanted = [*_CLEANING] if replicated else []
        self._cleaning = merge_tree_defaults(places[0].server, replicated, wanted)

    @property
    def first(self) -> Place:
        return self.places[0]

    @property
    def tokens(self) -> bool:
        """Whether blocks carry tokens; else servers know them by their rows."""
        return self.first.capabilities.tokens

    @property
    def again(self) -> int:
        """Where a block is repeated: at another replica, if there is one."""
        return len(self.places) - 1

    def table(
        self,
        engine: str = "MergeTree",
        *,
        window: int | None = None,
        seconds: int | None = None,
        partition_by: str = "p",
    ) -> str:
        """Make a table on every server; gives its name.

        :param engine: with its parameters, e.g. SummingMergeTree(v).
        :param window: entries that it remembers; None: as many as the user wants.
        :param seconds: for how long, of a Replicated table.
        """
        self._made += 1
        name = f"{'replicated' if self.replicated else 'plain'}_{self._made}"
        blocks = self.window if window is None else window
        settings: dict[str, int] = {}
        if self.replicated:
            settings["replicated_deduplication_window"] = blocks
            if seconds is not None:
                settings["replicated_deduplication_window_seconds"] = seconds
            settings |= {key: _CLEANING[key] for key in self._cleaning}
        else:
            settings["non_replicated_deduplication_window"] = blocks
        said = ", ".join(f"{key} = {value}" for key, value in settings.items())
        for number, place in enumerate(self.places, 1):
            place.server.execute(
                f"CREATE TABLE {self.named(name)} ({_COLUMNS}) ENGINE = "
                f"{self._engine(engine, name, number)} PARTITION BY {partition_by} ORDER BY id "
                f"SETTINGS {said}",
                timeout_seconds=DDL_TIMEOUT_SECONDS,
            )
        return name

    def unmerged(self, *, has_uuids: bool = False) -> str:
        """Make a table on the first server that is not replicated, and merges nothing.

        :param has_uuids: its parts have some.
        """
        self._made += 1
        name = f"unmerged_{self._made}"
        uuids = ", assign_part_uuids = 1" if has_uuids else ""
        self.first.server.execute(
            f"CREATE TABLE {self.named(name)} ({_COLUMNS}) ENGINE = MergeTree PARTITION BY p "
            f"ORDER BY id SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1{uuids}",
            timeout_seconds=DDL_TIMEOUT_SECONDS,
        )
        return name

    def _engine(self, engine: str, name: str, number: int) -> str:
        if not self.replicated:
            return engine
        base, _, parameters = engine.partition("(")
        path = f"'/clickhouse/{self.database}/{name}', 'replica{number}'"
        return f"Replicated{base}({path}{', ' + parameters if parameters else ')'}"

    def view(self, source: str, target: str, condition: str = "1") -> str:
        """A materialized view of rows of which this is true, on every server; gives its name."""
        self._made += 1
        name = f"view_{self._made}"
        self.everywhere(
            f"CREATE MATERIALIZED VIEW {self.named(name)} TO {self.named(target)} AS "
            f"SELECT * FROM {self.named(source)} WHERE {condition}"
        )
        return name

    def named(self, table: str) -> str:
        return qualified(self.database, table)

    def everywhere(self, sql: str) -> None:
        """A statement on every server."""
        for place in self.places:
            place.server.execute(sql, timeout_seconds=DDL_TIMEOUT_SECONDS)

    def insert(
        self,
        table: str,
        native: bytes,
        token: str,
        *,
        at: int = 0,
        quorum: int = 1,
        quorum_seconds: float = 10.0,
        through: Server | None = None,
    ) -> None:
        """Insert a block as a worker does: its statement, settings and token, by its client.

        :param at: the server.
        :param through: another way to that server.
        :raises SluiceError: as it reaches the worker.
        """
        self.check_stop()
        place = self.places[at]
        plan = plan_insert(
            self.database,
            table,
            _NAMES,
            native,
            self.token(table, token) if place.capabilities.tokens else None,
            query_id_of(self.token(table, token), os.urandom(4).hex()),
            insert_settings(place.capabilities, quorum, quorum_seconds),
        )
        (through or place.server).insert(plan, lambda: INSERT_TIMEOUT_SECONDS)

    def token(self, table: str, name: str) -> str:
        return f"{TOPIC}/{table}/{name}"

    def facts(self, table: str, at: int = 0) -> TableFacts:
        return describe_table(self.places[at].server, self.database, table)

    def rows(self, table: str) -> list[int]:
        """How many rows each server has, once it has what the others have."""
        if self.replicated:
            self.everywhere(f"SYSTEM SYNC REPLICA {self.named(table)}")
        return [self.rows_at(table, at) for at in range(len(self.places))]

    def rows_at(self, table: str, at: int = 0) -> int:
        """How many rows one server has now."""
        return int(self.ask(f"SELECT count() AS n FROM {self.named(table)}", at)[0]["n"])

    def ask(self, sql: str, at: int = 0) -> list[dict[str, Any]]:
        return self.places[at].server.query(sql)

    def parts(self, table: str, what: str = "name", among: str = "1") -> list[str]:
        """A column of system.parts, of active and other parts of a table on the first server.

        :param among: a condition that they meet.
        """
        select = f"SELECT {what} AS what FROM system.parts"
        rows = said_of_table(self.first.server, select, self.database, table, f"AND {among}")
        return [str(row["what"]) for row in rows]

    def wait(self, seconds: float, reached: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it is so, for so long at most; whether it is.

        :raises StoppedError: somebody asked to stop.
        """
        until = time.monotonic() + seconds
        while not reached():
            left = until - time.monotonic()
            if left <= 0:
                return False
            self._stop.wait(min(_POLL_SECONDS, left))
            self.check_stop()
        return True

    def check_stop(self) -> None:
        """:raises StoppedError: somebody asked to stop."""
        if self._stop.is_set():
            raise StoppedError


def look_at_servers(access: ClickHouseAccess, urls: Sequence[str]) -> list[Place]:
    """Connect to servers and read what they can do.

    :raises SluiceError: one of them does not answer, or does not let us in.
    """
    places = []
    for url in urls:
        server = access.connect(url)
        server.ping()
        places.append(Place(server.url, server, read_capabilities(server)))
    return places


def has_zookeeper(place: Place) -> bool:
    """Whether a server knows ZooKeeper or Keeper, and it answers.

    :raises SluiceError: it is configured, and does not answer.
    """
    tables = "SELECT name FROM system.tables WHERE database = 'system' AND name = 'zookeeper'"
    if not place.server.query(tables):
        return False
    place.server.query("SELECT name FROM system.zookeeper WHERE path = '/'")
    return True


def has_plain_windows(place: Place) -> bool:
    """Whether tables that are not replicated deduplicate on this server."""
    return bool(merge_tree_defaults(place.server, False, ["non_replicated_deduplication_window"]))


@contextmanager
def scratch_database(places: Sequence[Place], database: str) -> Iterator[None]:
    """Make the database on every server, and drop it in the end, whatever happens.

    :raises ConfigurationError: one of them has it already; it is not touched.
    :raises SluiceError: it cannot be made, or not be dropped.
    """
    for place in places:
        if place.server.query(
            "SELECT name FROM system.databases WHERE name = {database:String}",
            {"database": database},
        ):
            raise ConfigurationError(
                f"there is a database {database} on {place.url}, which is left alone",
                "Name another one with --database; if an earlier run was killed, look into it, "
                f"then DROP DATABASE {identifier(database)}.",
            )
    made: list[Place] = []
    try:
        for place in places:
            try:
                place.server.execute(
                    f"CREATE DATABASE {identifier(database)}", timeout_seconds=DDL_TIMEOUT_SECONDS
                )
            except ServerError as error:
                if error.code == 0 and isinstance(error, InDoubtError):
                    made.append(place)  # no answer: it may be there
                raise
            made.append(place)
        yield
    finally:
        _drop(made, database)


def _drop(places: Sequence[Place], database: str) -> None:
    """:raises TerminalError: it is still there."""
    failed: dict[str, SluiceError] = {}
    for place in places:
        at_once = " SYNC" if place.capabilities.version >= _SYNC_SINCE else ""
        for _ in range(3):
            try:
                place.server.execute(
                    f"DROP DATABASE IF EXISTS {identifier(database)}{at_once}",
                    timeout_seconds=DDL_TIMEOUT_SECONDS,
                )
            except SluiceError as error:
                failed[place.url] = error
            else:
                failed.pop(place.url, None)
                break
    if failed:
        said = "; ".join(f"{url}: {error}" for url, error in failed.items())
        raise TerminalError(
            f"the scratch database {database} could not be dropped: {said}",
            f"DROP DATABASE {identifier(database)} on {', '.join(failed)}.",
        )
