"""What came to a driver of a fleet, and what it takes over from the dead, while its loop goes on
(R25).

Partitions that name its id were handed to it: it reads them, and goes on. Of an id that is dead it
reads the ledger first, up to its last stable offset, then fences the id, looks at all partitions
again, reads what the ledger got meanwhile, and commits the first records under that id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sluice.core.errors import OwnerChangedError, SluiceError, TransientError
from sluice.core.fleet.placement import Named, Owners
from sluice.core.fleet.view import View
from sluice.core.ledger import CommittedOffset, CommittedOffsets, LedgerView
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, Record
from sluice.driver.beginning import StartRefusedError
from sluice.driver.start import (
    Started,
    StartParts,
    first_records,
    late_inserts_in,
    read_rest,
    without_offset,
)
from sluice.kafka.offsets import owner_in, record_in
from sluice.kafka.recorder import TakeOver

_logger = logging.getLogger("sluice.loop")


@dataclass(frozen=True, slots=True)
class SharesRead:
    """What a look found.

    :param started: partitions that are this owner's now, and late inserts.
    :param gone: partitions that stopped here, and go on elsewhere.
    :param inherited: dead ids that are fenced, and all of whose holds are in `started`.
    :param inherits: ids that may be taken over in part, as something failed in between.
    :param alive: ids that records named when it began, but for those that are dead; `orphans`:
        those that records have come to name of late though they report no more.
    :param view: number of the view with which it began.
    :param unowned: partitions whose records named no member that reports when it began, also those
        that stopped at a take-over; `elsewhere`: that other members had which do.
    :param sources: all partitions of the connector; none: nobody could tell.
    :param could_adopt: what others had handed to this owner could be taken in, whatever failed
        then.
    :param failure: why it ended before all was looked at and taken over; "": it did not.
    :param error: a bug; nothing that may happen.
    """

    started: tuple[Started, ...] = ()
    gone: tuple[TopicPartition, ...] = ()
    inherited: frozenset[str] = frozenset()
    inherits: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()
    orphans: frozenset[str] = frozenset()
    view: int = 0
    unowned: int = 0
    elsewhere: int = 0
    sources: tuple[TopicPartition, ...] = ()
    could_adopt: bool = True
    failure: str = ""
    error: Exception | None = None


class Heir:
    """Looks, and takes over, for one loop; one look at a time.

    :param parts: with a recorder of its own, which never initialises the loop's id.
    :param read_last: reads the last record of partitions in the ledger, up to its last stable
        offset, and nothing else.
    :param sources: all partitions of the connector, but for those of topics that are gone.
    :param retired: partitions of topics that are not configured any more, and are in doubt.
    :param announce: says whom it is about to take over; returns when all members can know.
    """

    def __init__(
        self,
        parts: StartParts,
        read_last: Callable[[list[TopicPartition]], LedgerView],
        sources: Callable[[], list[TopicPartition]],
        retired: Callable[[], list[TopicPartition]],
        announce: Callable[[Collection[str]], None],
    ) -> None:
        self._parts, self._recorder = parts, parts.recorder
        self._read_last, self._sources = read_last, sources
        self._retired, self._announce = retired, announce
        self._own = parts.planner.owner
        self._owners = Owners()
        #: What was found of partitions that stopped here, or were left: they are tried again when
        #: that changes.
        self._tried: CommittedOffsets = {}
        #: Those of them that no leader told of, and that were left as they are, by the number of
        #: the view: they are tried again in any case.
        self._left: dict[TopicPartition, int] = {}
        #: Ids that were announced, and of which not all is known to be the loop's.
        self._inherits = frozenset[str]()
        #: Ids that are fenced, with the number of the view.
        self._fenced: dict[str, int] = {}
        #: What the last look saw before it took anything over.
        self._named = SharesRead()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shares")
        #: Its loop has ended: what is taken over now would be an id's that nobody has any more.
        self._is_closed = False

    def look(
        self,
        held: Mapping[TopicPartition, Record | None],
        view: View,
        batch: int,
        finished: Callable[[SharesRead], None],
    ) -> None:
        """See `sluice.driver.ports.Shares`."""
        self._pool.submit(self._run, held, view, batch, finished)

    def close(self) -> None:
        """End without waiting."""
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._recorder.close()

    def _run(
        self,
        held: Mapping[TopicPartition, Record | None],
        view: View,
        batch: int,
        finished: Callable[[SharesRead], None],
    ) -> None:
        found = SharesRead()
        try:
            found = self._step(held, view, batch)
        except Exception as error:
            found = SharesRead(error=error)
        finished(found)

    def _step(
        self, held: Mapping[TopicPartition, Record | None], view: View, batch: int
    ) -> SharesRead:
        started: list[Started] = []
        gone: list[TopicPartition] = []
        read = replace(self._named, view=0)
        inherited = frozenset[str]()
        for source in [s for s, at in self._left.items() if view.number - at >= _FENCED_REPORTS]:
            del self._left[source], self._tried[source]
        could_adopt, failures = False, list[str]()
        with _looking_again(failures):
            sources = self._sources()
            found = self._recorder.look(sources)
            self._owners.see(view, {source: _named(at) for source, at in found.items()})
            gone = [s for s in sources if self._is_gone(found[s], held.get(s))]
            given = [s for s in sources if self._is_given(s, found[s], held)]
            # What stopped here names the dead as long as nobody decides.
            left = {owner_in(at) for s, at in found.items() if self._is_new(s, at)}
            others = {each.owner for each in view.living} - {self._own}
            read = SharesRead(
                alive=self._owners.alive(view),
                orphans=self._owners.orphans(view, left),
                view=view.number,
                unowned=sum(owner_in(at) not in {self._own, *others} for at in found.values()),
                elsewhere=sum(owner_in(at) in others for at in found.values()),
                sources=tuple(sorted(sources)),
            )
            named = {owner_in(at) for at in found.values()}
            dead = frozenset(
                owner
                for owner in self._owners.to_inherit(view)
                if owner in left
                or ((owner not in named or owner in view.silent) and self._is_due(owner, view))
            )
            if given:
                started.append(self._adopt(given, batch, is_unsure=bool(self._inherits)))
            could_adopt = True
            # A start that is refused holds nothing else up.
            for some in (dead - {GENESIS}, dead & {GENESIS}):
                if some:
                    batch = max([batch, *(each.batch for each in started)])
                    started += self._take_over(some, found, held, view, batch)
                    inherited |= some
            self._inherits = frozenset()
        self._named = read
        inherits = self._inherits = self._inherits - inherited
        return replace(
            read,
            started=tuple(started),
            gone=tuple(gone),
            inherited=inherited,
            inherits=inherits,
            could_adopt=could_adopt,
            failure="; ".join(failures),
        )

    def _take_over(
        self,
        dead: frozenset[str],
        found: CommittedOffsets,
        held: Mapping[TopicPartition, Record | None],
        view: View,
        batch: int,
    ) -> list[Started]:
        before = self._inherits
        self._inherits |= dead
        self._announce(self._inherits)
        try:
            started = self._inherit(dead, found, held, view, batch)
        except StartRefusedError:
            self._inherits = before  # nothing is taken over, and nothing may come
            raise
        self._fenced |= dict.fromkeys(dead, view.number)
        return started

    def _is_due(self, owner: str, view: View) -> bool:
        """Whether an id that has nothing to go on with is to be fenced, once more perhaps: it may
        have reported since, and counts until it is written off, or that may come soon."""
        fenced_at = self._fenced.get(owner)
        return fenced_at is None or view.number - fenced_at >= _FENCED_REPORTS

    def _is_new(self, source: TopicPartition, at: CommittedOffset | None) -> bool:
        return source not in self._tried or self._tried[source] != at

    def _is_given(
        self,
        source: TopicPartition,
        at: CommittedOffset | None,
        held: Mapping[TopicPartition, Record | None],
    ) -> bool:
        """Whether it names this owner, whose loop does not have it, or has it stopped at another
        record."""
        if owner_in(at) != self._own or not self._is_new(source, at):
            return False
        stopped = held.get(source)
        return source not in held or (stopped is not None and at != CommittedOffset.of(stopped))

    def _is_gone(self, at: CommittedOffset | None, stopped: Record | None) -> bool:
        """Whether one that stopped here was taken on by somebody else."""
        record = record_in(at)
        return (
            stopped is not None
            and record is not None
            and record.owner not in (self._own, stopped.owner)
            and record.batch > stopped.batch
        )

    def _adopt(self, given: list[TopicPartition], batch: int, *, is_unsure: bool) -> Started:
        """Take in partitions whose records name this owner: they need no first record, and keep
        the one that they have, byte for byte (R5).

        No transaction is waited for: it may be that of a dead one whom only this look can fence.
        What stands beyond one is left to a later look.

        :param is_unsure: they may have come from the dead, with all that these left. Then all of
            them are taken in, or the look fails: else an id would count as inherited whose holds
            are not all this member's (R24).
        """
        found = self._recorder.committed(given)
        view = self._read(given, found) if is_unsure else self._read_last(given)
        again = self._recorder.committed(given)
        own = {
            source: at
            for source, at in again.items()
            if at is not None
            and at == found[source]
            and owner_in(at) == self._own
            # The ledger says it up to this record, then, with all that came before.
            and (view.is_whole or view.metadata(source) == at.metadata)
        }
        taken = TakeOver(dict(own), dict.fromkeys(own, self._own), {})
        return self._remembered(taken, first_records(self._parts, taken, view, batch, keeps=True))

    def _inherit(
        self,
        dead: Collection[str],
        found: CommittedOffsets,
        held: Mapping[TopicPartition, Record | None],
        view: View,
        batch: int,
    ) -> list[Started]:
        """Take over all that these ids own, and all that they may still insert."""
        theirs = [source for source, at in found.items() if owner_in(at) in dead]
        # A transaction that the dead left open is not waited for: it ends once they are fenced.
        ledger = self._parts.read_stable(theirs, without_offset({s: found[s] for s in theirs}))
        taken = self._recorder.inherit(dead, found)
        for source in [source for source in taken.found if held.get(source, _NOBODYS) is None]:
            del taken.found[source]  # the loop goes on with it, and finds out (R5)
        if taken.found.keys() <= set(theirs):
            ledger = read_rest(self._parts, ledger, taken.found)
        else:
            ledger = self._read(list(taken.found), taken.found)
        self._leave(taken, ledger, view)
        if self._is_closed:
            raise TransientError("its loop has ended")
        connector, names = self._parts.planner.spec.connector, ", ".join(sorted(dead))
        started = [Started(late_inserts=late_inserts_in(ledger), batch=batch)]
        leaving = self._committed(self._retired(), dead)
        if taken.found:
            count = len(taken.found)
            _logger.warning("%s: %d partitions of %s are taken over", connector, count, names)
            producers = dict(taken.producers)
            first = first_records(self._parts, taken, ledger, batch)
            states = {state.source for state in first.states}
            left = taken.found.keys() - states
            self._left |= dict.fromkeys(left, view.number)
            self._tried.update({source: taken.found[source] for source in left})
            started.append(self._remembered(taken, first))
            taken.producers.update(producers)
        if leaving:
            owners = {source: owner_in(at) for source, at in leaving.items()}
            taken = TakeOver(leaving, owners, taken.producers)
            ledger, batch = self._read(list(leaving), leaving), max(each.batch for each in started)
            settled = first_records(self._parts, taken, ledger, batch, retiring=True)
            started.append(self._remembered(taken, settled))
        return started

    def _committed(
        self, sources: list[TopicPartition], owners: Collection[str]
    ) -> CommittedOffsets:
        """Those of these partitions that these owners have."""
        found = self._recorder.committed(sources)
        return {source: at for source, at in found.items() if owner_in(at) in owners}

    def _read(self, sources: list[TopicPartition], found: CommittedOffsets) -> LedgerView:
        return self._parts.read_ledger(sources, without_offset({s: found[s] for s in sources}))

    def _leave(self, taken: TakeOver, ledger: LedgerView, view: View) -> None:
        """A partition whose offset is gone, or is nobody's record, is that owner's whose record
        the ledger has: it stops there."""
        living = {each.owner for each in view.living} - {self._own}
        for source, at in list(taken.found.items()):
            last = ledger.records.get(source, {}).get("owner", GENESIS)
            is_lost = taken.owners[source] == GENESIS != last
            if not self._is_new(source, at) or (is_lost and last in living):
                self._tried[source] = at
                del taken.found[source]

    def _remembered(self, taken: TakeOver, started: Started) -> Started:
        for state in started.states:
            if state.stopped is not None:
                self._tried[state.source] = taken.found[state.source]
                self._left.pop(state.source, None)
        # Nobody knows what others of the fleet begin.
        started.recorded = None
        return started


_NOBODYS = object()
#: Whoever is fenced is fenced again after so many reports, if it still counts; and so is what was
#: left since no leader told of it.
_FENCED_REPORTS = 15


@contextmanager
def _looking_again(failures: list[str]) -> Iterator[None]:
    """What fails is tried again by the next look: somebody else was let through, or Kafka is
    away.

    :param failures: gets what failed, but for a start that is refused: it holds nothing else up.
    """
    try:
        yield
    except OwnerChangedError as error:
        _logger.info("%s; all partitions are looked at again", error)
        failures.append(str(error))
    except SluiceError as error:
        _logger.warning("%s; all partitions are looked at again", error)
        if not isinstance(error, StartRefusedError):
            failures.append(str(error))


def _named(at: CommittedOffset | None) -> Named:
    record = record_in(at)
    return Named(owner_in(at), "" if record is None else record.spec, at)
