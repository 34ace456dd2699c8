"""Fields that a table has no column for: found in each bad message, and read once it has one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.dynamic import DynamicColumns, NewField, type_of
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.messages.views import buffer_of
from sluice.decode.text.fields import new_fields
from tests.decode import support
from tests.support.examples import examples

RULES = DynamicColumns(allow=("a.*",), deny=("d.*",), columns_max=100)


def table(**changes: object) -> TableSpec:
    return support.table(Column("id", "UInt64"), unknown_fields="refuse", dynamic=RULES, **changes)


def decoded(table: TableSpec, values: list[bytes]) -> tuple[Decoded, tuple[NewField, ...]]:
    with buffer_of(values, framing_of(table)) as buffer:
        result = make_decoder(table).decode(buffer, alone("t", 0))
        return result, new_fields(table, buffer, result)


def answered(table: TableSpec, fields: tuple[NewField, ...]) -> TableSpec:
    """What the driver makes of the text."""
    columns = (Column(field.name, type_of(field.kind)) for field in fields if field.kind)
    passed_over = tuple(field.name for field in fields if not field.kind)
    return replace(
        table,
        columns=(*table.columns, *columns),
        dynamic=replace(RULES, passed_over=passed_over),
    )


def test_fields_of_messages_in_the_order_of_their_first_appearance() -> None:
    values = [
        b'{"id":1}',
        b'{"id":2,"a2":1,"other":1}',
        b'{"id":3,"a1":"x","a2":2.5,"d":{"deep":[1]}}',
        b'{"id":4,"a\\u0033":[1,null]}',
        b'{"id":5,"a4":1',
        b'{"id":6,"a.b":1,"_a":1}',
    ]
    _, fields = decoded(table(), values)
    assert fields == (
        ("a2", "Float"),
        ("a1", "String"),
        ("d", ""),
        ("a3", "Array(Int)"),
    )


def test_messages_with_columns_for_their_fields_are_loaded_with_every_value() -> None:
    values = [
        b'{"id":1,"a":true,"at":"2026-01-02T03:04:05.5+02:00","ao":{"x": [1, null]},"d":"z"}',
        b'{"id":2,"a":false,"af":1,"as":["x",null],"an":null,"d":{"y":1}}',
        b'{"id":3,"af":2.5,"as":[],"am":1,"d":null}',
        b'{"id":4,"am":"text","d":[1,{"q":"\\u0000"}]}',
        b'{"id":5,"other":1}',
    ]
    before, fields = decoded(table(), values)
    assert before.rows == 0
    now = answered(table(), fields)
    after, left = decoded(now, values)
    assert left == ()
    assert [(bad.offset, bad.reason, bad.column) for bad in after.bad] == [
        (4, "unknown-field", "other")
    ]
    assert after.columns == ("id", "a", "at", "ao", "af", "as", "an", "am")
    assert support.rows(after) == [
        ["1", True, "2026-01-02 01:04:05.500", '{"x": [1, null]}', None, [], None, None],
        ["2", False, None, None, 1, ["x", None], None, None],
        ["3", None, None, None, 2.5, [], None, "1"],
        ["4", None, None, None, None, [], None, "text"],
    ]


def test_several_rows_in_a_message() -> None:
    values = [b'[{"id":1},{"id":2,"a":1}]', b'{"id":3,"a":2} {"id":4,"a2":"x"}', b"[]"]
    many = table(rows="many")
    _, fields = decoded(many, values)
    assert fields == (("a", "Int"), ("a2", "String"))
    after, left = decoded(answered(many, fields), values)
    assert after.rows == 4 and after.bad == () and left == ()


def test_an_entry_with_conditions() -> None:
    """Its fields are decoded as a table of their own."""
    values = [b'{"id":1,"a":"x","d":1}', b'{"id":0,"a":"y"}', b'{"id":2}', b'{"id":3,"e":1}']
    checked = table(check=("id > 0",), require=("id",))
    _, fields = decoded(checked, values)
    assert fields == (("a", "String"), ("d", ""))
    after, left = decoded(answered(checked, fields), values)
    assert left == ()
    assert support.rows(after) == [["1", "x"], ["2", None]]
    assert [bad.reason for bad in after.bad] == ["check-failed", "unknown-field"]


def test_where_there_is_no_room_nothing_is_asked_for() -> None:
    full = table()
    full = replace(full, dynamic=replace(RULES, columns_max=1))
    full = replace(full, columns=(*full.columns, Column("a0", "String")))
    assert decoded(full, [b'{"id":1,"a":1}'])[1] == ()
    assert decoded(replace(full, dynamic=None), [b'{"id":1,"a":1}'])[1] == ()


_NAMES = st.sampled_from(["a", "a1", "a b", "aü", "a\"`'\\", "a東", "d", "d1", "d`"])
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"]))
    | st.datetimes().map(lambda t: f"{t.isoformat()}Z")
)
_VALUES = _SCALARS | st.recursive(
    st.lists(_SCALARS, max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("xyz"), inner, max_size=2),
    max_leaves=6,
)


@given(
    rows=st.lists(st.dictionaries(_NAMES, _VALUES, max_size=4), min_size=1, max_size=6),
    escaped=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_whatever_fields_are_the_second_decode_refuses_no_message(
    rows: list[dict[str, object]], escaped: bool
) -> None:
    """What was asked for is enough: no message waits twice, none is a dead letter."""
    values = [
        json.dumps({"id": number, **row}, ensure_ascii=escaped).encode()
        for number, row in enumerate(rows)
    ]
    _, fields = decoded(table(), values)
    after, left = decoded(answered(table(), fields), values)
    assert left == () and after.bad == () and after.rows == len(rows)
    for row, loaded in zip(rows, support.rows(after), strict=True):
        block = dict(zip(after.columns, loaded, strict=True))
        for name, value in row.items():
            if name.startswith("a"):
                assert (block[name] is None) == (value is None), (name, value, block[name])


@pytest.mark.parametrize("broken", [b"", b"{", b"[1,2]", b'"a"', b'{"a":1}}', b"\xff", b"[" * 9999])
def test_what_is_no_json_asks_for_nothing(broken: bytes) -> None:
    result, fields = decoded(table(), [broken, b'{"id":1}'])
    assert fields == () and len(result.bad) == 1
