"""Which fault comes when: drawn from a seed, so that a run can be repeated.

The order of the faults, their lengths and their pauses follow from the seed alone. What the
real programs are doing at that moment does not: it is their own time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.proxy import Kind


class Target(StrEnum):
    """What a fault happens to."""

    KAFKA_LINK = "kafka link"
    CLICKHOUSE_LINK = "clickhouse link"
    BROKER = "broker"
    CLICKHOUSE = "clickhouse"
    TABLE = "table"
    DRIVER = "driver"
    WORKER = "worker"
    # On a cluster only.
    ZOOKEEPER = "zookeeper"
    ZOOKEEPER_LINK = "zookeeper link"
    DATA_CENTER = "data center"
    # Where events are deduplicated only.
    STORE = "store of claims"
    STORE_LINK = "store of claims link"


class Deed(StrEnum):
    """What is done to a process."""

    KILL = "killed"
    PAUSE = "paused"
    RESTART = "restarted"
    KILL_IN_REQUEST = "killed in a request"
    SUCCEED = "paused, succeeded, woken"
    KILL_JVM = "JVM killed"
    OVERFLOW = "killed, window overrun"
    KILL_SPARK_WORKER = "Spark worker killed"
    HANG = "paused beyond its lease"
    OTHER_ZONE = "restarted in another time zone"
    ADD_COLUMN = "column added"
    FOREIGN_BLOCKS = "half of the window filled by a foreign writer"
    LOSE_DATA = "started again without its data"
    LOSE_END = "started again without the end of its log"
    EMPTY = "emptied while it runs"


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault.

    :param what: of a link, or of a process.
    :param seconds: until it is healed.
    :param pause_seconds: before it strikes.
    :param overlaps: the next one may come while this one lasts.
    :param dice: a number from 0 to 1, for whatever else has to be chosen.
    :param place: which of several: a replica, or a data center; "" where there is one.
    :param touches: what it happens to. Two faults never share any of it at a time.
    """

    target: Target
    what: Kind | Deed
    seconds: float
    pause_seconds: float
    overlaps: bool
    dice: float
    place: str
    touches: frozenset[str]

    @property
    def name(self) -> str:
        """For people, and for counting."""
        return f"{self.target}: {self.what}"

    @property
    def told(self) -> str:
        """For people, with its place."""
        return f"{self.target} {self.place}: {self.what}" if self.place else self.name

    @property
    def is_alone(self) -> bool:
        """Whether nothing else may be broken when it strikes."""
        return self.what in _ALONE

    @property
    def needs_progress(self) -> bool:
        """Whether it is pointless while nothing is loaded."""
        return self.target in (Target.DRIVER, Target.WORKER) or self.what in _MEET_REQUESTS


#: A kind of fault, as it is dealt.
Card = tuple[Target, Kind | Deed]

_LINKS = (Target.KAFKA_LINK, Target.CLICKHOUSE_LINK)
_SERVERS = (Target.BROKER, Target.CLICKHOUSE)

#: Shortest and longest in seconds. A cut or a kill is an event rather than a state.
_LENGTHS: dict[Kind | Deed, tuple[float, float]] = {
    Kind.CUT: (0.2, 3.0),
    Kind.DELAY: (3.0, 8.0),
    Kind.HOLD: (2.0, 12.0),
    Kind.DROP_REPLY: (2.0, 6.0),
    Kind.HALF_OPEN: (2.0, 10.0),
    Kind.THROTTLE: (3.0, 8.0),
    Deed.KILL: (0.5, 4.0),
    Deed.RESTART: (0.0, 0.5),
    Deed.PAUSE: (2.0, 12.0),
    Deed.KILL_IN_REQUEST: (1.0, 4.0),
    Deed.SUCCEED: (3.0, 8.0),
    Deed.KILL_JVM: (0.5, 1.0),
    Deed.OVERFLOW: (0.5, 1.0),
    Deed.KILL_SPARK_WORKER: (2.0, 5.0),
    # Beyond the lease, and the time after it in which an insert may still land.
    Deed.HANG: (22.0, 40.0),
    Deed.OTHER_ZONE: (0.0, 0.5),
    Deed.ADD_COLUMN: (0.0, 0.5),
    # Within one lease a foreign writer may add half a window, and no more.
    Deed.FOREIGN_BLOCKS: (11.0, 14.0),
    Deed.LOSE_DATA: (0.5, 4.0),
    Deed.LOSE_END: (0.5, 4.0),
    Deed.EMPTY: (0.0, 0.5),
}
#: A data center is away for longer than a session with ZooKeeper lasts.
_DATA_CENTER_LENGTHS = (6.0, 25.0)

#: These change what every other fault would meet, so they come alone.
_ALONE = {Deed.SUCCEED, Deed.OVERFLOW}
#: These strike at a request that is on its way.
_MEET_REQUESTS = {Kind.DROP_REPLY, Deed.KILL_IN_REQUEST, Deed.FOREIGN_BLOCKS}
_OVERLAP_SHARE = 0.5


def all_faults(standalone: bool, layout: Layout | None = None, store: str = "") -> list[Card]:
    """Every fault there is.

    :param standalone: Spark has workers of its own, which can die.
    :param layout: of a cluster; None for one server without ZooKeeper.
    :param store: of claims, "redis" or "local"; "": there is none.
    """
    faults: list[Card] = []
    faults += [(link, kind) for link in _LINKS for kind in Kind]
    faults += [
        (server, deed)
        for server in _SERVERS
        for deed in (Deed.KILL, Deed.PAUSE, Deed.RESTART, Deed.KILL_IN_REQUEST)
    ]
    drivers = [Deed.KILL, Deed.PAUSE, Deed.SUCCEED, Deed.KILL_JVM, Deed.OVERFLOW]
    faults += [(Target.DRIVER, deed) for deed in drivers]
    faults += [(Target.WORKER, deed) for deed in (Deed.KILL, Deed.PAUSE, Deed.HANG)]
    if standalone:
        faults.append((Target.WORKER, Deed.KILL_SPARK_WORKER))
    if layout is None:
        # On servers that hash blocks, a column that is added at the wrong moment is no fault
        # that is borne; and several connectors are foreign writers to each other already.
        faults += [(Target.TABLE, deed) for deed in (Deed.ADD_COLUMN, Deed.FOREIGN_BLOCKS)]
        faults.append((Target.CLICKHOUSE, Deed.OTHER_ZONE))
    else:
        faults += _cluster_faults(layout)
    if store == "redis":
        faults += [(Target.STORE_LINK, kind) for kind in Kind]
        deeds = [Deed.KILL, Deed.PAUSE, Deed.RESTART, Deed.KILL_IN_REQUEST]
        deeds += [Deed.LOSE_DATA, Deed.LOSE_END, Deed.EMPTY]
        faults += [(Target.STORE, deed) for deed in deeds]
    elif store:
        # It has no process: it dies with those who use it.
        faults.append((Target.STORE, Deed.LOSE_DATA))
    return faults


def _cluster_faults(layout: Layout) -> list[Card]:
    """What only a cluster can suffer. A replica's session with ZooKeeper has no requests whose
    replies could be told from others, so none are dropped there."""
    faults: list[Card] = [
        (Target.ZOOKEEPER, deed) for deed in (Deed.KILL, Deed.PAUSE, Deed.RESTART)
    ]
    faults += [(Target.ZOOKEEPER_LINK, kind) for kind in Kind if kind is not Kind.DROP_REPLY]
    if layout.data_centers > 1:
        whats: tuple[Kind | Deed, ...] = (Deed.KILL, Deed.PAUSE, Kind.CUT, Kind.HALF_OPEN)
        faults += [(Target.DATA_CENTER, what) for what in whats]
    return faults


def schedule(
    seed: int, standalone: bool = False, layout: Layout | None = None, store: str = ""
) -> Iterator[Strike]:
    """Faults without end. All kinds come before any comes again, like cards that are dealt."""
    dice = random.Random(seed)
    while True:
        cards = all_faults(standalone, layout, store)
        dice.shuffle(cards)
        for target, what in cards:
            is_center = target is Target.DATA_CENTER
            shortest, longest = _DATA_CENTER_LENGTHS if is_center else _LENGTHS[what]
            places = _places(target, layout)
            place = dice.choice(places) if places else ""
            yield Strike(
                target=target,
                what=what,
                seconds=round(dice.uniform(shortest, longest), 2),
                pause_seconds=round(dice.uniform(0.3, 3.0), 2),
                overlaps=dice.random() < _OVERLAP_SHARE and what not in _ALONE,
                dice=dice.random(),
                place=place,
                touches=_touched(target, what, place, layout),
            )


def _places(target: Target, layout: Layout | None) -> list[str]:
    """Where a fault may strike, if there are several of what it happens to."""
    if layout is None:
        return []
    match target:
        case Target.BROKER | Target.KAFKA_LINK | Target.DATA_CENTER:
            return layout.centers
        case Target.CLICKHOUSE | Target.CLICKHOUSE_LINK:
            return layout.servers
        case Target.ZOOKEEPER_LINK:
            return layout.zookeeper_links
    return []


def _touched(
    target: Target, what: Kind | Deed, place: str, layout: Layout | None
) -> frozenset[str]:
    if target is Target.STORE and what is Deed.LOSE_DATA:
        # Those who use a local store are killed with it.
        return frozenset({Target.STORE, Target.DRIVER, Target.WORKER})
    if target is not Target.DATA_CENTER or layout is None:
        return frozenset({f"{target} {place}".strip()})
    is_link = isinstance(what, Kind)
    broker = Target.KAFKA_LINK if is_link else Target.BROKER
    server = Target.CLICKHOUSE_LINK if is_link else Target.CLICKHOUSE
    servers = {f"{server} {each}" for each in layout.servers_in(place)}
    return frozenset({f"{target} {place}", f"{broker} {place}", *servers})
