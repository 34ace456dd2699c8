"""What the connector's loop needs from the world. The real parts and the simulator's provide it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice.claims.port import StoreFacts
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.comparing import Today
from sluice.core.budget import TargetShard, WindowState
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.decided import Decided
from sluice.core.errors import SluiceError
from sluice.core.fleet.view import View
from sluice.core.flights import INFLIGHT_INSERTS_MAX
from sluice.core.ledger import Commit, Rest, Stored
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import EpochOffset, Range, TopicPartition
from sluice.core.records import Record
from sluice.core.replicas import ReplicaHealth
from sluice.core.transaction_size import TransactionSize
from sluice.driver.effects import Wanted
from sluice.driver.parking import Parking
from sluice.driver.state import Holds, PartitionState
from sluice.driver.tracing import Tracing
from sluice.driver.unknown_schemas import PATIENCE_MS
from sluice.kafka.log import Cuts
from sluice.spark.jobs import Inbox
from sluice.worker.assignment import Job, TaskEnvironment


class IntentLog(Protocol):
    """Where records are committed; `sluice.kafka.recorder` for real.

    :param initialised: how often this owner's id was initialised, which undoes who fenced it.
    """

    @property
    def initialised(self) -> int: ...

    def differences(self, expected: Mapping[TopicPartition, Record]) -> dict[TopicPartition, str]:
        """Partitions whose committed record is not the expected one (R5)."""

    def record(self, commit: Commit, expected: Mapping[TopicPartition, Record]) -> None:
        """Commit one transaction; returns only when it is known to be committed.

        :raises InDoubtError: nobody knows, and the driver is to stop.
        """

    def adopt(self, sources: Iterable[TopicPartition]) -> None:
        """These are this owner's, too, although it has not recorded them here."""


class SourceOffsets(Protocol):
    """Facts about the topics; `sluice.kafka.log` for real."""

    def stable_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """Last stable offset of each partition, fresh.

        :param partial: leave out partitions that do not answer, unless none does.
        """

    def epoch_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> Mapping[TopicPartition, EpochOffset]:
        """The same, with the epoch of the leader that told. A mapping that was given out never
        changes; the same object may come again while nothing has changed."""

    def begins(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """First offset that each log still holds; missing as in `stable_ends`."""

    def leader_of(self, source: TopicPartition) -> int:
        """The id of the broker that leads a partition, -1 where it is not known."""

    def log_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """Ends of the logs, open transactions included; missing as in `stable_ends`."""

    def topics(self, names: Iterable[str], *, partial: bool = False) -> dict[str, tuple[str, int]]:
        """Short id and number of partitions of each topic, in one request.

        :param partial: leave out topics that do not exist.
        :raises TopicMissingError: one of them does not exist.
        """


class FindCuts(Protocol):
    """Finds logs that were cut; `sluice.kafka.log` for real."""

    def __call__(self, points: Mapping[TopicPartition, EpochOffset]) -> Cuts:
        """Which logs were cut below these points, and of which that cannot be told now.

        :raises SluiceError: it cannot be told of any.
        """


def no_cuts(points: Mapping[TopicPartition, EpochOffset]) -> Cuts:
    """Where no leader epochs are told."""
    return Cuts()


@dataclass(frozen=True, slots=True)
class ShardWindow:
    """A target shard's deduplication window as last read.

    :param read_started_ms: entries created later may be missing in the insert counter.
    :param seconds: how long the window remembers; None where time does not count.
    :param crowding: parts of the table's fullest ClickHouse partition, as a share of those from
        which the server delays inserts.
    :param server: of a table that is not replicated, the process that served it before the insert
        counter was read (`core.server_runs`); else "".
    :param is_partitioned: a block may take several entries.
    :param keeps_rows: a probe sees all that was inserted: the table loses no row by itself, and
        feeds no view.
    :param lost_until_ms: what was sent before may be forgotten whatever came after it.
    """

    state: WindowState
    read_started_ms: int
    seconds: int | None
    crowding: float = 0.0
    server: str = ""
    is_partitioned: bool = False
    keeps_rows: bool = True
    lost_until_ms: int = 0


class Windows(Protocol):
    """Knows the windows of all target shards; `sluice.driver.monitor` for real."""

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        """The last reading of each target shard; a target shard that never answered is missing. The
        targets of views are read together with the entry's own table, by which they are found: one
        that is missing is fed by no view. A mapping that was given out never changes."""

    def outage(self, target_shard: TargetShard) -> str | None:
        """Why a target shard's window cannot be read now, None if it can."""

    def refusal(self, target_shard: TargetShard) -> SluiceError | None:
        """The same where only a person can fix it, as for a table that is gone."""


class Jobs(Protocol):
    """Runs ranges; `sluice.spark.jobs` for real.

    :param slots: tasks that can run at once now; `slots_max`: as far as anybody knows, at most.
    """

    slots: int
    slots_max: int

    def submit(
        self, job: Job, environment: TaskEnvironment, finished: Callable[[Any], None]
    ) -> None:
        """Start a job; `finished` gets its JobResult, from another thread."""

    def cancel(self, job: Job) -> None:
        """End a job that does not come back; it then comes back as lost."""

    def warm(self, *, wait: bool = False) -> None:
        """Keep idle workers alive, or start them.

        :param wait: return when they are there.
        """


@dataclass(frozen=True, slots=True)
class ProbeFound:
    """What a probe found missing in each table entry, or why it could not tell.

    :param stored: of entries whose messages have several rows, those rows of `rest` that are not
        missing.
    """

    source: TopicPartition
    rest: Rest
    error: SluiceError | None = None
    stored: Stored = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchemaRead:
    """The tables were read.

    :param started_ms: what was altered later may be missing.
    :param today: what recorded load specs are compared with; None if nothing has changed since the
        reading before.
    :param spec: the load spec that new ranges are loaded under from now on.
    :param barred: why nothing can be loaded any more, by table entry.
    :param altered: the same of table entries that may be parked.
    :param asked: a person asked for it: what was refused may be tried again.
    :param version: of the configuration that it was read for.
    :param unread: shards that could not be read: what is said of tables there is from before.
    """

    started_ms: int
    today: Today | None
    spec: LoadSpec
    barred: Mapping[str, SluiceError]
    altered: Mapping[str, SluiceError] = field(default_factory=dict)
    asked: bool = False
    version: int = 0
    unread: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConfigurationRead:
    """What is loaded was applied anew, and everything that it needs was read.

    :param spec: the load spec that new ranges are loaded under from now on.
    :param parkable: entries that may be parked.
    :param reads: whether a topic is loaded.
    :param taken: called in the loop's thread when it counts.
    """

    version: int
    spec: LoadSpec
    parkable: Collection[str]
    reads: Callable[[str], bool]
    taken: Callable[[], None]


@dataclass(frozen=True, slots=True)
class ClusterRead:
    """The replicas have changed, or which of them are behind: from now on they are these."""

    access: ClickHouseAccess


@dataclass(frozen=True, slots=True)
class DecisionsRead:
    """A person has decided something: now it is this."""

    decided: Decided


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """A replica, and how it is doing."""

    shard: str
    url: str
    health: ReplicaHealth


class Replicas(Protocol):
    """Knows the replicas; `sluice.driver.watching` for real."""

    differs: str

    def current(self) -> Sequence[ReplicaState]:
        """Every replica as last read."""


class Topics(Protocol):
    """Topics that an expression takes; `sluice.driver.discovering` for real.

    :param left_out: of a fleet, topics that are to be loaded and cannot be, and why not.
    """

    left_out: Mapping[str, SluiceError]

    def is_named(self, topic: str) -> bool:
        """Whether the configuration names this topic, so that it must exist."""

    def find(self, known: Collection[str]) -> tuple[list[str], dict[str, SluiceError]]:
        """Topics to load that are not known yet, and others that must not be, with why not."""


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    """What was found of all ranges that were looked for together."""

    found: tuple[ProbeFound, ...]


@dataclass(frozen=True, slots=True)
class Sought:
    """A range that is looked for.

    :param known: of entries whose tables are not looked at, what is missing.
    :param stored: what an earlier probe found of messages that are there in part.
    :param in_parts: entries whose tables had ClickHouse partitions when blocks of the range may
        have come: of a message of several rows only some may be stored, whatever the table is
        now.
    :param may_be_parked: entries of which what is found missing may be parked. Who replays a parked
        message loads all of its rows, so their tables are looked at wherever rows can be told, also
        those that take everything again (R22).
    """

    block_range: Range
    record: Record
    known: Rest = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    in_parts: Collection[str] = ()
    may_be_parked: Collection[str] = ()


class Prober(Protocol):
    """Looks before it loads (R11); `sluice.driver.probing` for real."""

    def submit(
        self,
        sought: Sequence[Sought],
        spec: LoadSpec,
        since_ms: int,
        finished: Callable[[ProbeEnded], None],
    ) -> None:
        """Look which offsets of ranges of one topic are missing; their leases are known to be over.

        :param since_ms: nothing of the ranges, or of what a probe before left of them, was inserted
            before then.
        :param finished: called once, with what was found of each of them.
        """


class Claims(Protocol):
    """Keeps an eye on the store of claims; `sluice.driver.claims` for real.

    :param facts: how the store is doing; None before it was asked.
    """

    facts: StoreFacts | None

    def see(
        self,
        states: Iterable[PartitionState],
        holds: Holds,
        spec_of: Callable[[PartitionState], LoadSpec],
        now_ms: int,
    ) -> None:
        """Look for what may still be inserted under claims that are lost.

        :param states: all partitions of a loop; `holds`: what else holds on to windows.
        :param spec_of: under which a range in doubt is sent again.
        """


class Staging(Protocol):
    """Looks after staging tables; `sluice.driver.staging` for real."""

    def see(self, states: Iterable[PartitionState], now_ms: int) -> None:
        """What is settled by now, of all partitions of a loop."""

    def use(self, access: ClickHouseAccess) -> None:
        """These are the servers from now on."""


class Fleet(Protocol):
    """Knows who else runs this connector, and tells them of this driver; `sluice.driver.fleet` for
    real.

    :param is_fresh: surely nobody has taken this driver for dead.
    """

    @property
    def is_fresh(self) -> bool: ...

    def view(self) -> View:
        """What is known of all members now; never waits."""

    def see(
        self,
        states: Mapping[TopicPartition, PartitionState],
        holds: Holds,
        rows: int,
        now_ms: int,
    ) -> None:
        """A round begins.

        :param states: all partitions of the loop; `rows`: that it has settled.
        :raises OwnerChangedError: somebody has written this id off.
        """

    def begin_again(self) -> None:
        """This driver's id was initialised again: who had fenced it before may have written it off,
        so nothing more is reserved before all others have said that they count it (R24)."""

    def took(self, read: Any) -> None:
        """What a look found, a `SharesRead`, is among the loop's states and holds."""


class Shares(Protocol):
    """Finds what came to this owner, and takes over what is left by others;
    `sluice.driver.inheriting` for real."""

    def look(
        self,
        held: Mapping[TopicPartition, Record | None],
        view: View,
        batch: int,
        finished: Callable[[Any], None],
    ) -> None:
        """Look at all partitions, in the background.

        :param held: all of the loop's partitions; of those that stopped, the last record.
        :param batch: number of the last batch that is committed.
        :param finished: gets a SharesRead, once.
        """


class Clock(Protocol):
    """Wall time."""

    def __call__(self) -> int:
        """Milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a loop sees of the world.

    :param read_schema: asks for a `SchemaRead`, which comes by the inbox; readings come by
        themselves, too. None where nobody reads.
    :param topics: finds topics that an expression takes; None where all have names.
    :param replicas: how they are doing, for metrics; None where nobody looks.
    :param want_columns: asks for columns of new fields; a `SchemaRead` tells of them.
    :param inflight_inserts_max: ranges in flight for each replica of a table.
    :param find_cuts: looks after logs whose leader has changed.
    :param claims: None where no entry deduplicates.
    :param schema_patience_ms: see `unknown_schemas`.
    :param staging: None where nobody looks after staging tables.
    :param decided: what is decided at the start; a `DecisionsRead` tells of changes.
    :param tracing: None where nobody wants traces.
    :param fleet: None: this driver is no member of one; else the `windows` are the fleet's, too.
    :param shares: None: nobody shares the partitions with this driver.
    :param version: of the configuration at the start.
    :param read_new: asks for what the ledger says of partitions that the loop does not have; a
        `NewPartitionsRead` tells. Where there are `shares`, others have them.
    :param transaction_size: what one transaction may carry; the `log` teaches it.
    """

    log: IntentLog
    offsets: SourceOffsets
    windows: Windows
    jobs: Jobs
    prober: Prober
    now_ms: Clock
    inbox: Inbox
    read_schema: Callable[[], None] | None = None
    dead_letter_limit: DeadLetterLimit | None = None
    parking: Parking = field(default_factory=Parking)
    topics: Topics | None = None
    want_columns: Callable[[Wanted], None] | None = None
    inflight_inserts_max: int = INFLIGHT_INSERTS_MAX
    claims: Claims | None = None
    replicas: Replicas | None = None
    find_cuts: FindCuts = no_cuts
    schema_patience_ms: int = PATIENCE_MS
    staging: Staging | None = None
    decided: Decided = field(default_factory=Decided)
    tracing: Tracing | None = None
    fleet: Fleet | None = None
    shares: Shares | None = None
    version: int = 0
    read_new: Callable[[list[TopicPartition]], None] | None = None
    transaction_size: TransactionSize = field(default_factory=TransactionSize)
