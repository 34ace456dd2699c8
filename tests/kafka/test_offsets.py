"""Offsets that other programs committed are read, whatever they committed with them."""

from __future__ import annotations

import socket
import struct
import uuid
from typing import cast

import confluent_kafka as ck

from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS
from sluice.kafka import offsets
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.offsets import UNREADABLE, look, owner_in
from sluice.kafka.wire.messages import text
from tests.support.kafka import Kafka
from tests.support.world import wait_for

#: As long as the client's memory is cut, so that it reads on into what stands behind.
METADATA = "kgo-27e39c49-7fae-4722-9d64-6ff6f5ad7d43"


def commit_without_a_zero(kafka: Kafka, group: str, topic: str, offset: int) -> bool:
    """As other clients commit (OffsetCommit, version 2): metadata that ends with its last letter.

    :returns: whether the broker took it; it does not while it makes its topic of offsets.
    """
    partition = struct.pack(">iiq", 1, 0, offset) + text(METADATA)
    body = text(group) + struct.pack(">ihqi", -1, 0, -1, 1) + text(topic) + partition
    request = struct.pack(">hhi", 8, 2, 1) + text("another program") + body
    host, port = kafka.brokers.split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.recv(1_000)
    return answer[-2:] == b"\0\0"


def test_what_another_program_committed_with_an_offset_is_no_bug(kafka: Kafka) -> None:
    topic, group = kafka.topic(), f"other-{uuid.uuid4().hex[:8]}"
    access, source = KafkaAccess("dc1", kafka.brokers), TopicPartition(topic, 0)
    assert look(access, group, [source], 30).found == {source: None}
    wait_for(lambda: commit_without_a_zero(kafka, group, topic, 7), 30, "the commit")
    for _ in range(20):
        found = look(access, group, [source], 30).found[source]
        assert found is not None
        assert found.offset == 7
        assert found.metadata == UNREADABLE or str(found.metadata).startswith(METADATA)
        assert owner_in(found) == GENESIS


class NotText:
    """What the client gives back where no text stands behind what it read."""

    topic, partition, offset, error = "t", 0, 7, None

    @property
    def metadata(self) -> str:
        return b"kgo-1\xc5\x01".decode()


def test_what_is_no_text_is_metadata_of_another_program() -> None:
    (found,) = offsets._found([cast(ck.TopicPartition, NotText())]).values()
    assert found is not None
    assert (found.offset, found.metadata) == (7, UNREADABLE)
