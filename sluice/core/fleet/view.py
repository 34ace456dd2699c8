"""What a driver of a fleet knows of the others. It is advice, and may be wrong at any moment: who
owns a partition stands in the partition's record (R4), and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.ranges import TopicPartition

#: A member is silent when so many of the observer's own reports came since its last one. No clock
#: is compared with another: where the topic is away, or the observer slept, nobody is suspected.
SILENT_REPORTS = 4


@dataclass(frozen=True, slots=True)
class Member:
    """A driver that reports.

    :param owner: its id in records, another one after each start.
    :param name: which it keeps when it is started again.
    :param spec: digest of the load spec that it records new ranges under.
    :param slots: tasks that it can run at once at most: executors that come and go move nothing.
    :param near: the data center whose members have all partitions, by its configuration, as long as
        one of them may be given any; "": none is preferred.
    :param is_ready: what it is given it may load at once.
    :param is_leaving: it was asked to hand over all that it has, and to end.
    :param may_inherit: False: its clock is off, so it decides about no other's leases.
    """

    owner: str
    name: str
    spec: str
    data_center: str = ""
    slots: int = 1
    is_ready: bool = True
    is_leaving: bool = False
    may_inherit: bool = True
    near: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """:param own: owner id of who looks.
    :param number: how many of its reports it has read back; the only clock of a fleet.
    :param living: who is not silent, by owner id, in their order; with who looks, as soon as its
        first report came back.
    :param is_suspecting: False: too many fell silent at once, so nobody is taken for dead.
    :param silent: ids of those that are silent, and not known to be gone.
    :param busy: levels of partitions that bring more than others (`core.fleet.busy`); `average`:
        messages a second that come to a partition, on average; 0: nobody knows yet.
    :param wanted: how many slots of all members, and how many members, the work takes
        (`core.fleet.sizing`); zeros: nobody knows yet.
    """

    own: str
    number: int
    living: tuple[Member, ...]
    is_suspecting: bool = True
    silent: tuple[str, ...] = ()
    wanted: tuple[int, int] = (0, 0)
    busy: Mapping[TopicPartition, int] = field(default_factory=dict)
    average: float = 0.0


def what_changed(before: View | None, now: View) -> str:
    """Why members may have other partitions than before, in words; "": they may not."""
    if before is None:
        return "this member has started"
    if (before.living, before.busy) == (now.living, now.busy):
        return ""
    earlier = {each.name: each for each in before.living}
    later = {each.name: each for each in now.living}
    said = [f"{name} reports no more" for name in sorted(earlier.keys() - later.keys())]
    for name, member in sorted(later.items()):
        was = earlier.get(name)
        if was is None or was.owner != member.owner:
            said.append(f"{name} has started")
        elif (was.is_ready, was.is_leaving) != (member.is_ready, member.is_leaving):
            said.append(f"{name} {_stage(member)}")
        elif was != member:
            said.append(f"{name} says something else of itself")
    if before.busy != now.busy:
        said.append("other partitions are busy, or they are so no more")
    return "; ".join(said)


def _stage(member: Member) -> str:
    if member.is_leaving:
        return "leaves"
    return "is ready" if member.is_ready else "is not ready"
