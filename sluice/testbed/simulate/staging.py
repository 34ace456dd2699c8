"""Staging tables of a simulated server (R21): statements that create, fill, rename and move them,
and what becomes of those whose client has left."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sluice.clickhouse.connection import Reply
from sluice.clickhouse.staging import Marker, parsed
from sluice.core.ranges import TopicPartition
from sluice.testbed.simulate.clickhouse import (
    Block,
    Host,
    Part,
    Row,
    Table,
    clickhouse_partition,
    groups_of,
)
from sluice.testbed.simulate.faults import STATEMENT
from sluice.testbed.simulate.inserters import Connection
from sluice.testbed.simulate.world import World

_OK = Reply(200, None, None, b"")
_NAME = r"`d`\.`(\w+)`"
_FORMS: dict[str, re.Pattern[str]] = {
    "view": re.compile(
        rf"CREATE MATERIALIZED VIEW {_NAME} TO {_NAME} AS SELECT \* FROM {_NAME} AS .*"
    ),
    "create": re.compile(rf"CREATE TABLE {_NAME} AS {_NAME}(?: ENGINE = .*)?"),
    "seal": re.compile(rf"CREATE TABLE {_NAME} \(`(.*)` UInt8\) ENGINE = Null", re.DOTALL),
    "rename": re.compile(rf"RENAME TABLE {_NAME} TO {_NAME}"),
    "move": re.compile(rf"ALTER TABLE {_NAME} MOVE PARTITION ID '(\d+)' TO TABLE {_NAME}"),
    "drop_part": re.compile(rf"ALTER TABLE {_NAME} DROP PART '(\d+)_1_1_0'"),
    "copy": re.compile(rf"ALTER TABLE {_NAME} ATTACH PARTITION ID '(\d+)' FROM {_NAME}"),
    "done": re.compile(rf"ALTER TABLE {_NAME} ADD COLUMN done UInt8"),
    "add": re.compile(rf"ALTER TABLE {_NAME} ADD COLUMN .*"),
    "drop": re.compile(rf"DROP TABLE {_NAME}"),
}
_INTO = re.compile(rf"^INSERT INTO {_NAME}")


class _FailedError(Exception):
    """A statement failed, with this code."""


@dataclass(slots=True)
class Stored:
    """A staging table, or a copy of a view.

    :param like: of a stored block: the table that it is made for.
    :param feeds: of a copy: the stored block that it reads, and the one that it writes to.
    :param uuids: of its parts, where the server gives them some; they go with a part that is moved.
    :param note: the column of a marker; "": it is a stored block.
    :param is_done: of a marker, which has another column.
    :param parts: rows by ClickHouse partition, and who loads them.
    """

    note: str = ""
    is_done: bool = False
    like: str = ""
    feeds: tuple[str, str] | None = None
    uuids: dict[int, str] = field(default_factory=dict)
    columns: frozenset[str] = frozenset()
    parts: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    loaders: dict[Any, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _TargetPart:
    name: str
    rows: int
    content: str
    uuid: str = ""


def _content(rows: tuple[Row, ...]) -> str:
    return f"{zlib.crc32(repr(rows).encode()):x}"


class Arrived:
    """What came into the targets of a world from staging tables."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parts: dict[tuple[str, str], list[_TargetPart]] = {}
        #: In which ClickHouse partition a row lies.
        self._places: dict[tuple[int, Row], int] = {}

    def add(
        self, table: Table, host: Host, partition: int, rows: tuple[Row, ...], stored: Stored
    ) -> None:
        """A part of a staging table is in a target."""
        part = Part(object(), rows, table.insert_counter + 1)
        table._insert_part(part, deduplicates=False)
        for row in rows:
            table.loaders[row.source, row.offset, row.number] = stored.loaders[row.source]
            self._places[id(table), row] = partition
        parts = self._parts.setdefault((host.url, table.shape.name), [])
        number = table.insert_counter
        name, uuid = f"{partition}_{number}_{number}_0", stored.uuids[partition]
        parts.append(_TargetPart(name, len(rows), _content(rows), uuid))
        if self._world.rng.random() < 0.2:  # merged, and forgotten as it was
            merged = [each for each in parts if each.name.startswith(f"{partition}_")]
            left = [each for each in parts if each not in merged]
            name, total = f"{partition}_1_{number}_1", sum(each.rows for each in merged)
            left.append(_TargetPart(name, total, name))
            self._parts[host.url, table.shape.name] = left

    def parts(self, host: Host, name: str) -> list[_TargetPart]:
        """Of a target."""
        return self._parts.get((host.url, name), [])

    def rows_by_partition(
        self, table: Table, source: TopicPartition, begin: int, end: int, loader: str
    ) -> Counter[int]:
        """How many rows of a range one loader has in each ClickHouse partition of a target."""
        found = Counter[int]()
        for (of, row), place in self._places.items():
            counts = table.rows.get((row.source, row.offset), Counter())
            is_of_it = row.source == source and begin <= row.offset < end
            whose = table.loaders.get((row.source, row.offset, row.number))
            if of == id(table) and is_of_it and whose == loader:
                found[place] += counts.get(row.number, 0)
        return found


class Staging:
    """All staging tables of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tables: dict[tuple[str, str], Stored] = {}
        self.arrived = Arrived(world)
        #: Of which partitions a server has lost rows before they were moved.
        self.lost: set[TopicPartition] = set()
        #: Ranges of which a block was moved, with their generation.
        self._moved: set[tuple[TopicPartition, int, int, str]] = set()

    def fault(self, sql: str) -> str | None:
        """What strikes the next statement."""
        fault = self._world.faults.draw(STATEMENT)
        if fault == "statement: server dies in a move" and " MOVE PARTITION" not in sql:
            return None
        return fault

    def run(
        self,
        connection: Connection,
        sql: str,
        query_id: str,
        timeout_seconds: float,
        block: Block | None = None,
    ) -> Reply:
        """Execute a statement, now or later.

        :raises OSError: its client gets no answer.
        """
        world, host = self._world, connection.host
        fault = self.fault(sql)
        world.say(f"{sql[:150]} at {host.url}: {fault}")
        if fault == "statement: paused before it is sent":
            world.sleep(world.rng.randrange(2 * world.plan.keep_alive_ms))
        if connection.is_cut or fault == "statement: request lost":
            raise ConnectionResetError("simulated")

        def execute() -> Reply:
            return self._execute(host, sql, block)

        if fault == "statement: comes late":
            self._later(connection, query_id, timeout_seconds, execute)
        if fault == "statement: server dies in a move":
            self._die_in_move(host, sql)
            raise ConnectionResetError("simulated")
        world.sleep(1)
        reply = execute()
        if fault == "statement: server loses a stored block":
            self._lose(host)
        if fault == "statement: server is started again after it":
            world.restart(host, world.rng.randrange(1, 3_000))
            raise ConnectionResetError("simulated")
        if fault == "statement: answer lost":
            raise ConnectionResetError("simulated")
        return reply

    def _lose(self, host: Host) -> None:
        """A table is gone of which not all is moved, as after a power failure; once in a world."""
        for (url, name), stored in self._tables.items():
            staged = parsed(name)
            assert staged is not None
            marker = self._tables.get((url, staged.marker))
            is_sealed = marker is not None and not marker.is_done
            if url == host.url and stored.parts and marker is not None and is_sealed:
                source, *_ = _range_of(marker)
                is_named = Marker.read(marker.note).attempt == staged.attempt
                if is_named and not self.lost and source not in self._world.excused:
                    self.lost.add(source)
                    del self._tables[url, name]
                    return

    def _later(
        self,
        connection: Connection,
        query_id: str,
        timeout_seconds: float,
        execute: Callable[[], Reply],
    ) -> None:
        """The server has it, and executes it when it likes, whatever becomes of the client."""
        world, host = self._world, connection.host
        deadline_ms = min(each.deadline_ms for each in world.records_of_task().values())
        end_ms = connection.checked_at + int(timeout_seconds * 1000)
        executed, restarts = world.executing(host, query_id), host.restarts

        def land() -> None:
            if host.restarts == restarts:
                execute()
            executed()

        world.scheduler.at(world.rng.randrange(max(1, world.room_ms(deadline_ms, end_ms))), land)
        if world.rng.random() < 0.5:
            world.sleep(int(timeout_seconds * 1000))
            raise TimeoutError("simulated")
        raise ConnectionResetError("simulated")

    def _execute(self, host: Host, sql: str, block: Block | None) -> Reply:
        try:
            if block is not None:
                self._fill(host, sql, block)
                return _OK
            for kind, form in _FORMS.items():
                match = form.fullmatch(sql)
                if match is not None:
                    getattr(self, f"_{kind}")(host, *match.groups())
                    return _OK
        except _FailedError as error:
            text = f"Code: {error}, e.displayText() = DB::Exception: simulated".encode()
            return Reply(500, str(error), None, text)
        raise LookupError(f"the simulated server does not know the statement {sql}")

    # The statements

    def _found(self, host: Host, name: str) -> Stored:
        found = self._tables.get((host.url, name))
        if found is None:
            raise _FailedError(60)
        return found

    def _create(self, host: Host, name: str, like: str) -> None:
        self._tables[host.url, name] = Stored(like=like, columns=_columns_of(host, like))

    def _view(self, host: Host, name: str, to: str, source: str) -> None:
        self._tables[host.url, name] = Stored(feeds=(source, to))

    def _seal(self, host: Host, name: str, note: str) -> None:
        if (host.url, name) in self._tables:
            self._world.faults.note("staged block was sealed by another attempt")
            raise _FailedError(57)
        made = Stored(note.replace("\\\\", "\\"))
        if self._world.plan.commit == "bundle" and _range_of(made) in self._moved:
            self._world.violate(f"{name} is sealed after another block of its range was moved")
        self._tables[host.url, name] = made

    def _rename(self, host: Host, before: str, after: str) -> None:
        found = self._drop(host, before)
        staged = parsed(before)
        if staged is not None and staged.claim is not None:
            self._world.faults.note("staged block claimed from another attempt")
        self._tables[host.url, after] = found

    def _move(self, host: Host, name: str, partition: str, target: str) -> None:
        self._bring(host, name, int(partition), target, stays=False)

    def _drop_part(self, host: Host, name: str, partition: str) -> None:
        del self._found(host, name).parts[int(partition)]

    def _copy(self, host: Host, target: str, partition: str, name: str) -> None:
        self._bring(host, name, int(partition), target, stays=True)

    def _add(self, host: Host, name: str) -> None:
        found = self._found(host, name)
        found.columns = _columns_of(host, found.like)

    def _done(self, host: Host, name: str) -> None:
        found = self._found(host, name)
        if found.is_done:
            raise _FailedError(15)
        found.is_done = True

    def _drop(self, host: Host, name: str) -> Stored:
        found = self._found(host, name)
        del self._tables[host.url, name]
        return found

    def collected(self, host: Host, sql: str) -> None:
        """A driver drops what nobody can want any more."""
        (name,) = groups_of(_FORMS["drop"], sql)
        found = self._tables.pop((host.url, name), None)
        if found is not None:
            if found.note and self._is_wanted(found.note):
                self._world.violate(f"the marker {name} goes while its range is in doubt")
            kind = "marker dropped" if found.note else "stored block dropped"
            self._world.faults.note(f"staging: {kind}")

    def _is_wanted(self, note: str) -> bool:
        """Whether the range of a marker is not settled."""
        marker = Marker.read(note)
        source = TopicPartition(marker.topic, marker.partition)
        position = self._world.broker.group.get(source)
        is_excused = source in self._world.excused
        return not is_excused and (position is None or position[0] < marker.end)

    def _fill(self, host: Host, sql: str, block: Block) -> None:
        (name,) = groups_of(_INTO, sql)
        found = self._found(host, name)
        copies = [each.feeds for each in self._tables.values() if each.feeds is not None]
        behind = [to for source, to in copies if source == name]
        for stored in (found, *(self._tables[host.url, name] for name in behind)):
            self._store(host, stored, block)

    def _store(self, host: Host, stored: Stored, block: Block) -> None:
        divisor = table_of(host, stored.like).shape.partition_divisor
        loaders = {origin.source: origin.loaded_by for origin in block.origins.members}
        for row in block.rows:
            place = clickhouse_partition(row, divisor)
            stored.parts[place] = (*stored.parts.get(place, ()), row)
            stored.loaders[row.source] = loaders[row.source]
        for place in stored.parts:
            # A server that copies knows no uuids.
            stored.uuids[place] = f"uuid-{self._world.named()}" if self._world.plan.tokens else ""

    def _bring(self, host: Host, name: str, partition: int, target: str, *, stays: bool) -> None:
        found = self._found(host, name)
        if found.columns != _columns_of(host, target):
            raise _FailedError(122)
        rows = found.parts.get(partition)
        if rows is not None:
            self._note_move(host, name)
            self._world.faults.note("staged block moved")
            self.arrived.add(table_of(host, target), host, partition, rows, found)
            if not stays:
                del found.parts[partition]

    def _note_move(self, host: Host, name: str) -> None:
        staged = parsed(name)
        assert staged is not None
        if staged.behind:
            self._world.faults.note("staged block behind a view moved")
        marker = self._tables.get((host.url, staged.marker))
        if marker is not None:
            self._moved.add(_range_of(marker))

    def _die_in_move(self, host: Host, sql: str) -> None:
        """The target has the part, and so has the table that it was to go from."""
        name, partition, target = groups_of(_FORMS["move"], sql)
        if self._world.rng.random() < 0.7:
            with suppress(_FailedError):
                self._bring(host, name, int(partition), target, stays=True)
        self._world.restart(host, self._world.rng.randrange(1, 5_000))

    # What is asked

    def names(self, host: Host, prefix: str) -> list[str]:
        """The names of staging tables that begin like this."""
        return sorted(
            name for url, name in self._tables if url == host.url and name.startswith(prefix)
        )

    def notes(self, host: Host, name: str) -> list[str]:
        """The columns of a marker; none where there is none."""
        found = self._tables.get((host.url, name))
        if found is None or not found.note:
            return []
        return [found.note, "done"] if found.is_done else [found.note]

    def rows(self, host: Host, names: list[str]) -> dict[str, int]:
        """How many rows these tables have, as far as there are any."""
        found = {name: self._tables.get((host.url, name)) for name in names}
        return {
            name: sum(map(len, stored.parts.values()))
            for name, stored in found.items()
            if stored is not None and stored.parts
        }

    def columns(self, host: Host, name: str) -> frozenset[str]:
        """The columns of a stored block."""
        found = self._tables.get((host.url, name))
        return frozenset() if found is None else found.columns

    def parts(self, host: Host, name: str) -> list[dict[str, Any]]:
        """The parts of a staging table, or of a target."""
        found = self._tables.get((host.url, name))
        if found is None:
            return [_shown(part) for part in self.arrived.parts(host, name)]
        return [
            _shown(_TargetPart(f"{place}_1_1_0", len(rows), _content(rows), found.uuids[place]))
            for place, rows in found.parts.items()
        ]


def table_of(host: Host, name: str) -> Table:
    """A table of a server, or what its view writes to."""
    base = host.tables[name.removesuffix("_target")]
    return base.views[0] if name.endswith("_target") else base


def _columns_of(host: Host, table: str) -> frozenset[str]:
    return frozenset(column.name for column in table_of(host, table).columns)


def _shown(part: _TargetPart) -> dict[str, Any]:
    """As a server shows a part."""
    told = {"name": part.name, "rows": part.rows, "active": 1, "hash_of_all_files": part.content}
    return {**told, "uuid": part.uuid}


def _range_of(stored: Stored) -> tuple[TopicPartition, int, int, str]:
    """What a marker is of, and in which generation."""
    marker = Marker.read(stored.note)
    source = TopicPartition(marker.topic, marker.partition)
    return source, marker.begin, marker.end, marker.loader.rpartition("/")[2]
