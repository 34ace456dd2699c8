"""The range task's own refusals; what it loads is tested end to end."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.errors import InDoubtError
from sluice.core.ledger import Background
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Failed
from sluice.core.records import Kind, Record
from sluice.kafka.clients import KafkaAccess
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.loading import end_of_rows, load_bundle

NOWHERE = TaskEnvironment(
    pipeline="p",
    kafka=KafkaAccess("dc1", "127.0.0.1:1"),
    clickhouse=ClickHouseAccess({"s1": ("http://127.0.0.1:1",)}, "default", "", "single"),
    specs={},
)


def test_a_task_that_spark_repeats_loads_nothing() -> None:
    """Only the driver may judge whether the first attempt's blocks are still remembered."""
    record = Record(Kind.INTEND, 3, 1, 10, 20, "a", 0, "topic", "text", 1, 1 << 50)
    block_range = Range(TopicPartition("orders", 1), 10, 20)
    assignment = Assignment(block_range, record, Background(), 0)
    (report,) = load_bundle(NOWHERE, [assignment], task_attempt=1)
    assert isinstance(report.outcome, Failed)
    assert isinstance(report.outcome.error, InDoubtError)
    assert report.task_attempt == 1
    assert "orders[1][10, 20)" in str(report.outcome.error)


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        ([7, 8, 9], None),
        ([7, 8, 9, 10], 10),
        ([7, 7, 9, 9, 9], 9),  # 9 has no room left
        ([7, 7, 7, 7, 9, 9], 9),  # one message is always allowed
        ([7, 7, 7, 7, 7], None),
        ([9, 7, 8, 8, 8], 8),  # of a sorted block
        ([], None),
    ],
)
def test_a_block_of_too_many_rows_ends_before_the_message_that_crosses(
    rows: list[int], end: int | None
) -> None:
    assert end_of_rows(np.array(rows, np.uint64), rows_max=3) == end
