"""Makes lost claims again, in a process of its own: the engine takes memory that a driver lacks."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from functools import partial
from tempfile import TemporaryFile

from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.config import Configuration
from sluice.core.claims import key_space
from sluice.core.errors import TransientError
from sluice.driver.children import own_process
from sluice.driver.shards import on_replicas
from sluice.driver.specs import access_of, read_spec

_LINES = 3
#: It says how far it is with each of some 100,000 rows; whatever it waits for has a time-out below.
SILENT_SECONDS_MAX = 600.0
_LOOK_SECONDS = 1.0
_KILLED_SECONDS = 10.0
_SAID_BYTES_MAX = 10_000


class RebuildFailedError(TransientError):
    """Claims could not be made again from what the tables have."""

    hint = (
        "It is tried again, and entries that deduplicate wait for it. `sluice claims rebuild` does "
        "the same by hand."
    )


def rebuild(configuration: Configuration, connector: str, space: str, since_ms: int) -> None:
    """Claim every row that came into the tables of a key space since then; nothing is to be done
    where they are empty.

    :param space: see `core.claims.key_space`.
    :raises TransientError: not all rows could be read, or not all claimed; or it hung.
    """
    if not has_rows(configuration, connector, space):
        return
    words = ("claims", "rebuild", str(configuration.path), "--connector", connector)
    since = str(max(0, since_ms))
    _run(*own_process("sluice", *words, "--space", space, "--since-ms", since))


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Wait for it as long as it says anything.

    :raises RebuildFailedError: it failed, or said nothing for too long.
    """
    with TemporaryFile() as said:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=environment,
        )
        size, since = 0, time.monotonic()
        try:
            while child.poll() is None and time.monotonic() - since <= SILENT_SECONDS_MAX:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_LOOK_SECONDS)
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
        if child.returncode:
            said.seek(max(0, size - _SAID_BYTES_MAX))
            last = " ".join(said.read().decode(errors="replace").strip().splitlines()[-_LINES:])
            raise RebuildFailedError(f"`sluice claims rebuild` {how}: {last}")


def has_rows(configuration: Configuration, connector: str, space: str) -> bool:
    """Whether any table of a key space has a row, or may have one soon. What a replica that does
    not answer has, nobody knows.

    :raises TransientError: the tables cannot be described now.
    """
    access, is_known = access_of(configuration), False
    for table in read_spec(configuration, connector).tables:
        if table.deduplicate is None or key_space(table.deduplicate, table.columns) != space:
            continue
        is_known = True
        look = partial(_looks_filled, database=table.database, table=table.table)
        for shard in table.shards:
            answers = on_replicas(access, shard, look)
            if len(answers) < len(access.shards[shard]) or any(answers.values()):
                return True
    return not is_known  # of a load spec before


def _looks_filled(server: Server, database: str, table: str) -> bool:
    found = server.query(
        "SELECT 1 AS found FROM system.parts WHERE database = {database:String} "
        "AND table = {table:String} AND active AND rows > 0 LIMIT 1",
        {"database": database, "table": table},
    )
    return bool(found or running_query_ids(server, QUERY_ID_PREFIX))
