"""How many ranges are out at each replica of a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.flights import InFlight, Place
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from tests.driver.loop_world import table_spec

A, B, C = "http://a", "http://b", "http://c"
REPLICAS = {"s1": (A, B), "s2": (C,)}
PLAIN = replace(table_spec("plain", ("t",)), shards=("s1", "s2"))
REPLICATED = replace(
    table_spec("copied", ("t", "u")), shards=("s1",), zookeeper_paths=(("s1", "/path"),)
)
TEXT = LoadSpec("p", "c", "chdb 1", 1 << 20, (PLAIN, REPLICATED))


def places(flights: InFlight, partition: int, topic: str = "t") -> set[Place]:
    return set(flights.places(TEXT, "digest", TopicPartition(topic, partition)))


def test_a_range_is_at_the_first_replica_of_each_of_its_tables() -> None:
    """Partitions take turns at replicas; a table that is not replicated has one server."""
    flights = InFlight(1, REPLICAS, tasks=2)
    plain = {Place("d.plain", "s1", A), Place("d.plain", "s2", C)}
    assert places(flights, 0) == plain | {Place("d.copied", "s1", A)}
    assert places(flights, 1) == plain | {Place("d.copied", "s1", B)}
    assert places(flights, 1, "u") == {Place("d.copied", "s1", B)}


def test_what_is_preferred_or_behind_says_which_replica_is_first() -> None:
    flights = InFlight(1, REPLICAS, tasks=2)
    assert places(flights, 0, "u") == {Place("d.copied", "s1", A)}
    flights.use(REPLICAS, preferred=(B,))
    assert places(flights, 0, "u") == {Place("d.copied", "s1", B)}
    flights.use(REPLICAS, behind=(A,))
    assert places(flights, 0, "u") == {Place("d.copied", "s1", B)}
    flights.use({"s1": (C, A)})
    assert places(flights, 0, "u") == {Place("d.copied", "s1", C)}


def test_parked_tables_and_shards_that_are_gone_have_no_place() -> None:
    flights = InFlight(1, {"s1": (A,)}, tasks=2)
    parked = replace(TEXT, tables=(replace(PLAIN, parked=True), REPLICATED))
    assert places(flights, 0) == {Place("d.plain", "s1", A), Place("d.copied", "s1", A)}
    found = flights.places(parked, "other", TopicPartition("t", 0))
    assert found == {Place("d.copied", "s1", A)}


@pytest.mark.parametrize(("tasks", "most"), [(3, 2), (2, 2), (1, 2)])
def test_a_place_holds_so_many_if_more_could_run_at_once(tasks: int, most: int) -> None:
    flights = InFlight(most, REPLICAS, tasks)
    here = frozenset({Place("d.copied", "s1", A), Place("d.plain", "s1", A)})
    one_of_them = frozenset({Place("d.copied", "s1", A)})
    elsewhere = frozenset({Place("d.copied", "s1", B)})
    flights.begin(tasks)
    assert flights.has_room(here)
    flights.add(here)
    assert flights.has_room(here)
    flights.add(one_of_them)
    assert flights.has_room(here) == (tasks <= most) and flights.has_room(elsewhere)
    flights.begin(tasks)
    assert flights.has_room(here)
