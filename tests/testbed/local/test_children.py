"""Children of a process that has much loaded already."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.decode.engine.session import session
from sluice.testbed.local.children import Child
from sluice.testbed.local.processes import command_of
from tests.support.world import wait_for


def test_a_child_starts_while_another_thread_has_the_engine(tmp_path: Path) -> None:
    """In a fork that runs Python, that thread's engine would be closed, for ever."""
    used, leave = threading.Event(), threading.Event()

    def use() -> None:
        session()
        used.set()
        leave.wait()

    other = threading.Thread(target=use, daemon=True)
    other.start()
    child = Child(tmp_path)
    pool = ThreadPoolExecutor(1)  # a child ends with the thread that started it
    try:
        assert used.wait(60)
        pool.submit(child.launch, ["sleep", "600"]).result(timeout=60)
        wait_for(lambda: command_of(child.pid).startswith("sleep"), 30, "the program")
        assert not signal_is_ignored(child.pid, signal.SIGPIPE)
        child.kill()
    finally:
        leave.set()
        other.join()
        pool.shutdown()


def signal_is_ignored(pid: int, number: int) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) >> (number - 1) & 1)
