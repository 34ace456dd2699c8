"""One entry for many topics, each with a table of its own."""

from __future__ import annotations

import pytest

from tests.support.world import Truth, World, assert_exact


@pytest.mark.slow
def test_each_topic_goes_into_its_table_and_a_further_one_changes_no_other(world: World) -> None:
    """A topic that is added to the list is loaded beside the others, whose ranges stay theirs."""
    prefix = world.name.replace("-", "_")
    names = [f"{prefix}_orders", f"{prefix}_items", f"{prefix}_carts"]
    topics = [f"{world.name}.shop.{name}" for name in names]
    truths = [Truth() for _ in names]
    for name, topic, truth in zip(names, topics, truths, strict=True):
        world.create_topic(topic, 1)
        world.create_table(name)
        world.produce(topic, 900, truth, partitions=1)
    world.drain(world.configure({"{table}": topics[:2]}))
    world.produce(topics[0], 300, truths[0], partitions=1, first=900)
    configuration = world.configure({"{table}": topics})
    world.drain(configuration)
    for name, truth in zip(names, truths, strict=True):
        assert_exact(world, name, truth)
    doctor = world.sluice("doctor", str(configuration))
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert all(name in doctor.stdout for name in names)
    audit = world.sluice("audit", str(configuration))
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert audit.stdout.splitlines()[1].split() == ["produced", "3,000"], audit.stdout
