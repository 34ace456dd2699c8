"""What a person decides over HTTP about partitions of a driver that runs and goes on running."""

from __future__ import annotations

import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest

from sluice.testbed.local.children import free_ports
from tests.e2e.test_owners import _commit, is_idle
from tests.ops.http.scene import ALICE
from tests.support.world import Truth, World, assert_exact, wait_for

PATIENCE = 180.0


@pytest.mark.long
def test_a_partition_goes_on_where_a_person_says_and_the_driver_runs_on(
    world: World, tmp_path: Path
) -> None:
    """One that stopped is adopted; one that was loaded is rewound, and has its rows once more."""
    world.create_table("decided")
    world.create_topic("orders-decided", 2)
    truth = Truth()
    path = world.configure({"decided": ["orders-decided"]}, lease='"60s"')
    (port,) = free_ports(1)
    (tmp_path / "tokens").write_text(f"alice {ALICE}\n")
    with path.open("a") as file:
        file.write(f'[http]\nlisten = "127.0.0.1:{port}"\ntokens_file = "{tmp_path}/tokens"\n')

    def ask(path: str, **said: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        headers = {"Authorization": f"Bearer {ALICE}", "Content-Type": "application/json"}
        try:
            method = "POST" if said else "GET"
            connection.request(method, path, json.dumps(said) if said else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def decide(path: str, partition: int, **said: Any) -> tuple[int, Any]:
        where = {"connector": "dc1", "topic": "orders-decided", "partitions": [partition]}
        words = {**where, **said, "why": "a test"}
        status, told = ask(path, **words)
        if status != 200:
            return status, told
        assert told["planned"][-1].startswith("the driver that runs records it")
        return ask(path, **words, confirm=told["confirm"])

    world.produce("orders-decided", 1_000, truth, partitions=2)
    driver = world.run(path)
    world.wait_for_rows("decided", 1_000, driver, PATIENCE)
    wait_for(lambda: is_idle(world), PATIENCE, "the settles")

    _commit(world, "orders-decided", 1, 5)
    world.produce("orders-decided", 200, truth, partitions=2, first=1_000)
    world.wait_for_rows("decided", 1_100, driver, PATIENCE)
    wait_for(lambda: " stops at " in driver.text(), PATIENCE, "the stop")
    assert world.count("decided") == 1_100
    done = {"by": "alice", "done": ["orders-decided[1] goes on from 500"]}
    assert decide("/adopt", 1, offset=500) == (200, done)
    world.wait_for_rows("decided", 1_200, driver, PATIENCE)
    assert_exact(world, "decided", truth)

    wait_for(lambda: is_idle(world), PATIENCE, "the settles")
    status, answer = decide("/rewind", 0, to=580)
    assert status == 200, answer
    world.wait_for_rows("decided", 1_220, driver, PATIENCE)
    wait_for(lambda: is_idle(world), PATIENCE, "the settles")
    assert len(world.rows("decided")[0]) == 620 and len(world.rows("decided")[1]) == 600

    began = int(time.time() * 1000) - 600_000
    status, history = ask(f"/history?topic=orders-decided&partition=1&offset=500&since_ms={began}")
    assert status == 200
    kinds = [each.get("kind", each["type"]) for each in history["entries"]]
    assert "intend" in kinds and "settled" in kinds, history
    decided = [each["why"] for each in world.ledger() if each.get("why") and "topic" in each]
    assert decided == [
        "adopt --offset 500, by alice: a test",
        "rewind --to 580, by alice: a test",
    ]
    ask("/drain", why="the day is over")
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert "is fenced" not in driver.text()
