from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config.findings import RefusedError
from sluice.config.quantities import (
    DURATION_UNITS_SECONDS,
    SIZE_UNITS_BYTES,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

sizes = st.integers(0, 2**50)
durations_ms = st.integers(0, 10**11)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096B", 4096),
        ("64MiB", 67_108_864),
        ("1MB", 1_000_000),
        ("1.5KiB", 1536),
        ("2 GB", 2 * 10**9),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("1s", 1.0),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("7d", 604_800.0),
        ("1.5s", 1.5),
        ("0ms", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "64", "MiB", "-1MiB", "64QB", "64mib", "1e3B", "1,5MB", "1.0001KiB", "64MiB ", "１MB"],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(RefusedError):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "1", "s", "-1s", "1 day", "1m30s", "1S", "inf s", "1µs"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(RefusedError):
        parse_duration(text)


@given(sizes)
def test_a_formatted_size_reads_back(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(durations_ms)
def test_a_formatted_duration_reads_back(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms / 1000)) == duration_ms / 1000


@given(st.integers(0, 10**9), st.sampled_from(sorted(SIZE_UNITS_BYTES)))
def test_a_size_is_number_times_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * SIZE_UNITS_BYTES[unit]


@given(st.integers(0, 10**9), st.sampled_from(sorted(DURATION_UNITS_SECONDS)))
def test_a_duration_is_number_times_unit(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == float(
        Decimal(number) * DURATION_UNITS_SECONDS[unit]
    )


@given(st.text())
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    for parse in (parse_size, parse_duration):
        try:
            assert parse(text) >= 0
        except RefusedError:
            pass
