"""The drivers of a chaos run: started, restarted, and those that were succeeded; and
where their pipeline stands, seen from outside: its committed offsets, read again and again.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka as ck

from sluice.core.errors import SluiceError
from sluice.core.records import decode
from sluice.kafka.clients import KafkaAccess, make_consumer
from sluice.testbed.local.driver import Driver, running_driver
from sluice.testbed.local.processes import descendants, python_workers

_LOOK_SECONDS = 0.5
_TIMEOUT_SECONDS = 3.0


class Positions:
    """A thread that follows the settled positions and their owners.

    :param access: to the broker directly, past every fault of the network.
    """

    def __init__(self, access: KafkaAccess, group: str, topic: str, partitions: int) -> None:
        self._sources = [ck.TopicPartition(topic, number) for number in range(partitions)]
        self._consumer = make_consumer(access, group)
        self._settled = 0
        self._owners: frozenset[str] = frozenset()
        self._moved_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="positions", daemon=True)
        self._thread.start()

    @property
    def settled(self) -> int:
        """Sum of all settled positions."""
        return self._settled

    @property
    def owners(self) -> frozenset[str]:
        """Who owns the partitions."""
        return self._owners

    def moved_within(self, seconds: float) -> bool:
        """Whether anything was settled lately."""
        return time.monotonic() - self._moved_at < seconds

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                found = self._consumer.committed(self._sources, timeout=_TIMEOUT_SECONDS)
                records = [decode(f.offset, f.metadata) for f in found if f.offset >= 0]
            except (ck.KafkaException, SluiceError):
                continue  # the broker is away; that is what this run is about
            settled = sum(record.begin for record in records)
            if settled != self._settled:
                self._settled, self._moved_at = settled, time.monotonic()
            self._owners = frozenset(record.owner for record in records)


class AllPositions:
    """Several connectors as one."""

    def __init__(self, connectors: Sequence[Positions]) -> None:
        self.connectors = connectors

    @property
    def settled(self) -> int:
        """Sum of all settled positions."""
        return sum(each.settled for each in self.connectors)

    @property
    def owners(self) -> frozenset[str]:
        """Who owns the partitions."""
        return frozenset().union(*(each.owners for each in self.connectors))

    def moved_within(self, seconds: float) -> bool:
        """Whether anything was settled lately, by any of them."""
        return any(each.moved_within(seconds) for each in self.connectors)

    def close(self) -> None:
        """Stop following."""
        for each in self.connectors:
            each.close()


OWNER_CHANGED = 4
#: A woken driver that was succeeded has to notice and end, even while more faults strike.
_NOTICE_SECONDS_MAX = 180.0
_DRAIN_SECONDS_MAX = 420.0
_DRAIN_ATTEMPTS = 3
_LOG_LINES = 3
#: A driver that ends so soon, and nobody killed it, cannot start: no use to go on for ever.
_EARLY_SECONDS = 20.0
_EARLY_ENDS_MAX = 4

Say = Callable[[str], None]


@dataclass(slots=True)
class _Woken:
    """A driver that slept while another took over; it has to end with status 4."""

    driver: Driver
    until: float


class Drivers:
    """Keeps one driver running. To be used from the main thread only: drivers end with it.

    :param configuration: what `sluice run` gets.
    :param roots: process ids below which Spark's workers may live too (a cluster).
    """

    def __init__(
        self, configuration: Path, folder: Path, say: Say, roots: Callable[[], list[int]]
    ) -> None:
        self.restarts = 0
        self.fenced = 0
        self.violations: list[str] = []
        self._configuration = configuration
        self._folder = folder
        self._say = say
        self._roots = roots
        self._stack = ExitStack()
        self._current: Driver | None = None
        self._started = 0
        self._started_at = 0.0
        self._early_ends = 0
        self._woken: list[_Woken] = []
        #: While set, a driver that has ended stays so.
        self.is_held = False

    @property
    def current(self) -> Driver:
        """The driver that should be at work."""
        assert self._current is not None, "start() first"
        return self._current

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._current is not None and self._current.process.poll() is None

    def start(self, *more: str) -> Driver:
        """Start a driver; it is the current one from now on."""
        log = self._folder / f"driver-{self._started}.log"
        self._started += 1
        arguments = ["-m", "sluice", "run", str(self._configuration), "--log-format", "json"]
        driver = self._stack.enter_context(running_driver([*arguments, *more], log))
        self._current = driver
        self._started_at = time.monotonic()
        return driver

    def supervise(self) -> None:
        """Restart what has ended; watch those that were woken.

        :raises TerminalError: drivers end by themselves, one after the other.
        """
        if not self.lives and not self.is_held:
            status = self.current.process.returncode
            if status >= 0:
                self._say(f"the driver ended with status {status}{self._last_words()}")
            is_early = status >= 0 and time.monotonic() - self._started_at < _EARLY_SECONDS
            self._early_ends = self._early_ends + 1 if is_early else 0
            if self._early_ends == _EARLY_ENDS_MAX:
                raise self.current.failure(f"ended by itself {_EARLY_ENDS_MAX} times in a row")
            self.restarts += 1
            self._say("the driver is started again")
            self.start()
        self._look_at_woken()

    def woken(self, driver: Driver) -> None:
        """A driver that was succeeded runs again: it has to end with status 4."""
        self._woken.append(_Woken(driver, time.monotonic() + _NOTICE_SECONDS_MAX))

    @property
    def has_woken(self) -> bool:
        """Whether one that was succeeded has still to end."""
        return bool(self._woken)

    def spark_workers(self) -> list[int]:
        """Python workers of the current driver and of the cluster, and what forks them."""
        return python_workers([self.current.process.pid, *self._roots()])

    def jvm(self) -> int | None:
        """The process of Spark's JVM."""
        for each in descendants(self.current.process.pid):
            if each.name == "java":
                return each.pid
        return None

    def tree(self) -> list[int]:
        """The driver and all processes below it, the driver last."""
        pid = self.current.process.pid
        return [*(each.pid for each in reversed(descendants(pid))), pid]

    def drain(self) -> None:
        """End the current driver in order, then load all that is left.

        :raises TerminalError: it does not end with status 0.
        """
        self.is_held = True
        if self.lives:
            self.current.process.send_signal(signal.SIGTERM)
            self._wait(90)
        statuses = []
        for _ in range(_DRAIN_ATTEMPTS):
            self.start("--until-caught-up")
            statuses.append(self._wait(_DRAIN_SECONDS_MAX))
            if statuses[-1] == 0:
                break
            self._say(f"draining ended with status {statuses[-1]}{self._last_words()}")
        while self._woken:
            self._look_at_woken()
            time.sleep(0.1)
        if statuses[-1] != 0:
            raise self.current.failure(f"does not drain: statuses {statuses}")

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def logged(self, words: str) -> int:
        """How often these words stand in all drivers' logs."""
        return sum(
            log.read_text(errors="replace").count(words)
            for log in self._folder.glob("driver-*.log")
        )

    def _look_at_woken(self) -> None:
        for woken in list(self._woken):
            status = woken.driver.process.poll()
            if status is None and time.monotonic() < woken.until:
                continue
            self._woken.remove(woken)
            if status == OWNER_CHANGED:
                self.fenced += 1
                self._say("the woken driver found its successor and ended with status 4")
            else:
                what = f"status {status}" if status is not None else "it did not end"
                self.violations.append(f"a woken driver: {what}, 4 expected; {woken.driver.log}")
                self._say(self.violations[-1])

    def _wait(self, seconds: float) -> int | None:
        """Wait for the current driver; None if it had to be killed."""
        until = time.monotonic() + seconds
        while self.lives and time.monotonic() < until:
            self._look_at_woken()
            time.sleep(0.1)
        if self.lives:
            self._say(f"the driver does not end within {seconds:.0f} s{self._last_words()}")
            self.current.process.kill()
            self.current.process.wait()
            return None
        return self.current.process.returncode

    def _last_words(self) -> str:
        lines = self.current.log.read_text(errors="replace").strip().splitlines()
        return "".join(f"\n    {line[:300]}" for line in lines[-_LOG_LINES:])
