"""Types that are other types by another name are read as these, whoever reads them."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.decode.engine.types import parse_type
from tests.decode.support import table
from tests.decode.text_support import decoder_of, made


@pytest.mark.parametrize(
    ("alias", "text", "name", "arguments"),
    [
        ("Nested(a Int8, `b c` Date)", None, "Array", ("Tuple(a Int8, `b c` Date)",)),
        ("SimpleAggregateFunction(any, Nullable(Int8))", "Nullable(Int8)", "Nullable", ("Int8",)),
        ("SimpleAggregateFunction(max, Point)", "Point", "Tuple", ("Float64", "Float64")),
        ("Point", "Point", "Tuple", ("Float64", "Float64")),
        ("Ring", "Ring", "Array", ("Point",)),
    ],
)
def test_what_an_alias_is(
    alias: str, text: str | None, name: str, arguments: tuple[str, ...]
) -> None:
    node = parse_type(alias)
    assert (node.name, node.arguments) == (name, arguments)
    assert node.text == (text or f"{name}({', '.join(arguments)})")


@pytest.mark.parametrize(
    ("alias", "own", "message", "changes"),
    [
        (
            "SimpleAggregateFunction(max, DateTime64(3))",
            "DateTime64(3)",
            b'{"a":1700000000123}',
            {"timestamps": "ms"},
        ),
        (
            "SimpleAggregateFunction(any, Tuple(x Int32, y Int32))",
            "Tuple(x Int32, y Int32)",
            b"1,2,3",
            {"format": "CSV"},
        ),
        ("Point", "Tuple(Float64, Float64)", b'{"a":[1.5,2],"b":3}', {}),
    ],
)
def test_an_alias_takes_what_its_type_takes(
    alias: str, own: str, message: bytes, changes: dict[str, Any]
) -> None:
    rows = [
        made(table(Column("a", kind), Column("b", "Int32"), **changes), message)
        for kind in (alias, own)
    ]
    assert rows[0] == rows[1]
    assert not isinstance(rows[0][0], str), rows[0]


@pytest.mark.parametrize(
    "kind", ["Point", "Nested(a Int8)", "SimpleAggregateFunction(any, Array(Int32))"]
)
def test_what_cannot_be_null_cannot_be_required(kind: str) -> None:
    with pytest.raises(TerminalError, match="a type that cannot be null"):
        decoder_of(table(Column("a", kind), Column("b", "Int32"), require=("a",)))
