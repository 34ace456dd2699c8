"""The store of claims is closed while it may lack some, and opened when they are there again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.claim_notes import (
    SINCE_MARGIN_MS,
    STALE_MS,
    Closed,
    Me,
    Open,
    Part,
    RebuildNow,
    Space,
    Writer,
    next_step,
    not_made_again,
    others_of,
    waiting_for,
)
from sluice.core.claims import Deduplicate
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.receipts import Loaded
from sluice.driver.claims import may_still_insert, why_other_claims
from sluice.driver.state import Answered, AsRecorded, Holds, PartitionState, PossibleLateInsert
from tests.claims.memory import Kept, MemoryStore
from tests.driver.claims_shop import BEFORE, KEY, LEASE, NOW, OF_T, RUN, SPEC, Shop, state
from tests.driver.loop_world import table_spec

ME = Me("p/c", "run-1", NOW - 5_000)
OF = Part("s", "d.t", 3_600)
NOTE = f"space {OF.name}"
ELSEWHERE = Part("other", "d.t", 3_600)


def step(
    notes: dict[str, str],
    *,
    is_quiet: bool = True,
    has_settled: bool = True,
    noted_ms: int = 0,
    unknown_until_ms: int = 0,
    was_open: bool = False,
) -> object:
    return next_step(
        notes,
        others_of(notes, ME, NOW).get(OF.space, {}),
        RUN,
        [OF],
        is_quiet=is_quiet,
        has_settled=has_settled,
        was_open=was_open,
        noted_ms=noted_ms,
        unknown_until_ms=unknown_until_ms,
        now_ms=NOW,
    )


def writer(run: str = BEFORE, *, is_quiet: bool = False, at_ms: int = NOW, of: str = "p/d") -> str:
    return Writer(of, run, is_quiet, at_ms, LEASE, (OF.name,)).written()


def test_a_store_with_all_claims_is_open() -> None:
    assert step({NOTE: Space(RUN, NOW - STALE_MS).written()}, is_quiet=False) == Open()


@pytest.mark.parametrize(
    ("note", "since_ms"),
    [
        ("", NOW - 3_600_000),
        (Space(BEFORE, NOW - 1_000).written(), NOW - 1_000),
        (Space(RUN, NOW - STALE_MS - 1).written(), NOW - STALE_MS - 1),
        (Space(BEFORE, NOW - 7_200_000).written(), NOW - 3_600_000),
    ],
)
def test_what_came_since_its_last_note_is_claimed_again(note: str, since_ms: int) -> None:
    """Never more than the window: what is older would be over."""
    notes = {NOTE: note} if note else {}
    assert step(notes) == RebuildNow({OF: since_ms - SINCE_MARGIN_MS})


def test_nothing_is_rebuilt_while_something_may_still_be_inserted() -> None:
    assert isinstance(step({}, is_quiet=False), Closed)
    assert isinstance(step({}, has_settled=False), Closed)


@pytest.mark.parametrize(
    ("note", "waits"),
    [
        (writer(), True),
        (writer(RUN), True),
        (writer(RUN, is_quiet=True), False),
        (writer(BEFORE, is_quiet=True), True),
        (writer(at_ms=NOW - LEASE - 20_000), False),
        (
            Writer("p/d", BEFORE, False, NOW, LEASE, (ELSEWHERE.name,)).written(),
            False,
        ),
        # The driver before this one: what it sent is in doubt here.
        (writer(of="p/c", at_ms=NOW - 6_000), False),
        # It goes on, so this one may be the one that is to end.
        (writer(of="p/c", at_ms=NOW - 4_000), True),
    ],
)
def test_other_writers_are_waited_for(note: str, waits: bool) -> None:
    assert isinstance(step({"writer p/d run-2": note}), Closed) is waits


@pytest.mark.parametrize(
    ("noted_ms", "alive_ms", "waits"),
    [
        (NOW - 5_000, NOW - 5_000, False),  # it has what was noted last, so it has the others, too
        (NOW - 5_000, NOW - 6_000, True),
        (NOW - 5_000, 0, True),
        (0, NOW - 5_000, True),  # nobody here has looked at it all the time
    ],
)
def test_who_may_still_insert_is_unknown_where_notes_are_lost(
    noted_ms: int, alive_ms: int, waits: bool
) -> None:
    """Another writer that sleeps does not say so again."""
    notes = {NOTE: Space(BEFORE, alive_ms).written()} if alive_ms else {}
    found = step(notes, noted_ms=noted_ms, unknown_until_ms=NOW)
    assert isinstance(found, Closed) is waits
    over = step(notes, noted_ms=noted_ms, unknown_until_ms=NOW - 20_000)
    assert isinstance(over, RebuildNow)


def test_a_note_of_this_driver_is_its_own() -> None:
    assert isinstance(step({f"writer {ME.name}": writer()}), RebuildNow)


def quiet(found: PartitionState, *late: PossibleLateInsert) -> bool:
    return not may_still_insert(
        [found], Holds(late_inserts=list(late)), SPEC, lambda _: SPEC, RUN, NOW
    )


def test_a_range_in_doubt_may_still_be_inserted_until_its_lease_is_over() -> None:
    assert not quiet(state())
    assert quiet(state(deadline_ms=NOW - 20_000))
    assert quiet(state(RUN))  # it was recorded under what the store is now
    assert quiet(state(key="t/0"))  # it claims nothing


def test_a_range_that_is_loaded_under_todays_key_may_have_claimed_by_another_one() -> None:
    """What its first attempts may still insert has to be there before claims are made again."""
    found = state(RUN)
    found.record = replace(found.record, spec="another")
    assert not quiet(found)
    found.record = replace(found.record, deadline_ms=NOW - 20_000)
    assert quiet(found)


@pytest.mark.parametrize(
    ("change", "is_other"),
    [
        ({}, False),
        ({"window_seconds": 60}, False),
        ({"duplicates": "topic"}, False),
        ({"scope": "q"}, True),
        ({"key": ("n", "id")}, True),
    ],
)
def test_a_key_that_was_changed_while_ranges_are_in_doubt(
    change: dict[str, Any], is_other: bool
) -> None:
    """They are looked for in the table, and what is missing claims as new ranges do."""
    then = Deduplicate(("id", "n"), 3_600, "p/d.t")
    table = replace(table_spec("t", ("a",)), deduplicate=then)
    today = replace(table, deduplicate=replace(then, **change))
    recorded, now = (replace(SPEC, tables=(each,)) for each in (table, today))
    why = why_other_claims(recorded, now, "a")
    assert (why is not None) is is_other
    assert why_other_claims(recorded, now, "b") is None
    assert why_other_claims(recorded, SPEC, "a") is None
    assert why_other_claims(SPEC, now, "a") is None


def test_a_range_that_nobody_inserted_does_not_hold_the_store_closed() -> None:
    found = state()
    found.untouched = True
    assert quiet(found)
    found.out = True
    assert not quiet(found)


def test_a_loaded_range_is_there() -> None:
    found = state()
    found.answered(Loaded((), (), 10, 100, 0))
    assert isinstance(found.stage, Answered) and not isinstance(found.stage, AsRecorded)
    assert quiet(found)
    found.late_insert_until_ms = NOW + 1
    assert not quiet(found)


def test_a_settled_range_of_which_an_insert_may_come_holds_it_closed() -> None:
    found = state(RUN)
    assert not quiet(found, PossibleLateInsert({KEY: 0}, NOW + 1))
    assert quiet(found, PossibleLateInsert({KEY: 0}, NOW - 20_000))
    assert quiet(found, PossibleLateInsert({"t/0": 0}, NOW + 1))
    assert not quiet(found, PossibleLateInsert({KEY: 0}, NOW + 1, BEFORE))


def test_one_that_claimed_in_this_run_holds_no_other_key_space_closed() -> None:
    """Beside a table whose ranges are repeated again and again another one would never open."""
    assert quiet(state(RUN), PossibleLateInsert({KEY: 0}, NOW + 1, RUN))


def test_a_new_store_is_open_once_what_the_tables_have_is_claimed() -> None:
    shop = Shop(Kept())
    assert "not read yet" in (shop.keeper.outage(OF_T) or "")
    shop.keeper.poll()  # a start, before anybody can say whether anything is out
    assert shop.keeper.outage(OF_T) and shop.rebuilt == []
    assert shop.poll() is None
    ((target, since_ms),) = shop.rebuilt
    assert target == "d.t"
    assert since_ms == shop.now - 3_600_000 - SINCE_MARGIN_MS
    assert shop.poll() is None and len(shop.rebuilt) == 1
    window = shop.keeper.current()[OF_T]
    assert (window.server, window.seconds) == (shop.keeper.run, 3_600)


def test_a_store_that_is_another_one_is_closed_until_nothing_can_come_any_more() -> None:
    kept = Kept()
    shop = Shop(kept)
    shop.poll(after_ms=0)
    assert shop.poll() is None
    before = shop.keeper.run
    told_ms = shop.now
    kept.drawn = "another"
    out = state(before, deadline_ms=NOW + 60_000)
    assert shop.poll(out) and shop.poll(out) and len(shop.rebuilt) == 1
    out.untouched = True
    assert shop.poll(out) is None
    assert shop.rebuilt[1][1] == told_ms - SINCE_MARGIN_MS


def test_it_is_closed_while_it_does_not_answer() -> None:
    kept = Kept()
    shop = Shop(kept)
    shop.poll(after_ms=0)
    assert shop.poll() is None
    shop.keeper._store = None
    shop.away = True
    assert "the store is away" in (shop.poll() or "")
    shop.away = False
    assert shop.poll() is None and len(shop.rebuilt) == 1


def test_two_who_claim_in_one_store_open_it_together() -> None:
    kept = Kept()
    one, other = Shop(kept, "c"), Shop(kept, "d")
    for shop in (one, other):
        shop.poll(after_ms=0)
        assert shop.poll() is None
    kept.drawn = "another"
    out = state(one.keeper.run, deadline_ms=NOW + 60_000)
    assert one.poll(out) and other.poll()
    assert one.poll(out) and other.poll() and other.rebuilt[1:] == []
    assert one.poll() is None  # nothing of it is out any more, and the other one has said so
    assert other.poll() is None
    assert (len(one.rebuilt), len(other.rebuilt)) == (2, 0)


def test_nothing_is_sent_before_others_can_know_of_it() -> None:
    shop = Shop(Kept(), settle_ms=3_000)
    shop.poll(after_ms=0)
    assert shop.poll() and shop.poll()
    assert shop.poll() is None


def test_a_store_that_may_have_been_emptied_is_opened_when_a_lease_is_over() -> None:
    """What another writer had said of itself may be gone with the rest, and that one be asleep."""
    kept = Kept()
    shop = Shop(kept, settle_ms=3_000)
    shop.has_rows = True
    shop.poll(after_ms=0)
    # The time is the same each time: a lease, how long it is sent without a note, and what clocks
    # may differ by.
    until = "nothing is loaded until 1970-01-01T02:56:53Z"
    assert until in (shop.poll(after_ms=4_000) or "")
    assert until in (shop.poll(after_ms=LEASE - 10_000) or "")
    notes = MemoryStore(kept).notes()
    (why,) = waiting_for(notes, shop.keeper.run, ["p/d.t"], shop.now).values()
    assert why.startswith("p/c says: it is new") and why.endswith(until)
    assert shop.poll(after_ms=30_000) is None
    assert waiting_for(MemoryStore(kept).notes(), shop.keeper.run, ["p/d.t"], shop.now) == {
        "p/d.t": ""
    }


def test_tables_that_nobody_loads_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Their rows may have no claims any more, and only who loads them makes claims again."""
    kept = Kept()
    shop = Shop(kept)
    shop.poll(after_ms=0)
    assert shop.poll() is None
    space = Part.of_table(shop.spec.tables[0]).space
    before = Space(shop.keeper.run, shop.now).written()
    parts = [Part(space, "d.u", 3_600), Part(space, "d.v", 1), Part("q/d.t/0a", "d.w", 3_600)]
    kept.notes |= {f"space {part.name}": before for part in parts}
    kept.drawn = "another"
    for _ in range(3):
        shop.poll()
    assert shop.keeper.outage(OF_T) is None
    asked = (MemoryStore(kept).notes(), shop.keeper.run, ["p/d.t"], shop.now)
    assert not_made_again(*asked) == {"p/d.t": ["d.u"]}
    (said,) = [text for text in caplog.messages if "not made again" in text]
    assert "scope p/d.t are not made again from d.u, which nobody loads now" in said
    theirs = Writer("p/e", shop.keeper.run, True, shop.now, LEASE, (parts[0].name,)).written()
    assert not_made_again({**asked[0], "writer p/e run-9": theirs}, *asked[1:]) == {}


def test_rows_of_another_table_in_the_same_scope_are_claimed_by_who_loads_it() -> None:
    """Until then it is not known which events have come there."""
    theirs = Part("s", "d.u", 3_600)
    note = Writer("p/d", RUN, True, NOW, LEASE, (theirs.name,)).written()
    notes = {NOTE: Space(RUN, NOW).written(), "writer p/d run-2": note}
    assert isinstance(step(notes), Closed)
    assert step(notes, was_open=True) == Open()
    assert step({**notes, f"space {theirs.name}": Space(RUN, NOW).written()}) == Open()


def test_a_range_that_is_recorded_without_claims_comes_before_they_are_made_again() -> None:
    """Its rows are inserted without them, and nobody would claim for them later."""
    table = replace(table_spec("t", ("a",)), deduplicate=Deduplicate(("id",), 3_600, "p/d.t"))
    spec = LoadSpec("p", "c", "d", 1, (table,))
    without = state(key="t/s1")
    assert may_still_insert([without], Holds(), spec, lambda _: SPEC, RUN, NOW)
    # What a probe has found is loaded with claims: it waits itself until the store is open.
    assert not may_still_insert([without], Holds(), spec, lambda _: spec, RUN, NOW)
    without.answered(Loaded((), (), 10, 100, 0))
    assert not may_still_insert([without], Holds(), spec, lambda _: SPEC, RUN, NOW)


def test_a_rebuild_that_takes_long_is_not_begun_again() -> None:
    shop = Shop(Kept())

    def rebuild(table: TableSpec, since_ms: int, run: str, meanwhile: Callable[[], object]) -> None:
        shop.rebuilt.append((table.target, since_ms))
        shop.now += 3 * STALE_MS

    shop.keeper._rebuild = rebuild
    shop.poll(after_ms=0)
    assert shop.poll() is None
    assert len(shop.rebuilt) == 1


def test_columns_of_the_key_that_are_altered_make_another_key_space() -> None:
    shop = Shop(Kept())
    shop.poll(after_ms=0)
    assert shop.poll() is None
    (table,) = shop.spec.tables
    wide = replace(table, deduplicate=Deduplicate(("id", "n"), 3_600, "p/d.t"))
    shop.spec = replace(shop.spec, tables=(wide,))
    shop.see(shop.spec, shop.spec)
    assert shop.keeper.outage(OF_T)
    shop.poll()
    assert shop.poll() is None and len(shop.rebuilt) == 2
