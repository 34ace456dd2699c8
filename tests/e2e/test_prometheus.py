"""A real Prometheus scrapes a real pipeline while things go wrong: each alert that can be brought
about here fires on its fault, and no other one with it; each query of the dashboard is answered."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka as ck
import pytest

from sluice.testbed.local.children import free_ports
from tests.e2e.test_owners import _commit
from tests.ops.http.scene import ALICE
from tests.ops.test_dashboard import targets
from tests.support.driver import Driver
from tests.support.prometheus import Prometheus, shortened
from tests.support.world import Truth, World, wait_for

DAY_MS = 86_400_000
#: How long a minute of the rules takes here.
MINUTE_SECONDS = 2
PATIENCE = 240.0
#: Queries that have no answer here: nothing deduplicates, Kafka is well, no block waits, and no
#: replica is frozen.
UNANSWERED = {
    'sluice_replica_frozen{connector=~".*"} == 1',
    'sluice_kafka_unanswered{connector=~".*"} == 1',
    'sluice_consecutive_record_failures{connector=~".*"} > 0',
    'sum by (table, kind) (rate(sluice_duplicates_total{connector=~".*", table=~".*"}[30s]))',
}


#: Answered where an error comes twice: Prometheus sees no increase in what begins with one.
PERHAPS = {'sum by (connector, error) (rate(sluice_failures_total{connector=~".*"}[30s])) > 0'}


def test_a_minute_of_the_rules_can_be_short() -> None:
    rules = "expr: a_seconds > 300 unless b\nfor: 5m\nexpr: increase(c[6h]) > 0\nfor: 4h\nd > 0.01"
    assert shortened(rules, 2) == (
        "expr: a_seconds > 10 unless b\nfor: 10s\nexpr: increase(c[12s]) > 0\nfor: 8s\nd > 0.01"
    )


@dataclass
class Story:
    """A pipeline of two tables, of which `bad` may be parked."""

    world: World
    path: Path
    port: int
    prometheus: Prometheus
    driver: Driver
    produced: dict[str, int] = field(default_factory=lambda: {"one": 0, "bad": 0})

    def produce(self, table: str, count: int = 50, **more: int) -> None:
        first = self.produced[table]
        self.world.produce(f"orders-{table}", count, Truth(), partitions=2, first=first, **more)
        self.produced[table] += count

    def produce_more(self, since: float) -> None:
        """Old messages, so many that some of `one` are always left: what is scraped is some seconds
        old."""
        told = self.prometheus.ask("query", query='sum(sluice_table_lag_messages{table="one"})')
        lag = int(told["result"][0]["value"][1]) if told["result"] else 0
        missing = 20_000 - lag
        if missing > 0:
            self.produce("one", missing, timestamp_ms=int(since * 1000) - DAY_MS)

    def decide(self, path: str, **said: str) -> None:
        url = f"http://127.0.0.1:{self.port}{path}"
        headers = {"Authorization": f"Bearer {ALICE}", "Content-Type": "application/json"}
        request = urllib.request.Request(
            url, json.dumps(said | {"why": "a test"}).encode(), headers
        )
        urllib.request.urlopen(request, timeout=60).close()

    def expect(
        self, *alerts: str, meanwhile: Callable[[], None] = lambda: None, also: tuple[str, ...] = ()
    ) -> None:
        """Until exactly these fire, and no other one on the way.

        :param also: may fire, too, as it comes.
        """
        wanted, seen = set(alerts), set[str]()

        def fires() -> bool:
            self.check()
            meanwhile()
            seen.clear()
            seen.update(self.prometheus.firing())
            others = seen - wanted - set(also) - self.before
            assert not others, f"{others} fire, too; wanted {wanted}"
            return seen - set(also) == wanted

        wait_for(fires, PATIENCE, f"exactly {sorted(wanted)}; last: {sorted(seen)}")
        self.before = set(seen)

    def check(self) -> None:
        """It runs, unless it was killed on purpose."""
        ended = self.driver.process.poll()
        assert ended in (None, -signal.SIGKILL), self.driver.text()[-4000:]

    def start_again(self) -> None:
        """Kill the driver, and wait until its successor is scraped."""
        self.driver.kill()
        self.driver = self.world.run(self.path)
        since = f"process_start_time_seconds > {time.time() - 1}"
        wait_for(
            lambda: bool(self.prometheus.ask("query", query=since)["result"]), PATIENCE, "a start"
        )

    def calm(self) -> None:
        """Until all is loaded and no alert fires; what a fault leaves behind may take its time, as
        a range that is looked for when its lease is over."""
        behind = "max(sluice_table_behind_seconds) < 3"

        def is_calm() -> bool:
            self.check()
            is_loaded = bool(self.prometheus.ask("query", query=behind)["result"])
            return is_loaded and not self.prometheus.firing()

        wait_for(is_calm, PATIENCE, "the end of all alerts")
        self.before = set()

    #: What fired when it was last looked at, and may need its time to end.
    before: set[str] = field(default_factory=set)


@pytest.fixture
def story(fragile_world: World, tmp_path: Path) -> Iterator[Story]:
    if shutil.which("prometheus") is None:
        pytest.skip("needs Debian's package prometheus: scripts/setup-tests")
    world = fragile_world
    for table in ("one", "bad"):
        world.create_table(table)
        world.create_topic(f"orders-{table}", 2)
    tables = {table: [f"orders-{table}"] for table in ("one", "bad")}
    settings_of = {"bad": 'on_error = "park"'}
    path = world.configure(tables, lease='"10s"', max_messages=100, settings_of=settings_of)
    (port,) = free_ports(1)
    (tmp_path / "tokens").write_text(f"alice {ALICE}\n")
    with path.open("a") as file:
        file.write(f'[http]\nlisten = "127.0.0.1:{port}"\ntokens_file = "{tmp_path}/tokens"\n')
        file.write('[verify]\nevery = "5s"\n[audit]\nevery = "5s"\nshare = 1.0\n')
    prometheus = Prometheus(tmp_path, f"127.0.0.1:{port}", MINUTE_SECONDS)
    told = Story(world, path, port, prometheus, world.run(path))
    for table in ("one", "bad"):
        told.produce(table)
        world.wait_for_rows(table, 50, told.driver, PATIENCE)
    try:
        prometheus.start()
        yield told
    finally:
        prometheus.stop()


@pytest.mark.long
def test_each_alert_fires_on_its_fault_and_each_query_is_answered(story: Story) -> None:
    began, world = time.time(), story.world
    for _ in range(5):
        story.produce("one")
        time.sleep(1)
        story.expect()

    story.decide("/freeze", table="one")
    story.produce("one")  # it is behind for as long as it is frozen, and that is no trouble
    story.expect("SluiceFrozenForLong one")
    story.decide("/resume", table="one")
    story.calm()
    story.decide("/freeze")
    both = ("SluiceFrozenForLong one", "SluiceFrozenForLong bad")
    story.expect("SluiceNothingMoves", *both)
    story.decide("/resume")
    story.calm()

    since = time.time()
    more, overdue = (lambda: story.produce_more(since)), ("SluiceProofOverdue",)
    story.expect("SluiceTableBehind one", meanwhile=more, also=overdue)
    story.calm()

    world.execute("ALTER TABLE bad ADD CONSTRAINT nothing CHECK id < 0")
    story.produce("bad")
    story.expect("SluiceParked bad")
    parked = 'sluice_parked_waiting_messages{table="bad"} == 50'
    wait_for(
        lambda: bool(story.prometheus.ask("query", query=parked)["result"]), PATIENCE, "all of them"
    )
    world.execute("ALTER TABLE bad DROP CONSTRAINT nothing")
    story.driver.signal(signal.SIGHUP)
    story.expect("SluiceParkedWaiting bad")
    replayed = world.sluice("dead-letters", "replay", str(story.path), "--parked", "--yes")
    assert replayed.returncode == 0, replayed.stderr
    story.calm()

    story.expect("SluiceDeadLetters one", meanwhile=lambda: story.produce("one", 40, bad_every=8))
    story.calm()

    world.clickhouse.stop()
    story.produce("one")
    in_doubt = ("SluiceRangeInDoubtForLong one", "SluiceNothingMoves")
    away = ("SluiceTableBehind one", "SluiceReplicaAway", "SluiceProofOverdue")
    story.expect(*away, also=in_doubt)
    world.clickhouse.start()
    story.calm()

    story.driver.kill()
    story.expect("SluiceDriverGone", "SluiceDriverUnreachable")
    gone = ("SluiceDriverGone", "SluiceDriverUnreachable")
    story.expect("SluiceKeepsRestarting", meanwhile=story.start_again, also=gone)
    story.calm()

    _forge_a_row(story)
    story.produce("bad", 2)
    story.expect("SluiceProofFound")
    _commit(world, "orders-one", 1, 5)
    story.produce("one")
    story.expect("SluicePartitionStopped", also=("SluiceProofFound", "SluiceTableBehind one"))
    _ask_each_query(story.prometheus, began)


def _forge_a_row(story: Story) -> None:
    """Of the next message, before that comes: then there are two. The last ones may be parked, so
    the newest row does not tell which is the next one."""
    consumer = ck.Consumer(
        {"bootstrap.servers": story.world.broker.brokers, "group.id": "whoever forges"}
    )
    try:
        where = ck.TopicPartition("orders-bad", 0)
        _, following = consumer.get_watermark_offsets(where, timeout=30)
    finally:
        consumer.close()
    story.world.execute(
        f"INSERT INTO bad SELECT * REPLACE (toUInt64({following}) AS _offset) FROM (SELECT * FROM "
        "bad WHERE _partition = 0 LIMIT 1)"
    )


def _ask_each_query(prometheus: Prometheus, began: float) -> None:
    """Each has an answer at some time of the story."""
    unanswered = set()
    for title, query, _ in targets():
        asked = re.sub(r"\$__rate_interval", "30s", query)
        asked = re.sub(r"\$\w+", ".*", asked)
        data = prometheus.ask("query_range", query=asked, start=began, end=time.time(), step=1)
        if not data["result"]:
            unanswered.add((title, asked))
    assert {query for _, query in unanswered} - PERHAPS == UNANSWERED, unanswered
