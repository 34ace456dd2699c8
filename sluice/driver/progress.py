"""Says how a running pipeline gets on: a line on a terminal, log entries otherwise."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence

from sluice.driver.loop import ConnectorLoop

_logger = logging.getLogger("sluice.progress")

TERMINAL_EVERY_MS = 500
LOG_EVERY_MS = 10_000


class Reporter:
    """Reports over all loops.

    :param loops: each gives its loop once there is one.
    """

    def __init__(self, loops: Sequence[Callable[[], ConnectorLoop | None]]) -> None:
        self._loops = loops
        self._terminal = sys.stderr.isatty()
        self._next_ms = 0
        self._last: tuple[int, int] | None = None

    def report(self, now_ms: int) -> None:
        """Report if it is time to."""
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + (TERMINAL_EVERY_MS if self._terminal else LOG_EVERY_MS)
            self._write(now_ms)

    def finish(self, now_ms: int) -> None:
        """The last report."""
        self._write(now_ms)
        if self._terminal:
            sys.stderr.write("\n")

    def _write(self, now_ms: int) -> None:
        loops = [loop for loop in (get() for get in self._loops) if loop is not None]
        if not loops:
            return
        rows = sum(loop.counters.rows for loop in loops)
        dead_letters = sum(loop.counters.dead_letters for loop in loops)
        states = [state for loop in loops for state in list(loop.states.values())]
        lag = sum(max(0, state.stable_end - state.settled) for state in states)
        stopped = sum(state.stopped is not None for state in states)
        before = self._last or (now_ms, rows)
        rate = (rows - before[1]) * 1000 / max(1, now_ms - before[0])
        self._last = (now_ms, rows)
        if self._terminal:
            line = f"{rows:,} rows loaded  {rate:,.0f} rows/s  lag {lag:,}  "
            line += f"dead letters {dead_letters:,}"
            stop = f"  stopped partitions {stopped}" if stopped else ""
            sys.stderr.write(f"\r\x1b[K{line}{stop}")
            sys.stderr.flush()
        else:
            _logger.info(
                "progress",
                extra={
                    "rows": rows,
                    "rows_per_second": round(rate),
                    "lag": lag,
                    "dead_letters": dead_letters,
                    "stopped_partitions": stopped,
                },
            )
