"""A bearer token instead of user and password.

Only ClickHouse Cloud, and builds for it, take tokens: what is shown is looked at by a small server.
That a real one takes none is in test_password.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_insert
from sluice.core.errors import ConfigurationError, TerminalError, TransientError
from sluice.driver.topology import login_of
from sluice.machine.secret_source import SecretSource
from sluice.ops.grants import script
from tests.config.support import changed, load_text

PLAN = plan_insert("default", "orders", ["id"], b"a block", None, "q1", {})


@dataclass
class Gate:
    """Answers who shows the token.

    :ivar proxy: it refuses like a proxy, without a code of ClickHouse.
    :ivar shown: user, password and `Authorization` of each POST.
    """

    token: str = "first.j.w"
    proxy: bool = False
    url: str = ""
    shown: list[tuple[str | None, str | None, str | None]] = field(default_factory=list)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, b"Ok.\n")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            shown = self.headers["Authorization"]
            made.shown.append(
                (self.headers["X-ClickHouse-User"], self.headers["X-ClickHouse-Key"], shown)
            )
            if shown == f"Bearer {made.token}":
                reply = {"meta": [{"name": "one"}], "data": [[1]]}
                self._answer(200, b"" if body == b"a block" else json.dumps(reply).encode())
            elif made.proxy:
                self._answer(401, b"expired")
            else:
                text = f"Code: 516. DB::Exception: {shown} has expired"
                self._answer(403, text.encode(), {"X-ClickHouse-Exception-Code": "516"})

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield made
        server.shutdown()
        thread.join()


@pytest.fixture
def access(gate: Gate, tmp_path: Path) -> ClickHouseAccess:
    """As the configuration gives it; the token's file has the first one."""
    (tmp_path / "token").write_text("first.j.w\n")
    text = changed("[clickhouse]", '[clickhouse]\ntoken = { file = "token" }')
    configuration = load_text(tmp_path, text.replace("http://localhost:8123", gate.url))
    return login_of(configuration).patient()


@pytest.mark.parametrize("proxy", [False, True])
def test_a_token_changes_while_a_connection_lives(
    gate: Gate, access: ClickHouseAccess, tmp_path: Path, proxy: bool
) -> None:
    gate.proxy = proxy
    with access.connect(gate.url) as server:
        assert server.query("SELECT 1") == [{"one": 1}]
        server.insert(PLAN, lambda: 60.0)
        gate.token = "second.j.w"
        (tmp_path / "token").write_text("second.j.w\n")
        with pytest.raises(TransientError) as caught:
            server.insert(PLAN, lambda: 60.0)
        assert "first.j.w" not in caught.value.message
        server.insert(PLAN, lambda: 60.0)
        assert server.query("SELECT 1") == [{"one": 1}]
        gate.token = "third.j.w"
        (tmp_path / "token").write_text("third.j.w\n")
        assert server.query("SELECT 1") == [{"one": 1}]
    assert {shown[:2] for shown in gate.shown} == {(None, None)}
    assert access.renewed().password == "third.j.w"
    assert "j.w" not in repr(access)


def test_a_token_of_a_command(gate: Gate) -> None:
    source = SecretSource("token", command=("echo", "first.j.w"))
    with Server(gate.url, "", "expired", source=source, bearer=True) as server:
        assert server.query("SELECT 1") == [{"one": 1}]


def test_a_token_that_stays_wrong(gate: Gate, access: ClickHouseAccess) -> None:
    gate.token = "another.j.w"
    with (
        replace(access, source=None).connect(gate.url) as server,
        pytest.raises(TerminalError, match=r"Bearer \*\*\* has expired") as caught,
    ):
        server.query("SELECT 1")
    assert "`token`" in caught.value.hint


def test_no_header_has_several_lines(gate: Gate) -> None:
    with (
        Server(gate.url, "", "a\r\nX-Other: b", bearer=True) as server,
        pytest.raises(ConfigurationError, match="has several lines"),
    ):
        server.query("SELECT 1")
    assert gate.shown == []


def test_rights_are_given_to_whom_the_token_says(tmp_path: Path) -> None:
    text = changed("[clickhouse]", '[clickhouse]\ntoken = "${TOKEN}"')
    configuration = load_text(tmp_path, text, {"TOKEN": "secret.j.w"})
    printed = "\n".join(script(configuration, {}))
    assert "-- ClickHouse: the token says who the user is" in printed
    assert "TO `NAME`;" in printed or "TO NAME;" in printed
    assert "secret" not in printed and "TO default" not in printed
