"""A schema registry that changes its mind: it hears of a schema late, never, or forgets it for a
while.

Which messages name a schema follows from their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.core.errors import TransientError
from sluice.testbed.simulate.faults import REGISTRY

if TYPE_CHECKING:
    from sluice.testbed.simulate.world import World

URL = "http://registry"
#: So many messages long a schema is named.
_AGE = 8
#: A schema that comes to the registry after the first message comes within so long.
_LATE_MS_MAX = 240_000
_NEVER = 1 << 60
#: A person registers a schema so long after the world was healed.
_PERSON_MS = 900_000


def schema_of(number: int) -> int | None:
    """The number of the schema that a message names; None: it names none."""
    # Below zero: of an aborted transaction.
    return 1 + number // _AGE if number > 0 and number % 2 == 1 else None


class Registry:
    """What all who ask are answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known_from: dict[int, int] = {}
        #: Until when which schemas are forgotten: those with an even, an odd, or any number.
        self._forgets: dict[int, int] = {}
        self._doubted: set[int] = set()

    def named(self, number: int) -> None:
        """A message that names this schema is produced."""
        if number in self._known_from:
            return
        rng, now = self._world.rng, self._world.now
        point = rng.random()
        self._known_from[number] = 0
        if point < 0.1:
            self._known_from[number] = now + rng.randrange(_LATE_MS_MAX)
            self._world.faults.note("schema that comes late to the registry")
        elif point < 0.15:
            self._known_from[number] = _NEVER
            self._world.faults.note("schema that no registry knows")

    def forget(self, for_ms: int) -> None:
        """A follower that is behind is asked, or the registry is empty for a while."""
        self._forgets[self._world.rng.randrange(3)] = self._world.now + for_ms

    def heal(self) -> None:
        """It forgets nothing any more; and after a while a person registers what ranges still wait
        for, of which some rows are stored."""
        self._forgets.clear()
        for number, known_from in self._known_from.items():
            if known_from == _NEVER:
                self._known_from[number] = self._world.now + _PERSON_MS
                self._doubted.add(number)

    def schema(self, number: int) -> Any:
        """See `sluice.decode.schema.registry.SchemaSource`.

        :raises TransientError: no answer.
        """
        world = self._world
        if world.call("registry", REGISTRY) == "registry gives no answer":
            raise TransientError("simulated: the registry gives no answer")
        forgotten = any(
            until > world.now and which in (number % 2, 2) for which, until in self._forgets.items()
        )
        if forgotten or self._known_from[number] > world.now:
            self._doubted.add(number)
            return None
        return f"schema {number}"

    def may_be_row(self, number: int | None) -> bool:
        """Whether a message that names this schema may ever be a row."""
        return number is None or self._known_from.get(number) != _NEVER

    def may_be_letter(self, number: int | None) -> bool:
        """Whether a message may be a dead letter for its schema."""
        return number in self._doubted
