"""A table whose inserts always take longer than their time-out: a view behind it is slow."""

from __future__ import annotations

from tests.support.world import Truth, World, assert_exact, wait_for

RANGE = 100
#: What the view takes for each block: a call may sleep for three seconds at most.
SLEEPS = ("sleep(2.5)", "sleep(2.5)")


def test_a_view_that_is_slower_than_the_time_out_settles(world: World) -> None:
    """It was sent again and again, and never settled, though the first attempt had stored it."""
    table, topic = f"slow_{world.name}", f"slow-{world.name}"
    world.create_topic(topic, 1)
    world.create_table(table)
    world.execute(
        f"CREATE TABLE {table}_seen (id UInt64, slept UInt8) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 1000"
    )
    world.execute(
        f"CREATE MATERIALIZED VIEW {table}_view TO {table}_seen AS "
        f"SELECT id, {' + '.join(SLEEPS)} AS slept FROM {table}"
    )
    truth = Truth()
    world.produce(topic, 2 * RANGE, truth, partitions=1)
    configuration = world.configure(
        {table: [topic]}, max_messages=RANGE, clickhouse='insert_timeout = "2s"'
    )
    driver = world.run(configuration, "--until-caught-up")
    most = 0

    def has_ended() -> bool:
        nonlocal most
        running = f"query LIKE 'INSERT INTO%{table}%'"
        (found,) = world.query(f"SELECT count() AS n FROM system.processes WHERE {running}")
        most = max(most, int(str(found["n"])))
        return driver.process.poll() is not None

    wait_for(has_ended, 400, "the end of the driver")
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, table, truth)
    (seen,) = world.query(f"SELECT count() AS n, uniqExact(id) AS ids FROM {table}_seen")
    assert seen == {"n": truth.rows, "ids": truth.rows}
    # Nothing was sent beside itself, and what the first range taught, the second knew.
    assert most == 1
    attempts = [int(str(e["attempt"])) for e in world.ledger() if e["type"] == "settled"]
    failures = driver.text().count("is not loaded yet")
    assert len(attempts) == 2 and 1 <= failures <= 3, driver.text()[-4000:]
    begins = [line for line in driver.text().splitlines() if "is not loaded yet" in line]
    assert not [line for line in begins if f"[{RANGE}, " in line], begins
