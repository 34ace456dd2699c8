"""The client against both real servers, and against a script for what they cannot show."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.clickhouse.http import INSERT_TIMEOUT_SECONDS, Server
from sluice.clickhouse.insert import InsertPlan, plan_insert
from sluice.clickhouse.tls import Tls
from sluice.core.errors import (
    ConfigurationError,
    InDoubtError,
    TerminalError,
    TransientError,
)
from sluice.testbed.local.children import free_ports
from tests.clickhouse.helpers import count, insert, native
from tests.support.certificates import Authority
from tests.support.clickhouse_server import ClickHouseServer, clickhouse_available, run_clickhouse
from tests.support.scripted import PONG_AND_CLOSE, Scripted, reply, run_scripted

#: How long a ping may take on a busy machine.
PING_MS_MAX = 5_000
#: Far longer than anything takes here, on any machine.
PATIENCE_SECONDS = 30.0


class LeaseOverError(Exception):
    pass


def lease_over() -> float:
    raise LeaseOverError


def valid() -> float:
    return 60.0


def plan(body: bytes | memoryview = b"block") -> InsertPlan:
    return plan_insert("shop", "orders", ["id"], body, "token", "q-1", {})


def test_integers_are_exact(server: Server) -> None:
    rows = server.query(
        "SELECT {n:UInt64} AS n, toInt64({m:Int64}) AS m, {s:String} AS s",
        {"n": 2**64 - 1, "m": -(2**63), "s": "it's\n\t\\ ünï"},
    )
    assert rows == [{"n": 2**64 - 1, "m": -(2**63), "s": "it's\n\t\\ ünï"}]


def test_one_connection_serves_many_calls(server: Server) -> None:
    for _ in range(5):
        server.ping()
        server.query("SELECT 1 AS one")
    assert server.connects == 1


def test_a_query_that_fails_late_never_passes(server: Server) -> None:
    with pytest.raises((TerminalError, TransientError)) as caught:
        server.query("SELECT number, throwIf(number = 300000) AS t FROM numbers(400000)")
    assert caught.value.code == 395
    assert server.query("SELECT 1 AS one") == [{"one": 1}]


def test_an_exception_behind_status_200_never_passes(old: Server) -> None:
    """18.16 streams: without wait_end_of_query the exception stands after the rows."""
    with pytest.raises(TransientError) as caught:
        old.query(
            "SELECT number, throwIf(number = 300000) AS t FROM numbers(400000)",
            settings={"wait_end_of_query": "0"},
        )
    assert caught.value.code == 395


def test_insert_round_trip(server: Server, database: str) -> None:
    server.execute(f"CREATE TABLE {database}.t (a UInt64, s String) ENGINE = MergeTree ORDER BY a")
    select = "SELECT number AS a, toString(number) AS s FROM numbers(1000)"
    answer = insert(server, f"{database}.t", ["a", "s"], select, "token")
    assert answer.url == server.url
    assert answer.written_rows in (1000, None)
    assert count(server, f"{database}.t") == 1000


def test_a_wide_insert_whose_statement_is_in_the_body(server: Server, database: str) -> None:
    names = [f"column_with_a_rather_long_name_{number}" for number in range(300)]
    columns = ", ".join(f"{name} UInt8" for name in names)
    server.execute(f"CREATE TABLE {database}.wide ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    select = "SELECT " + ", ".join(f"toUInt8(1) AS {name}" for name in names)
    insert(server, f"{database}.wide", names, select, "token")
    assert server.query(f"SELECT sum({names[-1]}) AS n FROM {database}.wide") == [{"n": 1}]


def test_missing_table_is_terminal_even_with_a_large_body(server: Server, database: str) -> None:
    body = native(server, "SELECT number AS a FROM numbers(3000000)")
    large = plan_insert(database, "nope", ["a"], body, None, "q", {})
    with pytest.raises(TerminalError) as caught:
        server.insert(large, valid)
    assert caught.value.code == 60
    assert f"insert into {database}.nope" in str(caught.value)
    assert server.query("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.parametrize(("user", "code"), [("sluice", 193), ("nobody-of-that-name", 192)])
def test_wrong_password_is_terminal_and_not_in_the_text(
    clickhouse_18: ClickHouseServer, user: str, code: int
) -> None:
    client = Server(clickhouse_18.url, user, "hunter2-ünï")
    for call in (lambda: client.query("SELECT 1"), lambda: client.insert(plan(), valid)):
        with pytest.raises(TerminalError) as caught:
            call()
        assert caught.value.code == code
        assert "hunter2" not in str(caught.value) + repr(client) + repr(caught.value.__dict__)


def test_right_password(clickhouse_18: ClickHouseServer) -> None:
    address = clickhouse_18.url.removeprefix("http://")
    for client in (
        Server(clickhouse_18.url, "sluice", "right-password"),
        Server(f"http://sluice:right-password@{address}"),
    ):
        assert client.query("SELECT 1 AS one") == [{"one": 1}]
        assert "right-password" not in client.url + repr(client)


def test_a_read_only_user_is_terminal(clickhouse_18: ClickHouseServer, old: Server) -> None:
    old.execute("CREATE TABLE IF NOT EXISTS default.ro (id UInt8) ENGINE = MergeTree ORDER BY id")
    body = native(old, "SELECT toUInt8(1) AS id")
    read_only = plan_insert("default", "ro", ["id"], body, None, "q", {})
    with pytest.raises(TerminalError) as caught:
        Server(clickhouse_18.url, "reader").insert(read_only, valid)
    assert caught.value.code == 164


def test_refused_connection_is_transient() -> None:
    client = Server(f"http://127.0.0.1:{free_ports(1)[0]}")
    for call in (client.ping, lambda: client.insert(plan(), valid)):
        with pytest.raises(TransientError) as caught:
            call()
        assert caught.value.name == "CONNECTION_REFUSED"


def test_no_url() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Server("clickhouse://me:secret@host")
    assert "secret" not in str(caught.value)


def test_the_lease_check_blocks_the_post() -> None:
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        client = Server(script.url)
        with pytest.raises(LeaseOverError):
            client.insert(plan(), lease_over)
        assert (script.pings, script.posts) == (1, [])
        client.insert(plan(), valid)
        assert script.posts == [b"block"]
        assert script.connections == 1


def test_a_ping_tells_the_servers_clock(server: Server) -> None:
    """To the second, and never less than it shows: on this machine it is ours."""
    assert server.clock_ms() is None
    before_ms = time.time() * 1000
    server.ping()
    first_ms = server.clock_ms()
    assert first_ms is not None
    assert before_ms <= first_ms + 1 and first_ms <= time.time() * 1000 + 2_000 + PING_MS_MAX
    time.sleep(0.3)
    assert (server.clock_ms() or 0) >= first_ms + 300


def test_a_server_that_says_no_time_has_no_clock() -> None:
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        client = Server(script.url)
        client.ping()
        assert client.clock_ms() is None


def test_lease_over_inserts_nothing(server: Server, database: str) -> None:
    server.execute(f"CREATE TABLE {database}.t (a UInt64) ENGINE = MergeTree ORDER BY a")
    body = native(server, "SELECT toUInt64(1) AS a")
    late = plan_insert(database, "t", ["a"], body, None, "q", {})
    with pytest.raises(LeaseOverError):
        server.insert(late, lease_over)
    assert count(server, f"{database}.t") == 0


def test_a_lost_acknowledgement_is_in_doubt() -> None:
    with run_scripted(lambda c: c.shutdown(socket.SHUT_RDWR)) as script:
        with pytest.raises(InDoubtError) as caught:
            Server(script.url).insert(plan(), valid)
        assert caught.value.action == "same-block-then-next-replica"
        assert script.posts == [b"block"]  # sent once, never again by itself


@pytest.mark.parametrize(
    "half",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
def test_half_a_reply_is_in_doubt(half: bytes) -> None:

    def cut(connection: socket.socket) -> None:
        connection.sendall(half)
        connection.shutdown(socket.SHUT_RDWR)

    with run_scripted(cut) as script, pytest.raises(InDoubtError):
        Server(script.url).insert(plan(), valid)


@contextmanager
def silent() -> Iterator[Scripted]:
    """It takes each POST and says nothing, to the end of the block."""
    ended = threading.Event()

    def wait(_: socket.socket) -> None:
        ended.wait()

    with run_scripted(wait) as script:
        try:
            yield script
        finally:
            ended.set()


def test_silence_is_in_doubt_after_the_time_limit() -> None:
    with silent() as script:
        begun = time.monotonic()
        with pytest.raises(InDoubtError) as caught:
            Server(script.url).insert(plan(), valid, timeout_seconds=0.4)
        assert caught.value.name == "SOCKET_TIMEOUT"
        assert time.monotonic() - begun < PATIENCE_SECONDS


def test_a_body_that_nobody_reads_is_in_doubt_after_the_time_limit() -> None:
    with silent() as script:
        script.read_body = False
        with pytest.raises(InDoubtError):
            Server(script.url).insert(plan(bytes(64 << 20)), valid, timeout_seconds=0.4)


def test_no_insert_is_on_its_way_beyond_its_lease() -> None:
    """What the server has not taken by then is thrown away, not delivered later."""
    was_reset = threading.Event()

    def read_slowly(connection: socket.socket) -> None:
        try:
            while connection.recv(1 << 16):
                time.sleep(0.02)
        except ConnectionResetError:
            was_reset.set()

    with run_scripted(read_slowly) as script:
        script.read_body = False
        begun = time.monotonic()
        with pytest.raises(InDoubtError) as caught:
            Server(script.url).insert(plan(bytes(64 << 20)), lambda: 0.4)
        assert caught.value.name == "SOCKET_TIMEOUT"
        assert time.monotonic() - begun < INSERT_TIMEOUT_SECONDS / 2, "it went on after its lease"
        assert was_reset.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("Code: 319, e.displayText() = DB::Exception: Unknown status", InDoubtError),
        ("Code: 60, e.displayText() = DB::Exception: no table", TerminalError),
        ("something else", InDoubtError),
    ],
)
def test_status_200_with_a_body_is_no_success(body: str, kind: type[Exception]) -> None:
    with run_scripted(lambda c: c.sendall(reply(body))) as script, pytest.raises(kind):
        Server(script.url).insert(plan(), valid)


@pytest.mark.parametrize("code", [241, 319])
def test_status_200_with_an_exception_header_is_no_success(code: int) -> None:
    """319: the server does not know whether the block is stored."""
    answer = reply("", headers=f"X-ClickHouse-Exception-Code: {code}\r\n")
    with run_scripted(lambda c: c.sendall(answer)) as script:
        with pytest.raises(InDoubtError) as caught:
            Server(script.url).insert(plan(), valid)
        assert caught.value.code == code


def test_no_reconnect_after_the_lease_check() -> None:
    """The server closes between /ping and POST: nothing is sent, and nothing reconnects."""
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        script.close_after_ping = True

        def valid_when_it_is_closed() -> float:
            assert script.closed.wait(PATIENCE_SECONDS)
            return 60.0

        with pytest.raises(TransientError) as caught:
            Server(script.url).insert(plan(), valid_when_it_is_closed)
        assert caught.value.name == "CONNECTION_CLOSED"
        assert (script.posts, script.connections) == ([], 1)


def test_a_server_that_does_not_keep_alive_gets_no_insert() -> None:
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        script.pong = PONG_AND_CLOSE
        with pytest.raises(TransientError) as caught:
            Server(script.url).insert(plan(), valid)
        assert "keep_alive" in caught.value.hint
        assert script.posts == []


def test_reconnects_by_itself_after_an_error() -> None:
    if not clickhouse_available():
        pytest.fail("needs Debian's ClickHouse 18.16")
    with run_clickhouse() as own:
        client = Server(own.url)
        client.ping()
        assert client.version() == (18, 16, 1)
        own.kill()
        with pytest.raises(TransientError):
            client.query("SELECT 1 AS one")
        own.start()
        assert client.query("SELECT 1 AS one") == [{"one": 1}]
        assert client.connects == 2
        own.kill()


def test_a_stale_connection_is_replaced_for_reads_and_pings() -> None:
    with run_scripted(lambda c: c.sendall(reply('{"meta":[],"data":[]}'))) as script:
        script.close_after_ping = True
        client = Server(script.url)
        client.ping()
        assert script.closed.wait(PATIENCE_SECONDS)
        assert client.query("SELECT") == []
        assert client.connects == 2


def test_the_password_is_masked_in_replies() -> None:
    answer = reply("Code: 516. DB::Exception: bad key s3cret, sorry", 403)
    with run_scripted(lambda c: c.sendall(answer)) as script:
        with pytest.raises(TerminalError) as caught:
            Server(script.url, "me", "s3cret").insert(plan(), valid)
        assert "s3cret" not in str(caught.value)
        assert caught.value.code == 516


def test_the_body_is_not_copied() -> None:
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        script.keep_body = False
        block = plan(memoryview(bytes(32 << 20)))
        client = Server(script.url)
        client.ping()
        tracemalloc.start()
        try:
            client.insert(block, valid)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak_bytes < 1 << 20


def test_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(*authority.sign("server"))
    with run_scripted(lambda c: c.sendall(reply("")), there) as script:
        client = Server(script.url, tls=Tls(str(authority.certificate)))
        for _ in range(3):
            client.insert(plan(memoryview(b"block")), valid)
        assert (script.posts, script.connections) == ([b"block"] * 3, 1)


def test_no_tls_on_the_other_side() -> None:
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        client = Server(script.url.replace("http:", "https:"), connect_timeout_seconds=0.3)
        with pytest.raises(TransientError) as caught:
            client.ping()
        assert caught.value.name == "CONNECT_FAILED"


def test_the_servers_clock_goes_on_between_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the boot clock here, as milliseconds, and always to the end of the second it said."""
    boot = {"seconds": 500.0}
    date = b"Date: Sun, 09 Sep 2001 01:46:40 GMT\r\n"
    with run_scripted(lambda c: c.sendall(reply(""))) as script:
        script.pong = script.pong.replace(b"Content-Length", date + b"Content-Length")
        monkeypatch.setattr("sluice.clickhouse.http.time.clock_gettime", lambda _: boot["seconds"])
        client = Server(script.url)
        client.ping()
        assert client.clock_ms() == 10**12 + 999
        boot["seconds"] += 7.25
        assert client.clock_ms() == 10**12 + 999 + 7_250


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (299, InDoubtError),
        (300, TerminalError),
        (404, TerminalError),
        (408, InDoubtError),
        (429, InDoubtError),
        (499, TerminalError),
        (500, InDoubtError),
    ],
)
def test_who_answers_without_a_code_of_clickhouse(status: int, kind: type[Exception]) -> None:
    """A proxy that refuses did not pass the block on; one that failed may have."""
    answer = reply("<html>", status)
    with run_scripted(lambda c: c.sendall(answer)) as script, pytest.raises(kind):
        Server(script.url).insert(plan(), valid)


def test_an_exception_that_stands_behind_rows_is_found_at_their_end() -> None:
    """The last one counts: what looks like one may be a value."""
    body = "1\tCode: 60, said a row\nCode: 241. DB::Exception: Memory limit"
    with run_scripted(lambda c: c.sendall(reply(body))) as script:
        with pytest.raises(InDoubtError) as caught:
            Server(script.url).insert(plan(), valid)
        assert caught.value.code == 241
    refused = reply("Code: 60. DB::Exception: no table. Code: 241. nested", 404)
    with run_scripted(lambda c: c.sendall(refused)) as script:
        with pytest.raises(TerminalError) as terminal:
            Server(script.url).insert(plan(), valid)
        assert terminal.value.code == 60


@pytest.mark.parametrize(
    ("header", "body", "code"),
    [
        ("X-ClickHouse-Exception-Code: 60\r\n", "Code: 241. DB::Exception: no", 60),
        ("", "Code: 60. DB::Exception: no table", 60),
    ],
)
def test_the_code_is_the_headers_or_else_the_texts(header: str, body: str, code: int) -> None:
    answer = reply(body, 404, header)
    with run_scripted(lambda c: c.sendall(answer)) as script:
        with pytest.raises(TerminalError) as caught:
            Server(script.url).insert(plan(), valid)
        assert caught.value.code == code
