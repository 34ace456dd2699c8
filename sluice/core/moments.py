"""Moments: milliseconds since 1970, by the clock of this machine, and how people read them."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_ms() -> int:
    """Wall time in milliseconds."""
    return time.time_ns() // 1_000_000


def shown_time(at_ms: int, *, with_ms: bool = False) -> str:
    """A moment in UTC, by the second, or by the millisecond."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{at_ms % 1000:03d}Z" if with_ms else f"{moment}Z"
