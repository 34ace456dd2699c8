"""Which windows are watched, where, and what is said when one cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.budget import TargetShard
from sluice.core.errors import TerminalError
from sluice.core.load_spec import LoadSpec
from sluice.driver import monitor
from sluice.driver.load_specs import NamedSpec
from sluice.driver.monitor import WindowMonitor
from tests.driver.loop_world import table_spec
from tests.driver.test_monitor import (
    CROWDING,
    EVEN_MS,
    FACTS,
    INSERT_COUNTERS,
    ON_READ,
    A,
    B,
    Watched,
    watched,
)
from tests.support.world import wait_for

__all__ = ["watched"]

TEXT = LoadSpec("p", "c", "chdb", 1, (table_spec("t", ("a",)),))
TWO = replace(TEXT, tables=(*TEXT.tables, table_spec("u", ("a",))))
T, U = TargetShard("t", "s1"), TargetShard("u", "s1")


@pytest.fixture
def started(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> Iterator[WindowMonitor]:
    """Reads by itself, without a pause to speak of."""
    monkeypatch.setattr(monitor, "READ_EVERY_SECONDS", 0.01)
    INSERT_COUNTERS.update({A: 5, B: 5})
    watched.monitor.start()
    yield watched.monitor
    watched.monitor.stop()
    watched.monitor._thread.join()  # it would read by what the next test has patched


def test_windows_are_read_before_anything_is_planned_and_then_again(
    started: WindowMonitor,
) -> None:
    assert started.current()[T].state.insert_counter == 5
    INSERT_COUNTERS.update({A: 6, B: 6})
    wait_for(lambda: started.current()[T].state.insert_counter == 6, 60, "another reading")


def test_after_a_change_of_the_replicas_the_new_ones_are_asked(started: WindowMonitor) -> None:
    INSERT_COUNTERS.update({A: 7, B: 9})
    started.use(ClickHouseAccess({"s1": (B,)}, "", "", "single"))
    wait_for(
        lambda: started.current()[T].state.insert_counter == 9, 60, "a reading of the other replica"
    )
    assert started.outage(T) is None


def test_tables_of_a_recorded_spec_are_watched_as_well_and_read_at_once(watched: Watched) -> None:
    assert watched.read(EVEN_MS, a=5, b=5) == 5
    watched.monitor.watch(TEXT)
    assert set(watched.monitor.current()) == {T}
    INSERT_COUNTERS.update({A: 7, B: 7})
    watched.monitor.watch(TWO)
    assert {
        target_shard: w.state.insert_counter
        for target_shard, w in watched.monitor.current().items()
    } == {
        T: 7,
        U: 7,
    }
    watched.monitor.watch(replace(TWO, tables=TWO.tables[1:]))
    watched.read(EVEN_MS + 1000, a=8, b=8)
    assert set(watched.monitor.current()) == {T, U}


def test_what_came_while_all_were_read_is_read_before_it_counts(watched: Watched) -> None:
    """It is expected when others are read already: they are not taken for all of them."""
    ON_READ.append(lambda: watched.specs.expect(TWO))
    watched.read(EVEN_MS, a=5, b=5)
    assert set(watched.monitor.current()) == {T}
    watched.monitor.watch(TWO)
    assert set(watched.monitor.current()) == {T, U}


def test_a_table_that_no_load_spec_has_any_more_is_not_asked(watched: Watched) -> None:
    watched.specs.join([NamedSpec.of(TWO)])
    watched.read(EVEN_MS, a=5, b=5)
    assert set(watched.monitor.current()) == {T, U}
    watched.specs.keep([])
    watched.read(EVEN_MS + 1000, a=6, b=6)
    assert set(watched.monitor.current()) == {T}


def test_of_an_entry_with_two_tables_todays_is_watched(watched: Watched) -> None:
    (table,) = TEXT.tables
    watched.specs.expect(replace(TEXT, tables=(replace(table, table="before"),)))
    assert watched.monitor._target_shards({"s1"}) == {T: ("d", "t")}


def test_an_entry_that_has_another_table_than_before_is_named(watched: Watched) -> None:
    """As one that was retired by one version, and added again by the next."""
    watched.read(EVEN_MS, a=5, b=5)
    watched.monitor.watch(TWO)
    (table,) = TEXT.tables
    other = replace(TWO, tables=(replace(table, table="elsewhere"), TWO.tables[1]))
    assert watched.monitor.other_tables(TWO) == []
    assert watched.monitor.other_tables(other) == ["t"]
    assert watched.monitor.other_tables(replace(TEXT, tables=other.tables[1:])) == []


def test_a_server_that_is_away_holds_all_its_tables_back_and_their_last_windows_stay(
    watched: Watched,
) -> None:
    watched.monitor.watch(TWO)
    watched.read(EVEN_MS, a=5, b=5)
    before = watched.monitor.current()
    watched.read(EVEN_MS + 1000, a=None, b=None)
    for target_shard in (T, U):
        assert "refused" in (watched.monitor.outage(target_shard) or "")
        assert watched.monitor.refusal(target_shard) is None, "it comes back by itself"
        assert watched.monitor.current()[target_shard] == before[target_shard]
    assert watched.monitor.failure() is not None
    watched.read(EVEN_MS + 20_000, a=6, b=6)
    assert watched.monitor.failure() is None and watched.monitor.outage(U) is None


def test_what_was_read_is_told_before_the_next_one_is_asked(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is frozen is waited for; who was read before it would be told too late."""
    watched.read(EVEN_MS, a=5, b=5)
    watched.monitor.watch(TWO)
    seen: list[int] = []

    def describe(server: object, database: str, table: str) -> object:
        if table == "u":
            seen.append(watched.monitor.current()[T].state.insert_counter)
        return FACTS[A]

    monkeypatch.setattr(monitor, "describe_table", describe)
    watched.monitor._facts.clear()
    watched.read(EVEN_MS + 1000, a=9, b=9)
    assert seen == [9]


def test_a_table_that_is_gone_holds_back_only_itself(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.monitor.watch(TWO)
    gone = TerminalError("no table u")

    def describe(server: object, database: str, table: str) -> object:
        if table == "u":
            raise gone
        return FACTS[A]

    monkeypatch.setattr(monitor, "describe_table", describe)
    watched.monitor._facts.clear()
    watched.read(EVEN_MS + 1000, a=6, b=6)
    assert watched.monitor.outage(T) is None and watched.monitor.refusal(T) is None
    assert watched.monitor.refusal(U) is gone and watched.monitor.outage(U) == str(gone)
    assert watched.monitor.current()[T].state.insert_counter == 6


def test_outages_are_said_once_a_minute_and_their_end_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    def said(now_ms: int, insert_counter: int | None) -> list[str]:
        caplog.clear()
        watched.read(now_ms, a=insert_counter, b=insert_counter)
        return [record.getMessage().partition(":")[0] for record in caplog.records]

    waits, goes_on = "table entry t in shard s1 waits", "table entry t in shard s1 goes on"
    assert said(EVEN_MS, None) == [waits]
    assert said(EVEN_MS + 1000, None) == []
    assert said(EVEN_MS + monitor.ALARM_EVERY_MS, None) == [waits]
    assert said(EVEN_MS + monitor.ALARM_EVERY_MS + 30_000, 5) == [goes_on]
    assert said(EVEN_MS + monitor.ALARM_EVERY_MS + 31_000, 5) == []


def test_tables_go_on_in_their_order(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    names = ["t", *"ebhagdfc"]
    watched.read(EVEN_MS, a=5, b=5)
    watched.monitor.watch(
        replace(TEXT, tables=tuple(table_spec(name, ("a",)) for name in names[1:]))
    )
    watched.read(EVEN_MS + 1000, a=None, b=None)
    caplog.clear()
    watched.read(EVEN_MS + 31_000, a=5, b=5)
    assert caplog.messages == [f"table entry {name} in shard s1 goes on" for name in names]


def test_a_shard_that_is_not_configured_any_more_is_not_asked(watched: Watched) -> None:
    elsewhere = replace(TEXT, tables=(replace(table_spec("v", ("a",)), shards=("s9",)),))
    watched.read(EVEN_MS, a=5, b=5)
    watched.monitor.watch(elsewhere)
    watched.read(EVEN_MS + 1000, a=5, b=5)
    assert set(watched.monitor.current()) == {T}


def test_a_clock_that_was_set_back_puts_nothing_off(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took an hour until anybody noticed that a window was made narrower."""
    back_ms = EVEN_MS - 3_600_000
    assert watched.read(EVEN_MS, a=10, b=10) == 10
    watched.read(EVEN_MS + 1, a=None, b=None)
    monkeypatch.setitem(FACTS, A, replace(FACTS[A], window_blocks=40))
    monkeypatch.setitem(CROWDING, A, 0.3)
    caplog.clear()
    watched.read(back_ms, a=None, b=None)
    assert "table entry t in shard s1 waits" in caplog.text
    assert watched.read(back_ms + 30_000, a=10, b=10) == 10
    window = watched.monitor.current()[T]
    assert (window.state.blocks, window.crowding) == (40, 0.3)


def test_a_replica_that_may_be_behind_is_believed_although_the_clock_was_set_back(
    watched: Watched,
) -> None:
    assert watched.read(EVEN_MS, a=10, b=10) == 10
    assert watched.read(EVEN_MS + 1000, a=None, b=1) is None
    back_ms = EVEN_MS - 3_600_000
    assert watched.read(back_ms, a=None, b=1) is None
    assert watched.read(back_ms + monitor.BEHIND_MS_MAX - 1, a=None, b=1) is None
    assert watched.read(back_ms + monitor.BEHIND_MS_MAX, a=None, b=1) == 1
