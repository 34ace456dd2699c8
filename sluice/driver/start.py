"""Taking partitions over: from what Kafka holds to states that a loop can go on with.

1. Fence the old owners and read what they left, stably (R4).
2. Read the ledger: it must agree with the group (H3).
3. Decide for each partition by the replay table.
4. Commit the first records under the old owners' ids.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sluice.config import Start
from sluice.core.errors import OwnerChangedError, SluiceError, TerminalError, TransientError
from sluice.core.ledger import (
    Background,
    Commit,
    CommittedOffsets,
    LedgerEntry,
    LedgerView,
    record_entry,
    spec_entry,
)
from sluice.core.load_spec import LoadSpec, parse_spec
from sluice.core.ranges import EPOCH_UNKNOWN, TopicPartition
from sluice.core.records import GENESIS, InvalidRecordError, Kind, Record, decode
from sluice.core.replay import (
    Committed,
    Decision,
    Executable,
    Facts,
    Ledger,
    Log,
    Memory,
    Probe,
    Topic,
    decide,
)
from sluice.core.topics import NO_TOPIC_ID, is_other_topic
from sluice.driver.beginning import AskGroup, beginnings
from sluice.driver.load_specs import NamedSpec
from sluice.driver.ports import Clock, FindCuts, Windows, no_cuts
from sluice.driver.record_updates import Budget, RecordPlanner, from_now_on
from sluice.driver.remembering import why_forgotten
from sluice.driver.state import Holds, PartitionState, PossibleLateInsert, target_shards_gone
from sluice.driver.stopped import Observed, UnresolvedError, resolved_together, stop_error
from sluice.kafka.log import SourceLog
from sluice.kafka.offsets import owner_in
from sluice.kafka.recorder import Recorder, TakeOver

_logger = logging.getLogger("sluice.loop")

_Told = TypeVar("_Told")

#: See `StartParts`.
WhyNoProbe = Callable[[LoadSpec, str, bool], str | None]


@dataclass(frozen=True, slots=True)
class StartParts:
    """The world around a take-over.

    :param read_ledger: the view for these partitions, of the second ones of which the group holds
        nothing; see `sluice.kafka.ledger.read_view`.
    :param read_stable: the same up to the last stable offset, which waits for no transaction.
    :param read_on: reads into a view what came since.
    :param watch: has `windows` read for a recorded load spec too, before it returns.
    :param why_not_executable: why a recorded load spec cannot be executed for a topic, or None.
    :param why_no_probe: why a load spec's tables of a topic cannot be probed, or None; see
        `sluice.driver.probing.why_no_probe_now`.
    :param start: where a topic begins that never existed here.
    :param ask_group: looks at the group of another loader that `start` names.
    :param find_cuts: looks after logs whose leader has changed since a record.
    :param bears_outages: what a shard that does not answer would have to say of a range in doubt is
        left for the loop to find out, and the range waits. Without, a take-over needs all shards.
    """

    recorder: Recorder
    log: SourceLog
    read_ledger: Callable[[list[TopicPartition], list[TopicPartition]], LedgerView]
    read_stable: Callable[[list[TopicPartition], list[TopicPartition]], LedgerView]
    read_on: Callable[[LedgerView], None]
    windows: Windows
    planner: RecordPlanner
    watch: Callable[[LoadSpec], None]
    why_not_executable: Callable[[LoadSpec, str], str | None]
    why_no_probe: WhyNoProbe
    start: Start
    ask_group: AskGroup
    now_ms: Clock
    find_cuts: FindCuts = no_cuts
    bears_outages: bool = False


@dataclass(slots=True)
class Started:
    """What a take-over found. `batch` is the number of the last committed batch.

    :param specs: by digest, the load specs that can be executed, today's among them.
    :param elsewhere: other partitions whose last record in the ledger, as far as it was read,
        is in doubt.
    :param refused: by digest, a recorded load spec that cannot be executed, and why.
    :param unasked: load spec, by digest, and topic, of which no server said whether it can be
        executed: it is among `specs`, and nothing may be sent under it before one says.
    :param recorded: all partitions that have a record in the ledger, and perhaps more; None:
        nobody knows.
    """

    states: list[PartitionState] = field(default_factory=list)
    late_inserts: list[PossibleLateInsert] = field(default_factory=list)
    specs: dict[str, NamedSpec] = field(default_factory=dict)
    batch: int = 0
    elsewhere: list[TopicPartition] = field(default_factory=list)
    refused: dict[str, tuple[LoadSpec, str]] = field(default_factory=dict)
    unasked: set[tuple[str, str]] = field(default_factory=set)
    recorded: frozenset[TopicPartition] | None = None

    @property
    def unexecutable(self) -> list[tuple[str, LoadSpec]]:
        """The load specs that cannot be executed, and their digests."""
        return [(digest, spec) for digest, (spec, _) in self.refused.items()]

    def add(self, more: Started) -> None:
        """Take in what a later take-over found; what is settled and retiring is let go."""
        self.states += [s for s in more.states if s.record.in_doubt or not s.retiring]
        self.late_inserts += [
            late_insert for late_insert in more.late_inserts if late_insert not in self.late_inserts
        ]
        self.specs |= more.specs
        self.refused |= more.refused
        self.batch = more.batch
        self.recorded = more.recorded


def spec_needed(metadata: str) -> str | None:
    """Digest of the load spec that a record in doubt needs; None for a settled one."""
    fields = metadata.split("|")
    return None if len(fields) < 10 or fields[1] == Kind.SETTLE.value else fields[9]


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """What the ledger said of partitions before they are taken over.

    :param found: what the group held then.
    """

    found: CommittedOffsets
    view: LedgerView


def read_ahead(parts: StartParts, sources: list[TopicPartition]) -> ReadAhead:
    """Read what a take-over of these partitions needs of the ledger; in any thread."""
    found = parts.recorder.look(sources)
    return ReadAhead(found, parts.read_stable(sources, without_offset(found)))


def read_rest(parts: StartParts, view: LedgerView, found: CommittedOffsets) -> LedgerView:
    """Read on, into a view that was read ahead; or read all of it, where it lacks a record of these
    partitions, or the load spec of one that came meanwhile."""
    parts.read_on(view)
    last = [view.records.get(source) for source, at in found.items() if at is not None]
    needed = {spec_needed(str(entry["metadata"])) for entry in last if entry is not None} - {None}
    if None in last or not needed <= view.specs.keys():
        return parts.read_ledger(list(found), without_offset(found))
    return view


def without_offset(found: CommittedOffsets) -> list[TopicPartition]:
    return [source for source, at in found.items() if at is None]


def take_over(
    parts: StartParts,
    sources: list[TopicPartition],
    batch: int = 0,
    *,
    retiring: bool = False,
    ahead: ReadAhead | None = None,
) -> Started:
    """Take these partitions over; the steps are the module's.

    :param retiring: their topics are not configured any more.
    :param ahead: of these partitions, and others perhaps: where the group holds what it held then,
        the ledger is only read on.
    :raises OwnerChangedError: another successor was let through.
    :raises StartRefusedError: a new topic cannot begin where `start` says.
    """
    taken = parts.recorder.take_over(sources)
    if ahead is not None and all(ahead.found[s] == at for s, at in taken.found.items()):
        view = read_rest(parts, ahead.view, taken.found)
    else:
        view = parts.read_ledger(sources, without_offset(taken.found))
    return first_records(parts, taken, view, batch, retiring=retiring)


def first_records(
    parts: StartParts,
    taken: TakeOver,
    view: LedgerView,
    batch: int,
    *,
    retiring: bool = False,
    keeps: bool = False,
) -> Started:
    """Steps 3 and 4, for all that a take-over has found. Where no leader tells of a log, a
    partition goes on by its record, and nothing of it is sent until one does; without a record it
    is left as it is, with all others of a topic that has none.

    :param keeps: they name this owner already: nothing is written, and each keeps its record.
    """
    parts = replace(parts, why_no_probe=_asked_once(parts))
    started = Started(batch=batch)
    _load_specs(parts, view, started)
    observed = _observe(parts, taken, view)
    if view.recorded is not None:
        started.recorded = view.recorded.union(item.source for item in observed)
    started.batch = 1 + max([batch, *(o.record.batch for o in observed if o.record)])
    begins = beginnings(parts.start, parts.log, parts.ask_group, _new(observed, view))
    records: dict[TopicPartition, Record] = {}
    entries: list[LedgerEntry] = [
        spec_entry(named.digest, named.text) for named in started.specs.values()
    ]
    for item in observed:
        state, record, stop = _decide(parts, item, view, started, begins)
        state.retiring = retiring
        started.states.append(state)
        if stop is not None:
            if retiring:
                stop.hint = f"Put {item.source.topic} back into `topics`, then: {stop.hint}"
            state.stop(stop)
            _logger.error("%s stops at the start: %s. Try: %s", item.source, stop, stop.hint)
            continue
        if keeps:
            assert item.record is not None
            state.record = item.record
            continue
        records[item.source] = record
        entries.append(record_entry(item.source, record, state.background))
    held = _held_until_ms(view)
    for state in started.states:
        state.held_until_ms = held.get(state.source, 0)
    waiting = [s.source for s in started.states if isinstance(s.stopped, UnresolvedError)]
    for line in resolved_together(parts.planner.spec.connector, waiting):
        _logger.error("%s", line)
    if not keeps:
        _refuse_change(parts, taken)
    if records:
        parts.recorder.finish_take_over(taken, Commit(records, tuple(entries)))
    started.late_inserts = late_inserts_in(view)
    started.elsewhere = [
        source
        for source, entry in view.records.items()
        if source not in taken.found and spec_needed(str(entry["metadata"])) is not None
    ]
    return started


def late_inserts_in(view: LedgerView) -> list[PossibleLateInsert]:
    """Of all partitions, whoever owns them."""
    return [
        PossibleLateInsert(
            {str(k): int(v) for k, v in entry["insert_counters"].items()},
            int(entry["deadline_ms"]),
            str(entry.get("claimed_in", "")),
        )
        for entry in view.late_inserts
    ]


def _held_until_ms(view: LedgerView) -> dict[TopicPartition, int]:
    """By partition, until when something that is settled may still be inserted."""
    held: dict[TopicPartition, int] = {}
    for entry in view.late_inserts:
        source = TopicPartition(str(entry["topic"]), int(entry["partition"]))
        held[source] = max(int(entry["deadline_ms"]), held.get(source, 0))
    return held


def _asked_once(parts: StartParts) -> WhyNoProbe:
    """Servers are asked about the same tables once, not for each partition or topic of them: one
    that does not answer would be waited for each time. Where an outage is borne, the probe finds
    out itself what no server says now."""
    known: dict[tuple[int, tuple[str, ...], bool], str | None] = {}

    def ask(spec: LoadSpec, topic: str, is_recorded: bool) -> str | None:
        key = id(spec), _entries(spec, topic), is_recorded
        if key not in known:
            try:
                known[key] = parts.why_no_probe(spec, topic, is_recorded)
            except TransientError as error:
                if not parts.bears_outages:
                    raise
                _logger.warning(
                    "topic %s: no server says now whether its ranges in doubt can be probed; the "
                    "probe finds it out: %s",
                    *(topic, error),
                )
                known[key] = None
        return known[key]

    return ask


def _entries(spec: LoadSpec, topic: str) -> tuple[str, ...]:
    return tuple(table.entry for table in spec.tables_of(topic))


def _new(observed: list[Observed], view: LedgerView) -> dict[TopicPartition, Observed]:
    """Partitions of topics that never existed here; see the replay table."""
    return {
        item.source: item
        for item in observed
        if item.topic is Topic.NEW and item.found is None and view.metadata(item.source) is None
    }


def _refuse_change(parts: StartParts, taken: TakeOver) -> None:
    """Group and ledger must be one view: somebody may have recorded, or committed (R5),
    after the group was read and before the ledger was.

    :raises OwnerChangedError: another driver took over meanwhile.
    :raises TransientError: the group changed; it is taken over again.
    """
    now = parts.recorder.committed(taken.found)
    changed = [source for source, found in taken.found.items() if now[source] != found]
    for source in changed:
        if owner_in(now[source]) not in (taken.owners[source], GENESIS):
            raise OwnerChangedError(f"{source} was taken over by {owner_in(now[source])} meanwhile")
    if changed:
        raise TransientError(
            f"{changed[0]}: the group changed while it was taken over", "It is taken over again."
        )


def _load_specs(parts: StartParts, view: LedgerView, started: Started) -> None:
    today = parts.planner.specs.today
    started.specs[today.digest] = today
    needed: dict[str, list[str]] = {}
    for entry in view.records.values():
        digest = spec_needed(str(entry["metadata"]))
        if digest is not None and digest not in started.specs and digest in view.specs:
            needed.setdefault(digest, []).append(str(entry["topic"]))
    for digest, topics in needed.items():
        try:
            recorded = parse_spec(view.specs[digest])
        except TerminalError as error:
            _logger.warning("recorded load spec %s: %s", digest, error)
            continue
        why, unasked = _why_refused(parts, recorded, sorted(set(topics)))
        if why is not None:
            _logger.warning("recorded load spec %s cannot be executed today: %s", digest, why)
            started.refused[digest] = recorded, why
            continue
        parts.watch(recorded)
        started.unasked.update((digest, topic) for topic in unasked)
        started.specs[digest] = NamedSpec(digest, recorded, view.specs[digest])


def _why_refused(
    parts: StartParts, recorded: LoadSpec, topics: list[str]
) -> tuple[str | None, list[str]]:
    """Why a recorded load spec cannot be executed, and for which of these topics no server says it.
    One topic that it cannot be executed for is enough: load specs are held by digest alone."""
    together: dict[tuple[str, ...], list[str]] = {}
    for topic in topics:
        together.setdefault(_entries(recorded, topic), []).append(topic)
    unasked: list[str] = []
    for alike in together.values():
        try:
            why = parts.why_not_executable(recorded, alike[0])
        except TransientError as error:
            if not parts.bears_outages:
                raise
            _logger.warning(
                "topics %s: their ranges in doubt wait until a server says whether their load spec "
                "can be executed: %s",
                *(", ".join(alike), error),
            )
            unasked += alike
        else:
            if why is not None:
                return why, unasked
    return None, unasked


def _observe(parts: StartParts, taken: TakeOver, view: LedgerView) -> list[Observed]:
    sources = list(taken.found)
    # First: what is told after that of a topic that was made anew is not loaded under its old id.
    topics = parts.log.topics({source.topic for source in sources})
    begins, ends = _told(parts.log.begins, sources), _told(parts.log.epoch_ends, sources)
    records: dict[TopicPartition, Record] = {}
    for source, found in taken.found.items():
        try:
            if found is not None:
                records[source] = decode(found.offset, found.metadata)
        except InvalidRecordError as error:
            _logger.warning("%s: %s", source, error)
    # As long as one leader leads, it cuts nothing.
    cuts = parts.find_cuts(
        {
            s: r.log_end
            for s, r in records.items()
            if s in ends and r.epoch not in (EPOCH_UNKNOWN, ends[s].epoch)
        }
    )
    if cuts.unknown:
        _logger.warning("%s; the records are believed until that is known", cuts)
    for source in cuts.unknown:
        del ends[source]
    known: dict[str, set[str]] = {}
    for source, record in records.items():
        known.setdefault(source.topic, set()).add(record.topic_id)
    for source, entry in view.records.items():
        known.setdefault(source.topic, set()).add(str(entry["metadata"]).split("|")[8])
    observed = []
    untold = {s for s in sources if not (s in begins and s in ends)}
    left = untold - records.keys()
    left |= {s for s in sources if s.topic not in known and s.topic in {t.topic for t in left}}
    for source, record in records.items():
        if source in untold:
            begins[source], ends[source] = record.begin, record.log_end
    _tell_untold(untold - left, left)
    for source in sources:
        if source in left:
            continue
        topic_id = topics[source.topic][0]
        own = records.get(source)
        ids = {own.topic_id} if own is not None else known.get(source.topic, set())
        is_other = any(is_other_topic(recorded, topic_id) for recorded in ids)
        topic = Topic.NEW if not ids else Topic.RECREATED if is_other else Topic.KNOWN
        observed.append(
            Observed(
                source,
                taken.found[source],
                own,
                topic,
                topic_id,
                begins[source],
                ends[source],
                cuts.found.get(source, ""),
                is_told=source not in untold,
            )
        )
    return observed


def _told(
    ask: Callable[..., Mapping[TopicPartition, _Told]], sources: list[TopicPartition]
) -> dict[TopicPartition, _Told]:
    """What the leaders tell that there are.

    :raises TerminalError: one of them refuses.
    """
    try:
        return dict(ask(sources))
    except TransientError as error:
        _logger.warning("%s", error)
    try:
        return dict(ask(sources, partial=True))
    except TransientError:
        return {}


def _tell_untold(waiting: set[TopicPartition], left: set[TopicPartition]) -> None:
    told = (
        (waiting, "nothing of it is loaded until one tells"),
        (left, "it is not begun, nor is a topic of which nothing was loaded yet"),
    )
    for sources, what in told:
        if sources:
            more = f" and {len(sources) - 1} others" if len(sources) > 1 else ""
            first = min(sources)
            _logger.warning("no leader tells of the log of %s%s; %s", first, more, what)


def _decide(
    parts: StartParts,
    item: Observed,
    view: LedgerView,
    started: Started,
    begins: Mapping[TopicPartition, int],
) -> tuple[PartitionState, Record, SluiceError | None]:
    """The partition's state, its first record, and why it stops if it does."""
    now_ms = parts.now_ms()
    background = view.background(item.source)
    record = item.record or _settled_at(parts, item, 0)
    state = PartitionState(
        source=item.source,
        record=record,
        background=background,
        stable_end=item.stable_end,
        committed_at_ms=now_ms,
        epoch=item.end.epoch,
        is_unseen=not item.is_told,
    )
    facts, why = _facts(parts, item, view, started, state, now_ms)
    decision = decide(facts)
    if decision.stops:
        today = parts.planner.spec
        refused, _ = started.refused.get(record.spec, (None, ""))
        decoder = "" if refused is None else refused.decoder
        is_known = facts.memory is Memory.HOLDS and decoder != today.decoder
        earlier = decoder if is_known else ""
        return state, record, stop_error(decision, item, why, today.connector, earlier)
    if decision is Decision.START:
        record = _settled_at(parts, item, begins[item.source])
    elif decision is Decision.CONSUME:
        # Its topic may have come to an id. What is in doubt keeps the one in its blocks' tokens.
        told = record.topic_id if item.topic_id == NO_TOPIC_ID else item.topic_id
        owner, spec = parts.planner.owner, parts.planner.digest
        record = replace(record, owner=owner, spec=spec, topic_id=told)
    elif decision is Decision.REPLAY:
        if _is_fresh(record):
            record = _fresh_probe(parts, item, state, started, now_ms)
        state.late_insert_until_ms = record.deadline_ms
        state.back_at_ms = now_ms
        # Ownership changes hands, the lease does not: the budget decides who may insert again.
        owner, attempt = parts.planner.owner, record.attempt + 1
        record = replace(record, kind=Kind.RENEW, owner=owner, attempt=attempt)
        _logger.warning("%s is in doubt; it is loaded again, identically", state.block_range)
    elif decision is Decision.PROBE:
        # Ownership changes hands, the lease does not: nobody gets more time to insert.
        record = replace(record, kind=Kind.RENEW, owner=parts.planner.owner)
        state.probe()
        _logger.warning("%s is in doubt and %s; it is probed", state.block_range, why)
    if record.epoch == EPOCH_UNKNOWN and item.is_told and record.end <= item.stable_end:
        # A record from before there were any: what its leader has now counts from now on.
        record = replace(record, epoch=item.end.epoch)
    state.record = replace(record, batch=started.batch)
    state.sent = record.in_doubt  # perhaps, and who sent it is not here to say so
    if not state.record.in_doubt:
        state.background = Background(since_ms=now_ms)
    state.see_end(item.end, now_ms)
    return state, state.record, None


def _settled_at(parts: StartParts, item: Observed, offset: int) -> Record:
    return Record(
        kind=Kind.SETTLE,
        batch=0,
        attempt=0,
        begin=offset,
        end=offset,
        owner=parts.planner.owner,
        generation=0,
        topic_id=item.topic_id,
        spec=parts.planner.digest,
        reservation=0,
        deadline_ms=0,
    )


def _facts(
    parts: StartParts,
    item: Observed,
    view: LedgerView,
    started: Started,
    state: PartitionState,
    now_ms: int,
) -> tuple[Facts, str]:
    """What the replay table looks at, and why a replay is not possible if it is not."""
    record, why = item.record, ""
    if item.found is None:
        committed = Committed.ABSENT
    elif record is None:
        committed = Committed.INVALID
    else:
        committed = Committed.IN_DOUBT if record.in_doubt else Committed.SETTLED
    recorded = view.metadata(item.source)
    ledger = Ledger.ABSENT
    if recorded is not None:
        same = item.found is not None and recorded == item.found.metadata
        ledger = Ledger.AGREES if same else Ledger.DIFFERS
    log = Log.COVERS
    if item.log_begin > (record.begin if record else 0) and not item.cut:
        log = Log.BEGIN_LOST
    elif item.cut or item.stable_end < (record.end if record else 0):
        log = Log.END_LOST
    memory, executable, probe = Memory.HOLDS, Executable.YES, Probe.POSSIBLE
    digest = record.spec if record else ""
    spec = started.specs.get(digest, parts.planner.specs.today).spec
    refused, refusal = started.refused.get(digest, (None, ""))
    is_fresh = record is not None and _is_fresh(record)
    # Of a fresh record nobody has inserted anything: what is missing stands in its background.
    no_entry = _entry_missing(state, spec, None if is_fresh else refused)
    can_go = is_fresh and no_entry is None
    left = record is not None and (record.spec, item.source.topic) in started.unasked
    if committed is Committed.IN_DOUBT and record is not None and not (can_go or left):
        is_recorded = record.spec in started.specs
        if not is_recorded:
            executable, why = Executable.NO, "its load spec cannot be executed any more"
            why += f" ({refusal})" if refusal else ""
        # A replay looks again, freshly, before it is sent.
        forgotten = why_forgotten(state, spec, parts.windows.current(), now_ms, 0)
        if forgotten is None and parts.bears_outages and is_recorded and no_entry is None:
            forgotten = ""  # it waits until the window was read
        if forgotten != "":
            memory, why = Memory.OVERRUN, "ClickHouse may have forgotten its blocks"
            why += f" ({forgotten})" if forgotten else ""
        topic = item.source.topic
        no_probe = no_entry or (parts.why_no_probe(spec, topic, is_recorded) if why else None)
        if no_probe is not None and why:
            probe, why = Probe.IMPOSSIBLE, f"{why}, and it cannot be probed: {no_probe}"
    return Facts(committed, ledger, item.topic, log, memory, executable, probe), why


def _entry_missing(state: PartitionState, spec: LoadSpec, refused: LoadSpec | None) -> str | None:
    """Why a probe under this load spec would not look into all tables of the range.

    :param refused: the recorded load spec, if it cannot be executed.
    """
    topic = state.source.topic
    if not spec.tables_of(topic):
        return "no table entry takes this topic any more"
    gone = target_shards_gone(state.background, spec, topic, refused)
    return f"{gone[0]} is not configured any more" if gone else None


def _is_fresh(record: Record) -> bool:
    """A person's `probe` record that nobody was ever allowed to insert for: its tokens are
    new, so there is nothing that ClickHouse could have forgotten."""
    return record.kind is Kind.PROBE and record.deadline_ms == 0


def _fresh_probe(
    parts: StartParts, item: Observed, state: PartitionState, started: Started, now_ms: int
) -> Record:
    """Such a record under a load spec that can be executed, with the insert counters of now. One
    that does not say what is missing is of a range that is not loaded: all of it is missing, for
    each table entry of that load spec."""
    assert item.record is not None
    topic, whole = item.source.topic, (item.record.begin, item.record.end)
    named = started.specs.get(item.record.spec, parts.planner.specs.today)
    windows, rest = parts.windows.current(), state.background.rest
    rest = rest or {t.entry: (whole,) for t in named.spec.tables_of(topic)}
    background = replace(state.background, rest=rest)
    target_shards = Budget(windows, Holds(), [], now_ms).target_shards(named.spec, topic)
    state.background = from_now_on(background, target_shards, windows, now_ms)
    state.record = replace(item.record, spec=named.digest)
    return state.record
