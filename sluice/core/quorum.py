"""One Replicated table's quorum in one shard: what is known of it, whether inserts are stuck on it,
why, and what fixes that.

A block that is inserted with a quorum leaves a node in ZooKeeper until so many replicas have its
part: `quorum/status` (serial: nobody else inserts with a quorum meanwhile) or
`quorum/parallel/PART`. Pure: facts in, words and statements out. What was measured on ClickHouse
18.16.1 is said so in docs/RUNBOOK.md. No action drops data, a partition or a node of ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

SERIAL_NODE = "status"


@dataclass(frozen=True, slots=True)
class PendingQuorum:
    """A part that not enough replicas have.

    :param node: below `<path>/quorum`: "status", or "parallel/" and the part.
    :param counted: names of the replicas that ZooKeeper counts so far.
    :param block_ids: nodes of `<path>/blocks` by which the part's block is known again.
    :param rows: what the part holds, as far as a replica told: "100 rows of orders[0], offsets
        0 to 99"; "" if unknown.
    """

    node: str
    part: str
    required: int
    counted: tuple[str, ...]
    age_seconds: int
    block_ids: tuple[str, ...] = ()
    rows: str = ""

    @property
    def is_serial(self) -> bool:
        return self.node == SERIAL_NODE


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """What a replica still has to do to get a part."""

    part: str
    tries: int = 0
    is_executing: bool = False
    exception: str = ""
    postpone_reason: str = ""


@dataclass(frozen=True, slots=True)
class OwnView:
    """What a replica's own server says.

    :param log_behind: entries of the table's log that it has not taken into its queue.
    :param entries: of its queue, for pending parts.
    :param parts_to_check: that it compares with ZooKeeper and with its disk, now or soon.
    :param stored: those of the pending parts that it has on its disk.
    :param trouble: of any entry of its queue, the oldest that failed or is put off: in words.
    """

    is_readonly: bool = False
    is_session_expired: bool = False
    delay_seconds: int = 0
    queue_size: int = 0
    log_behind: int = 0
    parts_to_check: int = 0
    entries: tuple[QueueEntry, ...] = ()
    stored: frozenset[str] = frozenset()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of the table, as ZooKeeper knows it.

    :param url: of the configured server that is this replica; "" if none that answers is.
    :param is_active: it has a session with ZooKeeper.
    :param parts: those of the pending parts that ZooKeeper says it has.
    :param own: None if its server does not answer, or is not configured.
    """

    name: str
    url: str
    is_active: bool
    parts: frozenset[str] = frozenset()
    own: OwnView | None = None

    @property
    def shown(self) -> str:
        return f"{self.name} ({self.url})" if self.url else self.name


@dataclass(frozen=True, slots=True)
class TableQuorum:
    """A Replicated table in a shard.

    :param target: database and table.
    :param view: that writes to it; "" for a table of the configuration.
    :param wanted: replicas that Sluice's inserts wait for; 1 for no quorum.
    :param failed_parts: that ClickHouse has given up.
    :param silent: configured servers that do not answer, and why.
    :param unread: why nothing is known from ZooKeeper; "" if it was read.
    """

    shard: str
    target: tuple[str, str]
    path: str
    view: str = ""
    wanted: int = 1
    pending: tuple[PendingQuorum, ...] = ()
    failed_parts: tuple[str, ...] = ()
    replicas: tuple[Replica, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()
    unread: str = ""


def parse_status(node: str, text: str, age_seconds: int) -> PendingQuorum | None:
    """The text of a status node, as 18.16 and later write it; None for another text.

    version: 1, part_name, required_number_of_replicas, actual_number_of_replicas, replicas: and
    one name a line.
    """
    lines = text.splitlines()
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        part, required = values["part_name"], int(values["required_number_of_replicas"])
        counted = tuple(line for line in lines[lines.index("replicas:") + 1 :] if line)
    except (KeyError, ValueError):
        return None
    return PendingQuorum(node, part, required, counted, age_seconds)


def covers(part: str, other: str) -> bool:
    """Whether a part is another one, or came of merging it with others.

    Names are partition_min_max_level, and a mutation's number may follow; the partition may hold
    underlines itself in tables of an old kind, whose parts are compared by name only.
    """
    if part == other:
        return True
    ours, theirs = part.split("_"), other.split("_")
    try:
        numbers, wanted = [int(n) for n in ours[1:4]], [int(n) for n in theirs[1:4]]
    except ValueError:
        return False
    if len(numbers) < 3 or len(wanted) < 3 or ours[0] != theirs[0] or len(ours) > 5:
        return False
    return numbers[0] <= wanted[0] and wanted[1] <= numbers[1] and numbers[2] > wanted[2]


#: A part that is younger may simply be on its way.
STUCK_SECONDS = 5
DELAY_SECONDS_MAX = 60
QUEUE_SIZE_MAX = 100

_STOPPED = "its fetches are stopped (SYSTEM STOP FETCHES)"

Level = Literal["stuck", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str


@dataclass(frozen=True, slots=True)
class Action:
    """A statement that destroys nothing, for one server."""

    url: str
    statement: str
    why: str

    @property
    def key(self) -> tuple[str, str]:
        return self.url, self.statement


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is wrong with a table's quorum.

    :param actions: that may fix it and have not been taken yet.
    :param by_hand: what only a person can do: start a server, fix a network.
    :param last_resort: numbered steps with commands, if nothing else is left; never taken.
    """

    findings: tuple[Finding, ...]
    actions: tuple[Action, ...]
    by_hand: tuple[str, ...]
    last_resort: tuple[str, ...]

    @property
    def is_stuck(self) -> bool:
        return any(finding.level == "stuck" for finding in self.findings)


def judge(facts: TableQuorum, tried: AbstractSet[tuple[str, str]] = frozenset()) -> Judgement:
    """Explain.

    :param tried: keys of actions that were taken already, and did not help; what comes after
        them is proposed.
    """
    if facts.unread:
        return _unread(facts)
    findings = [*_health(facts)]
    actions = [*_restarts_of_readonly(facts), *_fetches_to_start(facts)]
    by_hand = [*_servers_to_start(facts)]
    last_resort: list[str] = []
    for pending in facts.pending:
        if not _is_late(facts, pending):
            findings.append(Finding("note", f"{_waits(pending)}; it may be on its way"))
            continue
        found, proposed = _explain(facts, pending, tried)
        findings += found
        actions += proposed
        if pending.is_serial and _is_lost(facts, pending):
            last_resort += _last_resort(facts, pending)
        elif not proposed and _holders(facts, pending):
            by_hand += _replace(facts, pending)
    if facts.failed_parts:
        findings.append(Finding("note", _given_up(facts.failed_parts)))
    return Judgement(
        tuple(findings),
        _once(action for action in actions if action.key not in tried),
        tuple(dict.fromkeys(by_hand)),
        tuple(last_resort),
    )


def _once(actions: Iterable[Action]) -> tuple[Action, ...]:
    return tuple({action.key: action for action in actions}.values())


def _unread(facts: TableQuorum) -> Judgement:
    silent = [f"start {url}, or fix the network to it: {why}" for url, why in facts.silent]
    steps = [*silent, "fix ZooKeeper or Keeper, and the servers' way to it; then look again"]
    return Judgement((Finding("stuck", facts.unread),), (), tuple(steps), ())


def _health(facts: TableQuorum) -> Iterator[Finding]:
    active = [replica for replica in facts.replicas if replica.is_active]
    shown = f"{len(active)} of {len(facts.replicas)} replicas have a session with ZooKeeper"
    if len(active) < facts.wanted:
        yield Finding(
            "stuck",
            f"{shown}, and a quorum needs {facts.wanted}: inserts are answered with error 285",
        )
    for replica in facts.replicas:
        if not replica.is_active:
            yield Finding("warning", f"{replica.shown} {_why_inactive(facts, replica)}")
        elif replica.own is None:
            where = ": a server that does not answer here" if facts.silent else ""
            yield Finding(
                "warning", f"{replica.name} has a session, and no configured server is it{where}"
            )
        elif _is_stopped(replica.own.trouble):
            yield Finding("warning", f"{replica.shown}: {_STOPPED}: {replica.own.trouble}")
        elif problem := _lag(replica.own):
            yield Finding("warning", f"{replica.shown} is behind: {problem}")


def _why_inactive(facts: TableQuorum, replica: Replica) -> str:
    if replica.own is not None:
        return "answers, but is read-only: it has no session with ZooKeeper"
    silent = ", ".join(url for url, _ in facts.silent)
    known = f"of the configured servers {silent} does not answer" if silent else "not configured"
    return f"has no session with ZooKeeper: it is down, frozen or cut off ({known})"


def _lag(own: OwnView) -> str:
    parts = []
    if own.delay_seconds > DELAY_SECONDS_MAX:
        parts.append(f"absolute_delay is {own.delay_seconds} s")
    if own.queue_size > QUEUE_SIZE_MAX:
        parts.append(f"{own.queue_size} entries in its queue")
    if parts and own.log_behind > 0:
        parts.append(f"{own.log_behind} entries of the log not read")
    if parts and own.trouble:
        parts.append(own.trouble)
    return ", ".join(parts)


def _restarts_of_readonly(facts: TableQuorum) -> Iterator[Action]:
    for replica in facts.replicas:
        if replica.own is not None and replica.own.is_readonly:
            yield _restart(facts, replica, "it is read-only while others have their session")


def _fetches_to_start(facts: TableQuorum) -> Iterator[Action]:
    for replica in facts.replicas:
        if replica.own is not None and _is_stopped(replica.own.trouble):
            yield _start(facts, replica, "FETCHES", "so that it fetches again")


def _is_stopped(said: str) -> bool:
    """Whether an error or a reason says that fetches are stopped: in 18.16's words, or today's."""
    return "cancelled" in said and "etch" in said


def _servers_to_start(facts: TableQuorum) -> Iterator[str]:
    for url, why in facts.silent:
        yield f"start the server {url}, or wake or reconnect it: {why}"
    away = [r.name for r in facts.replicas if not r.is_active and r.own is None]
    if away and not facts.silent:
        yield f"start the servers of {', '.join(away)}, which the configuration does not name"


def _is_late(facts: TableQuorum, pending: PendingQuorum) -> bool:
    """Old enough, and nobody is fetching it for the first time just now."""
    executing = any(
        entry.is_executing and not entry.exception
        for replica in facts.replicas
        for entry in _entries(replica, pending)
    )
    return pending.age_seconds >= STUCK_SECONDS and not executing


def _waits(pending: PendingQuorum) -> str:
    rows = f" ({pending.rows})" if pending.rows else ""
    return (
        f"part {pending.part}{rows} waits for its quorum for {pending.age_seconds} s: "
        f"{len(pending.counted)} of {pending.required} replicas counted"
        f" ({', '.join(pending.counted) or 'none'})"
    )


def _explain(
    facts: TableQuorum, pending: PendingQuorum, tried: AbstractSet[tuple[str, str]]
) -> tuple[list[Finding], list[Action]]:
    """Of a part that is late: who has it, who lacks it, and why that does not change."""
    blocks = "; until then inserts with a quorum are answered with error 286"
    findings = [Finding("stuck", _waits(pending) + (blocks if pending.is_serial else ""))]
    actions: list[Action] = []
    holders = _holders(facts, pending)
    for holder in holders:
        state = "" if holder.is_active else ", without a session with ZooKeeper"
        counted = "" if holder.name in pending.counted else ", and is not counted"
        findings.append(Finding("stuck", f"{holder.shown} has it{state}{counted}"))
        if counted and holder.is_active:
            actions.append(_restart(facts, holder, "a replica counts what it has at its start"))
    if not holders:
        findings.append(Finding("stuck", "no replica has it, as ZooKeeper says"))
    elif not any(holder.is_active for holder in holders):
        findings.append(Finding("stuck", _only_dead(holders)))
    for replica in facts.replicas:
        if replica not in holders and replica.is_active:
            why, ladder = _why_it_lacks(facts, replica, pending, holders)
            findings.append(Finding("stuck", f"{replica.shown} lacks it: {why}"))
            untried = ([step for step in rung if step.key not in tried] for rung in ladder)
            actions += next(filter(None, untried), [])
    return findings, actions


def _only_dead(holders: Sequence[Replica]) -> str:
    names = ", ".join(holder.name for holder in holders)
    return (
        f"only {names} has it, without a session: once it is back, the others fetch the part; if "
        "their entries run before, ClickHouse gives the part up (quorum/failed_parts), forgets "
        "its block, and who had no answer has to insert it again, as Sluice does"
    )


def _why_it_lacks(
    facts: TableQuorum, replica: Replica, pending: PendingQuorum, holders: Sequence[Replica]
) -> tuple[str, list[list[Action]]]:
    """In words, and what to try, one rung after the other."""
    own = replica.own
    if own is None:
        return "its server does not answer here", []
    if own.is_readonly:
        return "it is read-only", []  # fixed as such
    restart = _restart(facts, replica, "it begins anew")
    run = _start(facts, replica, "REPLICATION QUEUES", "so that its queue runs")
    fetch = _start(facts, replica, "FETCHES", "so that it fetches, should that be stopped")
    entries = _entries(replica, pending)
    if not entries and own.log_behind > 0:
        return f"it has not read {own.log_behind} entries of the table's log", [[run], [restart]]
    if not entries:
        if not holders:
            return "nothing in its queue is for that part", []
        return "it should have it, and nothing in its queue brings it", [[restart]]
    entry = entries[0]
    said = _said(entry)
    if _is_stopped(said):
        return f"{_STOPPED}: {said}", [[fetch], [restart]]
    if not said and entry.tries == 0 and not entry.is_executing:
        why = "its queue does not run (SYSTEM STOP REPLICATION QUEUES), or all its threads are busy"
        return why, [[run], [restart]]
    living = [holder for holder in holders if holder.is_active and holder.url]
    why = f"{replica.name} cannot fetch from it"
    ladder = [
        [fetch, *(_start(facts, holder, "REPLICATED SENDS", why) for holder in living)],
        [_restart(facts, holder, why) for holder in living],
        [restart],
    ]
    failed = f"to fetch it failed {entry.tries} times: {said or 'no reason is given'}"
    return failed, ladder if living else ladder[:1]


def _said(entry: QueueEntry) -> str:
    return "; ".join(text for text in (entry.exception, entry.postpone_reason) if text)


def _entries(replica: Replica, pending: PendingQuorum) -> list[QueueEntry]:
    own = replica.own
    return [] if own is None else [entry for entry in own.entries if entry.part == pending.part]


def _holders(facts: TableQuorum, pending: PendingQuorum) -> list[Replica]:
    return [replica for replica in facts.replicas if pending.part in replica.parts]


def _is_lost(facts: TableQuorum, pending: PendingQuorum) -> bool:
    """Nobody has the part, and no entry that counts for the quorum is left to give it up."""
    views = [(replica, replica.own) for replica in facts.replicas]
    if _holders(facts, pending) or any(r.is_active and own is None for r, own in views):
        return False
    owns = [own for _, own in views if own is not None]
    if any(own.is_readonly or own.log_behind > 0 or own.parts_to_check > 0 for own in owns):
        return False
    return not any(
        _entries(replica, pending) or (own is not None and pending.part in own.stored)
        for replica, own in views
    )


def _last_resort(facts: TableQuorum, pending: PendingQuorum) -> Iterator[str]:
    part, name = pending.part, ".".join(facts.target)
    away = [replica.name for replica in facts.replicas if not replica.is_active]
    dead = (
        f"start {', '.join(away)} first: its queue may hold the entry that gives the part up"
        if away
        else "all replicas have their session"
    )
    yield f"before: {dead}; then `sluice quorum` must still say this"
    yield "before: stop `sluice run` (SIGTERM; it ends with status 3) and every other writer"
    yield (
        f"before: on each server of the shard look for folders like *{part}* below the data of "
        f"{name}, detached too: where there is one, copy it away, and do not go on in haste"
    )
    for block_id in pending.block_ids:
        yield _delete(f"{facts.path}/blocks/{block_id}")
        yield (
            "  (the block's id comes first: while it is there, the same block is taken for "
            "stored, and its rows are lost without an error)"
        )
    yield _delete(f"{facts.path}/quorum/{pending.node}")
    yield "after: `sluice quorum` says that nothing is stuck; then `sluice run`"
    yield (
        "after: Sluice sends its block in doubt again; `sluice audit` must find nothing missing. "
        "What other writers had no answer for, they have to insert again"
    )


def _delete(path: str) -> str:
    return f"zkCli.sh -server ZOOKEEPER:2181 delete '{path}'"


def _replace(facts: TableQuorum, pending: PendingQuorum) -> Iterator[str]:
    holders = _holders(facts, pending)
    for replica in facts.replicas:
        if replica in holders or not replica.is_active or replica.own is None:
            continue
        if not replica.own.is_readonly and any(holder.is_active for holder in holders):
            yield (
                f"read the log of {replica.shown}. If nothing helps, make its replica anew (DROP "
                "TABLE and CREATE TABLE there; it copies all parts), then SYSTEM RESTART REPLICA"
            )


def _given_up(parts: Iterable[str]) -> str:
    return (
        f"parts that ClickHouse gave up before (quorum/failed_parts): {', '.join(parts)}; their "
        "blocks were forgotten, so that a repeat is stored"
    )


def _table(facts: TableQuorum) -> str:
    escaped = (name.replace("\\", "\\\\").replace("`", "\\`") for name in facts.target)
    return ".".join(f"`{name}`" for name in escaped)


def _start(facts: TableQuorum, replica: Replica, what: str, why: str) -> Action:
    return Action(replica.url, f"SYSTEM START {what} {_table(facts)}", f"{replica.name}: {why}")


def _restart(facts: TableQuorum, replica: Replica, why: str) -> Action:
    missing = "the table is not there for a moment, and a block that comes then is refused (60)"
    return Action(
        replica.url,
        f"SYSTEM RESTART REPLICA {_table(facts)}",
        f"{replica.name}: {why}; {missing}",
    )
