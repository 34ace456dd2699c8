"""Which member of a fleet should have which partition, and who inherits from the dead.

Everything here is a function of what a member sees: nobody is elected, and nobody is asked. Members
with different views decide differently for a while, which costs moves and never rows: who owns a
partition stands in its record (R4, R25).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from sluice.core.fleet.view import SILENT_REPORTS, Member, View
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, OPERATOR_PREFIX

#: An heir that has not taken over after so many reports of who looks is passed over.
PASSED_OVER_REPORTS = 5
#: What a record came to name has been inherited after so many, or stops where it was inherited; and
#: who said that it is taking over has done so, or fails to.
ORPHAN_REPORTS = 15

_OWNER = re.compile(r"run-([0-9a-f]{12})-([0-9a-f]{13})")
#: What a float holds exactly.
_BITS = 53


def owner_id(name: str, now_ms: int, chance: str) -> str:
    """The owner id of a member that starts now: its name's hash, then when it started.

    :param chance: two hexadecimal digits, so that two of one name that start at once differ.
    """
    return f"run-{_hash_of_name(name)}-{now_ms:011x}{chance}"


def is_incarnation(owner: str, name: str) -> bool:
    """Whether an owner id is one of a member of this name."""
    found = _OWNER.fullmatch(owner)
    return found is not None and found[1] == _hash_of_name(name)


def is_older(owner: str, other: str) -> bool:
    """Whether an owner id is an earlier one of the same name, by the clock of who started."""
    one, two = _OWNER.fullmatch(owner), _OWNER.fullmatch(other)
    return one is not None and two is not None and one[1] == two[1] and one[2] < two[2]


def _hash_of_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


@lru_cache(1 << 17)
def _chance(*of: object) -> float:
    """A number between 0 and 1, the same for everybody who asks."""
    digest = hashlib.sha256("\n".join(map(str, of)).encode()).digest()
    return ((int.from_bytes(digest[:8]) >> (64 - _BITS)) + 0.5) / (1 << _BITS)


class Homes:
    """Which living member should have each partition (`spread`).

    A member gives only to those with its own load spec: another one might not load the topic. Where
    a data center is preferred, only its members have any, as long as there is one. To members that
    prefer another one nothing is given: they might give it back.

    :param sources: all partitions of the connector, as far as they are known.
    :param is_leaving: who looks keeps nothing.
    """

    def __init__(
        self, view: View, sources: Collection[TopicPartition], *, is_leaving: bool = False
    ) -> None:
        own = next((each for each in view.living if each.owner == view.own), None)
        self._own = view.own
        members = [
            each
            for each in view.living
            if own is not None
            and (each.spec, each.near) == (own.spec, own.near)
            and (not is_leaving if each is own else each.is_ready and not each.is_leaving)
        ]
        members = [each for each in members if not _is_far(each)] or members
        #: Whether anybody else may have a partition of who looks.
        self.are_elsewhere = any(each.owner != view.own for each in members)
        # Of two of one name the later one.
        self._members = {each.name: each for each in sorted(members, key=lambda each: each.owner)}
        self._homes = (
            spread(self._members.values(), sources, view.busy) if self.are_elsewhere else {}
        )

    def of(self, source: TopicPartition) -> str:
        """The owner id of who should have it; that of who looks where nobody else may."""
        if not self.are_elsewhere:
            return self._own
        found = self._homes.get(source)
        # A partition that is new to who looks is about to be known.
        return found or max(self._members.values(), key=lambda each: _weight(each, source)).owner


def spread(
    members: Collection[Member],
    sources: Collection[TopicPartition],
    busy: Mapping[TopicPartition, int],
) -> dict[TopicPartition, str]:
    """The owner id of who should have each partition: no member has more than its share by slots,
    of all partitions, of those that are busy, at each level, and of each topic, rounded up.

    So what comes to a member is at most its share and what the busiest partition brings, by levels.

    A partition goes to the member with the highest chance for it that has room. So nothing has to
    be known of who has what, and who joins or leaves moves little more than its share: a sixth
    more where there are ten partitions or more for each member, a quarter where there are four.

    Shares of a topic may not come out even together with the others: then only those count.

    :param busy: levels of partitions, from 1 on.
    """
    slots = sum(max(1, each.slots) for each in members)
    count = Counter(source.topic for source in sources)

    def share(of: int, member: Member) -> int:
        return -(-of * max(1, member.slots) // slots)

    of_topic = {(t, each.name): share(n, each) for t, n in count.items() for each in members}
    owners = {each.name: each.owner for each in members}
    levels: dict[int, list[TopicPartition]] = {}
    for source in sources:
        levels.setdefault(busy.get(source, 0), []).append(source)
    found: dict[TopicPartition, str] = {}
    given: Counter[str] = Counter()
    for _, those in sorted(levels.items(), reverse=True):
        # With all that are busier.
        most = {each.name: share(len(found) + len(those), each) for each in members}
        pairs = sorted((-_weight(m, source), m.name, source) for m in members for source in those)
        for is_even in (True, False):
            for _, name, source in pairs:
                topic = source.topic, name
                has_room = given[name] < most[name] and (of_topic[topic] > 0 or not is_even)
                if source not in found and has_room:
                    found[source] = owners[name]
                    given[name] += 1
                    of_topic[topic] -= 1
    return found


def _weight(member: Member, source: TopicPartition) -> float:
    chance = _chance(member.name, source.topic, source.partition)
    return -max(1, member.slots) / math.log(chance)


def _is_far(member: Member) -> bool:
    return bool(member.near) and member.data_center != member.near


def heirs(owner: str, view: View, specs: Collection[str]) -> list[Member]:
    """Who inherits from an id that is dead, the first one first.

    Who is not ready comes late: it has seen nobody fall silent, and has no loop before it is warm.

    :param specs: the load specs of its records: who has another one may have to ask a person.
    """
    able = [each for each in view.living if each.may_inherit and not each.is_leaving]

    def order(each: Member) -> tuple[bool, bool, bool, float]:
        late = not each.is_ready, _is_far(each)
        return each.spec not in specs, *late, -_chance(owner, each.name)

    return sorted(able, key=order)


def planned(view: View, owners: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
    """The owner id of who has each partition in the end, if all members see this and nothing else
    changes: where its owner would have it, or the heir of an owner that does not live. "": there is
    no heir.

    :param owners: by partition, the id that its record names.
    """
    specs = {each.spec for each in view.living}
    homes = {
        each.owner: Homes(replace(view, own=each.owner), owners, is_leaving=each.is_leaving)
        for each in view.living
    }
    first = {
        owner: owner if owner in homes else next((h.owner for h in heirs(owner, view, specs)), "")
        for owner in set(owners.values())
    }
    return {s: homes[to].of(s) if (to := first[owner]) else "" for s, owner in owners.items()}


def may_hold(owner: str) -> bool:
    """Whether a driver with this id may have begun a range: nobody and persons begin none."""
    return owner != GENESIS and not owner.startswith(OPERATOR_PREFIX)


@dataclass(frozen=True, slots=True)
class Named:
    """What a partition's committed offset names; of one without a record that is genesis.

    :param offset: all of it, to see whether it has changed.
    """

    owner: str
    spec: str
    offset: object


@dataclass(slots=True)
class Owners:
    """Which owner ids are dead, by what a member has seen of their records and reports (R25).

    A record that changes is a sign of life as good as a report: a driver of no fleet, or one whose
    reports do not come through, is left alone.
    """

    _before: Mapping[TopicPartition, Named] = field(default_factory=dict)
    #: By owner id, the number of the view in which it was last seen alive.
    _alive: dict[str, int] = field(default_factory=dict)
    #: The same by its records alone.
    _changed: dict[str, int] = field(default_factory=dict)
    #: The number of the view in which a record came to name an id that reported no more.
    _orphaned: dict[str, int] = field(default_factory=dict)

    def see(self, view: View, named: Mapping[TopicPartition, Named]) -> None:
        """Take a look at all partitions in."""
        stirred, came = set[str](), set[str]()
        for source, now in named.items():
            before = self._before.get(source, now)
            if before.offset != now.offset:
                stirred |= {before.owner, now.owner}
                came.add(now.owner)
        living = {each.owner for each in view.living}
        self._orphaned |= dict.fromkeys(came - living, view.number)
        known = {each.owner for each in named.values()} | living | set(view.silent)
        self._changed = {
            owner: view.number if owner in stirred else self._changed.get(owner, view.number)
            for owner in known
        }
        stirred |= living
        self._alive = {
            owner: view.number if owner in stirred else self._alive.get(owner, view.number)
            for owner in known
        }
        self._before = dict(named)

    def alive(self, view: View) -> frozenset[str]:
        """Ids that records name, but for those whose records have not changed for long."""
        return frozenset(
            each.owner
            for each in self._before.values()
            if may_hold(each.owner) and view.number - self._alive[each.owner] < SILENT_REPORTS
        )

    def orphans(self, view: View, named: Collection[str]) -> frozenset[str]:
        """Those of these ids that records have come to name of late though they report no more: an
        heir of theirs, or of whom they were heirs of, was about to commit when it died."""
        return frozenset(
            owner
            for owner in named
            if may_hold(owner)
            and view.number - self._orphaned.get(owner, -ORPHAN_REPORTS) < ORPHAN_REPORTS
        )

    def to_inherit(self, view: View) -> list[str]:
        """The ids that are dead and of which who looks is the heir; genesis like any of them."""
        living = {each.owner for each in view.living}
        named = {each.owner for each in self._before.values()}
        # Who lives and has nothing hears of its end when it is given something.
        found = [
            each
            for each in sorted(self._alive)
            if is_older(each, view.own) and (each in named or each not in living)
        ]
        strangers = 0
        if view.own not in living:
            return found  # nobody has read a report of it yet, nor has it
        for owner, alive in sorted(self._alive.items()):
            if owner == GENESIS or owner in found:
                continue
            if owner.startswith(OPERATOR_PREFIX):
                found += [owner] if self._is_heir(owner, view, view.number - alive) else []
            elif owner not in living:
                unchanged = view.number - self._changed[owner]
                silent = min(view.number - alive, unchanged - SILENT_REPORTS)
                is_dead = view.is_suspecting and silent >= 0
                strangers += not is_dead and owner in named
                found += [owner] if is_dead and self._is_heir(owner, view, silent) else []
        # Who lives without reports may be about to write a first record, too.
        if not strangers and GENESIS in self._alive:
            waited = view.number - self._alive[GENESIS]
            found += [GENESIS] if self._is_heir(GENESIS, view, waited) else []
        return found

    def _is_heir(self, owner: str, view: View, waited: int) -> bool:
        specs = {each.spec for each in self._before.values() if each.owner == owner}
        able = heirs(owner, view, specs)
        return bool(able) and able[waited // PASSED_OVER_REPORTS % len(able)].owner == view.own
