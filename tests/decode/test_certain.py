"""What is judged without the engine is judged as the engine judges it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.text import Column
from sluice.decode.messages.fault import CANNOT_PARSE, NULL_IN_COLUMN, OUT_OF_RANGE, Fault
from sluice.decode.messages.marked import buffer_of
from sluice.decode.text.certain import Certainty
from sluice.decode.text.isolate import find_faults
from sluice.decode.text.plan import Plan
from tests.decode.support import table

COLUMNS = (
    Column("u8", "UInt8"),
    Column("i64", "Int64"),
    Column("f", "Float64"),
    Column("s", "String"),
    Column("t", "DateTime"),
    Column("tz", "DateTime('America/New_York')"),
    Column("n", "Nullable(Int32)"),
    Column("low", "LowCardinality(String)"),
    Column("u", "UUID"),
    Column("b", "Bool"),
    Column("d", "UInt32", "DEFAULT", "u8 + 1"),
)
UUID = "b3f1e0a2-0c3f-4b4e-9a53-0123456789ab"
GOOD: dict[str, Any] = {
    **{"u8": 7, "i64": -5, "f": 1.5, "s": "x", "t": "2026-03-01 10:00:00", "n": 1},
    **{"tz": "2026-03-01T10:00:00", "low": "y", "u": UUID, "b": True},
}
VALUES = st.one_of(
    st.sampled_from(
        [
            *(
                None,
                True,
                False,
                "",
                "somebody",
                "12",
                "nan",
                "Infinity",
                "true",
                "null",
                "-",
                "+1",
            ),
            *(0, 1, -1, 255, 256, 300, 70000, 1.0, 1.5, -0.0, 1e300, 1e25, 10**17, 10**18, 2**63),
            *("2026-03-01 10:00:00", "2226-03-01 10:00:00", "1970-01-01 00:00:00"),
            *("2106-02-07 06:28:16", "2107-01-01 00:00:00", "2261-12-28 23:59:59"),
            *("1971-01-01 00:00:00", "2105-12-28T23:59:59", "1900-01-01 00:00:00", "0000-01-01"),
            *("2026-02-30 10:00:00", "2026-13-01 10:00:00", UUID, "é", "\ud800", "\x00", "x" * 400),
            *([], {}, [1], {"a": 1}),
        ]
    ),
    st.integers(-(2**70), 2**70),
    st.text(max_size=6),
)


def plan_of(*columns: Column, **changes: Any) -> Plan:
    return Plan(table(*columns, lineage=(), **changes))


def by_engine(plan: Plan, message: bytes) -> Fault | None:
    with buffer_of([message]) as buffer:
        return find_faults(plan, buffer, np.zeros(1, np.int64)).get(0)


PLANS = {on_null: plan_of(*COLUMNS, on_null=on_null) for on_null in ("dead-letter", "default")}
SIMPLE = PLANS["dead-letter"]


@pytest.mark.parametrize("on_null", PLANS)
@settings(max_examples=400, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted(GOOD)), VALUES, max_size=3), data=st.data())
def test_as_the_engine(on_null: str, changes: dict[str, Any], data: st.DataObject) -> None:
    plan = PLANS[on_null]
    document = {**GOOD, **changes}
    for name in data.draw(st.sets(st.sampled_from(sorted(GOOD)), max_size=2)):
        del document[name]
    message = json.dumps(document | {"d": 1}).encode()
    said = Certainty(plan).fault(message)
    if said is not None:
        assert said == by_engine(plan, message), message


@pytest.mark.parametrize(
    ("changes", "reason", "column"),
    [
        ({"u8": 256}, OUT_OF_RANGE, "u8"),
        ({"u8": -1}, OUT_OF_RANGE, "u8"),
        ({"u8": "somebody"}, CANNOT_PARSE, "u8"),
        ({"n": "x" * 200}, CANNOT_PARSE, "n"),
        ({"f": "many"}, CANNOT_PARSE, "f"),
        ({"f": None}, NULL_IN_COLUMN, "f"),
        ({"t": "2226-03-01 10:00:00"}, OUT_OF_RANGE, "t"),
        ({"tz": "2107-01-01T00:00:00"}, OUT_OF_RANGE, "tz"),
        ({"u8": 256, "f": "many"}, CANNOT_PARSE, "f"),
        ({"u8": 256, "i64": None}, OUT_OF_RANGE, "u8"),
    ],
)
def test_is_judged(changes: dict[str, Any], reason: str, column: str) -> None:
    """Else the test above would compare nothing."""
    message = json.dumps({**GOOD, "d": 1, **changes}).encode()
    said = Certainty(SIMPLE).fault(message)
    assert said is not None and (said.reason, said.column) == (reason, column)
    assert said == by_engine(SIMPLE, message)


@pytest.mark.parametrize(
    "message",
    [
        json.dumps({**GOOD, "d": 1}),
        json.dumps({**GOOD, "u8": 256}),  # of a default nobody knows
        json.dumps({**GOOD, "d": 1, "u8": 256, "x": 1}),
        json.dumps({**GOOD, "d": 1, "u8": 256, "low": "é"}, ensure_ascii=False),
        '{"d":1,"u8":256,"u8":1}',
        '{"d":1,"u8":0256}',
        '{"d":1,"\\u00758":256}',
        '{"d":1,"u8":256',
        "[256]",
        "\xff",
        "[" * 100_000,
    ],
)
def test_is_left_to_the_engine(message: str) -> None:
    assert Certainty(SIMPLE).fault(message.encode("latin-1", errors="ignore")) is None


def test_types_that_it_does_not_know() -> None:
    plan = plan_of(Column("a", "Array(UInt8)"), Column("u8", "UInt8"))
    assert Certainty(plan).fault(b'{"u8":256}') is not None
    assert Certainty(plan).fault(b'{"a":[1],"u8":256}') is None
