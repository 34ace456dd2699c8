"""What ClickHouse says when it does not take a block, each provoked on real 18.16.1 replicas, and
what becomes of the block: once the fault is gone, it is there once.

Not to be had from this server, however it is treated:

* 159 and 394 by themselves: an insert is not subject to max_execution_time, and KILL says that it
  cannot be killed; 159 comes within 319;
* 209, 210 and 32 as the server's own word: whoever would hear it has left. The same failures as
  the client sees them are here and in test_replicas;
* 203, 235, 236, 384 and 49: races inside of the server;
* 252 for too many partitions of a block, 164 for a replica that is not active, 497 and 516: of
  later versions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import TerminalError, TransientError
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from sluice.testbed.local.cluster.server import ClickHouseServer, Settings
from sluice.worker.worker_cache import WorkerCache
from tests.support.block_loader import Loader, create
from tests.support.replica_pair import ReplicaPair, refused, taken, taken_in_the_end
from tests.support.running_query import running_query
from tests.support.world import wait_for

#: For what replicas and ZooKeeper take some seconds for, beside other tests.
SECONDS = 120.0


@pytest.fixture(scope="module")
def world() -> Iterator[ReplicaPair]:
    with TemporaryDirectory(prefix="sluice-codes-") as folder:
        made = ReplicaPair(Path(folder))
        try:
            yield made
        finally:
            made.close()


@pytest.mark.slow
def test_319_then_286_for_the_same_block_and_for_others_until_its_quorum_is_there(
    world: ReplicaPair,
) -> None:
    loader = world.loader("quorum")
    with world.without_fetches():
        error = refused(loader)
        assert (error.code, error.action) == (319, "same-block")
        assert "Code: 159" in error.message  # its own time-out, nested
        error = refused(loader)  # the same block, though it is stored
        assert (error.code, error.action, error.alert) == (286, "back-off", True)
        loader.blocks += 1
        assert refused(loader).code == 286
        loader.blocks -= 1
    with Server(world.second.url) as server:
        server.execute(f"SYSTEM SYNC REPLICA {loader.table}", timeout_seconds=60)
    wait_for(lambda: _quorum_is_there(world, loader), SECONDS, "the quorum of the first attempt")
    before = loader.insert_counter()
    loader.insert()
    assert loader.insert_counter() == before  # it was known
    taken(loader)


def _quorum_is_there(world: ReplicaPair, loader: Loader) -> bool:
    return world.zookeeper.exists(f"{loader.path}/quorum/status") is None


@pytest.mark.slow
def test_225_when_the_server_loses_zookeeper_while_it_waits_and_242_as_long_as_it_has_none(
    world: ReplicaPair,
) -> None:
    loader, other = world.loader("quorum"), world.loader()
    loader.quorum_timeout_seconds = 25.0
    loader.cache.profiles.clear()
    with world.without_fetches():
        with Proxy(Inserts, ("127.0.0.1", world.first.settings.ports[0])) as way:
            loader.urls = (f"http://127.0.0.1:{way.port}",)
            way.ambush(1.0, lambda: world.way.strike(LinkFault(Kind.CUT)))
            try:
                error = refused(loader)
                # 225 where the cut met it while it waited; the others a step before or after.
                assert error.code in (225, 319, 999, 242) and error.action != "stop"
                # Others know that its session has ended before it does; 225 until then.
                wait_for(lambda: world.is_readonly(other), SECONDS, "its knowing that it has none")
                error = refused(other)
                assert (error.code, error.action) == (242, "next-replica")
            finally:
                world.way.heal()
        loader.urls = other.urls
    taken_in_the_end(loader)
    taken_in_the_end(other)


@pytest.mark.slow
def test_285_and_279_while_the_other_replica_is_away(world: ReplicaPair) -> None:
    waiting, viewed = world.loader("quorum"), world.loader()
    for each in (waiting, viewed):
        each.servers = [world.second, world.first]  # the last one is asked
    remote = f"remote('127.0.0.1:{world.second.tcp_port}', system, one)"
    view = world.view(viewed, f"id NOT IN (SELECT toUInt64(dummy) - 1 FROM {remote})")
    world.second.kill()
    try:
        wait_for(lambda: world.active(world.first, waiting) == 1, SECONDS, "the end of its session")
        error = refused(waiting)
        assert (error.code, error.action, error.alert) == (285, "back-off", True)
        error = refused(viewed)  # the table has the block, its view has not
        assert (error.code, error.action) == (279, "next-replica")
    finally:
        world.second.start()
    for each in (waiting, viewed):
        wait_for(lambda each=each: world.active(world.first, each) == 2, SECONDS, "its session")  # type: ignore[misc]
    taken(waiting)
    world.execute(f"DROP TABLE {view}")
    taken(viewed)


def test_999_and_244_when_zookeeper_lacks_nodes_of_the_table(world: ReplicaPair) -> None:
    loader = world.loader("quorum")
    quorum = f"{loader.path}/quorum"
    nodes = {name: world.zookeeper.get(f"{quorum}/{name}")[0] for name in ("last_part",)}
    world.zookeeper.delete(quorum, recursive=True)
    error = refused(loader)
    assert (error.code, error.action) == (244, "same-block")
    for name, value in {**nodes, "failed_parts": b""}.items():
        world.zookeeper.create(f"{quorum}/{name}", value, makepath=True)
    taken(loader)
    loader = world.loader()
    world.zookeeper.delete(f"{loader.path}/blocks", recursive=True)
    error = refused(loader)
    assert (error.code, error.action) == (999, "same-block")
    world.zookeeper.create(f"{loader.path}/blocks")
    taken(loader)


def test_252_while_merges_fall_behind(world: ReplicaPair) -> None:
    loader = world.loader(settings=" SETTINGS parts_to_throw_insert = 2")
    for each in world.cluster.servers:
        with Server(each.url) as server:
            server.execute("SYSTEM STOP MERGES")
    try:
        loader.insert()
        error = refused(loader)
        assert (error.code, error.action, error.alert) == (252, "back-off", True)
    finally:
        for each in world.cluster.servers:
            with Server(each.url) as server:
                server.execute("SYSTEM START MERGES")
    world.execute(f"OPTIMIZE TABLE {loader.table} FINAL")
    taken(loader)


def test_241_while_a_view_needs_more_memory_than_there_is(world: ReplicaPair) -> None:
    loader = world.loader(user="small")
    array = "range(toUInt64(20000) + id * 0)"
    world.view(loader, f"length({array}) > 0")
    world.profile("<max_memory_usage>10000000</max_memory_usage>")
    try:
        error = refused(loader)
        assert (error.code, error.action) == (241, "back-off")
        assert "insert" in error.message  # not one of the queries before it
    finally:
        world.profile("")
    taken(loader)


@pytest.mark.slow
def test_202_while_the_user_has_too_many_queries(world: ReplicaPair) -> None:
    """Whatever meets it first: before a block, its worker looks at the table."""
    loader = world.loader(user="small")
    world.profile("<max_concurrent_queries_for_user>1</max_concurrent_queries_for_user>")
    try:
        with (
            Server(world.first.url) as server,
            running_query(server, "another", user="small"),
        ):
            error = refused(loader, TransientError)
        assert (error.code, error.action) == (202, "back-off")
    finally:
        world.profile("")
    taken(loader)


def test_164_192_and_193_are_for_a_person(world: ReplicaPair) -> None:
    """They stop the partition; what was in doubt goes on once they are fixed."""
    loader = world.loader(user="small")
    world.profile("<readonly>1</readonly>")
    assert refused(loader, TerminalError).code == 164
    world.profile("")
    loader.user = "nobody"
    loader.cache.servers.clear()
    assert refused(loader, TerminalError).code == 192
    loader.user = "small"
    loader.cache.servers.clear()
    taken(loader)


@pytest.mark.slow
def test_a_server_that_freezes_with_the_block_is_in_doubt(world: ReplicaPair) -> None:
    """What 209 says, seen by the client."""
    loader = world.loader()
    with Proxy(Inserts, ("127.0.0.1", world.first.settings.ports[0])) as way:
        loader.urls = (f"http://127.0.0.1:{way.port}",)
        loader.insert()
        loader.insert_timeout_seconds = 2.0
        way.ambush(0.0, world.first.pause)
        try:
            error = refused(loader)
            assert (error.name, error.code) == ("SOCKET_TIMEOUT", 0)
            assert error.action == "same-block-then-next-replica"
        finally:
            world.first.resume()
        loader.insert_timeout_seconds = 30.0
        wait_for(lambda: world.active(world.second, loader) == 2, SECONDS, "the first's session")
        taken(loader)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of a server whose data is on a disk of 50 MB."""
    data = tmp_path / "server" / "data"
    data.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(data)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount a small disk here")
    try:
        yield data.parent
    finally:
        subprocess.run(["umount", "-l", str(data)], check=True)


def test_75_while_the_disk_is_full_and_other_replicas_take_the_block(
    world: ReplicaPair, small_disk: Path
) -> None:
    """Where later versions say 243: this one does so for merges only."""
    port = world.cluster.zookeeper.port
    third = ClickHouseServer(small_disk, Settings(replica="r3", zookeeper_port=port))
    third.start()
    try:
        servers = [third, world.second]
        table, path = create(servers)
        loader = Loader(servers, table, path, (third.url,))
        loader.insert()
        filling = small_disk / "data" / "filling"
        with filling.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        error = refused(loader)
        assert (error.code, error.action, error.alert) == (75, "next-replica", True)
        assert "insert" in error.message  # not one of the queries before it
        loader.urls = (third.url, world.second.url)
        loader.cache = WorkerCache()
        receipt = loader.insert()
        assert receipt.failed_over == (f"{third.url} {error.name}",)
        assert receipt.replica == world.second.url
        # A server that says so is done with the block.
        assert not receipt.in_doubt and not loader.cache.may_land
        filling.unlink()
        loader.assert_stored_once()
        loader.cache = WorkerCache()  # where the third does not rest
        assert loader.insert().replica == third.url
        loader.assert_stored_once()
    finally:
        third.kill()


@pytest.mark.slow
def test_a_repeat_waits_for_no_fewer_replicas_than_the_attempt_before_it(
    world: ReplicaPair,
) -> None:
    """With the quorum taken out of the configuration meanwhile, the server would say OK at once
    to a block that it knows. When the only replica that has it is away then, the others give its
    quorum up, forget the block, and it goes [measured: acknowledged, and gone 8 s later]."""
    loader = world.loader("quorum")
    with world.without_fetches():
        assert refused(loader).code == 319
        loader.durability, loader.recorded_quorum = "single", 2
        assert refused(loader).code == 286
        world.first.kill()
    try:
        wait_for(lambda: _quorum_is_there(world, loader), SECONDS, "the end of the first attempt")
        assert world.active(world.second, loader) == 1
    finally:
        world.first.start()
    wait_for(
        lambda: world.active(world.second, loader) == 2, SECONDS, "the first replica's session"
    )
    loader.assert_stored_once()  # the blocks before; this one went
    taken(loader)
