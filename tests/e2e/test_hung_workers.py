"""Spark's Python workers hang (SIGSTOP), in the middle of what they do: their ranges were held for
ever. After their leases others load them, and who wakes up later changes nothing."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from tests.support.world import Truth, World, assert_exact, wait_for

PATIENCE = 420.0
#: A driver that gives a job 5 s beyond its leases instead of 30: a worker that only starts slowly,
#: for which they are, hangs not, and here none does.
PROGRAM = """
import sys
from sluice.driver import dispatching
dispatching.PATIENCE_MS = 5_000
from sluice.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_workers_that_hang_are_done_without(world: World) -> None:
    table, topic = f"hung_{world.name}", f"hung-{world.name}"
    world.create_topic(topic)
    world.create_table(table)
    truth = Truth()
    configuration = world.configure({table: [topic]}, max_messages=2_000, lease='"10s"')
    world.produce(topic, 4_000, truth)
    driver = world.run(configuration, program=("-c", PROGRAM))
    world.wait_for_rows(table, 4_000, driver, PATIENCE)
    producing = threading.Thread(
        target=world.produce, args=(topic, 60_000, truth), kwargs={"first": truth.rows}
    )
    producing.start()
    world.wait_for_rows(table, 4_001, driver, PATIENCE)
    workers = driver.workers()
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    # Whatever was loaded by then, something is left for them.
    producing.join()
    world.produce(topic, 4_000, truth, first=truth.rows)
    world.wait_for_rows(table, truth.rows, driver, PATIENCE)
    assert "does not come back although its lease is over" in driver.text()
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    world.produce(topic, 4_000, truth, first=truth.rows)
    world.wait_for_rows(table, truth.rows, driver, PATIENCE)
    wait_for(lambda: not [pid for pid in workers if _hangs(pid)], 60, "the end of the workers")
    driver.signal(15)
    assert driver.wait() == 0, driver.text()[-4000:]
    assert_exact(world, table, truth)


def _hangs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
