"""`sluice run` over https with a client's certificate, while the password changes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testbed.local.children import free_ports
from sluice.testbed.local.cluster.cluster import Cluster
from sluice.testbed.local.cluster.server import ClickHouseServer
from sluice.testbed.local.running import Broker
from tests.support.certificates import Authority, https_port
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
ROWS = 4_000


def user(password: str) -> str:
    return (
        f"<loader><password>{password}</password><profile>default</profile><quota>default</quota>"
        "<networks><ip>::/0</ip></networks></loader>"
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ClickHouseServer, str]]:
    """A server, and its https address. The test itself looks through its other port."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), 1, 1)
    (server,) = cluster.servers
    (port,) = free_ports(1)
    server.settings.more = https_port(port, *authority.sign("server"), authority.certificate)
    server.settings.users = user("first")
    cluster.start()
    yield server, f"https://127.0.0.1:{port}"
    cluster.kill()


@pytest.fixture
def world(
    tmp_path: Path, shared_broker: Broker, secured: tuple[ClickHouseServer, str]
) -> Iterator[World]:
    made = World(tmp_path, shared_broker, secured[0], name=f"l{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        made.close()


@pytest.mark.long
def test_a_password_changes_while_rows_are_loaded(
    world: World, secured: tuple[ClickHouseServer, str], authority: Authority
) -> None:
    server, url = secured
    table, topic = f"secured_{world.name}", f"orders-{world.name}"
    world.create_topic(topic)
    world.execute(
        f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
        f"'/clickhouse/tables/{table}', 'r1') ORDER BY (user_id, ts)"
    )
    certificate, key = authority.sign("loader", "locked")
    file = world.folder / "password"
    file.write_text("first\n")
    configuration = world.configure(
        {table: [topic]},
        url=url,
        clickhouse=f'user = "loader"\npassword = {{ file = "password" }}\n[clickhouse.tls]\n'
        f'ca = "{authority.certificate}"\ncertificate = "{certificate}"\nkey = "{key}"\n'
        'key_password = "locked"\n',
    )
    examined = world.sluice("doctor", str(configuration))
    assert examined.returncode == 0, examined.stdout + examined.stderr
    truth = Truth()
    world.produce(topic, ROWS, truth)
    driver = world.run(configuration)
    world.wait_for_rows(table, truth.rows, driver)
    server.settings.users = user("second")
    server.write_users()
    world.produce(topic, ROWS, truth, first=ROWS)
    wait_for(lambda: "WRONG_PASSWORD" in driver.text(), 90, "the refusal")
    file.write_text("second\n")
    world.wait_for_rows(table, truth.rows, driver)
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, table, truth)
    # Whoever asked first was refused: a worker, or the watch of the windows, which holds them back.
    assert '"level": "error"' not in driver.text(), driver.text()[-4000:]
    audited = world.sluice("audit", str(configuration))
    assert audited.returncode == 0, audited.stdout + audited.stderr


@pytest.mark.long
def test_a_wrong_password_ends_the_start_with_words(
    world: World, secured: tuple[ClickHouseServer, str], authority: Authority
) -> None:
    _, url = secured
    table, topic = f"closed_{world.name}", f"closed-{world.name}"
    world.create_topic(topic)
    certificate, key = authority.sign("late")
    (world.folder / "password").write_text("wrong\n")
    configuration = world.configure(
        {table: [topic]},
        url=url,
        clickhouse=f'user = "loader"\npassword = {{ file = "password" }}\n[clickhouse.tls]\n'
        f'ca = "{authority.certificate}"\ncertificate = "{certificate}"\nkey = "{key}"\n',
    )
    driver = world.run(configuration)
    assert driver.wait() != 0
    assert "WRONG_PASSWORD" in driver.text() and "wrong" not in driver.text().split()
