"""A driver as a member of a fleet: it reports, and knows who else does.

One thread for each connector writes reports and reads those of all. What is in a report the loop
says in one of its rounds, when it is asked: a loop that stands makes no report, however well its
thread does. Where the topic is away, neither the loop nor its driver waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sluice import __version__
from sluice.core.budget import BOUNDLESS, TargetShard
from sluice.core.errors import ConfigurationError, SluiceError, TransientError
from sluice.core.fleet.floors import Floors, keeps_floor, most_of
from sluice.core.fleet.fold import Fold
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import SILENT_REPORTS
from sluice.core.ranges import TopicPartition
from sluice.driver.ports import ShardWindow, Windows
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.state import Holds, PartitionState
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.fleet import FleetTopic, read_to_end
from sluice.kafka.topics import cluster_metadata

_logger = logging.getLogger("sluice.fleet")

#: Several members share no partitions yet: each driver takes over all that it finds.
SEVERAL_MEMBERS = False

#: A report that is older, by the clock of the topic and this machine's, is of former days.
FRESH_MS = 60_000
#: Without an answer for so long a report is written once more.
LOST_SECONDS = 10.0
POLL_SECONDS = 0.25
RETRY_SECONDS = 5.0
ALARM_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What a member says of itself, whatever it does.

    :param silent_seconds: who does not report for so long counts as silent.
    """

    name: str
    data_center: str
    members_max: int
    silent_seconds: float
    boot: str
    started_ms: int


def boot_id() -> str:
    """Of this machine, another one after each of its starts; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class FleetMember:
    """One connector's part of a driver that is a member of a fleet.

    :param owner: its id in records.
    :param now_ms: wall time.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        me: Identity,
        owner: str,
        now_ms: Callable[[], int],
        stopping: threading.Event,
    ) -> None:
        self._access, self._topic_name, self._me, self._owner = access, topic, me, owner
        self._now_ms, self._stopping = now_ms, stopping
        self._floors = Floors(owner, me.members_max)
        self._fold = Fold(owner)
        self._topic: FleetTopic | None = None
        self._blank = Report(
            owner=owner,
            member=me.name,
            number=0,
            boot=me.boot,
            started_ms=me.started_ms,
            data_center=me.data_center,
            members_max=me.members_max,
            silent_seconds=me.silent_seconds,
            software=__version__,
        )
        self._sent, self._sent_at, self._back_at = 0, 0.0, time.monotonic()
        #: Ids of which this one has all that they held, and with which of its reports it says so.
        self._inherited: Mapping[str, int] = {}
        #: The last reports of all others that count, as the thread has read them; replaced when
        #: they change. And those that the loop has seen.
        self._others: Mapping[str, Report] = {}
        self._seen: Mapping[str, Report] = self._others
        self._all_known = frozenset[str]()
        #: The number of the report that the loop is asked for, as the thread and the loop know it;
        #: and the one that the loop has made, with when.
        self._asked = self._wanted = 0
        self._made: tuple[Report, float] | None = None
        self._rows = (0, 0)
        self._windows: Windows | None = None
        self._planner: RecordPlanner | None = None
        self._slots = 1
        self._shared: tuple[object, Mapping[TargetShard, ShardWindow]] | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        #: What is known of all members; replaced, never changed.
        self.view = self._fold.view()
        self.silent: Mapping[str, int] = {}

    # Lifecycle

    def start(self) -> None:
        """Look who is there, report, and begin the thread.

        :raises ConfigurationError: another driver reports, beside which this one may not run.
        :raises TransientError: Kafka does not answer.
        """
        topic = FleetTopic(self._access, self._topic_name, is_made=True)
        try:
            read_to_end(topic, self._fold)
            end = topic.end
            found = reporting(topic, self._fold, self._is_foreign, self._stopping)
            if found is None:
                found = self._first_report(topic, end)
            if found is not None:
                raise self._refusal(found)
        except BaseException:
            topic.close()
            raise
        self._topic = topic
        self._publish()
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Who is silent is taken for one that may come back."""
        self._ended.set()

    def _is_foreign(self, report: Report) -> bool:
        """Whether a report is of somebody beside whom this driver may not run. Who has its name on
        this machine is fenced at once, as ever."""
        is_namesake = report.member == self._me.name
        return report.boot != self._me.boot if is_namesake else not SEVERAL_MEMBERS

    def _first_report(self, topic: FleetTopic, end: int) -> Report | None:
        """Report, and wait until that is in the topic; gives a report of somebody else that came
        between: of two that begin at once the first in the topic goes on."""
        fold, until = self._fold, time.monotonic() + LOST_SECONDS
        self._sent = fold.number + 1  # one of an attempt before may be there
        topic.send(replace(self._blank, number=self._sent, wall_ms=self._now_ms()))
        while fold.own is None or fold.number < self._sent:
            if time.monotonic() > until or self._stopping.is_set():
                raise TransientError(
                    f"a report to topic {self._topic_name} did not come back",
                    "Does the topic have a leader, and enough replicas in sync?",
                )
            for message in topic.poll(0.1):
                fold.take(*message)
        self._sent_at = self._back_at = time.monotonic()
        before = [
            heard.report
            for heard in fold.others.values()
            if end <= heard.first_offset < fold.own.first_offset and self._is_foreign(heard.report)
        ]
        if before:
            topic.bury(self._owner)
            topic.flush(LOST_SECONDS)
        return before[0] if before else None

    def _refusal(self, other: Report) -> ConfigurationError:
        connector = self._access.connector
        if other.member == self._me.name:
            return ConfigurationError(
                f'connector {connector}: a driver named "{other.member}" runs on another machine '
                f"as {other.owner}; two drivers with one name would fence each other without end",
                "Stop that one, or give each driver a name of its own: [fleet] member.",
            )
        return ConfigurationError(
            f'connector {connector}: the driver "{other.member}" runs as {other.owner}, and '
            "several drivers are not supported yet: this one would take all partitions from it",
            f"Stop that one first; {self._me.silent_seconds:.0f} s later this one may start.",
        )

    # The loop's side

    @property
    def known(self) -> frozenset[str]:
        """All other ids that are not known to be gone."""
        return self._all_known

    def begin(
        self, windows: Windows, planner: RecordPlanner, slots: int, inherited: Iterable[str]
    ) -> Windows:
        """The loop begins. Gives the windows, with what the fleet leaves of each of them.

        :param inherited: ids of which this driver has all that they held: they were fenced, and
            what the ledger knows of their ranges is among its states and holds.
        """
        self._inherited = dict.fromkeys(inherited, self._sent + 1)
        self._windows, self._planner, self._slots = windows, planner, slots
        self._seen = self._others
        others = {o: r for o, r in self._seen.items() if o not in self._inherited}
        self._floors.see(others, names_of(windows.current()))
        return _SharedWindows(windows, self)

    def see(
        self,
        states: Mapping[TopicPartition, PartitionState],
        holds: Holds,
        rows: int,
        now_ms: int,
    ) -> None:
        """A round of the loop begins."""
        windows = self._windows
        assert windows is not None, "a loop begins before its rounds"
        if self._others is not self._seen:
            self._seen = self._others
            self._floors.see(self._seen, names_of(windows.current()))
            self._shared = None
        if self._wanted:
            number, self._wanted = self._wanted, 0
            held, members_max = states.values(), self._me.members_max
            floors, is_within = floors_of(windows.current(), held, holds, members_max, now_ms)
            said = self._floors.say(number, floors, is_within=is_within)
            self._shared = None
            self._made = self._report(number, said, held, rows, now_ms), time.monotonic()

    def _report(
        self,
        number: int,
        said: tuple[Mapping[str, int], Mapping[str, int]],
        states: Collection[PartitionState],
        rows: int,
        now_ms: int,
    ) -> Report:
        planner = self._planner
        assert planner is not None
        waiting = [s.waiting_since_ms for s in states if s.waiting_since_ms is not None]
        before_ms, before = self._rows
        self._rows = now_ms, rows
        floors, counted = said
        return replace(
            self._blank,
            number=number,
            slots=self._slots,
            work=sum(state.out for state in states),
            partitions=len(states),
            rows_per_second=round((rows - before) * 1000 / max(1, now_ms - before_ms), 1),
            oldest_wait_seconds=max(0, now_ms - min(waiting, default=now_ms)) / 1000,
            spec=planner.digest,
            decoder=planner.spec.decoder,
            floors=floors,
            counted=counted,
        )

    def with_shares(
        self, windows: Mapping[TargetShard, ShardWindow]
    ) -> Mapping[TargetShard, ShardWindow]:
        """What was read, with this member's share of each window."""
        if self._floors.is_alone:
            return windows
        shared = self._shared
        if shared is None or shared[0] is not windows:
            shares = {name: self._floors.share(name) for name in names_of(windows)}
            found = {
                each: replace(
                    window, state=replace(window.state, share=shares.get(name_of(each, window)))
                )
                for each, window in windows.items()
            }
            shared = self._shared = windows, found
        return shared[1]

    # The thread's side

    @property
    def report_age_seconds(self) -> float:
        """Since when no own report came back."""
        return time.monotonic() - self._back_at

    @property
    def unreadable(self) -> int:
        """Messages that were passed over."""
        return 0 if self._topic is None else self._topic.unreadable

    def _run(self) -> None:
        topic = self._topic
        assert topic is not None
        alarmed_at = -ALARM_SECONDS
        while not self._ended.is_set():
            try:
                self._step(topic)
            except SluiceError as error:
                if time.monotonic() - alarmed_at >= ALARM_SECONDS:
                    alarmed_at = time.monotonic()
                    _logger.warning(
                        "connector %s does not hear of its fleet; it goes on loading: %s. Try: %s",
                        *(self._access.connector, error, error.hint),
                    )
                self._ended.wait(RETRY_SECONDS)
            except Exception:
                _logger.exception("connector %s: the fleet's thread goes on", self._topic_name)
                self._ended.wait(RETRY_SECONDS)
        topic.close()

    def _step(self, topic: FleetTopic) -> None:
        fold, now = self._fold, time.monotonic()
        before = fold.number
        messages = topic.poll(POLL_SECONDS)
        for message in messages:
            fold.take(*message)
        if fold.number > before:
            self._back_at = time.monotonic()
        if messages:
            self._publish()
            self._bury(topic)
        made, self._made = self._made, None
        if made is not None:
            self._asked = 0
            # What a loop made before it stood says nothing of it now.
            if now - made[1] <= self._me.silent_seconds:
                self._sent, self._sent_at = made[0].number, now
                topic.send(replace(made[0], wall_ms=self._now_ms()))
        since_sent = now - self._sent_at
        is_due = since_sent >= self._me.silent_seconds / SILENT_REPORTS
        if not self._asked and (is_due if fold.number >= self._sent else since_sent > LOST_SECONDS):
            self._asked = self._wanted = self._sent + 1

    def _bury(self, topic: FleetTopic) -> None:
        """Who is gone, once the floors that take their place are in the topic."""
        fold, gone = self._fold, dict(self._inherited)
        if self._windows is not None and not SEVERAL_MEMBERS:
            gone |= dict.fromkeys(fold.silent, 0)  # who has all partitions has all holds
        for owner, since in gone.items():
            if fold.number >= since and owner in fold.others:
                topic.bury(owner)

    def _publish(self) -> None:
        fold, inherited = self._fold, self._inherited
        self._all_known = frozenset(fold.others)
        # As long as there are no several, nobody beside who runs holds anything.
        counted = fold.others if SEVERAL_MEMBERS else {}
        others = {o: h.report for o, h in counted.items() if o not in inherited}
        if others != self._others:
            self._others = others
        self.view, self.silent = fold.view(), fold.silent


class _SharedWindows:
    """Windows as a member of a fleet may use them."""

    def __init__(self, windows: Windows, member: FleetMember) -> None:
        self._windows, self._member = windows, member
        self.outage, self.refusal = windows.outage, windows.refusal

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        """The last reading of each target shard, with this member's share."""
        return self._member.with_shares(self._windows.current())


def names_of(windows: Mapping[TargetShard, ShardWindow]) -> set[str]:
    """The windows that blocks can push others out of."""
    return {name_of(e, w) for e, w in windows.items() if w.state.blocks != BOUNDLESS}


def name_of(target_shard: TargetShard, window: ShardWindow) -> str:
    """What a window is called in reports: the same by whichever entry or view it is reached."""
    return f"{window.state.table or target_shard.name}/{target_shard.shard}"


def floors_of(
    windows: Mapping[TargetShard, ShardWindow],
    states: Iterable[PartitionState],
    holds: Holds,
    members_max: int,
    now_ms: int,
) -> tuple[dict[str, int], bool]:
    """By window, the insert counter of the oldest hold, or else of the last reading; and whether
    all reservations are within a member's share."""
    lowest: dict[str, int] = {}
    reserved: dict[str, int] = {}
    named: dict[str, tuple[str, int, int]] = {}
    for each, window in windows.items():
        state = window.state
        if state.blocks == BOUNDLESS:
            continue
        name = name_of(each, window)
        named[each.key] = name, state.blocks, state.insert_counter
        lowest[name] = min(state.insert_counter, lowest.get(name, state.insert_counter))
        ended = holds.ended_since(each, window.read_started_ms)
        reserved[name] = reserved.get(name, 0) + ended
    for late in holds.late_inserts:
        for key, counter in late.insert_counters.items():
            if key in named:
                lowest[named[key][0]] = min(counter, lowest[named[key][0]])
    bundles = set[str]()
    for partition in states:
        record, counters = partition.record, partition.background.insert_counters
        if not counters or (record.bundle and record.bundle in bundles):
            continue
        bundles.add(record.bundle)
        may_insert = partition.may_insert(now_ms)
        for key, counter in counters.items():
            if key not in named:
                continue
            name, blocks, reading = named[key]
            may_come = partition.stopped is None and keeps_floor(blocks, reading, counter)
            if may_insert or (record.in_doubt and may_come):
                lowest[name] = min(counter, lowest[name])
            if may_insert:
                reserved[name] += record.reservation
    most = {name: most_of(blocks, members_max) for name, blocks, _ in named.values()}
    return lowest, all(reserved[name] <= most[name] for name in lowest)


# Who is there


def reporting(
    topic: FleetTopic, fold: Fold, is_wanted: Callable[[Report], bool], stopping: threading.Event
) -> Report | None:
    """A report that comes from a driver that has reported lately, if one does before it counts as
    silent; None at once if nobody has.

    :param fold: has read all that was there.
    :raises SluiceError: the topic cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    lately = {
        owner: heard.report
        for owner, heard in fold.others.items()
        if abs(now_ms - heard.append_ms) <= FRESH_MS + heard.report.silent_seconds * 1000
        and is_wanted(heard.report)
    }
    longest = max((report.silent_seconds for report in lately.values()), default=0.0)
    until = time.monotonic() + longest * (1 + 1 / SILENT_REPORTS)
    while lately and time.monotonic() < until and not stopping.is_set():
        for message in topic.poll(0.2):
            fold.take(*message)
        for owner, heard in fold.others.items():
            if owner in lately and heard.report.number > lately[owner].number:
                return heard.report
    return None


def refuse_beside_fleet(access: KafkaAccess, name: str, stopping: threading.Event) -> None:
    """See that no member of a fleet runs, for a driver that is none.

    :param name: of the fleet's topic.
    :raises ConfigurationError: one does.
    :raises TransientError: Kafka does not answer.
    """
    if name not in cluster_metadata(make_admin(access)).topics:
        return
    topic, fold = FleetTopic(access, name, is_made=False), Fold("")
    try:
        read_to_end(topic, fold)
        found = reporting(topic, fold, lambda _: True, stopping)
    finally:
        topic.close()
    if found is not None:
        raise ConfigurationError(
            f'connector {access.connector}: the driver "{found.member}" reports to topic {name} as '
            f"{found.owner}. It is a member of a fleet, and this driver, whose configuration has "
            "no section [fleet], would take all partitions from it",
            "Give this driver the section [fleet], too, or stop all members first.",
        )
