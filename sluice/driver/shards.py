"""Asking a shard what any of its replicas can answer, while at least one answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.core.decided import Standing
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.replicas import Breaker, turn
from sluice.driver.ports import Clock

_T = TypeVar("_T")


class ShardReader:
    """Keeps a connection to each replica of a shard, and remembers which failed lately.

    Not for several threads at once.

    :param frozen: a person may be at these replicas: what such a one refuses, as a table that is
        not there, the others are asked for.
    """

    def __init__(
        self, access: ClickHouseAccess, shard: str, now_ms: Clock, frozen: Standing = ()
    ) -> None:
        self.shard = shard
        self.urls = access.shards[shard]
        self._frozen = {url for url in self.urls if any(each.covers(url) for each in frozen)}
        self._servers = {url: access.connect(url) for url in self.urls}
        self._breaker = Breaker()
        self._now_ms = now_ms

    def ask(self, question: Callable[[Server], _T], first: int = 0) -> _T:
        """Ask one replica after the other, until one answers.

        :param first: number of the replica whose turn it is, of any size.
        :raises SluiceError: none does; the error of the one that was asked last.
        """
        now_seconds = self._now_ms() / 1000
        last: SluiceError | None = None
        for url in self._breaker.order(turn(self.urls, first), now_seconds):
            try:
                answer = _ask(self._servers[url], question, len(self.urls))
            except (TransientError, TerminalError) as error:
                if isinstance(error, TerminalError) and url not in self._frozen:
                    raise
                self._breaker.failed(url, now_seconds)
                last = error
            else:
                self._breaker.succeeded(url)
                return answer
        assert last is not None
        raise last


def on_shard(access: ClickHouseAccess, shard: str, question: Callable[[Server], _T]) -> _T:
    """Ask the first replica of a shard that answers.

    :raises TransientError: none does; the error of the last one.
    """
    *first, last = access.shards[shard]
    for url in first:
        try:
            with access.connect(url) as server:
                return _ask(server, question, len(access.shards[shard]))
        except TransientError:
            continue
    with access.connect(last) as server:
        return question(server)


def on_replicas(
    access: ClickHouseAccess, shard: str, question: Callable[[Server], _T]
) -> dict[str, _T]:
    """Ask every replica of a shard; those that do not answer are missing.

    :raises TransientError: none does; the error of the last one.
    """
    answers: dict[str, _T] = {}
    last: TransientError | None = None
    for url in access.shards[shard]:
        try:
            with access.connect(url) as server:
                answers[url] = _ask(server, question, len(access.shards[shard]))
        except TransientError as error:
            last = error
    if last is not None and not answers:
        raise last
    return answers


def _ask(server: Server, question: Callable[[Server], _T], replicas: int) -> _T:
    """Where there is another replica, one that is frozen is found out in seconds: a query would
    wait for half a minute."""
    if replicas > 1:
        server.ping()
    return question(server)
