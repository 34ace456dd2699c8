"""What demonstration and benchmark show to a person while they work."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

_BAR_CELLS = 30
_REDRAW_SECONDS = 0.1
_TEXT_WIDTH = 76


class Phase:
    """One step; `text` may be made more precise until it is done."""

    def __init__(self, console: Console, text: str) -> None:
        self.text = text
        self._console = console
        self._began = time.monotonic()
        self._redraw_at = 0.0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    def progress(self, done: int, of: int) -> None:
        """Draw the bar, if there is a terminal to draw it on."""
        if self._console.terminal and time.monotonic() >= self._redraw_at:
            self._redraw_at = time.monotonic() + _REDRAW_SECONDS
            share = min(1.0, done / max(1, of))
            bar = ("█" * round(share * _BAR_CELLS)).ljust(_BAR_CELLS, "░")
            self._console.draw(f"  {bar} {share:4.0%}  {self.text}")


class Console:
    """Lines on a stream; bars and colours only on a terminal.

    :param stream: where to; standard output if left out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.terminal = self._stream.isatty()
        encoding = (getattr(self._stream, "encoding", None) or "ascii").lower()
        is_unicode = encoding.replace("-", "").startswith("utf")
        self._marks = ("✔", "✘") if is_unicode else ("ok", "failed:")
        self.terminal = self.terminal and is_unicode

    def line(self, text: str = "") -> None:
        """One line."""
        self.draw("")
        print(text, file=self._stream, flush=True)

    def draw(self, text: str) -> None:
        """Replace the line that is being drawn; nothing without a terminal."""
        if self.terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()

    @contextmanager
    def phase(self, text: str) -> Iterator[Phase]:
        """A step: one line with a mark and the seconds, once it is done."""
        phase = Phase(self, text)
        self.draw(f"  {text} …")
        try:
            yield phase
        except BaseException:
            self._end(phase, self._marks[1])
            raise
        self._end(phase, self._marks[0])

    def _end(self, phase: Phase, mark: str) -> None:
        first, *more = phase.text.splitlines()
        self.line(f"{mark} {first.ljust(_TEXT_WIDTH)} {phase.seconds:6.1f} s")
        for text in more:
            self.line(f"  {text}")


def aligned(rows: Sequence[tuple[str, object, str]]) -> str:
    """Names to the left, numbers to the right, remarks behind."""
    shown = [(name, _shown(value), remark) for name, value, remark in rows]
    name_width = max(len(name) for name, _, _ in shown)
    value_width = max(len(value) for _, value, _ in shown)
    return "\n".join(
        f"  {name.ljust(name_width)}  {value.rjust(value_width)}  {remark}".rstrip()
        for name, value, remark in shown
    )


def unexpected(compared: Sequence[tuple[str, int, int]]) -> list[str]:
    """What is not as expected, by name, of values and what they have to be."""
    return [f"{name}: {n:,}, expected {m:,}" for name, n, m in compared if n != m]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
