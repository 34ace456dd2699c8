"""Which messages tell of one event, and what the store of claims has of that: what it forgets, and
which life of it goes on.

What is written is kept in the order of writing, so a copy that is behind is what was written up to
some moment.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from sluice.core.claims import KEY_BYTES
from sluice.testbed.simulate.plan import ClaimsPlan
from sluice.testbed.simulate.world import World

#: How far behind a copy of the store may be that goes on in its place; 0: by some writes.
_BEHIND_MS = (0, 0, 1_000, 5_000, 60_000, 1 << 40)


class Events:
    """Which event a message tells of, by its number."""

    def __init__(self, rng: random.Random, plan: ClaimsPlan) -> None:
        self._rng = rng
        self._plan = plan
        self._events: dict[int, int | None] = {}
        #: Those that are not told again yet, and when they were told first.
        self._distinct: list[tuple[int, int]] = []
        self._window_ms = 1000 * min(r.window_seconds for r in plan.rules.values())

    def add(self, number: int, now_ms: int) -> None:
        """A message is produced."""
        rng, event = self._rng, number
        if self._distinct and rng.random() < self._plan.share:
            event, _ = rng.choice(self._told(now_ms))
        else:
            self._distinct.append((number, now_ms))
        # Now and then one without a key.
        self._events[number] = None if rng.random() < 0.02 else event

    def _told(self, now_ms: int) -> list[tuple[int, int]]:
        """Of which one is told again."""
        point, near = self._rng.random(), self._plan.near
        if not self._plan.at_the_end and point < near:
            return self._distinct[-6:]
        if not self._plan.at_the_end and point > near + (1 - near) / 2:
            return self._distinct
        begin, margin_ms = now_ms - self._window_ms, self._window_ms // 12
        ending = [each for each in self._distinct if abs(each[1] - begin) < margin_ms]
        return ending or self._distinct

    def key(self, space: str, number: int, row: int) -> bytes | None:
        """The key of a row of a message; None: it has none.

        :param number: of the message; of somebody's transaction it is below zero.
        """
        event = self._events.get(number, number)
        if event is None:
            return None
        row = 0 if self._plan.has_rows_alike else row
        text = f"{space}/{event}/{row}"
        return _hash(text)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()


class Kept:
    """What the store has; all connections share it."""

    def __init__(self, world: World, plan: ClaimsPlan, rng: random.Random) -> None:
        self.plan = plan
        self.away_until = 0
        self.claims: dict[bytes, tuple[bytes, int]] = {}
        self.notes: dict[str, str] = {}
        self._world = world
        self._rng = rng
        self._number = 0
        #: When, and a key with its claim or without it, or a note.
        self._written: list[tuple[int, bytes | str, tuple[bytes, int] | str | None]] = []

    @property
    def run(self) -> str:
        """Its life."""
        return f"life {self._number}@0"

    def write(self, name: bytes | str, value: tuple[bytes, int] | str | None) -> None:
        """Write a claim or a note, or take it away."""
        self._written.append((self._world.now, name, value))
        self._apply(name, value)

    def _apply(self, name: bytes | str, value: tuple[bytes, int] | str | None) -> None:
        if isinstance(name, str):
            assert isinstance(value, str)
            self.notes[name] = value
        elif value is None:
            self.claims.pop(name, None)
        else:
            assert isinstance(value, tuple)
            self.claims[name] = value

    def actions(self, draw_outage_ms: Callable[[], int]) -> dict[str, Callable[[], None]]:
        """What may happen to it, by name."""

        def go_away() -> None:
            self.away_until = self._world.now + draw_outage_ms()

        return {
            "store of claims away": go_away,
            "store of claims started again": self.restart,
            "a copy of the store of claims goes on": self.fail_over,
            "store of claims lost": self.lose,
        }

    def restart(self) -> None:
        """It has everything, and nobody can know that."""
        self._number += 1

    def lose(self) -> None:
        """Another one, which is empty."""
        self._go_back(0)

    def fail_over(self) -> None:
        """A copy of it goes on, which is behind."""
        written, rng = self._written, self._rng
        behind_ms = rng.choice(_BEHIND_MS)
        since = self._world.now - rng.randrange(behind_ms + 1)
        end = len(written)
        while end and written[end - 1][0] > since:
            end -= 1
        if not behind_ms:
            end = max(0, end - rng.randrange(1, 12))
        self._go_back(end)

    def forget_newest(self, name: bytes) -> None:
        """A copy goes on that lacks the newest claim of this key, and all that came after it."""
        places = [place for place, (_, of, _) in enumerate(self._written) if of == name]
        if places:
            self._go_back(places[-1])

    def _go_back(self, end: int) -> None:
        self._world.say(f"store of claims lacks {len(self._written) - end} writes")
        self._number += 1
        del self._written[end:]
        self.claims.clear()
        self.notes.clear()
        for _, name, value in self._written:
            self._apply(name, value)
