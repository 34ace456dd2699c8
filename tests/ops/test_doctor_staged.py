"""What `doctor` says of staged delivery, and where it proposes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.clickhouse.staging import create_like
from sluice.core.errors import TerminalError
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.doctor_tables import check_staged, check_table, propose_staged
from tests.ops.doctor_facts import ENTRY, FACTS, NEEDS, NEW, OLD, plain

STAGED = replace(ENTRY, delivery="staged")
BARE = plain(window_blocks=0)
ONE = replace(NEEDS, durability="single", urls=("a",))


def examined(facts: TableFacts, *, old: bool = False, is_staged: bool = True) -> list[Finding]:
    found, capabilities = Examination("here"), OLD if old else NEW
    check_table(found, facts, capabilities, ONE, is_staged=is_staged)
    if is_staged:
        check_staged(found, facts, capabilities, STAGED)
    propose_staged(found, facts, capabilities, [STAGED if is_staged else ENTRY])
    return [each for each in found.findings if each.level != "ok"]


@pytest.mark.parametrize("old", [True, False])
def test_a_table_without_a_window_is_refused_with_the_line_to_write(old: bool) -> None:
    error, proposed = examined(BARE, old=old, is_staged=False)
    assert (error.level, error.check) == ("error", "window")
    assert proposed.fix == 'delivery = "staged" in [[table]] orders'
    assert examined(BARE, old=old) == []


def test_it_is_not_proposed_where_it_would_be_refused() -> None:
    view = Dependent("shop.sums_view", plain(table="sums", window_blocks=0))
    for facts in (replace(BARE, dependents=(view,)), replace(FACTS, window_blocks=0)):
        found = examined(facts, is_staged=False)
        assert found and not any("staged" in each.fix for each in found)
        assert any(e.check == "staged" and e.level == "error" for e in examined(facts))
    no_lineage = replace(BARE, columns=FACTS.columns[:1])
    place = Examination("here")
    check_table(place, BARE, NEW, ONE)
    propose_staged(place, no_lineage, NEW, [replace(ENTRY, on_error="park", lineage=False)])
    assert not any("staged" in e.fix for e in place.findings)


def test_views_whose_targets_know_no_repeats_are_no_reason_against_it() -> None:
    """What the issue of staged delivery is about: tokens are worth nothing behind such a view."""
    select = "SELECT id, count() AS n FROM shop.orders GROUP BY id"
    view = Dependent("shop.sums_view", plain(table="sums", window_blocks=0), select)
    facts = plain(dependents=(view,))
    found = examined(facts, is_staged=False)
    assert any(each.level == "error" and "sums_view" in each.what for each in found)
    assert found[-1].fix == 'delivery = "staged" in [[table]] orders'
    assert examined(facts) == []
    (error,) = [e for e in examined(facts, old=True) if e.level == "error"]
    assert "it feeds shop.sums_view, and this server copies" in error.what
    for other in (replace(view, select=""), replace(view, target=FACTS)):
        (error,) = [e for e in examined(plain(dependents=(other,))) if e.level == "error"]
        assert "it feeds shop.sums_view, " in error.what


def test_a_server_that_copies_needs_rows_that_tell() -> None:
    assert examined(replace(BARE, engine="SummingMergeTree"))[0].level == "warning"
    (error,) = [
        e
        for e in examined(replace(BARE, engine="SummingMergeTree"), old=True)
        if e.level == "error"
    ]
    assert "copies partitions" in error.what and "merges rows into others" in error.what


def test_a_stored_blocks_table_is_like_its_target_and_merges_nothing() -> None:
    full = "SummingMergeTree((a, b)) PARTITION BY toYYYYMM(d) ORDER BY (a, ')') SETTINGS x = 1"
    facts = replace(BARE, engine="SummingMergeTree", engine_full=full)
    made = (
        "CREATE TABLE `shop`.`s` AS `shop`.`orders` ENGINE = MergeTree "
        "PARTITION BY toYYYYMM(d) ORDER BY (a, ')') SETTINGS x = 1"
    )
    assert create_like(facts, "shop", "s", moves=False) == made
    own = (
        "assign_part_uuids = 1, max_bytes_to_merge_at_max_space_in_pool = 1, "
        "max_bytes_to_merge_at_min_space_in_pool = 1, max_number_of_merges_with_ttl_in_pool = 0"
    )
    assert create_like(facts, "shop", "s", moves=True) == f"{made}, {own}"
    plain_like = "CREATE TABLE `shop`.`s` AS `shop`.`orders`"
    assert create_like(BARE, "shop", "s", moves=False) == plain_like
    bare = replace(BARE, engine_full="MergeTree ORDER BY id")
    like = f"{plain_like} ENGINE = MergeTree ORDER BY id SETTINGS {own}"
    assert create_like(bare, "shop", "s", moves=True) == like
    with pytest.raises(TerminalError, match="without ORDER BY"):
        old = replace(facts, engine_full="SummingMergeTree(d, (a), 8192)")
        create_like(old, "shop", "s", moves=True)
