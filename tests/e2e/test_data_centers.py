"""Two data centers: two Kafka clusters with data of their own, into one table of four replicas of
ClickHouse 18.16.1, two in each; a block needs two of the four.

The tests share the stack, and each goes on where the one before ended: what was produced adds
up, and each of them compares every replica.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import decode
from sluice.kafka.offsets import look
from sluice.testbed.chaos.cluster_stage import ClusterStage, Loading, running_cluster_stage
from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.replicas import ReplicaFindings, compare_replicas
from sluice.testbed.chaos.runner import Chaos
from sluice.testbed.chaos.sending import Production, Truth
from sluice.verify.verifier import verify

LAYOUT = Layout(shards=1, replicas=4, data_centers=2)
LOADING = Loading(max_messages=2_000, max_delay="300ms", lease_seconds=30)
RATE = 400
#: Generous: the machine may be slow.
PATIENCE_SECONDS = 240.0
#: Longer than a task waits for messages.
LONG_SECONDS = 20.0


class Play:
    """The stack, its driver, and what was produced so far."""

    def __init__(self, stage: ClusterStage) -> None:
        self.stage = stage
        self.told: list[str] = []
        self.chaos = Chaos(stage, self.told.append)
        self.truths = {name: Truth() for name in stage.centers}
        self.production: dict[str, Production] = {}

    def produce(self) -> None:
        """Begin to produce, in both data centers."""
        for number, (name, center) in enumerate(self.stage.centers.items()):
            truth = self.truths[name]
            seed = 2 * truth.events + number
            self.production[name] = Production(center.access, center.topic, RATE, seed, truth)
            self.production[name].start()

    def settled(self, name: str) -> int:
        """Messages of a connector that are settled."""
        return self.stage.positions.connectors[LAYOUT.centers.index(name)].settled

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Until the condition holds; the driver must live meanwhile."""
        assert self.chaos.wait_for(condition, PATIENCE_SECONDS), f"{what}: {self.last_words()}"
        assert self.stage.drivers.restarts == 0, self.last_words()

    def load_more(self, name: str, events: int = 1) -> None:
        """Until so many more are settled."""
        target = self.settled(name) + events
        self.wait_for(lambda: self.settled(name) >= target, f"{name} goes on")

    def assert_exact(self) -> ReplicaFindings:
        """Stop producing, wait until all is settled, compare every replica."""
        for each in self.production.values():
            each.finish()
        for name, truth in self.truths.items():
            self.wait_for(lambda n=name, t=truth: self.settled(n) == t.events, f"the end of {name}")  # type: ignore[misc]
        found = compare_replicas(self.stage, self.truths)
        assert found.content.is_exact and not found.problems, (found, self.last_words())
        assert set(found.rows.values()) == {sum(truth.rows for truth in self.truths.values())}
        assert not verify(self.stage.configuration, "offsets").anomalies
        return found

    def stop_within_ranges(self, name: str) -> list[Range]:
        """Stop the driver while it has ranges of a connector in doubt; gives these."""
        center = self.stage.centers[name]
        sources = [TopicPartition(center.topic, number) for number in range(LOADING.partitions)]
        group = self.stage.configuration.group(name)
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            pids = self.stage.drivers.tree()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            offsets = look(center.access, group, sources, 0.5)
            records = {s: decode(f.offset, f.metadata) for s, f in offsets.found.items() if f}
            doubtful = [Range(s, r.begin, r.end) for s, r in records.items() if r.in_doubt]
            if doubtful and not offsets.unstable:
                return doubtful
            self.go_on(pids)
            self.load_more(name)
        raise AssertionError(f"never in the middle of a range: {self.last_words()}")

    def go_on(self, pids: list[int]) -> None:
        """Wake the driver."""
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def last_words(self) -> str:
        text = self.stage.drivers.current.log.read_text(errors="replace")
        return "\n".join([*self.told, text[-4000:]])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    told: list[str] = []
    folder = tmp_path_factory.mktemp("centers")
    with running_cluster_stage(folder, LAYOUT, LOADING, told.append) as stage:
        play = Play(stage)
        stage.drivers.start()
        yield play
        for each in play.production.values():
            each.stop()
        play.chaos.close()


@pytest.fixture
def play(running: Play) -> Play:
    running.produce()
    for name in LAYOUT.centers:
        running.load_more(name)
    return running


@pytest.mark.long
def test_a_kafka_that_is_away_for_long_disturbs_nobody_and_goes_on(
    play: Play,
) -> None:
    center = play.stage.centers["dc2"]
    doubtful = play.stop_within_ranges("dc2")
    center.broker.kill()
    play.go_on(play.stage.drivers.tree())
    away = play.settled("dc2")
    until = time.monotonic() + LONG_SECONDS
    while time.monotonic() < until:
        # All that there is by now: the other connector is behind by nothing but its ranges.
        play.load_more("dc1", RATE)
    events = play.truths["dc1"].events
    play.wait_for(lambda: play.settled("dc1") >= events, "dc1 is behind")
    assert play.settled("dc2") == away
    center.broker.start()
    play.load_more("dc2")
    play.assert_exact()
    ended = [
        (each["topic"], each["partition"], each["begin"], each["end"])
        for each in play.stage.ledger()
        if each["type"] == "settled" or each.get("kind") == "settle"
    ]
    for each in doubtful:
        source = each.source
        whole = (source.topic, source.partition, each.begin, each.end)
        # A bundle that cannot be read, again and again, gives its ranges back (R19).
        back = (source.topic, source.partition, each.begin, each.begin)
        assert ended.count(whole) == 1 or back in ended, (whole, ended[-40:])


def test_a_data_center_is_lost_then_a_replica_more_and_all_come_back(play: Play) -> None:
    """Half of the replicas and one Kafka away: the other Kafka is loaded. With three of four
    replicas away blocks wait. Nothing that was acknowledged is lost."""
    center = play.stage.centers["dc2"]
    lost = [play.stage.server(name) for name in LAYOUT.servers_in("dc2")]
    for victim in lost:
        victim.server.kill()
    center.broker.kill()
    play.load_more("dc1", 4 * RATE)
    one_more = play.stage.server("s1/r2")
    one_more.server.kill()
    last = play.stage.cluster.servers[0]
    play.wait_for(lambda: _active(last.url) == 1, "the sessions of the others end")
    # Messages come on: were one loaded, the positions would move in each second.
    play.wait_for(lambda: not play.stage.positions.moved_within(4), "loading stops")
    for victim in [*lost, one_more]:
        victim.start()
    play.load_more("dc1", RATE)
    center.broker.start()
    play.load_more("dc2")
    # While messages come: whoever was away rests at workers that met it so.
    play.wait_for(lambda: len(_took_blocks(play)) == 4, "a block at each replica")
    found = play.assert_exact()
    # A block fails over only if it comes before the driver has seen who is away: either is right.
    assert len(found.receipts.by_replica) == 4


def _took_blocks(play: Play) -> set[object]:
    """The replicas that have acknowledged any."""
    return {each["replica"] for each in play.stage.ledger() if each["type"] == "receipt"}


def _active(url: str) -> int:
    with Server(url) as server:
        return describe_table(server, "default", "orders").replicas_active
