"""Sizes and durations as people write them: "64MiB", "1MB", 4096; "200ms", "1s", "10m", "7d"."""

from __future__ import annotations

import re
from decimal import Decimal

from sluice.config.findings import RefusedError

_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", re.ASCII)

SIZE_UNITS_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}

DURATION_UNITS_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86_400),
}


def parse_size(text: str) -> int:
    """Bytes.

    :raises RefusedError: not a number with a unit, or not a whole number of bytes.
    """
    match = _QUANTITY.fullmatch(text)
    unit = SIZE_UNITS_BYTES.get(match[2]) if match else None
    if match is None or unit is None:
        raise RefusedError(
            'is not a size; write bytes like 4096, or "64MiB", "1MB" (B KB MB GB KiB …)'
        )
    size = Decimal(match[1]) * unit
    if size != size.to_integral_value():
        raise RefusedError("is not a whole number of bytes")
    return int(size)


def parse_duration(text: str) -> float:
    """Seconds.

    :raises RefusedError: not a number with a unit.
    """
    match = _QUANTITY.fullmatch(text)
    unit = DURATION_UNITS_SECONDS.get(match[2]) if match else None
    if match is None or unit is None:
        raise RefusedError('is not a duration; write it like "200ms", "1s", "10m", "2h" or "7d"')
    return float(Decimal(match[1]) * unit)


def format_size(size_bytes: int) -> str:
    """The shortest exact form in binary units: 67108864 is `64MiB`."""
    for unit in ("GiB", "MiB", "KiB"):
        factor = SIZE_UNITS_BYTES[unit]
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def format_duration(duration_seconds: float) -> str:
    """The shortest exact form down to milliseconds: 600.0 is `10m`."""
    duration_ms = round(duration_seconds * 1000)
    for unit, factor_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % factor_ms == 0:
            return f"{duration_ms // factor_ms}{unit}"
    return f"{duration_ms}ms"
