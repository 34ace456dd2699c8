"""Carrying a fault out on the real stack, and healing it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from sluice.core.errors import InDoubtError, TerminalError, TransientError
from sluice.testbed.chaos.cluster_stage import AnyStage
from sluice.testbed.chaos.drivers import Say
from sluice.testbed.chaos.layout import Victim
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.schedule import Deed, Strike, Target
from sluice.testbed.chaos.stage import LEASE_SECONDS
from sluice.testbed.chaos.store import RedisStruck
from sluice.testbed.local.processes import signal_to, usage

#: A request to strike at has to come within this time.
_AMBUSH_SECONDS_MAX = 20.0
_LONGEST_AMBUSH_SECONDS = 0.03
_TAKE_OVER_SECONDS_MAX = 120.0
#: A server may not come up while what it needs is away as well.
_START_SECONDS_MAX = 150.0
#: How long an insert may take to lose its acknowledgement before the window is overrun.
_IN_DOUBT_SECONDS_MAX = 6.0
_SERVERS = (
    *(Target.BROKER, Target.CLICKHOUSE, Target.ZOOKEEPER, Target.DATA_CENTER, Target.STORE),
)


@dataclass(slots=True)
class Lasting:
    """A fault that lasts.

    :param heals: ends it, in the main thread.
    :param until: a moment of the monotonic clock; likewise `gives_up_at`.
    :param ready: False while it has to last on, whatever the clock says.
    :param gives_up_at: it is healed then, ready or not.
    :param healing: the starts of servers, which go on beside everything else.
    """

    strike: Strike
    heals: Callable[[], None]
    until: float
    ready: Callable[[], bool] = lambda: True
    gives_up_at: float = float("inf")
    healing: list[Future[None]] = field(default_factory=list)

    def is_due(self, now: float) -> bool:
        """Whether it is time to heal it."""
        return (now >= self.until and self.ready()) or now >= self.gives_up_at


class Striker:
    """Strikes and heals. `strike` gives None where there was nothing to strike at.

    :param say: tells a person what becomes of a fault.
    """

    def __init__(self, stage: AnyStage, say: Say) -> None:
        self._stage = stage
        self._say = say
        self._pool = ThreadPoolExecutor(12, thread_name_prefix="healing")

    def close(self) -> None:
        """Wait for servers that are being started; those that were started again end now."""
        self._pool.shutdown(wait=True)

    def strike(self, strike: Strike) -> Lasting | None:
        """Begin a fault."""
        if isinstance(strike.what, Kind):
            return self._strike_links(strike, strike.what)
        if strike.what in (Deed.LOSE_DATA, Deed.LOSE_END, Deed.EMPTY):
            return self._strike_store(strike)
        if strike.target in _SERVERS:
            return self._strike_servers(strike)
        match strike.what:
            case Deed.SUCCEED:
                return self._succeed(strike)
            case Deed.OVERFLOW:
                return self._overflow(strike)
            case Deed.KILL_SPARK_WORKER:
                return self._kill_spark_worker(strike)
        if strike.target is Target.TABLE:
            return self._strike_table(strike)
        if strike.target is Target.WORKER:
            return self._strike_worker(strike)
        return self._strike_driver(strike)

    def heal(self, lasting: Lasting) -> None:
        """End a fault; the start of servers goes on in `lasting.healing`."""
        lasting.heals()
        strike = lasting.strike
        if strike.target in _SERVERS and strike.what not in (Deed.PAUSE, Deed.EMPTY, *Kind):
            lasting.healing = [
                self._pool.submit(self._start_again, victim)
                for victim in self._stage.victims_of(strike)
            ]

    def _strike_links(self, strike: Strike, kind: Kind) -> Lasting:
        links = self._stage.links_of(strike)
        delay_seconds = 0.05 + strike.dice
        rate = int(32 * 1024 + strike.dice * 512 * 1024)

        def heal() -> None:
            for link in links:
                link.heal()

        for link in links:
            link.strike(LinkFault(kind, seconds=delay_seconds, bytes_per_second=rate))
        return self._lasting(strike, heal)

    def _strike_servers(self, strike: Strike) -> Lasting:
        victims = self._stage.victims_of(strike)
        match strike.what:
            case Deed.PAUSE:
                return self._pause(strike, [victim.server.serving_pid for victim in victims])
            case Deed.KILL:
                for victim in victims:
                    victim.server.kill()
            case Deed.RESTART | Deed.OTHER_ZONE:
                if strike.what is Deed.OTHER_ZONE and self._stage.single is not None:
                    self._stage.single.change_zone()
                # It takes some servers ten seconds to end in order.
                ends = [self._pool.submit(victim.server.stop) for victim in victims]
                lasting = self._lasting(strike, lambda: None)
                lasting.ready = lambda: all(end.done() for end in ends)
                return lasting
            case _:
                return self._kill_in_request(strike, victims[0])
        return self._lasting(strike, lambda: None)

    def _strike_store(self, strike: Strike) -> Lasting | None:
        """What only a store of claims suffers. A local one dies with those who use it."""
        store, drivers = self._stage.store, self._stage.drivers
        if isinstance(store, RedisStruck):
            if strike.what is Deed.EMPTY:
                store.empty()
                return self._lasting(strike, lambda: None)
            store.server.kill()
            if strike.what is Deed.LOSE_END:
                store.lose_end(strike.dice)
            else:
                store.lose_data()
            return self._lasting(strike, lambda: None)
        if store is None or not drivers.lives:
            return None
        drivers.is_held = True
        killed = drivers.tree()

        def heal() -> None:
            store.lose_data()
            drivers.is_held = False

        for pid in killed:
            signal_to(pid, signal.SIGKILL)
        lasting = self._lasting(strike, heal)
        lasting.ready = lambda: not drivers.has_woken and not any(map(usage, killed))
        return lasting

    def _kill_in_request(self, strike: Strike, victim: Victim) -> Lasting:
        """Kill a server a few milliseconds after it got an insert, or a part of a transaction."""
        link = self._stage.links_of(strike)[0]
        struck = threading.Event()
        pid = victim.server.pid

        def kill() -> None:
            signal_to(pid, signal.SIGKILL)
            struck.set()

        link.ambush(strike.dice * _LONGEST_AMBUSH_SECONDS, kill)

        def heal() -> None:
            if link.disarm():
                self._say(f"{strike.told}: no request came; it is killed without one")
            victim.server.kill()

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
            signal_to(jvm, signal.SIGKILL)
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
        if strike.what in (Deed.PAUSE, Deed.HANG):
            return self._pause(strike, [pid])
        signal_to(pid, signal.SIGKILL)
        return self._lasting(strike, lambda: None)

    def _strike_table(self, strike: Strike) -> Lasting | None:
        """What somebody else does to the table. A server that is away is told nothing."""
        single = self._stage.single
        if single is None:
            return None
        deed = single.add_column if strike.what is Deed.ADD_COLUMN else single.fill_half_window
        try:
            deed()
        except (TransientError, InDoubtError):
            return None
        return self._lasting(strike, lambda: None)

    def _pause(self, strike: Strike, pids: list[int]) -> Lasting:
        for pid in pids:
            signal_to(pid, signal.SIGSTOP)

        def wake() -> None:
            for pid in pids:
                signal_to(pid, signal.SIGCONT)

        return self._lasting(strike, wake)

    def _succeed(self, strike: Strike) -> Lasting | None:
        """Stop the driver's process, start another, wake the old one when it has taken over."""
        drivers, positions = self._stage.drivers, self._stage.positions
        # One that lost its JVM a moment ago ends for that, whoever succeeds it.
        if not drivers.lives or drivers.jvm() is None or not positions.owners:
            return None
        old, before = drivers.current, positions.owners
        signal_to(old.process.pid, signal.SIGSTOP)
        drivers.start()

        def has_taken_over() -> bool:
            return not positions.owners & before

        def wake() -> None:
            if has_taken_over():
                signal_to(old.process.pid, signal.SIGCONT)
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
        links = stage.insert_links()
        dropped = _dropped(links)
        for link in links:
            link.strike(LinkFault(Kind.DROP_REPLY))
        until = time.monotonic() + _IN_DOUBT_SECONDS_MAX
        while _dropped(links) == dropped and time.monotonic() < until:
            time.sleep(0.02)

        def heal() -> None:
            for link in links:
                link.heal()

        if strike.dice < 0.5:
            drivers.is_held = True
            drivers.current.kill()
            heal()
            stage.overrun_window()
            return self._lasting(strike, lambda: setattr(drivers, "is_held", False))
        pids = drivers.tree()
        stopped_at = time.monotonic()
        lasting = self._pause(strike, pids)
        heal()
        stage.overrun_window()
        lasting.until = max(lasting.until, stopped_at + LEASE_SECONDS + 1)
        return lasting

    def _kill_spark_worker(self, strike: Strike) -> Lasting | None:
        cluster = self._stage.spark
        if cluster is None or not cluster.workers:
            return None
        cluster.kill_worker(int(strike.dice * 100))
        return self._lasting(strike, cluster.add_worker)

    def _lasting(self, strike: Strike, heals: Callable[[], None]) -> Lasting:
        return Lasting(strike, heals, until=time.monotonic() + strike.seconds)

    def _start_again(self, victim: Victim) -> None:
        until = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                victim.start()
                return
            except TerminalError:
                if time.monotonic() > until:
                    raise
                victim.server.kill()
                time.sleep(1)


def _dropped(links: Sequence[Proxy]) -> int:
    return sum(link.counters.dropped_replies for link in links)
