"""Passwords that change while a connection lives, on a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_insert
from sluice.clickhouse.password import Refusals
from sluice.clickhouse.reactions import reaction_to
from sluice.core.errors import TerminalError, TransientError
from sluice.machine import secret_source
from sluice.machine.secret_source import SecretSource
from sluice.testbed.local.cluster.server import ClickHouseServer, Settings
from tests.clickhouse.helpers import count, native
from tests.support.world import wait_for

LONG = 3600.0


def user(password: str) -> str:
    return (
        f"<loader><password>{password}</password><profile>default</profile><quota>default</quota>"
        "<networks><ip>::/0</ip></networks></loader>"
    )


def source(file: Path) -> SecretSource:
    return SecretSource("password", file=str(file))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    server = ClickHouseServer(tmp_path_factory.mktemp("server"), Settings(users=user("first")))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def clickhouse(started: ClickHouseServer) -> ClickHouseServer:
    """It takes the password `first`."""
    change(started, "first")
    return started


def change(server: ClickHouseServer, password: str) -> None:
    """To return when the server has taken it."""
    server.settings.users = user(password)
    server.write_users()
    wait_for(lambda: lets_in(server, password), 90, "the new password")


def lets_in(server: ClickHouseServer, password: str) -> bool:
    with Server(server.url, "loader", password) as client:
        try:
            return client.query("SELECT 1 AS one") == [{"one": 1}]
        except TerminalError:
            return False


def test_a_query_goes_on_with_what_the_file_says_now(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    with Server(clickhouse.url, "loader", "first", source=source(file)) as server:
        assert server.query("SELECT 1 AS one") == [{"one": 1}]
        change(clickhouse, "second")
        file.write_text("second\nof the first line only\n")
        assert server.query("SELECT 2 AS two") == [{"two": 2}]


@pytest.mark.slow
def test_an_insert_is_sent_again_by_its_caller(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    table = f"t{uuid.uuid4().hex[:8]}"
    file = tmp_path / "password"
    file.write_text("first")
    with Server(clickhouse.url, "loader", "first", source=source(file)) as server:
        server.execute(f"CREATE TABLE {table} (id UInt64) ENGINE = MergeTree ORDER BY id")
        with Server(clickhouse.url) as other:  # `default`, who needs no password
            block = native(other, "SELECT toUInt64(1) AS id")
        plan = plan_insert("default", table, ["id"], block, None, f"q{table}", {})
        change(clickhouse, "second")
        file.write_text("second")
        with pytest.raises(TransientError, match="WRONG_PASSWORD") as raised:
            server.insert(plan, lambda: 60.0)
        assert str(file) in raised.value.hint
        server.insert(plan, lambda: 60.0)
        assert count(server, table) == 1


def test_a_password_that_stays_wrong_is_refused_for_good(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("other")
    with (
        Server(clickhouse.url, "loader", "other", source=source(file)) as server,
        pytest.raises(TerminalError, match="WRONG_PASSWORD") as raised,
    ):
        server.query("SELECT 1")
    assert "other" not in raised.value.message


def test_the_file_may_come_later_than_the_server(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    server = Server(clickhouse.url, "loader", "first", source=source(file), patience_seconds=LONG)
    change(clickhouse, "second")
    with server:
        for _ in range(3):
            with pytest.raises(TransientError, match="WRONG_PASSWORD"):
                server.query("SELECT 1")
        file.write_text("second")
        assert server.query("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.slow
def test_where_there_is_no_file_the_password_is_handed_over(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    """As on a Spark worker on another machine than the driver's."""
    server = Server(
        clickhouse.url,
        "loader",
        "first",
        source=source(tmp_path / "nowhere"),
        patience_seconds=LONG,
    )
    change(clickhouse, "second")
    with server:
        with pytest.raises(TransientError):
            server.query("SELECT 1")
        server.take_password("second")
        assert server.query("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.slow
def test_a_command_is_run_again_when_its_password_is_refused(
    clickhouse: ClickHouseServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secret_source, "REST_SECONDS", 0.0)
    file = tmp_path / "password"
    file.write_text("first\n")
    command = SecretSource("password", command=("cat", str(file)))
    servers = [
        Server(clickhouse.url, "loader", command.latest(), source=command, patience_seconds=LONG)
        for _ in range(2)
    ]
    assert servers[0].query("SELECT 1 AS one") == [{"one": 1}]
    change(clickhouse, "second")
    file.unlink()
    with pytest.raises(TransientError, match="WRONG_PASSWORD") as raised:
        servers[0].query("SELECT 1")
    assert "the command cat ended with exit code 1" in raised.value.hint
    file.write_text("second\n")
    assert servers[0].query("SELECT 2 AS two") == [{"two": 2}]
    file.unlink()  # the other one takes what was said meanwhile
    assert servers[1].query("SELECT 2 AS two") == [{"two": 2}]
    assert command.latest() == "second"
    for server in servers:
        server.close()


def test_a_server_that_takes_no_tokens(clickhouse: ClickHouseServer) -> None:
    newer = "Invalid authentication: 'Bearer' HTTP Authorization scheme is not supported"
    hint = reaction_to(516, newer).hint
    with (
        Server(clickhouse.url, "", "a.j.w", bearer=True) as server,
        pytest.raises(TerminalError) as caught,
    ):
        server.query("SELECT 1")
    assert caught.value.hint == hint
    assert "takes no tokens" in hint and "a.j.w" not in str(caught.value)


def test_refusals_are_final_when_they_have_lasted() -> None:
    refused = Refusals()
    asked = [refused.is_final(60, now) for now in (1000, 1030, 1059, 1060, 1061)]
    assert asked == [False, False, False, True, True]
    assert not refused.is_final(60, 1700)  # a day's next rotation begins anew
    assert refused.is_final(60, 1760)
    refused.forget()
    assert not refused.is_final(60, 1761)
    assert Refusals().is_final(0, 5)
