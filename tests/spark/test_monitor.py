"""Windows read from any of several replicas. ZooKeeper here has one member, so what a member that
is behind would say is scripted; real replicas are in tests/e2e/test_replicas.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.reactions import nothing_sent
from sluice.clickhouse.schema import TableFacts
from sluice.core.budget import Site
from sluice.core.errors import TerminalError
from sluice.core.text import ConfigurationText
from sluice.spark import assignment, monitor
from sluice.spark.assignment import ClickHouseAccess
from sluice.spark.monitor import BEHIND_MS_MAX, DESCRIBE_EVERY_MS, WindowMonitor
from tests.spark.lane_world import START_MS, table_text
from tests.spark.test_failover import replica_of
from tests.spark.test_texts import facts_of

A, B = "http://a:8123", "http://b:8123"
SITE = Site("t", "s1")
MINUTE_MS = DESCRIBE_EVERY_MS
#: The turn of the first replica.
EVEN_MS = START_MS - START_MS % (2 * MINUTE_MS)


class Replica:
    """What one server says; None: it does not answer."""

    def __init__(self, url: str, *_: str, **__: object) -> None:
        self.url = url

    def ping(self) -> None:
        if MARKS[self.url] is None:
            raise nothing_sent(self.url, "ping", "CONNECTION_REFUSED", "refused")


MARKS: dict[str, int | None] = {}
FACTS: dict[str, TableFacts] = {}
CROWDING: dict[str, float] = {}


class Watched:
    """A monitor of one table on two replicas, at a time of ours."""

    def __init__(self) -> None:
        access = ClickHouseAccess({"s1": (A, B)}, "", "", "single")
        text = ConfigurationText("p", "c", "chdb", 1, (table_text("t", ("a",)),))
        self.now_ms = EVEN_MS
        self.monitor = WindowMonitor(access, text, lambda: self.now_ms)
        self.servers = self.monitor._servers()

    def read(self, now_ms: int, **marks: int | None) -> int | None:
        """The mark after a reading, None in an outage."""
        MARKS.update({A: marks.get("a"), B: marks.get("b")})
        self.now_ms = now_ms
        self.monitor._read(self.servers)
        if self.monitor.outage(SITE) is not None:
            return None
        assert self.monitor.current()[SITE].read_started_ms == now_ms
        return self.monitor.current()[SITE].state.mark


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    FACTS.update({A: replica_of(url=A), B: replica_of(url=B)})
    monkeypatch.setattr(assignment, "Server", Replica)
    monkeypatch.setattr(monitor, "describe_table", lambda server, *_: FACTS[server.url])
    monkeypatch.setattr(monitor, "window_mark", lambda server, _: MARKS[server.url])
    monkeypatch.setattr(monitor, "crowding", lambda server, _: CROWDING.get(server.url, 0.0))
    return Watched()


def test_any_replica_that_answers_is_enough(watched: Watched) -> None:
    assert watched.read(EVEN_MS, a=5, b=5) == 5
    assert watched.read(EVEN_MS + 1000, a=None, b=6) == 6
    assert watched.read(EVEN_MS + 2000, a=None, b=None) is None
    assert watched.read(EVEN_MS + 3000, a=None, b=7) == 7
    assert watched.read(EVEN_MS + 20_000, a=8, b=None) == 8


def test_a_replica_that_says_less_than_another_did_is_passed_by(watched: Watched) -> None:
    """A mark that went back would look like a window that nobody used."""
    odd_ms = EVEN_MS + MINUTE_MS
    assert watched.read(EVEN_MS, a=10, b=10) == 10
    assert watched.read(odd_ms, a=12, b=9) == 12
    assert watched.read(odd_ms + 1000, a=None, b=9) is None
    assert watched.read(odd_ms + 6000, a=None, b=12) == 12


def test_a_table_that_was_made_anew_is_believed_after_a_while(watched: Watched) -> None:
    assert watched.read(EVEN_MS, a=10, b=10) == 10
    begun_ms = EVEN_MS + 1000
    assert watched.read(begun_ms, a=None, b=1) is None
    assert watched.read(begun_ms + BEHIND_MS_MAX - 1, a=None, b=1) is None
    assert watched.read(begun_ms + BEHIND_MS_MAX, a=None, b=1) == 1
    assert watched.read(begun_ms + BEHIND_MS_MAX + 1, a=None, b=0) == 0  # it says so itself


def test_the_narrowest_window_of_all_replicas_counts(watched: Watched) -> None:
    """Whichever of them leads clears the window, by its own setting."""
    FACTS[B] = replace(FACTS[B], window_blocks=40, window_seconds=600)
    watched.read(EVEN_MS, a=1, b=1)
    assert watched.monitor.current()[SITE].state.blocks == FACTS[A].window_blocks > 40
    for minute in (1, 2, 3):  # it is the other's turn, and then it is still known
        watched.read(EVEN_MS + minute * MINUTE_MS, a=1, b=1)
        assert watched.monitor.current()[SITE].state.blocks == 40
        assert watched.monitor.current()[SITE].seconds == 600


def test_servers_with_windows_of_their_own_are_refused(watched: Watched) -> None:
    FACTS[A] = FACTS[B] = facts_of()
    assert watched.read(EVEN_MS, a=1, b=1) is None
    assert isinstance(watched.monitor.refusal(SITE), TerminalError)


def test_parts_are_counted_now_and_then_and_a_crowd_is_told_once(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CROWDING, A, 0.8)
    monkeypatch.setitem(CROWDING, B, 0.8)
    watched.read(EVEN_MS, a=1, b=1)
    assert watched.monitor.current()[SITE].crowding == 0.8
    assert "80 % of the parts" in caplog.text
    monkeypatch.setitem(CROWDING, A, 0.9)
    monkeypatch.setitem(CROWDING, B, 0.9)
    watched.read(EVEN_MS + 9_000, a=1, b=1)
    assert watched.monitor.current()[SITE].crowding == 0.8
    caplog.clear()
    watched.read(EVEN_MS + 10_000, a=1, b=1)
    assert watched.monitor.current()[SITE].crowding == 0.9
    assert not caplog.records
