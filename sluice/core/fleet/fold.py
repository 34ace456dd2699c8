"""What the topic of a fleet says to one of its members: who lives, and since when the others are
silent. A fold over the topic's messages in their order; whatever was compacted away, and however
often the topic is read again from its beginning, it comes to the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from sluice.core.fleet.busy import Said, average_of
from sluice.core.fleet.records import Gone, Report
from sluice.core.fleet.sizing import Sizing
from sluice.core.fleet.view import SILENT_REPORTS, Member, View
from sluice.core.lease import CLOCK_SKEW_MS_MAX

#: Where so many members, and a third of all, fall silent at once, it is the observer's or the
#: broker's fault rather than theirs: nobody is suspected before so many own reports came back.
TOGETHER_MIN, TOGETHER_SHARE = 2, 3
PATIENT_REPORTS = 15


@dataclass(frozen=True, slots=True)
class Heard:
    """The last report of an owner id.

    :param append_ms: when the broker took it; the clock of the topic.
    :param at: how many of the observer's own reports had come back before.
    :param first_offset: where the first one stands that the observer has read.
    """

    report: Report
    append_ms: int
    at: int
    first_offset: int


class Fold:
    """:param owner: the id of the member that looks."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._heard: dict[str, Heard] = {}
        self._sizing = Sizing()
        self._said = Said()
        self._silent: frozenset[str] = frozenset()
        #: How many own reports had come back when each one of those fell silent.
        self._fell_silent_at: dict[str, int] = {}
        self._suspects_from = 0
        #: The last own report that came back; 0: none did.
        self.number = 0
        #: Somebody has written this id off.
        self.is_gone = False

    def take(self, offset: int, append_ms: int, message: Report | Gone) -> None:
        """The next message, or one that was read before."""
        owner = message.owner
        if isinstance(message, Gone):
            self._heard.pop(owner, None)
            self.is_gone |= owner == self._owner
            self._judge()
            return
        before = self._heard.get(owner)
        if before is not None and before.report.number >= message.number:
            return
        if owner == self._owner:
            self.number = max(self.number, message.number)
        first_offset = offset if before is None else before.first_offset
        self._heard[owner] = Heard(message, append_ms, self.number, first_offset)
        self._said.take(message, self.number)
        self._judge()
        if owner == self._owner:
            self._sizing.see([h.report for o, h in self._heard.items() if o not in self._silent])

    @property
    def others(self) -> Mapping[str, Heard]:
        """Whoever is not known to be gone, silent or not, by owner id."""
        return {owner: each for owner, each in self._heard.items() if owner != self._owner}

    @property
    def own(self) -> Heard | None:
        """The last own report that came back."""
        return self._heard.get(self._owner)

    @property
    def silent(self) -> Mapping[str, int]:
        """Who is silent, and how many of the observer's reports came back since."""
        return {owner: self.number - self._heard[owner].at for owner in sorted(self._silent)}

    def view(self) -> View:
        """What is known now."""
        living = {o: h for o, h in sorted(self._heard.items()) if o not in self._silent}
        # The broker's clock has a vote: of two members that differ one is right.
        middle = median([0, *(h.report.wall_ms - h.append_ms for h in living.values())])
        members = tuple(_member(heard, middle) for heard in living.values())
        is_suspecting = self.number >= self._suspects_from
        silent = tuple(sorted(self._silent))
        wanted = self._sizing.slots, self._sizing.members
        return View(
            self._owner,
            self.number,
            members,
            is_suspecting,
            silent,
            wanted,
            self._said.levels(self.number),
            average_of([heard.report for heard in living.values()]),
        )

    def _judge(self) -> None:
        limit = self.number - SILENT_REPORTS
        silent = frozenset(owner for owner, heard in self._heard.items() if self._is_silent(heard))
        silent -= {self._owner}
        if silent == self._silent:
            return
        at = {owner: self._fell_silent_at.get(owner, self.number) for owner in silent}
        self._silent, self._fell_silent_at = silent, at
        # Who was silent before the observer came has not fallen silent now.
        together = [o for o, since in at.items() if since > limit and self._heard[o].at]
        lived = len(self._heard) - len(silent) + len(together)
        if len(together) >= TOGETHER_MIN and TOGETHER_SHARE * len(together) >= lived:
            self._suspects_from = self.number + PATIENT_REPORTS

    def _is_silent(self, heard: Heard) -> bool:
        """Who reports less often than the observer, as its configuration has it, is waited for as
        much longer."""
        own = self._heard.get(self._owner)
        longer = heard.report.silent_seconds / own.report.silent_seconds if own else 1.0
        return self.number - heard.at >= SILENT_REPORTS * max(1.0, longer)


def _member(heard: Heard, middle: float) -> Member:
    report = heard.report
    return Member(
        report.owner,
        report.member,
        report.spec,
        report.data_center,
        report.slots_max,
        report.is_ready,
        report.is_leaving,
        abs(report.wall_ms - heard.append_ms - middle) <= CLOCK_SKEW_MS_MAX,
        report.near,
    )
