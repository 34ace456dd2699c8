"""Days in milliseconds (date64) of Arrow, which the engine lets wrap after 2^32 seconds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import date
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc

from sluice.core.load_spec import Column
from tests.decode.support import rows
from tests.decode.text_support import decode_text, text_of

ID, TEXT = Column("id", "UInt64"), Column("s", "String")


def arrow(name: str, *tables: Any) -> bytes:
    out = io.BytesIO()
    make = ipc.new_file if name == "Arrow" else ipc.new_stream
    with make(out, tables[0].schema) as written:
        for one in tables:
            written.write_table(one)
    return out.getvalue()


def date64(*milliseconds: int | None) -> Any:
    return pyarrow.array(milliseconds, pyarrow.int64()).view(pyarrow.date64())


DAY = 86_400_000


@pytest.mark.parametrize("name", ["Arrow", "ArrowStream"])
@pytest.mark.parametrize("type_text", ["Date32", "DateTime64(3)", "String", "Array(Date32)"])
@pytest.mark.parametrize("kind", ["plain", "list", "large", "fixed", "dictionary"])
def test_days_in_milliseconds_of_arrow(name: str, type_text: str, kind: str) -> None:
    is_list = type_text.startswith("Array")
    if is_list is (kind in ("plain", "dictionary")):
        return
    days = [date(1960, 1, 1), date(1969, 12, 31), date(2106, 2, 8), date(2200, 1, 1)]
    values = date64(*((day - date(1970, 1, 1)).days * DAY for day in days))
    starts = list(range(len(days) + 1))
    match kind:
        case "list":
            values = pyarrow.ListArray.from_arrays(pyarrow.array(starts, pyarrow.int32()), values)
        case "large":
            at = pyarrow.array(starts, pyarrow.int64())
            values = pyarrow.LargeListArray.from_arrays(at, values)
        case "fixed":
            values = pyarrow.FixedSizeListArray.from_arrays(values, 1)
        case "dictionary":
            at = pyarrow.array(starts[:-1], pyarrow.int8())
            values = pyarrow.DictionaryArray.from_arrays(at, values)
    message = arrow(name, pyarrow.table({"id": [1, 2, 3, 4], "day": values}))
    text = text_of(name, ID, Column("day", type_text), rows="many")
    found = [row[1] for row in rows(decode_text(text, [message]))]
    shown = [one[0][:10] if is_list else one[:10] for one in found]
    assert shown == [str(day) for day in days]


def odd_messages_of_arrow() -> Iterator[tuple[bytes, list[Any]]]:
    """Messages with date64, and their rows, or none if they are no messages."""
    yield arrow("ArrowStream", pyarrow.table({"id": [1], "day": date64(DAY + 5000)})), [1]
    words = [pyarrow.array(pair).dictionary_encode() for pair in (["a", "b"], ["c", "d"])]
    tables = [pyarrow.table({"id": [1, 2], "s": one, "day": date64(0, DAY)}) for one in words]
    yield arrow("ArrowStream", *tables), [1, 2, 1, 2]
    fields = [pyarrow.field("id", pyarrow.int64(), False), pyarrow.field("day", pyarrow.date64())]
    schema = pyarrow.schema(fields)
    yield arrow("ArrowStream", pyarrow.table([[1, None], date64(0, 0)], schema=schema)), []
    yield arrow("ArrowStream", pyarrow.table({"id": [1], "day": date64(2**62)})), []
    good = arrow(
        "ArrowStream", pyarrow.table({"id": list(range(1003)), "day": date64(*[7] * 1003)})
    )
    many = (200_000_000).to_bytes(8, "little")
    assert good.count((1003).to_bytes(8, "little")) == 3
    yield good.replace((1003).to_bytes(8, "little"), many), []
    places = [pyarrow.array([one], pyarrow.int32()) for one in (0, 1)]
    views = pyarrow.ListViewArray.from_arrays(*places, date64(-DAY))
    yield arrow("ArrowStream", pyarrow.table({"id": [1], "day": views})), []


@pytest.mark.parametrize("unknown_fields", ["refuse", "ignore"])
def test_columns_beside_days_are_seen(unknown_fields: str) -> None:
    """Also those that the table does not have."""
    text = text_of("Arrow", ID, Column("day", "Date32"), rows="many", unknown_fields=unknown_fields)
    message = arrow("Arrow", pyarrow.table({"id": [1], "day": date64(-DAY), "other": date64(0)}))
    decoded = decode_text(text, [message])
    is_refused = unknown_fields == "refuse"
    assert [bad.reason for bad in decoded.bad] == ["unknown-field"] * is_refused
    assert rows(decoded) == [["1", "1969-12-31"]] * (not is_refused)


def test_odd_messages_of_arrow_cost_no_neighbour() -> None:
    text = text_of("ArrowStream", ID, Column("day", "DateTime64(3)"), TEXT, rows="many")
    good = arrow("ArrowStream", pyarrow.table({"id": [7], "day": date64(-DAY), "s": ["x"]}))
    expected = ["7", "1969-12-31 00:00:00.000", "x"]
    for message, ids in odd_messages_of_arrow():
        decoded = decode_text(text, [good, message, good])
        found = rows(decoded)
        assert [found[0], found[-1]] == [expected, expected]
        assert [row[0] for row in found[1:-1]] == [str(one) for one in ids]
        assert [bad.index for bad in decoded.bad] == ([] if ids else [1])
