"""Whose floors a member of a fleet counts (R24), by the reports that it has read and by what its
looks at the records found."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sluice.core.fleet.placement import ORPHAN_REPORTS
from sluice.core.fleet.records import Report
from sluice.core.records import GENESIS


class Counting:
    """Of one member. The fleet's thread says what it hears, the loop's what it took over; what both
    use is replaced and never changed, so that each sees something that was true.

    An id that is written off counts until a look at the records has come back that began after its
    end was read: whoever wrote it off had fenced it before, so that look shows whatever another
    heir of it has committed.

    :param owner: the member's id.
    :param has_all: it shares no partitions, but has all of them: nobody beside it holds anything.
    """

    def __init__(self, owner: str, *, has_all: bool) -> None:
        self._owner, self._has_all = owner, has_all
        #: The last reports of all other ids that may live, and of those of them that count;
        #: replaced when they change.
        self.known: Mapping[str, Report] = {}
        self.others: Mapping[str, Report] = {}
        #: Ids of which this one has all that they held: with which of its reports it says so, and
        #: the number of their last report. Who reports again counts again.
        self._inherited: Mapping[str, tuple[int, int]] = {}
        #: Those of them that count no more.
        self._gone = frozenset[str]()
        #: Ids that were written off, and the number of the own report that was read last then.
        self._written_off: Mapping[str, int] = {}
        #: Ids that somebody says it is taking over, and the number of the own report since when.
        self._announced_since: Mapping[str, int] = {}
        #: Ids that records name, and that may hold something; None: nobody has looked yet.
        self._named: frozenset[str] | None = None
        #: The number of the own report that was read last when the last look began.
        self._looked = 0
        #: The number of the own report that was read last.
        self._number = 0

    @property
    def has_strangers(self) -> bool:
        """Whether somebody of whom there is no report may hold something. Before the first look at
        the records nobody knows: the topic may have been lost."""
        if self._has_all:
            return False
        if self._named is None:
            return True
        counted = self.others
        announced = {owner for report in counted.values() for owner in report.inherits}
        # Who fails to take over holds others up for a while only.
        since = self._number - ORPHAN_REPORTS
        owing = {
            owner for owner in announced if self._announced_since.get(owner, since + 1) > since
        }
        owing |= self._named | (self._inherited.keys() - self._gone)
        # Before there is a record nobody holds anything.
        return not owing - {GENESIS} <= {*counted, self._owner}

    def hear(self, heard: Mapping[str, Report], number: int) -> None:
        """These are the last reports of all other ids whose end was not read.

        :param number: of the own report that was read last.
        """
        self._number = number
        now = dict.fromkeys(self.known.keys() - heard.keys(), number)
        before = {o: at for o, at in self._written_off.items() if o not in heard}
        self._written_off = now | before
        unseen = [o for o, at in self._written_off.items() if at >= self._looked]
        self.known = with_unheard(heard, self.known, () if self._has_all else unseen)
        announced = {owner for report in self.known.values() for owner in report.inherits}
        self._announced_since = {
            owner: self._announced_since.get(owner, number) for owner in announced
        }
        self._count()

    def took_all(self, since: int) -> None:
        """All partitions were taken over, and with them all that anybody held.

        :param since: the number of the first own report that says so.
        """
        self._inherited = {owner: (since, report.number) for owner, report in self.known.items()}
        self._count()

    def took(
        self,
        inherited: Collection[str],
        announced: Mapping[str, Report],
        since: int,
        alive: frozenset[str],
        orphans: frozenset[str],
        looked: int,
    ) -> None:
        """What a look found is this member's.

        :param inherited: ids that are fenced, and all of whose holds are this member's.
        :param announced: the last reports of all others when it announced them: who reports
            afterwards may have initialised its id after it was fenced.
        :param since: the number of the first own report that says so.
        :param alive: ids that records named before, but for those that are dead; `orphans`: those
            that records have come to name of late though they report no more.
        :param looked: the number of the own report that was read last when it began; 0: it failed.
        """
        last = {o: announced[o].number if o in announced else 0 for o in inherited}
        self._inherited = {**self._inherited, **{o: (since, last[o]) for o in last}}
        # What is over may have been given something since, by an heir that was dead itself.
        over = self._written_off.keys() | self._inherited.keys()
        self._named = ((alive - over) | (orphans & over)).difference(inherited)
        self._looked = max(self._looked, looked)
        self._count()

    def to_write_off(self, silent: Collection[str]) -> frozenset[str]:
        """Who is gone: the floors that take their place are in the topic, and nobody else may have
        taken over from them without having said so.

        :param silent: who does not report; of those who has all partitions has all holds.
        """
        gone = dict(self._inherited)
        if self._has_all and self._inherited:
            gone |= {o: (0, self.known[o].number) for o in silent if o in self.known}
        return ids_over(gone, self._read, self.known)

    @property
    def _read(self) -> int:
        return self._number if self._has_all else self._looked

    def _count(self) -> None:
        # Beside any other heir an id counts until it may be written off: that one may have found
        # what this one did not find any more.
        inherited = self._inherited
        over = ids_over(inherited, self._read, self.known)
        self._gone = frozenset(inherited) if self._has_all else over
        self.others = {
            owner: report
            for owner, report in self.known.items()
            if not (self._has_all or owner in self._gone)
        }


def ids_over(
    gone: Mapping[str, tuple[int, int]], read: int, known: Mapping[str, Report]
) -> frozenset[str]:
    """Those of these ids that count no more: the floors that take their place are in the topic, and
    nobody else may have taken over from them without having said so.

    :param gone: with which of its own reports a member says so, and the number of their last one.
    :param read: the number of its own report that came back before it looked last.
    :param known: the last reports of all others.
    """
    said = {
        owner
        for owner, (since, last) in gone.items()
        if read >= since and (owner not in known or known[owner].number <= last)
    }
    others = (report.inherits for owner, report in known.items() if owner not in said)
    return frozenset(said).difference(*others)


def with_unheard(
    heard: Mapping[str, Report], before: Mapping[str, Report], unseen: Collection[str]
) -> Mapping[str, Report]:
    """The last reports that count. Where the topic was lost the end of an id may be all that is
    left of what its heir wrote: as long as that one's last report says that it inherits it, its
    floors are not known.

    :param before: those that counted until now.
    :param unseen: ids that were written off since the last look began.
    """
    ended = {owner: report for owner, report in before.items() if owner not in heard}
    found = heard = {**heard, **{o: ended.pop(o) for o in unseen if o in ended}}
    while found := {o: ended.pop(o) for r in found.values() for o in r.inherits if o in ended}:
        heard = {**heard, **found}
    return heard
