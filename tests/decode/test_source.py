"""The lineage column `_source`: who loaded a row."""

from __future__ import annotations

import pytest

from sluice.core.load_spec import SOURCE, Column, lineage_types
from sluice.core.tokens import row_source, source_number
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from tests.decode.support import LINEAGE, LINEAGE_NAMES, fill, rows
from tests.decode.text_support import ID, TEXT, text_of
from tests.decode.typed_support import written

WHO = row_source(
    pipeline="orders", connector="dc1", topic_id="Zm9vYmFyYmF6cXV4MQ", entry="all", generation=2
)
NATIVE = (
    written("Native", "toUInt64(2) AS id, 'b' AS s"),
    written("Native", "toUInt64(1) AS id, 'a' AS s"),
)
MESSAGES = {
    "JSONEachRow": (b'{"id": 2, "s": "b"}', b'{"id": 1, "s": "a"}'),
    # Other lines of names: blocks that are joined.
    "CSVWithNames": (b"id,s\n2,b\n", b"s,id\na,1\n"),
    "Native": NATIVE,
}


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("column_type", ["LowCardinality(String)", "String", "UInt64"])
@pytest.mark.parametrize("table_format", MESSAGES)
def test_every_row_says_who_loaded_it(table_format: str, column_type: str, sort: bool) -> None:
    text = text_of(
        table_format,
        *(ID, TEXT, *LINEAGE, Column(SOURCE, column_type)),
        lineage=(*LINEAGE_NAMES, SOURCE),
        sort=sort,
        sorting_key=f"id, {SOURCE}",
    )
    with MessageBuffer(framing_of(text)) as buffer:
        fill(buffer, list(MESSAGES[table_format]))
        decoded = make_decoder(text).decode(buffer, alone("orders", 3, WHO))
    who = str(source_number(WHO)) if column_type == "UInt64" else WHO
    expected = [
        ["2", "b", "orders", 3, "1000", 0, who],
        ["1", "a", "orders", 3, "1002", 0, who],
    ]
    assert rows(decoded) == (expected[::-1] if sort else expected)


def test_no_two_loaders_have_one_source() -> None:
    parts = {"pipeline": "p", "connector": "c", "topic_id": "t", "entry": "e"}
    others = [
        row_source(**(parts | {name: "other"}), generation=0)  # type: ignore[arg-type]
        for name in parts
    ]
    sources = {row_source(**parts, generation=g) for g in range(3)} | set(others)  # type: ignore[arg-type]
    assert len(sources) == len({source_number(source) for source in sources}) == 7


def test_servers_that_store_no_dictionaries_get_a_number() -> None:
    assert lineage_types((18, 16, 1))[SOURCE] == "UInt64"
    assert lineage_types((26, 9))[SOURCE] == "LowCardinality(String)"
