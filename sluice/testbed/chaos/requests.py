"""Recognising, in the bytes of a connection, the requests whose replies matter most.

A proxy sees pieces of a stream. Each watch follows one connection from its first byte on.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Protocol

from sluice.claims.redis_layout import CLAIM

#: Kafka's numbers of the requests that a transaction consists of.
PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS = 0, 22, 24, 25
END_TRANSACTION, COMMIT_OFFSETS = 26, 28
TRANSACTION = frozenset({INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION})
TRANSACTION |= {COMMIT_OFFSETS}

#: How `sluice.clickhouse.insert` begins the request line of each block.
_INSERT = b"POST /?query=INSERT"
#: How `sluice.claims.redis` claims a key.
_CLAIM = hashlib.sha1(CLAIM).hexdigest().encode()
#: What all attempts of a block share, and what this one has for itself (`query_id_of`).
_QUERY_ID = re.compile(rb"query_id=(sluice-[0-9a-f]{24})-([0-9a-f]+)[& ]")
_REQUEST_LINE_BYTES_MAX = 8192


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


class _Words:
    """Wants what has these bytes in it."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        seen = self._tail + data
        self._tail = seen[-(len(self._words) - 1) :]
        return self._words in seen


class Inserts(_Words):
    """Wants HTTP requests that insert a block."""

    def __init__(self) -> None:
        super().__init__(_INSERT)


class Claims(_Words):
    """Wants commands of Redis that claim keys."""

    def __init__(self) -> None:
        super().__init__(_CLAIM)


class Posts:
    """Counts the attempts to insert each block, over many connections and several proxies."""

    def __init__(self) -> None:
        #: By what the attempts share.
        self.of_block: dict[str, set[str]] = {}

    def watch(self) -> Watch:
        """For a connection."""
        return _CountedInserts(self)

    def add(self, block: str, attempt: str) -> None:
        """An attempt; harmless when repeated."""
        self.of_block.setdefault(block, set()).add(attempt)

    @property
    def total(self) -> int:
        """All attempts."""
        return sum(map(len, self.of_block.values()))


class _CountedInserts(Inserts):
    """Wants the same, and counts."""

    def __init__(self, posts: Posts) -> None:
        super().__init__()
        self._posts = posts
        self._line = b""

    def feed(self, data: bytes) -> bool:
        seen = self._line + data
        for found in _QUERY_ID.finditer(seen):
            self._posts.add(found[1].decode(), found[2].decode())
        # A request line may come in pieces; a block's bytes hardly look like one.
        self._line = seen[-_REQUEST_LINE_BYTES_MAX:]
        return super().feed(data)


def kafka_requests(kinds: frozenset[int] = TRANSACTION) -> WatchMaker:
    """A watch for each connection to a broker."""
    return lambda: KafkaRequests(kinds)
