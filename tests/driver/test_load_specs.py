"""Which load specs may still be sent, and whose windows are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.core.budget import TargetShard
from sluice.core.load_spec import LoadSpec
from sluice.driver import refreshing
from sluice.driver.load_specs import _ADOPTED_MAX, LoadSpecs, NamedSpec
from sluice.driver.refreshing import SchemaReader
from tests.driver.loop_world import table_spec
from tests.driver.test_specs import configuration_of

TODAY = LoadSpec("p", "c", "chdb 1", 1, (table_spec("t", ("a",)),))
GONE = replace(TODAY, tables=(table_spec("gone", ("a",)),))
WIDE = replace(TODAY, range_bytes_max=2)


def digests(specs: LoadSpecs, *named: LoadSpec) -> list[str]:
    """Those of these that the next record would bring to the ledger."""
    entries = specs.entries([each.digest() for each in named])
    return [str(entry.body["digest"]) for entry in entries]


def parsed(spec: LoadSpec) -> NamedSpec:
    """As a take-over reads it: an object of its own."""
    return NamedSpec.of(replace(spec))


def test_what_a_take_over_beside_the_loop_learns_of_is_watched_though_the_loop_lets_it_go() -> None:
    specs = LoadSpecs(TODAY)
    specs.join([parsed(GONE)])
    found = parsed(GONE)
    specs.expect(found.spec)
    specs.keep([])
    assert specs.get(found.digest) is None
    assert specs.live == (TODAY,) and specs.watched == (TODAY, GONE)
    specs.join([found])
    assert specs.live == specs.watched == (TODAY, GONE)
    specs.keep([found.digest])
    assert specs.get(found.digest) is found.spec
    specs.keep([])
    assert specs.watched == (TODAY,)


def test_a_take_over_that_fails_and_is_tried_again_expects_it_once() -> None:
    specs = LoadSpecs(TODAY)
    for _ in range(3):
        specs.expect(parsed(GONE).spec)
    assert specs.watched == (TODAY, GONE)
    specs.join([parsed(GONE)])
    specs.keep([])
    assert specs.watched == (TODAY,)


def test_who_took_a_look_has_it_as_it_was() -> None:
    specs = LoadSpecs(TODAY)
    live, watched = specs.live, specs.watched
    specs.go_over(GONE)
    specs.expect(replace(GONE, connector="d"))
    assert (live, watched) == ((TODAY,), (TODAY,))
    assert specs.live == (GONE, TODAY) and len(specs.watched) == 3
    before = specs.live
    assert not specs.go_over(replace(GONE))
    specs.keep([TODAY.digest()])
    assert specs.live is before, "nothing has changed, and nobody works anything out again"


def test_what_is_rolled_back_is_the_same_object_by_its_name_and_is_recorded_again() -> None:
    """`is` tells which ranges are sent under today's."""
    specs = LoadSpecs(TODAY)
    specs.go_over(GONE)
    back = replace(TODAY)
    assert specs.go_over(back)
    assert specs.today.spec is back is specs.get(TODAY.digest())
    assert digests(specs, TODAY, GONE) == sorted([TODAY.digest(), GONE.digest()])
    specs.recorded([TODAY.digest()])
    assert digests(specs, TODAY, GONE) == [GONE.digest()]


def test_what_is_there_is_not_replaced_by_what_a_take_over_read() -> None:
    specs = LoadSpecs(TODAY)
    specs.join([parsed(TODAY)])
    assert specs.get(TODAY.digest()) is specs.today.spec is TODAY
    assert specs.live == (TODAY,)


def test_a_name_that_the_ledger_does_not_know_stays_so_though_its_load_spec_goes() -> None:
    """A member of a fleet takes in what was handed to it, and writes nothing for that."""
    specs = LoadSpecs(TODAY, is_recorded=False)
    specs.go_over(GONE)
    specs.keep([])
    assert specs.get(TODAY.digest()) is None and digests(specs, TODAY) == []
    specs.join([parsed(TODAY)])
    assert digests(specs, TODAY) == [TODAY.digest()]


def test_the_last_that_ranges_were_widened_to_stay() -> None:
    specs = LoadSpecs(TODAY)
    wide = [replace(TODAY, range_bytes_max=2 + n) for n in range(_ADOPTED_MAX + 1)]
    for spec in wide:
        named = specs.adopt(spec)
        assert specs.adopt(replace(spec)) is named and named.spec is spec
    specs.keep([])
    assert specs.live == (TODAY, *wide[1:])
    assert digests(specs, *wide) == sorted(each.digest() for each in wide[1:])


def test_where_something_may_still_be_inserted_a_load_spec_of_that_table_stays() -> None:
    """One of several; and none where today's has the table, too."""
    specs = LoadSpecs(TODAY)
    specs.join([parsed(GONE), parsed(replace(GONE, range_bytes_max=2)), parsed(WIDE)])
    specs.keep([], held=[TargetShard("t", "s1"), TargetShard("gone", "s1")])
    assert specs.live == (TODAY, GONE)
    specs.keep([], held=[TargetShard("t", "s1"), TargetShard("gone", "s2")])
    assert specs.live == (TODAY,)


def test_a_job_and_the_ledger_get_it_as_it_was_written() -> None:
    """By another version of Sluice, which wrote what is left out today."""
    specs = LoadSpecs(TODAY)
    written = NamedSpec("0123456789abcdef", GONE, '{"sort":false}')
    specs.join([written])
    named = {written.digest, TODAY.digest(), "unknown"}
    assert specs.texts(named) == {
        written.digest: '{"sort":false}',
        TODAY.digest(): TODAY.canonical(),
    }


def test_columns_are_read_of_all_that_may_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the start on: a range in doubt may go into a table that is not configured any more."""
    asked: list[list[tuple[str, str]]] = []

    def read_structures(_: object, tables: list[tuple[str, str]]) -> dict[str, object]:
        asked.append(tables)
        return {}

    monkeypatch.setattr(refreshing, "read_structures", read_structures)
    monkeypatch.setattr(refreshing, "on_replicas", lambda *_: {"http://h": _[2](None)})
    specs = LoadSpecs(TODAY)
    reader = SchemaReader(configuration_of(tmp_path), specs, lambda: 0, lambda: None, print)
    specs.join([NamedSpec.of(GONE)])
    reader._structures()
    specs.keep([])
    reader._structures()
    assert asked == [[("d", "gone"), ("d", "t")], [("d", "t")]]
