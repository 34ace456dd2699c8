"""Where a task's time goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec

from sluice.clickhouse.reactions import name_of
from sluice.core.receipts import Stages
from sluice.core.tracing import WorkSpan

_P = ParamSpec("_P")
Facts = dict[str, str | int]


class _Untold(AbstractContextManager[Facts]):
    """What is done within is not told; it takes no time."""

    def __enter__(self) -> Facts:
        return {}

    def __exit__(self, *_: object) -> None:
        pass


_UNTOLD = _Untold()


@dataclass(slots=True)
class StageClocks:
    """Adds up where the time goes.

    :param is_traced: what was done when is kept, too.
    """

    is_traced: bool = False
    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=time.process_time)
    fetch: float = 0.0
    check: float = 0.0
    decode: float = 0.0
    claim: float = 0.0
    insert: float = 0.0
    wait: float = 0.0
    dead_letters: float = 0.0
    spans: list[WorkSpan] = field(default_factory=list)

    def checking(self, deliver: Callable[_P, None]) -> Callable[_P, None]:
        """`deliver`, timed: once for each poll, not for each message."""

        def timed(*values: _P.args, **named: _P.kwargs) -> None:
            began = time.monotonic()
            deliver(*values, **named)
            self.check += time.monotonic() - began

        return timed

    def tracing(self, name: str, table: str = "", shard: str = "") -> AbstractContextManager[Facts]:
        """What is done within is told as a span; gives facts that may be added to.

        :param table: name of a table entry, if it is for one.
        """
        if not self.is_traced:
            return _UNTOLD
        of = {"sluice.table": table, "sluice.shard": shard}
        facts: Facts = {key: value for key, value in of.items() if value}
        return self._traced(name, facts)

    @contextmanager
    def _traced(self, name: str, facts: Facts) -> Iterator[Facts]:
        began_ns, error = time.time_ns(), ""
        try:
            yield facts
        except Exception as raised:
            error = name_of(raised)
            raise
        finally:
            self.spans.append(WorkSpan(name, began_ns, time.time_ns(), error, facts))

    def stages(self) -> Stages:
        return Stages(
            fetch=self.fetch,
            check=self.check,
            decode=self.decode,
            claim=self.claim,
            insert=self.insert,
            wait=self.wait,
            dead_letters=self.dead_letters,
            total=time.monotonic() - self.started,
            cpu=time.process_time() - self.cpu_started,
        )
