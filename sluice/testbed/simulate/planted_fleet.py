"""Bugs of drivers that share partitions (R25) and deduplication windows (R24), planted in worlds
with a fleet."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.core.errors import OwnerChangedError
from sluice.core.fleet.floors import Floors, Share
from sluice.core.fleet.placement import Homes
from sluice.core.records import Kind
from sluice.driver import recording, shared_windows
from sluice.driver.inheriting import Heir
from sluice.driver.start import first_records
from sluice.driver.state import Holds
from sluice.kafka.offsets import owner_in, record_in
from sluice.kafka.recorder import Recorder, TakeOver
from sluice.testbed.simulate.planting import Bugs, patched

FLEET_BUGS = Bugs()


@FLEET_BUGS.plant
def dead_are_fenced_after_reading() -> AbstractContextManager[None]:
    """Who is thought dead is fenced only after what it left was read."""

    def inherit(self: Any, dead: Any, sources: Any) -> TakeOver:
        found = self.committed(s for s, at in self.look(sources).items() if owner_in(at) in dead)
        owners = {source: owner_in(at) for source, at in found.items()}
        return TakeOver(found, owners, dict.fromkeys(dead))

    finish = Recorder.finish_take_over

    def late(self: Any, take_over: Any, commit: Any) -> None:
        for owner, producer in take_over.producers.items():
            take_over.producers[owner] = producer or self._initialised(owner)
        finish(self, take_over, commit)

    return patched((Recorder, "inherit", inherit), (Recorder, "finish_take_over", late))


@FLEET_BUGS.plant
def handed_over_in_doubt() -> AbstractContextManager[None]:
    """A range that is loaded goes to another owner with the record that only repeats it."""
    real = recording.RoundRecorder.record

    def record(self: Any, updates: Any, now_ms: int) -> Any:
        return real(self, [handed(self, update) for update in updates], now_ms)

    def handed(self: Any, update: Any) -> Any:
        to = self._states[update.source].hands_to
        if not to or update.record.kind is not Kind.RENEW:
            return update
        return replace(update, record=replace(update.record, owner=to), dispatch=False)

    return patched(
        (recording.RoundRecorder, "record", record),
        (recording, "may_hand_over", lambda *_: True),
    )


@FLEET_BUGS.instead_of(recording.RoundRecorder, "_committed")
def handed_over_and_not_forgotten(real: Any, self: Any, update: Any, record: Any) -> Any:
    """Who has handed a partition over goes on with what it knows of it."""
    self._states[update.source].hands_to = ""
    return real(self, update, record)


@FLEET_BUGS.plant
def taken_without_reading_the_owner() -> AbstractContextManager[None]:
    """A partition that should be one's own is, whatever its record names."""

    def is_given(self: Any, source: Any, at: Any, held: Any) -> bool:
        is_own = owner_in(at) == self._own
        return source not in held and record_in(at) is not None and (is_own or self.is_home(source))

    def step(self: Any, held: Any, view: Any, batch: int) -> Any:
        self.is_home = lambda source: Homes(view, self._sources()).of(source) == view.own
        return real_step(self, held, view, batch)

    def adopt(self: Any, given: Any, batch: int, *, is_unsure: bool) -> Any:
        found = self._recorder.committed(given)
        view = self._read_last(given)
        taken = TakeOver(dict(found), dict.fromkeys(found, self._own), {})
        return first_records(self._parts, taken, view, batch, keeps=True)

    real_step = Heir._step
    return patched((Heir, "_is_given", is_given), (Heir, "_step", step), (Heir, "_adopt", adopt))


@FLEET_BUGS.instead_of(Recorder, "inherit")
def own_id_initialised_by_a_take_over(real: Any, self: Any, dead: Any, sources: Any) -> Any:
    """A take-over beside the loop initialises the loop's own id, too."""
    self.own_producer()
    return real(self, dead, sources)


@FLEET_BUGS.instead_of(Recorder, "finish_take_over")
def an_heir_that_was_fenced_tries_again(real: Any, self: Any, take_over: Any, commit: Any) -> None:
    """Of two heirs of one id the one that was fenced initialises it again, and records what it
    found before."""
    producers = dict(take_over.producers)
    try:
        real(self, take_over, commit)
    except OwnerChangedError:
        take_over.producers = {owner: self._initialised(owner) for owner in producers}
        real(self, take_over, commit)


@FLEET_BUGS.instead_of(Floors, "share")
def half_a_window_beside_others(real: Any, self: Any, window: str) -> Share | None:
    """A member uses of a window what one alone may."""
    return None


@FLEET_BUGS.instead_of(Floors, "share")
def a_floor_that_is_not_counted(real: Any, self: Any, window: str) -> Share | None:
    """A member counts what came since its own floor, whatever others hold."""
    found: Share | None = real(self, window)
    return None if found is None else replace(found, floor=found.floor and found.own)


@FLEET_BUGS.instead_of(shared_windows, "floors_of")
def a_floor_that_is_forgotten(real: Any, windows: Any, states: Any, *rest: Any) -> Any:
    """A floor is that of the last reading, whatever is in doubt since before it."""
    return real(windows, (), Holds(), *rest[1:])[0], real(windows, states, *rest)[1]


@FLEET_BUGS.instead_of(shared_windows, "floors_of")
def late_inserts_have_no_floor(real: Any, windows: Any, states: Any, holds: Any, *rest: Any) -> Any:
    """What is settled and may still be inserted keeps no floor."""
    lowest, _ = real(windows, states, Holds(), *rest)
    return lowest, real(windows, states, holds, *rest)[1]
