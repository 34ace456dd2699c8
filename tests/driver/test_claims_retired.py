"""Claims of table entries that leave the configuration, or come back to it in other words."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.budget import TargetShard
from sluice.core.load_spec import LoadSpec
from sluice.driver.load_specs import NamedSpec
from tests.claims.memory import Kept, MemoryStore
from tests.driver.claims_shop import Shop, keyed

OF_GONE = TargetShard("gone", "@claims")
GONE = LoadSpec("p", "c", "d", 1, (keyed("gone"),))


def test_an_entry_that_was_taken_out_is_made_again_by_what_was_recorded() -> None:
    shop = Shop(Kept())
    shop.specs.join([NamedSpec.of(GONE)])
    shop.poll(after_ms=0)
    assert shop.poll() is None
    assert shop.keeper.outage(OF_GONE) is None
    assert sorted(target for target, _ in shop.rebuilt) == ["d.gone", "d.t"]


def test_an_entry_that_nobody_needs_any_more_is_let_go() -> None:
    """Its table may be dropped by then."""
    kept = Kept()
    shop = Shop(kept)
    shop.specs.join([NamedSpec.of(GONE)])
    shop.poll(after_ms=0)
    assert shop.poll() is None
    shop.specs.keep([])
    shop.failing = {"d.gone"}
    kept.drawn = "another"
    shop.poll()
    assert shop.poll() is None
    assert OF_GONE not in shop.keeper.current()
    (writer,) = (text for name, text in MemoryStore(kept).notes().items() if "writer" in name)
    assert "d.gone" not in writer
    assert [target for target, _ in shop.rebuilt[2:]] == ["d.t"]


def test_today_counts_where_a_recorded_load_spec_has_the_same_entry() -> None:
    shop = Shop(Kept())
    (table,) = shop.spec.tables
    for other in (keyed("t", "elsewhere"), replace(table, table="before")):
        shop.specs.join([NamedSpec.of(replace(shop.spec, tables=(other,)))])
    shop.poll(after_ms=0)
    assert shop.poll() is None
    assert [target for target, _ in shop.rebuilt] == ["d.t"]


def test_a_table_is_read_in_the_shards_of_all_its_entries() -> None:
    shop = Shop(Kept())
    (table,) = shop.spec.tables
    other = replace(table, entry="u", shards=("s2",))
    shop.spec = replace(shop.spec, tables=(table, other))
    shop.poll(after_ms=0)
    assert shop.poll() is None
    assert shop.shards == [("s1", "s2")]
