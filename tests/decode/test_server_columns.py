"""Columns that only the server can compute, or computes of what it is not given."""

from __future__ import annotations

import pytest

from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.formats import make_decoder
from tests.decode.avro_support import URL
from tests.decode.support import table

ID = Column("id", "UInt64")
FORMATS = {
    "JSONEachRow": (),
    "AvroConfluent": (("registry", URL),),
    "ProtobufConfluent": (("registry", URL),),
    "Parquet": (),
}


def of(name: str, *columns: Column, **changes: object) -> TableSpec:
    return table(ID, *columns, format=name, options=FORMATS[name], **changes)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("expression", "function"),
    [
        ("dictGet('geo', 'name', id)", "dictGet"),
        ("upper(dictGetStringOrDefault('geo', 'name', id, ''))", "dictGetStringOrDefault"),
        ("joinGet('j', 'v', id)", "joinGet"),
        ("getMacro('shard')", "getMacro"),
    ],
)
def test_a_default_that_asks_the_server_is_refused_at_once(
    name: str, expression: str, function: str
) -> None:
    """In formats whose columns nobody knows beforehand each message was a dead letter."""
    column = Column("c", "String", "DEFAULT", expression)
    with pytest.raises(TerminalError, match=f"of c is computed with {function}, which") as refused:
        make_decoder(of(name, column))
    assert f"MODIFY COLUMN c String MATERIALIZED {expression}" in refused.value.hint
    if function.startswith("dict"):  # what is required has no default
        make_decoder(of(name, column, require=("c",)))


RAW = Column("raw", "String", "EPHEMERAL", "'none'")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "more",
    [
        (Column("hexed", "String", "MATERIALIZED", "unhex(raw)"),),
        (
            Column("hexed", "String", "MATERIALIZED", "upper(between)"),
            Column("between", "String", "ALIAS", "concat(raw, '!')"),
        ),
    ],
)
def test_what_the_server_computes_of_what_blocks_do_not_carry_is_refused(
    name: str, more: tuple[Column, ...]
) -> None:
    """It would have the default of that in each row, whatever the messages say."""
    with pytest.raises(TerminalError, match="hexed is MATERIALIZED, and depends on raw") as refused:
        make_decoder(of(name, RAW, *more))
    assert f"MODIFY COLUMN hexed String DEFAULT {more[0].expression}" in refused.value.hint


@pytest.mark.parametrize("name", FORMATS)
def test_what_decoders_compute_of_it_may_go_on(name: str) -> None:
    kept = Column("kept", "String", "DEFAULT", "upper(raw)")
    make_decoder(of(name, RAW, kept, Column("m", "String", "MATERIALIZED", "concat(kept, 'x')")))


def test_fields_that_are_passed_over_are_no_columns_of_the_table() -> None:
    rules = DynamicColumns(allow=("x.*",), deny=("d.*",), columns_max=3, passed_over=("d1",))
    column = Column("m", "Array(UInt64)", "MATERIALIZED", "arrayMap(d1 -> d1, [id])")
    make_decoder(of("JSONEachRow", column, unknown_fields="refuse", dynamic=rules))
