"""What stands before the servers: balancers and proxies over real sockets, before 18.16.1."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from sluice.clickhouse import front
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import QUERY_ID_REPLACED, TerminalServerError
from sluice.clickhouse.statements import wait_for_earlier
from sluice.clickhouse.tls import Tls
from sluice.core.errors import TerminalError
from sluice.ops.doctor_clickhouse import ReplicaLook, look_at_replica
from sluice.ops.doctor_findings import Finding
from sluice.ops.doctor_front import check_same_servers
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.running import ClickHouse
from tests.clickhouse.helpers import count, insert
from tests.support.fronts import balancing_connections, proxying


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(1, 2) as running:
        yield running


@pytest.fixture(scope="module")
def ports(cluster: Cluster) -> list[int]:
    return [server.settings.ports[0] for server in cluster.servers]


@pytest.fixture
def table(cluster: Cluster) -> Iterator[str]:
    """One Replicated table on both."""
    name = f"t{uuid.uuid4().hex[:8]}"
    cluster.execute(
        f"CREATE TABLE {name} (x UInt64) ENGINE = ReplicatedMergeTree('/t/{name}', '{{replica}}') "
        "ORDER BY x"
    )
    yield name
    for server in cluster.servers:
        with Server(server.url) as client:
            assert client.query(f"SELECT count() AS n FROM {name}") == [{"n": 0}]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "PATIENCE_SECONDS", 2.0)


def look(url: str, *tables: str) -> ReplicaLook:
    access = ClickHouseAccess({"s1": (url,)}, "default", "", "single")
    return look_at_replica(access, "s1", url, [("default", table) for table in tables])


def of_front(url: str, *tables: str) -> list[Finding]:
    return [finding for finding in look(url, *tables).findings if finding.check == "front"]


def test_the_server_itself(cluster: Cluster, table: str) -> None:
    (finding,) = of_front(cluster.servers[0].url, table)
    assert finding.level == "ok"


def test_the_embedded_server_itself(embedded_server: ClickHouse) -> None:
    assert [finding.level for finding in of_front(embedded_server.url)] == ["ok"]
    assert front.answers_before_the_body(embedded_server.url, Tls(), {}) == "early"


def test_a_balancer_before_replicas_of_one_table(ports: list[int], table: str) -> None:
    with balancing_connections(ports) as url:
        (finding,) = of_front(url, table)
    assert finding.level == "warning"
    assert "fresh connections reach 2 servers" in finding.what
    assert "Lost: failover by replica" in finding.what and "by a URL of its own" in finding.fix


def test_a_balancer_before_tables_with_windows_of_their_own(
    cluster: Cluster, ports: list[int]
) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    cluster.execute(f"CREATE TABLE {name} (x UInt64) ENGINE = MergeTree ORDER BY x")
    with balancing_connections(ports) as url:
        (finding,) = of_front(url, name)
    assert finding.level == "error"
    assert f"Lost: exactly once, since each server has a window of its own for default.{name}" in (
        finding.what
    )


@pytest.mark.slow
def test_a_proxy_that_sends_each_request_to_another_server(ports: list[int], table: str) -> None:
    with proxying(ports, buffers=False) as url:
        (finding,) = of_front(url, table)
    assert finding.level == "error"
    assert "requests on one connection reach 2 servers" in finding.what
    assert "Lost: the order of check and insert" in finding.what


@pytest.mark.slow
def test_a_proxy_that_keeps_bodies_back(ports: list[int], table: str) -> None:
    with proxying(ports[:1], buffers=True) as url:
        (finding,) = of_front(url, table)
    assert finding.level == "error"
    assert "Lost: the bound on how late an insert arrives" in finding.what
    assert "proxy_request_buffering off" in finding.fix


@pytest.mark.slow
def test_a_proxy_that_passes_bodies_on_as_they_come(ports: list[int], table: str) -> None:
    """It keeps its connection to the server open, so that the server reads to the end of what it
    refuses; that an insert has begun is seen all the same. It makes itself known."""
    with proxying(ports[:1], buffers=False, via="1.1 gate") as url:
        assert front.answers_before_the_body(url, Tls(), {}) == "late"
        (finding,) = of_front(url, table)
    assert finding.level == "warning"
    assert "an HTTP proxy stands before the server (Via: 1.1 gate)" in finding.what


@pytest.mark.parametrize("is_old", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_proxy_that_gives_queries_ids_of_its_own(
    cluster: Cluster, embedded_server: ClickHouse, table: str, is_old: bool
) -> None:
    """By them earlier attempts are found that still run. Nothing else of it is to be seen."""
    server = cluster.servers[0].settings.ports[0] if is_old else embedded_server.port
    with proxying([server], buffers=False, own_ids=True) as url:
        findings = of_front(url, *([table] if is_old else []))
        with Server(url) as client, pytest.raises(TerminalError, match="replaces query_id"):
            wait_for_earlier(client, "token", 10.0, lambda: 60.0)
    (finding,) = (each for each in findings if each.level == "error")
    assert "a proxy replaces query_id" in finding.what and "chproxy" in finding.fix
    assert "Lost: whether an insert of an earlier attempt still runs" in finding.what


def test_a_block_that_was_stored_under_another_query_id_is_not_settled(
    embedded_server: ClickHouse,
) -> None:
    """The server says under which it ran. It may be the only one that was ever sent, so the way
    has to be mended before the next one is in doubt; then the block is sent again, and known."""
    with Server(embedded_server.url) as direct:
        direct.execute("CREATE DATABASE ids")
        direct.execute(
            "CREATE TABLE ids.t (x UInt64) ENGINE = MergeTree ORDER BY x "
            "SETTINGS non_replicated_deduplication_window = 100"
        )
        with proxying([embedded_server.port], buffers=False, own_ids=True) as url:
            with Server(url) as client, pytest.raises(TerminalServerError) as caught:
                insert(client, "ids.t", ["x"], "SELECT toUInt64(1) AS x", "token")
            assert caught.value.name == QUERY_ID_REPLACED and "chproxy" in caught.value.hint
        insert(direct, "ids.t", ["x"], "SELECT toUInt64(1) AS x", "token")
        assert count(direct, "ids.t") == 1
        direct.execute("DROP DATABASE ids")


def test_two_urls_of_one_server(cluster: Cluster, ports: list[int]) -> None:
    first, second = cluster.servers
    with balancing_connections(ports[:1]) as url:
        looks = [("s1", each, look(each).front) for each in (first.url, second.url, url)]
        (finding,) = check_same_servers(looks)
    assert finding.level == "warning" and finding.where == "shard s1"
    assert f"{first.url} and {url} are the same server" in finding.what
    assert check_same_servers(looks[:2]) == []
