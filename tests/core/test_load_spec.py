"""The load spec: canonical, named by its digest, rebuilt from the ledger."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.claims import Deduplicate
from sluice.core.errors import TerminalError
from sluice.core.load_spec import (
    Column,
    KeyFormat,
    LoadSpec,
    Sharding,
    TableSpec,
    digest_of,
    parse_spec,
)
from tests.support.examples import examples

WORDS = st.text(max_size=12)
COLUMNS = st.builds(
    Column,
    name=WORDS,
    type=WORDS,
    kind=st.sampled_from(["", "DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL"]),
    expression=WORDS,
)
TABLES = st.builds(
    TableSpec,
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
    decompress=st.sampled_from(["", "gzip"]),
    envelope=st.sampled_from(["", "debezium"]),
    key=st.none()
    | st.builds(KeyFormat, format=WORDS, options=st.lists(st.tuples(WORDS, WORDS)).map(tuple)),
    timestamps=st.sampled_from(["", "ms"]),
    topic_pattern=st.sampled_from(["", "a.*"]),
    sharding=st.none()
    | st.builds(
        Sharding,
        by=st.sampled_from(["key", "offset", "expression"]),
        column=WORDS,
        stripe=st.integers(1, 9),
        expression=WORDS,
    ),
    deduplicate=st.none()
    | st.builds(
        Deduplicate,
        key=st.lists(WORDS, min_size=1, max_size=3).map(tuple),
        window_seconds=st.integers(1, 10**6),
        scope=WORDS,
        duplicates=st.sampled_from(["drop", "dead-letter", "topic"]),
        on_null=st.sampled_from(["dead-letter", "row"]),
    ),
)
TEXTS = st.builds(
    LoadSpec,
    pipeline=WORDS,
    connector=WORDS,
    decoder=WORDS,
    range_bytes_max=st.integers(1, 2**40),
    tables=st.lists(TABLES, max_size=2).map(tuple),
)

TABLE = TableSpec(
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
BY_ID = Deduplicate(("id",), 86_400, "orders/shop.orders")
TEXT = LoadSpec("orders", "dc1", "chdb 26.9", 1000, (TABLE,))


@settings(max_examples=examples(60))
@given(TEXTS)
def test_a_spec_comes_back_with_the_same_name(spec: LoadSpec) -> None:
    canonical = spec.canonical()
    again = parse_spec(canonical)
    assert again == spec
    assert again.canonical() == canonical
    assert again.digest() == spec.digest() == digest_of(canonical)


@settings(max_examples=examples(60))
@given(TEXTS, TEXTS)
def test_equal_names_mean_equal_specs(left: LoadSpec, right: LoadSpec) -> None:
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
        replace(TEXT, tables=(replace(TABLE, deduplicate=BY_ID),)),
        *(
            replace(TEXT, tables=(replace(TABLE, deduplicate=replace(BY_ID, **other)),))
            for other in (
                {"key": ("id", "at")},
                {"window_seconds": 3600},
                {"scope": "shop"},
                {"duplicates": "dead-letter"},
                {"on_null": "row"},
            )
        ),
    ]
    assert len({spec.digest() for spec in [TEXT, *changed]}) == len(changed) + 1


def test_a_spec_from_before_sorting_keeps_its_name() -> None:
    assert "sort" not in json.loads(TEXT.canonical())["tables"][0]
    assert parse_spec(TEXT.canonical()) == TEXT


def test_specs_from_before_sharding_keep_their_names() -> None:
    """The digest as the version before it made it."""
    assert "sharding" not in json.loads(TEXT.canonical())["tables"][0]
    assert TEXT.digest() == "469673381c0eb2a9"


def test_specs_from_before_deduplication_keep_their_names() -> None:
    assert "deduplicate" not in json.loads(TEXT.canonical())["tables"][0]
    keyed = replace(TEXT, tables=(replace(TABLE, deduplicate=BY_ID),))
    assert parse_spec(keyed.canonical()).tables[0].deduplicate == BY_ID


def test_the_tables_of_a_topic() -> None:
    other = replace(TABLE, entry="clicks", topics=("clicks",))
    spec = replace(TEXT, tables=(TABLE, other))
    assert spec.tables_of("events") == (TABLE,)
    assert spec.tables_of("clicks") == (other,)
    assert spec.tables_of("nothing") == ()
    assert TABLE.target == "shop.orders"


def test_a_spec_of_another_version_is_refused() -> None:
    raw = json.loads(TEXT.canonical()) | {"version": 99}
    with pytest.raises(TerminalError, match="version 99") as caught:
        parse_spec(json.dumps(raw))
    assert "sluice resolve" in caught.value.hint


def test_an_expression_takes_whole_names() -> None:
    found = replace(TABLE, entry="all", topics=("one",), topic_pattern=r"events|shop\..*")
    spec = replace(TEXT, tables=(TABLE, found))
    assert spec.tables_of("events") == (TABLE, found)
    assert spec.tables_of("one") == spec.tables_of("shop.") == (found,)
    for topic in ("shop", "my.shop.x", "events2", "shop.x\n" * 2):
        assert spec.tables_of(topic) == ()
