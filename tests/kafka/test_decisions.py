"""Reading what persons have decided."""

from __future__ import annotations

import threading
import time

from sluice.core.decided import Decided
from sluice.kafka.decisions import DecisionReader
from tests.support.kafka import Kafka


def test_reading_all_does_not_wait_for_a_fetch_that_is_held_open(kafka: Kafka) -> None:
    """The broker holds a fetch of a topic without news open for 10 s, and answers a connection in
    order. Each start of a driver waited for that."""
    reader = DecisionReader(kafka.access(), kafka.own_topic())
    try:
        threading.Event().wait(0.5)  # the fetch is sent in the background
        began = time.monotonic()
        assert reader.read_all() == Decided()
        assert time.monotonic() - began < 3.0
    finally:
        reader.close()
