"""A driver as a member of a fleet: it reports, and knows who else does.

One thread for each connector writes reports and reads those of all. What is in a report the loop
says in one of its rounds, when it is asked: a loop that stands makes no report, however well its
thread does. Where the topic is away, neither the loop nor its driver waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from sluice.config import Configuration
from sluice.core.errors import (
    ConfigurationError,
    OwnerChangedError,
    SluiceError,
    TransientError,
)
from sluice.core.fleet.counting import Counting
from sluice.core.fleet.fold import Fold
from sluice.core.fleet.placement import is_older
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import SILENT_REPORTS, View
from sluice.core.ranges import TopicPartition
from sluice.driver.background import Background
from sluice.driver.inheriting import SharesRead
from sluice.driver.ports import Jobs, Windows
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.shared_windows import SharedWindows
from sluice.driver.state import Holds, PartitionState
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.fleet import FleetTopic, read_to_end
from sluice.kafka.topics import sees
from sluice.machine.clock import now_ms

_logger = logging.getLogger("sluice.fleet")

#: Who ends waits for so long until that is written.
OVER_SECONDS = 5.0

#: A report that is older, by the clock of the topic and this machine's, is of former days.
FRESH_MS = 60_000
#: Without an answer for so long a report is written once more.
LOST_SECONDS = 10.0
POLL_SECONDS = 0.25
RETRY_SECONDS = 5.0
ALARM_SECONDS = 60.0


def why_alone(
    configuration: Configuration, has_tokens: Callable[[], bool], *, until_caught_up: bool
) -> str:
    """Why a driver of this configuration shares no partitions; "" if it may.

    :param has_tokens: whether all servers know tokens.
    """
    if until_caught_up:
        return "--until-caught-up is for one driver, which knows when all is loaded"
    for table in configuration.tables:
        if table.deduplicate is not None:
            return f"[[table]] {table.name} has `deduplicate`, which several drivers cannot yet"
    if (
        any(table.dynamic_columns is not None for table in configuration.tables)
        and not has_tokens()
    ):
        # A column that one adds comes between another one's look and its insert.
        return "a table has `dynamic_columns`, and a server hashes what it stores"
    return ""


def boot_id() -> str:
    """Of this machine, another one after each of its starts; "" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class FleetMember(Background):
    """One connector's part of a driver that is a member of a fleet.

    :param me: what it says of itself, whatever it does: a report without the rest.
    :param now_ms: wall time.
    :param why_alone: why it shares no partitions, but has all of them; "": it shares them.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        me: Report,
        now_ms: Callable[[], int],
        stopping: threading.Event,
        why_alone: str = "",
    ) -> None:
        super().__init__("fleet", f"reading and writing {topic}", 0)
        self._access, self._topic_name, self._owner = access, topic, me.owner
        self.why_alone = why_alone
        self._now_ms, self._stopping = now_ms, stopping
        self._fold = Fold(me.owner)
        self._topic: FleetTopic | None = None
        self._blank = replace(me, is_ready=False, is_alone=bool(why_alone))
        self._sent, self._sent_at, self._back_at = 0, 0.0, time.monotonic()
        self._counting = Counting(me.owner, has_all=bool(why_alone))
        #: Ids that it is taking over; and what its last report said: its number, of whom, and
        #: whether it leaves.
        self._inherits = frozenset[str]()
        self._said = 0, self._inherits, False
        #: Before this report came back, others may have written this id off, and gone on.
        self._again_from = 0
        #: The last reports of those that count, as the loop has seen them; and those of all when
        #: ids were announced.
        self._seen = self._counting.others
        self._announced = self._counting.known
        #: The first report of each that was read; and a later start of this name that goes on.
        self._first: dict[str, int] = {}
        self.later = ""
        #: Partitions that nobody who reports has, and that other members have, as the last look at
        #: all of them found.
        self.unowned = self.elsewhere = 0
        #: Why the last look failed; "": it did not.
        self.look_failure = ""
        self._looked_at = time.monotonic()
        #: The number of the report that the loop is asked for, as the thread and the loop know it;
        #: and the one that the loop has made, with when.
        self._asked = self._wanted = 0
        self._made: tuple[Report, float] | None = None
        self._shared: SharedWindows | None = None
        self._is_over, self._alarmed_at = False, -ALARM_SECONDS
        self._view = self._fold.view()

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
                self._sent = self._fold.number + 1  # one of an attempt before may be there
                first = replace(self._blank, number=self._sent, wall_ms=self._now_ms())
                found = first_report(topic, self._fold, first, end, self._is_foreign)
                self._sent_at = self._back_at = time.monotonic()
            if found is not None:
                raise refusal(self._access.connector, self._blank, found, self.why_alone)
        except BaseException:
            topic.close()
            raise
        self._topic = topic
        self._publish()
        self._begin()

    def stop(self, *, is_over: bool = False) -> None:
        """End the thread.

        :param is_over: nothing is left that this id held, so nobody has to inherit from it. Else it
            is taken for one that may come back.
        """
        # What it was about to take over may come yet: then its end is found out as any other's.
        self._is_over = is_over and not self._inherits
        super().stop()
        if is_over and self._thread.is_alive():
            self._thread.join(OVER_SECONDS)

    def _is_foreign(self, report: Report) -> bool:
        """Whether a report is of somebody beside whom this driver may not run. Who has its name on
        this machine is fenced at once, as ever."""
        if report.member == self._blank.member:
            return report.boot != self._blank.boot
        is_other = report.members_max != self._blank.members_max
        return bool(self.why_alone) or report.is_alone or is_other

    # The loop's side

    @property
    def is_fresh(self) -> bool:
        """Whether an own report came back lately: then nobody has taken this id for dead."""
        return self.report_age_seconds <= self._blank.silent_seconds / 2

    def view(self) -> View:
        """See `sluice.driver.ports.Fleet`."""
        return self._view

    def begin(self, windows: Windows, planner: RecordPlanner, jobs: Jobs) -> Windows:
        """The loop begins. Gives the windows, with what the fleet leaves of each of them."""
        self._looked_at = time.monotonic()
        if self.why_alone:
            self._counting.took_all(self._sent + 1)
        self._seen = self._counting.others
        self._shared = SharedWindows(windows, planner, jobs, self._blank)
        self._shared.see(self._seen, has_strangers=self._has_strangers)
        return self._shared

    def see(
        self,
        states: Mapping[TopicPartition, PartitionState],
        holds: Holds,
        rows: int,
        now_ms: int,
    ) -> None:
        """A round of the loop begins.

        :raises OwnerChangedError: somebody has written this id off, or a later start of this name
            reports.
        """
        shared = self._shared
        assert shared is not None, "a loop begins before its rounds"
        if self._fold.is_gone:
            raise OwnerChangedError(f"the fleet has written {self._owner} off")
        if self.later:
            name = self._blank.member
            raise OwnerChangedError(f'"{name}" runs as {self.later}, too', owner=self.later)
        if self._counting.others is not self._seen:
            self._seen = self._counting.others
            shared.see(self._seen, has_strangers=self._has_strangers)
        if self._wanted:
            number, self._wanted = self._wanted, 0
            inherits, is_leaving = self._inherits, self._stopping.is_set()
            report = shared.report(number, states, holds, rows, self._view, now_ms)
            report = replace(report, inherits=tuple(sorted(inherits)), is_leaving=is_leaving)
            self._said = number, inherits, is_leaving
            self._made = report, time.monotonic()

    def begin_again(self) -> None:
        """See `sluice.driver.ports.Fleet`."""
        shared = self._shared
        assert shared is not None, "a loop begins before its rounds"
        if not self.why_alone:
            self._again_from = (self._asked or self._sent) + 1
            shared.begin_again(self._seen, self._again_from)

    @property
    def _has_strangers(self) -> bool:
        return self._fold.number < self._again_from or self._counting.has_strangers

    def announce(self, owners: Collection[str]) -> None:
        """Say whom this member is about to take over; returns when that stands in the topic: from
        then on nobody writes one of them off before `took`. Not for the loop's thread.

        :raises TransientError: it does not come back.
        """
        self._announced, self._inherits = self._counting.known, frozenset(owners)
        until = time.monotonic() + LOST_SECONDS
        while True:
            number, inherits, _ = self._said
            if inherits.issuperset(owners) and self._fold.number >= number:
                return
            if time.monotonic() > until or self._ended.is_set():
                raise TransientError(
                    f"a report to topic {self._topic_name} did not come back",
                    "Nobody's partitions are taken over before.",
                )
            self._ended.wait(POLL_SECONDS)

    def took(self, read: SharesRead) -> None:
        """What a look found is among the loop's states and holds; see `SharesRead`."""
        since = (self._asked or self._sent) + 1
        self._inherits = read.inherits
        self.unowned, self.elsewhere = read.unowned, read.elsewhere
        self.look_failure = read.failure
        if not read.failure:
            self._looked_at = time.monotonic()
        self._counting.took(
            read.inherited, self._announced, since, read.alive, read.orphans, read.view
        )

    # The thread's side

    @property
    def report_age_seconds(self) -> float:
        """Since when no own report came back."""
        return time.monotonic() - self._back_at

    @property
    def look_age_seconds(self) -> float:
        """Since when it has not looked at all partitions and taken over what it is to have; 0 where
        it shares none, or is to stop, and looks no more."""
        if self.why_alone or self._stopping.is_set():
            return 0.0
        return time.monotonic() - self._looked_at

    @property
    def busy_partitions(self) -> int:
        """How many partitions the last own report that came back names as busy; 0: none did."""
        own = self._fold.own
        return 0 if own is None else len(own.report.busy)

    @property
    def unreadable(self) -> int:
        """Messages that were passed over."""
        return 0 if self._topic is None else self._topic.unreadable

    def _run(self) -> None:
        super()._run()
        topic = self._topic
        assert topic is not None
        if self._is_over:
            topic.bury(self._owner)
            topic.flush(OVER_SECONDS)
        topic.close()

    def _step(self) -> None:
        assert self._topic is not None
        try:
            self._read_and_report(self._topic)
        except SluiceError as error:
            if time.monotonic() - self._alarmed_at >= ALARM_SECONDS:
                self._alarmed_at = time.monotonic()
                _logger.warning(
                    "connector %s does not hear of its fleet; it goes on loading: %s. Try: %s",
                    *(self._access.connector, error, error.hint),
                )
            self._ended.wait(RETRY_SECONDS)

    def _read_and_report(self, topic: FleetTopic) -> None:
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
            # What a loop made before it stood says nothing of it now.
            is_sent = now - made[1] <= self._blank.silent_seconds
            if is_sent:
                self._sent, self._sent_at = made[0].number, now
            self._asked = 0  # not before: `took` would take this report for one of its own
            if is_sent:
                topic.send(replace(made[0], wall_ms=self._now_ms()))
        since_sent = now - self._sent_at
        has_news = self._said[1:] != (self._inherits, self._stopping.is_set())
        is_due = has_news or since_sent >= self._blank.silent_seconds / SILENT_REPORTS
        if not self._asked and (is_due if fold.number >= self._sent else since_sent > LOST_SECONDS):
            self._asked = self._wanted = self._sent + 1

    def _bury(self, topic: FleetTopic) -> None:
        fold = self._fold
        for owner in self._counting.to_write_off(fold.silent) & fold.others.keys():
            topic.bury(owner)

    def _publish(self) -> None:
        heard = {owner: each.report for owner, each in self._fold.others.items()}
        self._counting.hear(heard, self._fold.number)
        self._view = self._fold.view()
        for owner, report in heard.items():
            if report.number > self._first.setdefault(owner, report.number):
                self.later = owner if is_older(self._owner, owner) else self.later


# Who is there


def first_report(
    topic: FleetTopic, fold: Fold, first: Report, end: int, is_foreign: Callable[[Report], bool]
) -> Report | None:
    """Report, and wait until that is in the topic; gives a report of somebody else that came
    between: of two that begin at once the first in the topic goes on.

    :param end: of the topic, before anybody was looked for.
    :raises TransientError: it does not come back.
    """
    until = time.monotonic() + LOST_SECONDS
    topic.send(first)
    while fold.own is None or fold.number < first.number:
        if time.monotonic() > until:
            raise TransientError(
                "a report to the topic of the fleet did not come back",
                "Does the topic have a leader, and enough replicas in sync?",
            )
        for message in topic.poll(0.1):
            fold.take(*message)
    before = [
        heard.report
        for heard in fold.others.values()
        if end <= heard.first_offset < fold.own.first_offset and is_foreign(heard.report)
    ]
    if before:
        topic.bury(first.owner)
        topic.flush(LOST_SECONDS)
    return before[0] if before else None


def refusal(connector: str, own: Report, other: Report, why_alone: str) -> ConfigurationError:
    """Why a driver may not run beside another one."""
    if other.member == own.member:
        return ConfigurationError(
            f'connector {connector}: a driver named "{other.member}" runs on another machine '
            f"as {other.owner}; two drivers with one name would fence each other without end",
            "Stop that one, or give each driver a name of its own: [fleet] member.",
        )
    runs = f'connector {connector}: the driver "{other.member}" runs as {other.owner}'
    if not (why_alone or other.is_alone):
        return ConfigurationError(
            f"{runs}, with members_max = {other.members_max}; this one has {own.members_max}, and "
            "what each may use of a window follows from it",
            "Give all members of the fleet the same [fleet] members_max.",
        )
    why = why_alone or "that one shares no partitions; its log says why"
    return ConfigurationError(
        f"{runs}, and {why}: this one would take all partitions from it",
        f"Stop that one first; {own.silent_seconds:.0f} s later this one may start.",
    )


def reporting(
    topic: FleetTopic, fold: Fold, is_wanted: Callable[[Report], bool], stopping: threading.Event
) -> Report | None:
    """A report that comes from a driver that has reported lately, if one does before it counts as
    silent; None at once if nobody has.

    :param fold: has read all that was there.
    :raises SluiceError: the topic cannot be read.
    """
    at_ms = now_ms()
    lately = {
        owner: heard.report
        for owner, heard in fold.others.items()
        if abs(at_ms - heard.append_ms) <= FRESH_MS + heard.report.silent_seconds * 1000
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
    if not sees(access, name):
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
