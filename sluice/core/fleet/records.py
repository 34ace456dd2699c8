"""What members of a fleet write into its topic: that they live, how they do, and the floors of
their windows.

It is advice: who owns a partition stands in the partition's record (R4), and nowhere else. Each
owner id has a key of its own, so that compaction never keeps what one wrote over what another one
did; of each the last message is enough. A message without a value says that an id is gone: who
wrote it has inherited what that id had, and its own floors are in the topic before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sluice.core.errors import TerminalError

#: Raised with each change that an older reader would misunderstand.
VERSION = 1

#: A level is no larger: what comes to a partition is a 64-bit number.
LEVEL_MAX = 60

_KIND = "report"


class UnreadableError(TerminalError):
    """A message of the topic is none that this version can read."""

    hint = "Is it another program's, or a newer version's? It is passed over."


@dataclass(frozen=True, slots=True)
class Report:
    """A driver lives, and this is how it does.

    :param owner: its id in records, another one after each start.
    :param member: its name, which it keeps when it is started again.
    :param number: of its reports, from 1 on.
    :param boot: of the machine that it runs on, another one after each start of the machine.
    :param started_ms: since when it runs; `wall_ms`: when it wrote this; both by its clock.
    :param members_max: of how many members it takes the fleet to be at most.
    :param silent_seconds: who does not report for so long counts as silent to it; it reports four
        times as often.
    :param slots: tasks that it can run at once; `slots_max`: at most, whatever executors are there
        now; `work`: ranges that are out; `partitions`: that it has; of the connector.
    :param oldest_wait_seconds: since when its oldest message that is in no range is there; of
        partitions that have not stopped.
    :param messages_per_partition: messages a second that come to one of its partitions, on average;
        0: it has not measured yet. `busy`: levels of those to which more comes (`core.fleet.busy`),
        by topic/partition.
    :param spec: digest of the load spec that it records new ranges under.
    :param decoder: that executes it; `software`: which version of Sluice.
    :param floors: by window, the insert counter that its oldest hold has, or that it read last
        (`core.fleet.floors`).
    :param counted: whose floors its own reservations take into account, and the number of the
        report that they are of.
    :param inherits: ids that it is taking over, or has taken over without saying floors with all
        that they held (R25).
    :param is_ready: what it is given it may load at once.
    :param is_leaving: it was asked to hand over all that it has, and to end.
    :param is_alone: it takes all partitions that it finds, and shares none.
    :param near: see `Member`.
    """

    owner: str
    member: str
    number: int
    boot: str = ""
    started_ms: int = 0
    wall_ms: int = 0
    data_center: str = ""
    members_max: int = 1
    silent_seconds: float = 8.0
    slots: int = 1
    slots_max: int = 1
    work: int = 0
    partitions: int = 0
    rows_per_second: float = 0.0
    oldest_wait_seconds: float = 0.0
    spec: str = ""
    decoder: str = ""
    software: str = ""
    floors: Mapping[str, int] = field(default_factory=dict)
    counted: Mapping[str, int] = field(default_factory=dict)
    inherits: tuple[str, ...] = ()
    is_ready: bool = True
    is_leaving: bool = False
    is_alone: bool = False
    near: str = ""
    messages_per_partition: float = 0.0
    busy: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gone:
    """An id is gone, and what it held is somebody else's."""

    owner: str


def key_of(connector: str, owner: str) -> bytes:
    """The key of an owner's reports."""
    return f"{connector}/{_KIND}/{owner}".encode()


def encode(report: Report) -> bytes:
    """The message of a report."""
    return json.dumps({"version": VERSION, **asdict(report)}, separators=(",", ":")).encode()


#: What each field of a report may be.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "Mapping[str, int]": (dict,),
    "tuple[str, ...]": (tuple,),
}


def decode(connector: str, key: bytes | None, value: bytes | None) -> Report | Gone | None:
    """What a message says; None: it is another connector's, or nothing that this version knows.

    :raises UnreadableError: it is no report, or one of a newer version.
    """
    of, _, rest = (key or b"").decode(errors="replace").rpartition(f"/{_KIND}/")
    if of != connector or not rest:
        return None
    if value is None:
        return Gone(rest)
    try:
        body = json.loads(value)
        version = int(body.pop("version"))
        if version > VERSION:
            software = str(body.get("software", "a newer version of Sluice"))
            raise UnreadableError(
                f"a report of version {version} by {software}; version {VERSION} is known",
                "Start this driver with that version, too, as soon as the others are there.",
            )
        if isinstance(body.get("inherits"), list):
            body["inherits"] = tuple(body["inherits"])
        # What a newer version says beside it may be passed over, or that one had raised `VERSION`.
        known = fields(Report)
        report = Report(**{each.name: body[each.name] for each in known if each.name in body})
        for each in known:
            _require(each.name, getattr(report, each.name), str(each.type))
        if not all(0 < level <= LEVEL_MAX for level in report.busy.values()):
            raise ValueError(f"a level of busy is none: {report.busy!r}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableError(f"no report: {error}: {value[:80]!r}") from None
    if report.owner != rest:
        raise UnreadableError(f"a report of {report.owner} under the key of {rest}")
    return report


def _require(name: str, value: Any, kind: str) -> None:
    wanted = _TYPES[kind]
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise ValueError(f"{name} is {value!r}")
    if isinstance(value, dict):
        for each in value.values():
            _require(f"a value of {name}", each, "int")
    if isinstance(value, tuple):
        for each in value:
            _require(f"a value of {name}", each, "str")
