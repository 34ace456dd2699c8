"""Recording goes on at once after a real broker was restarted."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.kafka import recorder as recorder_module
from sluice.testbed.local.running import running_broker
from tests.kafka.groups import SETTLED, Group, intend
from tests.support.kafka import Kafka


@pytest.mark.slow
def test_a_send_of_offsets_does_not_wait_for_the_broker_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer of before would: it would be left behind after 30 s, with its transaction."""
    monkeypatch.setattr(recorder_module, "RENEWED_AFTER_SECONDS", 0.0)
    caplog.set_level(logging.WARNING)
    with running_broker(tmp_path / "kafka") as broker:
        group = Group(Kafka(broker))
        driver = group.owning("a")
        before = replace(SETTLED, owner="a")
        for end in (10, 20, 30):
            record = intend("a", before.end, end)
            driver.record(group.commit(record), dict.fromkeys(group.sources, before))
            before = record
            broker.stop()
            broker.start()
            # Waits for Kafka, as the loop does before each transaction.
            assert driver.differences(dict.fromkeys(group.sources, before)) == {}
        last = intend("a", 30, 40)
        driver.record(group.commit(last), dict.fromkeys(group.sources, before))
        assert group.holds(last)
        group.close()
    assert "did not come back" not in caplog.text
    assert driver.initialised == 4
