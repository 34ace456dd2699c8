"""R24: whatever old views its members have, no range sees more than half of a window of the fleet's
entries between its first and its last insert."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.budget import Hold, WindowState, room
from sluice.core.fleet.floors import Floors, Share, keeps_floor
from sluice.core.fleet.records import Gone, Report
from tests.support.examples import examples

WINDOW = "d.t/s1"


class ForgottenError(Exception):
    """A range was sent after more entries of the fleet than may come between."""


@dataclass(eq=False)
class Sent:
    """A range in doubt."""

    insert_counter: int
    reservation: int
    has_lease: bool = True
    inserted: int = 0
    entries_before: int | None = None


@dataclass(eq=False)
class Server:
    """One window, as its entries come, whoever they are of."""

    blocks: int
    insert_counter: int = 0
    of_fleet: int = 0

    def insert(self, sent: Sent) -> None:
        """A block of a range, one that is there already, perhaps."""
        if sent.entries_before is None:
            sent.entries_before = self.of_fleet
        elif self.of_fleet - sent.entries_before > self.blocks // 2:
            raise ForgottenError
        if sent.inserted < sent.reservation:
            sent.inserted += 1
            self.of_fleet += 1
            self.insert_counter += 1


@dataclass(eq=False)
class Member:
    """What a driver does, without all that takes time."""

    owner: str
    name: int
    server: Server
    log: list[Report | Gone]
    floors: Floors
    ranges: list[Sent] = field(default_factory=list)
    reading: int = 0
    ended: int = 0
    others: dict[str, Report] = field(default_factory=dict)
    read_to: int = 0
    number: int = 1
    said: Report | None = None
    inherited: dict[str, int] = field(default_factory=dict)

    def look(self, messages: int) -> None:
        """Read on in the topic."""
        for message in self.log[self.read_to : self.read_to + messages]:
            self.others.pop(message.owner, None)
            if isinstance(message, Report) and message.owner not in (*self.inherited, self.owner):
                self.others[message.owner] = message
        self.read_to = min(len(self.log), self.read_to + messages)
        self.floors.see(dict(self.others), [WINDOW])

    def read(self) -> None:
        """The insert counter."""
        self.reading, self.ended = self.server.insert_counter, 0

    @property
    def holds(self) -> list[Hold]:
        return [Hold(r.insert_counter, r.reservation) for r in self.ranges if r.has_lease]

    @property
    def window(self) -> WindowState:
        return WindowState(self.server.blocks, self.reading, share=self.floors.share(WINDOW))

    def floor(self) -> int:
        """What it says of itself."""
        keeping = [
            r.insert_counter
            for r in self.ranges
            if r.has_lease or keeps_floor(self.server.blocks, self.reading, r.insert_counter)
        ]
        return min([self.reading, *keeping])

    def say(self) -> None:
        """A report, which is in the topic later."""
        if self.said is not None:
            return
        self.number += 1
        share = self.floors.share(WINDOW)
        reserved = self.ended + sum(hold.reservation for hold in self.holds)
        is_within = share is None or reserved <= share.most(self.server.blocks)
        floors, counted = self.floors.say(self.number, {WINDOW: self.floor()}, is_within=is_within)
        self.said = Report(self.owner, "", self.number, floors=floors, counted=counted)

    def deliver(self) -> None:
        """The report is in the topic, and after it what it says by itself."""
        if self.said is None:
            return
        self.log.append(self.said)
        gone = [owner for owner, since in self.inherited.items() if since < self.said.number]
        self.log += [Gone(owner) for owner in gone if Gone(owner) not in self.log]
        self.said = None

    def reserve(self, entries: int) -> None:
        """A new range."""
        if room(self.window, self.holds, self.ended) >= entries:
            self.ranges.append(Sent(self.reading, entries))

    def again(self, sent: Sent) -> None:
        """A range whose lease is over, if it may be sent again."""
        window, older = self.window, Hold(sent.insert_counter, sent.reservation)
        share = window.share
        if share is not None:
            is_old = not keeps_floor(window.blocks, self.reading, sent.insert_counter)
            if is_old or sent.insert_counter < share.own:
                return
        if room(window, [*self.holds, older], self.ended) >= 0:
            sent.has_lease = True


#: How often each event happens, drawn anew now and then: servers that are slow, or loops.
WEIGHTS = [(1, 6), (1, 6), (2, 8), (2, 8), (8, 24), (0, 8), (0, 1), (0, 8), (0, 2), (0, 2)]
WEIGHTS += [(0, 1), (0, 1), (0, 1)]


class Fleet:
    """Members that start, die, sleep and inherit, in a drawn order of events."""

    def __init__(self, blocks: int, members_max: int, chance: Random) -> None:
        self.server, self.chance, self.members_max = Server(blocks), chance, members_max
        self.log: list[Report | Gone] = []
        self.living: list[Member] = []
        self.dead: list[Member] = []
        self.ids = 0

    def run(self, steps: int) -> None:
        self.start()
        events: list[Callable[[Member], None]] = [
            lambda member: member.look(self.chance.randint(1, 6)),
            lambda member: member.read(),
            lambda member: member.say(),
            lambda member: member.deliver(),
            lambda member: member.reserve(self.chance.randint(1, 3)),
            lambda member: self.insert(member.ranges),
            lambda member: self.insert_all(member.ranges),
            self.settle,
            self.lapse,
            self.again,
            self.die,
            self.inherit,
            lambda member: self.start(),
        ]
        weights: list[int] = []
        for step in range(steps):
            if step % 40 == 0:
                weights = [self.chance.choice(each) for each in WEIGHTS]
            if not self.living:
                self.start()
            action = self.chance.choices(events, weights)[0]
            action(self.chance.choice(self.living))
            if self.dead and self.chance.random() < 0.1:
                self.insert(self.chance.choice(self.dead).ranges)
            if self.chance.random() < 0.02:
                self.server.insert_counter += 1  # somebody else's

    def start(self) -> None:
        """A name that nobody has, or that of one that is dead, whose holds it inherits."""
        names = {member.name for member in self.living}
        name = self.chance.randrange(self.members_max)
        if name in names:
            return
        self.ids += 1
        owner = f"run-{self.ids}"
        floors = Floors(owner, self.members_max)
        member = Member(owner, name, self.server, self.log, floors)
        self.log.append(Report(owner, "", 1))
        member.read()
        member.look(len(self.log))
        for before in [each for each in self.dead if each.name == name]:
            self.inherit(member, before)
        self.living.append(member)

    def insert(self, ranges: list[Sent]) -> None:
        going = [each for each in ranges if each.has_lease]
        if going:
            self.server.insert(self.chance.choice(going))

    def insert_all(self, ranges: list[Sent]) -> None:
        for _ in range(3 * len(ranges)):
            self.insert(ranges)

    def settle(self, member: Member) -> None:
        done = [r for r in member.ranges if r.has_lease and r.inserted == r.reservation]
        if done:
            sent = self.chance.choice(done)
            member.ranges.remove(sent)
            member.ended += sent.reservation

    def lapse(self, member: Member) -> None:
        """Long after its last insert: the window was read since."""
        if member.ranges:
            member.read()
            self.chance.choice(member.ranges).has_lease = False

    def again(self, member: Member) -> None:
        over = [each for each in member.ranges if not each.has_lease]
        if over:
            member.again(self.chance.choice(over))

    def die(self, member: Member) -> None:
        self.living.remove(member)
        self.dead.append(member)
        member.deliver()  # what was under way

    def inherit(self, heir: Member, dead: Member | None = None) -> None:
        """The dead one is fenced, and its ranges are the heir's."""
        if dead is None and self.dead:
            dead = self.chance.choice(self.dead)
        if dead is None:
            return
        self.dead.remove(dead)
        heir.ranges += dead.ranges
        if heir.said is not None:
            heir.deliver()
        heir.inherited |= {dead.owner: heir.number, **dict.fromkeys(dead.inherited, heir.number)}
        heir.look(0)
        for owner in heir.inherited:
            heir.others.pop(owner, None)
        heir.floors.see(dict(heir.others), [WINDOW])


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(16, 200), st.integers(1, 4), st.randoms(use_true_random=False))
def test_no_range_is_sent_after_half_of_a_window(
    blocks: int, members_max: int, chance: Random
) -> None:
    Fleet(blocks, members_max, chance).run(150)


def run_some(runs: int) -> int:
    """Entries that runs of several members have reserved.

    :raises ForgottenError: one of them was sent too late.
    """
    entries = 0
    for seed in range(runs):
        chance = Random(seed)
        fleet = Fleet(chance.choice((32, 64, 128)), chance.choice((2, 3)), chance)
        fleet.run(400)
        entries += fleet.server.of_fleet
    return entries


def test_many_runs_keep_it_and_load() -> None:
    assert run_some(60) > 60 * 20


def two() -> tuple[Fleet, Member, Member]:
    """One member, and one that has begun."""
    fleet = Fleet(64, 2, Random(1))
    while len(fleet.living) < 2:
        fleet.start()
        first, second = fleet.living[0], fleet.living[-1]
        first.look(9)
        while first.floors.is_alone and len(first.holds) < 32:
            first.reserve(1)
    return fleet, first, second


def a_new_member_while_the_first_has_half_of_the_window() -> int:
    """Gives how many entries the new one has reserved."""
    fleet, first, second = two()
    second.say()
    second.deliver()
    second.reserve(2)
    for sent in (*second.ranges, *first.ranges, *second.ranges, *second.ranges):
        fleet.server.insert(sent)
    return len(second.ranges)


def a_range_while_another_member_loads() -> int:
    """Gives how many entries came since the range was sent first."""
    fleet, first, second = two()
    for sent in first.ranges:
        fleet.server.insert(sent)
    first.ranges.clear()
    for _ in range(40):
        for member in (first, second):
            member.read()
            member.say()
            member.deliver()
            member.look(9)
        if not first.ranges:
            first.reserve(2)
            for sent in first.ranges:
                fleet.server.insert(sent)
        second.reserve(2)
        for sent in second.ranges:
            fleet.server.insert(sent)
            fleet.server.insert(sent)
        second.ranges.clear()
    (sent,) = first.ranges
    fleet.server.insert(sent)
    fleet.server.insert(sent)
    assert sent.entries_before is not None
    return fleet.server.of_fleet - sent.entries_before


def test_planted_a_new_member_reserves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert a_new_member_while_the_first_has_half_of_the_window() == 0
    real = Floors.share

    def share(self: Floors, window: str) -> Share | None:
        self._admitted.add(window)
        return real(self, window)

    monkeypatch.setattr(Floors, "share", share)
    with pytest.raises(ForgottenError):
        a_new_member_while_the_first_has_half_of_the_window()


def test_planted_floors_that_do_not_stay_with_the_oldest_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They rise with what a member reads, and so are too high for the hold that it has."""
    assert 10 <= a_range_while_another_member_loads() <= 32
    monkeypatch.setattr(Member, "floor", lambda self: self.reading)
    with pytest.raises(ForgottenError):
        a_range_while_another_member_loads()


def test_planted_floors_that_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range whose lease is over is sent again, although the others have reserved without it."""

    def again(self: Member, sent: Sent) -> None:
        sent.has_lease = True

    monkeypatch.setattr(Member, "again", again)
    with pytest.raises(ForgottenError):
        run_some(200)


def test_planted_all_reserve_as_if_each_were_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Floors, "share", lambda self, window: None)
    with pytest.raises(ForgottenError):
        run_some(200)


def report(owner: str, number: int, floor: int | None = None, **counted: int) -> Report:
    floors = {} if floor is None else {WINDOW: floor}
    return Report(owner, owner, number, floors=floors, counted=counted)


def test_a_member_alone_has_the_budget_of_a_driver_without_a_fleet() -> None:
    floors = Floors("a", 8)
    assert floors.share(WINDOW) == Share(None, 0, 8)  # before it has looked
    floors.see({}, [WINDOW])
    assert floors.is_alone and floors.share(WINDOW) is None
    assert floors.say(1, {WINDOW: 5}, is_within=True) == ({WINDOW: 5}, {})


def test_who_was_alone_goes_on_and_a_new_member_waits_for_it() -> None:
    first, second = Floors("a", 2), Floors("b", 2)
    first.see({}, [WINDOW])
    first.say(7, {WINDOW: 5}, is_within=True)
    second.see({"a": report("a", 7, 5)}, [WINDOW])
    assert second.share(WINDOW) == Share(None, 0, 2)
    second.say(1, {WINDOW: 9}, is_within=True)
    first.see({"b": report("b", 1, 9)}, [WINDOW])
    assert first.share(WINDOW) == Share(5, 5, 2)
    assert first.say(8, {WINDOW: 6}, is_within=False) == ({WINDOW: 6}, {})
    second.see({"a": report("a", 8, 6)}, [WINDOW])
    assert second.share(WINDOW) == Share(None, 9, 2)  # the first has still too much
    _, counted = first.say(9, {WINDOW: 6}, is_within=True)
    assert counted == {"b": 1}
    second.see({"a": report("a", 9, 6, **counted)}, [WINDOW])
    assert second.share(WINDOW) == Share(6, 9, 2)


def test_a_floor_that_falls_and_a_new_window_are_told_first() -> None:
    floors = Floors("a", 2)
    floors.see({}, [WINDOW])
    floors.say(1, {WINDOW: 9}, is_within=True)
    floors.see({"b": report("b", 1, 9)}, [WINDOW])
    assert floors.share(WINDOW) == Share(9, 9, 2)
    assert floors.share("d.new/s1") == Share(None, 0, 2)
    floors.say(2, {WINDOW: 4, "d.new/s1": 3}, is_within=True)
    assert floors.share(WINDOW) == Share(None, 4, 2)
    floors.see({"b": report("b", 2, 9, a=2)}, [])
    assert floors.share(WINDOW) == Share(4, 4, 2)
    assert floors.share("d.new/s1") == Share(3, 3, 2)


def test_more_ids_than_a_fleet_may_have_reserve_nothing() -> None:
    floors = Floors("a", 1)
    floors.see({}, [WINDOW])
    floors.say(1, {WINDOW: 9}, is_within=True)
    floors.see({"b": report("b", 1, 9)}, [])
    assert floors.share(WINDOW) == Share(9, 9, 1)
    floors.see({"b": report("b", 1, 9), "c": report("c", 1, 9)}, [])
    assert floors.share(WINDOW) == Share(None, 9, 1)


def test_what_a_share_is() -> None:
    share = Share(floor=100, own=100, members_max=2)
    assert share.most(160) == 10
    assert share.left(160, 100, 100, 0) == 10
    assert share.left(160, 108, 104, 3) == 8 - 3
    assert share.left(160, 108, 96, 3) == 7 - 3  # an own hold that is not said yet
    assert share.left(160, 141, 120, 0) < 0
    assert share.left(160, 90, 90, 0) == 10 and share.left(160, 90, 100, 0) == -1
    assert Share(None, 100, 2).left(160, 100, 100, 3) == -3
    assert keeps_floor(160, 120, 100) and not keeps_floor(160, 121, 100)
    assert not keeps_floor(160, 99, 100)


def test_beside_strangers_nobody_reserves_anything() -> None:
    floors = Floors("a", 2)
    floors.see({}, [WINDOW], has_strangers=True)
    assert not floors.is_alone and not floors.is_ready([WINDOW])
    found = floors.share(WINDOW)
    assert found is not None and found.floor is None
    floors.see({}, [WINDOW])
    assert floors.is_alone and floors.share(WINDOW) is None


def test_who_begins_again_reserves_nothing_before_all_others_count_it() -> None:
    """Somebody may have taken it for dead, and gone on with half of the window."""
    floors = Floors("a", 2)
    floors.see({}, [WINDOW])
    floors.say(1, {WINDOW: 9}, is_within=True)
    floors.see({"b": report("b", 1, 9, a=1)}, [WINDOW])
    assert floors.share(WINDOW) == Share(9, 9, 2)
    floors.begin_again(2)
    assert floors.share(WINDOW) == Share(None, 9, 2)
    floors.see({"b": report("b", 2, 9, a=1)}, [WINDOW])
    floors.say(2, {WINDOW: 9}, is_within=True)
    assert floors.share(WINDOW) == Share(None, 9, 2)
    floors.see({"b": report("b", 3, 9, a=2)}, [WINDOW])
    assert floors.share(WINDOW) == Share(9, 9, 2)
