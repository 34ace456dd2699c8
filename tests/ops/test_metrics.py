"""The metrics of a loop, read as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from sluice.claims.port import StoreFacts
from sluice.core.dead_letters import DeadLetterLimit, DeadLetterWindow
from sluice.core.decided import Frozen, Subject
from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import ClaimedRows, Duplicates, Loaded, Receipt, TooHeavy, Untried
from sluice.driver.counters import Counters
from sluice.driver.loop import ConnectorLoop
from sluice.ops.metrics import PARTITION_GAUGES, RATIO, LoopCollector, partition_text
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import Answer, World, run, table_spec
from tests.driver.test_parking import ParkingWorld, letter

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)


def values_of(loop: ConnectorLoop, name: str) -> dict[str, float]:
    """What Prometheus reads of a metric of one connector, by its other labels' values."""
    registry = CollectorRegistry()
    registry.register(LoopCollector([lambda: loop]))
    return {
        " ".join(
            text for label, text in sample.labels.items() if label != "connector"
        ): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_what_a_loop_waits_for_shows_although_nothing_fails() -> None:
    world = World([P0], (table_spec("t", ("a",)), table_spec("u", ("a",))))
    world.ends.update({P0: 30})
    loop = run(world)

    def gauges() -> list[dict[str, float]]:
        return [values_of(loop, name) for name in _WAITS]

    assert gauges() == [{"t s1": 0, "u s1": 0}, {"": 0}, {"": 0}]
    world.gone["u"] = "nobody answers"
    world.unreadable.add(P0)
    loop._observe_again_at_ms = 0
    loop._observe(world.now)
    assert gauges() == [{"t s1": 0, "u s1": 1}, {"": 1}, {"": 0}]


_WAITS = (
    "sluice_window_unreadable",
    "sluice_kafka_unanswered",
    "sluice_consecutive_record_failures",
)


def test_topics_that_are_refused_are_counted() -> None:
    loop = World([P0]).loop()
    assert values_of(loop, "sluice_refused_topics") == {"": 0}
    loop._topics.refused.refuse(dict.fromkeys("bc", TerminalError("twice", "Narrow it.")))
    assert values_of(loop, "sluice_refused_topics") == {"": 2}


def test_a_parked_table_shows_until_it_is_tried_again() -> None:
    """Entries that may not be parked have no value."""
    world = ParkingWorld()
    world.ends[P0] = 25
    loop = world.loop()

    def parked() -> dict[str, float]:
        return values_of(loop, "sluice_parked")

    assert parked() == {"bad": 0}
    run(world, loop)
    assert parked() == {"bad": 1}
    world.is_refusing = False
    world.tell(asked=True)
    world.ends[P0] = 30
    run(world, loop)
    assert parked() == {"bad": 0}


def test_every_message_is_accounted_for() -> None:
    """messages = rows + dead letters + duplicates + skipped + parked + passed over, by entry."""
    world = ParkingWorld()
    world.ends[P0] = 30
    accounted = run(world).counters.accounted
    assert {entry: found.unaccounted for entry, found in accounted.items()} == {"bad": 0, "good": 0}
    parked = len(world.parked())
    assert parked > 0 and accounted["bad"].outcomes["parked"] == parked
    told = Duplicates(3, 2, None)
    receipt = Receipt("t", "d.t", "s1", "token", 5, 1, "", "", 1, 1)
    bad = letter(7, "t", "type-mismatch")
    loaded = Loaded((receipt,), (bad,), 10, 0, 1, passed={"t": 3}, duplicates={"t": told})
    counters = Counters()
    counters.account(["t"], loaded)
    (found,) = counters.accounted.values()
    assert found.outcomes == {
        "row": 5,
        "dead_letter": 1,
        "duplicate": 2,
        "skipped": 1,
        "parked": 0,
        "passed": 1,
    }
    assert (found.messages, found.unaccounted) == (10, 0)
    counters.account(["t"], replace(loaded, receipts=()))
    assert found.unaccounted == 5


def test_fields_that_no_column_takes_are_counted() -> None:
    world = World([P0], (table_spec("t", ("a",)), table_spec("u", ("a",))))
    loop = world.loop()

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment)
        assert isinstance(loaded, Loaded)
        return replace(loaded, ignored={"t": ("colour", "size")})

    world.ends[P0], world.script = 30, script
    run(world, loop)
    assert values_of(loop, "sluice_ignored_fields") == {"t": 2, "u": 0}


def test_a_first_range_that_is_not_accounted_for_is_an_increase() -> None:
    """Prometheus sees none in a series that begins with it."""
    world = World([P0], (table_spec("t", ("a",)), table_spec("u", ("a",))))
    loop = world.loop()

    def unaccounted() -> dict[str, float]:
        return values_of(loop, "sluice_unaccounted_messages_total")

    assert unaccounted() == {"t": 0, "u": 0}

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment)
        assert isinstance(loaded, Loaded)
        return replace(loaded, messages=loaded.messages + 1)  # one that nobody knows of

    world.ends[P0], world.script = 30, script
    run(world, loop)
    assert unaccounted() == {"t": 3, "u": 3}  # of three ranges


def test_metrics_of_partitions_are_such_as_prometheus_reads() -> None:
    """Names that need to be escaped, too."""
    source = TopicPartition('a"b\\', 3)
    world = World([source], (table_spec("t", (source.topic,)),))
    world.ends[source] = 25
    loop = run(world)
    loop.dead_letters.windows[source] = window = DeadLetterWindow(DeadLetterLimit())
    window.take(4, {"t": 1})
    found = list(text_string_to_metric_families(partition_text([loop], world.now + 1_500)))
    assert [family.name for family in found] == [*PARTITION_GAUGES, RATIO]
    where = {"connector": loop.name, "topic": source.topic, "partition": "3"}
    samples = {s.name: (s.labels, s.value) for family in found for s in family.samples}
    assert samples.pop(RATIO) == (where | {"table": "t"}, 0.25)
    assert {name: value for name, (_, value) in samples.items()} == {
        "sluice_settled_offset": 25,
        "sluice_stable_end_offset": 25,
        **dict.fromkeys(list(PARTITION_GAUGES)[2:], 0),
    }
    assert all(labels == where for labels, _ in samples.values())
    assert all(family.documentation and family.type == "gauge" for family in found)


def test_a_frozen_table_shows() -> None:
    world = World([P0], (table_spec("t", ("a",)), table_spec("u", ("a",))))
    loop = world.loop()

    def frozen() -> dict[str, float]:
        return values_of(loop, "sluice_frozen")

    assert frozen() == {"t": 0, "u": 0}
    loop.freezing.take((Frozen(Subject("table", "t"), "alice", "why", 1),), world.now)
    assert frozen() == {"t": 1, "u": 0}
    loop.freezing.take((Frozen(Subject("connector"), "alice", "why", 1),), world.now)
    assert frozen() == {"t": 1, "u": 1}


def test_what_each_replica_took_of_each_table() -> None:
    """Partition 0 goes to one replica, partition 1 to the other one; a block of two ClickHouse
    partitions makes two parts."""
    world = World([P0, P1], (table_spec("t", ("a",), "day"), table_spec("u", ("a",))))
    world.ends.update({P0: 30, P1: 5})

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment, 2)
        assert isinstance(loaded, Loaded)
        replica = f"http://r{assignment.block_range.source.partition}"
        receipts = tuple(replace(one, replica=replica, bytes=100) for one in loaded.receipts)
        return replace(loaded, receipts=receipts)

    world.script = script
    loop = run(world)
    both = {f"d.{entry} s1 http://r{n}" for entry in "tu" for n in (0, 1)}
    found = {name: values_of(loop, f"sluice_table_{name}_total") for name in _NAMES}
    assert all(values.keys() == both for values in found.values())
    for entry in ("d.t", "d.u"):
        first, second = f"{entry} s1 http://r0", f"{entry} s1 http://r1"
        assert [found[name][first] for name in _NAMES] == [3, 6, 30, 300]
        assert [found[name][second] for name in _NAMES] == [1, 2, 5, 100]


_NAMES = ("blocks", "parts", "rows", "bytes")


def test_ranges_that_come_back_unloaded_without_an_error_are_counted_by_why() -> None:
    """Each why has a value from the start, or its first increase would not be seen."""
    world = World([P0], (table_spec("t", ("a",)),))
    world.ends[P0] = 10
    loop = world.loop()

    def unloaded() -> dict[str, float]:
        return values_of(loop, "sluice_unloaded_ranges_total")

    none = dict.fromkeys(
        ("untried", "too_heavy", "bundle_too_heavy", "reservation", "outdated"), 0.0
    )
    assert unloaded() == none
    answers: list[Answer] = [Untried(), Untried(), TooHeavy(4, 1000)]
    world.script = lambda world, assignment: answers.pop(0) if answers else world.load(assignment)
    run(world, loop)
    assert unloaded() == none | {"untried": 2, "too_heavy": 1}
    assert loop.counters.failures == {}
    assert world.rows_of(P0) == [1] * 10


def test_how_late_rows_are() -> None:
    """By the oldest message of a range, until the last of its blocks is acknowledged."""
    loop = run(World([P0], (table_spec("t", ("a",)), table_spec("u", ("a",)))))

    def settle(oldest_ms: int | None, **acknowledged_ms: Sequence[int]) -> None:
        receipts = tuple(
            Receipt(entry, f"d.{entry}", f"s{n}", "token", 1, 1, "", "", 1, 1, at_ms)
            for entry, all_ms in acknowledged_ms.items()
            for n, at_ms in enumerate(all_ms)
        )
        loop.counters.settled(Loaded(receipts, (), 1, 0, 0, oldest_ms=oldest_ms))

    settle(1_000_000, t=(1_003_000, 1_001_000), u=(1_000_400,))
    settle(1_000_000, t=(999_000,))  # the producer's clock is ahead
    settle(None, t=(1_001_000,))
    settle(1_000_000)  # nothing of it is a row
    registry = CollectorRegistry()
    registry.register(LoopCollector([lambda: loop]))

    def value(name: str, table: str, **le: str) -> float | None:
        labels = {"connector": loop.name, "table": table, **le}
        return registry.get_sample_value(f"sluice_end_to_end_seconds_{name}", labels)

    assert [value("bucket", "t", le=le) for le in ("0.1", "2.0", "5.0", "+Inf")] == [1, 1, 2, 2]
    assert [value(name, "t") for name in ("count", "sum")] == [2, 3.0]
    assert [value("bucket", "u", le=le) for le in ("0.25", "0.5", "+Inf")] == [0, 1, 1]


def test_what_deduplicating_does_shows() -> None:
    """Claims, duplicates by kind, how long the store takes, and how full it is."""
    loop = run(World([P0], (table_spec("t", ("a",)),)))
    for rows, in_ranges, before, seconds in ((100, 1, 2, 0.03), (50, 0, 4, 7.0)):
        claimed = {"t": ClaimedRows(rows, in_ranges, before, seconds)}
        loop.counters.settled(Loaded((), (), rows, 0, 0, claimed=claimed))

    class Keeper:
        facts = StoreFacts("r@0", 1_000, 64_000, 128_000)

    loop.claims = cast(Any, Keeper())
    registry = CollectorRegistry()
    registry.register(LoopCollector([lambda: loop]))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"connector": loop.name, **labels})

    assert value("sluice_claims_total", table="t") == 150
    assert value("sluice_duplicates_total", table="t", kind="in_ranges") == 1
    assert value("sluice_duplicates_total", table="t", kind="before") == 6
    buckets = {le: value("sluice_claims_seconds_bucket", table="t", le=le) for le in _BOUNDS}
    assert buckets == {"0.02": 0, "0.05": 1, "5.0": 1, "10.0": 2, "+Inf": 2}
    assert value("sluice_claims_seconds_count", table="t") == 2
    assert value("sluice_claims_seconds_sum", table="t") == 7.03
    assert value("sluice_claims_keys") == 1_000
    assert value("sluice_claims_bytes") == 64_000
    assert value("sluice_claims_max_bytes") == 128_000


_BOUNDS = ("0.02", "0.05", "5.0", "10.0", "+Inf")
