"""A message without its deduplication key is a dead letter."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from tests.decode.keys.support import WHO, keyed_table
from tests.decode.support import fill
from tests.support.examples import examples

ID, SOURCE, NOTE = Column("id", "String"), Column("source", "UInt32"), Column("note", "String")
TABLE = replace(
    keyed_table(ID, SOURCE, NOTE, key=("source", "id")), require=("source", "id"), on_null="default"
)
decoder_of = cache(make_decoder)


def decode(table: TableSpec, messages: list[bytes]) -> Decoded:
    with MessageBuffer(framing_of(table)) as buffer:
        return decoder_of(table).decode(fill(buffer, messages), alone("orders", 3, WHO))


def lacks(message: dict[str, Any], name: str) -> bool:
    return message.get(name) is None


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"note": st.just("n")},
            optional={
                "id": st.sampled_from(["", "a", "b", None, 7]),
                "source": st.sampled_from([0, 1, 2, None, -1]),
            },
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_lacks_a_part_of_its_key_makes_no_row(messages: list[dict[str, Any]]) -> None:
    found = decode(TABLE, [json.dumps(message).encode() for message in messages])
    required = {
        n: "id" if lacks(message, "id") else "source"
        for n, message in enumerate(messages)
        if lacks(message, "id") or lacks(message, "source")
    }
    out = {bad.index: bad for bad in found.bad}
    assert {n for n, bad in out.items() if bad.reason == "required"} <= required.keys()
    assert out.keys() == required.keys() | {
        n for n, message in enumerate(messages) if message.get("source") == -1
    }
    assert found.rows == len(messages) - len(out)


MESSAGES: dict[str, tuple[bytes, bytes]] = {
    "JSONEachRow": (b'{"id":"","source":0}', b'{"source":1}'),
    "JSONCompactEachRow": (b'["",0,""]', b'[null,1,""]'),
    "CSV": (b'"",0,n', b",1,n"),
    "MsgPack": (b"\xa0\x00\xa0", b"\xc0\x01\xa0"),
}


@pytest.mark.parametrize("table_format", MESSAGES)
def test_null_or_an_absent_field_is_named_and_a_default_that_is_written_is_a_value(
    table_format: str,
) -> None:
    there, not_there = MESSAGES[table_format]
    found = decode(replace(TABLE, format=table_format), [there, not_there, there])
    assert [(bad.index, bad.reason, bad.column) for bad in found.bad] == [(1, "required", "id")]
    assert found.rows == 2


def test_null_in_a_column_that_takes_it_is_refused_too() -> None:
    table = replace(TABLE, columns=(Column("id", "Nullable(String)"), *TABLE.columns[1:]))
    found = decode(table, [b'{"id":null,"source":1}', b'{"id":"","source":1}', b'{"source":1}'])
    assert [(bad.index, bad.reason) for bad in found.bad] == [(0, "required"), (2, "required")]
