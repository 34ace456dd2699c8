"""Blocks of several shards on their way at the same time, and what their errors mean together."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import permutations
from typing import Any, cast

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.receipts import Receipt
from sluice.decode.messages.decoded import Block
from sluice.kafka.clients import KafkaAccess
from sluice.worker.assignment import TaskEnvironment
from sluice.worker.errors import BlockRefusedError, OutdatedTextError
from sluice.worker.inserting import decisive, may_go_parallel, send_parallel, send_sequentially
from tests.core.test_ledger import RECEIPT

SHARDS = ["s1", "s2", "s3"]


def parts() -> list[tuple[str, Block]]:
    """The last one first, as a split gives them."""
    return [(shard, cast(Block, None)) for shard in reversed(SHARDS)]


def stored(shard: str) -> Receipt:
    return replace(RECEIPT, shard=shard)


def test_all_shards_are_sent_to_at_once() -> None:
    together = threading.Barrier(len(SHARDS))

    def send(shard: str, _: Block) -> Receipt:
        together.wait(30)  # breaks where one waits for another
        return stored(shard)

    receipts, errors = send_parallel(parts(), send)
    assert [each.shard for each in receipts] == SHARDS
    assert errors == []


def test_a_thread_that_cannot_start_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", cannot_start)
    receipts, errors = send_parallel(parts(), lambda shard, _: stored(shard))
    assert [each.shard for each in receipts] == SHARDS
    assert errors == []


def test_what_is_on_its_way_is_waited_for() -> None:
    has_failed = threading.Event()

    def send(shard: str, _: Block) -> Receipt:
        if shard == "s1":
            has_failed.set()
            raise TransientError("away")
        has_failed.wait(30)
        time.sleep(0.1)
        return stored(shard)

    receipts, errors = send_parallel(parts(), send)
    assert [each.shard for each in receipts] == ["s2", "s3"]
    assert [str(each) for each in errors] == ["away"]


def test_a_bug_is_not_swallowed() -> None:
    def send(shard: str, _: Block) -> Receipt:
        raise KeyError(shard)

    with pytest.raises(KeyError):
        send_parallel(parts(), send)


def test_in_turn_the_first_error_is_the_last_attempt() -> None:
    sent: list[str] = []

    def send(shard: str, _: Block) -> Receipt:
        sent.append(shard)
        if shard == "s2":
            raise TransientError("away")
        return stored(shard)

    receipts, errors = send_sequentially(parts(), send)
    assert (sent, [each.shard for each in receipts], len(errors)) == (["s1", "s2"], ["s1"], 1)


def refused(is_unstored: bool = True) -> BlockRefusedError:
    return BlockRefusedError("orders", TerminalError("no", "fix it"), is_unstored=is_unstored)


def test_what_may_be_stored_decides_in_any_order() -> None:
    """Another load spec would make other rows beside it, and a parked entry dead letters."""
    errors: list[SluiceError] = [
        InDoubtError("no answer"),
        refused(is_unstored=False),
        OutdatedTextError("orders", "altered"),
        TransientError("away"),
        refused(),
    ]
    for count in range(len(errors)):
        for order in permutations(errors[count:]):
            assert decisive(list(order), []) is errors[count]
    final = TerminalError("wrong password, after another server had not answered", "fix it")
    assert decisive([errors[2], final], []) is final


def test_the_other_shards_are_named() -> None:
    assert str(decisive([refused(), TransientError("s1 is away")], [])).startswith(
        "s1 is away; in other shards: orders: no"
    )


@pytest.mark.parametrize(
    ("errors", "receipts", "is_unstored"),
    [
        ([refused(), refused()], [], True),
        ([refused(), refused(False)], [], False),
        ([refused()], [RECEIPT], False),
    ],
)
def test_nothing_is_stored_only_if_no_shard_has_anything(
    errors: list[SluiceError], receipts: list[Receipt], is_unstored: bool
) -> None:
    error = decisive(errors, receipts)
    assert isinstance(error, BlockRefusedError) and error.is_unstored is is_unstored


@pytest.mark.parametrize(
    ("shards", "more", "may"),
    [
        ({"s1": ("http://a",), "s2": ("http://b", "http://c")}, {}, True),
        ({"s1": ("http://a",), "s2": ("http://b", "http://a")}, {}, False),
        ({"s1": ("http://a",), "s2": ("http://b",)}, {"zookeeper": "z:2181"}, False),
    ],
)
def test_who_may_go_parallel(
    shards: dict[str, tuple[str, ...]], more: dict[str, Any], may: bool
) -> None:
    access = ClickHouseAccess(shards, "default", "", "single", **more)
    environment = TaskEnvironment("p", KafkaAccess("dc1", "127.0.0.1:1"), access, {})
    assert may_go_parallel(environment, list(shards)) is may
