"""Whether partitions keep up, judged over a window of looks and not by a threshold: a large lag
that shrinks is no trouble, a small one that only grows is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

#: `behind`: it loads, and more comes than it loads. `stalled`: nothing of it is settled although
#: messages are there. `stopped`: a person has to decide, or has frozen it.
Lag = Literal["ok", "behind", "stalled", "stopped"]
LAGS: tuple[Lag, ...] = get_args(Lag)

#: Between two samples, unless ranges may wait for longer; and how many make the window.
STEP_MS = 30_000
SAMPLES = 10
#: Fewer say nothing.
SAMPLES_MIN = 4


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: int
    settled: int
    lag_messages: int


@dataclass(slots=True)
class Lags:
    """Samples of partitions, taken at looks."""

    _seen: dict[tuple[str, str, int], deque[_Sample]] = field(default_factory=dict)

    def judge(
        self,
        where: tuple[str, str, int],
        settled: int,
        lag_messages: int,
        now_ms: int,
        delay_ms: int,
    ) -> Lag:
        """How a partition that may load keeps up.

        :param where: connector, topic, partition.
        :param delay_ms: how long a range may wait for company.
        """
        seen = self._seen.setdefault(where, deque(maxlen=SAMPLES))
        now = _Sample(now_ms, settled, lag_messages)
        if not seen or now_ms - seen[-1].at_ms >= max(STEP_MS, delay_ms):
            seen.append(now)
        window = [*seen, now]
        if len(seen) < SAMPLES_MIN or any(sample.lag_messages == 0 for sample in window):
            return "ok"
        if settled == seen[0].settled:
            return "stalled"
        lags = [sample.lag_messages for sample in window]
        only_grows = all(before <= after for before, after in pairwise(lags))
        return "behind" if only_grows and lags[-1] > lags[0] else "ok"
