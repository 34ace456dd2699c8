"""Where leader epochs ended, asked of a real broker. Logs that are cut: `e2e/test_cut_logs.py`."""

from __future__ import annotations

from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.kafka.log import find_cuts
from tests.support.kafka import Kafka, numbered


def test_a_partition_that_does_not_answer_keeps_no_other_from_being_told_of(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    kafka.produce(topic, numbered(20))
    full, empty, missing = (TopicPartition(topic, number) for number in (0, 1, 7))
    cuts = find_cuts(kafka.access(), dict.fromkeys((full, empty, missing), EpochOffset(0, 0)))
    assert cuts.found == {}
    assert set(cuts.unknown) == {missing}
    assert str(cuts).startswith(f"{missing}: asking for its leader epochs: ")
