"""CPU time and memory of processes, read from /proc; and finding the processes of a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: In the environment of a driver, and so of its JVM and of all its workers.
RUN_VARIABLE = "SLUICE_LOCAL_RUN"

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used since it started.

    :param cpu_seconds: in user and kernel mode, of all its threads, and of its children
        that ended and were waited for.
    :param peak_bytes: largest resident memory, or what the kernel remembers of it.
    :param resident_bytes: memory that is resident now.
    """

    pid: int
    parent: int
    name: str
    cpu_seconds: float
    peak_bytes: int
    resident_bytes: int = 0


def usage(pid: int) -> Usage | None:
    """The usage of a process, None if there is no such process any more."""
    try:
        head, _, tail = (_PROC / str(pid) / "stat").read_text().rpartition(")")
        status = (_PROC / str(pid) / "status").read_text()
    except OSError:
        return None
    fields = tail.split()
    if fields[0] in "ZX":
        return None
    return Usage(
        pid=pid,
        parent=int(fields[1]),
        name=head.partition("(")[2],
        cpu_seconds=sum(map(int, fields[11:15])) / _TICKS,
        peak_bytes=_status_kilobytes(status, "VmHWM") * 1024,
        resident_bytes=_status_kilobytes(status, "VmRSS") * 1024,
    )


def signal_to(pid: int, number: signal.Signals) -> None:
    """Signal a process; harmless when it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def open_files(pid: int) -> int:
    """File descriptors that a process has open; 0 if it cannot be seen."""
    with suppress(OSError):
        return sum(1 for _ in (_PROC / str(pid) / "fd").iterdir())
    return 0


def descendants(pid: int) -> list[Usage]:
    """All processes below this one, nearest first."""
    children: dict[int, list[Usage]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (found := usage(int(entry.name))) is not None:
            children.setdefault(found.parent, []).append(found)
    below: list[Usage] = []
    level = [pid]
    while level:
        found_here = [child for parent in level for child in children.get(parent, [])]
        below += found_here
        level = [child.pid for child in found_here]
    return below


def command_of(pid: int) -> str:
    """The command line of a process, "" if it is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def python_workers(roots: Iterable[int]) -> list[int]:
    """Process ids of Spark's Python workers below these, and of the daemons that fork them."""
    below = [each.pid for root in roots for each in descendants(root)]
    return sorted(pid for pid in below if " pyspark.worker" in command_of(pid))


def processes_of_run(run: str) -> list[int]:
    """Processes of this user that carry RUN_VARIABLE=run, whoever their parent is now."""
    needle = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for entry in _PROC.iterdir():
        try:
            if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # another user's, or it ended meanwhile
            continue
    return found


def wait_for_end(run: str, timeout_seconds: float) -> list[int]:
    """Wait until no process of the run is left; gives those that are still there."""
    deadline = time.monotonic() + timeout_seconds
    while (left := processes_of_run(run)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return left


def machine_busy_seconds() -> float:
    """CPU time that all processes of this machine have used since it started."""
    first = (_PROC / "stat").read_text().partition("\n")[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupt, soft_interrupt = map(int, first[:7])
    return (user + nice + system + interrupt + soft_interrupt) / _TICKS


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None if it cannot be seen."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = (line.split() for line in lines)
        inodes |= {r[9] for r in rows if r[3] == "0A" and int(r[1].rpartition(":")[2], 16) == port}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and wanted & set(_links(entry / "fd")):
            return int(entry.name)
    return None


def _links(folder: Path) -> Iterator[str]:
    """Where the links of a folder point; those that vanish meanwhile are left out."""
    with suppress(OSError):
        for link in folder.iterdir():
            with suppress(OSError):
                yield str(link.readlink())


def _status_kilobytes(status: str, key: str) -> int:
    for line in status.splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    return 0
