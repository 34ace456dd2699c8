"""What a driver tells of itself while it loads: to Prometheus, and to a service manager."""

from __future__ import annotations

import json
import signal
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.world import Truth, World, wait_for

#: For what a driver tells some seconds later.
SECONDS = 90.0


@pytest.mark.slow
def test_metrics_and_the_service_manager_are_told_what_was_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    heard: list[str] = []

    def hear() -> None:
        for message in iter(lambda: manager.recv(1 << 16), b"the end"):
            heard.extend(message.decode().split("\n"))

    hearing = threading.Thread(target=hear, daemon=True)
    hearing.start()
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "4000000")
    world.create_topic("orders-metrics", 2)
    world.create_table("metered")
    truth = Truth()
    world.produce("orders-metrics", 3_000, truth, partitions=2, bad_every=500)
    configuration = world.configure({"metered": ["orders-metrics"]})
    with configuration.open("a") as file:
        file.write('[http]\nlisten = "127.0.0.1:0"\n[fleet]\nmember = "east-1"\n')
    driver = world.run(configuration)
    world.wait_for_rows("metered", truth.rows, driver)
    logged = [json.loads(line) for line in driver.text().splitlines() if '"http"' in line]
    url = f"{logged[0]['url']}/metrics"

    def loaded() -> bool:
        text = urllib.request.urlopen(url, timeout=60).read().decode()
        told = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        connector = {("connector", f"{world.name}.dc1")}
        partition = connector | {("topic", "orders-metrics"), ("partition", "0")}
        return (
            told.get(("sluice_rows_total", frozenset(connector))) == truth.rows
            and told.get(("sluice_dead_letters_total", frozenset(connector))) == truth.bad_count
            and told.get(("sluice_in_doubt", frozenset(partition))) == 0
            and told.get(("sluice_fleet_members", frozenset(connector))) == 1
        )

    wait_for(loaded, SECONDS, "the settle in the metrics")

    def is_reported() -> bool:
        answer = world.sluice("fleet", str(configuration), "--json")
        assert answer.returncode == 0, answer.stderr
        return [
            (each["member"], each["state"], each["partitions"], "metered" in str(each["floors"]))
            for each in json.loads(answer.stdout)
        ] == [("east-1", "reports", 2, True)]

    wait_for(is_reported, SECONDS, "a report of the member, with the window of its table")
    idle = "STATUS=dc1: has loaded everything"
    wait_for(lambda: idle in heard, SECONDS, f"{idle} at the service manager's socket")
    driver.signal(signal.SIGTERM)
    assert driver.wait() == 0
    with manager, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.sendto(b"the end", str(tmp_path / "notify"))
        hearing.join(30.0)
    ready, stopping = heard.index("READY=1"), heard.index("STOPPING=1")
    assert idle in heard[ready:]
    assert "WATCHDOG=1" in heard[ready:stopping]
