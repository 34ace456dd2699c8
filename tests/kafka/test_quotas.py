"""Reading goes on at a broker whose quota is used up, however long it says that it takes."""

from __future__ import annotations

import struct
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import sluice.kafka.reader as contract
from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.reader import Wanted
from sluice.kafka.readers import make_reader
from sluice.kafka.wire import messages
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import Cursor
from sluice.kafka.wire.reader import WireReader
from sluice.kafka.wire.security import read_security
from tests.kafka.scripted_broker import scripted_broker
from tests.kafka.test_wire_connection import VALUES, WHOLE, made
from tests.support.kafka import Kafka

_ALTER_CLIENT_QUOTAS = 49
QUOTA_BYTES = 200_000


def test_a_broker_that_slows_us_down_is_not_asked_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is sent before it would lie unread, and be taken for a broker that is silent. The
    time does not count as one without progress, either."""
    monkeypatch.setattr(contract, "STALL_SECONDS", 1.0)
    slowed_ms, asked_at, answered_at = [500, 700, 500], list[float](), list[float]()
    with scripted_broker(made()) as broker:

        def fetch(body: bytes) -> bytes:
            asked_at.append(time.monotonic())
            if not slowed_ms:
                return broker.fetch(body)
            answered_at.append(time.monotonic())
            return struct.pack(">ihii", slowed_ms.pop(0), 0, 0, 0)

        broker.answers[messages.FETCH] = fetch
        reader = WireReader(KafkaAccess("dc1", f"localhost:{broker.port}"))
        values: list[bytes] = []
        reader.read_ranges(WHOLE, 1 << 40, lambda found, _: values.extend(found))
        reader.close()
        assert values == VALUES
        assert broker.connections <= 2, "who leads, and the fetches: none was given up"
    waits = [later - at for at, later in zip(answered_at, asked_at[1:], strict=False)]
    assert [wait >= least for wait, least in zip(waits, (0.5, 0.7, 0.5), strict=True)] == [True] * 3
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("sluice")]
    assert "quota" in said and "consumer_byte_rate" in said


def allow(kafka: Kafka, client: str, bytes_a_second: float) -> None:
    """Give a client id a quota; as kafka-configs.sh does."""
    host, _, port = kafka.brokers.rpartition(":")
    connection = Connection((host, int(port)), read_security({}), "quotas")
    text = messages.text
    body = struct.pack(">ii", 1, 1) + text("client-id") + text(client)
    body += struct.pack(">i", 1) + text("consumer_byte_rate")
    body += struct.pack(">db", bytes_a_second, 0) + struct.pack(">b", 0)
    answer: Cursor = connection.ask(_ALTER_CLIENT_QUOTAS, body, 0)
    connection.close()
    _, count, error = answer.numbers("iih")
    assert (count, error) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["native", "librdkafka"])
def test_readers_share_a_small_quota(
    kafka: Kafka, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Three at once, as three tasks: each is told to wait again and again, for longer than what is
    a stall elsewhere."""
    client, count, size = f"slowed-{uuid.uuid4().hex[:8]}", 200, 10_000
    access = replace(kafka.access(), reader=name, properties={"client.id": client})
    topics = [kafka.topic() for _ in range(3)]
    for topic in topics:
        for begin in range(0, count, 10):  # batches that are far below what a quota lets through
            kafka.produce(topic, [b"%06d" % n + b"x" * size for n in range(begin, begin + 10)])
    allow(kafka, client, QUOTA_BYTES)

    def read(topic: str) -> int:
        reader = make_reader(access)
        found: list[bytes] = []
        try:
            wanted = [Wanted(Range(TopicPartition(topic, 0), 0, count))]
            reader.read_ranges(wanted, 1 << 40, lambda values, _: found.extend(values))
        finally:
            reader.close()
        assert [int(value[:6]) for value in found] == list(range(count))
        return len(found)

    def is_told() -> bool:
        return any("quota" in record.getMessage() for record in caplog.records)

    # The controller has it; the broker hears of it a moment later.
    kafka.until(lambda: bool(read(topics[0])) and is_told())
    caplog.clear()
    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read, topics)) == [count] * 3
    assert time.monotonic() - began > 10, "the quota was felt"
    assert is_told()
