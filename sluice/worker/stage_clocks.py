"""Where a task's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from sluice.clickhouse.reactions import name_of
from sluice.core.receipts import Stages
from sluice.core.tracing import WorkSpan

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
    :param seconds: by stage of `core.receipts.Stages`.
    """

    is_traced: bool = False
    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=time.process_time)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    spans: list[WorkSpan] = field(default_factory=list)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """What is done within is a part of this stage. Also decorates what is called again and
        again."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] += time.monotonic() - began

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
        total = time.monotonic() - self.started
        return Stages(**self.seconds, total=total, cpu=time.process_time() - self.cpu_started)
