"""The store of claims in memory: what it has, what it forgets, and which life of it goes on.

What is written is kept in the order of writing, so a copy that is behind is what was written up to
some moment. Processes use it by connections, which end with its life.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts
from sluice.core.claims import KEY_BYTES, OWNER_BYTES, Deduplicate, WhatOfDuplicates
from sluice.testbed.simulate import faults
from sluice.testbed.simulate.plan import PARKABLE, TABLES, Plan

if TYPE_CHECKING:
    from sluice.testbed.simulate.world import World

#: Seeds whose worlds deduplicate, by their last digit; the others are what they always were.
_LAST_DIGITS = (0, 9)
#: Of these, seeds in whose worlds most events come again when the window of the first one ends, by
#: their last two digits.
_AT_THE_END = 99
#: A claim takes so many keys before somebody else's may come in between.
_CHUNK = 3
#: Of the calls by which a driver looks at the store, so many take no time, and never fail.
_LIGHT_SHARE = 0.8
#: How far behind a copy of the store may be that goes on in its place; 0: by some writes.
_BEHIND_MS = (0, 0, 1_000, 5_000, 60_000, 1 << 40)


@dataclass(frozen=True, slots=True)
class ClaimsPlan:
    """What a world that deduplicates is like.

    :param rules: of each table entry that deduplicates.
    :param share: of the messages, how many are of an event that was there before.
    :param near: of those, how many are of one of the last events; of the others half are of events
        whose window is about to end.
    :param has_rows_alike: all rows of a message have one key.
    :param poll_seconds: how often a driver looks at the store.
    :param unrest: how often the store breaks.
    :param is_empty: nobody has used it before.
    :param at_the_end: what comes again is of events whose window is about to end, if there are any.
    """

    rules: dict[str, Deduplicate]
    share: float
    near: float
    has_rows_alike: bool
    poll_seconds: float
    unrest: float
    is_empty: bool
    at_the_end: bool


def draw_claims(seed: int, rng: random.Random, plan: Plan) -> ClaimsPlan | None:
    """The plan of a world; None: it does not deduplicate.

    :param rng: of these things alone, so that other worlds are what they are without them.
    """
    if seed % 10 not in _LAST_DIGITS:
        return None
    if rng.random() < 0.7 and not plan.inserts_take_ms:
        # So that windows end while it runs.
        plan.lease_seconds = min(plan.lease_seconds, rng.choice((8.0, 8.0, 15.0)))
        plan.produce_every_ms = rng.choice((plan.produce_every_ms, 3_000, 8_000))
    names = rng.choice((TABLES, TABLES, TABLES[:1], (PARKABLE,)))
    entries = [entry for entry, table in plan.entries.items() if table in names]
    many = {shape.name for shape in plan.tables if shape.is_many}
    window_seconds = int(plan.lease_seconds * rng.choice((12, 12, 12, 20)))
    copies: WhatOfDuplicates = "drop"
    if rng.random() < 0.5:
        copies = "dead-letter" if seed % 20 < 10 else "topic"
    at_the_end = seed % 100 == _AT_THE_END
    if at_the_end:
        plan.lease_seconds, plan.produce_every_ms = min(plan.lease_seconds, 8.0), 2_000
        window_seconds = int(12 * plan.lease_seconds)
    return ClaimsPlan(
        rules={
            entry: Deduplicate(
                ("number",),
                window_seconds,
                "",
                "drop" if plan.entries[entry] in many else copies,
            )
            for entry in entries
        },
        share=0.8 if at_the_end else rng.choice((0.1, 0.3, 0.6)),
        near=rng.choice((0.3, 0.7, 0.95)),
        at_the_end=at_the_end,
        has_rows_alike=rng.random() < 0.3,
        poll_seconds=rng.choice((1.0, 2.0)),
        unrest=0.0 if at_the_end else rng.choice((0.3, 1.0, 1.0, 3.0)),
        is_empty=rng.random() < 0.2,
    )


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


class SimulatedStore:
    """A connection to it; see `ClaimStore`. What it is asked between two answers of `run` it
    answers in one life, or not at all."""

    def __init__(self, world: World) -> None:
        assert world.claims is not None
        self._world = world
        self._kept = world.claims
        #: Which life this is a connection to; "": it is none.
        self._connected = ""

    def run(self) -> str:
        if self._connected != self._kept.run:
            self._connected = ""
        self._ask("run of the store", is_light=True)
        return self._kept.run

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        world, kept = self._world, self._kept
        fault = self._ask("claim", is_light=False)
        asked = list(zip(map(bytes, keys), map(bytes, owners), strict=True))
        if fault == "claims: half done":
            self._claim(asked[: world.rng.randrange(len(asked) + 1)], until_s, now_s)
            self._lose("half of the claims")
        found: list[bytes] = []
        for begin in range(0, len(asked), _CHUNK):
            self._require_connected()
            found += self._claim(asked[begin : begin + _CHUNK], until_s, now_s)
            if begin + _CHUNK < len(asked) and world.rng.random() < 0.2:
                world.sleep(1)
        world.claim_rules.claimed(asked, found, kept.run)
        if fault == "claims: answer lost":
            self._lose("the answer")
        if fault == "claims: a copy goes on without them" and asked:
            name = world.rng.choice(asked)[0]
            delay_ms = world.rng.randrange(world.rng.choice((2, 100, 20_000)))
            world.scheduler.at(delay_ms, lambda: kept.forget_newest(name))
        if fault == "claims: paused after the answer":
            world.process.paused_until = world.now + world.draw_pause_ms()
        elif fault == "claims: paused after the answer, and the store breaks":
            breaks = world.rng.choice((kept.restart, kept.fail_over, kept.lose))
            world.scheduler.at(world.rng.randrange(100), breaks)
            pause_ms = world.rng.randrange(int(world.plan.lease_seconds * 1_000))
            world.process.paused_until = world.now + pause_ms
        world.sleep(1)
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, OWNER_BYTES)

    def _claim(self, asked: Iterable[tuple[bytes, bytes]], until_s: int, now_s: int) -> list[bytes]:
        found = []
        for key, owner in asked:
            held = self._kept.claims.get(key)
            is_over = held is None or held[1] < now_s
            if held is None or is_over or (held[0] == owner and held[1] < until_s):
                if held is not None and is_over:
                    self._world.faults.note("same event long after it")
                held = (owner, until_s)
                self._kept.write(key, held)
                self._world.claim_rules.owned(key, is_new=is_over)
            found.append(held[0])
        return found

    def release(self, keys: Keys, owners: Owners) -> None:
        self._ask("release claims", is_light=False)
        for key, owner in zip(map(bytes, keys), map(bytes, owners), strict=True):
            if self._kept.claims.get(key, (b"", 0))[0] == owner:
                self._kept.write(key, None)

    def keep(self, notes: Mapping[str, str], run: str) -> None:
        fault = self._ask("note", is_light=True)
        if run != self._kept.run:
            raise StoreAwayError("simulated: another run of the store")
        for name, text in notes.items():
            if text:
                self._world.claim_rules.noted(name, text)
            self._kept.write(name, text)
        if fault == "look at claims: answer lost":
            self._lose("the answer")

    def notes(self) -> dict[str, str]:
        self._ask("notes", is_light=True)
        return {name: text for name, text in self._kept.notes.items() if text}

    def sweep(self, now_s: int, seconds: float) -> int:
        self._ask("sweep", is_light=True)
        over = [key for key, (_, until_s) in self._kept.claims.items() if until_s < now_s]
        for key in over:
            self._kept.write(key, None)
        return len(over)

    def facts(self) -> StoreFacts:
        return StoreFacts(self._kept.run, len(self._kept.claims), 0, None)

    def close(self) -> None:
        self._connected = ""

    def _ask(self, label: str, *, is_light: bool) -> str | None:
        """A place where the store may break.

        :raises StoreAwayError: it does not answer, or the connection has ended.
        """
        world = self._world
        table = faults.LOOK_AT_CLAIMS if is_light else faults.CLAIM
        fault = None
        if not (is_light and world.rng.random() < _LIGHT_SHARE):
            fault = world.call(label, table)
        if fault in ("claims: slow", "look at claims: slow"):
            world.sleep(world.rng.randrange(world.rng.choice((1_000, 19_000))))
        is_silent = fault in ("claims: no answer", "look at claims: no answer")
        if is_silent or self._kept.away_until > world.now:
            self._lose("no answer")
        self._require_connected()
        return fault

    def _require_connected(self) -> None:
        if self._connected not in ("", self._kept.run):
            self._lose("the connection has ended")
        self._connected = self._kept.run

    def _lose(self, what: str) -> None:
        self._connected = ""
        raise StoreAwayError(f"simulated: {what}")
