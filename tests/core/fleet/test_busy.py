"""What a member says of partitions that bring more than others, and what those who read it make of
that."""

from __future__ import annotations

import random
from statistics import median

import pytest

from sluice.core.fleet.busy import (
    KEPT_REPORTS,
    MEASURED_MS,
    MEASURED_TIMES,
    NAMED_MAX,
    RATE_MIN,
    WAITING_SECONDS,
    Busy,
    Said,
    average_of,
)
from sluice.core.fleet.placement import spread
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import Member
from sluice.core.ranges import TopicPartition

SOURCES = [TopicPartition("t", number) for number in range(8)]
MINUTE = MEASURED_MS
USUAL = 1000.0
#: Minutes until a level may change.
LONG = MEASURED_TIMES


class Owner:
    """A member, as far as it measures: messages come at these rates."""

    def __init__(self, **rates: float) -> None:
        self.busy, self.now_ms = Busy(), 5 * MINUTE
        self.rates = {TopicPartition("t", int(name[1:])): rate for name, rate in rates.items()}
        self.ends = dict.fromkeys(self.rates, 100.0)
        self.waiting = dict.fromkeys(self.rates, 0)
        self.said: dict[TopicPartition, int] = {}
        self.report()

    def report(self, average: float = USUAL) -> dict[str, int]:
        stand = ((s, int(self.ends[s]), self.waiting[s]) for s in self.rates)
        self.busy.see(stand, self.said, average, self.now_ms)
        return self.busy.named

    def after(self, minutes: float, average: float = USUAL) -> dict[str, int]:
        """It reports each two seconds for so long; gives what the last one says."""
        for _ in range(int(minutes * MINUTE / 2000)):
            self.now_ms += 2000
            self.ends = {s: end + 2 * self.rates[s] for s, end in self.ends.items()}
            self.report(average)
        return self.report(average)


def test_a_level_doubles_what_comes() -> None:
    owner = Owner(p0=USUAL, p1=2 * USUAL, p2=4 * USUAL, p3=1.5 * USUAL, p4=100 * USUAL)
    assert owner.after(LONG - 0.1) == {}
    assert owner.after(0.1) == {"t/4": 7, "t/2": 2, "t/1": 1}


def test_who_alone_brings_all_is_busy_by_the_average_of_its_own() -> None:
    """Before any report came back."""
    owner = Owner(p0=0, p1=0, p2=0, p3=8 * USUAL)
    assert owner.after(LONG, average=0.0) == {"t/3": 2}
    assert owner.busy.average == pytest.approx(2 * USUAL)


@pytest.mark.parametrize("seed", range(3))
def test_what_varies_from_minute_to_minute_moves_next_to_nothing(seed: int) -> None:
    """Of 40 topics a few bring most; four members share them, and a fifth more or less comes to
    each partition each minute. By numbers of partitions alone one has a quarter more than its share
    and more; by levels a tenth."""
    rng = random.Random(seed)
    members = [Member(f"m{number}", f"m{number}", "s") for number in range(4)]
    usual = {
        TopicPartition(f"t{topic}", number): 20_000 / (1 + topic) ** 1.2 * rng.uniform(0.8, 1.25)
        for topic in range(40)
        for number in range(5)
    }
    even = homes = spread(members, list(usual), {})
    owners, said, ends = {m.owner: Busy() for m in members}, Said(), dict.fromkeys(usual, 0.0)
    average, moved, most, most_evenly = 0.0, [0] * 180, [0.0], [0.0]
    for minute in range(180):
        number = 10 * minute
        for owner, busy in owners.items():
            own = [(each, int(ends[each]), 0) for each in usual if homes[each] == owner]
            busy.see(own, said.levels(number), average, minute * MINUTE)
            more = {"partitions": len(own), "messages_per_partition": busy.average}
            said.take(report(owner, busy=busy.named, **more), number)
        average = sum(busy.average for busy in owners.values()) / 4
        before, homes = homes, spread(members, list(usual), said.levels(number))
        moved[minute] = sum(before[each] != homes[each] for each in usual)
        rates = {each: rate * rng.lognormvariate(0, 0.2) for each, rate in usual.items()}
        ends = {each: end + 60 * rates[each] for each, end in ends.items()}
        if minute >= 2 * LONG:
            for shares, found in ((homes, most), (even, most_evenly)):
                brought = [sum(rates[s] for s in usual if shares[s] == o) for o in owners]
                found.append(4 * max(brought) / sum(brought))
    assert 0 < sum(moved[: 2 * LONG]) < 40 and sum(moved[2 * LONG :]) <= 8
    assert median(most) < 1.15 and median(most_evenly) > 1.2


def test_a_level_follows_what_comes_and_stays_for_a_while() -> None:
    owner = Owner(p0=USUAL)
    assert owner.after(LONG) == {}
    owner.rates[SOURCES[0]] = 8 * USUAL
    assert owner.after(2 * LONG) == {"t/0": 3}
    for _ in range(LONG):
        # One minute of ten nothing comes.
        owner.rates[SOURCES[0]] = 0
        assert owner.after(1) == {"t/0": 3}
        owner.rates[SOURCES[0]] = 8 * USUAL
        assert owner.after(LONG - 1) == {"t/0": 3}
    owner.rates[SOURCES[0]] = USUAL
    assert owner.after(3 * LONG) == {}


def test_who_brings_little_is_not_busy_however_little_the_others_bring() -> None:
    owner = Owner(p0=RATE_MIN - 1)
    assert owner.after(3 * LONG, average=0.1) == {}
    owner.rates[SOURCES[0]] = RATE_MIN * 1.1
    assert owner.after(3 * LONG, average=0.1) == {"t/0": 10}
    owner.rates[SOURCES[0]] = RATE_MIN * 0.9
    assert owner.after(3 * LONG, average=0.1) == {"t/0": 10}
    owner.rates[SOURCES[0]] = RATE_MIN * 0.4
    assert owner.after(3 * LONG, average=0.1) == {}


def test_what_waits_counts() -> None:
    """Two partitions to which as much comes; one of them has been waiting for long."""
    owner = Owner(p0=USUAL, p1=USUAL)
    owner.waiting[SOURCES[1]] = int(3 * USUAL * WAITING_SECONDS)
    assert owner.after(LONG) == {"t/1": 2}


def test_what_moves_keeps_its_level_until_it_is_measured() -> None:
    owner = Owner(p0=USUAL)
    owner.after(LONG)
    owner.said = {SOURCES[1]: 3, SOURCES[0]: 5}
    owner.rates[SOURCES[1]] = owner.ends[SOURCES[1]] = 0.0
    owner.waiting[SOURCES[1]] = 0
    assert owner.report() == {"t/1": 3}
    assert owner.after(LONG - 0.1) == {"t/1": 3}
    assert owner.after(0.2) == {}


def test_what_went_is_forgotten() -> None:
    owner = Owner(p0=USUAL, p1=4 * USUAL)
    assert owner.after(LONG) == {"t/1": 2}
    del owner.rates[SOURCES[1]]
    assert owner.report() == {} and owner.busy.average == pytest.approx(USUAL)


def test_a_clock_that_is_set_back_measures_nothing() -> None:
    owner = Owner(p0=4 * USUAL)
    assert owner.after(LONG) == {"t/0": 2}
    owner.now_ms -= 3 * MINUTE
    assert owner.after(LONG + 1) == {"t/0": 2}


def test_the_busiest_are_named() -> None:
    owner = Owner(**{f"p{number}": USUAL * 2 ** (number % 3 + 1) for number in range(150)})
    named = owner.after(LONG)
    assert len(named) == NAMED_MAX
    assert set(named.values()) == {3, 2} and next(iter(named.values())) == 3


def report(owner: str, **changes: object) -> Report:
    return Report(owner, owner, 1, **changes)  # type: ignore[arg-type]


def test_what_was_said_counts_until_nobody_says_it_for_long() -> None:
    said = Said()
    said.take(report("a", busy={"shop/orders/7": 2, "x": 9, "x/-1": 9}), 5)
    said.take(report("b", busy={"t/1": 3}), 8)
    said.take(report("a"), 9)
    orders = TopicPartition("shop/orders", 7)
    assert said.levels(5 + KEPT_REPORTS - 1) == {orders: 2, SOURCES[1]: 3}
    said.take(report("c", busy={"t/1": 1}), 9)
    assert said.levels(5 + KEPT_REPORTS) == {SOURCES[1]: 1}
    assert said.levels(9 + KEPT_REPORTS) == {}


def test_the_average_is_that_of_all_partitions() -> None:
    one = report("a", partitions=10, messages_per_partition=100.0)
    two = report("b", partitions=30, messages_per_partition=20.0)
    unknown = report("c", partitions=50)
    assert average_of([one, two, unknown]) == 40.0
    assert average_of([unknown]) == average_of([]) == 0.0
