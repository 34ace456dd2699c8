"""Recognising, in the bytes of a connection, the requests whose replies matter most.

A proxy sees pieces of a stream. Each watch follows one connection from its first byte on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

#: Kafka's numbers of the requests that a transaction consists of.
PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS = 0, 22, 24, 25
END_TRANSACTION, COMMIT_OFFSETS = 26, 28
TRANSACTION = frozenset({INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION})
TRANSACTION |= {COMMIT_OFFSETS}

#: How `sluice.clickhouse.insert` begins the request line of each block.
_INSERT = b"POST /?query=INSERT"


class Watch(Protocol):
    """Follows what a client sends."""

    def feed(self, data: bytes) -> bool:
        """True if a wanted request begins in these bytes."""


WatchMaker = Callable[[], Watch]


class KafkaRequests:
    """Wants some kinds of Kafka requests.

    :param kinds: Kafka's numbers of them.
    """

    _HEAD_BYTES = 6  # length of the frame (4 bytes), kind of the request (2 bytes)

    def __init__(self, kinds: frozenset[int]) -> None:
        self._kinds = kinds
        self._head = b""
        self._skip = 0

    def feed(self, data: bytes) -> bool:
        found, at = False, 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            taken = data[at : at + self._HEAD_BYTES - len(self._head)]
            self._head += taken
            at += len(taken)
            if len(self._head) == self._HEAD_BYTES:
                found |= int.from_bytes(self._head[4:], "big") in self._kinds
                self._skip = int.from_bytes(self._head[:4], "big") - 2
                self._head = b""
        return found


class Inserts:
    """Wants HTTP requests that insert a block."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        seen = self._tail + data
        self._tail = seen[-(len(_INSERT) - 1) :]
        return _INSERT in seen


def kafka_requests(kinds: frozenset[int] = TRANSACTION) -> WatchMaker:
    """A watch for each connection to a broker."""
    return lambda: KafkaRequests(kinds)
