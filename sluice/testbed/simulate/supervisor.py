"""Who starts drivers, and sees to a successor when one has ended."""

from __future__ import annotations

from sluice.testbed.simulate.checks import Checks
from sluice.testbed.simulate.columns import align_columns
from sluice.testbed.simulate.driver import Driver
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.processes import DriverProcess

#: The longest time without any driver.
LONG_OUTAGE_MS = 600_000


class Supervisor:
    """Of one world."""

    def __init__(self, parts: Parts, checks: Checks) -> None:
        self._parts = parts
        self._world = parts.world
        self._checks = checks

    def start(self, *, is_in_step: bool = False) -> None:
        """One more driver; of a fleet a member that is missing, or once more one that is there."""
        missing = self._missing()
        rng = self._world.fleet_rng
        names = missing or [each.member for each in self._world.drivers if each.member]
        self._start(rng.choice(names) if names else "", is_in_step=is_in_step)

    def _start(self, member: str, *, is_in_step: bool = False) -> None:
        driver = Driver(self._parts, self, is_in_step=is_in_step, member=member)
        driver.on_kill = lambda: self.ended(driver, tasks_live_on=self._draw_live_on())
        self._world.drivers[driver] = None
        driver.main_actor = self._world.scheduler.spawn(driver, driver.main)

    def _missing(self) -> list[str]:
        """Members that do not run."""
        running = {driver.member for driver in self._world.drivers}
        names = (f"m{number}" for number in range(self._world.plan.members))
        return [name for name in names if name not in running]

    def begin(self) -> None:
        """The first driver, and the others of its fleet some time later."""
        self.start()
        rng = self._world.fleet_rng
        longest_ms = rng.choice((3_000, 60_000))
        for name in self._missing():
            self._start_later(name, rng.randrange(longest_ms))

    def _start_later(self, member: str, delay_ms: int) -> None:
        def start() -> None:
            if member in self._missing():
                self._start(member)

        self._world.scheduler.at(delay_ms, start)

    def ensure_driver(self) -> None:
        """Somebody has to work."""
        world = self._world
        for name in self._missing() if world.plan.members else ():
            self._start(name)
        if not world.drivers:
            self.start()
            if world.faults.is_on and world.rng.random() < 0.15:
                world.faults.note("two drivers start at once")
                self.start()

    def kill(self, driver: DriverProcess, *, tasks_live_on: bool | None = None) -> None:
        """Kill a driver; it takes its workers along, at once or later."""
        self._world.scheduler.kill(driver)
        live_on = self._draw_live_on() if tasks_live_on is None else tasks_live_on
        self.ended(driver, tasks_live_on=live_on)

    def succeed(self, driver: DriverProcess) -> None:
        """The next driver comes soon, with another engine."""
        world = self._world
        world.plan.decoder += 1
        self.kill(driver, tasks_live_on=True)
        world.scheduler.at(world.rng.randrange(500), self.ensure_driver)

    def ended(self, driver: DriverProcess, *, tasks_live_on: bool) -> None:
        """Look at what it left, and see to a successor."""
        world = self._world
        if driver not in world.drivers:
            return
        del world.drivers[driver]
        self._checks.look_at_stops(driver)
        if "has another columns" in driver.ending:
            world.faults.note("shards left with different columns")
            align_columns(world)
        driver.end_spark(tasks_live_on=tasks_live_on)
        world.scheduler.at(0, lambda: world.scheduler.kill(driver))
        if world.plan.members:
            # Within a silence, or after it; some stay away until everything is healed.
            longest_ms = world.fleet_rng.choice((2_000, 10_000, 60_000, 900_000))
            self._start_later(driver.member, world.fleet_rng.randrange(longest_ms))
        elif not world.drivers:
            world.scheduler.at(self._draw_restart_ms(), self.ensure_driver)

    def _draw_live_on(self) -> bool:
        return self._world.rng.random() < 0.5

    def _draw_restart_ms(self) -> int:
        """Until the next driver starts; sometimes leases and windows pass."""
        world = self._world
        point = world.rng.random()
        if not world.faults.is_on or point < 0.6:
            return world.rng.randrange(3_000)
        if point < 0.75:
            return world.rng.randrange(int(world.plan.lease_seconds * 1000))
        if world.rng.random() < 0.5:
            world.scheduler.at(world.plan.quiet_ms + 1_000, self._parts.adversary.flood_windows)
            return world.plan.quiet_ms + 2_000
        # Nothing is written meanwhile: only the age of blocks tells that they may be forgotten.
        seconds = max((t.shape.seconds or 0 for t in world.clickhouse.tables()), default=0)
        return max(world.plan.quiet_ms, min(seconds * 1_000, LONG_OUTAGE_MS)) + 2_000
