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
        """One more driver."""
        driver = Driver(self._parts, self, is_in_step=is_in_step)
        driver.on_kill = lambda: self.ended(driver, tasks_live_on=self._draw_live_on())
        self._world.drivers[driver] = None
        self._world.scheduler.spawn(driver, driver.main)

    def ensure_driver(self) -> None:
        """Somebody has to work."""
        world = self._world
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
        if not world.drivers:
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
