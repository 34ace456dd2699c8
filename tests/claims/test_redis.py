"""What a store in Redis does when its servers fail, refuse, or are others than they were."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from sluice.claims.connection import Connection, Endpoint, command
from sluice.claims.masters import address_of, slots
from sluice.claims.port import ClaimStore, StoreAwayError, StoreRefusedError
from sluice.claims.redis import RedisStore
from sluice.claims.stores import StoreAccess, open_store
from sluice.core.claims import KEY_BYTES
from sluice.core.errors import ConfigurationError
from sluice.core.server_runs import is_same_run
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.local.children import free_ports
from tests.claims.conformance import NOW, UNTIL, some_keys, some_owners, told
from tests.support.certificates import Authority
from tests.support.redis_server import RedisServer, run_cluster, run_redis
from tests.support.world import wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with run_redis("appendonly yes", "appendfsync always") as running:
        yield running


def opened(url: str, password: str = "", ca_file: str = "") -> ClaimStore:
    return open_store(StoreAccess(url, password, ca_file))


class Breaking:
    """Tells when so many bytes have come on a connection that it is in the middle of the claims."""

    def __init__(self) -> None:
        self._bytes = 0

    def feed(self, data: bytes) -> bool:
        self._bytes += len(data)
        return self._bytes > 3_000_000


def test_a_password_is_needed_and_shown_to_nobody() -> None:
    with run_redis(password="right") as server:
        with pytest.raises(StoreRefusedError, match="NOAUTH"):
            opened(server.url).run()
        for wrong in (StoreAccess(server.url, "wrong"), StoreAccess(server.url, "wr ong\r\n$")):
            with pytest.raises(StoreRefusedError, match="WRONGPASS") as raised:
                open_store(wrong).run()
            assert "wr" not in raised.value.message.replace("WRONGPASS", "").replace("wrote", "")
        access = StoreAccess(server.url, "right")
        assert "right" not in repr(access) + repr(address_of(server.url, "right", ""))
        assert open_store(pickle.loads(pickle.dumps(access))).run()


def test_a_user_with_rights_of_its_own() -> None:
    with run_redis("user loader on >secret ~sluice:* +@all -config") as server:
        store = opened(server.url.replace("//", "//loader@"), "secret")
        keys, owners = some_keys(10), some_owners(10)
        assert told(store.claim(keys, owners, UNTIL, NOW)) == told(owners)
        # What it may not ask is not known, and nothing else is lost
        assert "appendonly is off" in store.facts().loses
        assert told(store.claim(keys, some_owners(10, 3), UNTIL, NOW)) == told(owners)
        for denied in ("-hmget", "-evalsha"):
            server.ask("ACL", "SETUSER", "loader", denied)
            with pytest.raises(StoreRefusedError) as raised:
                store.claim(keys, owners, UNTIL, NOW)
            assert "right to use every" in raised.value.hint


@pytest.mark.slow
def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("redis")
    (port,) = free_ports(1)
    settings = (
        f"tls-port {port}",
        f"tls-cert-file {certificate}",
        f"tls-key-file {key}",
        f"tls-ca-cert-file {authority.certificate}",
        "tls-auth-clients no",
    )
    with run_redis(*settings) as server:
        url = f"rediss://127.0.0.1:{port}/3"
        store = opened(url, ca_file=str(authority.certificate))
        keys, owners = some_keys(30_000), some_owners(30_000)
        assert told(store.claim(keys, owners, UNTIL, NOW)) == told(owners)
        assert told(store.claim(keys, some_owners(30_000, 3), UNTIL, NOW)) == told(owners)
        store.close()
        with pytest.raises(StoreRefusedError, match="certificate"):
            opened(url).run()
        with pytest.raises(StoreRefusedError, match="ca_file"):
            opened(url, ca_file=str(tmp_path / "none.pem"))
        # Without TLS nothing answers to it
        monkeypatch.setattr("sluice.claims.connection._CONNECT_SECONDS_MAX", 1.0)
        with pytest.raises(StoreAwayError):
            opened(f"rediss://127.0.0.1:{server.port}", ca_file=str(authority.certificate)).run()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://a:1",
        "redis://a",
        "redis://a:b",
        "redis://a:1,b:2/0",
        "redis://u:geheim@a:1/0",
        "redis://a:1/x",
        "redis://a:1/0/1",
        "redis-sentinel://a:1",
        "redis-cluster://a:1/1",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        opened(url)
    assert "geheim" not in raised.value.message + raised.value.hint


def test_addresses() -> None:
    found = address_of("rediss-sentinel://me@[::1]:1,b:2/main/4", "", "")
    assert found.servers == (("::1", 1), ("b", 2)) and found.tls is not None
    assert (found.scheme, found.master, found.database) == ("redis-sentinel", "main", 4)
    assert found.user == "me" and address_of("redis://a:1", "", "").database == 0


def test_databases_are_apart(server: RedisServer) -> None:
    one, other = opened(f"{server.url[:-1]}1"), opened(f"{server.url[:-1]}2")
    keys = some_keys(10)
    one.claim(keys, some_owners(10), UNTIL, NOW)
    assert told(other.claim(keys, some_owners(10, 3), UNTIL, NOW)) == told(some_owners(10, 3))
    assert not is_same_run(one.run(), other.run())


def test_a_server_that_drops_keys_is_refused(server: RedisServer) -> None:
    with run_redis("maxmemory 100mb", "maxmemory-policy allkeys-lru") as evicting:
        store = opened(evicting.url)
        with pytest.raises(StoreRefusedError, match="allkeys-lru") as raised:
            store.run()
        assert "noeviction" in raised.value.hint
        evicting.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert store.run() and store.facts().max_bytes == 100 << 20
    assert opened(server.url).facts().max_bytes is None


@pytest.mark.slow
def test_a_full_server_takes_nothing_and_loses_nothing() -> None:
    with run_redis("maxmemory 12mb") as server:
        store = opened(server.url)
        run, keys, owners = store.run(), some_keys(5000), some_owners(5000)
        store.claim(keys, owners, UNTIL, NOW)
        with pytest.raises(StoreAwayError, match="full"):
            store.claim(some_keys(400_000, 5), some_owners(400_000), UNTIL, NOW)
        # Those that came before it was full are there: the same claims go on once there is room
        assert store.run() == run
        store.release(keys[:10], owners[:10])
        assert store.sweep(NOW, 0.0) == 0
        found = opened(server.url).facts()
        assert found.max_bytes is not None and found.used_bytes > 0.9 * found.max_bytes
        server.ask("CONFIG", "SET", "maxmemory", "200mb")
        assert told(store.claim(keys[10:], owners[:-10], UNTIL, NOW)) == told(owners[10:])
        owners = some_owners(400_000)
        found = store.claim(some_keys(400_000, 5), owners, UNTIL, NOW)
        assert (found == owners).all()


def test_another_program_has_the_name(server: RedisServer) -> None:
    store, keys, owners = opened(server.url), some_keys(1, 77), some_owners(1)
    life = store.run().removesuffix("@0").rpartition("-")[2]
    name = f"sluice:2:{life}:{{{keys[0, 14] % 64:02x}}}"
    server.ask("SET", name, "x")
    with pytest.raises(StoreRefusedError, match="WRONGTYPE"):
        store.claim(keys, owners, UNTIL, NOW)
    server.ask("DEL", name)
    assert told(store.claim(keys, owners, UNTIL, NOW)) == told(owners)


def test_a_killed_server_keeps_claims_and_is_another_run(server: RedisServer) -> None:
    store, keys, owners = opened(server.url), some_keys(20_000), some_owners(20_000)
    store.claim(keys, owners, UNTIL, NOW)
    store.keep({"alive/a": "5"}, store.run())
    run = store.run()
    assert is_same_run(run, store.run()) and store.facts().loses == ""
    server.kill()
    for _ in range(2):
        with pytest.raises(StoreAwayError):
            store.claim(keys, owners, UNTIL, NOW)
    server.start()
    # Nobody who was told a run claims in another one
    for _ in range(2):
        with pytest.raises(StoreAwayError, match="another run"):
            store.claim(keys, owners, UNTIL, NOW)
    assert not is_same_run(run, store.run())
    assert told(store.claim(keys, some_owners(20_000, 3), UNTIL, NOW)) == told(owners)
    assert store.notes()["alive/a"] == "5"


def test_a_sweep_goes_round(server: RedisServer) -> None:
    store = RedisStore(address_of(f"{server.url[:-1]}7", "", ""))
    ends = np.array([[0] * KEY_BYTES, [255] * KEY_BYTES], np.uint8)
    store.claim(ends, some_owners(2), NOW - 1, NOW - 1)
    assert store.sweep(NOW, 0.0) == 1
    store._swept = 63
    assert store.sweep(NOW, 0.0) == 1
    store.claim(ends, some_owners(2), NOW - 1, NOW - 1)
    assert store.sweep(NOW, 0.0) == 1


def test_an_emptied_database_is_another_run(server: RedisServer) -> None:
    store = opened(f"{server.url[:-1]}5")
    run = store.run()
    server.ask("FLUSHALL")
    assert not is_same_run(run, store.run())
    assert opened(f"{server.url[:-1]}5").run() == store.run()


def test_who_still_claims_in_an_emptied_database_takes_no_key_of_a_row(server: RedisServer) -> None:
    """A task is in the middle of its claims when the database is emptied. It inserts nothing, but
    its claims would be there before those that are made again from the tables."""
    url = f"{server.url[:-1]}6"
    late, again = opened(url), opened(url)
    keys, owners = some_keys(100), some_owners(100)
    late.run()
    again.run()
    again.claim(keys, owners, UNTIL, NOW)
    server.ask("FLUSHALL")
    late.claim(keys, some_owners(100, 3), UNTIL, NOW)
    again.run()
    assert told(again.claim(keys, owners, UNTIL, NOW)) == told(owners)
    late.run()
    assert told(late.claim(keys, some_owners(100, 3), UNTIL, NOW)) == told(owners)


def test_scripts_that_somebody_dropped_are_loaded_again(server: RedisServer) -> None:
    store, keys, owners = opened(server.url), some_keys(10, 31), some_owners(10)
    store.claim(keys, owners, UNTIL, NOW)
    server.ask("SCRIPT", "FLUSH")
    with pytest.raises(StoreAwayError, match="NOSCRIPT"):
        store.release(keys, owners)
    store.release(keys, owners)
    assert told(store.claim(keys, some_owners(10, 3), UNTIL, NOW)) == told(some_owners(10, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.CUT, Kind.HALF_OPEN])
def test_a_connection_that_breaks_in_the_middle(
    server: RedisServer, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call raises, and a repeat finds what of it was done: each key has its owner."""
    monkeypatch.setattr("sluice.claims.connection._REPLY_SECONDS_MAX", 5.0)
    keys, owners = some_keys(300_000, 41 + (kind is Kind.CUT)), some_owners(300_000)
    with Proxy(Breaking, ("127.0.0.1", server.port)) as proxy:
        store = opened(f"redis://127.0.0.1:{proxy.port}/0")
        store.run()
        there = opened(server.url).facts().keys or 0
        proxy.ambush(0.0, lambda: proxy._set(LinkFault(kind)))
        with pytest.raises(StoreAwayError):
            store.claim(keys, owners, UNTIL, NOW)
        assert not proxy.disarm()
        proxy.heal()
        monkeypatch.undo()  # a server that has much else to do may take longer
        assert 1000 < (opened(server.url).facts().keys or 0) - there < 290_000
        others = some_owners(300_000, 3)
        found = opened(server.url).claim(keys, others, UNTIL, NOW)
        assert ((found == owners).all(axis=1) | (found == others).all(axis=1)).all()
        assert (store.claim(keys, owners, UNTIL, NOW) == found).all()


def test_an_idle_connection_that_was_closed_is_made_anew(server: RedisServer) -> None:
    store = opened(server.url)
    run = store.run()
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    assert store.run() == run
    server.ask("CLIENT", "KILL", "TYPE", "normal")
    with pytest.raises(StoreAwayError):
        store.claim(some_keys(1), some_owners(1), UNTIL, NOW)


def test_replies_in_any_pieces() -> None:
    """Whatever a reply says, it ends where it ends, wherever a piece does."""
    import socket

    text = b"$3\r\nabc\r\n$-1\r\n$4\r\n\r\n:\r\r\n*2\r\n$0\r\n\r\n:-1\r\n:7\r\n"
    for piece in (1, 2, 5, 7, 1000):
        ours, theirs = socket.socketpair()
        connection = Connection.__new__(Connection)
        connection.endpoint = Endpoint("a", 1)
        connection._received, connection._at, connection._socket = bytearray(), 0, ours

        def send(text: bytes = text, piece: int = piece, theirs: socket.socket = theirs) -> None:
            for begin in range(0, len(text), piece):
                theirs.sendall(text[begin : begin + piece])
                time.sleep(0.0002)

        thread = threading.Thread(target=send)
        thread.start()
        found = [connection.reply() for _ in range(5)]
        assert found == [b"abc", None, b"\r\n:\r", [b"", -1], 7]
        thread.join()
        ours.close()
        theirs.close()


def test_commands_are_what_the_protocol_says() -> None:
    assert command(b"GET", b"c\n") == b"*2\r\n$3\r\nGET\r\n$2\r\nc\n\r\n"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "Another program"),
        ("ERR Error running script (call to f_1): @user_script:9: WRONGTYPE Op", "Another program"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", "right to use every"),
        ("ERR The user executing the script can't run this command or su", "right to use every"),
        ("ERR ACL failure in script: User loader has no permissions to r", "right to use every"),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 1", "more memory"),
        ("ERR Error running script (call to f_1): @user_script:9: -OOM command", "more memory"),
        ("ERR Error running script (call to f_1): NAMESAKE two topics", "table entry"),
    ],
)
def test_errors_of_scripts(text: str, hint: str) -> None:
    """Before Redis 7 the error is somewhere in what the script says."""
    import socket

    ours, theirs = socket.socketpair()
    connection = Connection.__new__(Connection)
    connection.endpoint = Endpoint("a", 1)
    connection._received, connection._at, connection._socket = bytearray(), 0, ours
    theirs.sendall(f"-{text}\r\n".encode())
    with pytest.raises((StoreAwayError, StoreRefusedError)) as raised:
        connection.reply()
    assert hint in raised.value.hint and text[:30] in raised.value.message
    assert not connection.is_open
    theirs.close()


def test_a_replica_takes_no_claims(server: RedisServer) -> None:
    with run_redis(f"replicaof 127.0.0.1 {server.port}") as replica:
        with pytest.raises(StoreAwayError, match="replica"):
            opened(replica.url).run()
        store, keys = opened(server.url), some_keys(1, 51)
        wait_for(lambda: "failover" in store.facts().loses, 60, "the replica's connection")
        # A master that becomes one while a connection is open, and a master again
        run = store.run()
        server.ask("REPLICAOF", "127.0.0.1", str(replica.port))
        with pytest.raises(StoreAwayError, match="READONLY"):
            store.claim(keys, some_owners(1), UNTIL, NOW)
        with pytest.raises(StoreAwayError, match="replica"):
            store.run()
        server.ask("REPLICAOF", "NO", "ONE")
        assert not is_same_run(run, store.run())


@pytest.mark.slow
def test_sentinels_name_the_master(tmp_path: Path) -> None:
    with ExitStack() as stack:
        master = stack.enter_context(run_redis())
        replica = stack.enter_context(run_redis(f"replicaof 127.0.0.1 {master.port}"))
        sentinels = []
        for number in range(3):
            settings = (
                f"sentinel monitor main 127.0.0.1 {master.port} 2",
                "sentinel down-after-milliseconds main 2000",
                "sentinel failover-timeout main 3000",
            )
            sentinel = RedisServer(tmp_path / str(number), *settings)
            stack.callback(sentinel.stop)
            sentinel.start("--sentinel")
            sentinels.append(sentinel)
        (nobody,) = free_ports(1)
        places = ",".join(f"127.0.0.1:{port}" for port in (nobody, *[s.port for s in sentinels]))
        with pytest.raises(StoreAwayError, match="knows no master 'other'"):
            opened(f"redis-sentinel://{places}/other").run()
        store = opened(f"redis-sentinel://{places}/main/0")
        keys, owners = some_keys(1000), some_owners(1000)
        run = store.run()
        store.claim(keys, owners, UNTIL, NOW)
        assert isinstance(store, RedisStore)
        # What this connection has written
        assert store._connected().connections[0].call(b"WAIT", b"1", b"15000") == 1
        for sentinel in sentinels:
            wait_for(lambda each=sentinel: knows_all(each), 60, "what the sentinels know")  # type: ignore[misc]
        master.kill()
        with pytest.raises(StoreAwayError):
            store.claim(keys, owners, UNTIL, NOW)
        # A sentinel that was not on time does nothing for half a minute
        wait_for(lambda: bool(store.run()), 120, "another master")
        now = store.run()
        assert not is_same_run(run, now)
        assert told(store.claim(keys, some_owners(1000, 3), UNTIL, NOW)) == told(owners)
        assert isinstance(replica.ask("DBSIZE"), int)


def knows_all(sentinel: RedisServer) -> bool:
    """Whether a sentinel knows the replica, and the other two sentinels."""
    replicas, others = (
        _list(sentinel.ask("SENTINEL", word, "main")) for word in ("REPLICAS", "SENTINELS")
    )
    return len(replicas) == 1 and len(others) == 2


def _list(reply: object) -> list[object]:
    assert isinstance(reply, list)
    return reply


def test_slots_are_those_of_the_server() -> None:
    with run_cluster(1) as (node,):
        names = np.array([list(b"sluice:%06x" % (number << 9)) for number in range(50)], np.uint8)
        asked = [node.ask("CLUSTER", "KEYSLOT", bytes(name).decode()) for name in names]
        assert slots(names).tolist() == asked


@pytest.mark.slow
def test_a_cluster_whose_slots_move_and_whose_nodes_end() -> None:
    with run_cluster() as servers:
        places = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        store, keys, owners = (
            opened(f"redis-cluster://{places}"),
            some_keys(30_000),
            some_owners(30_000),
        )
        run = store.run()
        store.claim(keys, owners, UNTIL, NOW)
        store.keep({"alive/a": "1"}, store.run())
        assert all(
            isinstance(size := server.ask("DBSIZE"), int) and size > 30 for server in servers
        )
        with pytest.raises(StoreRefusedError, match="node of a cluster"):
            opened(servers[0].url).run()
        # One of them has an older note than the others: what it says holds
        store.keep({"alive/a": "2"}, store.run())
        tag = RedisStore(address_of(f"redis-cluster://{places}", "", ""))._connected().tags[1]
        servers[1].ask("HSET", "sluice:2:notes" + tag.decode(), "alive/a", "1 1")
        assert store.notes()["alive/a"] == "1"
        servers[1].kill()
        with pytest.raises(StoreAwayError):
            store.claim(keys, owners, UNTIL, NOW)
        servers[1].start()
        wait_for(lambda: bool(store.run()), 120, "the cluster with all its nodes")
        assert not is_same_run(run, store.run())
        assert told(store.claim(keys, some_owners(30_000, 3), UNTIL, NOW)) == told(owners)
        # A slot goes to another node, without what is in it
        run, tags = (
            store.run(),
            np.array([list(b"%02x" % number) for number in range(64)], np.uint8),
        )
        number, slot = next((at, slot) for at, slot in enumerate(slots(tags)) if slot < 5000)
        for key in (f"sluice:2::{{{number:02x}}}", f"sluice:2::{{{number:02x}}}:stretches"):
            assert servers[0].ask("DEL", key) == 1
        ids = ids_of(servers)
        moved = ids[2]
        # Who takes it in has the last word: else it believes what the other one said before
        servers[2].ask("CLUSTER", "SETSLOT", str(slot), "IMPORTING", ids[0])
        for server in (servers[2], servers[0], servers[1]):
            server.ask("CLUSTER", "SETSLOT", str(slot), "NODE", moved)
        there = keys[keys[:, 14] % 64 == number]
        owners = some_owners(len(there), 5)
        with pytest.raises(StoreAwayError, match="MOVED"):
            store.claim(there, owners, UNTIL, NOW)
        assert not is_same_run(run, store.run())
        assert told(store.claim(there, owners, UNTIL, NOW)) == told(owners)
        assert servers[2].ask("EXISTS", f"sluice:2::{{{number:02x}}}") == 1


def ids_of(servers: list[RedisServer]) -> list[str]:
    found = [server.ask("CLUSTER", "MYID") for server in servers]
    return [text.decode() for text in found if isinstance(text, bytes)]
