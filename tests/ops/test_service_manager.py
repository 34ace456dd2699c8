"""What a service manager hears of a driver, over a real socket."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.errors import TransientError
from sluice.ops.running import STUCK_MS
from sluice.ops.service_manager import Notifier, notify_service_manager
from tests.driver.loop_world import World
from tests.ops.http.scene import run_of
from tests.ops.http.test_app import P0, loaded


class Manager:
    """The socket of a service manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.settimeout(30.0)

    def hear(self) -> list[str]:
        """The lines of the next message."""
        return self.socket.recv(1 << 16).decode().split("\n")


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(f"@sluice-{os.getpid()}" if request.param == "abstract" else f"{tmp_path}/s")
    with made.socket:
        yield made


def test_it_is_ready_once_a_connector_has_begun(manager: Manager) -> None:
    stopping = threading.Event()
    first = run_of(None, doing="taking over", error=TransientError("Kafka\nis away"))
    first.stopping = stopping
    second = run_of(None, "dc2")
    notifier = Notifier(manager.address, [first, second], 60.0)
    notifier.tell()
    why = "is taking over, which failed, and is tried again: Kafka is away"
    assert manager.hear() == [f"STATUS=dc1: {why}; dc2: is starting", "WATCHDOG=1"]
    second.loop = loaded()
    notifier.tell()
    status = f"STATUS=dc1: {why}; dc2: has loaded everything"
    assert manager.hear() == [status, "READY=1", "WATCHDOG=1"]
    notifier.tell()
    assert manager.hear() == [status, "WATCHDOG=1"]
    stopping.set()
    notifier.tell()
    assert manager.hear() == [status, "STOPPING=1", "WATCHDOG=1"]
    notifier.tell()
    assert manager.hear() == [status, "WATCHDOG=1"]


def test_the_watchdog_hears_nothing_of_loops_that_make_no_rounds(manager: Manager) -> None:
    runs = [run_of(loaded(), stopping=threading.Event()), run_of(loaded(), "dc2")]
    notifier = Notifier(manager.address, runs, 60.0)
    for run, said in ((runs[0], True), (runs[1], False)):
        assert run.loop is not None
        run.loop.round_at_ms -= STUCK_MS + 1_000
        notifier.tell()
        status, *more = manager.hear()
        assert f"{run.connector.name}: has made no round for 901 s" in status
        assert ("WATCHDOG=1" in more) is said


def told_of() -> list[threading.Thread]:
    """The threads that tell."""
    return [each for each in threading.enumerate() if each.name == "service-manager"]


def test_it_tells_by_itself_until_all_have_ended(manager: Manager) -> None:
    """Within half of the watchdog's time, and of a stop at once."""
    run = run_of(None, stopping=threading.Event())
    pid = str(os.getpid())
    told = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": pid}
    notify_service_manager([run], told)
    assert manager.hear() == manager.hear() == ["STATUS=dc1: is starting", "WATCHDOG=1"]
    run.loop = World([P0]).loop()
    run.loop.round_at_ms = time.time_ns() // 1_000_000
    while "READY=1" not in manager.hear():
        pass
    run.stopping.set()
    while "STOPPING=1" not in manager.hear():
        pass
    assert "WATCHDOG=1" in manager.hear()
    run.is_ended = True
    for thread in told_of():
        thread.join(30.0)
    assert not told_of()


def test_nobody_is_told_where_nobody_listens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(None, stopping=threading.Event())
    notify_service_manager([run], {})
    assert not [each for each in caplog.records if each.name == "sluice.service"]
    notify_service_manager([run], {"NOTIFY_SOCKET": "vsock:2:1234"})
    assert not told_of()
    assert "'vsock:2:1234' is no socket of this machine" in caplog.text
    Notifier(str(tmp_path / "gone"), [run]).tell()
    assert "the service manager's socket (NOTIFY_SOCKET): " in caplog.text


def test_another_process_watchdog_is_not_answered(manager: Manager) -> None:
    run = run_of(None, stopping=threading.Event())
    told = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    notify_service_manager([run], told)
    assert manager.hear() == ["STATUS=dc1: is starting"]
    run.is_ended = True
    run.stopping.set()
    for thread in told_of():
        thread.join(30.0)
