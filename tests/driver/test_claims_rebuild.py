"""Claims are made again in a process that may hang, and may take as long as it goes on."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.core.errors import TransientError
from sluice.core.load_spec import TableSpec
from sluice.driver import claims_rebuild
from sluice.driver.claims_rebuild import RebuildFailedError, TableLooks, _run, has_rows, rebuild
from tests.driver.claims_shop import keyed

LINE = "print('orders: 200000 rows read', file=sys.stderr, flush=True)"


def python(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time\n{text}"]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_rebuild, "SILENT_SECONDS_MAX", 3.0)
    monkeypatch.setattr(claims_rebuild, "_LOOK_SECONDS", 0.05)


@pytest.mark.slow
def test_one_that_hangs_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(RebuildFailedError, match="said nothing for 3 s, and was killed: orders:"):
        _run(python(f"{LINE}\ntime.sleep(60)"), {})
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_one_that_goes_on_is_waited_for() -> None:
    """It takes longer than it may be silent."""
    _run(python(f"for _ in range(8):\n    {LINE}\n    time.sleep(0.6)"), {})


@pytest.mark.slow
def test_one_that_cannot_be_killed_has_claimed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a disk: nobody knows how far it came."""
    children: list[subprocess.Popen[bytes]] = []

    def kill(child: subprocess.Popen[bytes]) -> None:
        children.append(child)

    monkeypatch.setattr(subprocess.Popen, "kill", kill)
    monkeypatch.setattr(claims_rebuild, "_KILLED_SECONDS", 0.1)
    with pytest.raises(RebuildFailedError, match="said nothing for 3 s, and was killed"):
        _run(python("time.sleep(600)"), {})
    (child,) = children
    child.terminate()
    child.wait()


def test_one_that_fails_says_why() -> None:
    with pytest.raises(RebuildFailedError, match="ended with 1: no such table"):
        _run(python("sys.exit('no such table')"), {})


@pytest.fixture
def frozen() -> Iterator[socket.socket]:
    """A server that takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def at(port: int) -> ClickHouseAccess:
    return ClickHouseAccess({"s1": (f"http://127.0.0.1:{port}",)}, "default", "", "single")


def test_others_are_looked_after_while_a_server_is_frozen(frozen: socket.socket) -> None:
    looks = []

    def meanwhile() -> None:
        looks.append(time.monotonic())
        if len(looks) == 5:
            frozen.close()

    access = at(frozen.getsockname()[1])
    with pytest.raises(TransientError):
        rebuild(Path(), access, keyed("t"), 0, "a@0", meanwhile)
    assert len(looks) >= 5


def test_who_asks_whether_tables_have_rows_does_not_wait_for_one_that_is_frozen(
    frozen: socket.socket,
) -> None:
    """For twenty tables of a server no longer than for one."""
    access, looks = at(frozen.getsockname()[1]), TableLooks()
    began = time.monotonic()
    for number in range(20):
        with pytest.raises(TransientError, match=f"whether d.t{number} has rows is asked, and not"):
            looks.has_rows(access, keyed(f"t{number}"))
    assert time.monotonic() - began < 20 * claims_rebuild._ANSWER_SECONDS
    frozen.close()
    while not all(asked.done() for asked, _ in looks._asked.values()):
        time.sleep(0.01)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1"):
        looks.has_rows(access, keyed("t0"))


def test_whether_a_table_has_rows(embedded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked each time; an answer that came late counts for a while."""
    monkeypatch.setattr(claims_rebuild, "_ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(claims_rebuild, "_ASKED_SECONDS_MAX", 0.0)
    embedded.execute("CREATE TABLE default.looked_at (id String) ENGINE = MergeTree ORDER BY id")
    table, looks = replace(keyed("looked_at"), database="default"), TableLooks()
    access = replace(at(0), shards={"s1": (embedded.url,)})
    is_seen, may_answer = threading.Event(), threading.Event()

    def late(access: ClickHouseAccess, table: TableSpec) -> bool:
        found = has_rows(access, table)
        is_seen.set()
        assert may_answer.wait(60)
        return found

    try:
        assert not looks.has_rows(access, table)
        with monkeypatch.context() as patched:
            patched.setattr(claims_rebuild, "_ANSWER_SECONDS", 0.0)
            patched.setattr(claims_rebuild, "has_rows", late)
            with pytest.raises(TransientError, match="not answered yet"):
                looks.has_rows(access, table)
            assert is_seen.wait(60)
        embedded.execute("INSERT INTO default.looked_at VALUES ('a')")
        may_answer.set()
        assert not looks._asked[table.target][0].result(60)
        assert looks.has_rows(access, table), "what was asked before does not count any more"
    finally:
        embedded.execute("DROP TABLE default.looked_at")
