"""Envelopes read many at once against the definition, which reads one at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.producer import SQLBatchRequest
from tests.decode.envelope_support import (
    ANY,
    COLUMNS,
    NAMES,
    USUAL,
    check,
    envelope_table,
    mutated,
    some_messages,
)
from tests.support.examples import examples


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Usual rows, in some of which a value is any value."""
    names = draw(st.lists(st.sampled_from([*NAMES, "unknown"]), min_size=1, unique=True))
    odd = draw(st.sampled_from(["", "", *names]))
    rows = draw(
        st.lists(
            st.tuples(*(ANY if name == odd else USUAL.get(name, ANY) for name in names)), max_size=4
        )
    )
    if draw(st.booleans()):
        sql = f"INSERT INTO t ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
    else:
        sql = f"insert into `db`.t values ({','.join('?' * len(names))});"
    request = SQLBatchRequest(
        table=draw(st.sampled_from(["", "t", "other"])),
        sql=sql,
        rows=rows,
        shard=draw(st.sampled_from(["", "s1"])),
        schema_hashcode=draw(st.sampled_from([0, -1, 5])),
    )
    return request.encode()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(requests(), min_size=1, max_size=8))
def test_values_come_back(messages: list[bytes]) -> None:
    check(envelope_table(*COLUMNS), messages)


@pytest.mark.parametrize("unknown_fields", ["ignore", "refuse"])
def test_mutants_are_rows_or_bad_and_cost_no_neighbour(unknown_fields: str) -> None:
    chance = random.Random(6)
    text = envelope_table(*COLUMNS, unknown_fields=unknown_fields)
    read = refused = 0
    for _ in range(6):
        messages = some_messages(chance, 400)
        for place in range(0, 400, 2):
            messages[place] = mutated(messages[place], chance)
        counts = check(text, messages)
        read, refused = read + counts[0], refused + counts[1]
    assert read > 1200 and refused > 600
