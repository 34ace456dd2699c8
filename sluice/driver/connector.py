"""One connector, from its first contact to its last settle, with all that its loop is made of."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property, partial
from socket import gethostname
from typing import TypeVar

from sluice import __version__
from sluice.claims.stores import open_store
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.comparing import why_not_executable
from sluice.config import Configuration, ConnectorConfiguration, FleetConfiguration
from sluice.config.applied import document_of, under
from sluice.core.claim_notes import SETTLE_MS, Me
from sluice.core.decided import Decided, Version
from sluice.core.errors import (
    ConfigurationError,
    OwnerChangedError,
    SluiceError,
    TerminalError,
    TransientError,
)
from sluice.core.fleet.placement import is_incarnation, owner_id
from sluice.core.fleet.records import Report
from sluice.core.ledger import LedgerView
from sluice.core.load_spec import SOURCE, LoadSpec
from sluice.core.planning import Limits
from sluice.core.ranges import TopicPartition
from sluice.core.transaction_size import TransactionSize
from sluice.driver.applying import (
    Applying,
    answer,
    newest_version,
    refuse_other_tables,
    refuse_what_members_cannot,
    refuse_what_needs_a_start,
)
from sluice.driver.background import Background
from sluice.driver.beginning import ask_group
from sluice.driver.claims import ClaimsKeeper, why_other_claims
from sluice.driver.claims_rebuild import TableLooks, rebuild
from sluice.driver.deciding import DecisionWatch
from sluice.driver.discovering import TopicFinder, partitions_of, retired, topics_to_load
from sluice.driver.fleet import FleetMember, boot_id, refuse_beside_fleet, why_alone
from sluice.driver.inheriting import Heir
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.loop import ConnectorLoop
from sluice.driver.monitor import WindowMonitor
from sluice.driver.observing import NewPartitions
from sluice.driver.parking import Parking
from sluice.driver.ports import (
    ClusterRead,
    ConfigurationRead,
    DecisionsRead,
    LoopParts,
    Windows,
)
from sluice.driver.probing import ClickHouseProber, why_no_probe_now
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.redirecting import PartitionsDecided, decide
from sluice.driver.refreshing import SchemaReader
from sluice.driver.specs import (
    access_of,
    kafka_access,
    read_spec,
    read_today,
    registry_access,
    store_access,
)
from sluice.driver.staging import StagingCollector
from sluice.driver.start import (
    ReadAhead,
    Started,
    StartParts,
    read_ahead,
    spec_needed,
    take_over,
)
from sluice.driver.state import Holds
from sluice.driver.topology import resolved
from sluice.driver.tracing import Tracing
from sluice.driver.unknown_schemas import PATIENCE_MS
from sluice.driver.watching import ReplicaWatch
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.errors import PASSING
from sluice.kafka.ledger import read_on, read_view
from sluice.kafka.log import SourceLog, find_cuts
from sluice.kafka.readers import make_ends
from sluice.kafka.recorder import Recorder
from sluice.kafka.topics import ensure_own_topics, message_bytes_max
from sluice.kafka.transactions import RecorderNames
from sluice.machine.clock import now_ms
from sluice.machine.collector import relaxed_collector
from sluice.spark.jobs import Inbox, SparkGoneError, SparkJobs
from sluice.worker.assignment import TaskEnvironment

_logger = logging.getLogger("sluice.pipeline")

_RETRY_SECONDS_MAX = 30.0
#: A transaction that its driver leaves open holds up whoever reads the ledger behind it: for a
#: start that is rare, and in a fleet for each partition that changes hands.
TRANSACTION_MS, TRANSACTION_MS_SHARED = 60_000, 15_000

_Made = TypeVar("_Made")


def patiently(
    what: str,
    attempt: Callable[[], _Made],
    stopping: threading.Event,
    failed: Callable[[SluiceError], None] = lambda error: None,
    passing: tuple[type[SluiceError], ...] = (TransientError,),
) -> _Made:
    """Repeat what fails transiently, without end, until asked to stop.

    :param what: for the log: who is doing what.
    :param failed: called with each failure.
    :param passing: the errors that are waited for.
    :raises SluiceError: it failed with one of these, and is to stop; or with another one.
    """
    seconds = 0.5
    while True:
        try:
            return attempt()
        except passing as error:
            if stopping.is_set():
                raise
            failed(error)
            _logger.warning("%s (next in %.1f s): %s. Try: %s", what, seconds, error, error.hint)
            stopping.wait(seconds)
            seconds = min(seconds * 2, _RETRY_SECONDS_MAX)


DONE, BROKEN, CONFIGURATION, IN_DOUBT, OWNER_CHANGED = 0, 1, 2, 3, 4


class ConnectorRun:
    """One connector from its first contact to its last settle."""

    def __init__(
        self,
        configuration: Configuration,
        connector: ConnectorConfiguration,
        jobs: Future[SparkJobs],
        stopping: threading.Event,
        examine: Callable[[Configuration, str], None],
        tracing: Tracing | None = None,
    ) -> None:
        self.connector, self.tracing = connector, tracing
        self.until_caught_up = False
        self.status = DONE
        self.has_lost_spark = False
        #: What it is doing before it has a loop, and why that, or all of it, has failed.
        self.doing = "waiting for its turn"
        self.error: SluiceError | None = None
        self.is_ended = False
        #: Kept where it starts anew since a transaction that was too heavy fenced it.
        self.transaction_size = TransactionSize()
        self.loop: ConnectorLoop | None = None
        #: Where the driver is a member of a fleet, once it has looked who else is.
        self.fleet: FleetMember | None = None
        #: What its loops have heard of what persons decide; None: it had none yet.
        self.decided: Decided | None = None
        #: By the file, and as it is loaded: by what was applied last.
        self.file, self.configuration = configuration, configuration
        self.version: Version | None = None
        self._jobs = jobs
        self.stopping = stopping
        self._examine = examine
        self._give_up = threading.Event()
        self._assembly: _Assembly | None = None
        self._passing: tuple[type[SluiceError], ...] = (TransientError,)

    def progress(self) -> ConnectorLoop | None:
        """The loop, once there is one."""
        return self.loop

    def refresh(self) -> None:
        """Read the tables' columns, and look for topics, soon."""
        if self.loop is not None:
            self.loop.look_at_topics()
        if self._assembly is not None:
            self._assembly.refresh()

    @property
    def owner(self) -> str:
        """The owner id of its records; "" while it has no loop."""
        assembled = self._assembly
        return "" if assembled is None or self.loop is None else assembled.names.owner

    def decide(
        self, sources: tuple[TopicPartition, ...], record: Callable[[Recorder], None]
    ) -> None:
        """Have the loop record what a person decided, in its own thread, and go on from there; see
        `redirecting.decide`."""
        assembled = self._assembly
        if assembled is None or self.loop is None or self.is_ended:
            raise TransientError(f"connector {self.connector.name} runs no loop now")
        decide(assembled.inbox, PartitionsDecided(sources, partial(record, assembled.recorder)))

    def lose_spark(self, error: SparkGoneError) -> None:
        """Spark can run nothing any more; called from any thread. Whoever is to stop settles what
        is loaded without it."""
        if self.stopping.is_set():
            return
        self.has_lost_spark = True
        if self._assembly is not None:
            self._assembly.inbox.put(error)

    def give_up(self) -> None:
        """The time to settle is over: stop waiting for a Kafka that does not answer."""
        self._give_up.set()

    def run(self, until_caught_up: bool, grace_seconds: float) -> None:
        """Run until done or stopped; sets `status`."""
        try:
            self._run(until_caught_up, grace_seconds)
        except SluiceError as error:
            self.error = error
            _logger.error("connector %s: %s. Try: %s", self.connector.name, error, error.hint)
            self.status = self._status_of(error)
        except Exception:
            _logger.exception("connector %s ends on a bug", self.connector.name)
            self.status = BROKEN
        finally:
            self.is_ended = True

    def _refuse_beside_fleet(self) -> None:
        access = kafka_access(self.configuration, self.connector.name)
        refuse_beside_fleet(access, self.configuration.fleet_topic, self.stopping)

    def _status_of(self, error: SluiceError) -> int:
        """The status that it ends with."""
        if isinstance(error, OwnerChangedError):
            return OWNER_CHANGED
        if isinstance(error, ConfigurationError):
            return CONFIGURATION
        doubtful = self.loop is not None and self.loop.in_doubt()
        # Without Spark no promise is broken: the next start goes on.
        goes_on = doubtful or self.stopping.is_set() or isinstance(error, SparkGoneError)
        return IN_DOUBT if goes_on else BROKEN

    def _run(self, until_caught_up: bool, grace_seconds: float) -> None:
        self._patiently("reading what was applied", self._begin_under_version)
        name = self.connector.name
        self._patiently("being examined", lambda: self._examine(self.configuration, name))
        if self.configuration.fleet is None:
            self._patiently("looking for a fleet", self._refuse_beside_fleet)
        self.until_caught_up = until_caught_up
        while True:
            try:
                self._run_once(until_caught_up, grace_seconds)
                return
            except OwnerChangedError as error:
                if not self._goes_on_without(error):
                    raise
                _logger.warning(
                    "connector %s: %s; it goes on without what it had", self.connector.name, error
                )

    def _begin_under_version(self) -> None:
        """What was applied counts, and not what the file says by now."""
        name = self.connector.name
        version = newest_version(kafka_access(self.file, name), self.file.decisions_topic)
        if version is None:
            return
        self.use(version, under(self.file, version.document, version.name, os.environ))
        _logger.info("connector %s loads by %s", name, version)
        if version.document != document_of(self.file):
            _logger.warning(
                "%s has other tables or topics than %s, which counts. Try: `sluice apply %s` "
                "shows the difference, and applies the file",
                *(self.file.path, version, self.file.path),
            )

    def use(self, version: Version, configuration: Configuration) -> None:
        """This is loaded from now on."""
        self.version, self.configuration = version, configuration
        self.connector = configuration.connector(self.connector.name)

    @property
    def version_number(self) -> int:
        """0: it goes by the file."""
        return self.version.number if self.version else 0

    def _goes_on_without(self, error: OwnerChangedError) -> bool:
        """Whether it starts anew in this process, under another id and without partitions: a member
        of its fleet has taken it for dead (R25). A later start of the own name takes its place."""
        fleet, loop = self.configuration.fleet, self.loop
        if fleet is None or self.fleet is None or self.fleet.why_alone:
            return False
        # Who was fenced may not have read by whom.
        if self.fleet.later or is_incarnation(error.owner, fleet.name(gethostname())):
            return False
        if loop is not None:
            loop.abandon()
        self.loop = None
        self._passing = PASSING  # it was let in before
        return not self.stopping.is_set()

    def _run_once(self, until_caught_up: bool, grace_seconds: float) -> None:
        assembled = self._assembly = self._patiently("starting", lambda: _Assembly(self))
        try:
            self._patiently("looking for other drivers", lambda: _join_fleet(assembled))
            loop = self.loop = self._patiently("taking over", assembled.loop)
            targets = None
            if until_caught_up:
                going = [s.source for s in loop.states.values() if not s.retiring]
                targets = self._patiently(
                    "reading last stable offsets", lambda: assembled.log.stable_ends(going)
                )
            loop.stopping = self.stopping
            with relaxed_collector():
                loop.run(targets, grace_seconds)
            stopped = [s for s in loop.states.values() if s.stopped is not None]
            doubtful = [s for s in loop.in_doubt() if s.stopped is None]
            # What is frozen is not caught up when the rest is.
            frozen = (
                targets is not None
                and not self.stopping.is_set()
                and not all(
                    s.stopped is not None or s.settled >= targets.get(s.source, 0)
                    for s in loop.states.values()
                )
            )
            goes_on = doubtful or self.has_lost_spark or frozen
            self.status = IN_DOUBT if goes_on else BROKEN if stopped else DONE
            for state in doubtful:
                _logger.warning("%s stays in doubt", state.block_range)
            if self.fleet is not None and not (loop.states or loop.holds.late_inserts):
                self.fleet.stop(is_over=True)
        finally:
            assembled.close()

    def _patiently(self, action: str, attempt: Callable[[], _Made]) -> _Made:
        what = f"connector {self.connector.name} is {action}"
        self.doing, self.error = action, None
        return patiently(what, attempt, self.stopping, self._failed, self._passing)

    def _failed(self, error: SluiceError) -> None:
        self.error = error


def _read_leases(
    access: KafkaAccess,
    topic: str,
    lease_ms: int,
    sources: list[TopicPartition],
    uncommitted: list[TopicPartition],
    *,
    is_stable: bool,
) -> LedgerView:
    """See `read_view`; with all that may be inserted late."""
    since_ms = now_ms() - 2 * lease_ms
    return read_view(
        *(access, topic, sources, spec_needed, since_ms, uncommitted), is_stable=is_stable
    )


class _Assembly:
    """The parts of one connector's loop, made once ClickHouse and Kafka answer."""

    def __init__(self, run: ConnectorRun) -> None:
        connector = run.connector
        #: With the replicas of each shard, as they are by now.
        self.configuration = configuration = resolved(run.configuration)
        self.run = run
        self.schema: SchemaReader | None = None
        self.watch: ReplicaWatch | None = None
        self.decisions: DecisionWatch | None = None
        self.fleet: FleetMember | None = None
        self.applying, self.inbox = _Applied(self), Inbox()
        self.kafka = kafka_access(configuration, connector.name)
        self.clickhouse = access_of(configuration, connector.name).patient()
        spec = read_spec(configuration, connector.name)
        self.admin = make_admin(self.kafka)
        self.ends = make_ends(self.kafka)
        self.log = SourceLog(self.admin, self.ends)
        #: Why it has all partitions of the connector, or none; "": its fleet shares them.
        self.why_alone = why_alone(
            configuration,
            lambda: read_today(configuration, [spec]).tokens,
            until_caught_up=run.until_caught_up,
        )
        is_shared = configuration.fleet is not None and not self.why_alone
        self.specs = LoadSpecs(spec, is_recorded=not is_shared)
        self.heir: Heir | None = None
        self.new_partitions = NewPartitions(
            lambda sources: read_ahead(self._start_parts(self.recorder, self.log), sources),
            *(self._take_over_new, self.inbox),
        )
        ensure_own_topics(self.admin, configuration.own_topics)
        bytes_max = message_bytes_max(self.admin, configuration.dead_letters_topic)
        self.names = RecorderNames(
            group=configuration.group(connector.name),
            ledger_topic=configuration.ledger_topic,
            dead_letter_topic=configuration.dead_letters_topic,
            owner=_owner_id(configuration),
            dead_letter_bytes_max=min(bytes_max, 15 * 1024 * 1024),
            parking_topic=configuration.parking_topic,
            duplicates_topic=(
                configuration.duplicates_topic if configuration.keeps_duplicates else ""
            ),
            transaction_timeout_ms=TRANSACTION_MS_SHARED if is_shared else TRANSACTION_MS,
            is_shared=is_shared,
            size=run.transaction_size,
        )
        self.monitor = WindowMonitor(self.clickhouse, self.specs, now_ms)
        self.monitor.start()
        failure = self.monitor.failure()
        if failure is not None:
            self.monitor.stop()
            raise failure
        lease_ms = int(configuration.batch.lease_seconds * 1000)
        self.staging = StagingCollector(self.clickhouse, spec, lease_ms, now_ms)
        self.claims = self._claims_keeper()
        if self.claims is not None:
            self.claims.start()
        self.recorder = Recorder(self.kafka, self.names, now_ms=now_ms, stop=run._give_up)
        self.prober = ClickHouseProber(self.clickhouse, configuration.pipeline, self.kafka)
        self.planner = RecordPlanner(
            specs=self.specs,
            owner=self.names.owner,
            limits=Limits(
                configuration.batch.max_messages,
                configuration.batch.max_bytes,
                int(configuration.batch.max_delay_seconds * 1000),
            ),
            lease_seconds=configuration.batch.lease_seconds,
            insert_seconds=configuration.clickhouse.insert_timeout_seconds,
            members_max=configuration.batch.max_partitions,
        )

    def _claims_keeper(self) -> ClaimsKeeper | None:
        """Where events are deduplicated."""
        found = self.configuration.deduplication
        if found is None:
            return None
        access, lease = store_access(found), self.configuration.batch.lease_seconds
        name, looks = self.run.connector.name, TableLooks()
        return ClaimsKeeper(
            self.monitor,
            partial(open_store, access),
            self.specs,
            Me(f"{self.configuration.pipeline}/{name}", self.names.owner, now_ms()),
            int(lease * 1000),
            now_ms,
            lambda *asked: rebuild(self.configuration.path, self.clickhouse, *asked),
            lambda table: looks.has_rows(self.clickhouse, table),
            0 if access.is_local else SETTLE_MS,
        )

    def _watch(self, spec: LoadSpec) -> None:
        """Watch the windows of a recorded load spec that is being taken over.

        :raises TerminalError: it deduplicates, and no store of claims is configured.
        """
        self.monitor.watch(spec)
        self.staging.watch(spec)
        if self.claims is None and any(table.deduplicate is not None for table in spec.tables):
            raise TerminalError(
                f"load spec {spec.digest()} deduplicates, and no store of claims is configured",
                "Name the store that it was loaded with in [deduplication] store, until nothing "
                "that is recorded under it is in doubt.",
            )

    def close(self) -> None:
        """End everything that belongs to this connector."""
        threads: tuple[Background | None, ...] = (
            *(self.claims, self.schema, self.watch, self.decisions),
            *(self.fleet, self.monitor, self.staging),
        )
        for thread in threads:
            if thread is not None:
                thread.stop()
        self.applying.stop()
        if self.heir is not None:
            self.heir.close()
        self.new_partitions.close()
        self.prober.close()
        self.recorder.close()
        if self.ends is not None:
            self.ends.close()

    def refresh(self) -> None:
        """Read the tables' columns, and look after the replicas, soon."""
        if self.schema is not None:
            self.schema.ask()
        if self.watch is not None:
            self.watch.ask()

    def _use(self, configuration: Configuration, access: ClickHouseAccess) -> None:
        """Replicas came or went, or are behind; called from the watch's thread."""
        if access.shards != self.clickhouse.shards:
            self.monitor.use(access)
            self.prober.use(access)
            if self.schema is not None:
                self.schema.use(configuration, access)
        self.configuration = replace(self.configuration, clickhouse=configuration.clickhouse)
        self.clickhouse = access
        self.inbox.put(ClusterRead(access))

    def _hear(self, read: DecisionsRead) -> None:
        """A person has decided something; called from the watch's thread."""
        self.run.decided = read.decided
        self.monitor.bear(read.decided.frozen)
        self.inbox.put(read)
        self.applying.hear(read.decided)

    def loop(self) -> ConnectorLoop:
        """Take the connector's partitions over and build the loop on them. A member of a fleet
        begins without any."""
        fleet = self.fleet
        started = self._take_over_all() if fleet is None or fleet.why_alone else Started()
        self.specs.join(started.specs.values(), started.unexecutable)
        configuration = self.configuration
        name = self.run.connector.name
        self.schema = SchemaReader(
            *(configuration, self.specs, now_ms, self._examine, self.inbox.put),
            self.run.version_number,
        )
        self.watch = ReplicaWatch(configuration, name, self.specs, now_ms, self._use)
        run, topic = self.run, configuration.decisions_topic
        hearing = self._hear, run.stopping.set, run.refresh, _member_name(configuration)
        decisions = DecisionWatch(self.kafka, topic, *hearing, run.decided)
        decided, self.decisions = decisions.start(), decisions
        run.decided = decided
        self.monitor.bear(decided.frozen)
        windows: Windows = self.claims or self.monitor
        jobs = self.run._jobs.result()
        if fleet is not None:
            windows = fleet.begin(windows, self.planner, jobs)
        loop_parts = LoopParts(
            log=self.recorder,
            offsets=self.log,
            windows=windows,
            claims=self.claims,
            staging=self.staging,
            jobs=jobs,
            prober=self.prober,
            now_ms=now_ms,
            inbox=self.inbox,
            read_schema=self.schema.request,
            want_columns=self.schema.want,
            dead_letter_limit=configuration.dead_letter_limit,
            inflight_inserts_max=configuration.clickhouse.max_inflight_inserts,
            parking=Parking(configuration.parkable),
            topics=self.applying.finder,
            replicas=self.watch,
            find_cuts=partial(find_cuts, self.kafka),
            schema_patience_ms=_patience_ms(configuration),
            decided=decided,
            tracing=self.run.tracing,
            fleet=fleet,
            shares=None if fleet is None or fleet.why_alone else self._make_heir(fleet),
            version=self.run.version_number,
            read_new=self.new_partitions.ask,
            transaction_size=self.names.size,
        )
        self.applying.hear(decided)
        self.schema.start()
        self.watch.start()
        self.staging.start()
        return ConnectorLoop(
            name=f"{configuration.pipeline}.{name}",
            parts=loop_parts,
            planner=self.planner,
            environment=_environment(self),
            states=started.states,
            holds=Holds(late_inserts=started.late_inserts),
            batch=started.batch,
            take_over_new=self._take_over_new,
            recorded=started.recorded,
        )

    def _examine(self) -> None:
        self.run._examine(self.run.configuration, self.run.connector.name)

    def _take_over_all(self) -> Started:
        known = self.configuration, self.run.connector.name, self.log, self._told_apart
        topics = self.log.topics(topics_to_load(*known))
        sources = partitions_of(topics)
        parts = self._start_parts(self.recorder, self.log)
        started = take_over(parts, sources)
        if self.run.until_caught_up and len(started.states) < len(sources):
            raise TransientError("no leader tells of a partition that was never loaded")
        leaving = retired(self.recorder, self.log, topics, started.elsewhere)
        if leaving:
            started.add(take_over(parts, leaving, started.batch, retiring=True))
        return started

    def _take_over_new(
        self, sources: list[TopicPartition], ahead: ReadAhead | None = None
    ) -> Started:
        assert self.run.loop is not None
        parts = self._start_parts(self.recorder, self.log)
        return take_over(parts, sources, self.run.loop.batch, ahead=ahead)

    def _make_heir(self, fleet: FleetMember) -> Heir:
        """What looks beside the loop has clients of its own."""
        stop = self.run._give_up
        recorder = Recorder(self.kafka, self.names, now_ms=now_ms, stop=stop, looks_often=True)
        log, topic = SourceLog(self.admin, None), self.configuration.ledger_topic
        finder = self.applying.finder
        self.heir = Heir(
            self._start_parts(recorder, log, bears_outages=True),
            lambda s: read_view(self.kafka, topic, s, spec_needed, None, is_stable=True),
            finder.partitions,
            lambda: retired(recorder, log, {s.topic for s in finder.partitions()}, ()),
            fleet.announce,
        )
        return self.heir

    def _start_parts(
        self, recorder: Recorder, log: SourceLog, *, bears_outages: bool = False
    ) -> StartParts:
        topic = self.configuration.ledger_topic
        lease_ms = int(self.configuration.batch.lease_seconds * 1000)
        read = partial(_read_leases, self.kafka, topic, lease_ms)
        return StartParts(
            recorder=recorder,
            log=log,
            read_ledger=partial(read, is_stable=False),
            read_stable=partial(read, is_stable=True),
            read_on=partial(read_on, self.kafka, topic),
            windows=self.claims or self.monitor,
            planner=self.planner,
            watch=self._watch,
            why_not_executable=partial(self._why_not_executable, bears_outages=bears_outages),
            why_no_probe=self._why_no_probe,
            start=self.run.connector.start,
            ask_group=lambda group, sources: ask_group(self.kafka, group, sources),
            now_ms=now_ms,
            find_cuts=partial(find_cuts, self.kafka),
            bears_outages=bears_outages,
        )

    def _why_not_executable(
        self, recorded: LoadSpec, topic: str, *, bears_outages: bool
    ) -> str | None:
        other = why_other_claims(recorded, self.specs.today.spec, topic)
        if other is not None:
            return other
        # Shards that the topic does not need may be away.
        of_topic = replace(recorded, tables=recorded.tables_of(topic))
        today = read_today(self.configuration, [of_topic if bears_outages else recorded])
        return why_not_executable(recorded, today, topic)

    @property
    def _told_apart(self) -> frozenset[str]:
        """The tables whose rows say who loaded them."""
        today = self.specs.today.spec
        return frozenset(table.target for table in today.tables if SOURCE in table.lineage)

    def _why_no_probe(self, spec: LoadSpec, topic: str, is_recorded: bool) -> str | None:
        return why_no_probe_now(self.clickhouse, spec, topic, is_recorded=is_recorded)


class _Applied:
    """What is loaded, of one assembly: what takes up another version of it, and hears of one."""

    def __init__(self, assembly: _Assembly) -> None:
        self._assembly = assembly
        self._lock = threading.Lock()
        self._applying: Applying | None = None

    @cached_property
    def finder(self) -> TopicFinder:
        """Finds topics: where the driver shares partitions its heir asks it, else its loop."""
        found, run = self._assembly, self._assembly.run
        return TopicFinder(*(found.configuration, run.connector.name, found.log, found._told_apart))

    def hear(self, decided: Decided) -> None:
        """What is decided now; called from any thread."""
        with self._lock:
            if self._applying is None:
                run, owner = self._assembly.run, self._assembly.names.owner
                self._applying = Applying(
                    run.version,
                    self._prepare,
                    lambda number, error: answer(
                        *(run.file, run.connector.name, owner, now_ms(), number, error)
                    ),
                )
        self._applying.hear(decided)

    def stop(self) -> None:
        """End its thread."""
        if self._applying is not None:
            self._applying.stop()

    def _prepare(self, version: Version) -> None:
        """Read what a version needs; then the loop takes it up."""
        assembly, run = self._assembly, self._assembly.run
        name = run.connector.name
        applied = under(run.file, version.document, version.name, os.environ)
        refuse_what_needs_a_start(run.configuration, applied)
        configuration = resolved(applied)
        spec = read_spec(configuration, name)
        if assembly.names.is_shared:
            refuse_what_members_cannot(applied, lambda: read_today(configuration, [spec]).tokens)
        refuse_other_tables(assembly.monitor.other_tables(spec))
        ensure_own_topics(assembly.admin, configuration.own_topics)
        assembly.monitor.watch(spec)
        assembly.staging.watch(spec)
        taken = partial(self._taken, version, applied, spec)
        reads = partial(configuration.reads, name)
        assembly.inbox.put(
            ConfigurationRead(version.number, spec, configuration.parkable, reads, taken)
        )

    def _taken(self, version: Version, configuration: Configuration, spec: LoadSpec) -> None:
        """The loop goes by it from now on; called from its thread.

        :param configuration: without replicas where servers tell them: each start asks them anew.
        """
        assembly = self._assembly
        _logger.warning("connector %s loads by %s", assembly.run.connector.name, version)
        assembly.run.use(version, configuration)
        assembly.specs.arrived(spec)
        clickhouse = assembly.configuration.clickhouse
        assembly.configuration = replace(configuration, clickhouse=clickhouse)
        self.finder.use(configuration, assembly._told_apart)
        if assembly.schema is not None:
            assembly.schema.change(configuration, spec, version.number)
        assert self._applying is not None
        self._applying.taken(version.number)


def _patience_ms(configuration: Configuration) -> int:
    """How long a schema that the registry does not know is waited for."""
    registry = configuration.registry
    return PATIENCE_MS if registry is None else int(registry.patience_seconds * 1000)


def _environment(assembly: _Assembly) -> TaskEnvironment:
    """What all tasks of a connector get, beside the load specs of their ranges."""
    configuration = assembly.configuration
    deduplication = configuration.deduplication
    return TaskEnvironment(
        pipeline=configuration.pipeline,
        kafka=assembly.kafka,
        clickhouse=assembly.clickhouse,
        specs={},
        insert_timeout_seconds=configuration.clickhouse.insert_timeout_seconds,
        registry=registry_access(configuration),
        claims=None if deduplication is None else store_access(deduplication),
        masked=frozenset(configuration.masked),
        is_traced=assembly.run.tracing is not None,
    )


def _join_fleet(assembly: _Assembly) -> None:
    """Report, as a member of a fleet; does nothing where the driver is none.

    :raises ConfigurationError: another driver runs, beside which this one may not.
    """
    fleet, configuration = assembly.configuration.fleet, assembly.configuration
    if fleet is None:
        return
    if assembly.why_alone:
        _logger.info("connector %s: %s", assembly.run.connector.name, assembly.why_alone)
    else:
        # Who reports is given partitions, which would wait for its workers.
        assembly.run._jobs.result().warm(wait=True)
        assembly.recorder.own_producer()
    member = FleetMember(
        assembly.kafka,
        configuration.fleet_topic,
        _of_member(assembly, fleet),
        *(now_ms, assembly.run.stopping, assembly.why_alone),
    )
    member.start()
    assembly.fleet = assembly.run.fleet = member


def _owner_id(configuration: Configuration) -> str:
    """An id in records, another one after each start: of a member of a fleet it tells the name."""
    drawn, member = uuid.uuid4().hex, _member_name(configuration)
    return owner_id(member, now_ms(), drawn[:2]) if member else f"run-{drawn[:10]}"


def _member_name(configuration: Configuration) -> str:
    """What the driver is called in its fleet; "": it is in none."""
    fleet = configuration.fleet
    return "" if fleet is None else fleet.name(gethostname())


def _of_member(assembly: _Assembly, fleet: FleetConfiguration) -> Report:
    return Report(
        owner=assembly.names.owner,
        member=fleet.name(gethostname()),
        number=0,
        boot=boot_id(),
        started_ms=now_ms(),
        data_center=fleet.data_center,
        members_max=fleet.members_max,
        silent_seconds=fleet.silent_after_seconds,
        software=__version__,
        near=assembly.configuration.preferred_by(assembly.run.connector.name),
    )
