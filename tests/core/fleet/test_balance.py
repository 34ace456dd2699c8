"""Who should have which partition: every one has an owner, who keeps it as far as that is fair."""

from __future__ import annotations

import random
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.fleet.balance import (
    EVEN_PERCENT,
    UNEVEN_PERCENT,
    WORTH_PERCENT,
    Held,
    Member,
    Plan,
    plan,
)
from sluice.core.ranges import TopicPartition

NAMES = ("a", "b", "c", "d", "e")

MEMBERS = st.lists(
    st.builds(Member, st.sampled_from(NAMES), st.integers(1, 9)),
    min_size=1,
    unique_by=lambda member: member.name,
)


ANY_WORK = st.integers(1, 100) | st.integers(1, 10**9)


@st.composite
def partitions(draw: st.DrawFn) -> list[Held]:
    drawn = st.tuples(
        st.sampled_from(("", "gone", *NAMES)), ANY_WORK, st.integers(-1, 3), st.booleans()
    )
    return [
        Held(TopicPartition(f"t{number % 2}", number), *each)
        for number, each in enumerate(draw(st.lists(drawn, max_size=40)))
    ]


def applied(held: list[Held], made: Plan) -> list[Held]:
    """The partitions after the plan was carried out."""
    return [each._replace(member=made.member_of[each.source]) for each in held]


def levels(members: list[Member], held: list[Held]) -> dict[str, float]:
    """Work of each member by its capacity, in percent of the mean."""
    works = Counter[str]()
    for each in held:
        works[each.member] += each.work
    mean = sum(works.values()) / sum(member.capacity for member in members)
    return {member.name: 100 * works[member.name] / member.capacity / mean for member in members}


def uniform(count: int, *owners: str) -> list[Held]:
    """Partitions of equal work, dealt to these owners."""
    return [
        Held(TopicPartition("orders", number), owners[number % len(owners)], 100)
        for number in range(count)
    ]


@given(MEMBERS, partitions())
def test_every_partition_has_one_owner_and_each_move_is_explained(
    members: list[Member], held: list[Held]
) -> None:
    made = plan(members, held)
    names = {member.name for member in members}
    assert made.member_of.keys() == {each.source for each in held}
    assert set(made.member_of.values()) <= names
    owner_of = {each.source: each.member for each in held}
    different = {s: m for s, m in made.member_of.items() if owner_of[s] != m}
    assert {move.source: move.after for move in made.moves} == different
    for move in made.moves:
        assert move.before == owner_of[move.source]
        if not move.before:
            assert move.why == "nobody has it yet"
        elif move.before not in names:
            assert move.why == f"{move.before} is no member"
        else:
            assert move.before in move.why and move.after in move.why


@given(MEMBERS, partitions(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_known_does_not_matter(
    members: list[Member], held: list[Held], chance: random.Random
) -> None:
    other_members, other_held = list(members), list(held)
    chance.shuffle(other_members)
    chance.shuffle(other_held)
    assert plan(other_members, other_held) == plan(members, held)


@given(MEMBERS, partitions())
def test_a_plan_that_was_carried_out_needs_no_other(
    members: list[Member], held: list[Held]
) -> None:
    after = applied(held, plan(members, held))
    again = plan(members, after)
    assert again.moves == ()
    assert again.uneven_before == again.uneven_after


@given(MEMBERS, partitions())
def test_what_is_fixed_and_what_is_even_stays(members: list[Member], held: list[Held]) -> None:
    made = plan(members, held)
    names = {member.name for member in members}
    for each in held:
        if each.is_fixed and each.member in names:
            assert made.member_of[each.source] == each.member
    if made.uneven_before <= UNEVEN_PERCENT:
        assert all(move.before not in names for move in made.moves)


@given(MEMBERS, partitions())
def test_what_moves_between_members_makes_them_more_alike(
    members: list[Member], held: list[Held]
) -> None:
    made = plan(members, held)
    names = {member.name for member in members}
    if held:
        found = levels(members, applied(held, made))
        worst = max(abs(level - 100) for level in found.values())
        assert made.uneven_after == pytest.approx(worst)
    if any(move.before in names for move in made.moves):
        assert made.uneven_after <= made.uneven_before - WORTH_PERCENT


@given(MEMBERS, partitions())
def test_where_it_stays_uneven_no_other_move_helps(members: list[Member], held: list[Held]) -> None:
    """It is compared with every move there is: none makes the sum of the squares of all work, by
    capacity, any smaller."""
    held = [each._replace(is_fixed=False) for each in held]
    made = plan(members, held)
    capacity = {member.name: member.capacity for member in members}
    is_balanced = any(move.before in capacity for move in made.moves)
    if not is_balanced or made.uneven_after <= EVEN_PERCENT:
        return
    works = Counter[str]()
    for each in held:
        works[made.member_of[each.source]] += each.work
    for each in held:
        mine = made.member_of[each.source]
        for name in capacity.keys() - {mine}:
            left = (2 * works[mine] - each.work) * capacity[name]
            more = (2 * works[name] + each.work) * capacity[mine]
            assert more >= left, (each, name)


def test_one_member_has_all() -> None:
    made = plan([Member("a")], uniform(10, ""))
    assert set(made.member_of.values()) == {"a"}
    assert (made.uneven_before, made.uneven_after) == (0, 0)
    assert {move.why for move in made.moves} == {"nobody has it yet"}


def test_without_a_member_there_is_no_plan() -> None:
    with pytest.raises(ValueError, match="needs a member"):
        plan([], uniform(1, ""))


@pytest.mark.parametrize("members", [2, 3, 5])
def test_who_joins_gets_a_share_and_nobody_else_gets_anything(members: int) -> None:
    names = NAMES[:members]
    held = uniform(60, *names[:-1])
    made = plan(map(Member, names), held)
    assert {move.after for move in made.moves} == {names[-1]}
    assert len(made.moves) <= 60 / members
    assert made.uneven_after <= EVEN_PERCENT


def test_what_a_member_leaves_is_all_that_moves() -> None:
    made = plan(map(Member, "ab"), uniform(60, "a", "b", "c"))
    assert {move.before for move in made.moves} == {"c"}
    assert len(made.moves) == 20
    assert made.uneven_after <= EVEN_PERCENT


def test_work_that_is_measured_a_little_different_moves_nothing() -> None:
    """Two members with three partitions are never even; they do not take turns."""
    held = [Held(TopicPartition("orders", number), "aab"[number], 1000) for number in range(3)]
    for works in permutations((950, 1000, 1100)):
        now = [each._replace(work=work) for each, work in zip(held, works, strict=True)]
        assert plan(map(Member, "ab"), now).moves == ()


def test_capacity_decides_who_has_how_much() -> None:
    made = plan([Member("a", 8), Member("b", 8), Member("c", 4)], uniform(100, ""))
    counts = Counter(made.member_of.values())
    assert 38 <= counts["a"] <= 42 and 38 <= counts["b"] <= 42 and 18 <= counts["c"] <= 22


def test_partitions_of_a_broker_come_together() -> None:
    """So that small ranges of them share blocks."""
    held = [each._replace(leader=each.source.partition % 3) for each in uniform(60, "")]
    made = plan(map(Member, "abc"), held)
    leaders = {each.source: each.leader for each in held}
    pairs = Counter((member, leaders[source]) for source, member in made.member_of.items())
    assert sorted(pairs.values()) == [20, 20, 20]
    # Who joins gets what one broker leads as far as that goes.
    made = plan(map(Member, "ab"), [each._replace(member="a") for each in held])
    moved = Counter(leaders[move.source] for move in made.moves)
    assert len(made.moves) >= 27 and len(moved) <= 2


def test_three_thousand_partitions_of_one_driver_over_five() -> None:
    chance = random.Random(1)
    held = [
        Held(TopicPartition(f"t{number % 100}", number), "a", chance.randrange(1, 5000), number % 9)
        for number in range(3_000)
    ]
    made = plan(map(Member, NAMES), held)
    assert made.uneven_after <= EVEN_PERCENT
    assert 1_200 < len(made.moves) < 2_400
