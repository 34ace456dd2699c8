"""A message without its deduplication key is a dead letter, and looking for one costs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.formats import make_decoder
from sluice.decode.keys.required import RequiredKeyDecoder, without_required_key
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.origins import alone
from sluice.decode.messages.port import TableDecoder
from tests.decode.keys.support import WHO, keyed_table
from tests.decode.support import fill

ID, SOURCE, NOTE = Column("id", "String"), Column("source", "UInt32"), Column("note", "String")
TABLE = replace(
    keyed_table(ID, SOURCE, NOTE, key=("source", "id")), require=("source", "id"), on_null="default"
)
#: As a person would write it who does not deduplicate.
STRICT = replace(TABLE, deduplicate=None)


@pytest.fixture(scope="module")
def decoders() -> tuple[TableDecoder, TableDecoder]:
    return make_decoder(TABLE), make_decoder(STRICT)


def decode(decoder: TableDecoder, messages: list[dict[str, Any]]) -> Decoded:
    with MessageBuffer() as buffer:
        texts = [json.dumps(message).encode() for message in messages]
        return decoder.decode(fill(buffer, texts), alone("orders", 3, WHO))


def test_it_is_the_decoder_of_an_entry_whose_key_has_to_be_there() -> None:
    assert isinstance(make_decoder(TABLE), RequiredKeyDecoder)
    assert not isinstance(make_decoder(STRICT), RequiredKeyDecoder)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.sampled_from(["", "a", "b", None, 7]),
                "source": st.sampled_from([0, 1, 2, None, -1]),
                "note": st.sampled_from(["", "n", None]),
            },
        ),
        min_size=1,
        max_size=6,
    )
)
def test_it_makes_what_looking_at_each_message_makes(
    decoders: tuple[TableDecoder, TableDecoder], messages: list[dict[str, Any]]
) -> None:
    quick, strict = (decode(decoder, messages) for decoder in decoders)
    assert bytes(quick.native) == bytes(strict.native)
    assert [bad.offset for bad in quick.bad] == [bad.offset for bad in strict.bad]
    lacking = [n for n, message in enumerate(messages) if not {"id", "source"} <= message.keys()]
    assert {bad.index for bad in quick.bad} >= set(lacking)


def test_one_without_its_key_is_named() -> None:
    messages = [{"id": "a", "source": 1}, {"source": 1}, {"id": "c", "source": 1}]
    found = decode(make_decoder(TABLE), messages)
    assert [(bad.index, bad.column) for bad in found.bad] == [(1, "id")]
    assert found.rows == 2


@pytest.mark.parametrize(
    "table",
    [
        replace(TABLE, require=("source",)),
        replace(TABLE, check=("source > 0",)),
        keyed_table(Column("id", "String", "DEFAULT", "'x'"), NOTE, key=("id",)),
        replace(TABLE, deduplicate=None),
    ],
)
def test_where_an_absent_field_does_not_show_each_message_is_looked_at(table: TableSpec) -> None:
    assert without_required_key(replace(table, require=table.require or ("id",))) is None
