"""What pandas writes: lines of CSV and JSON, and files of Parquet, compared value by value."""

from __future__ import annotations

import io
from typing import Any

import pandas as pd
import pytest

from sluice.core.load_spec import Column
from tests.decode.support import rows, table
from tests.decode.text_support import decode_text

FRAME = pd.DataFrame(
    {
        "id": pd.array([1, 2, 3], "UInt64"),
        "name": ["a", 'quo"te, é\n', None],
        "price": [0.1, float("inf"), float("nan")],
        "count": pd.array([7, None, -9], "Int32"),
        "at": pd.to_datetime(
            ["2026-01-02T03:04:05.678", None, "1970-01-01"], format="ISO8601", utc=True
        ),
        "is_new": pd.array([True, False, None], "boolean"),
        "kind": pd.Categorical(["x", "y", "x"]),
    }
)
COLUMNS = (
    Column("id", "UInt64"),
    Column("name", "Nullable(String)"),
    Column("price", "Nullable(Float64)"),
    Column("count", "Nullable(Int32)"),
    Column("at", "Nullable(DateTime64(3, 'UTC'))"),
    Column("is_new", "Nullable(Bool)"),
    Column("kind", "LowCardinality(String)"),
)
ROWS: list[list[Any]] = [
    ["1", "a", 0.1, 7, "2026-01-02 03:04:05.678", True, "x"],
    ["2", 'quo"te, é\n', "inf", None, None, False, "y"],
    ["3", None, None, -9, "1970-01-01 00:00:00.000", None, "x"],
]


def parquet(frame: pd.DataFrame) -> bytes:
    out = io.BytesIO()
    frame.to_parquet(out, index=False)
    return out.getvalue()


def loaded(message: bytes, format_name: str, **more: Any) -> list[list[Any]]:
    decoded = decode_text(table(*COLUMNS, format=format_name, rows="many", **more), [message])
    assert not decoded.bad, decoded.bad
    return rows(decoded)


def test_csv() -> None:
    # Python's words of booleans are not ClickHouse's.
    frame = FRAME.assign(is_new=FRAME["is_new"].map({True: "true", False: "false"}))
    assert loaded(frame.to_csv(index=False).encode(), "CSVWithNames") == ROWS


def test_csv_with_pythons_booleans_is_refused() -> None:
    text = table(*COLUMNS, format="CSVWithNames", rows="many")
    (bad,) = decode_text(text, [FRAME.to_csv(index=False).encode()]).bad
    assert (bad.reason, bad.column) == ("cannot-parse", "is_new") and '"True"' in bad.error


@pytest.mark.parametrize(("date_format", "timestamps"), [("iso", ""), ("epoch", "ms")])
def test_json(date_format: str, timestamps: str) -> None:
    message = FRAME.to_json(orient="records", lines=True, date_format=date_format, date_unit="ms")
    # It writes null for infinity.
    without = [[*row[:2], None if row[2] == "inf" else row[2], *row[3:]] for row in ROWS]
    assert loaded(message.encode(), "JSONEachRow", timestamps=timestamps) == without


def test_parquet() -> None:
    assert loaded(parquet(FRAME), "Parquet") == ROWS
