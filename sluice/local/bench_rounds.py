"""One round of the benchmark, seen from outside: /proc, and the ledger of the pipeline."""

from __future__ import annotations

import math
import os
import time
from bisect import bisect_right
from dataclasses import dataclass, field

from sluice.kafka.clients import KafkaAccess
from sluice.local.driver import Driver
from sluice.local.orders import Orders
from sluice.local.processes import Usage, descendants, machine_busy_seconds, usage
from sluice.local.producing import Stamped, held_back, produce_steadily
from sluice.local.tail import LedgerTail

#: In the order in which they are shown.
ROLES = ("broker", "server", "driver JVM", "driver Python", "workers")
STAGES = ("fetch", "decode", "insert")

_STALL_SECONDS_MAX = 120.0
#: Before a round begins, so that what producing left to be done is done.
_QUIET_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Reading:
    """The processes of one role at one moment.

    :param peak_bytes: of the largest of its processes.
    """

    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Round:
    """What one round cost.

    :param cpu_seconds: by role.
    :param peak_bytes: by role, of the largest process, since it started.
    :param stage_seconds: of all tasks: each of STAGES, and "total".
    :param batches: transactions that settled something.
    :param foreign_cpu_seconds: used by programs that have nothing to do with the benchmark.
    """

    rows: int
    seconds: float
    cpu_seconds: dict[str, float]
    peak_bytes: dict[str, int]
    stage_seconds: dict[str, float]
    blocks: int
    batches: int
    foreign_cpu_seconds: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds


@dataclass(slots=True)
class Bench:
    """What the rounds work with.

    :param fixed: process ids of the roles that do not belong to the driver.
    """

    access: KafkaAccess
    topic: str
    driver: Driver
    tail: LedgerTail
    fixed: dict[str, list[int]]
    orders: Orders = field(default_factory=lambda: Orders(seed=193))
    produced: int = 0

    def round(self, rows: int) -> Round:
        """Produce, unseen by the pipeline; show all at once; measure until all is settled."""
        tail = self.tail
        with held_back(self.access, self.topic, self.orders, rows):
            time.sleep(_QUIET_SECONDS)
            tail.poll()
            first_settled, first_receipt = len(tail.settled), len(tail.receipts)
            before, busy_before, own_before = self._read(), machine_busy_seconds(), os.times()
            began = time.monotonic()
        self._wait_for(first_settled, rows)
        seconds = time.monotonic() - began
        after, busy_after, own_after = self._read(), machine_busy_seconds(), os.times()
        self.produced += rows
        settled = tail.settled[first_settled:]
        cpu_seconds = {r: after[r].cpu_seconds - before[r].cpu_seconds for r in after}
        own = own_after.user + own_after.system - own_before.user - own_before.system
        return Round(
            rows=rows,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            peak_bytes={role: reading.peak_bytes for role, reading in after.items()},
            stage_seconds={
                stage: sum(entry["seconds"][stage] for entry in settled)
                for stage in (*STAGES, "total")
            },
            blocks=len(tail.receipts) - first_receipt,
            batches=len({entry["batch"] for entry in settled}),
            foreign_cpu_seconds=max(
                0.0, busy_after - busy_before - sum(cpu_seconds.values()) - own
            ),
        )

    def latencies_ms(self, rows_per_second: int, seconds: int) -> list[int]:
        """From each event's producer timestamp to the acknowledged insert, sorted."""
        first_settled, first_receipt = len(self.tail.settled), len(self.tail.receipts)
        stamped = produce_steadily(self.access, self.topic, self.orders, rows_per_second, seconds)
        self._wait_for(first_settled, len(stamped))
        self.produced += len(stamped)
        return latencies_ms(stamped, self.tail.receipts[first_receipt:])

    def idle_shares(self, seconds: int) -> dict[str, float]:
        """CPU by role while nothing is produced, as a share of one core: what it costs to
        look for new messages and to keep the workers warm."""
        time.sleep(_QUIET_SECONDS)
        before, began = self._read(), time.monotonic()
        time.sleep(seconds)
        after, took = self._read(), time.monotonic() - began
        self.driver.check()
        return {r: (after[r].cpu_seconds - before[r].cpu_seconds) / took for r in after}

    def _wait_for(self, first_settled: int, rows: int) -> None:
        settled = self.tail.settled

        def done() -> bool:
            return sum(int(entry["messages"]) for entry in settled[first_settled:]) >= rows

        self.tail.wait(done, self.driver.check, _STALL_SECONDS_MAX)

    def _read(self) -> dict[str, Reading]:
        """All roles that can be seen."""
        found: dict[str, list[Usage]] = {
            role: [one for pid in pids if (one := usage(pid)) is not None]
            for role, pids in self.fixed.items()
        }
        driver = usage(self.driver.process.pid)
        below = descendants(self.driver.process.pid)
        found["driver Python"] = [] if driver is None else [driver]
        found["driver JVM"] = [one for one in below if one.name == "java"]
        found["workers"] = [one for one in below if one.name != "java"]
        return {
            role: Reading(
                cpu_seconds=sum(one.cpu_seconds for one in found[role]),
                peak_bytes=max((one.peak_bytes for one in found[role]), default=0),
            )
            for role in ROLES
            if role in found
        }


def latencies_ms(stamped: list[Stamped], receipts: list[dict[str, int]]) -> list[int]:
    """The receipt whose range holds an event says when its row was acknowledged."""
    begins: dict[int, list[int]] = {}
    acknowledged: dict[int, list[int]] = {}
    for receipt in sorted(receipts, key=lambda receipt: receipt["begin"]):
        begins.setdefault(receipt["partition"], []).append(receipt["begin"])
        acknowledged.setdefault(receipt["partition"], []).append(receipt["acknowledged_at_ms"])
    found = []
    for event in stamped:
        place = bisect_right(begins[event.partition], event.offset) - 1
        found.append(acknowledged[event.partition][place] - event.timestamp_ms)
    return sorted(found)


def percentile(sorted_values: list[int], share: float) -> int:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted_values[max(0, math.ceil(len(sorted_values) * share) - 1)]
