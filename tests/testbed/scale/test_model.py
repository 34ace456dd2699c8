"""The model of large pipelines: what it must give whatever the constants are."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ranges import TopicPartition
from sluice.core.records import RECORD_BYTES_MAX
from sluice.kafka.transactions import SEND_BYTES_MAX
from sluice.testbed.scale.constants import MEASURED, Constants, measured_constants
from sluice.testbed.scale.designs import LARGE, MANY
from sluice.testbed.scale.model import USED_SHARE, Design, estimate
from sluice.testbed.scale.report import report
from sluice.testbed.scale.sizes import typical_sizes

SIZES = typical_sizes()
ROUND = Constants(
    **{
        **{field.name: 0.0 for field in fields(Constants)},
        **{"batch": 0.02, "range": 0.001, "range_worker": 0.01, "block_worker": 0.005},
        **{"row_worker": 1e-6, "look": 1e-5, "look_wall": 2e-5},
        **{"calls_first": 10.0, "calls_replica": 20.0, "calls_quorum": 5.0},
        **{"calls_quorum_replica": 1.0, "shards_max": 256, "rows_of_block_min": 1000},
        **{"parts_of_table_max": 1.0, "calls_max": 10_000},
    }
)
SIMPLE = Design(
    name="simple",
    topics=10,
    partitions=100,
    rows_per_second=100_000,
    row_bytes=100,
    shards=4,
    replicas=2,
    shards_of_range=1,
    max_messages=100_000,
    max_delay_seconds=10,
)


def test_a_design_in_round_numbers() -> None:
    """1,000 rows/s in a partition, 10,000 in each range, 10 ranges a second, a block each."""
    found = estimate(SIMPLE, ROUND, SIZES)
    assert (found.rows_of_range, found.ranges, found.blocks, found.rows_of_block) == (
        10_000, 10, 10, 10_000,
    )  # fmt: skip
    assert found.parts_of_table == 1 and found.parts_of_shard == 2.5
    assert found.window == 1200  # ten minutes of a part a second, in half of it
    assert found.zookeeper_calls == 10 * (10 + 20 + 5)
    # 0.1 cores with rows, 0.1 with ranges: one slot of 0.7; ten ranges are as much as a full one
    assert (found.slots, found.batch_ranges, found.drivers) == (1, 10, 1)
    assert found.batch_seconds == pytest.approx(0.030)
    assert found.objections == ()


def test_a_full_range_does_not_wait() -> None:
    found = estimate(replace(SIMPLE, max_delay_seconds=3600), ROUND, SIZES)
    assert found.rows_of_range == 100_000
    heavy = estimate(replace(SIMPLE, max_delay_seconds=3600, row_bytes=10_000), ROUND, SIZES)
    assert heavy.rows_of_range == 64 * 1024 * 1024 // 10_000


def test_no_range_has_less_than_a_row_and_no_block_is_without() -> None:
    found = estimate(
        replace(SIMPLE, rows_per_second=10, max_delay_seconds=1, shards_of_range=4), ROUND, SIZES
    )
    assert (found.rows_of_range, found.ranges, found.shards_of_block) == (1, 10, 1)


def test_what_cannot_be_is_said() -> None:
    design = replace(
        SIMPLE, topics=1, shards=300, shards_of_range=300, max_delay_seconds=1, partitions=1000
    )
    found = estimate(design, ROUND, SIZES)
    said = "; ".join(found.objections)
    for words in ("refused: 300 shards", "rows", "parts/s in each table", "ensemble", "divided"):
        assert words in said


DESIGNS = st.builds(
    replace,
    st.just(SIMPLE),
    topics=st.integers(1, 500),
    partitions=st.integers(500, 20_000),
    rows_per_second=st.floats(100, 1e6),
    shards_of_range=st.integers(1, 300),
    shards=st.integers(300, 2_050),
    replicas=st.integers(1, 4),
    max_delay_seconds=st.floats(0.2, 300),
)


@given(DESIGNS)
def test_every_row_is_in_a_block_and_every_driver_has_room(design: Design) -> None:
    found = estimate(design, ROUND, SIZES)
    assert found.rows_of_block * found.blocks == pytest.approx(design.rows_per_second)
    assert found.rows_of_range * found.ranges == pytest.approx(design.rows_per_second)
    assert 1 <= found.shards_of_block <= min(design.shards_of_range, found.rows_of_range + 1e-6)
    assert found.drivers <= design.topics
    assert found.driver_cores <= USED_SHARE or any("divided" in why for why in found.objections)
    assert found.sends == -(-found.transaction_bytes // SEND_BYTES_MAX)


@given(DESIGNS, st.floats(1, 10))
def test_waiting_longer_makes_fewer_blocks(design: Design, factor: float) -> None:
    longer = replace(design, max_delay_seconds=design.max_delay_seconds * factor)
    assert estimate(longer, ROUND, SIZES).ranges <= estimate(design, ROUND, SIZES).ranges + 1e-9


def test_sizes_are_those_of_what_is_written() -> None:
    assert 80 < SIZES.metadata <= RECORD_BYTES_MAX
    assert SIZES.offset_send > SIZES.metadata + len("shop.orders.created")
    assert SIZES.offset_stored > SIZES.metadata
    assert TopicPartition("a", 1) < TopicPartition("a", 2)


def test_each_constant_says_where_it_is_from() -> None:
    assert list(MEASURED) == [field.name for field in fields(Constants)]
    assumed = {name for name, one in MEASURED.items() if not one.command}
    assert assumed == {"block_worker", "rows_of_block_min", "parts_of_table_max", "calls_max"}


def test_calls_are_near_those_that_were_counted() -> None:
    """By `python -m sluice.testbed.local.cluster.zookeeper_calls`; its table: docs/SCALE.md."""
    counted = {(1, 1): 16.7, (2, 1): 32.2, (4, 1): 72.6, (2, 2): 44.6, (4, 2): 90.3}
    constants = measured_constants()
    for (replicas, quorum), calls in counted.items():
        assert constants.calls(replicas, quorum) == pytest.approx(calls, rel=0.12)


def test_the_document_shows_what_the_model_says() -> None:
    document = (Path(__file__).parents[3] / "docs" / "SCALE.md").read_text()
    begin, end = "<!-- python -m sluice.testbed.scale -->\n", "\n<!-- end -->"
    shown = document[document.index(begin) + len(begin) : document.index(end)]
    assert shown.strip() == report().strip(), "run python -m sluice.testbed.scale again"


def test_the_large_designs_differ_as_the_document_says() -> None:
    constants = measured_constants()
    found = [estimate(design, constants, SIZES) for design in LARGE]
    assert [not one.objections for one in found] == [False, False, False, False, True, True]
    assert "refused" in found[0].objections[0]
    assert [not estimate(design, constants, SIZES).objections for design in MANY] == [
        False, False, False, True,
    ]  # fmt: skip
