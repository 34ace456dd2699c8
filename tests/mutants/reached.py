"""Which functions of the package each test, and each seed of the simulator, calls.

As a plugin of pytest (`-p tests.mutants.reached`, REACHED names the file to write), and for the
simulator `python -m tests.mutants.reached`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

#: Fixtures behind which a real server stands: tests with one of them take longer to begin.
SERVERS = frozenset(
    {
        "clickhouse_18",
        "clickhouse_18_second",
        "embedded_server",
        "fragile_world",
        "kafka",
        "server",
        "spark",
        "zookeeper_port",
    }
)
_PACKAGE = f"{os.sep}sluice{os.sep}"


@contextmanager
def calls() -> Iterator[set[str]]:
    """The functions that are called inside of the block, in all of its threads."""
    found: set[str] = set()
    known: set[int] = set()
    kept: list[Any] = []

    def trace(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if id(code) in known:
            return
        known.add(id(code))
        kept.append(code)  # so that no other code gets its id
        _, inside, path = code.co_filename.rpartition(_PACKAGE)
        if inside:
            found.add(f"{path} {plain(code.co_qualname)}")

    before = sys.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]


def plain(name: str) -> str:
    """A function's qualified name as the source says it; what stands inside of an expression
    belongs to the function around it."""
    return ".".join(part for part in name.split(".") if not part.startswith("<"))


class _Reached:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        with calls() as found:
            yield
        self._tests[item.nodeid] = {
            "seconds": round(time.monotonic() - began, 2),
            "server": bool(SERVERS & set(getattr(item, "fixturenames", ()))),
            "calls": sorted(found),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        kept = {name: test for name, test in self._tests.items() if name not in self._failed}
        self._path.write_text(json.dumps(kept))
        for name in sorted(self._failed):
            print(f"fails without a mutant, and is left out: {name}", file=sys.stderr)


def pytest_configure(config: pytest.Config) -> None:
    """Begin to look."""
    config.pluginmanager.register(_Reached(Path(os.environ["REACHED"])))


def main() -> None:
    """Arguments: seeds, steps, the file to write."""
    from sluice.testbed.simulate.runs import run_seed

    seeds, steps, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    reached: dict[str, list[int]] = {}
    for seed in range(1, seeds + 1):
        with calls() as found:
            result = run_seed(seed, steps)
        assert not result.violations, (seed, result.violations)
        for name in found:
            reached.setdefault(name, []).append(seed)
    path.write_text(json.dumps(reached))


if __name__ == "__main__":
    main()
