"""One seed: a world, the real loader in it, and the order in which it breaks."""

from __future__ import annotations

from sluice.testbed.simulate.checks import Checks
from sluice.testbed.simulate.nemesis import Nemesis
from sluice.testbed.simulate.parts import make_parts
from sluice.testbed.simulate.scheduler import Actor
from sluice.testbed.simulate.supervisor import Supervisor
from sluice.testbed.simulate.world import World

#: A drain that takes longer is no drain.
DRAIN_MS_MAX = 4 * 3600 * 1000
DRAIN_STEPS_MAX = 40_000
#: How often the drain looks whether it is done, in events.
LOOK_EVERY = 40


class Simulation:
    """A run of one world; its `violations` say what went wrong.

    :param steps: with faults; afterwards everything is healed and must drain.
    """

    def __init__(self, world: World, steps: int) -> None:
        self.world = world
        self.parts = make_parts(world)
        self.checks = Checks(self.parts)
        self._supervisor = Supervisor(self.parts, self.checks)
        self._nemesis = Nemesis(self.parts, self._supervisor)
        world.broker.committing = self.checks.committing
        world.scheduler.on_crash = self._crashed
        world.scheduler.is_over = self._is_over
        self._steps = steps
        self._healed_at: tuple[int, int] | None = None
        self._look_in = LOOK_EVERY

    def run(self) -> None:
        """Faults, then healing, then the drain; violations are in `checks`."""
        self._supervisor.start()
        self._nemesis.start()
        self.world.scheduler.run()
        self.checks.final()

    def close(self) -> None:
        """End every thread."""
        self.world.faults.is_on = False
        self.world.scheduler.end()

    def _crashed(self, actor: Actor, error: BaseException) -> None:
        self.world.violate(f"{actor.process.name} ended on a bug: {type(error).__name__}: {error}")
        if self.world.is_shown:
            import traceback

            traceback.print_exception(error)

    def _is_over(self) -> bool:
        world = self.world
        if world.violations:
            return True
        if self._healed_at is None:
            if world.scheduler.steps >= self._steps:
                self._healed_at = (world.scheduler.steps, world.now)
                self._nemesis.heal()
            else:
                self._nemesis.strike()
            return False
        self._look_in -= 1
        if self._look_in > 0:
            return False
        self._look_in = LOOK_EVERY
        self._supervisor.ensure_driver()
        for driver in world.drivers:
            self.checks.look_at_stops(driver)
        if self.checks.is_drained():
            return True
        steps, at_ms = self._healed_at
        if world.now - at_ms > DRAIN_MS_MAX or world.scheduler.steps - steps > DRAIN_STEPS_MAX:
            world.violate(f"did not drain: {self.checks.what_is_left()}")
        return False
