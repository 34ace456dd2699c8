"""Where a store was emptied, who else may still insert is remembered by those who saw it."""

from __future__ import annotations

from sluice.core.claim_notes import other_leases
from tests.claims.memory import Kept, MemoryStore
from tests.driver.claims_shop import LEASE, Shop

SHORT = 60_000


def two_that_load_one_table(kept: Kept) -> tuple[Shop, Shop]:
    """With leases of a minute and of ten, each open."""
    short = Shop(kept, "c", settle_ms=3_000, lease_ms=SHORT)
    long = Shop(kept, "d", settle_ms=3_000)
    for shop in (short, long):
        for _ in range(5):
            shop.poll()
        assert shop.poll() is None
    # The first one looks once more: the other one is there now.
    assert short.poll() is None
    return short, long


def empty(kept: Kept) -> None:
    kept.notes.clear()
    kept.drawn = "another"


def polled(shop: Shop, seconds: int) -> str | None:
    """What is said at the end of this time, in which it looks each second."""
    return [shop.poll() for _ in range(seconds)][-1]


def test_the_longest_lease_of_those_who_share_a_scope_is_waited_for() -> None:
    """The other one may be asleep, with a block in the hands of its task."""
    kept = Kept()
    short, _ = two_that_load_one_table(kept)
    short.has_rows = True
    empty(kept)
    assert "does not know who else" in (polled(short, LEASE // 1_000) or "")
    assert polled(short, 30) is None


def test_the_lease_of_one_that_has_ended_is_not() -> None:
    kept = Kept()
    short, _ = two_that_load_one_table(kept)
    assert polled(short, LEASE // 1_000 + 30) is None
    short.has_rows = True
    empty(kept)
    assert "does not know who else" in (polled(short, SHORT // 1_000) or "")
    assert polled(short, 30) is None


def test_leases_that_differ_are_found() -> None:
    kept = Kept()
    short, long = two_that_load_one_table(kept)
    notes = MemoryStore(kept).notes()
    asked = ["p/d.t"], short.now
    assert other_leases(notes, SHORT, *asked) == {"p/d": LEASE}
    assert other_leases(notes, LEASE, *asked) == {"p/c": SHORT}
    assert other_leases(notes, SHORT, ["elsewhere"], short.now) == {}
    assert other_leases(notes, SHORT, ["p/d.t"], long.now + 2 * LEASE) == {}
