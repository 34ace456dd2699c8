"""What a person is told of a partition that stops can be run as it stands there."""

from __future__ import annotations

import re

import pytest

from sluice.core.ranges import EpochOffset, Range, TopicPartition
from sluice.core.replay import Decision, Topic
from sluice.driver.stopped import (
    Observed,
    cut_below,
    not_to_be_cut,
    resolved_together,
    stop_error,
    unprobable,
)
from tests.cli.support import parse
from tests.kafka.groups import intend

SOURCE = TopicPartition("orders", 3)
RANGE = Range(SOURCE, 40, 60)
OBSERVED = Observed(
    SOURCE, None, intend("me", 40, 60), Topic.KNOWN, "id", 0, EpochOffset(100, 2), "at 50"
)
HINTS = {
    "not to be cut": not_to_be_cut(RANGE, 50, "dc1").hint,
    "unprobable": unprobable(RANGE, "table entry more", "dc1").hint,
    "cut": cut_below(SOURCE, EpochOffset(60, 1), "at 50", "dc1").hint,
    "together": resolved_together("dc1", [SOURCE, TopicPartition("orders", 4)])[0],
    **{
        each.value: stop_error(each, OBSERVED, "why", "dc1").hint for each in Decision if each.stops
    },
}


@pytest.mark.parametrize("hint", HINTS.values(), ids=HINTS.keys())
def test_the_command_that_is_printed_can_be_run(hint: str) -> None:
    (printed,) = re.findall(r"sluice ((?:resolve|adopt) CONFIG [^`]+)", hint)
    for outcome in ("loaded", "not-loaded"):
        words = printed.replace("loaded|not-loaded", outcome).replace("--offset N", "--offset 7")
        values = parse(*words.split())
        assert (values["connector"], values["topic"]) == ("dc1", "orders")
        assert values["partitions"][0] == 3
