"""The load specs of one connector that may still be sent (R8): one holder, whom all ask."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sluice.core.budget import TargetShard, own_target_shards
from sluice.core.ledger import LedgerEntry, spec_entry
from sluice.core.load_spec import LoadSpec, digest_of

#: Load specs that ranges were widened to last.
_ADOPTED_MAX = 8


@dataclass(frozen=True, slots=True)
class NamedSpec:
    """A load spec as the ledger has it.

    :param digest: by which records name it.
    :param text: what it is the digest of: another version of Sluice may have written it.
    """

    digest: str
    spec: LoadSpec
    text: str

    @classmethod
    def of(cls, spec: LoadSpec) -> NamedSpec:
        """As this version writes it."""
        text = spec.canonical()
        return cls(digest_of(text), spec, text)


class LoadSpecs:
    """Today's load spec, those that ranges may be sent under again, and those that are expected.

    Who changes it: only the loop's thread, and before there is a loop who builds it, changes what
    may be sent, and asks for it by name. Take-overs in a thread of their own, and who prepares a
    version, only `expect`, under a lock.
    Who reads it: they, and the threads that watch windows, columns and replicas, read `today`,
    `live` and `watched`. None of these values is ever changed: another one takes its place. So who
    takes one has all of it, as it was at one moment; two of them may be of two moments.

    :param today: new ranges are recorded under it.
    :param is_recorded: it comes to the ledger with the first records of a take-over.
    """

    def __init__(self, today: LoadSpec, *, is_recorded: bool = True) -> None:
        self.today = NamedSpec.of(today)
        self._of = {self.today.digest: self.today}
        #: Those that records name and that cannot be executed: nothing is sent under them.
        self._refused: dict[str, LoadSpec] = {}
        #: Names that this driver gave, and that the ledger does not know. A name stays though its
        #: load spec is let go: a take-over that writes nothing may bring it back.
        self._unrecorded: set[str] = set() if is_recorded else {self.today.digest}
        self._adopted: deque[str] = deque(maxlen=_ADOPTED_MAX)
        self._expected: tuple[LoadSpec, ...] = ()
        self._changing = threading.Lock()
        #: What may be sent, today's first.
        self.live: tuple[LoadSpec, ...] = (today,)
        #: The same, and what is expected: the windows of all their tables are read.
        self.watched: tuple[LoadSpec, ...] = self.live

    def get(self, digest: str) -> LoadSpec | None:
        """The load spec of this name; None: it cannot be executed, or nothing names it."""
        named = self._of.get(digest)
        return None if named is None else named.spec

    def of_record(self, digest: str) -> LoadSpec | None:
        """The load spec of this name, also where it cannot be executed; None: nobody knows it."""
        return self.get(digest) or self._refused.get(digest)

    def texts(self, named: Iterable[str]) -> dict[str, str]:
        """By digest, the canonical form of those of these that may be sent."""
        return {digest: self._of[digest].text for digest in sorted(named) if digest in self._of}

    def entries(self, named: Collection[str]) -> tuple[LedgerEntry, ...]:
        """Ledger entries of those of these that are not recorded yet: they stand in the transaction
        of the first record that names them, or before it."""
        return tuple(spec_entry(*each) for each in self.texts(self._unrecorded & {*named}).items())

    def recorded(self, named: Iterable[str]) -> None:
        """These load specs are in the ledger now."""
        self._unrecorded.difference_update(named)

    def go_over(self, spec: LoadSpec) -> bool:
        """New ranges are recorded under this one from now on; False: they are so already."""
        named = NamedSpec.of(spec)
        if named.digest == self.today.digest:
            return False
        self._of[named.digest] = self.today = named
        self._unrecorded.add(named.digest)
        self._tell()
        return True

    def adopt(self, spec: LoadSpec) -> NamedSpec:
        """Have a load spec that a range is widened to. The last ones are kept, since the next
        ranges may need them, too."""
        named = NamedSpec.of(spec)
        if named.digest not in self._of:
            self._of[named.digest] = named
            self._unrecorded.add(named.digest)
            self._tell()
        if named.digest not in self._adopted:
            self._adopted.append(named.digest)
        return self._of[named.digest]

    def join(
        self, found: Iterable[NamedSpec], refused: Iterable[tuple[str, LoadSpec]] = ()
    ) -> None:
        """A take-over found these, and that they can be executed; none is expected any more.

        :param refused: those that cannot, and their digests.
        """
        found = tuple(found)
        self._refused |= dict(refused)
        for named in found:
            self._of.setdefault(named.digest, named)
        self._tell(arrived=[named.spec for named in found])

    def keep(self, named: Collection[str], held: Iterable[TargetShard] = ()) -> None:
        """Let go what none of these digests names, and what is neither today's nor among the last
        that ranges were widened to.

        :param held: where something that is settled may still be inserted: as long as these windows
            are read it counts there (R10, R24).
        """
        kept, left = {*named, self.today.digest, *self._adopted}, set(held)
        of = {digest: each for digest, each in self._of.items() if digest in kept}
        self._refused = {digest: each for digest, each in self._refused.items() if digest in kept}
        for digest, each in (*of.items(), *self._of.items()):
            its = _target_shards(each.spec) if left else set()
            if not left.isdisjoint(its):
                of[digest] = each
            left -= its
        if len(of) < len(self._of):
            self._of = of
            self._tell()

    def expect(self, spec: LoadSpec) -> None:
        """The loop is about to have this one: a take-over found it, or somebody applied it. It is
        watched until it `arrived` or was joined; a take-over that fails is tried again."""
        with self._changing:
            if spec not in self._expected:
                self._expected += (spec,)
                self.watched = (*self.live, *self._expected)

    def arrived(self, spec: LoadSpec) -> None:
        """What was applied is today's now, or came too late."""
        self._tell(arrived=[spec])

    def _tell(self, arrived: Collection[LoadSpec] = ()) -> None:
        others = (named.spec for named in self._of.values() if named is not self.today)
        live = (self.today.spec, *others)
        with self._changing:
            self._expected = tuple(spec for spec in self._expected if spec not in arrived)
            self.live, self.watched = live, (*live, *self._expected)


def _target_shards(spec: LoadSpec) -> set[TargetShard]:
    return {each for table in spec.tables for each in own_target_shards(table)}
