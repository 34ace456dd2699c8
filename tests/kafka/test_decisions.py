"""Reading what persons have decided."""

from __future__ import annotations

import threading
import time

from sluice.core.decided import LOG_LEVEL, Decided, set_entry
from sluice.kafka.decisions import DecisionReader, write_decisions
from tests.support.kafka import Kafka


def test_reading_all_does_not_wait_for_a_fetch_that_is_held_open(kafka: Kafka) -> None:
    """The broker holds a fetch of a topic without news open for 10 s, and answers a connection in
    order. Each start of a driver waited for that."""
    reader = DecisionReader(kafka.access(), kafka.own_topic())
    try:
        threading.Event().wait(0.5)  # the fetch is sent in the background
        began = time.monotonic()
        assert reader.read_all() == Decided()
        assert time.monotonic() - began < 8.0
    finally:
        reader.close()


def test_what_is_decided_behind_an_open_transaction_is_read(kafka: Kafka) -> None:
    """As that of a command that was killed: the last stable offset stays before it for a while."""
    topic, access = kafka.own_topic(), kafka.access()
    writer = kafka.open_transaction(topic, [b'{"connector": "other"}'])
    entry = set_entry(LOG_LEVEL, "debug", "alice", "a look")
    write_decisions(access, f"{topic}.group", kafka.own_topic(), topic, [entry], 1)
    end = threading.Timer(1.0, writer.commit_transaction, [30])
    reader = DecisionReader(access, topic)
    try:
        end.start()
        assert reader.read_all().value_of(LOG_LEVEL) == "debug"
    finally:
        end.join()
        reader.close()
