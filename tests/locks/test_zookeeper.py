"""The lock in ZooKeeper where connections break, processes fork, and nobody answers."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from sluice.locks import zookeeper
from sluice.locks.port import LockLostError, LocksAwayError, LockWaitError
from sluice.locks.zookeeper import ZooKeeperLocks, places_before
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from sluice.testbed.local.children import free_ports


@pytest.fixture
def way(zookeeper_port: int) -> Iterator[Proxy]:
    with Proxy(Inserts, ("127.0.0.1", zookeeper_port)) as standing:
        yield standing


@pytest.fixture
def name() -> str:
    return f"/tables/{uuid.uuid4().hex}"


def test_the_order_of_places_also_where_numbers_begin_anew() -> None:
    assert places_before(["0000000003", "0000000001", "0000000002"], "0000000003") == [
        "0000000001",
        "0000000002",
    ]
    assert places_before(["0000000001"], "0000000001") == []
    last = "2147483647"
    assert places_before(["-2147483647", "-2147483648", last], "-2147483647") == [
        last,
        "-2147483648",
    ]
    assert places_before(["-2147483648", last], last) == []


def test_a_connection_that_breaks_for_a_moment_costs_nothing(
    way: Proxy, zookeeper_port: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper, "ANSWER_SECONDS", 25.0)  # of a session of 30 s
    locks = ZooKeeperLocks(f"127.0.0.1:{way.port}", 30.0)
    other = ZooKeeperLocks(f"127.0.0.1:{zookeeper_port}", 30.0)
    held = locks.acquire(name, 30)
    way.strike(LinkFault(Kind.CUT))
    with pytest.raises(LockWaitError):
        other.acquire(name, 0.5)
    threading.Timer(0.5, way.heal).start()
    held.announce(1.0)  # it waits until ZooKeeper says that the lock is still ours
    assert held.release(is_over=True)
    assert other.acquire(name, 30).release(is_over=True)
    locks.close()
    other.close()


@pytest.mark.slow
def test_a_connection_that_stays_away_ends_the_lock(
    way: Proxy, zookeeper_port: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper itself ends the session; nothing is sent by who does not hear from it."""
    monkeypatch.setattr(zookeeper, "ANSWER_SECONDS", 2.0)
    locks = ZooKeeperLocks(f"127.0.0.1:{way.port}", 3.0)
    other = ZooKeeperLocks(f"127.0.0.1:{zookeeper_port}", 30.0)
    held = locks.acquire(name, 30)
    way.strike(LinkFault(Kind.HALF_OPEN))
    with pytest.raises(LockLostError):
        held.announce(5.0)
    assert other.acquire(name, 60).release(is_over=True)
    way.heal()
    assert locks.acquire(name, 60).release(is_over=True)  # in another session
    locks.close()
    other.close()


def test_without_its_place_nobody_announces(zookeeper_port: int, name: str) -> None:
    """Whoever took it away: then the next one has the lock, and must not be overtaken."""
    locks, other = (ZooKeeperLocks(f"127.0.0.1:{zookeeper_port}", 30.0) for _ in range(2))
    held = locks.acquire(name, 30)
    other._session().ask("delete", held.place)
    with pytest.raises(LockLostError):
        held.announce(30.0)
    assert not held.release(is_over=True)
    assert other.acquire(name, 5.0).release(is_over=True)
    locks.close()
    other.close()


def test_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "CONNECT_SECONDS", 0.5)
    locks = ZooKeeperLocks(f"127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(LocksAwayError, match=r"127\.0\.0\.1"):
        locks.acquire("a", 30)
    monkeypatch.setattr(zookeeper, "_Session", None)  # nobody is asked again so soon
    with pytest.raises(LocksAwayError, match="did not answer lately"):
        locks.acquire("a", 30)
    locks.close()


_FORKED = """
import os, sys
from sluice.locks.zookeeper import ZooKeeperLocks
locks = ZooKeeperLocks(sys.argv[1])
held = locks.acquire("parent", 30)
child = os.fork()
if child == 0:
    mine = locks.acquire("child", 30)  # in a session of its own
    mine.announce(1.0)
    mine.release(is_over=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
held.announce(1.0)
assert held.release(is_over=True)
print("done", flush=True)
locks.acquire("left", 30)  # a process may end with a lock; its threads do not keep it
"""


def test_a_forked_worker_has_a_session_of_its_own_and_no_thread_keeps_a_process(
    zookeeper_port: int,
) -> None:
    hosts = f"127.0.0.1:{zookeeper_port}/{uuid.uuid4().hex}/loaders"  # made when it is missing
    command = [sys.executable, "-c", _FORKED, hosts]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.slow
def test_no_two_send_at_once_while_connections_break(
    zookeeper_port: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent goes on when its sender has lost its session, as an insert does."""
    monkeypatch.setattr(zookeeper, "ANSWER_SECONDS", 1.0)
    sent: list[tuple[float, float]] = []
    lost = [0]
    begun_at = time.monotonic()

    def goes_on() -> bool:
        """For eight seconds; on a machine that is busy, until something was sent at all."""
        return time.monotonic() < begun_at + (8.0 if len(sent) >= 2 else 120.0)

    def load(number: int, way: Proxy) -> None:
        chance = random.Random(number)
        locks = ZooKeeperLocks(f"127.0.0.1:{way.port}", 1.0)
        while goes_on():
            try:
                held = locks.acquire(name, 3.0)
                seconds = chance.uniform(0.01, 2.5)
                began = time.monotonic()
                held.announce(seconds)
                left = began + seconds - time.monotonic()
                if left <= 0:
                    held.release(is_over=True)
                    continue
                begin = time.monotonic()
                if chance.random() < 0.3:
                    locks.close()
                time.sleep(chance.uniform(0.0, left))
                # What is sent ends when its time is over, however late this thread wakes up.
                sent.append((begin, min(time.monotonic(), began + seconds)))
                lost[0] += not held.release(is_over=True)
            except (LockLostError, LockWaitError, LocksAwayError):
                time.sleep(0.05)
        locks.close()

    ways = [Proxy(Inserts, ("127.0.0.1", zookeeper_port)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        loading = [pool.submit(load, *each) for each in enumerate(ways)]
        chance = random.Random(7)
        while goes_on():
            way = chance.choice(ways)
            way.strike(LinkFault(chance.choice((Kind.CUT, Kind.HALF_OPEN, Kind.HOLD))))
            time.sleep(chance.uniform(0.1, 2.0))
            way.heal()
        for each in loading:
            each.result(60)
    for way in ways:
        way.close()
    sent.sort()
    assert len(sent) >= 2
    for (_, end), (begin, _) in pairwise(sent):
        assert end <= begin
    print(f"{len(sent)} were sent, {lost[0]} of them by those who lost their session meanwhile")
