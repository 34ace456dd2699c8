"""Makes lost claims again, in a process of its own: the engine takes memory that a driver lacks."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.system import said_of_table
from sluice.core.errors import TransientError
from sluice.core.load_spec import LoadSpec, TableSpec, parse_spec
from sluice.driver.children import own_process
from sluice.driver.shards import on_replicas

_LINES = 3
#: It says how far it is with each of some 100,000 rows; whatever it waits for has a time-out below.
SILENT_SECONDS_MAX = 600.0
_LOOK_SECONDS = 1.0
_KILLED_SECONDS = 10.0
#: A server that is not frozen says sooner which parts it has.
_ANSWER_SECONDS = 0.5
#: What was asked longer ago may be otherwise by now.
_ASKED_SECONDS_MAX = 120.0
_SAID_BYTES_MAX = 10_000


class RebuildFailedError(TransientError):
    """Claims could not be made again from what the tables have."""

    hint = (
        "It is tried again, and entries that deduplicate wait for it. `sluice claims rebuild` does "
        "the same by hand."
    )


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """What a driver has read, and where it has it claimed, as the driver knows it: the file may
    name other tables, servers or another store by now.

    :param table: of which the rows are, with the shards that are read.
    :param shards: their replicas.
    :param since_ms: rows that came since then.
    :param run: of the store.
    """

    table: TableSpec
    shards: Mapping[str, tuple[str, ...]]
    since_ms: int
    run: str

    def written(self) -> str:
        """As the process reads it that does it."""
        spec = LoadSpec("", "", "", 0, (self.table,)).canonical()
        return json.dumps([spec, dict(self.shards), self.since_ms, self.run])

    @staticmethod
    def read(text: str) -> RebuildRequest:
        """What was written."""
        spec, shards, since_ms, run = json.loads(text)
        (table,) = parse_spec(spec).tables
        return RebuildRequest(table, {s: tuple(urls) for s, urls in shards.items()}, since_ms, run)


def rebuild(
    path: Path,
    access: ClickHouseAccess,
    table: TableSpec,
    since_ms: int,
    run: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Claim every row that came into a table since then; nothing is to be done where it is empty.

    :param path: of the configuration, which says how to reach the servers and the store.
    :param access: whose replicas are read.
    :param table: what its rows are known by; the file may not name it any more.
    :param run: of the store that it is claimed in.
    :param meanwhile: called about each second.
    :raises TransientError: not all rows could be read, or not all claimed; or it hung.
    """
    asked = _ask(access, table)
    is_answered = False
    while not is_answered:
        is_answered = bool(wait([asked], _LOOK_SECONDS).done)
        meanwhile()
    if not asked.result():
        return
    shards = {shard: access.shards[shard] for shard in _configured(access, table)}
    request = RebuildRequest(replace(table, shards=tuple(shards)), shards, max(0, since_ms), run)
    command, environment = own_process("sluice", "claims", "rebuild", str(path), "--as-asked")
    _run(command, environment, request.written(), meanwhile)


def _run(
    command: list[str],
    environment: dict[str, str],
    asked: str = "",
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Wait for it as long as it says anything.

    :param asked: it reads.
    :raises RebuildFailedError: it failed, or said nothing for too long.
    """
    with TemporaryFile() as said, TemporaryFile() as told:
        told.write(asked.encode())
        told.seek(0)
        child = subprocess.Popen(
            command,
            stdin=told,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environment,
        )
        size, since = 0, time.monotonic()
        try:
            while child.poll() is None and time.monotonic() - since <= SILENT_SECONDS_MAX:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_LOOK_SECONDS)
                meanwhile()
                before, size = size, os.fstat(said.fileno()).st_size
                since = time.monotonic() if size > before else since
            how = f"ended with {child.returncode}"
            if child.returncode is None:
                how = f"said nothing for {SILENT_SECONDS_MAX:.0f} s, and was killed"
        finally:
            if child.returncode is None:
                child.kill()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_KILLED_SECONDS)
        if child.returncode != 0:  # None: it outlives even that
            said.seek(max(0, size - _SAID_BYTES_MAX))
            last = " ".join(said.read().decode(errors="replace").strip().splitlines()[-_LINES:])
            raise RebuildFailedError(f"`sluice claims rebuild` {how}: {last}")


class TableLooks:
    """Asks whether tables have rows, for a thread that cannot wait for a server that is frozen."""

    def __init__(self) -> None:
        #: By table, what is asked, and since when; a late answer is for who asks again.
        self._asked: dict[str, tuple[Future[bool], float]] = {}

    def has_rows(self, access: ClickHouseAccess, table: TableSpec) -> bool:
        """See the function.

        :raises TransientError: no replica of a shard answers, or not yet.
        """
        now = time.monotonic()
        asked, since = self._asked.get(table.target, (None, now))
        if asked is None or (asked.done() and now - since > _ASKED_SECONDS_MAX):
            # Where one is not answered the next one may not be: all would wait for each.
            waits = any(not each.done() for each, _ in self._asked.values())
            asked = _ask(access, table)
            self._asked[table.target] = asked, now
            wait([asked], 0 if waits else _ANSWER_SECONDS)
        if not asked.done():
            raise TransientError(
                f"whether {table.target} has rows is asked, and not answered yet",
                "It goes on by itself; look whether a server of the table is frozen or overloaded.",
            )
        del self._asked[table.target]
        return asked.result()


def _ask(access: ClickHouseAccess, table: TableSpec) -> Future[bool]:
    """Whether a table has rows, asked in a thread of its own, which nobody has to wait for."""
    asked: Future[bool] = Future()

    def ask() -> None:
        try:
            asked.set_result(has_rows(access, table))
        except BaseException as error:
            asked.set_exception(error)

    threading.Thread(target=ask, name=f"rows of {table.target}", daemon=True).start()
    return asked


def has_rows(access: ClickHouseAccess, table: TableSpec) -> bool:
    """Whether a table has a row, or may have one soon. What a replica that does not answer has,
    nobody knows.

    :raises TransientError: no replica of a shard answers.
    """
    look = partial(_looks_filled, database=table.database, table=table.table)
    for shard in _configured(access, table):
        answers = on_replicas(access, shard, look)
        if len(answers) < len(access.shards[shard]) or any(answers.values()):
            return True
    return False


def _configured(access: ClickHouseAccess, table: TableSpec) -> list[str]:
    """Its shards; those that are not configured any more are left out."""
    return [shard for shard in table.shards if shard in access.shards]


def _looks_filled(server: Server, database: str, table: str) -> bool:
    filled = "AND active AND rows > 0 LIMIT 1"
    found = said_of_table(server, "SELECT 1 AS found FROM system.parts", database, table, filled)
    return bool(found or running_query_ids(server, QUERY_ID_PREFIX))
