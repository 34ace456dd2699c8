"""Each key space of a store of claims is opened for itself."""

from __future__ import annotations

import json

import pytest

from sluice.claims.port import StoreAwayError
from sluice.core.budget import TargetShard
from sluice.core.claim_notes import STALE_MS, waiting_for
from sluice.core.load_spec import LoadSpec
from sluice.driver.claims import RETRY_MS_MAX
from sluice.driver.load_specs import NamedSpec
from tests.claims.memory import Kept, MemoryStore
from tests.driver.claims_shop import NOW, OF_T, Shop, keyed, state

OF_U = TargetShard("u", "@claims")


def spec(scope: str = "") -> LoadSpec:
    return LoadSpec("p", "c", "d", 1, (keyed("t"), keyed("u", scope)))


def shop_of_two(kept: Kept, scope: str = "", settle_ms: int = 0) -> Shop:
    shop = Shop(kept, settle_ms=settle_ms)
    shop.spec = spec(scope)
    return shop


def test_one_whose_claims_cannot_be_made_again_holds_up_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = shop_of_two(Kept())
    shop.failing = {"d.u"}
    shop.poll(after_ms=0)
    assert shop.poll() is None
    assert "d.u cannot be read. Try: It is tried again" in (shop.keeper.outage(OF_U) or "")
    assert "in the scope p/d.u wait for the store of claims: d.u cannot" in caplog.messages[-1]
    shop.failing.clear()
    assert shop.poll() is None
    assert shop.keeper.outage(OF_U) is None


def test_what_fails_is_tried_again_later_each_time() -> None:
    """Each time a process is started."""
    shop = shop_of_two(Kept())
    shop.failing = {"d.u"}
    tried = []
    shop.poll(after_ms=0)
    for _ in range(240):
        before = len(shop.rebuilt)
        assert shop.poll() is None
        if len(shop.rebuilt) > before:
            tried.append((shop.now - NOW) // 1000)
    assert tried == [1, 2, 4, 8, 16, 32, 62, 92, 122, 152, 182, 212]
    assert RETRY_MS_MAX == 30_000


def open_with_a_second_table(kept: Kept) -> Shop:
    """A shop of one table that is open, and watches both from now on."""
    shop = Shop(kept)
    shop.poll(after_ms=0)
    assert shop.poll() is None
    shop.specs.join([NamedSpec.of(spec())])
    assert shop.poll() is None
    return shop


def test_a_line_of_the_log_names_a_few_of_many_scopes(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(Kept())
    shop.spec = LoadSpec("p", "c", "d", 1, tuple(keyed(f"t{n}") for n in range(9)))
    shop.poll()
    assert "in the scope p/d.t, p/d.t0, p/d.t1, p/d.t2, p/d.t3 and 5 more wait" in caplog.text


def test_tables_of_one_key_space_are_opened_together() -> None:
    """An event of the one may have come in the other."""
    shop = shop_of_two(Kept(), scope="p/d.t")
    shop.failing = {"d.u"}
    shop.poll(after_ms=0)
    assert "d.u cannot be read" in (shop.poll() or "")
    assert "d.u cannot be read" in (shop.keeper.outage(OF_U) or "")


def test_the_others_are_kept_up_while_claims_are_made_again() -> None:
    kept = Kept()
    shop = open_with_a_second_table(kept)
    shop.rebuild_seconds = 2 * STALE_MS // 1000
    assert shop.poll() is None
    assert shop.keeper.outage(OF_U) is None
    assert set(shop.outages) == {None} and len(shop.outages) == shop.rebuild_seconds
    assert [target for target, _ in shop.rebuilt] == ["d.t", "d.u"]


def test_a_store_that_is_lost_while_claims_are_made_again_opens_nothing() -> None:
    kept = Kept()
    shop = open_with_a_second_table(kept)

    def lose(*_: object) -> None:
        kept.drawn = "another"

    real, shop.keeper._rebuild = shop.keeper._rebuild, lose
    assert "another run" in (shop.poll() or "")
    assert not any(json.loads(text)[0] == "another@0" for text in kept.notes.values())
    shop.keeper._rebuild = real
    shop.poll()
    assert shop.poll() is None
    assert [target for target, _ in shop.rebuilt] == ["d.t", "d.t", "d.u"]


def test_a_store_that_goes_away_while_claims_are_made_again_closes_all() -> None:
    shop = Shop(Kept())
    shop.poll(after_ms=0)
    assert shop.poll() is None
    shop.specs.join([NamedSpec.of(spec())])
    assert shop.poll() is None

    def fail(*_: object) -> None:
        raise StoreAwayError("the store is away")

    shop.keeper._rebuild = fail
    assert "the store is away" in (shop.poll() or "")
    assert "the store is away" in (shop.keeper.outage(OF_U) or "")


def test_what_was_not_kept_up_may_have_been_claimed_by_who_sleeps() -> None:
    """Of a key space that was not open in the run before nobody here knows who claimed there last:
    a lease is waited for, and for no other."""
    kept = Kept()
    shop = shop_of_two(kept, settle_ms=3_000)
    shop.failing = {"d.u"}
    shop.poll(after_ms=0)
    for _ in range(3):
        shop.poll()
    shop.has_rows = True
    kept.drawn = "another"
    shop.failing.clear()
    for _ in range(4):
        shop.poll()
    assert shop.poll() is None
    assert "does not know who else may still insert" in (shop.keeper.outage(OF_U) or "")


def test_a_status_says_which_scope_waits() -> None:
    kept = Kept()
    shop = shop_of_two(kept)
    shop.failing = {"d.u"}
    shop.poll(after_ms=0)
    shop.poll()
    asked = shop.keeper.run, ["p/d.t", "p/d.u"], shop.now
    found = waiting_for(MemoryStore(kept).notes(), *asked)
    assert found["p/d.t"] == ""
    assert found["p/d.u"].startswith("p/c says: d.u cannot be read")


def test_what_is_recorded_without_claims_comes_before_an_entry_begins_to_deduplicate() -> None:
    """Applied to a driver whose store is open: rows that are inserted after the table was read, and
    without claims, would be claimed by nobody."""
    shop = Shop(Kept())
    shop.poll(after_ms=0)
    assert shop.poll() is None
    before, today = shop.spec, spec()
    out = state(shop.keeper.run)

    def see() -> None:
        shop.now += 1_000
        shop.see(today, before, out)
        shop.keeper.poll()

    for _ in range(3):
        see()
    assert "may still be inserted" in (shop.keeper.outage(OF_U) or "")
    assert [target for target, _ in shop.rebuilt] == ["d.t"]
    assert shop.keeper.outage(OF_T) is None
    out.stop(StoreAwayError("settled"))
    see()
    assert shop.keeper.outage(OF_U) is None
