"""How a driver that runs gets on, for people: of each connector, table and partition a verdict, and
its reason in words.

Everything is read from the loops by other threads than theirs; the loops never wait for it.

Whether partitions keep up is judged over a window of looks and not by a threshold: a large lag
that shrinks is no trouble, a smaller one that grows is. Between two settles each lag grows by up to
a range, so it has to grow by more.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from sluice.config import load
from sluice.config.applied import document_of
from sluice.core.budget import BOUNDLESS, TargetShard, room
from sluice.core.decided import Frozen, Version
from sluice.core.errors import ConfigurationError
from sluice.core.ranges import TopicPartition
from sluice.driver.connector import ConnectorRun
from sluice.driver.counters import Waits
from sluice.driver.fleet import FleetMember
from sluice.driver.loop import ConnectorLoop
from sluice.driver.ports import ReplicaState
from sluice.driver.state import PartitionState, ToProbe

#: `behind`: it loads, and more comes than it loads. `stalled`: nothing of it is settled although
#: messages are there. `stopped`: a person has to decide, or has frozen it.
Lag = Literal["ok", "behind", "stalled", "stopped"]
LAGS: tuple[Lag, ...] = get_args(Lag)

#: Between two samples, unless ranges may wait for longer; and how many make the window.
STEP_MS = 30_000
SAMPLES = 10
#: Fewer say nothing.
SAMPLES_MIN = 4


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ms: int
    settled: int
    lag_messages: int
    range_messages: int


@dataclass(slots=True)
class Lags:
    """Samples of partitions, taken at looks."""

    _seen: dict[tuple[str, str, int], deque[_Sample]] = field(default_factory=dict)

    def judge(
        self,
        where: tuple[str, str, int],
        settled: int,
        lag_messages: int,
        range_messages: int,
        now_ms: int,
        delay_ms: int,
    ) -> Lag:
        """How a partition that may load keeps up.

        :param where: connector, topic, partition.
        :param range_messages: of its range in doubt, or of its last one; 0 if it had none yet.
        :param delay_ms: how long a range may wait for company.
        """
        seen = self._seen.setdefault(where, deque(maxlen=SAMPLES))
        now = _Sample(now_ms, settled, lag_messages, range_messages)
        if not seen or now_ms - seen[-1].at_ms >= max(STEP_MS, delay_ms):
            seen.append(now)
        window = [*seen, now]
        if len(seen) < SAMPLES_MIN or any(sample.lag_messages == 0 for sample in window):
            return "ok"
        if settled == seen[0].settled:
            return "stalled"
        growth = lag_messages - seen[0].lag_messages
        return "behind" if growth > max(sample.range_messages for sample in window) else "ok"


#: The worse ones first: of several, the first one is told.
Verdict = Literal[
    "ended", "stuck", "stopped", "waits", "frozen", "starting", "parked", "loading", "idle"
]
_WORST_FIRST: tuple[Verdict, ...] = get_args(Verdict)
#: Something moves, or has nothing to do.
HEALTHY: frozenset[Verdict] = frozenset({"loading", "idle"})

#: A loop goes round at least once a second, unless Kafka does not answer.
ROUND_PATIENCE_MS = 30_000
#: Nothing that a round waits for takes so long: its thread hangs, and only a new start helps.
STUCK_MS = 900_000
#: A message that waits for longer waits for something.
WAIT_PATIENCE_MS = 30_000
#: A look of a fleet's member at all partitions takes seconds, or as long as a ledger is read.
LOOK_PATIENCE_SECONDS = 60.0
#: Partitions with a verdict of their own to show, of each connector.
TROUBLED_MAX = 50
#: How far back a rate looks.
RATE_MS = 30_000
#: How long a file is taken to be as it was read.
FILE_EVERY_MS = 60_000


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """A partition.

    :param intent: begin and end of its range in doubt.
    :param intent_age_seconds: since that range was first intended.
    :param behind_seconds: how old its oldest message that is not settled is, as far as is known.
    :param lag: how it keeps up.
    """

    topic: str
    partition: int
    verdict: Verdict
    reason: str
    settled: int
    stable_end: int
    lag_messages: int
    intent: tuple[int, int] | None
    intent_age_seconds: float | None
    behind_seconds: float
    last_settled_ms: int | None
    lag: Lag


@dataclass(frozen=True, slots=True)
class WindowNow:
    """A deduplication window: which share is left of what ranges may fill of it (R10)."""

    shard: str
    table: str
    left: float


@dataclass(frozen=True, slots=True)
class Amounts:
    """Sums over partitions.

    :param partitions: how many have each verdict.
    :param lags: how many keep up how.
    """

    partitions: Mapping[Verdict, int]
    lags: Mapping[Lag, int]
    lag_messages: int
    behind_seconds: float
    in_doubt: int
    oldest_intent_seconds: float | None
    last_settled_ms: int | None


@dataclass(frozen=True, slots=True)
class TableNow:
    """A table entry."""

    name: str
    target: str
    topics: tuple[str, ...]
    verdict: Verdict
    reason: str
    amounts: Amounts
    rows: int
    rows_per_second: float | None
    dead_letters: Mapping[str, int]
    is_parked: bool
    frozen: tuple[str, ...]
    windows: tuple[WindowNow, ...]


@dataclass(frozen=True, slots=True)
class ReplicaNow:
    """A replica, as its last reading says.

    :param frozen: why it gets no blocks; "" if it does.
    """

    shard: str
    url: str
    answers: bool
    delay_seconds: float | None
    queue: int | None
    why_last: str
    frozen: str


@dataclass(frozen=True, slots=True)
class FleetNow:
    """The members of a connector's fleet, as this driver hears of them.

    :param members: who reports, with this driver; `silent`: who does so no more, and is not known
        to be gone.
    :param report_age_seconds: since this driver last read a report of its own.
    :param unreadable: messages of the topic that were passed over.
    :param unowned_partitions: of the connector, that nobody loads: no member which reports has
        recorded anything of them.
    :param look_age_seconds: since this driver last looked at all partitions, and took over what it
        is to have; else nothing comes to it, and it inherits from nobody.
    :param look_failure: why its last look failed; "": it did not.
    :param busy_partitions: of this driver, as its last report says (`core.fleet.busy`).
    :param wanted_slots: of all members, and `wanted_members`: what the work takes
        (`core.fleet.sizing`).
    """

    members: tuple[str, ...]
    silent: tuple[str, ...]
    report_age_seconds: float
    unreadable: int
    unowned_partitions: int
    look_age_seconds: float
    look_failure: str
    busy_partitions: int
    wanted_slots: int
    wanted_members: int


@dataclass(frozen=True, slots=True)
class AppliedNow:
    """The version of tables and topics that a driver loads by, from when somebody applied it.

    :param file_differs: the driver's file has other ones, or cannot be used.
    """

    number: int
    by: str
    why: str
    at_ms: int
    file_differs: bool


@dataclass(frozen=True, slots=True)
class ConnectorNow:
    """A connector.

    :param applied: None: nothing was ever applied, so it loads by its file.
    :param is_moving: something of it loads, or has nothing to load.
    :param troubled: partitions that neither load nor are idle, the worst first, or as many of them
        as are shown.
    :param settings: what counts instead of the configuration, in words.
    :param refused: which topics are to be loaded and are not, and why, in words.
    """

    name: str
    verdict: Verdict
    reason: str
    amounts: Amounts
    rows: int
    rows_per_second: float | None
    is_moving: bool = False
    tables: tuple[TableNow, ...] = ()
    replicas: tuple[ReplicaNow, ...] = ()
    frozen: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    troubled: tuple[PartitionNow, ...] = ()
    fleet: FleetNow | None = None
    applied: AppliedNow | None = None


@dataclass(slots=True)
class Files:
    """What the files of drivers have, each read again after a while: who applies may change one
    before or afterwards."""

    _read: dict[Path, tuple[int, str]] = field(default_factory=dict)

    def differ(self, path: Path, version: Version, now_ms: int) -> bool:
        """Whether a file has other tables or topics than a version, or cannot be used."""
        if path not in self._read or not 0 <= now_ms - self._read[path][0] < FILE_EVERY_MS:
            self._read[path] = now_ms, _document(path)
        return self._read[path][1] != version.document


def _document(path: Path) -> str:
    try:
        return document_of(load(path, os.environ))
    except ConfigurationError:
        return ""


@dataclass(slots=True)
class Rates:
    """Rows in a second, from what was counted at the looks before; and how partitions keep up."""

    lags: Lags = field(default_factory=Lags)
    files: Files = field(default_factory=Files)
    _seen: dict[tuple[str, str], deque[tuple[int, int]]] = field(default_factory=dict)

    def rate(self, connector: str, target: str, rows: int, now_ms: int) -> float | None:
        """Over the last half minute, or since the first look; None at the first one."""
        seen = self._seen.setdefault((connector, target), deque())
        while seen and now_ms - seen[0][0] > RATE_MS:
            seen.popleft()
        if not seen or now_ms - seen[-1][0] >= 1_000:
            seen.append((now_ms, rows))
        since_ms, before = seen[0]
        return None if now_ms <= since_ms else (rows - before) * 1000 / (now_ms - since_ms)


def behind_seconds(state: PartitionState, now_ms: int) -> float:
    """How old the oldest message of a partition that is not settled is, as far as is known."""
    since = [now_ms if state.behind_since_ms is None else state.behind_since_ms]
    if state.record.in_doubt:
        since.append(state.background.since_ms or now_ms)
    return max(0.0, (now_ms - min(since)) / 1000)


class Look:
    """One look at a loop."""

    def __init__(self, loop: ConnectorLoop, lags: Lags, now_ms: int) -> None:
        self.loop, self.now_ms, self._lags = loop, now_ms, lags
        self.spec = loop.planner.spec
        self.waits = loop.waits
        self._entries: dict[str, tuple[str, ...]] = {}
        self._outages: dict[str, str] = {}
        for target_shard, outage in self.waits.windows.items():
            if outage is not None:
                what = f"waits for shard {target_shard.shard}: {outage}"
                self._outages.setdefault(target_shard.entry, what)

    def entries_of(self, topic: str) -> tuple[str, ...]:
        """The table entries that a topic goes to."""
        if topic not in self._entries:
            self._entries[topic] = tuple(table.entry for table in self.spec.tables_of(topic))
        return self._entries[topic]

    def partitions(self) -> list[PartitionNow]:
        """All of them."""
        return [self._partition(state) for _, state in sorted(self.loop.states.copy().items())]

    def _partition(self, state: PartitionState) -> PartitionNow:
        verdict, reason = self._verdict(state)
        source, record = state.source, state.record
        age_ms = self.now_ms - (state.background.since_ms or self.now_ms)
        lag_messages = max(0, state.stable_end - state.settled)
        lag: Lag = "stopped"
        if verdict not in ("stopped", "frozen"):
            where = (self.loop.name, source.topic, source.partition)
            lag = self._lags.judge(
                where,
                state.settled,
                lag_messages,
                state.range_messages,
                self.now_ms,
                self._delay_ms,
            )
        return PartitionNow(
            topic=source.topic,
            partition=source.partition,
            verdict=verdict,
            reason=reason,
            settled=state.settled,
            stable_end=state.stable_end,
            lag_messages=lag_messages,
            intent=(record.begin, record.end) if record.in_doubt else None,
            intent_age_seconds=max(0.0, age_ms / 1000) if record.in_doubt else None,
            behind_seconds=behind_seconds(state, self.now_ms),
            last_settled_ms=state.settled_at_ms or None,
            lag=lag,
        )

    def _verdict(self, state: PartitionState) -> tuple[Verdict, str]:
        error, entries = state.stopped, self.entries_of(state.source.topic)
        if error is not None:
            return "stopped", f"stopped at {state.settled}: {error}. Try: {error.hint}"
        is_sought = isinstance(state.stage, ToProbe)
        standing = self.loop.freezing.hold(entries, is_sought=is_sought)
        if standing:
            return _held(self.loop, standing[0])
        is_waiting = state.record.in_doubt or state.waiting_since_ms is not None
        outage = next((self._outages[entry] for entry in entries if entry in self._outages), None)
        if is_waiting and outage is not None:
            return "waits", outage
        if is_sought:
            return "waits", f"{state.block_range} is looked for in its tables"
        if state.unverified:
            return "waits", f"its leader has changed, and is not believed yet: {state.unverified}"
        if state.is_unseen:
            return "waits", "no leader has told of its log since this driver took it over"
        if state.record.in_doubt and state.failures:
            again = max(0.0, (state.retry_at_ms - self.now_ms) / 1000)
            often = "once" if state.failures == 1 else f"{state.failures} times"
            failed = f"{state.block_range} failed {often}, now by {state.error}"
            return "waits", failed if state.out else f"{failed}; next try in {again:.0f} s"
        waits_ms = self.now_ms - (state.waiting_since_ms or self.now_ms)
        if not state.record.in_doubt and waits_ms > max(WAIT_PATIENCE_MS, 3 * self._delay_ms):
            return "waits", (
                f"messages wait since {waits_ms / 1000:.0f} s for a free task, or for room in a "
                "deduplication window"
            )
        return ("loading", "loads") if is_waiting else ("idle", "has loaded everything")

    @property
    def _delay_ms(self) -> int:
        return self.loop.planner.limits.delay_ms_max

    def windows(self, entry: str) -> tuple[WindowNow, ...]:
        """What is left of the windows of a table entry; those without bounds are not told."""
        states = list(self.loop.states.copy().values())
        return tuple(
            WindowNow(at.shard, window.state.table or at.name, self._left(at, states))
            for at, window in self.loop.windows.items()
            if at.entry == entry and at.has_window and window.state.blocks < BOUNDLESS
        )

    def _left(self, at: TargetShard, states: list[PartitionState]) -> float:
        window = self.loop.windows[at].state
        held = self.loop.holds.at(at, states, self.now_ms)
        return round(max(0, room(window, held)) / max(1, window.usable), 4)


def look_at(run: ConnectorRun, rates: Rates, now_ms: int) -> ConnectorNow:
    """How a connector gets on."""
    name, loop, error = run.connector.name, run.loop, run.error
    if run.is_ended:
        why = "" if error is None else f": {error}. Try: {error.hint}"
        return _without_loop(name, "ended", f"has ended with status {run.status}{why}")
    if loop is None:
        why = "" if error is None else f", which failed, and is tried again: {error}"
        return _without_loop(name, "starting", f"is {run.doing}{why}")
    look = Look(loop, rates.lags, now_ms)
    partitions = look.partitions()
    tables = tuple(_tables(look, partitions, rates))
    amounts = _sum(partitions)
    rows = loop.counters.rows
    held = _of_loop(look, run.fleet)
    verdict, reason = held or _worst(partitions, amounts)
    fleet = _fleet(run.fleet)
    if verdict in HEALTHY and (unseen := _why_unseen(fleet)):
        verdict, reason = "waits", unseen
    troubled = [each for each in partitions if each.verdict not in HEALTHY]
    troubled.sort(key=lambda each: _WORST_FIRST.index(each.verdict))
    return ConnectorNow(
        name=name,
        verdict=verdict,
        reason=reason,
        amounts=amounts,
        rows=rows,
        rows_per_second=rates.rate(name, "", rows, now_ms),
        is_moving=not HEALTHY.isdisjoint([held[0]] if held else amounts.partitions),
        tables=tables,
        replicas=_replicas(loop),
        frozen=tuple(each.line() for each in loop.freezing.standing),
        settings=tuple(each.line() for each in loop.settings),
        refused=tuple(_refused(look.waits)),
        troubled=tuple(troubled[:TROUBLED_MAX]),
        fleet=fleet,
        applied=_applied(run, rates.files, now_ms),
    )


def _refused(waits: Waits) -> Iterable[str]:
    topics = sorted(waits.refused)
    for topic in topics[:TROUBLED_MAX]:
        error = waits.refused[topic]
        yield f"topic {topic} is not loaded: {error}. Try: {error.hint}"
    if len(topics) > TROUBLED_MAX:
        yield f"{len(topics) - TROUBLED_MAX} more topics are not loaded"


def _applied(run: ConnectorRun, files: Files, now_ms: int) -> AppliedNow | None:
    version = run.version
    if version is None:
        return None
    differs = files.differ(run.configuration.path, version, now_ms)
    return AppliedNow(version.number, version.by, version.why, version.at_ms, differs)


def _fleet(member: FleetMember | None) -> FleetNow | None:
    if member is None:
        return None
    view = member.view()
    return FleetNow(
        tuple(sorted(each.name for each in view.living)),
        view.silent,
        round(member.report_age_seconds, 1),
        member.unreadable,
        member.unowned,
        round(member.look_age_seconds, 1),
        member.look_failure,
        member.busy_partitions,
        *view.wanted,
    )


def _without_loop(name: str, verdict: Verdict, reason: str) -> ConnectorNow:
    return ConnectorNow(name, verdict, reason, _sum([]), 0, None)


def _of_loop(look: Look, member: FleetMember | None) -> tuple[Verdict, str] | None:
    """What is so for all partitions of a loop, whatever they are at."""
    loop = look.loop
    silent_ms = look.now_ms - loop.round_at_ms
    if silent_ms > STUCK_MS:
        return "stuck", f"has made no round for {silent_ms / 1000:.0f} s; a new start goes on"
    if look.waits.kafka:
        return "waits", "waits for Kafka, which does not answer"
    if look.waits.records:
        return "waits", f"cannot record: {look.waits.records} transactions in a row failed"
    if silent_ms > ROUND_PATIENCE_MS:
        return "waits", f"has made no round for {silent_ms / 1000:.0f} s"
    if not loop.states:
        return _without_partitions(member)
    whole = loop.freezing.hold(())
    return _held(loop, whole[0]) if whole else None


def _held(loop: ConnectorLoop, by: Frozen) -> tuple[Verdict, str]:
    return "frozen" if by in loop.freezing.standing else "waits", loop.freezing.line(by)


def _without_partitions(member: FleetMember | None) -> tuple[Verdict, str]:
    """A member of a fleet that hears of the others may have none for good: a standby."""
    if member is None or member.why_alone:
        return "waits", "has no partitions: none of its topics has any yet"
    silent = member.report_age_seconds
    if silent * 1000 > ROUND_PATIENCE_MS:
        return "waits", f"has no partitions, and has not heard of its fleet for {silent:.0f} s"
    if member.elsewhere:
        return "idle", "has no partitions: other members have them"
    return "waits", "has no partitions, and no other member has any yet"


def _why_unseen(fleet: FleetNow | None) -> str:
    """Why a member of a fleet takes nothing over, whatever it loads; "" if it does."""
    if fleet is None or fleet.look_age_seconds <= LOOK_PATIENCE_SECONDS:
        return ""
    since = f"for {fleet.look_age_seconds:.0f} s it could not look at all partitions of its fleet"
    why = f": {fleet.look_failure}" if fleet.look_failure else ""
    return f"{since}, and takes nothing over{why}"


def _tables(look: Look, partitions: Sequence[PartitionNow], rates: Rates) -> Iterable[TableNow]:
    loop = look.loop
    rows = Counter[str]()
    for (target, _, _), inserted in list(loop.counters.inserted.items()):
        rows[target] += inserted.rows
    letters: dict[str, dict[str, int]] = {}
    for (entry, reason), count in list(loop.dead_letters.counts.items()):
        letters.setdefault(entry, {})[reason] = count
    for table in look.spec.tables:
        own = [each for each in partitions if table.entry in look.entries_of(each.topic)]
        amounts, target = _sum(own), table.target
        is_parked = look.waits.parked.get(table.entry, False)
        verdict, reason = _worst(own, amounts)
        if is_parked and verdict in HEALTHY:
            verdict, reason = "parked", "is parked: its messages go to the parking topic"
        frozen = loop.freezing.frozen([table.entry])
        yield TableNow(
            name=table.entry,
            target=target,
            topics=tuple(sorted({each.topic for each in own})),
            verdict=verdict,
            reason=reason,
            amounts=amounts,
            rows=rows[target],
            rows_per_second=rates.rate(loop.name, target, rows[target], look.now_ms),
            dead_letters=letters.get(table.entry, {}),
            is_parked=is_parked,
            frozen=tuple(each.line() for each in frozen),
            windows=look.windows(table.entry),
        )


def _sum(partitions: Sequence[PartitionNow]) -> Amounts:
    ages = [p.intent_age_seconds for p in partitions if p.intent_age_seconds is not None]
    settled = [p.last_settled_ms for p in partitions if p.last_settled_ms is not None]
    return Amounts(
        partitions=dict(Counter(p.verdict for p in partitions)),
        lags=dict(Counter(p.lag for p in partitions)),
        lag_messages=sum(p.lag_messages for p in partitions),
        behind_seconds=max((p.behind_seconds for p in partitions), default=0.0),
        in_doubt=len(ages),
        oldest_intent_seconds=max(ages, default=None),
        last_settled_ms=max(settled, default=None),
    )


def _worst(partitions: Sequence[PartitionNow], amounts: Amounts) -> tuple[Verdict, str]:
    """The worst verdict of some partitions, with the reason of the first that has it."""
    if not partitions:
        return "idle", "has no partitions"
    worst = min(partitions, key=lambda each: _WORST_FIRST.index(each.verdict))
    if worst.verdict == "loading":
        return "loading", f"loading, {amounts.behind_seconds:.0f} s behind"
    if worst.verdict == "idle":
        return "idle", "has loaded everything"
    count, total = amounts.partitions[worst.verdict], len(partitions)
    where = f"{TopicPartition(worst.topic, worst.partition)}"
    if worst.verdict == "frozen" and count == total:
        return "frozen", worst.reason
    return worst.verdict, f"{count} of {total} partitions, {where} first: {worst.reason}"


def _replicas(loop: ConnectorLoop) -> tuple[ReplicaNow, ...]:
    found = loop.replicas.current() if loop.replicas is not None else ()
    return tuple(_replica(each, loop.freezing.why(each.url)) for each in found)


def _replica(state: ReplicaState, frozen: str) -> ReplicaNow:
    read = state.health.condition
    delay, queue = (None, None) if read is None else (float(read.delay_seconds), read.queue)
    answers, why = read is not None, state.health.why
    return ReplicaNow(state.shard, state.url, answers, delay, queue, why, frozen)


def why_not_ready(connectors: Sequence[ConnectorNow]) -> list[str]:
    """Why nothing may rely on this driver; empty if it loads, or has nothing to load.

    Never empty while nothing of a connector moves, or while it has no partitions, but for a member
    of a fleet while others have them; nor while a member of a fleet cannot take anything over.
    """
    whys = (
        (each, _why_unseen(each.fleet) if each.is_moving else each.reason) for each in connectors
    )
    return [f"connector {each.name}: {why}" for each, why in whys if why]


def why_not_alive(connectors: Sequence[ConnectorNow]) -> list[str]:
    """Why it should be started again; empty while any connector goes on, or waits for others."""
    if all(each.verdict in ("ended", "stuck") for each in connectors):
        return [f"connector {each.name}: {each.reason}" for each in connectors]
    return []
