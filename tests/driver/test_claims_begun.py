"""What an entry that begins to deduplicate while a driver runs has loaded before is claimed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.claims.port import StoreAwayError
from sluice.core.budget import TargetShard
from sluice.core.claim_notes import SINCE_MARGIN_MS
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.driver.state import PartitionState
from tests.claims.memory import Kept
from tests.driver.claims_shop import NOW, OF_T, Shop, keyed, state

OF_U = TargetShard("u", "@claims")


def opened(kept: Kept, name: str = "c") -> Shop:
    """A driver that loads one table, and has found the store open."""
    shop = Shop(kept, name)
    shop.poll(after_ms=0)
    assert shop.poll() is None
    return shop


def with_u(shop: Shop) -> LoadSpec:
    return replace(shop.spec, tables=(*shop.spec.tables, keyed("u")))


def go_by(shop: Shop, today: LoadSpec, before: LoadSpec, *states: PartitionState) -> None:
    """A round of the loop, and a look at the store."""
    see(shop, today, before, *states)
    shop.keeper.poll()


def see(shop: Shop, today: LoadSpec, before: LoadSpec, *states: PartitionState) -> None:
    shop.now += 1_000
    shop.see(today, before, *states)


def test_another_data_center_has_begun_before() -> None:
    """Rows of this one came meanwhile without claims, and some are on their way."""
    kept = Kept()
    one, other = opened(kept), opened(kept, "d")
    for _ in range(3):
        go_by(one, with_u(one), one.spec)
    assert one.keeper.outage(OF_U) is None
    other.now = one.now
    out = state(other.keeper.run)
    for _ in range(3):
        go_by(other, with_u(other), other.spec, out)
    assert "may still be inserted" in (other.keeper.outage(OF_U) or "")
    assert other.keeper.outage(OF_T) is None
    out.stop(StoreAwayError("settled"))
    go_by(other, with_u(other), other.spec, out)
    go_by(other, with_u(other), other.spec, out)
    assert other.keeper.outage(OF_U) is None
    (since_ms,) = (since_ms for target, since_ms in other.rebuilt if target == "d.u")
    assert since_ms <= other.now - 3_600_000 - SINCE_MARGIN_MS
    rebuilt = len(other.rebuilt)
    go_by(other, with_u(other), other.spec)
    assert len(other.rebuilt) == rebuilt


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_it_ended_for_a_moment(is_in_doubt: bool) -> None:
    """A version took the key away, and a rollback brings it back."""
    shop = opened(Kept())
    keyed_by, without = with_u(shop), shop.spec
    for _ in range(3):
        go_by(shop, keyed_by, without)
    assert shop.keeper.outage(OF_U) is None
    see(shop, without, keyed_by)
    shop.specs.keep([keyed_by.digest()] if is_in_doubt else [])
    for _ in range(3):
        go_by(shop, without, keyed_by)
    assert [target for target, _ in shop.rebuilt] == ["d.t", "d.u"]
    out = state(shop.keeper.run)
    see(shop, keyed_by, without, out)
    assert shop.keeper.outage(OF_U), "at once, and not when the store is looked at again"
    shop.keeper.poll()
    go_by(shop, keyed_by, without, out)
    assert "may still be inserted" in (shop.keeper.outage(OF_U) or "")
    go_by(shop, keyed_by, without)
    assert shop.keeper.outage(OF_U) is None
    assert shop.rebuilt[2:] == [("d.u", shop.now - 3_600_000 - SINCE_MARGIN_MS)]


def test_it_ends_and_begins_again_while_its_claims_are_made() -> None:
    """Rows that came after the table was read are not claimed."""
    shop = opened(Kept())
    keyed_by, without, real = with_u(shop), shop.spec, shop.keeper._rebuild

    def rebuild(table: TableSpec, since_ms: int, run: str, meanwhile: Callable[[], object]) -> None:
        real(table, since_ms, run, meanwhile)
        shop.keeper._rebuild = real
        see(shop, without, keyed_by)
        see(shop, keyed_by, without)

    shop.keeper._rebuild = rebuild
    for _ in range(2):
        go_by(shop, keyed_by, without)
    assert [target for target, _ in shop.rebuilt] == ["d.t", "d.u"]
    assert shop.keeper.outage(OF_U)
    go_by(shop, keyed_by, without)
    assert [target for target, _ in shop.rebuilt] == ["d.t", "d.u", "d.u"]
    assert shop.keeper.outage(OF_U) is None


def test_one_that_a_driver_begins_with_is_opened_by_its_note() -> None:
    kept = Kept()
    opened(kept)
    shop = Shop(kept, "d")
    shop.now = NOW + 2_000
    assert shop.poll() is None
    assert shop.rebuilt == []
