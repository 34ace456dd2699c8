"""How many Python workers a local master starts, and how many the memory of its machine takes."""

from __future__ import annotations

import os
import re
from pathlib import Path

#: A worker at its peak, with blocks of 50 MB [measured]; what the rest of a driver takes: Spark's
#: JVM and the driver's Python.
WORKER_BYTES, REST_BYTES = 600_000_000, 900_000_000

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_LOCAL = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")


def local_workers(master: str, groups: Path = _GROUPS, own: Path = _OWN) -> int | None:
    """How many workers a master like `local[4]` has at most; None: it is no local one.

    `local[*]` is one for each core, as Java counts them.
    """
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    if match[1] != "*":
        return int(match[1] or 1)
    cores = len(os.sched_getaffinity(0))
    for text in _limits("cpu.max", groups, own):
        share, _, period = text.partition(" ")
        if share.isdigit() and period.isdigit():
            cores = min(cores, max(1, -(-int(share) // int(period))))
    return cores


def memory_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int:
    """What this process and its children may take: the machine's memory, or the least limit of
    their control groups."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for text in (
        *_limits("memory.max", groups, own),
        *_limits("memory.limit_in_bytes", groups / "memory", own),
    ):
        if text.isdigit():
            found.append(int(text))
    return min(found)


def workers_that_fit(memory: int) -> int:
    """So many workers have room in so much memory, one at least."""
    return max(1, (memory - REST_BYTES) // WORKER_BYTES)


def _limits(name: str, groups: Path, own: Path) -> list[str]:
    """What the process's groups say, from its own one up; a container sees its own as the root."""
    texts = []
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    places = {groups / line.split(":", 2)[2].lstrip("/") for line in lines if line.count(":") > 1}
    folders = {folder for place in places for folder in (place, *place.parents)} | {groups}
    for folder in sorted(folders):
        if folder.is_relative_to(groups):
            try:
                texts.append((folder / name).read_text().strip())
            except OSError:
                continue
    return texts
