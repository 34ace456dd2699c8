"""What a loader may expect of a lock: of the one in ZooKeeper, and of the one in memory."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise

import pytest
from kazoo.client import KazooClient

from sluice.locks import zookeeper
from sluice.locks.port import HeldLock, LockLostError, Locks, LockWaitError
from sluice.locks.zookeeper import ZooKeeperLocks
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts
from tests.locks.memory import Ensemble, MemoryLocks
from tests.support.world import wait_for

PATIENCE = 60.0


class Process:
    """A process that may lose its session."""

    def __init__(self, locks: Locks, lose: Callable[[], None]) -> None:
        self.locks = locks
        self.lose = lose


Make = Callable[[], Process]


@pytest.fixture(params=["memory", "zookeeper"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes processes of one world."""
    with ExitStack() as stack:
        if request.param == "memory":
            ensemble = Ensemble()

            def in_memory() -> Process:
                locks = MemoryLocks(ensemble)
                return Process(locks, lambda: ensemble.expire(locks))

            yield in_memory
            return
        monkeypatch.setattr(zookeeper, "ANSWER_SECONDS", 3.0)
        port = request.getfixturevalue("zookeeper_port")

        def in_zookeeper() -> Process:
            way = stack.enter_context(Proxy(Inserts, ("127.0.0.1", port)))
            locks = ZooKeeperLocks(f"127.0.0.1:{way.port}", 20.0)
            stack.callback(locks.close)

            def lose() -> None:
                way.strike(LinkFault(Kind.CUT))
                expire(locks, port)

            return Process(locks, lose)

        yield in_zookeeper


def expire(locks: ZooKeeperLocks, port: int) -> None:
    """End the session at once, from elsewhere: as ZooKeeper does when it hears nothing of it."""
    assert locks._kept is not None
    client = locks._kept._client
    known = client._session_id, client._session_passwd
    elsewhere = KazooClient(f"127.0.0.1:{port}", client_id=known)
    elsewhere.start(timeout=30)
    elsewhere.stop()
    elsewhere.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as running:
        yield running


@pytest.fixture
def name() -> str:
    return f"/tables/{uuid.uuid4().hex}"


def queue_up(
    pool: ThreadPoolExecutor, process: Process, name: str, seconds: float = PATIENCE
) -> Future[HeldLock]:
    """Ask in another thread, and return when it stands in the queue."""
    before = _length(process.locks, name)
    asked = pool.submit(process.locks.acquire, name, seconds)
    wait_for(lambda: asked.done() or _length(process.locks, name) > before, 30, "a place")
    return asked


def _length(locks: Locks, name: str) -> int:
    if isinstance(locks, MemoryLocks):
        return len(locks.ensemble.queues.get(name, []))
    assert isinstance(locks, ZooKeeperLocks)
    folder = f"{locks._root}/{zookeeper.quote(name, safe='')}/queue"
    session = locks._session()
    return 0 if session.ask("exists", folder) is None else len(session.ask("get_children", folder))


def test_one_after_the_other_in_the_order_of_their_coming(
    make: Make, pool: ThreadPoolExecutor, name: str
) -> None:
    first, second, third = make(), make(), make()
    held = first.locks.acquire(name, PATIENCE)
    later = [queue_up(pool, process, name) for process in (second, third)]
    other = third.locks if isinstance(third.locks, MemoryLocks) else make().locks
    assert other.acquire(f"{name}/other", PATIENCE).release(is_over=True)
    held.announce(PATIENCE)
    assert not any(each.done() for each in later)
    assert held.release(is_over=True)
    second_held = later[0].result(PATIENCE)
    assert not later[1].done()
    assert second_held.release(is_over=True)  # it has sent nothing
    last = later[1].result(PATIENCE)
    last.announce(0.1)
    last.announce(PATIENCE)
    assert last.release(is_over=True)
    assert first.locks.acquire(name, PATIENCE).release(is_over=True)


def test_who_gives_up_leaves_the_queue(make: Make, pool: ThreadPoolExecutor, name: str) -> None:
    first, second, third = make(), make(), make()
    held = first.locks.acquire(name, PATIENCE)
    impatient = queue_up(pool, second, name, 1.0)
    patient = queue_up(pool, third, name)
    with pytest.raises(LockWaitError):
        impatient.result(PATIENCE)
    assert held.release(is_over=True)
    assert patient.result(PATIENCE).release(is_over=True)
    assert second.locks.acquire(name, PATIENCE).release(is_over=True)


def test_who_is_lost_while_sending_keeps_the_next_waiting(
    make: Make, pool: ThreadPoolExecutor, name: str
) -> None:
    first, second = make(), make()
    held = first.locks.acquire(name, PATIENCE)
    seconds = 2.0
    began = time.monotonic()
    held.announce(seconds)
    waiting = queue_up(pool, second, name)
    first.lose()
    with pytest.raises(LockLostError):
        for _ in range(100):  # until its session has ended
            held.announce(0.0)
    next_held = waiting.result(PATIENCE)
    assert time.monotonic() - began >= seconds
    assert not held.release(is_over=True)
    next_held.announce(1.0)
    assert next_held.release(is_over=True)
    assert second.locks.acquire(name, PATIENCE).release(is_over=True)


def test_who_is_lost_before_sending_keeps_nobody_waiting(make: Make, name: str) -> None:
    first, second = make(), make()
    held = first.locks.acquire(name, PATIENCE)
    first.lose()
    assert second.locks.acquire(name, PATIENCE).release(is_over=True)
    with pytest.raises(LockLostError):
        held.announce(1.0)


def test_an_unanswered_block_keeps_the_next_waiting(make: Make, name: str) -> None:
    first, second = make(), make()
    held = first.locks.acquire(name, PATIENCE)
    began = time.monotonic()
    held.announce(1.0)
    assert held.release(is_over=False)
    assert second.locks.acquire(name, PATIENCE).release(is_over=True)
    assert time.monotonic() - began >= 1.0
    # It was waited for once: who had to wait again would not have the patience.
    assert first.locks.acquire(name, 0.9).release(is_over=True)


@pytest.mark.slow
def test_what_one_has_waited_for_the_next_need_not(make: Make, name: str) -> None:
    """However short everyone's patience is, somebody gets it."""
    first, second, third = make(), make(), make()
    held = first.locks.acquire(name, PATIENCE)
    began = time.monotonic()
    held.announce(5.0)
    assert held.release(is_over=False)
    with pytest.raises(LockWaitError, match="under way"):
        second.locks.acquire(name, 3.0)
    again = time.monotonic()
    assert third.locks.acquire(name, PATIENCE).release(is_over=True)
    assert time.monotonic() - began >= 5.0
    assert time.monotonic() - again < 5.0


def test_threads_of_one_queue_never_hold_it_together(
    make: Make, pool: ThreadPoolExecutor, name: str
) -> None:
    sent: list[tuple[float, float]] = []

    def load(process: Process) -> None:
        for _ in range(10):
            held = process.locks.acquire(name, PATIENCE)
            began = time.monotonic()
            held.announce(1.0)
            threading.Event().wait(0.01)
            sent.append((began, time.monotonic()))
            held.release(is_over=True)

    for done in [pool.submit(load, make()) for _ in range(4)]:
        done.result(PATIENCE)
    sent.sort()
    assert len(sent) == 40
    assert all(end <= begin for (_, end), (begin, _) in pairwise(sent))
