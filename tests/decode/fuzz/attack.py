"""Mutants among good messages, and what must hold whatever they are.

Every message is in the block or among the dead letters or is one of no rows; good ones are what
they are alone; a mutant is what it is in other company, and alone.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sluice.core.errors import TerminalError
from sluice.decode.engine.session import EngineError, run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import TableDecoder
from sluice.decode.messages.facts import alone
from sluice.decode.messages.memory import memory_file
from tests.decode.fuzz.mutants import mutated
from tests.decode.fuzz.subject import Subject
from tests.decode.support import FIRST_OFFSET, fill
from tests.support.examples import examples

#: What a message became: digests of its rows; or "bad" and why; or "empty".
Outcome = tuple[str, ...]


@dataclass(slots=True)
class Tally:
    """Of a run. `failures` are texts with all that is needed to repeat them."""

    mutants: int = 0
    became: Counter[str] = field(default_factory=Counter)
    alone: int = 0
    failures: list[str] = field(default_factory=list)


class Attack:
    """One table entry under attack.

    :param alone_one_in: mutants for each one that is decoded alone too.
    """

    def __init__(self, subject: Subject, chance: random.Random, alone_one_in: int = 100) -> None:
        self._subject = subject
        self._chance = chance
        self._decoder: TableDecoder = make_decoder(subject.text)
        self._alone_one_in = alone_one_in
        tried = [subject.good(chance) for _ in range(examples(32))]
        known = [self.outcomes([value])[0] for value in tried]
        good = [place for place, outcome in enumerate(known) if outcome[0] != "bad"]
        assert len(good) >= len(tried) // 2, "good messages are bad"
        self._pool = [tried[place] for place in good]
        self._known = [known[place] for place in good]

    def outcomes(self, values: Sequence[bytes]) -> list[Outcome]:
        """What each message becomes in a block of these."""
        with MessageBuffer(framing_of(self._subject.text)) as buffer:
            decoded = self._decoder.decode(fill(buffer, list(values)), alone("orders", 3))
        found: list[list[str]] = [[] for _ in values]
        if decoded.rows:
            names = ", ".join(f"`{name}`" for name in decoded.columns if name != "_offset")
            query = "SELECT _offset, cityHash64(toString(({}))) FROM file('{}', Native)"
            with memory_file(decoded.native) as path:
                text = run(query.format(names, path), "TSV").bytes().decode()
            for line in text.splitlines():
                offset, digest = line.split("\t")
                found[(int(offset) - FIRST_OFFSET) // 2].append(digest)
        assert decoded.rows == sum(map(len, found)), "rows of nobody"
        assert decoded.messages == sum(map(bool, found)), "messages are counted wrongly"
        for offset in decoded.empty:
            assert not found[(offset - FIRST_OFFSET) // 2], "an empty message has rows"
            found[(offset - FIRST_OFFSET) // 2] = ["empty"]
        for bad in decoded.bad:
            assert not found[bad.index], "a message is in the block and among the dead letters"
            assert bad.reason and len(bad.error) <= 300 and "\n" not in bad.error
            found[bad.index] = ["bad", bad.reason, bad.column, bad.error]
        assert all(found), "a message is nowhere"
        return [tuple(one) for one in found]

    def batch(self, size: int, tally: Tally) -> None:
        """So many messages, three of four mutated: together, in other company, some alone."""
        chance = self._chance
        values, good = [], {}
        for place in range(size):
            which = chance.randrange(len(self._pool))
            if place % 4 == 0:
                good[place] = which
                values.append(self._pool[which])
            else:
                values.append(mutated(self._pool[which], chance.choice(self._pool), chance))
        tally.mutants += size - len(good)
        try:
            together = self.outcomes(values)
        except (AssertionError, EngineError, TerminalError) as error:
            culprits = shrunk(values, self._fails)
            tally.failures.append(f"{error}: {culprits!r}")
            return
        tally.became.update(_kind(together[p]) for p in range(size) if p not in good)
        for place, which in good.items():
            if together[place] != self._known[which]:
                tally.failures.append(self._explained(values, place, "a good message suffers"))
                return
        order = chance.sample(range(size), size)
        half = size // 2
        # Files are read one by one anyway: some of them alone are enough.
        for part in () if self._subject.by_file else (order[:half], order[half:]):
            again = self.outcomes([values[place] for place in part])
            for place, outcome in zip(part, again, strict=True):
                if outcome != together[place]:
                    company = [values[other] for other in part]
                    tally.failures.append(
                        self._explained(company, part.index(place), "in half")
                        + self._explained(values, place, "; together")
                    )
                    return
        picked = [place for place in range(size) if chance.randrange(self._alone_one_in) == 0]
        tally.alone += len(picked)
        for place in picked:
            if self.outcomes([values[place]])[0] != together[place]:
                tally.failures.append(self._explained(values, place, "alone"))
                return

    def _fails(self, values: Sequence[bytes]) -> bool:
        try:
            self.outcomes(values)
        except (AssertionError, EngineError, TerminalError):
            return True
        return False

    def _explained(self, values: list[bytes], place: int, words: str) -> str:
        """The fewest messages in whose company this one is not what it is alone."""
        victim, before, behind = values[place], values[:place], values[place + 1 :]
        alone = self.outcomes([victim])[0]

        def among(before: Sequence[bytes], behind: Sequence[bytes]) -> Outcome:
            return self.outcomes([*before, victim, *behind])[len(before)]

        if among(before, behind) == alone:
            return f"{words}: {victim!r} is {alone} as alone"
        behind = shrunk(behind, lambda fewer: among(before, fewer) != alone)
        before = shrunk(before, lambda fewer: among(fewer, behind) != alone)
        became = among(before, behind)
        return f"{words}: {victim!r} alone {alone}, but {became} between {before!r} and {behind!r}"


def _kind(outcome: Outcome) -> str:
    return outcome[0] if outcome[0] in ("bad", "empty") else "rows"


def shrunk(values: Sequence[bytes], fails: Callable[[Sequence[bytes]], bool]) -> list[bytes]:
    """Fewer messages of which the same is true, by leaving out ever smaller pieces."""
    kept, piece = list(values), max(1, len(values) // 2)
    while True:
        begin = 0
        while begin < len(kept):
            fewer = kept[:begin] + kept[begin + piece :]
            if fails(fewer):
                kept = fewer
            else:
                begin += piece
        if piece == 1:
            return kept
        piece //= 2
