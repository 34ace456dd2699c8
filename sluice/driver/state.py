"""What a loop knows of each of its partitions, and of inserts that may come late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sluice.core.budget import Hold, TargetShard
from sluice.core.claims import CLAIMS
from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.ledger import Background, InsertCounters
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, Range, TopicPartition
from sluice.core.receipts import Loaded, NeedsReservation, Outdated, TooHeavy
from sluice.core.records import Kind, Record
from sluice.core.values import value


@dataclass(frozen=True, slots=True)
class AsRecorded:
    """The record says everything: nothing is outstanding, or its range is out, or is to be sent."""


#: What a task may say of a range that its next record takes in.
Answer = Loaded | TooHeavy | NeedsReservation | Outdated


@value
class Answered:
    """A task said something of the range that the next record takes in.

    :param weight: about what its dead letters and parked messages take in a transaction.
    """

    answer: Answer
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ToProbe:
    """The range has to be looked for in its tables (R11).

    :param outdated: why its load spec is not executed as it is, where that is why.
    """

    outdated: Outdated | None = None


@dataclass(frozen=True, slots=True)
class Probing(ToProbe):
    """A probe runs."""


@dataclass(frozen=True, slots=True)
class Probed(ToProbe):
    """What the probe found is not recorded yet. It may well be what an earlier probe found, and is
    recorded again all the same: under insert counters of now, and under a load spec that can be
    executed.

    :param found: what is missing. Until it is recorded, the background stays that of the record.
    """

    found: Background = field(default_factory=Background)


@dataclass(frozen=True, slots=True)
class Stopped:
    """A person has to decide; the other partitions go on.

    :param is_looked_for: a probe that began before has not ended yet.
    """

    error: SluiceError
    is_looked_for: bool = False


Stage = AsRecorded | Answered | ToProbe | Probing | Probed | Stopped

#: What may follow what. Who is stopped stays so until it is taken over anew.
_FOLLOWS: Mapping[type[Stage], tuple[type[Stage], ...]] = {
    AsRecorded: (AsRecorded, Answered, ToProbe, Stopped),
    Answered: (AsRecorded, ToProbe, Stopped),
    ToProbe: (ToProbe, Probing, Stopped),
    Probing: (Probing, ToProbe, Probed, AsRecorded, Stopped),
    Probed: (AsRecorded, ToProbe, Stopped),
    Stopped: (Stopped,),
}


@dataclass(slots=True)
class PartitionState:
    """One partition of a loop. `record` is always what is committed in Kafka.

    :param epoch: of the leader that told `stable_end`.
    :param out: a task of this record may be running.
    :param stage: what is known of the range that its record does not say.
    :param late_insert_until_ms: until then a lost task of this range may still insert.
    :param waiting_since_ms: when the last stable offset was first seen beyond the record's end.
    :param behind_since_ms: since when its oldest message that is not settled is there: as far as
        that is known, no earlier. None: all are settled.
    :param whole_at_ms: when its range was recorded with all that was there; 0: with less.
    :param held_back_at: the last stable offset at the last look for open transactions.
    :param back_at_ms: when its task last came back; a repeat needs a younger look at the
        windows, since entries that are younger than the look may have pushed its block out.
    :param sent: some task was sent this range.
    :param untouched: nobody inserted anything of this range: each task that was ever sent it came
        back, and said that it refused all of it. False where that is not known.
    :param repeated: the last task that was sent it was not the first one.
    :param refusals: how often in a row its block was refused for its columns.
    :param short_since_ms: since when the log ends before the record's end.
    :param is_unrecorded: the background was changed, and the ledger does not know.
    :param insert_seconds: what a block of it may take, as learned from those that took longer than
        the configuration allows; 0: none did.
    :param alone: it leaves the bundle that it is recorded in, if any, and goes into no other one
        until it was loaded.
    :param error: why its range last came back unloaded.
    :param range_messages: how many offsets its range in doubt has, or the last one had.
    :param settled_at_ms: when a range of it was last settled; 0: none was by this driver.
    :param retiring: its topic is not configured any more: it is let go once it is settled.
    :param hands_to: the owner id that it goes to once it is settled (R25); "": it stays.
    :param held_until_ms: until then something of it that is settled may still be inserted.
    :param is_unseen: no leader has told of its log since it was taken over: nothing of it is sent.
    :param unverified: why it is not known whether the log of its new leader was cut; "": it is.
    """

    source: TopicPartition
    record: Record
    background: Background
    stable_end: int
    committed_at_ms: int
    epoch: int = EPOCH_UNKNOWN
    out: bool = False
    stage: Stage = AsRecorded()
    late_insert_until_ms: int = 0
    waiting_since_ms: int | None = None
    behind_since_ms: int | None = None
    whole_at_ms: int = 0
    bytes_per_message: float | None = None
    retry_at_ms: int = 0
    failures: int = 0
    back_at_ms: int = 0
    held_back_at: int = -1
    sent: bool = False
    untouched: bool = False
    repeated: bool = False
    refusals: int = 0
    short_since_ms: int | None = None
    is_unrecorded: bool = False
    insert_seconds: float = 0.0
    alone: bool = False
    error: SluiceError | None = None
    range_messages: int = 0
    settled_at_ms: int = 0
    retiring: bool = False
    hands_to: str = ""
    held_until_ms: int = 0
    is_unseen: bool = False
    unverified: str = ""

    @property
    def block_range(self) -> Range:
        """The recorded range."""
        return Range(self.source, self.record.begin, self.record.end)

    @property
    def settled(self) -> int:
        """Nothing below this offset is outstanding."""
        return self.record.begin

    @property
    def loaded(self) -> Loaded | None:
        """The report that the next record will settle."""
        # Asked for all the time: a `match` takes three times as long.
        answer = self.stage.answer if isinstance(self.stage, Answered) else None
        return answer if isinstance(answer, Loaded) else None

    @property
    def weight(self) -> int:
        """Of what the next record settles; see `Answered`."""
        return self.stage.weight if isinstance(self.stage, Answered) else 0

    @property
    def outdated(self) -> Outdated | None:
        """Why a task refused the recorded load spec; see `core.receipts.Outdated`."""
        match self.stage:
            case Answered(Outdated() as outdated) | ToProbe(outdated):
                return outdated
        return None

    @property
    def stopped(self) -> SluiceError | None:
        """Why this partition stopped, if it did."""
        return self.stage.error if isinstance(self.stage, Stopped) else None

    @property
    def may_be_given_a_range(self) -> bool:
        """Whether it has messages, and nothing under way but what the next record settles."""
        return (
            self.waiting_since_ms is not None
            and not (self.out or self.retiring or self.hands_to or self.stopped is not None)
            and (not self.record.in_doubt or self.loaded is not None)
        )

    def rests(self, now_ms: int) -> bool:
        """Whether its range is not sent again yet."""
        return self.is_unseen or now_ms < self.retry_at_ms

    def goes_to(self, now_ms: int) -> str:
        """The owner id that its next record hands it over to; "": to nobody."""
        return "" if self.record.in_doubt or self.is_held(now_ms) else self.hands_to

    def is_held(self, now_ms: int) -> bool:
        """Whether something of it that is settled may still be inserted."""
        return not has_expired(self.held_until_ms, now_ms)

    @property
    def claimed_in(self) -> str:
        """The run of the store of claims that its range is recorded under; "": none, or nobody
        knows."""
        return self.background.servers.get(CLAIMS, "")

    @property
    def late_insert(self) -> PossibleLateInsert:
        """What a lost task of its range may still try, once it is settled."""
        return PossibleLateInsert(
            self.background.insert_counters, self.late_insert_until_ms, self.claimed_in
        )

    @property
    def found(self) -> Background:
        """What the last probe found, recorded or not."""
        return self.stage.found if isinstance(self.stage, Probed) else self.background

    @property
    def has_to_be_probed(self) -> bool:
        """Until a probe has found what is missing nothing of the range is sent."""
        return isinstance(self.stage, ToProbe) and not isinstance(self.stage, Probed)

    def become(self, stage: Stage) -> None:
        """Go on to another stage; nothing else sets one."""
        before, after = type(self.stage), type(stage)
        assert after in _FOLLOWS[before], f"{self.source}: {before.__name__} to {after.__name__}"
        self.stage = stage

    def answered(self, answer: Answer) -> None:
        """A task came back with an answer for the next record."""
        letters = (*answer.dead_letters, *answer.copies) if isinstance(answer, Loaded) else ()
        self.become(Answered(answer, sum(letter.weight for letter in letters)))

    def probe(self) -> None:
        """Have the range looked for; why its load spec is not executed stays known."""
        self.become(ToProbe(self.outdated))

    def recorded(self, record: Record, background: Background, now_ms: int) -> None:
        """A record of this partition is committed: it has taken the last answer in. A range that
        has to be probed may only have been recorded again as it is."""
        if self.loaded is not None:
            self._settle_until(self.whole_at_ms or self.loaded.last_ms, now_ms)
        match self.stage:
            case Stopped():
                pass
            case Probing():
                self.become(Probing())
            case ToProbe() if self.has_to_be_probed or record.kind is not Kind.PROBE:
                # What a probe found is not in a record that only says again who owns the range.
                self.become(ToProbe())
            case _:
                self.become(AsRecorded())
        self.is_unrecorded = False
        self.record, self.background = record, background
        if record.in_doubt:
            self.range_messages = record.end - record.begin
        self.committed_at_ms = now_ms
        self.sent = self.sent and record.kind is not Kind.INTEND
        self.untouched = self.untouched or record.kind is Kind.INTEND
        self.waiting_since_ms = None
        self.see_end(EpochOffset(self.stable_end, self.epoch), now_ms)
        if record.kind is Kind.INTEND:
            self.whole_at_ms = now_ms if self.stable_end <= record.end else 0
        elif record.kind is Kind.SHORTEN:
            self.whole_at_ms = 0

    def _settle_until(self, at_ms: int | None, now_ms: int) -> None:
        """What was there at that time is settled: what is not came later. Producers set
        timestamps, and their clocks may be ahead."""
        if at_ms is not None and self.behind_since_ms is not None:
            self.behind_since_ms = min(at_ms, now_ms)

    @property
    def may_be_given_back(self) -> bool:
        """Whether its range may be planned anew: nobody inserted anything of it, and it was not
        probed, since a server may know an earlier block of it that it lacks (R7)."""
        return self.untouched and not self.record.rest

    def distrust_servers(self) -> None:
        """A table that is not replicated may know a block of this range that it does not have: it
        is not sent again under its token. That has to be in the ledger, for who comes next."""
        if self.record.in_doubt and self.background.servers:
            self.background = replace(self.background, servers={})
            self.is_unrecorded = True

    def knows(self, end: EpochOffset) -> bool:
        """Whether a last stable offset says nothing new."""
        return (
            end.offset == self.stable_end
            and end.epoch in (self.epoch, EPOCH_UNKNOWN)
            and end.offset >= self.record.end
            and self.short_since_ms is None
            and not self.is_unseen
            and not self.unverified
        )

    def see_end(self, end: EpochOffset, now_ms: int) -> None:
        """Take a fresh last stable offset in. In another epoch than before it may be less: nobody
        vouches any more for what was seen above it."""
        is_same = end.epoch in (self.epoch, EPOCH_UNKNOWN)
        self.stable_end = max(end.offset, self.stable_end if is_same else 0)
        if end.epoch != EPOCH_UNKNOWN:
            self.epoch = end.epoch
        if self.stable_end <= self.settled:
            self.behind_since_ms = None
        elif self.behind_since_ms is None:
            self.behind_since_ms = now_ms
        if self.stable_end <= self.record.end:
            self.waiting_since_ms = None
        elif self.waiting_since_ms is None:
            self.waiting_since_ms = now_ms

    def not_verified(self, why: str, end: int, now_ms: int) -> None:
        """A new leader tells of messages; whether they follow what is recorded is not known."""
        self.unverified = why
        if end > self.settled and self.behind_since_ms is None:
            self.behind_since_ms = now_ms

    def fail(self, error: SluiceError, retry_at_ms: int) -> None:
        """A range came back unloaded; it is sent again at `retry_at_ms`."""
        self.failures += 1
        self.error = error
        self.retry_at_ms = retry_at_ms

    def stop(self, error: SluiceError) -> None:
        """Stop this partition; the others go on."""
        self.become(Stopped(error, self.is_looked_for))

    @property
    def is_looked_for(self) -> bool:
        """Whether a probe of its range runs."""
        stage = self.stage
        return isinstance(stage, Probing) or (isinstance(stage, Stopped) and stage.is_looked_for)

    def clock_went_back(self, now_ms: int) -> None:
        """Nothing waits until the clock has caught up."""
        self.retry_at_ms = min(self.retry_at_ms, now_ms)
        self.committed_at_ms = min(self.committed_at_ms, now_ms)
        self.waiting_since_ms = None if self.waiting_since_ms is None else now_ms
        if self.behind_since_ms is not None:
            self.behind_since_ms = min(self.behind_since_ms, now_ms)
        self.whole_at_ms = min(self.whole_at_ms, now_ms)
        self.back_at_ms = min(self.back_at_ms, now_ms)

    def expect_late_insert(self) -> None:
        """A lost task of its range may insert as long as the lease is not over."""
        self.late_insert_until_ms = max(self.late_insert_until_ms, self.record.deadline_ms)

    def may_insert(self, now_ms: int) -> bool:
        """Whether anybody may still insert for the committed record."""
        return self.out or (
            self.record.in_doubt and not has_expired(self.record.deadline_ms, now_ms)
        )


@dataclass(frozen=True, slots=True)
class PossibleLateInsert:
    """A settled range of which a lost task may still try an insert.

    :param claimed_in: see `core.ledger.late_insert_entry`.
    """

    insert_counters: InsertCounters
    deadline_ms: int
    claimed_in: str = ""


@dataclass(slots=True)
class Holds:
    """Everything that holds on to a window: R10's bookkeeping for one connector."""

    late_inserts: list[PossibleLateInsert] = field(default_factory=list)
    #: By range, or by bundle, whose members are one hold: when it ended.
    ended: dict[Range | str, tuple[int, InsertCounters, int]] = field(default_factory=dict)

    def add_late_inserts(self, found: Iterable[PossibleLateInsert]) -> None:
        """Take in what a take-over found; what is known already counts once."""
        for late_insert in found:
            if late_insert not in self.late_inserts:
                self.late_inserts.append(late_insert)

    def end(self, state: PartitionState, now_ms: int) -> None:
        """The hold of a range that is loaded ended; its entries may be missing in insert counters
        that were read before. The members of a bundle are one hold."""
        record, insert_counters = state.record, state.background.insert_counters
        each = record.bundle or state.block_range
        self.ended.setdefault(each, (now_ms, insert_counters, record.reservation))

    def clock_went_back(self, now_ms: int) -> None:
        """What has ended counts as having ended now."""
        self.ended = {
            each: (min(at, now_ms), insert_counters, reservation)
            for each, (at, insert_counters, reservation) in self.ended.items()
        }

    def forget(self, now_ms: int, read_ms: Mapping[str, int]) -> None:
        """Drop what no longer counts: of what ended, what each window that it was held of was read
        after. So a window that cannot be read keeps nothing that is of other ones.

        :param read_ms: when the last reading of each window began, by its key.
        """
        self.late_inserts = [s for s in self.late_inserts if not has_expired(s.deadline_ms, now_ms)]
        self.ended = {
            each: (at, insert_counters, reservation)
            for each, (at, insert_counters, reservation) in self.ended.items()
            if any(at >= read_ms.get(key, at + 1) for key in insert_counters)
        }

    def ended_since(self, target_shard: TargetShard, read_started_ms: int) -> int:
        """Reservations that ended after an insert counter's reading began."""
        return sum(
            reservation
            for at, insert_counters, reservation in self.ended.values()
            if at >= read_started_ms and target_shard.key in insert_counters
        )

    def at(
        self, target_shard: TargetShard, states: list[PartitionState], now_ms: int
    ) -> list[Hold]:
        """The holds on one target shard's window."""
        key, bundles = target_shard.key, set[str]()
        held = [
            Hold(s.insert_counters[key], 0) for s in self.late_inserts if key in s.insert_counters
        ]
        for state in states:
            bundle = state.record.bundle
            if bundle in bundles:
                continue  # its members have one block, and one reservation
            if key in state.background.insert_counters and state.may_insert(now_ms):
                bundles |= {bundle} if bundle else set()
                held.append(Hold(state.background.insert_counters[key], state.record.reservation))
        return held


def target_shards_gone(
    background: Background, spec: LoadSpec, topic: str, recorded: LoadSpec | None = None
) -> list[str]:
    """Where a range in doubt may have blocks and a load spec does not insert, in words: table
    entries, and shards of those that it has.

    A probe under that load spec would not look there: rows of a table entry would count as loaded,
    rows in a shard as missing.

    :param recorded: the load spec of its record, if it is known: no window tells of an entry whose
        blocks are staged, or that is parked.
    """
    # What was inserted without being staged has no marker, and nobody looks for its rows (R21).
    shards = {
        table.entry: () if table.is_staged else table.shards for table in spec.tables_of(topic)
    }
    target_shards = sorted(
        {
            (target_shard.entry, target_shard.shard)
            for target_shard in map(TargetShard.of, background.insert_counters)
        }
    )
    held = {entry for entry, _ in target_shards} | set(background.rest)
    held |= {table.entry for table in recorded.tables_of(topic)} if recorded else set()
    gone = [f"table entry {entry}" for entry in sorted(held - shards.keys())]
    for entry, shard in target_shards:
        if entry in shards and shard not in (*shards[entry], CLAIMS):
            gone.append(f"shard {shard} of table entry {entry}")
    return gone
