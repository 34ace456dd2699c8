"""Which shards the rows of a table go to: what may be written, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.core.load_spec import Sharding
from tests.config.support import MINIMAL, changed, findings_of, load_text

ONE = 's1 = ["http://localhost:8123"]'
TWO = changed(ONE, f'west = ["http://w:8123"], {ONE}, east = ["http://e:8123"]')


@pytest.mark.parametrize(
    ("line", "sharding"),
    [
        ('{ by = "key", column = "user_id" }', Sharding("key", "user_id")),
        ('{ by = "key", column = "user_id", stripe = 10 }', Sharding("key", "user_id", 10)),
        ('{ by = "offset" }', Sharding("offset")),
        ('{ by = "offset", stripe = 10_000 }', Sharding("offset", stripe=10_000)),
        (
            '{ by = "expression", expression = "id % 7" }',
            Sharding("expression", expression="id % 7"),
        ),
    ],
)
def test_the_ways_to_spread_rows(tmp_path: Path, line: str, sharding: Sharding) -> None:
    configuration = load_text(tmp_path, f"{TWO}sharding = {line}\n")
    (table,) = configuration.tables
    assert table.sharding == sharding
    assert configuration.shards_of(table) == ("east", "s1", "west"), "not in the file's order"


def test_a_table_may_go_to_some_shards(tmp_path: Path) -> None:
    """One needs no sharding: one topic for each shard."""
    configuration = load_text(tmp_path, f'{TWO}shards = ["west"]\n')
    assert configuration.shards_of(configuration.tables[0]) == ("west",)
    two = f'{TWO}shards = ["west", "east"]\nsharding = {{ by = "offset" }}\n'
    configuration = load_text(tmp_path, two)
    assert configuration.shards_of(configuration.tables[0]) == ("east", "west")


def test_one_shard_needs_no_word(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, MINIMAL)
    assert configuration.shards_of(configuration.tables[0]) == ("s1",)
    assert configuration.tables[0].sharding is None


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ("", "sharding", "is missing: rows go to 3 shards (east, s1, west); write one like"),
        ('shards = ["s1", "west"]', "sharding", 'or name one shard, as in shards = ["s1"]'),
        ('shards = ["wets"]', "shards", 'no shard is named "wets"; did you mean "west"?'),
        ("shards = []", "shards", "must not be empty"),
        ('shards = ["s1", "s1"]', "shards[2]", '"s1" is named twice'),
        ("sharding = 3", "sharding", "must be a table, not 3"),
        ("sharding = {}", "sharding", "does not say by what"),
        ('sharding = { column = "id" }', "sharding", "does not say by what"),
        ('sharding = { by = "user" }', "sharding.by", 'use "key", "offset" or "expression"'),
        ('sharding = { by = "key" }', "sharding.column", "is missing"),
        ('sharding = { by = "key", column = "a", strip = 2 }', "sharding.strip", 'mean "stripe"'),
        ('sharding = { by = "key", column = "a", stripe = 0 }', "sharding.stripe", "out of range"),
        ('sharding = { by = "offset", column = "a" }', "sharding.column", "says nothing with"),
        ('sharding = { by = "expression" }', "sharding.expression", "is missing"),
        (
            'sharding = { by = "expression", expression = "a", stripe = 2 }',
            "sharding.stripe",
            'says nothing with by = "expression"',
        ),
        (
            'shards = ["s1"]\nsharding = { by = "offset" }',
            "sharding",
            "decides nothing: all rows go to the shard s1",
        ),
        (
            'rows = "many"\nsharding = { by = "key", column = "a" }',
            "sharding",
            "could send rows of one message to different shards",
        ),
        (
            'rows = "many"\nsharding = { by = "expression", expression = "a" }',
            "sharding",
            'use by = "offset", or one shard',
        ),
        ('lineage = false\nsharding = { by = "offset" }', "sharding", "needs the column _offset"),
    ],
)
def test_refusals(tmp_path: Path, lines: str, key: str, words: str) -> None:
    found = findings_of(tmp_path, f"{TWO}{lines}\n")
    assert any(line.startswith(f"sluice.toml: table[orders].{key}: ") for line in found), found
    assert any(words in line for line in found), found


def test_a_block_is_not_cut_into_any_number(tmp_path: Path) -> None:
    many = ", ".join(f's{n} = ["http://h{n}:8123"]' for n in range(257))
    text = changed(ONE, many) + 'sharding = { by = "offset" }\n'
    (line,) = findings_of(tmp_path, text)
    assert "table[orders].sharding: would cut each block into up to 257" in line
    load_text(tmp_path, text.replace('s256 = ["http://h256:8123"]', "").replace(",  }", " }"))


def test_rows_of_many_may_be_spread_by_offset(tmp_path: Path) -> None:
    load_text(tmp_path, f'{TWO}rows = "many"\nsharding = {{ by = "offset" }}\n')
