"""Numbers of milliseconds and less, in columns of dates and times."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.load_spec import Column, Mapped
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.support import fill, rows, table

#: The last second of a DateTime64(9) is not whole, and no moment of it is taken.
_LAST_SECOND = 9223372036
WHOLE = (-(2**63), _LAST_SECOND * 10**9 - 1, 2**63 - 1)


def decode(values: list[bytes], *columns: Column, **changes: Any) -> Decoded:
    text = table(*columns, **changes)
    with MessageBuffer(framing_of(text)) as buffer:
        return make_decoder(text).decode(fill(buffer, values), alone("orders", 3))


@pytest.mark.parametrize(
    ("ticks", "number", "moment"),
    [
        ("ms", 1767225600123, "2026-01-01 00:00:00.123000000"),
        ("us", 1767225600123456, "2026-01-01 00:00:00.123456000"),
        ("ns", 1767225600123456789, "2026-01-01 00:00:00.123456789"),
        ("ns", -1, "1969-12-31 23:59:59.999999999"),
    ],
)
def test_numbers_are_of_the_unit(ticks: str, number: int, moment: str) -> None:
    columns = (Column("a", "DateTime64(9, 'UTC')"), Column("b", "LowCardinality(Nullable(Date32))"))
    message = f'{{"a":{number},"b":{number}}}'.encode()
    decoded = decode([message, b'{"a":1,"b":null}'], *columns, timestamps=ticks)
    assert rows(decoded)[0] == [moment, moment[:10]]
    assert rows(decoded)[1][1] is None


@pytest.mark.parametrize("ticks", ["ms", "us", "ns"])
def test_no_number_becomes_another_moment(ticks: str) -> None:
    """What the engine clamps or wraps is refused."""
    for kind in ("Date", "Date32", "DateTime", "DateTime64(0, 'UTC')", "DateTime64(9)"):
        per_day = 86400 * {"ms": 10**3, "us": 10**6, "ns": 10**9}[ticks]
        for number in WHOLE:
            decoded = decode([b'{"a":%d}' % number], Column("a", kind), timestamps=ticks)
            days = number // per_day
            fits = {
                "Date32": -719528 <= days <= 2932896,
                "DateTime64(9)": ticks == "ns" and 0 < number < _LAST_SECOND * 10**9,
            }
            if fits.get(kind):
                assert decoded.rows == 1, (kind, number)
            else:
                assert [bad.reason for bad in decoded.bad] == ["out-of-range"], (kind, number)


def test_fields_of_other_names_and_other_formats() -> None:
    schema = record(("ts", "long"), ("n", "long"))
    number = SCHEMAS.add(schema)
    decoded = decode(
        [framed(number, body(schema, {"ts": 1767225600123, "n": 5}))],
        *(Column("at", "DateTime('UTC')"), Column("n", "UInt8")),
        format="AvroConfluent",
        options=(("registry", URL),),
        mapping=(Mapped("at", "field", "ts"),),
        timestamps="ms",
        fractions="cut",
    )
    assert rows(decoded) == [["2026-01-01 00:00:00", 5]]


def test_a_required_moment_that_is_absent_is_named() -> None:
    at = Column("at", "DateTime('UTC')")
    decoded = decode(
        [b'{"n":1}', b'{"n":1,"at":1000}'],
        at,
        Column("n", "UInt8"),
        timestamps="ms",
        require=("at",),
    )
    assert rows(decoded) == [["1970-01-01 00:00:01", 1]]
    assert [(bad.reason, bad.column) for bad in decoded.bad] == [("required", "at")]
