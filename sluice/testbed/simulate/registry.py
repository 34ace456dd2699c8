"""A schema registry that changes its mind: it hears of a schema late, never, or forgets it for a
while; and what may become of messages for that."""

from __future__ import annotations

from typing import Any

from sluice.core.errors import TransientError
from sluice.testbed.simulate.faults import REGISTRY
from sluice.testbed.simulate.messages import is_routed, judge, rows_of, schema_of
from sluice.testbed.simulate.plan import PARKABLE
from sluice.testbed.simulate.world import World

URL = "http://registry"
#: A schema that comes to the registry after the first message comes within so long.
_LATE_MS_MAX = 240_000
_NEVER = 1 << 60
#: A person registers a schema so long after the world was healed.
_PERSON_MS = 900_000


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

    def outcomes(self, entry: str, value: bytes) -> tuple[set[tuple[int, int, int]], set[int]]:
        """What may become of a message in a table entry: rows, dead letters and parked messages;
        and what its rows say."""
        world = self._world
        if entry in world.plan.routes and not is_routed(judge(value, 0, False).number):
            return {(0, 0, 0)}, set()
        is_many = world.clickhouse.of_name(world.plan.entries[entry])[0].shape.is_many
        schema = None
        found: set[tuple[int, int, int]] = set()
        numbers: set[int] = set()
        for decoder in (0, 1):
            verdict = judge(value, decoder, entry == "parted")
            if entry in world.plan.registered:
                schema = schema_of(verdict.number)
            if verdict.value is None:
                found.add((0, 1, 0))
            elif schema is None or self._known_from.get(schema) != _NEVER:
                numbers = {number for number, _ in rows_of(verdict, entry, is_many=is_many)}
                found.add((len(numbers), 0, 0))
        if schema in self._doubted:
            found.add((0, 1, 0))
        if entry == PARKABLE:
            found.add((0, 0, 1))
        return found, numbers
