"""Where a task's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec

from sluice.core.receipts import Stages

_P = ParamSpec("_P")


@dataclass(slots=True)
class StageClocks:
    """Adds up where the time goes."""

    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=time.process_time)
    fetch: float = 0.0
    check: float = 0.0
    decode: float = 0.0
    claim: float = 0.0
    insert: float = 0.0
    wait: float = 0.0
    letters: float = 0.0

    def checking(self, deliver: Callable[_P, None]) -> Callable[_P, None]:
        """`deliver`, timed: once for each poll, not for each message."""

        def timed(*values: _P.args, **named: _P.kwargs) -> None:
            began = time.monotonic()
            deliver(*values, **named)
            self.check += time.monotonic() - began

        return timed

    def stages(self) -> Stages:
        return Stages(
            fetch=self.fetch,
            check=self.check,
            decode=self.decode,
            claim=self.claim,
            insert=self.insert,
            wait=self.wait,
            letters=self.letters,
            total=time.monotonic() - self.started,
            cpu=time.process_time() - self.cpu_started,
        )
