"""The model of large pipelines: what it must give whatever the constants are."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config.model import BatchConfiguration
from sluice.core.records import RECORD_BYTES_MAX
from sluice.driver import bundling, loop, monitor
from sluice.testbed.scale import model
from sluice.testbed.scale.constants import MEASURED, Constants, measured_constants
from sluice.testbed.scale.designs import LARGE, MANY
from sluice.testbed.scale.model import USED_SHARE, Design, Estimate, estimate
from sluice.testbed.scale.report import written_into
from sluice.testbed.scale.sizes import typical_sizes

SIZES = typical_sizes()
ROUND = Constants(
    **{
        **{field.name: 0.0 for field in fields(Constants)},
        **{"batch": 0.02, "range": 0.001, "range_worker": 0.01, "block_worker": 0.005},
        **{"row_worker": 1e-6, "look": 1e-5, "look_wall": 2e-5, "member_worker": 0.001},
        **{"calls_first": 10.0, "calls_replica": 20.0, "calls_quorum": 5.0},
        **{"calls_quorum_replica": 1.0, "shards_max": 256, "rows_of_block_min": 1000},
        **{"parts_of_table_max": 1.0, "calls_max": 10_000},
    }
)
SIMPLE = Design(
    name="simple",
    topics=10,
    partitions=100,
    entries=10,
    brokers=1,
    rows_per_second=100_000,
    row_bytes=100,
    replicas=2,
    shards_of_entry=1,
    max_delay_seconds=10,
    max_messages=100_000,
    max_partitions=1,
)
#: 10 partitions of each entry, 100 rows/s in each.
SMALL = replace(SIMPLE, rows_per_second=10_000, max_partitions=1_000)


def found_of(design: Design) -> Estimate:
    return estimate(design, ROUND, SIZES)


def test_a_design_in_round_numbers() -> None:
    """1,000 rows/s in a partition, 10,000 in each range, 10 ranges a second, a block each."""
    found = found_of(SIMPLE)
    assert (found.cut.rows_of_range, found.cut.ranges, found.blocks, found.rows_of_block) == (
        10_000, 10, 10, 10_000,
    )  # fmt: skip
    assert found.parts_of_table == 1
    assert found.window == 1200  # ten minutes of a part a second, in half of it
    assert found.zookeeper_calls == 10 * (10 + 20 + 5)
    # 0.1 cores with rows, 0.1 with ranges: one slot of 0.7; ten ranges are as much as a full one
    assert (found.slots, found.batch_ranges, found.drivers) == (1, 10, 1)
    assert found.batch_seconds == pytest.approx(0.030)
    assert found.objections == ()


def test_a_bundle_in_round_numbers() -> None:
    """The ten ranges of an entry, each of 1,000 rows, are one block every ten seconds."""
    found = found_of(SMALL)
    assert (found.cut.rows_of_range, found.cut.ranges) == (1_000, 10)
    assert (found.cut.members, found.cut.bundles, found.cut.wait_seconds) == (10, 1, 10)
    assert (found.blocks, found.rows_of_block, found.parts_of_table) == (1, 10_000, 0.1)
    assert (found.slots, found.batch_ranges) == (1, 10)


def test_each_broker_and_each_entry_has_bundles_of_its_own() -> None:
    assert found_of(replace(SMALL, brokers=5)).cut.members == 2
    assert found_of(replace(SMALL, entries=1)).cut.members == 100
    alone = found_of(replace(SMALL, brokers=10)).cut
    assert (alone.members, alone.bundles) == (1, alone.ranges)


def test_a_block_that_is_full_does_not_wait() -> None:
    """10,000 rows/s of an entry are 100,000 in ten seconds; 40,000 are full after four."""
    design = replace(SMALL, entries=1, max_messages=40_000)
    found = found_of(design).cut
    assert (found.wait_seconds, found.rows_of_range, found.members) == (4, 400, 100)
    # Of half of the partitions a block is full after twice as long.
    halves = model.cut_by(replace(design, max_partitions=50), 1, 1, ROUND)
    assert (halves.wait_seconds, halves.members, halves.bundles) == (8, 50, 0.25)


def test_what_waits_is_spread_over_the_tasks_that_can_run() -> None:
    """20 MB each ten seconds: four tasks have 5 MB each, and no more than five have work."""
    design = replace(SMALL, entries=1, row_bytes=200, max_messages=1_000_000)
    for slots, bundles in ((1, 1), (4, 4), (50, 5)):
        found = model.cut_by(design, 1, slots, ROUND)
        assert found.bundles * found.wait_seconds == pytest.approx(bundles)


def test_large_ranges_have_blocks_of_their_own() -> None:
    found = found_of(replace(SMALL, max_messages=1_999)).cut
    assert (found.members, found.rows_of_range) == (1, 1_000)


def test_a_full_range_does_not_wait() -> None:
    found = found_of(replace(SIMPLE, max_delay_seconds=3600))
    assert found.cut.rows_of_range == 100_000
    heavy = found_of(replace(SIMPLE, max_delay_seconds=3600, row_bytes=10_000))
    assert heavy.cut.rows_of_range == 64 * 1024 * 1024 // 10_000


def test_no_range_has_less_than_a_row_and_no_block_is_without() -> None:
    little = replace(SIMPLE, rows_per_second=10, max_delay_seconds=1, shards_of_entry=4)
    found = found_of(little)
    assert (found.cut.rows_of_range, found.cut.ranges, found.shards_of_bundle) == (1, 10, 1)
    together = found_of(replace(little, entries=1, topics=1, max_partitions=1_000))
    assert (together.cut.rows_of_range, together.cut.members) == (1, 10)
    assert 3 < together.shards_of_bundle < 4


def test_what_cannot_be_is_said() -> None:
    design = replace(
        SIMPLE, topics=1, entries=1, shards_of_entry=300, max_delay_seconds=1, partitions=1000
    )
    said = "; ".join(found_of(design).objections)
    for words in ("refused: 300 shards", "rows", "parts/s in each table", "ensemble", "divided"):
        assert words in said


DESIGNS = st.builds(
    replace,
    st.just(SIMPLE),
    topics=st.integers(1, 500),
    partitions=st.integers(500, 20_000),
    entries=st.integers(1, 500),
    brokers=st.integers(1, 20),
    max_partitions=st.sampled_from((1, 10, 1_000)),
    rows_per_second=st.floats(100, 1e6),
    shards_of_entry=st.integers(1, 300),
    replicas=st.integers(1, 4),
    max_delay_seconds=st.floats(0.2, 300),
)


@given(DESIGNS)
def test_every_row_is_in_a_block_and_every_driver_has_room(design: Design) -> None:
    found, cut = found_of(design), found_of(design).cut
    assert found.rows_of_block * found.blocks == pytest.approx(design.rows_per_second)
    assert cut.rows_of_range * cut.ranges == pytest.approx(design.rows_per_second)
    assert cut.members * cut.bundles == pytest.approx(cut.ranges)
    rows = cut.members * cut.rows_of_range
    assert 1 <= cut.members <= max(1, min(design.max_partitions, cut.group)) + 1e-6
    assert 1 - 1e-6 <= rows <= design.full * (1 + 1e-6)
    assert 1 <= found.shards_of_bundle <= min(design.shards_of_entry, rows + 1e-6)
    assert found.drivers <= design.topics
    assert found.driver_cores <= USED_SHARE or any("divided" in why for why in found.objections)


@given(DESIGNS)
def test_bundles_make_no_more_blocks_of_the_same_ranges(design: Design) -> None:
    found = found_of(design)
    alone = found.cut.ranges * model.occupied(design.shards_of_entry, found.cut.rows_of_range)
    assert found.blocks <= alone * (1 + 1e-6)


@given(DESIGNS, st.floats(1, 10))
def test_waiting_longer_makes_fewer_blocks(design: Design, factor: float) -> None:
    longer = replace(design, max_delay_seconds=design.max_delay_seconds * factor)
    assert found_of(longer).cut.ranges <= found_of(design).cut.ranges * (1 + 1e-6)


def test_sizes_are_those_of_what_is_written() -> None:
    assert 80 < SIZES.metadata <= RECORD_BYTES_MAX
    assert SIZES.offset_send > SIZES.metadata + len("shop.orders.created")
    assert SIZES.offset_stored > SIZES.metadata
    # A bundle's receipts say most things once.
    assert SIZES.bundled.receipt < SIZES.alone.receipt / 2


def test_what_the_loader_decides_is_what_the_model_takes_it_for() -> None:
    for name in ("BUNDLED_SHARE_MAX", "BUNDLE_BYTES_MIN"):
        assert getattr(model, name) == getattr(bundling, name)
    assert model.ROUND_SECONDS * 1000 == loop.OBSERVE_EVERY_MS
    assert model.OBSERVE_SHARE == loop.OBSERVE_SHARE
    assert model.READ_EVERY_SECONDS == monitor.READ_EVERY_SECONDS
    batch = BatchConfiguration()
    for design in (*LARGE, *MANY):
        assert (design.full, design.lease_seconds) == (batch.max_messages, batch.lease_seconds)


def test_each_constant_says_where_it_is_from() -> None:
    assert list(MEASURED) == [field.name for field in fields(Constants)]
    assumed = {name for name, one in MEASURED.items() if not one.command}
    assert assumed == {
        "member_worker", "block_worker", "rows_of_block_min", "parts_of_table_max", "calls_max",
    }  # fmt: skip


def test_calls_are_near_those_that_were_counted() -> None:
    """By `python -m sluice.testbed.local.cluster.zookeeper_calls`; its table: docs/SCALE.md."""
    counted = {(1, 1): 16.7, (2, 1): 32.2, (4, 1): 72.6, (2, 2): 44.6, (4, 2): 90.3}
    constants = measured_constants()
    for (replicas, quorum), calls in counted.items():
        assert constants.calls(replicas, quorum) == pytest.approx(calls, rel=0.12)


def test_the_document_shows_what_the_model_says() -> None:
    document = (Path(__file__).parents[3] / "docs" / "SCALE.md").read_text()
    assert written_into(document) == document, "run python -m sluice.testbed.scale docs/SCALE.md"


def test_the_designs_differ_as_the_document_says() -> None:
    constants = measured_constants()
    large = [estimate(design, constants, SIZES) for design in LARGE]
    many = [estimate(design, constants, SIZES) for design in MANY]
    assert [not one.objections for one in large] == [False, False, False, True, True, True]
    assert [not one.objections for one in many] == [False, False, True, True, False, True]
    assert "refused" in large[0].objections[0]
    assert large[-1].cut.members == many[0].cut.members == 1
    # Too many partitions for one block are several.
    assert many[-2].cut.members < many[-1].cut.members
