"""Bugs of drivers that share partitions (R25), planted in worlds with a fleet."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.core.fleet.placement import Homes
from sluice.core.records import Kind
from sluice.driver import recording
from sluice.driver.inheriting import Heir, named_by, record_at
from sluice.driver.start import first_records
from sluice.kafka.offsets import owner_in
from sluice.kafka.recorder import Recorder, TakeOver
from sluice.testbed.simulate.patches import patched


def _take_over_without_fencing_the_dead() -> AbstractContextManager[None]:
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


def _handed_over_in_doubt() -> AbstractContextManager[None]:
    """A range that is loaded goes to another owner with the record that only repeats it."""
    real = recording.RoundRecorder.record

    def record(self: Any, updates: Any, specs: Any, now_ms: int) -> Any:
        return real(self, [handed(self, update) for update in updates], specs, now_ms)

    def handed(self: Any, update: Any) -> Any:
        to = self._states[update.source].hands_to
        if not to or update.record.kind is not Kind.RENEW:
            return update
        return replace(update, record=replace(update.record, owner=to), dispatch=False)

    return patched(
        (recording.RoundRecorder, "record", record),
        (recording, "may_hand_over", lambda *_: True),
    )


def _not_forgotten() -> AbstractContextManager[None]:
    """Who has handed a partition over goes on with what it knows of it."""
    real = recording.RoundRecorder._committed

    def committed(self: Any, update: Any, record: Any) -> Any:
        self._states[update.source].hands_to = ""
        return real(self, update, record)

    return patched((recording.RoundRecorder, "_committed", committed))


def _taken_without_reading_the_owner() -> AbstractContextManager[None]:
    """A partition that should be one's own is, whatever its record names."""

    def is_given(self: Any, source: Any, at: Any, held: Any) -> bool:
        is_own = named_by(at) == self._own
        return source not in held and record_at(at) is not None and (is_own or self.is_home(source))

    def step(self: Any, held: Any, view: Any, batch: int) -> Any:
        self.is_home = lambda source: Homes(view).of(source) == view.own
        return real_step(self, held, view, batch)

    def adopt(self: Any, given: Any, batch: int) -> Any:
        found = self._recorder.committed(given)
        view = self._read_last(given)
        taken = TakeOver(dict(found), dict.fromkeys(found, self._own), {})
        return first_records(self._parts, taken, view, batch, keeps=True)

    real_step = Heir._step
    return patched((Heir, "_is_given", is_given), (Heir, "_step", step), (Heir, "_adopt", adopt))


def _own_id_initialised() -> AbstractContextManager[None]:
    """A take-over beside the loop initialises the loop's own id, too."""
    real = Recorder.inherit

    def inherit(self: Any, dead: Any, sources: Any) -> TakeOver:
        self._own_producer()
        return real(self, dead, sources)

    return patched((Recorder, "inherit", inherit))


#: Name -> what it breaks.
FLEET_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "dead-are-fenced-after-reading": _take_over_without_fencing_the_dead,
    "handed-over-in-doubt": _handed_over_in_doubt,
    "handed-over-and-not-forgotten": _not_forgotten,
    "taken-without-reading-the-owner": _taken_without_reading_the_owner,
    "own-id-initialised-by-a-take-over": _own_id_initialised,
}
