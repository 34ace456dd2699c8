"""One round of the benchmark, seen from outside: /proc, and the ledger of the pipeline."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from statistics import median

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.log import SourceLog
from sluice.testbed.local.driver import Driver
from sluice.testbed.local.orders import Orders
from sluice.testbed.local.processes import (
    Usage,
    descendants,
    machine_busy_seconds,
    open_files,
    usage,
)
from sluice.testbed.local.producing import Stamped, Steady, held_back, steady_producer
from sluice.testbed.local.tail import Entry, LedgerTail, source_of

#: Looks for each rate; a short one is looked at once a second.
_LOOKS = 120
_LEAST_SECONDS = 1.0
#: A first and a last part are compared: tenths of all looks.
_PARTS = 10
#: Below this many looks the parts say nothing.
_LOOKS_MIN = 2 * _PARTS
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of one role hold at one moment, added up.

    :param resident_bytes: memory; what forked processes share is counted in each.
    :param files: open file descriptors.
    """

    resident_bytes: int
    files: int
    processes: int


@dataclass(slots=True)
class Watch:
    """Looks from time to time, while somebody calls it often.

    :param look: what each role holds now.
    :param seconds: how long it will be called.
    :param clock: seconds, monotonic.
    """

    look: Callable[[], Mapping[str, Held]]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    seen: list[tuple[float, Mapping[str, Held]]] = field(default_factory=list)
    _began: float | None = None

    def __call__(self) -> None:
        """Look, if it is time to."""
        now = self.clock()
        if self._began is None:
            self._began = now
        interval = max(_LEAST_SECONDS, self.seconds / _LOOKS)
        if now - self._began >= len(self.seen) * interval:
            self.seen.append((now - self._began, self.look()))

    def growth(self) -> dict[str, Growth]:
        """By role: the first tenth but one of the looks against the last tenth, medians.

        The very first tenth is left out: caches fill, pools start. Empty after too few looks.
        """
        if len(self.seen) < _LOOKS_MIN:
            return {}
        part = len(self.seen) // _PARTS
        early, late = self.seen[part : 2 * part], self.seen[-part:]
        roles = [role for role in early[0][1] if all(role in held for _, held in self.seen)]
        return {
            role: Growth(
                _middle([held[role] for _, held in early]),
                _middle([held[role] for _, held in late]),
                max(held[role].resident_bytes for _, held in self.seen),
            )
            for role in roles
        }


@dataclass(frozen=True, slots=True)
class Growth:
    """What a role held early, and what late.

    :param most_bytes: of memory, at any look.
    """

    early: Held
    late: Held
    most_bytes: int

    @property
    def text(self) -> str:
        """E.g. "512 to 514 MB (at most 530), 40 to 40 files, 3 to 3 processes"."""
        early, late = self.early, self.late
        return (
            f"{early.resident_bytes / _MEGABYTE:,.0f} to {late.resident_bytes / _MEGABYTE:,.0f} "
            f"MB (at most {self.most_bytes / _MEGABYTE:,.0f}), {early.files:,} to {late.files:,} "
            f"files, {early.processes:,} to {late.processes:,} processes"
        )


def _middle(held: list[Held]) -> Held:
    return Held(
        round(median(one.resident_bytes for one in held)),
        round(median(one.files for one in held)),
        round(median(one.processes for one in held)),
    )


#: In the order in which they are shown.
ROLES = ("broker", "server", "driver JVM", "driver Python", "workers")
#: Parts of a task that do not overlap: each with the ledger's names, added and taken off.
STAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "fetch": (("fetch",), ("check",)),
    "check": (("check",), ()),
    "decode": (("decode",), ()),
    "claim": (("claim",), ()),
    "insert": (("insert",), ("wait",)),
    "insert wait": (("wait",), ()),
    "dead letters": (("dead_letters",), ()),
}

_STALL_SECONDS_MAX = 120.0
#: Before a round begins, so that what producing left to be done is done.
_QUIET_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Reading:
    """The processes of one role at one moment.

    :param peak_bytes: of the largest of its processes.
    :param peaks_bytes: of all of them added up.
    """

    cpu_seconds: float
    peak_bytes: int
    peaks_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class Round:
    """What one round cost.

    :param messages: that were produced, broken ones among them.
    :param rows: in all tables together, as the ledger has them.
    :param letters: dead letters, one for each table that a broken message misses.
    :param cpu_seconds: by role.
    :param peak_bytes: by role, of the largest process, since it started.
    :param workers: their number, and their peaks added up.
    :param stage_seconds: of all tasks: each of STAGES, and "total".
    :param ranges: that were settled; one that holds only the end of a transaction is one, too.
    :param batches: transactions of the pipeline.
    :param foreign_cpu_seconds: used by programs that have nothing to do with the benchmark.
    """

    messages: int
    rows: int
    letters: int
    seconds: float
    cpu_seconds: dict[str, float]
    peak_bytes: dict[str, int]
    workers: tuple[int, int]
    stage_seconds: dict[str, float]
    blocks: int
    ranges: int
    batches: int
    foreign_cpu_seconds: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def messages_per_second(self) -> float:
        return self.messages / self.seconds


@dataclass(frozen=True, slots=True)
class Latency:
    """How long events took at one rate.

    :param wanted: messages a second that were asked for.
    :param reached: messages a second that the producer managed.
    :param values_ms: sorted; from the producer's timestamp until all tables have the row.
    :param messages: that were produced.
    :param seconds: of producing.
    :param blocks: that were acknowledged in that time.
    :param cpu_seconds: by role, until all messages were settled.
    :param core_shares: CPU by role, as a share of one core, while they were produced.
    :param growth: by role, what its processes held early and late; empty after a short time.
    """

    wanted: int
    reached: float
    values_ms: list[int]
    messages: int
    seconds: float
    blocks: int
    cpu_seconds: dict[str, float]
    core_shares: dict[str, float]
    growth: dict[str, Growth]


@dataclass(frozen=True, slots=True)
class ProducerAlone:
    """What the broker takes while messages come at a rate, and there is no driver any more.

    :param wanted: messages a second that were asked for.
    :param reached: messages a second that the producer managed.
    :param messages: that were produced in these seconds.
    :param cpu_seconds: of the broker.
    :param seconds: until the broker had all messages.
    """

    wanted: int
    reached: float
    messages: int
    cpu_seconds: float
    seconds: float


@dataclass(slots=True)
class Bench:
    """What the rounds work with.

    :param sources: all partitions that messages go to, in turn.
    :param fixed: process ids of the roles that do not belong to the driver.
    :param bad_share: of the messages of a round.
    :param produced: messages so far.
    :param broken: how many of them cannot become rows.
    """

    access: KafkaAccess
    sources: Sequence[TopicPartition]
    driver: Driver
    tail: LedgerTail
    fixed: dict[str, list[int]]
    orders: Orders
    bad_share: float = 0.0
    produced: int = 0
    broken: int = 0

    def round(self, messages: int, watched: AbstractContextManager[object] | None = None) -> Round:
        """Produce, unseen by the pipeline; show all at once; measure until all is settled.

        :param watched: entered when all is produced, left when all is settled.
        """
        tail = self.tail
        with ExitStack() as watching:
            with self._held_back(messages) as broken:
                self.rest()
                if watched is not None:
                    watching.enter_context(watched)
                self.catch_up()
                first = (len(tail.settled), len(tail.receipts), len(tail.records))
                before, busy_before, own_before = self._read(), machine_busy_seconds(), os.times()
                began = time.monotonic()
            self.wait_for(first[0], messages)
            seconds = time.monotonic() - began
        after, busy_after, own_after = self._read(), machine_busy_seconds(), os.times()
        self.produced += messages
        self.broken += broken
        settled = tail.settled[first[0] :]
        cpu_seconds = {r: after[r].cpu_seconds - before[r].cpu_seconds for r in after}
        own = own_after.user + own_after.system - own_before.user - own_before.system
        return Round(
            messages=messages,
            rows=sum(entry["rows"] for entry in settled),
            letters=sum(entry["dead_letters"] for entry in settled),
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            peak_bytes={role: reading.peak_bytes for role, reading in after.items()},
            workers=(after["workers"].processes, after["workers"].peaks_bytes),
            stage_seconds=stage_seconds([entry["seconds"] for entry in settled]),
            blocks=count_blocks(tail.receipts[first[1] :]),
            ranges=len(settled),
            batches=len({entry["batch"] for entry in tail.records[first[2] :]}),
            foreign_cpu_seconds=max(
                0.0, busy_after - busy_before - sum(cpu_seconds.values()) - own
            ),
        )

    def latency(self, rows_per_second: int, seconds: float) -> Latency:
        """From each event's producer timestamp to the acknowledged insert.

        :raises TerminalError: the driver ended, or commits nothing.
        """
        with steady_producer(
            self.access, self.sources, self.orders, rows_per_second, seconds
        ) as producer:
            self.catch_up()
            first_settled, first_receipt = len(self.tail.settled), len(self.tail.receipts)
            watch, before = Watch(self._held, seconds), self._read()
            began = time.monotonic()
            steady = producer.produce(seconds, watch)
            core_shares = _core_shares(before, self._read(), time.monotonic() - began)
        self.wait_for(first_settled, steady.rows)
        after = self._read()
        self.produced += steady.rows
        receipts = self.tail.receipts[first_receipt:]
        return Latency(
            wanted=rows_per_second,
            reached=steady.rows / steady.seconds,
            values_ms=latencies_ms(steady.stamped, receipts),
            messages=steady.rows,
            seconds=steady.seconds,
            blocks=count_blocks(acknowledged_while(steady, receipts)),
            cpu_seconds={r: after[r].cpu_seconds - before[r].cpu_seconds for r in after},
            core_shares=core_shares,
            growth=watch.growth(),
        )

    def idle_shares(self, seconds: float) -> dict[str, float]:
        """CPU by role while nothing is produced, as a share of one core: what it costs to
        look for new messages and to keep the workers warm."""
        self.rest()
        before, began = self._read(), time.monotonic()
        time.sleep(seconds)
        after, took = self._read(), time.monotonic() - began
        self.driver.check()
        return _core_shares(before, after, took)

    def busiest_worker(self) -> int:
        """The process id of the worker that has worked most."""
        workers = [one for one in descendants(self.driver.process.pid) if one.name != "java"]
        if not workers:
            raise self.driver.failure("has no worker")
        return max(workers, key=lambda one: one.cpu_seconds).pid

    def wait_for(self, first_settled: int, messages: int) -> None:
        """Follow until so many messages are settled behind this entry of the ledger.

        :raises TerminalError: the driver ended, or commits nothing.
        """
        settled = self.tail.settled
        counted, seen = 0, first_settled

        def done() -> bool:
            nonlocal counted, seen
            counted += sum(int(entry["messages"]) for entry in settled[seen:])
            seen = len(settled)
            return counted >= messages

        self.tail.wait(done, self.driver.check, _STALL_SECONDS_MAX)

    def rest(self) -> None:
        """Wait until the pipeline has nothing left to do: the end of a transaction, too, is an
        offset that is loaded, although it holds no row.

        :raises TerminalError: the driver ended, or commits nothing.
        """
        time.sleep(_QUIET_SECONDS)
        ends = SourceLog(make_admin(self.access)).stable_ends(self.sources)
        positions = self.tail.positions

        def done() -> bool:
            return all(positions.get(source, 0) >= end for source, end in ends.items())

        self.tail.wait(done, self.driver.check, _STALL_SECONDS_MAX)

    def catch_up(self) -> None:
        """Take in all that the ledger holds by now."""
        tail, seen = self.tail, -1
        while (held := len(tail.settled) + len(tail.receipts) + len(tail.records)) != seen:
            seen = held
            tail.poll()

    def _held_back(self, messages: int) -> AbstractContextManager[int]:
        return held_back(self.access, self.sources, self.orders, messages, bad_share=self.bad_share)

    def _processes(self) -> dict[str, list[Usage]]:
        """All roles that can be seen, in the order in which they are shown."""
        found: dict[str, list[Usage]] = {
            role: [one for pid in pids if (one := usage(pid)) is not None]
            for role, pids in self.fixed.items()
        }
        driver = usage(self.driver.process.pid)
        below = descendants(self.driver.process.pid)
        found["driver Python"] = [] if driver is None else [driver]
        found["driver JVM"] = [one for one in below if one.name == "java"]
        found["workers"] = [one for one in below if one.name != "java"]
        return {role: found[role] for role in ROLES if role in found}

    def _held(self) -> dict[str, Held]:
        """Memory and file descriptors by role.

        :raises TerminalError: the driver ended.
        """
        self.driver.check()
        return {
            role: Held(
                sum(one.resident_bytes for one in of_role),
                sum(open_files(one.pid) for one in of_role),
                len(of_role),
            )
            for role, of_role in self._processes().items()
        }

    def _read(self) -> dict[str, Reading]:
        """CPU and peaks by role."""
        return {
            role: Reading(
                cpu_seconds=sum(one.cpu_seconds for one in of_role),
                peak_bytes=max((one.peak_bytes for one in of_role), default=0),
                peaks_bytes=sum(one.peak_bytes for one in of_role),
                processes=len(of_role),
            )
            for role, of_role in self._processes().items()
        }


def _core_shares(
    before: dict[str, Reading], after: dict[str, Reading], seconds: float
) -> dict[str, float]:
    return {r: (after[r].cpu_seconds - before[r].cpu_seconds) / seconds for r in after}


def stage_seconds(entries: list[dict[str, float]]) -> dict[str, float]:
    """The seconds of settled ranges by stage."""
    total = {name: sum(entry[name] for entry in entries) for name in _names()}
    found = {
        stage: sum(total[name] for name in added) - sum(total[name] for name in taken_off)
        for stage, (added, taken_off) in STAGES.items()
    }
    return {**{stage: max(0.0, value) for stage, value in found.items()}, "total": total["total"]}


def _names() -> set[str]:
    return {"total"} | {name for pair in STAGES.values() for names in pair for name in names}


def count_blocks(receipts: Iterable[Entry]) -> int:
    """Blocks that the server took. One of a bundle has a receipt for each member, and is one."""
    return sum(not receipt.get("is_shared") for receipt in receipts)


def acknowledged_while(steady: Steady, receipts: Iterable[Entry]) -> list[Entry]:
    """The receipts of blocks that were acknowledged while events were produced."""
    end_ms = steady.began_ms + steady.seconds * 1000
    return [one for one in receipts if steady.began_ms <= one["acknowledged_at_ms"] < end_ms]


def latencies_ms(stamped: list[Stamped], receipts: Iterable[Entry]) -> list[int]:
    """The receipts whose range holds an event say when its row was acknowledged; of several
    tables, the last one counts."""
    acknowledged: dict[TopicPartition, dict[int, int]] = {}
    for receipt in receipts:
        of_partition = acknowledged.setdefault(source_of(receipt), {})
        at_ms = receipt["acknowledged_at_ms"]
        of_partition[receipt["begin"]] = max(at_ms, of_partition.get(receipt["begin"], at_ms))
    begins = {source: sorted(found) for source, found in acknowledged.items()}
    found = []
    for event in stamped:
        place = bisect_right(begins[event.source], event.offset) - 1
        begin = begins[event.source][place]
        found.append(acknowledged[event.source][begin] - event.timestamp_ms)
    return sorted(found)


def measure_producer_alone(
    access: KafkaAccess,
    sources: Sequence[TopicPartition],
    orders: Orders,
    broker_pid: int,
    rows_per_second: int,
    seconds: float,
) -> ProducerAlone:
    """Produce as for a latency, while nobody reads.

    :raises TerminalError: the broker does not take the events, or is gone.
    """

    def cpu_seconds() -> float:
        found = usage(broker_pid)
        if found is None:
            raise TerminalError("the broker has ended", "Read the broker's log.")
        return found.cpu_seconds

    with steady_producer(access, sources, orders, rows_per_second, seconds) as producer:
        before, began = cpu_seconds(), time.monotonic()
        steady = producer.produce(seconds)
        used, took = cpu_seconds() - before, time.monotonic() - began
    return ProducerAlone(
        wanted=rows_per_second,
        reached=steady.rows / steady.seconds,
        messages=steady.rows,
        cpu_seconds=used,
        seconds=took,
    )


def percentile(sorted_values: list[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted_values[max(0, math.ceil(len(sorted_values) * share) - 1)]
