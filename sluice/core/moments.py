"""How people read moments, which are milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime


def shown_time(at_ms: int, *, with_ms: bool = False) -> str:
    """A moment in UTC, by the second, or by the millisecond."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{moment}.{at_ms % 1000:03d}Z" if with_ms else f"{moment}Z"
