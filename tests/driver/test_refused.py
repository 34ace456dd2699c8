"""A loop whose workers are not let in by Kafka, or a schema registry, for a while: they were let in
before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed, Outcome
from sluice.kafka.errors import (
    KafkaDeniedError,
    KafkaRefusedError,
    KafkaTerminalError,
    RegistryRefusedError,
)
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, World, table_spec

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
#: Longer than a few attempts take.
REFUSED_MS = 120_000


def refusing(error: TerminalError) -> Callable[[World, Assignment], Outcome]:
    """The first partition's ranges come back with this for a while."""

    def load(world: World, assignment: Assignment) -> Outcome:
        is_refused = world.now < START_MS + REFUSED_MS
        if assignment.block_range.source == P0 and is_refused:
            return Failed(error, inserted_nothing=True)
        return world.load(assignment)

    return load


@pytest.mark.parametrize("kind", [KafkaRefusedError, KafkaDeniedError])
def test_who_is_refused_while_it_runs_tries_again(
    kind: type[TerminalError], caplog: pytest.LogCaptureFixture
) -> None:
    world = World([P0, P1])
    world.ends.update({P0: 20, P1: 20})
    world.script = refusing(kind("authenticating at broker:9092 by PLAIN: refused"))
    loop = world.loop()
    loop.run({P0: 20, P1: 20}, 5.0)
    assert [state.stopped for state in loop.states.values()] == [None, None]
    assert world.rows_of(P0) == world.rows_of(P1) == [1] * 20
    assert loop.counters.failures[kind.__name__] > 3
    told = [record.message for record in caplog.records if "is not loaded yet" in record.message]
    assert told and all("authenticating at broker:9092" in line for line in told)


REFUSED = RegistryRefusedError("the schema registry http://r answers 401 for schema 7: no")


def of_registry() -> World:
    """An entry whose messages name their schemas in a registry; 20 messages, and later as many."""
    entry = replace(table_spec("t", ("a",)), options=(("registry", "http://r"),))
    world = World([P0, P1], (entry,))
    world.ends.update({P0: 20, P1: 20})
    return world


def test_a_registry_that_has_answered_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """What checks its passwords is away for a while; a worker that has kept the schema goes on."""
    world = of_registry()
    world.script = lambda world, assignment: (
        Failed(REFUSED, inserted_nothing=True)
        if assignment.block_range.begin >= 20 and world.now < START_MS + REFUSED_MS
        else world.load(assignment)
    )
    loop = world.loop()
    world.at(10_000, lambda: world.ends.update({P0: 40, P1: 20}))
    loop.run({P0: 40, P1: 20}, 5.0)
    assert [state.stopped for state in loop.states.values()] == [None, None]
    assert world.rows_of(P0) == [1] * 40
    assert loop.counters.failures["RegistryRefusedError"] > 3
    told = [record.message for record in caplog.records if "is not loaded yet" in record.message]
    assert told and all("answers 401 for schema 7" in line for line in told)


def test_a_registry_that_never_answered_stops() -> None:
    """Its URL or password is wrong."""
    world = of_registry()
    world.script = refusing(REFUSED)
    world.ends.update({P1: 0})
    loop = world.loop()
    loop.run({P0: 20, P1: 0}, 5.0)
    assert [state.stopped is None for state in loop.states.values()] == [False, True]


def test_rows_without_a_registry_say_nothing_of_it() -> None:
    plain, named = table_spec("u", ("b",)), table_spec("t", ("a",))
    other = TopicPartition("b", 0)
    world = World([P0, other], (plain, replace(named, options=(("registry", "http://r"),))))
    world.ends.update({other: 20})
    world.script = refusing(REFUSED)
    loop = world.loop()
    world.at(10_000, lambda: world.ends.update({P0: 20}))
    loop.run({P0: 20, other: 20}, 5.0)
    stopped = {source: state.stopped is not None for source, state in loop.states.items()}
    assert stopped == {P0: True, other: False}


def test_what_is_wrong_for_good_stops() -> None:
    world = World([P0, P1])
    world.ends.update({P0: 20, P1: 20})
    world.script = refusing(KafkaTerminalError("no such property"))
    loop = world.loop()
    loop.run({P0: 20, P1: 20}, 5.0)
    assert [state.stopped is None for state in loop.states.values()] == [False, True]
