"""Carrying a fault out on the real stack, and healing it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sluice.chaos.proxy import Fault, Kind, Proxy
from sluice.chaos.schedule import Deed, Strike, Target
from sluice.chaos.stage import LEASE_SECONDS, Stage
from sluice.core.errors import TerminalError
from sluice.local.running import Program

#: A request to strike at has to come within this time.
_AMBUSH_SECONDS_MAX = 20.0
_LONGEST_AMBUSH_SECONDS = 0.03
_TAKE_OVER_SECONDS_MAX = 120.0
_START_ATTEMPTS = 3
#: How long an insert may take to lose its acknowledgement before the window is overrun.
_IN_DOUBT_SECONDS_MAX = 6.0


@dataclass(slots=True)
class Lasting:
    """A fault that lasts.

    :param heals: ends it, in the main thread.
    :param until: a moment of the monotonic clock; likewise `gives_up_at`.
    :param ready: False while it has to last on, whatever the clock says.
    :param gives_up_at: it is healed then, ready or not.
    :param healing: the start of a server, which goes on beside everything else.
    """

    strike: Strike
    heals: Callable[[], None]
    until: float
    ready: Callable[[], bool] = lambda: True
    gives_up_at: float = float("inf")
    healing: Future[None] | None = None

    def is_due(self, now: float) -> bool:
        """Whether it is time to heal it."""
        return (now >= self.until and self.ready()) or now >= self.gives_up_at


class Striker:
    """Strikes and heals. `strike` gives None where there was nothing to strike at.

    :param say: tells a person what becomes of a fault.
    """

    def __init__(self, stage: Stage, say: Callable[[str], None]) -> None:
        self._stage = stage
        self._say = say
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="healing")

    def close(self) -> None:
        """Wait for servers that are being started."""
        self._pool.shutdown(wait=True)

    def strike(self, strike: Strike) -> Lasting | None:
        """Begin a fault."""
        if isinstance(strike.what, Kind):
            return self._strike_link(strike, strike.what)
        if strike.target in (Target.BROKER, Target.CLICKHOUSE):
            return self._strike_server(strike)
        match strike.what:
            case Deed.SUCCEED:
                return self._succeed(strike)
            case Deed.OVERFLOW:
                return self._overflow(strike)
            case Deed.KILL_SPARK_WORKER:
                return self._kill_spark_worker(strike)
        if strike.target is Target.WORKER:
            return self._strike_worker(strike)
        return self._strike_driver(strike)

    def heal(self, lasting: Lasting) -> None:
        """End a fault; a server's start goes on in `lasting.healing`."""
        lasting.heals()
        if lasting.strike.target in (Target.BROKER, Target.CLICKHOUSE) and (
            lasting.strike.what is not Deed.PAUSE
        ):
            lasting.healing = self._pool.submit(self._start_again, self._server(lasting.strike))

    def _strike_link(self, strike: Strike, kind: Kind) -> Lasting:
        link = self._link(strike.target)
        delay_seconds = 0.05 + strike.dice
        rate = int(32 * 1024 + strike.dice * 512 * 1024)
        link.strike(Fault(kind, seconds=delay_seconds, bytes_per_second=rate))
        return self._lasting(strike, link.heal)

    def _strike_server(self, strike: Strike) -> Lasting:
        server = self._server(strike)
        match strike.what:
            case Deed.PAUSE:
                pid = self._serving_pid(strike.target)
                os.kill(pid, signal.SIGSTOP)
                return self._lasting(strike, lambda: _signal(pid, signal.SIGCONT))
            case Deed.KILL:
                server.kill()
            case Deed.RESTART:
                server.stop()
            case _:
                return self._kill_in_request(strike, server)
        return self._lasting(strike, lambda: None)

    def _kill_in_request(self, strike: Strike, server: Program) -> Lasting:
        """Kill a server a few milliseconds after it got an insert, or a part of a transaction."""
        is_broker = strike.target is Target.BROKER
        link = self._link(Target.KAFKA_LINK if is_broker else Target.CLICKHOUSE_LINK)
        struck = threading.Event()
        pid = server.pid

        def kill() -> None:
            _signal(pid, signal.SIGKILL)
            struck.set()

        link.ambush(strike.dice * _LONGEST_AMBUSH_SECONDS, kill)

        def heal() -> None:
            if link.disarm():
                self._say(f"{strike.name}: no request came; it is killed without one")
            server.kill()

        lasting = self._lasting(strike, heal)
        lasting.ready = struck.is_set
        lasting.gives_up_at = time.monotonic() + _AMBUSH_SECONDS_MAX
        return lasting

    def _strike_driver(self, strike: Strike) -> Lasting | None:
        drivers = self._stage.drivers
        if not drivers.lives:
            return None
        driver = drivers.current
        if strike.what is Deed.PAUSE:
            # The process alone, or with its JVM and its workers; the latter outlast the lease.
            pids = [driver.process.pid] if strike.dice < 0.5 else drivers.tree()
            return self._pause(strike, pids)
        if strike.what is Deed.KILL_JVM:
            jvm = drivers.jvm()
            if jvm is None:
                return None
            _signal(jvm, signal.SIGKILL)
            return self._lasting(strike, lambda: None)
        drivers.is_held = True
        driver.process.kill()
        driver.process.wait()
        return self._lasting(strike, lambda: setattr(drivers, "is_held", False))

    def _strike_worker(self, strike: Strike) -> Lasting | None:
        workers = self._stage.drivers.spark_workers()
        if not workers:
            return None
        pid = workers[int(strike.dice * len(workers))]
        if strike.what is Deed.PAUSE:
            return self._pause(strike, [pid])
        _signal(pid, signal.SIGKILL)
        return self._lasting(strike, lambda: None)

    def _pause(self, strike: Strike, pids: list[int]) -> Lasting:
        for pid in pids:
            _signal(pid, signal.SIGSTOP)

        def wake() -> None:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

        return self._lasting(strike, wake)

    def _succeed(self, strike: Strike) -> Lasting | None:
        """Stop the driver's process, start another, wake the old one when it has taken over."""
        drivers, positions = self._stage.drivers, self._stage.positions
        if not drivers.lives or not positions.owners:
            return None
        old, before = drivers.current, positions.owners
        _signal(old.process.pid, signal.SIGSTOP)
        drivers.start()

        def has_taken_over() -> bool:
            return not positions.owners & before

        def wake() -> None:
            if has_taken_over():
                _signal(old.process.pid, signal.SIGCONT)
                drivers.woken(old)
            else:
                self._say(f"{strike.name}: nobody took over in time; it is killed instead")
                old.process.kill()

        lasting = self._lasting(strike, wake)
        lasting.ready = has_taken_over
        lasting.gives_up_at = time.monotonic() + _TAKE_OVER_SECONDS_MAX
        return lasting

    def _overflow(self, strike: Strike) -> Lasting | None:
        """Lose an acknowledgement, stop the driver, overrun the window.

        Half the time the driver is killed, else all of it sleeps for longer than the lease.
        """
        stage, drivers = self._stage, self._stage.drivers
        if not drivers.lives:
            return None
        link = stage.clickhouse_link
        dropped = link.counters.dropped_replies
        link.strike(Fault(Kind.DROP_REPLY))
        until = time.monotonic() + _IN_DOUBT_SECONDS_MAX
        while link.counters.dropped_replies == dropped and time.monotonic() < until:
            time.sleep(0.02)
        if strike.dice < 0.5:
            drivers.is_held = True
            drivers.current.kill()
            link.heal()
            stage.overrun_window()
            return self._lasting(strike, lambda: setattr(drivers, "is_held", False))
        pids = drivers.tree()
        stopped_at = time.monotonic()
        lasting = self._pause(strike, pids)
        link.heal()
        stage.overrun_window()
        lasting.until = max(lasting.until, stopped_at + LEASE_SECONDS + 1)
        return lasting

    def _kill_spark_worker(self, strike: Strike) -> Lasting | None:
        cluster = self._stage.cluster
        if cluster is None or not cluster.workers:
            return None
        cluster.kill_worker(int(strike.dice * 100))
        return self._lasting(strike, cluster.add_worker)

    def _lasting(self, strike: Strike, heals: Callable[[], None]) -> Lasting:
        return Lasting(strike, heals, until=time.monotonic() + strike.seconds)

    def _start_again(self, server: Program) -> None:
        for attempt in range(_START_ATTEMPTS):
            try:
                return server.start()
            except TerminalError:
                if attempt == _START_ATTEMPTS - 1:
                    raise
                time.sleep(1)

    def _server(self, strike: Strike) -> Program:
        stage = self._stage
        return stage.broker if strike.target is Target.BROKER else stage.clickhouse

    def _serving_pid(self, target: Target) -> int:
        if target is Target.BROKER:
            return self._stage.broker.jvm_pid
        return self._stage.clickhouse.pid

    def _link(self, target: Target) -> Proxy:
        if target is Target.KAFKA_LINK:
            return self._stage.kafka_link
        return self._stage.clickhouse_link


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
