"""Who should have a partition, who is dead, and who inherits."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from sluice.core.fleet.placement import (
    ORPHAN_REPORTS,
    PASSED_OVER_REPORTS,
    Homes,
    Named,
    Owners,
    heirs,
    is_incarnation,
    is_older,
    owner_id,
    spread,
)
from sluice.core.fleet.view import SILENT_REPORTS, Member, View
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS

SOURCES = [TopicPartition("t", number) for number in range(600)]
P = SOURCES[0]


def member(owner: str, /, **changes: object) -> Member:
    return replace(Member(owner, owner, "s"), **changes)  # type: ignore[arg-type]


def view_of(*members: Member, own: str = "a", number: int = 9, **changes: object) -> View:
    return replace(View(own, number, members), **changes)  # type: ignore[arg-type]


THREE = tuple(map(member, "abc"))


def homes(*members: Member, own: str = "a") -> dict[TopicPartition, str]:
    found = Homes(view_of(*members, own=own), SOURCES)
    return {source: found.of(source) for source in SOURCES}


# Homes


def test_everybody_finds_the_same_homes_in_whatever_order_members_come() -> None:
    assert homes(*THREE) == homes(*reversed(THREE), own="c")


def test_shares_are_even_and_follow_the_slots() -> None:
    assert Counter(homes(*THREE).values()) == {"a": 200, "b": 200, "c": 200}
    shares = Counter(homes(member("a"), member("b", slots=3)).values())
    assert shares == {"a": 150, "b": 450}


def test_each_topic_is_shared_evenly() -> None:
    """What one topic brings is not all on one member."""
    sources = [TopicPartition(f"t{n % 7}", n) for n in range(84)]
    found = Homes(view_of(*THREE), sources)
    assert Counter(found.of(source) for source in sources) == dict.fromkeys("abc", 28)
    of_topic = Counter((source.topic, found.of(source)) for source in sources)
    assert set(of_topic.values()) == {4}


@pytest.mark.parametrize("seed", range(30))
def test_no_member_has_more_than_its_share(seed: int) -> None:
    rng = random.Random(seed)
    members = [member(f"m{n}", slots=rng.randrange(1, 9)) for n in range(rng.randrange(2, 6))]
    counts = {f"t{n}": rng.randrange(1, 20) for n in range(rng.randrange(1, 20))}
    sources = [TopicPartition(t, n) for t, count in counts.items() for n in range(count)]
    busy = {s: rng.choice((1, 1, 2, 5)) for s in sources if rng.random() < seed / 60}
    found = spread(members, sources, busy)
    assert found.keys() == set(sources)
    slots = sum(each.slots for each in members)
    for level in range(6):
        those = [source for source in sources if busy.get(source, 0) >= level]
        shares = Counter(found[source] for source in those)
        assert all(shares[m.owner] <= math.ceil(len(those) * m.slots / slots) for m in members)
    brings = {source: 2 ** busy.get(source, 0) for source in sources}
    for each in members:
        share = sum(brings.values()) * each.slots / slots
        brought = sum(brings[source] for source in sources if found[source] == each.owner)
        assert brought <= share + max(brings.values())
    rng.shuffle(members)
    rng.shuffle(sources)
    assert spread(members, sources, busy) == found


def test_what_becomes_busy_moves_little() -> None:
    """Of 120 partitions of three members, each of which comes to bring four times as much."""
    sources = SOURCES[:120]
    before = spread(THREE, sources, {})
    moved = [
        sum(before[each] != home for each, home in spread(THREE, sources, {source: 2}).items())
        for source in sources
    ]
    assert max(moved) <= 6 and sum(moved) / len(moved) < 2


def test_busy_partitions_of_a_few_topics_are_not_all_on_one_member() -> None:
    """Of 100 topics with one partition each eight are busy."""
    sources = [TopicPartition(f"t{number}", 0) for number in range(100)]
    view = view_of(*THREE[:2], busy=dict.fromkeys(sources[:8], 4))
    found = Homes(view, sources)
    assert Counter(found.of(source) for source in sources) == {"a": 50, "b": 50}
    assert Counter(found.of(source) for source in sources[:8]) == {"a": 4, "b": 4}


def test_a_partition_that_is_new_to_who_looks_has_a_home() -> None:
    found = Homes(view_of(*THREE), SOURCES)
    new = [TopicPartition("new", number) for number in range(60)]
    assert {found.of(source) for source in new} == {"a", "b", "c"}


def test_who_joins_gets_its_share_and_little_else_moves() -> None:
    before, after = homes(*THREE), homes(*THREE, member("d"))
    assert Counter(after.values()) == dict.fromkeys("abcd", 150)
    moved = {source for source in SOURCES if before[source] != after[source]}
    assert 150 <= len(moved) < 165


def test_who_leaves_gives_all_and_little_else_moves() -> None:
    before = homes(*THREE)
    after = homes(*THREE[:2], member("c", is_leaving=True))
    assert Counter(after.values()) == {"a": 300, "b": 300}
    assert 200 <= sum(after[s] != before[s] for s in SOURCES) < 220


def test_who_is_not_ready_is_given_nothing_and_keeps_what_it_has() -> None:
    late = member("c", is_ready=False)
    assert homes(*THREE[:2], late) == homes(*THREE[:2])
    assert homes(*THREE[:2], late, own="c") == homes(*THREE)


def test_who_is_asked_to_stop_keeps_nothing() -> None:
    found = Homes(view_of(*THREE), SOURCES, is_leaving=True)
    assert {found.of(source) for source in SOURCES} == {"b", "c"}
    assert not Homes(view_of(member("a")), SOURCES, is_leaving=True).are_elsewhere


def test_a_start_under_a_new_id_moves_nothing() -> None:
    after = homes(*THREE[:2], member("c2", name="c"))
    assert {s: name.removesuffix("2") for s, name in after.items()} == homes(*THREE)


def test_of_two_of_one_name_the_later_has_the_share() -> None:
    both = (member("c1", name="c"), member("c2", name="c"))
    assert set(homes(*THREE[:2], *both).values()) == {"a", "b", "c2"}


def test_nothing_goes_to_another_load_spec() -> None:
    assert set(homes(*THREE[:2], member("c", spec="other")).values()) == {"a", "b"}
    assert set(homes(*THREE[:2], member("c", spec="other"), own="c").values()) == {"c"}


def test_who_has_read_no_report_of_its_own_gives_nothing() -> None:
    assert set(homes(*THREE[1:]).values()) == {"a"}


def test_who_is_alone_keeps_all_even_if_it_leaves() -> None:
    assert set(homes(member("a")).values()) == {"a"}
    assert set(homes(member("a", is_leaving=True)).values()) == {"a"}
    assert not Homes(view_of(member("a")), SOURCES).are_elsewhere


def test_members_near_have_all_as_long_as_there_is_one() -> None:
    far = member("a", data_center="west", near="east")
    near, more = (member(name, data_center="east", near="east") for name in "bc")

    def owners(*members: Member) -> set[str]:
        found = Homes(view_of(*members), SOURCES)
        return {found.of(source) for source in SOURCES}

    assert owners(far, near, more) == {"b", "c"}
    assert owners(far, near, replace(more, is_leaving=True)) == {"b"}
    # Who is not ready is given nothing, and somebody has to have it.
    assert owners(far, replace(near, is_ready=False)) == {"a"}
    assert owners(far, replace(far, owner="d", name="d")) == {"a", "d"}
    view = view_of(far, near, more)
    assert {each.owner for each in heirs("x", view, ["s"])[:2]} == {"b", "c"}
    # Who prefers another one, as while that changes, would give it back.
    other = replace(near, near="west")
    assert owners(far, other) == {"a"}
    assert set(homes(far, other, own="b").values()) == {"b"}


# Ids


def test_an_id_tells_its_name_and_which_is_older() -> None:
    one, two = (owner_id("dc1-host", 1_800_000_000_000 + later, "00") for later in (0, 1))
    other = owner_id("dc2-host", 1_900_000_000_000, "00")
    assert is_incarnation(one, "dc1-host") and not is_incarnation(other, "dc1-host")
    assert not is_incarnation("run-0123456789", "dc1-host")
    assert is_older(one, two) and not is_older(two, one) and not is_older(one, one)
    assert not is_older(one, other) and not is_older("run-0123456789", one)
    assert len(one) == 30


# Heirs


def test_heirs_are_in_one_order_for_everybody() -> None:
    names = [each.name for each in heirs("x", view_of(*THREE), ())]
    assert sorted(names) == ["a", "b", "c"]
    assert names == [each.name for each in heirs("x", view_of(*reversed(THREE), own="b"), ())]
    firsts = {heirs(f"x{number}", view_of(*THREE), ())[0].name for number in range(40)}
    assert firsts == {"a", "b", "c"}


def test_who_has_the_load_spec_of_the_dead_comes_first() -> None:
    members = (member("a"), member("b", spec="old"), member("c"))
    assert all(heirs(f"x{n}", view_of(*members), {"old"})[0].name == "b" for n in range(20))


def test_who_has_just_started_inherits_after_all_others() -> None:
    """It may take long until it is warm, and it knows nothing of the time before it."""
    members = (member("a"), member("b", is_ready=False), member("c"))
    found = [[each.name for each in heirs(f"x{n}", view_of(*members), ())] for n in range(20)]
    assert all(names[2] == "b" for names in found)
    # It may yet be the only one who has the load spec of the dead.
    members = (member("a", spec="new"), member("b", is_ready=False), member("c", spec="new"))
    assert heirs("x", view_of(*members), {"s"})[0].name == "b"


def test_who_leaves_or_may_not_inherits_nothing() -> None:
    members = (member("a", is_leaving=True), member("b", may_inherit=False), member("c"))
    assert [each.name for each in heirs("x", view_of(*members), ())] == ["c"]


# The dead


def named(owner: str, offset: object = 1, spec: str = "s") -> dict[TopicPartition, Named]:
    return {P: Named(owner, spec, offset)}


def inherited(*looks: tuple[View, dict[TopicPartition, Named]]) -> list[str]:
    """What the last of these looks says."""
    owners = Owners()
    for view, found in looks:
        owners.see(view, found)
    return owners.to_inherit(looks[-1][0])


ALONE = member("a")
FIRST = view_of(ALONE, number=1)
LATER = view_of(ALONE, number=1 + SILENT_REPORTS)


def test_who_is_silent_and_records_nothing_is_dead() -> None:
    assert inherited((FIRST, named("x"))) == []
    assert inherited((FIRST, named("x")), (replace(LATER, number=SILENT_REPORTS), named("x"))) == []
    assert inherited((FIRST, named("x")), (LATER, named("x"))) == ["x"]


def test_who_records_lives_although_it_does_not_report() -> None:
    """As a driver of no fleet does."""
    assert inherited((FIRST, named("x", 1)), (LATER, named("x", 2))) == []


def test_who_reports_lives_although_it_records_nothing() -> None:
    other = member("x")
    views = [view_of(ALONE, other, number=n) for n in (1, 1 + SILENT_REPORTS)]
    assert inherited(*((view, named("x")) for view in views)) == []
    assert inherited((views[1], named("x")), (view_of(ALONE, number=6), named("x"))) == []


def test_who_falls_silent_is_dead_at_once_if_its_records_stood_still_as_long() -> None:
    other = member("x")
    looks = [(view_of(ALONE, other, number=n), named("x")) for n in range(1, 8)]
    assert inherited(*looks, (view_of(ALONE, number=8), named("x"))) == ["x"]
    assert inherited(*looks, (view_of(ALONE, number=8), named("x", 2))) == []


def test_whom_no_record_names_has_an_heir_too() -> None:
    silent = [view_of(ALONE, number=n, silent=("x",)) for n in (1, 1 + SILENT_REPORTS)]
    assert inherited(*((view, named("a")) for view in silent)) == ["x"]


def test_what_a_dead_heir_has_committed_is_an_orphan_until_it_is_inherited() -> None:
    """What names the dead because it stopped there is none: it would hold all others up."""
    heir, dead = member("heir"), member("dead")
    owners = Owners()
    owners.see(view_of(ALONE, heir, dead, number=1), named("dead", 1))
    owners.see(view_of(ALONE, heir, dead, number=2), named("dead", 2))
    last = view_of(ALONE, number=9)
    owners.see(last, named("dead", 2))
    assert not owners.orphans(last, ["dead"])
    owners.see(last, named("heir", 3))
    assert owners.orphans(last, ["heir", GENESIS]) == {"heir"}
    assert not owners.orphans(last, [])
    later = replace(last, number=9 + ORPHAN_REPORTS)
    owners.see(later, named("heir", 3))
    assert not owners.orphans(later, ["heir"])


def test_whom_records_name_may_live_until_they_stand_still() -> None:
    owners = Owners()
    owners.see(FIRST, named("x"))
    assert owners.alive(FIRST) == {"x"}
    owners.see(LATER, named("x"))
    assert not owners.alive(LATER)


def test_nobody_is_taken_for_dead_while_nobody_is_suspected() -> None:
    calm = replace(LATER, is_suspecting=False)
    assert inherited((FIRST, named("x")), (calm, named("x"))) == []


def test_an_operators_decision_has_an_heir_at_once() -> None:
    assert inherited((FIRST, named("operator-1"))) == ["operator-1"]
    assert inherited((replace(FIRST, is_suspecting=False), named("operator-1"))) == ["operator-1"]


def test_an_older_start_of_the_own_name_is_taken_at_once_even_if_it_seems_to_live() -> None:
    old, new = owner_id("a", 1_000, "00"), owner_id("a", 2_000, "00")
    members = (member(old, name="a"), member(new, name="a"))
    assert inherited((view_of(*members, own=new), named(old))) == [old]
    assert inherited((view_of(*members, own=old), named(new))) == []


def test_partitions_without_a_record_have_an_heir() -> None:
    assert inherited((FIRST, named(GENESIS))) == [GENESIS]


def test_nobody_begins_a_partition_while_somebody_lives_who_does_not_report() -> None:
    both = {P: Named("x", "s", 1), SOURCES[1]: Named(GENESIS, "", None)}
    assert inherited((FIRST, both)) == []
    assert inherited((FIRST, both), (LATER, both)) == ["x", GENESIS]


def test_who_has_read_no_report_of_its_own_inherits_nothing() -> None:
    nobody = view_of(number=1)
    later = replace(nobody, number=1 + SILENT_REPORTS)
    assert inherited((nobody, named("x")), (later, named("x"))) == []


@pytest.mark.parametrize("owner", ["x", GENESIS])
def test_an_heir_that_does_not_act_is_passed_over(owner: str) -> None:
    """Each of three sees itself as the heir in turn, and never two of them."""
    begin = 1 + SILENT_REPORTS if owner == "x" else 1
    for turn in range(4):
        number = begin + turn * PASSED_OVER_REPORTS
        views = [view_of(*THREE, own=own, number=number) for own in "abc"]
        taken = [
            view.own
            for view in views
            if inherited((replace(view, number=1), named(owner)), (view, named(owner)))
        ]
        assert len(taken) == 1
        assert taken[0] == heirs(owner, views[0], {"s"})[turn % 3].name
