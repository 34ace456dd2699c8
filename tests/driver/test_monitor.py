"""Windows read from any of several replicas. ZooKeeper here has one member, so what a member that
is behind would say is scripted; real replicas are in tests/e2e/test_replicas.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.clickhouse import access
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.reactions import nothing_sent
from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.core.budget import TargetShard
from sluice.core.errors import TerminalError
from sluice.core.load_spec import LoadSpec
from sluice.driver import monitor
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.monitor import BEHIND_MS_MAX, DESCRIBE_EVERY_MS, WindowMonitor
from tests.driver.loop_world import START_MS, table_spec
from tests.driver.test_specs import facts_of
from tests.worker.test_failover import replica_of

A, B = "http://a:8123", "http://b:8123"
TARGET_SHARD = TargetShard("t", "s1")
MINUTE_MS = DESCRIBE_EVERY_MS
#: The turn of the first replica.
EVEN_MS = START_MS - START_MS % (2 * MINUTE_MS)


class Replica:
    """What one server says; None: it does not answer."""

    def __init__(self, url: str, *_: str, **__: object) -> None:
        self.url = url

    def ping(self) -> None:
        if INSERT_COUNTERS[self.url] is None:
            raise nothing_sent(self.url, "ping", "CONNECTION_REFUSED", "refused")


INSERT_COUNTERS: dict[str, int | None] = {}
FACTS: dict[str, TableFacts] = {}
CROWDING: dict[str, float] = {}
#: Of tables that views write to; what processes say that they are, one after the other.
TARGET_MARKS: dict[str, int] = {}
RUNS: list[str] = []
#: Called when an insert counter is read.
ON_READ: list[Callable[[], None]] = []


def read_insert_counter(server: Replica, facts: TableFacts) -> int | None:
    for each in ON_READ:
        each()
    return (
        TARGET_MARKS[facts.target] if facts.target in TARGET_MARKS else INSERT_COUNTERS[server.url]
    )


class Watched:
    """A monitor of one table on two replicas, at a time of ours."""

    def __init__(self) -> None:
        access = ClickHouseAccess({"s1": (A, B)}, "", "", "single")
        spec = LoadSpec("p", "c", "chdb", 1, (table_spec("t", ("a",)),))
        self.now_ms = EVEN_MS
        self.specs = LoadSpecs(spec)
        self.monitor = WindowMonitor(access, self.specs, lambda: self.now_ms)
        self.servers = self.monitor._servers()

    def read(self, now_ms: int, **insert_counters: int | None) -> int | None:
        """The insert counter after a reading, None in an outage."""
        INSERT_COUNTERS.update({A: insert_counters.get("a"), B: insert_counters.get("b")})
        self.now_ms = now_ms
        self.monitor._read(self.servers)
        if self.monitor.outage(TARGET_SHARD) is not None:
            return None
        assert self.monitor.current()[TARGET_SHARD].read_started_ms == now_ms
        return self.monitor.current()[TARGET_SHARD].state.insert_counter


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    FACTS.update({A: replica_of(url=A), B: replica_of(url=B)})
    for each in (TARGET_MARKS, RUNS, ON_READ):
        each.clear()
    monkeypatch.setattr(access, "Server", Replica)
    monkeypatch.setattr(monitor, "describe_table", lambda server, *_: FACTS[server.url])
    monkeypatch.setattr(monitor, "read_insert_counter", read_insert_counter)
    monkeypatch.setattr(monitor, "read_server_run", lambda server: RUNS.pop(0))
    monkeypatch.setattr(monitor, "crowding", lambda server, _: CROWDING.get(server.url, 0.0))
    return Watched()


def test_any_replica_that_answers_is_enough(watched: Watched) -> None:
    assert watched.read(EVEN_MS, a=5, b=5) == 5
    assert watched.read(EVEN_MS + 1000, a=None, b=6) == 6
    assert watched.read(EVEN_MS + 2000, a=None, b=None) is None
    assert watched.read(EVEN_MS + 3000, a=None, b=7) == 7
    assert watched.read(EVEN_MS + 20_000, a=8, b=None) == 8


def test_a_replica_that_says_less_than_another_did_is_passed_by(watched: Watched) -> None:
    """An insert counter that went back would look like a window that nobody used."""
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
    assert watched.monitor.current()[TARGET_SHARD].state.blocks == FACTS[A].window_blocks > 40
    for minute in (1, 2, 3):  # it is the other's turn, and then it is still known
        watched.read(EVEN_MS + minute * MINUTE_MS, a=1, b=1)
        assert watched.monitor.current()[TARGET_SHARD].state.blocks == 40
        assert watched.monitor.current()[TARGET_SHARD].seconds == 600


def test_servers_with_windows_of_their_own_are_refused(watched: Watched) -> None:
    FACTS[A] = FACTS[B] = facts_of()
    assert watched.read(EVEN_MS, a=1, b=1) is None
    assert isinstance(watched.monitor.refusal(TARGET_SHARD), TerminalError)


def test_a_table_that_is_told_to_queue_inserts_is_refused_within_a_minute(watched: Watched) -> None:
    assert watched.read(EVEN_MS, a=1, b=1) == 1
    FACTS[A] = FACTS[B] = replace(FACTS[A], async_insert=True)
    for minute in (1, 2):
        watched.read(EVEN_MS + minute * MINUTE_MS + 1, a=1, b=1)
    refusal = watched.monitor.refusal(TARGET_SHARD)
    assert isinstance(refusal, TerminalError) and "MODIFY SETTING async_insert = 0" in refusal.hint


def behind_view(facts: TableFacts, name: str, **changes: object) -> TableFacts:
    """The facts of a table with a view behind it that writes to another one."""
    target = replace(facts, table=name, **changes)  # type: ignore[arg-type]
    return replace(facts, dependents=(*facts.dependents, Dependent(f"d.to_{name}", target)))


def test_what_views_write_to_is_watched_like_the_table(watched: Watched) -> None:
    """However deep, each once, with its own blocks, seconds and insert counter."""
    bare = replace(FACTS[A], partition_key="")
    deep = behind_view(bare, "deep", window_blocks=30, window_seconds=60, partition_key="day")
    wide = replace(deep, table="wide", window_blocks=5_000)
    FACTS[A] = replace(
        bare, dependents=(Dependent("d.one", wide), Dependent("d.two", deep.dependents[0].target))
    )
    FACTS[B] = FACTS[A]
    name = FACTS[A].database
    TARGET_MARKS.update({f"{name}.deep": 700, f"{name}.wide": 90})
    watched.read(EVEN_MS, a=5, b=5)
    current = watched.monitor.current()
    at = {
        target_shard.target.rpartition(".")[2]: window for target_shard, window in current.items()
    }
    assert at.keys() == {"", "wide", "deep"} and {target_shard.own for target_shard in current} == {
        TARGET_SHARD
    }
    assert [at[t].state.insert_counter for t in ("", "wide", "deep")] == [5, 90, 700]
    assert [at[t].state.blocks for t in ("wide", "deep")] == [5_000, 30]
    assert [at[t].seconds for t in ("", "deep")] == [bare.window_seconds, 60]
    assert [at[t].is_partitioned for t in ("", "deep")] == [False, True]
    assert at["deep"].state.table == f"{name}.deep"


def test_a_view_that_is_dropped_is_watched_no_longer(watched: Watched) -> None:
    bare = FACTS[A]
    FACTS[A] = FACTS[B] = behind_view(bare, "sums")
    TARGET_MARKS[f"{bare.database}.sums"] = 1
    watched.read(EVEN_MS, a=5, b=5)
    target = replace(TARGET_SHARD, target=f"{bare.database}.sums")
    assert watched.monitor.current().keys() == {TARGET_SHARD, target}
    FACTS[A] = FACTS[B] = bare
    # Each replica is asked in its turn: as long as one was not, it may still have the view.
    for minute in (1, 2):
        watched.read(EVEN_MS + minute * MINUTE_MS + 1, a=5, b=5)
    watched.read(EVEN_MS + 3 * MINUTE_MS, a=None, b=None)
    assert watched.monitor.current().keys() == {TARGET_SHARD}
    assert watched.monitor.outage(target) is not None


def test_an_insert_counter_counts_from_before_it_was_read(watched: Watched) -> None:
    """Entries that are created while the server answers may be missing in it."""

    def late() -> None:
        watched.now_ms += 5_000

    ON_READ.append(late)
    watched.read(EVEN_MS, a=5, b=5)
    assert watched.monitor.current()[TARGET_SHARD].read_started_ms == EVEN_MS


def test_who_serves_a_table_that_is_not_replicated_is_read_before_its_insert_counter(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ended in between is not the one that the insert counter is of."""
    FACTS[A] = replace(facts_of(), window_blocks=100)
    access = ClickHouseAccess({"s1": (A,)}, "", "", "single")
    watched.monitor.use(access)
    watched.servers = watched.monitor._servers()
    RUNS[:] = ["first", "second"]
    seen: list[int] = []
    ON_READ.append(lambda: seen.append(len(RUNS)))
    watched.read(EVEN_MS, a=5)
    assert seen == [1]
    assert watched.monitor.current()[TARGET_SHARD].server == "first"


def test_parts_are_counted_now_and_then_and_a_crowd_is_told_once(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CROWDING, A, 0.8)
    monkeypatch.setitem(CROWDING, B, 0.8)
    watched.read(EVEN_MS, a=1, b=1)
    assert watched.monitor.current()[TARGET_SHARD].crowding == 0.8
    assert "80 % of the parts" in caplog.text
    monkeypatch.setitem(CROWDING, A, 0.9)
    monkeypatch.setitem(CROWDING, B, 0.9)
    watched.read(EVEN_MS + 9_000, a=1, b=1)
    assert watched.monitor.current()[TARGET_SHARD].crowding == 0.8
    caplog.clear()
    watched.read(EVEN_MS + 10_000, a=1, b=1)
    assert watched.monitor.current()[TARGET_SHARD].crowding == 0.9
    assert not caplog.records
