"""Whose floors count (R24), where an heir dies while it takes over."""

from __future__ import annotations

from collections.abc import Collection

from sluice.core.fleet.counting import Counting
from sluice.core.fleet.placement import ORPHAN_REPORTS, PASSED_OVER_REPORTS, Owners, heirs
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import SILENT_REPORTS, View
from sluice.core.fleet.view import Member as FleetMember
from sluice.core.records import GENESIS

OTHER, HEIR, DEAD = "run-other", "run-heir", "run-dead"


class Member:
    """One that hears, and looks."""

    def __init__(self) -> None:
        self.counting = Counting("run-me", has_all=False)
        self.number = 0
        self.heard: dict[str, Report] = {}

    def hear(self, *reports: Report, ended: Collection[str] = ()) -> None:
        self.heard |= {report.owner: report for report in reports}
        for owner in ended:
            del self.heard[owner]
        self.number += 1
        self.counting.hear(dict(self.heard), self.number)

    def look(self, *orphans: str, inherits: Collection[str] = ()) -> None:
        self.counting.took(
            inherits,
            self.counting.known,
            self.number + 1,
            frozenset(),
            frozenset(orphans),
            self.number,
        )


def report(owner: str, number: int = 1, *inherits: str) -> Report:
    return Report(owner, owner, number, inherits=inherits)


def test_an_id_that_others_write_off_counts_until_a_look_that_began_afterwards() -> None:
    """It shows what another heir had committed before the id was fenced."""
    me = Member()
    me.hear(report(OTHER), report(DEAD))
    me.look()
    me.hear(ended=[DEAD])
    assert me.counting.others.keys() == {OTHER, DEAD}
    before = me.number
    me.hear()
    assert me.counting.others.keys() == {OTHER, DEAD}
    me.counting.took((), me.counting.known, 99, frozenset(), frozenset(), before)
    me.hear()
    assert me.counting.others.keys() == {OTHER, DEAD}  # that one began before, or may have
    me.look()
    me.hear()
    assert me.counting.others.keys() == {OTHER}


def test_what_a_dead_heir_had_still_committed_is_a_strangers_until_it_is_taken_over() -> None:
    """The heir was written off before its own commit was there, so no report says its floors."""
    me = Member()
    me.hear(report(OTHER), report(HEIR, 1, DEAD), report(DEAD))
    me.look()
    assert not me.counting.has_strangers
    me.hear(ended=[HEIR])
    me.look()
    me.hear(ended=[DEAD])
    me.look(HEIR)
    me.hear()
    assert me.counting.has_strangers
    me.look(HEIR, inherits=[HEIR])
    assert me.counting.has_strangers  # nobody has heard of the floors yet
    me.hear()
    me.look()
    assert not me.counting.has_strangers


def test_what_this_member_had_inherited_may_be_named_again() -> None:
    me = Member()
    me.hear(report(HEIR))
    me.look(HEIR, inherits=[HEIR, GENESIS])
    me.hear()
    me.look()
    assert me.counting.to_write_off([HEIR]) == {HEIR, GENESIS}
    me.hear(ended=[HEIR])
    me.look()
    me.hear()
    assert not (me.counting.has_strangers or me.counting.others)
    me.look(HEIR)
    assert me.counting.has_strangers


def test_an_id_without_a_report_is_a_stranger_while_somebody_takes_it_over() -> None:
    """It holds what nobody counts, until its heir has said its floors with it."""
    me = Member()
    me.hear(report(OTHER, 1, "driver", GENESIS))
    me.look()
    assert me.counting.has_strangers
    me.hear(report(OTHER, 2))
    assert not me.counting.has_strangers
    for number in range(ORPHAN_REPORTS):
        me.hear(report(OTHER, 3 + number, "driver"))
        assert me.counting.has_strangers
    me.hear(report(OTHER, 99, "driver"))  # it fails to, as Kafka refuses it something
    assert not me.counting.has_strangers


def test_beside_who_has_all_partitions_nobody_counts() -> None:
    counting = Counting("run-me", has_all=True)
    counting.hear({OTHER: report(OTHER, 1, DEAD)}, 1)
    assert not counting.has_strangers and not counting.others
    counting.took_all(2)
    assert counting.to_write_off([]) == frozenset()
    counting.hear({OTHER: report(OTHER, 1, DEAD)}, 2)
    assert counting.to_write_off([]) == {OTHER}
    counting.hear({}, 3)
    assert not counting.known


def test_two_dead_that_were_taking_each_other_over_are_written_off() -> None:
    """One announced the other one and died, and that one woke up, announced it in turn, and died.
    Each has another heir, and holds the end of the other one up until an heir is passed over."""
    dead = {"run-x": report("run-x", 1, "run-y"), "run-y": report("run-y", 1, "run-x")}
    names = ("a", "b")
    members = {name: Counting(name, has_all=False) for name in names}
    owners = {name: Owners() for name in names}
    taken: dict[str, set[str]] = {name: set() for name in names}
    living = tuple(FleetMember(name, name, "s") for name in names)
    views = [View(name, 1, living, silent=tuple(dead)) for name in names]
    firsts = {heirs(owner, views[0], ())[0].name for owner in dead}
    assert firsts == set(names), "each has another heir"
    for number in range(1, SILENT_REPORTS + 2 * PASSED_OVER_REPORTS):
        gone = set[str]()
        for name, counting in members.items():
            others = {other: report(other, number) for other in names if other != name}
            counting.hear(others | dead, number)
            gone |= counting.to_write_off(list(dead))
            view = View(name, number, living, silent=tuple(dead))
            owners[name].see(view, {})
            found = set(owners[name].to_inherit(view)) - taken[name]
            taken[name] |= found
            counting.took(found, counting.known, number + 1, frozenset(), frozenset(), number)
        dead = {owner: last for owner, last in dead.items() if owner not in gone}
    assert not dead
    assert all(len(each) == 2 for each in taken.values())
