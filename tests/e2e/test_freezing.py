"""The whole story of a freeze: a table stands still while its server is changed."""

from __future__ import annotations

import json

import pytest

from tests.support.world import Truth, World, assert_exact, wait_for

PATIENCE = 300.0


@pytest.mark.long
def test_a_table_is_frozen_while_its_server_is_changed(world: World) -> None:
    """It is away for a while, then the driver is killed and started again, and nothing stops."""
    frozen_truth, other_truth = Truth(), Truth()
    for name in ("changed", "other"):
        world.create_table(name)
        world.create_topic(f"orders-{name}", 2)
    path = world.configure({name: [f"orders-{name}"] for name in ("changed", "other")})

    def produce(rows: int) -> None:
        for name, truth in (("changed", frozen_truth), ("other", other_truth)):
            world.produce(f"orders-{name}", rows, truth, partitions=2, first=truth.rows)

    driver = world.run(path)
    produce(500)
    world.wait_for_rows("changed", 500, driver, PATIENCE)
    words = ("--table", "changed", "--by", "alice", "--why", "the server is changed")
    done = world.sluice("freeze", str(path), *words)
    assert done.returncode == 0, done.stderr
    assert "table changed is frozen by alice" in done.stdout
    wait_for(lambda: "What is out is settled" in driver.text(), PATIENCE, "the driver to hear")
    produce(500)
    world.wait_for_rows("other", 1_000, driver, PATIENCE)
    world.execute("RENAME TABLE changed TO changed_meanwhile")
    produce(500)
    world.wait_for_rows("other", 1_500, driver, PATIENCE)
    world.execute("RENAME TABLE changed_meanwhile TO changed")
    driver.kill()
    driver = world.run(path)
    produce(500)
    world.wait_for_rows("other", 2_000, driver, PATIENCE)
    assert world.count("changed") == 500
    status = world.sluice("status", str(path), "--json")
    by_topic = {each["topic"]: each["frozen"] for each in json.loads(status.stdout)}
    assert by_topic["orders-other"] == []
    assert "by alice since" in by_topic["orders-changed"][0]
    words = ("--table", "changed", "--by", "bob", "--why", "it is done")
    done = world.sluice("resume", str(path), *words)
    assert (done.returncode, done.stdout) == (0, "nothing is frozen\n"), done.stderr
    world.wait_for_rows("changed", 2_000, driver, PATIENCE)
    done = world.sluice("drain", str(path), "--by", "bob", "--why", "the day is over")
    assert done.returncode == 0, done.stderr
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert " stops at " not in driver.text()
    assert_exact(world, "changed", frozen_truth)
    assert_exact(world, "other", other_truth)
    types = ("freeze", "resume", "drain")
    decided = [(e["type"], e["by"]) for e in world.ledger() if e["type"] in types]
    assert decided == [("freeze", "alice"), ("resume", "bob"), ("drain", "bob")]
