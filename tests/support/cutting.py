"""A link to a ClickHouse server on which acknowledgements of blocks can be lost: stored, and nobody
hears of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy

#: Not that with which doctor rehearses.
_TOKEN = re.compile(rb"insert_deduplication_token=(?!sluice-doctor)[^ ]{13}")
_TAIL_BYTES = 40


class Blocks:
    """Wants HTTP requests that insert a block under a token."""

    def __init__(self) -> None:
        self._tail = b""

    def feed(self, data: bytes) -> bool:
        seen = self._tail + data
        self._tail = seen[-_TAIL_BYTES:]
        return _TOKEN.search(seen) is not None


@dataclass
class Link:
    """A link that is sound at first."""

    proxy: Proxy

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.proxy.port}"

    @property
    def lost(self) -> int:
        """Acknowledgements that were lost."""
        return self.proxy.counters.dropped_replies

    def lose(self) -> None:
        self.proxy.strike(LinkFault(Kind.DROP_REPLY))

    def heal(self) -> None:
        self.proxy.heal()


@contextmanager
def run_link(server_url: str) -> Iterator[Link]:
    """Until the block ends."""
    server = urlsplit(server_url)
    with Proxy(Blocks, (server.hostname or "", server.port or 0)) as proxy:
        yield Link(proxy)
