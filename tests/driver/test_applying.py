"""A loop that takes another version of what is loaded up while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.core.decided import Decided, Version, apply_entry
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed
from sluice.driver import applying
from sluice.driver.applying import Applying
from sluice.driver.connector import _Applied
from sluice.driver.ports import ConfigurationRead, SchemaRead
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import Answer, World, kinds, table_spec
from tests.driver.test_specs import configuration_of

KEPT, GONE = TopicPartition("a", 0), TopicPartition("b", 0)


def read(spec: LoadSpec, *topics: str, taken: Callable[[], None]) -> ConfigurationRead:
    return ConfigurationRead(1, spec, (), lambda topic: topic in topics, taken)


def test_a_topic_and_its_table_are_retired_under_the_load_spec_of_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its range is out when the change comes, fails, and is sent again as it was recorded."""
    tables = (table_spec("t", ("a",)), table_spec("u", ("b",)))
    world = World([KEPT, GONE], tables)
    world.ends.update({KEPT: 20, GONE: 10})
    spec = replace(world.spec, tables=tables[:1])
    counted: list[str] = []
    sent: list[str] = []

    def change() -> None:
        world.put(read(spec, "a", taken=lambda: counted.append(world.planner.digest)))
        world.ends[GONE] = 50  # what comes now is nobody's
        # It was read before the change, and comes after it.
        world.at(100, lambda: world.put(SchemaRead(world.now, None, world.spec, {})))

    def script(world: World, assignment: Assignment) -> Answer:
        if assignment.block_range.source == GONE:
            sent.append(assignment.record.spec)
            if len(sent) == 1:
                world.at(0, change)
                return Failed(TransientError("away"))
        return world.load(assignment)

    world.script = script
    loop = world.loop([world.settled(KEPT), world.settled(GONE)])
    world.at(60_000, lambda: world.ends.update({KEPT: 40}))
    world.at(90_000, loop.stopping.set)
    with caplog.at_level("INFO", logger="sluice.loop"):
        loop.run(None, 5.0)
    assert sent == [world.spec.digest()] * 2
    assert counted == [spec.digest()] == [loop.planner.digest]
    assert kinds(world, GONE)[-1] == ("SETTLE", 10, 10)
    assert world.rows_of(GONE, "u") == [1] * 10 + [0] * 40
    assert world.rows_of(KEPT) == [1] * 40
    assert set(loop.states) == {KEPT}
    assert "b[0] is not configured any more; it is settled at 10 and let go" in caplog.text


def test_a_topic_that_stands_still_is_let_go_at_once_and_comes_back_where_it_was() -> None:
    world = World([KEPT, GONE])
    world.ends.update({KEPT: 10, GONE: 10})
    loop = world.loop([world.settled(KEPT), world.settled(GONE, 10)])
    world.at(1_000, lambda: world.put(read(world.spec, "a", taken=lambda: None)))
    seen: list[set[TopicPartition]] = []
    world.at(2_000, lambda: seen.append(set(loop.states)))
    world.at(3_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert seen == [{KEPT}]
    assert kinds(world, GONE) == []


def version(number: int) -> Decided:
    body = {"at_ms": 1, **apply_entry(number, number - 1, "{}", "alice", "").body}
    return Decided().after(body)


def test_what_cannot_be_taken_up_is_answered_and_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(applying, "RETRY_SECONDS", 0.01)
    said: list[tuple[int, str]] = []
    done = threading.Event()
    tries: list[int] = []

    def prepare(found: Version) -> None:
        tries.append(found.number)
        if found.number == 1:
            raise ConfigurationError("no shard is named s9")
        if len(tries) < 4:
            raise TransientError("the server is away")
        taker.taken(found.number)

    def answer(number: int, error: str) -> None:
        said.append((number, error))
        if number == 2:
            done.set()

    taker = Applying(None, prepare, answer)
    try:
        taker.hear(version(1))
        taker.hear(version(1))
        taker.hear(version(2))
        assert done.wait(10)
    finally:
        taker.stop()
    assert tries == [1, 2, 2, 2]
    assert said == [(1, "no shard is named s9"), (2, "")]
    assert "not taken up is version 1, applied by alice" in caplog.text
    assert caplog.text.count("the server is away") == 1


def test_a_version_that_is_taken_up_leaves_the_windows_of_the_next_one_watched(
    tmp_path: Path,
) -> None:
    """Two are applied within seconds: the second is prepared before the first is taken."""
    configuration, second = configuration_of(tmp_path), World([KEPT]).spec
    first, watched = replace(second, connector="d"), list[list[LoadSpec]]()
    run = SimpleNamespace(connector=SimpleNamespace(name="c"), use=lambda *_: None)
    assembly: Any = SimpleNamespace(
        run=run,
        configuration=configuration,
        spec=None,
        heir=None,
        claims=None,
        schema=None,
        monitor=SimpleNamespace(only=watched.append),
        _told_apart=None,
    )
    applied: Any = _Applied(assembly)
    applied._coming = second
    applied.finder = SimpleNamespace(use=lambda *_: None)
    applied._applying = SimpleNamespace(taken=lambda _: None)
    applied._taken(SimpleNamespace(number=2), configuration, first)
    applied.see_specs([])
    assert watched == [[first, second]]
    applied._taken(SimpleNamespace(number=3), configuration, second)
    applied.see_specs([])
    assert watched[1:] == [[second]]
