"""The embedded server as a process: what survives, what is refused, how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sluice.testbed.local.processes import usage
from sluice.testbed.local.running import running_clickhouse
from tests.support.world import wait_for
from tests.testbed.local.http_client import Client, Response

INSERT = "INSERT INTO t (a) FORMAT TSV"


def test_rows_and_tokens_survive_sigkill(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "data") as server:
        port = server.port
        assert port is not None
        client = Client(port)
        client.rows(
            "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a"
            " SETTINGS non_replicated_deduplication_window = 100"
        )
        client.query(INSERT, b"1\n2\n", insert_deduplication_token="one")
        assert server.kill() == -signal.SIGKILL
        server.restart()
        assert server.port == port
        client = Client(port)
        client.query(INSERT, b"1\n2\n", insert_deduplication_token="one")
        assert client.rows("SELECT count() FROM t") == "2"
        client.query(INSERT, b"1\n2\n", insert_deduplication_token="two")
        assert client.rows("SELECT count() FROM t") == "4"


@pytest.mark.slow
def test_a_stop_lets_running_requests_end(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "data") as server:
        assert server.port is not None
        client, idle = Client(server.port), Client(server.port)
        idle.rows("SELECT 1")  # an open, silent connection does not hold up the end
        answers: list[Response] = []
        thread = threading.Thread(target=lambda: answers.append(client.query("SELECT sleep(3)")))
        thread.start()
        others = "SELECT count() FROM system.processes WHERE query LIKE 'SELECT sleep%'"
        wait_for(lambda: idle.rows(others) == "1", 30, "the start of the query")
        assert server.stop() == 0
        thread.join()
        assert answers[0].text == "0\n"


def test_a_folder_in_use_and_a_port_in_use_are_told(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path / "data") as server:
        refused = _start(tmp_path / "data")
        assert refused.returncode == 1
        assert f"in use by process {server.pid}" in refused.stderr
        taken = _start(tmp_path / "other", "--port", str(server.port))
        assert taken.returncode == 2
        assert f"--port {server.port}" in taken.stderr
        assert "Try: " in taken.stderr


def test_a_program_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, time\n"
        "from sluice.testbed.local.running import running_clickhouse\n"
        "with running_clickhouse(pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.communicate()
    wait_for(lambda: usage(pid) is None, 60, "its end")


def _start(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sluice", "local", "clickhouse", "--data", str(data), *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
