"""A table that refuses its blocks: its messages wait, its neighbour goes on, all come back once."""

from __future__ import annotations

import json
import signal

from tests.support.world import Truth, World, assert_exact, wait_for

PATIENCE = 300.0
REFUSED = "ALTER TABLE bad ADD CONSTRAINT nothing CHECK id < 0"


def parked(world: World, configuration: str, table: str = "bad") -> dict[tuple[int, int], int]:
    """How often each message is in the parking topic, by `sluice dead-letters list`."""
    done = world.sluice("dead-letters", "list", configuration, "--parked", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[tuple[int, int], int] = {}
    for entry in json.loads(done.stdout):
        assert (entry["table"], entry["reason"]) == (table, "parked"), entry
        key = (entry["partition"], entry["offset"])
        found[key] = found.get(key, 0) + 1
    return found


def test_parked_messages_come_back_exactly_once(world: World) -> None:
    """Refused by a constraint, which judges rows; killed meanwhile, mended, asked."""
    world.create_topic("orders-parked", 2)
    for name in ("bad", "good"):
        world.create_table(name)
    truth = Truth()
    path = world.configure(
        {name: ["orders-parked"] for name in ("bad", "good")},
        max_messages=500,
        lease='"10s"',
        settings_of={"bad": 'on_error = "park"'},
    )

    def load(driver: object, count: int = 1_000) -> None:
        world.produce("orders-parked", count, truth, partitions=2, first=truth.rows)
        world.wait_for_rows("good", truth.rows, driver, PATIENCE)  # type: ignore[arg-type]

    driver = world.run(path)
    load(driver)
    world.wait_for_rows("bad", 1_000, driver, PATIENCE)
    world.execute(REFUSED)
    load(driver)
    assert "table entry bad is parked" in driver.text()
    driver.kill()
    driver = world.run(path)  # it tries the table again, and parks it again
    load(driver)
    assert "table entry bad is parked" in driver.text()
    wait_for(lambda: len(parked(world, str(path))) == 2_000, PATIENCE, "the parked messages")
    assert set(parked(world, str(path)).values()) == {1}
    assert world.count("bad") == 1_000

    world.execute("ALTER TABLE bad DROP CONSTRAINT nothing")
    driver.signal(signal.SIGHUP)
    wait_for(lambda: "is not parked any more" in driver.text(), PATIENCE, "the next try")
    load(driver)
    world.wait_for_rows("bad", 2_000, driver, PATIENCE)
    for replayed in (2_000, 0):
        done = world.sluice("dead-letters", "replay", str(path), "--parked", "--yes")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"replayed         {replayed:,}\n" in done.stdout, done.stdout
    world.wait_for_rows("bad", 4_000, driver, PATIENCE)
    driver.signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert_exact(world, "good", truth)
    ids = "SELECT count() AS n, uniqExact(id) AS u, max(id) AS m FROM bad"
    assert world.query(ids) == [{"n": 4_000, "u": 4_000, "m": 3_999}]
    for command in ("audit", "verify"):
        looked = world.sluice(command, str(path))
        assert looked.returncode == 0, looked.stdout + looked.stderr


def test_a_dropped_table_is_parked_and_its_neighbour_goes_on(world: World) -> None:
    """Its blocks are refused before anything is stored, so nobody has to look into it."""
    world.create_topic("orders-dropped", 2)
    for name in ("gone", "kept"):
        world.create_table(name)
    truth = Truth()
    path = world.configure(
        {name: ["orders-dropped"] for name in ("gone", "kept")},
        max_messages=500,
        settings_of={"gone": 'on_error = "park"'},
    )
    driver = world.run(path)
    world.produce("orders-dropped", 1_000, truth, partitions=2)
    world.wait_for_rows("gone", 1_000, driver, PATIENCE)
    world.wait_for_rows("kept", 1_000, driver, PATIENCE)
    world.drain_is_idle(driver)
    world.execute("DROP TABLE gone SYNC")
    world.produce("orders-dropped", 1_000, truth, partitions=2, first=1_000)
    world.wait_for_rows("kept", 2_000, driver, PATIENCE)
    wait_for(
        lambda: len(parked(world, str(path), "gone")) == 1_000, PATIENCE, "the parked messages"
    )
    driver.signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert_exact(world, "kept", truth)
