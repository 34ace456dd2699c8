"""Child processes of tests: free ports, waiting for readiness, ending by process id."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

START_TIMEOUT_SECONDS = 60.0


def free_ports(count: int) -> list[int]:
    """Distinct ports on loopback that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(
    ready: Callable[[], bool],
    process: subprocess.Popen[bytes],
    log: Path,
    timeout_seconds: float = START_TIMEOUT_SECONDS,
) -> None:
    """Wait for readiness; a process that ended or hangs fails with the tail of its log."""
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            what = f"ended with status {ended}" if ended is not None else "is not ready"
            tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
            raise RuntimeError(f"{process.args!r} {what}:\n{tail}")
        time.sleep(0.05)


def end_process(process: subprocess.Popen[bytes], timeout_seconds: float = 20.0) -> None:
    """SIGTERM, then SIGKILL; wakes a process that was stopped by SIGSTOP first."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(18)  # SIGCONT: a stopped process does not see SIGTERM
    process.terminate()
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def parents_by_pid() -> dict[int, int]:
    """The parent of every process."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            found[int(entry.name)] = int(stat[stat.rindex(")") + 2 :].split()[1])
    return found


def command_of(pid: int) -> str:
    """The command line of a process, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    """Whether a process descends from another."""
    while pid in parents and pid > 1:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False
