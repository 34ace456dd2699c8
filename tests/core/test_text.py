"""The configuration text: canonical, named by its digest, rebuilt from the ledger."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.errors import TerminalError
from sluice.core.text import (
    Column,
    ConfigurationText,
    Sharding,
    TableText,
    digest_of,
    parse_text,
)

WORDS = st.text(max_size=12)
COLUMNS = st.builds(
    Column,
    name=WORDS,
    type=WORDS,
    kind=st.sampled_from(["", "DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL"]),
    expression=WORDS,
)
TABLES = st.builds(
    TableText,
    entry=WORDS,
    database=WORDS,
    table=WORDS,
    topics=st.lists(WORDS, max_size=3).map(tuple),
    format=WORDS,
    columns=st.lists(COLUMNS, max_size=3).map(tuple),
    lineage=st.lists(WORDS, max_size=4).map(tuple),
    partition_key=WORDS,
    sorting_key=WORDS,
    unknown_fields=st.sampled_from(["ignore", "refuse"]),
    on_null=st.sampled_from(["dead-letter", "default"]),
    fractions=st.sampled_from(["dead-letter", "cut"]),
    time_zone=WORDS,
    shards=st.lists(WORDS, max_size=2).map(tuple),
    sort=st.booleans(),
    topic_pattern=st.sampled_from(["", "a.*"]),
    sharding=st.none()
    | st.builds(
        Sharding,
        by=st.sampled_from(["key", "offset", "expression"]),
        column=WORDS,
        stripe=st.integers(1, 9),
        expression=WORDS,
    ),
)
TEXTS = st.builds(
    ConfigurationText,
    pipeline=WORDS,
    connector=WORDS,
    decoder=WORDS,
    range_bytes_max=st.integers(1, 2**40),
    tables=st.lists(TABLES, max_size=2).map(tuple),
)

TABLE = TableText(
    entry="orders",
    database="shop",
    table="orders",
    topics=("orders", "events"),
    format="JSONEachRow",
    columns=(Column("id", "UInt64"), Column("at", "DateTime", "DEFAULT", "now()")),
    lineage=("_topic", "_partition", "_offset", "_row"),
    partition_key="toYYYYMM(at)",
    sorting_key="id",
    unknown_fields="ignore",
    on_null="dead-letter",
    time_zone="UTC",
    shards=("s1",),
)
TEXT = ConfigurationText("orders", "dc1", "chdb 26.9", 1000, (TABLE,))


@settings(max_examples=60)
@given(TEXTS)
def test_a_text_comes_back_with_the_same_name(text: ConfigurationText) -> None:
    canonical = text.canonical()
    again = parse_text(canonical)
    assert again == text
    assert again.canonical() == canonical
    assert again.digest() == text.digest() == digest_of(canonical)


@settings(max_examples=60)
@given(TEXTS, TEXTS)
def test_equal_names_mean_equal_texts(left: ConfigurationText, right: ConfigurationText) -> None:
    assert (left.digest() == right.digest()) == (left == right)


def test_the_canonical_form_is_sorted_and_dense() -> None:
    canonical = TEXT.canonical()
    raw = json.loads(canonical)
    assert canonical == json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert len(TEXT.digest()) == 16


def test_everything_that_decides_rows_changes_the_name() -> None:
    changed = [
        replace(TEXT, decoder="chdb 27.1"),
        replace(TEXT, range_bytes_max=1001),
        replace(TEXT, tables=(replace(TABLE, columns=TABLE.columns[:1]),)),
        replace(TEXT, tables=(replace(TABLE, on_null="default"),)),
        replace(TEXT, tables=(replace(TABLE, time_zone="Europe/Berlin"),)),
        replace(TEXT, tables=(replace(TABLE, sort=True),)),
        replace(TEXT, tables=(replace(TABLE, topic_pattern="a.*"),)),
        replace(TEXT, tables=(replace(TABLE, shards=("s1", "s2")),)),
        replace(TEXT, tables=(replace(TABLE, sharding=Sharding("key", "id")),)),
        replace(TEXT, tables=(replace(TABLE, sharding=Sharding("key", "id", 2)),)),
        replace(TEXT, tables=(replace(TABLE, sharding=Sharding("offset")),)),
    ]
    assert len({text.digest() for text in [TEXT, *changed]}) == len(changed) + 1


def test_a_text_from_before_sorting_keeps_its_name() -> None:
    assert "sort" not in json.loads(TEXT.canonical())["tables"][0]
    assert parse_text(TEXT.canonical()) == TEXT


def test_texts_from_before_sharding_keep_their_names() -> None:
    """The digest as the version before it made it."""
    assert "sharding" not in json.loads(TEXT.canonical())["tables"][0]
    assert TEXT.digest() == "469673381c0eb2a9"


def test_the_tables_of_a_topic() -> None:
    other = replace(TABLE, entry="clicks", topics=("clicks",))
    text = replace(TEXT, tables=(TABLE, other))
    assert text.tables_of("events") == (TABLE,)
    assert text.tables_of("clicks") == (other,)
    assert text.tables_of("nothing") == ()
    assert TABLE.target == "shop.orders"


def test_a_text_of_another_version_is_refused() -> None:
    raw = json.loads(TEXT.canonical()) | {"version": 99}
    with pytest.raises(TerminalError, match="version 99") as caught:
        parse_text(json.dumps(raw))
    assert "sluice resolve" in caught.value.hint


def test_an_expression_takes_whole_names() -> None:
    found = replace(TABLE, entry="all", topics=("one",), topic_pattern=r"events|shop\..*")
    text = replace(TEXT, tables=(TABLE, found))
    assert text.tables_of("events") == (TABLE, found)
    assert text.tables_of("one") == text.tables_of("shop.") == (found,)
    for topic in ("shop", "my.shop.x", "events2", "shop.x\n" * 2):
        assert text.tables_of(topic) == ()
