"""A loop that takes another version of what is loaded up while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config import Configuration, load
from sluice.config.applied import document_of
from sluice.core.decided import Decided, Version, apply_entry
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed
from sluice.driver import applying, connector
from sluice.driver.applying import Applying, NotWhileRunningError
from sluice.driver.connector import _Applied
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import ConfigurationRead, SchemaRead
from sluice.driver.state import PossibleLateInsert
from sluice.driver.topology import with_replicas
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
            assert world.planner.specs.watched[-1] is world.spec, "its table, while it is needed"
            if len(sent) == 1:
                world.at(0, change)
                return Failed(TransientError("away"))
        return world.load(assignment)

    world.script = script
    loop = world.loop([world.settled(KEPT), world.settled(GONE)])
    world.at(60_000, lambda: world.ends.update({KEPT: 40}))
    world.at(80_000, lambda: world.put(SchemaRead(world.now, None, spec, {}, version=1)))
    world.at(90_000, loop.stopping.set)
    with caplog.at_level("INFO", logger="sluice.loop"):
        loop.run(None, 5.0)
    assert sent == [world.spec.digest()] * 2
    assert counted == [spec.digest()] == [loop.planner.digest]
    assert kinds(world, GONE)[-1] == ("SETTLE", 10, 10)
    assert world.rows_of(GONE, "u") == [1] * 10 + [0] * 40
    assert world.rows_of(KEPT) == [1] * 40
    assert set(loop.states) == {KEPT}
    assert world.planner.specs.watched == (spec,)
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


def test_a_window_is_read_as_long_as_something_may_still_be_inserted_there() -> None:
    """Its range is settled and its entry is gone; but another one may fill the same table."""
    tables = (table_spec("t", ("a",)), replace(table_spec("u", ("b",)), table="t"))
    world = World([KEPT, GONE], tables)
    spec, until_ms = replace(world.spec, tables=tables[:1]), 100_000
    late = PossibleLateInsert({"u/s1": 0}, world.now + until_ms)
    loop = world.loop([world.settled(KEPT), world.settled(GONE)], [late])
    world.at(1_000, lambda: world.put(read(spec, "a", taken=lambda: None)))
    world.at(10_000, lambda: world.ends.update({KEPT: 10}))  # under the load spec of now
    watched: list[tuple[LoadSpec, ...]] = []
    for at_ms in (until_ms // 2, 2 * until_ms):
        world.at(at_ms, lambda: world.put(SchemaRead(world.now, None, spec, {}, version=1)))
        world.at(at_ms + 1_000, lambda: watched.append(world.planner.specs.watched))
    world.at(3 * until_ms, loop.stopping.set)
    loop.run(None, 5.0)
    assert watched == [(spec, world.spec), (spec,)]


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


def test_an_older_version_is_not_taken_up_after_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for a server when an answer and the newer one come."""
    monkeypatch.setattr(applying, "RETRY_SECONDS", 0.01)
    said: list[tuple[int, str]] = []
    done = threading.Event()
    tries: list[int] = []

    def prepare(found: Version) -> None:
        tries.append(found.number)
        if tries == [7]:
            taker.taken(6)
            taker.hear(version(8))
            raise TransientError("the server is away")
        taker.taken(found.number)

    def answer(number: int, error: str) -> None:
        said.append((number, error))
        if number == 8:
            done.set()

    taker = Applying(None, prepare, answer)
    try:
        taker.hear(version(7))
        assert done.wait(10)
    finally:
        taker.stop()
    assert tries == [7, 8] and said == [(6, ""), (8, "")]


def test_a_version_that_is_taken_up_leaves_the_windows_of_the_next_one_watched(
    tmp_path: Path,
) -> None:
    """Two are applied within seconds: the second is prepared before the first is taken."""
    configuration, today = configuration_of(tmp_path), World([KEPT]).spec
    first, second = (replace(today, connector=name) for name in ("d", "e"))
    specs = LoadSpecs(today)
    run = SimpleNamespace(connector=SimpleNamespace(name="c"), use=lambda *_: None)
    assembly: Any = SimpleNamespace(
        run=run, configuration=configuration, specs=specs, schema=None, _told_apart=None
    )
    applied: Any = _Applied(assembly)
    applied.finder = SimpleNamespace(use=lambda *_: None)
    applied._applying = SimpleNamespace(taken=lambda _: None)
    specs.expect(first)
    specs.expect(second)
    assert specs.watched == (today, first, second)

    def take(number: int, spec: LoadSpec) -> tuple[LoadSpec, ...]:
        specs.go_over(spec)
        applied._taken(SimpleNamespace(number=number), configuration, spec)
        specs.keep([])
        return specs.watched

    assert take(2, first) == (first, second)
    assert take(3, second) == (second,)


def assembly_of(file: Configuration, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `_Applied` needs to prepare a version; `made` has what became of it."""
    spec, made = World([KEPT]).spec, list[Any]()
    monkeypatch.setattr(connector, "read_spec", lambda *_: spec)
    monkeypatch.setattr(connector, "read_today", lambda *_: SimpleNamespace(tokens=False))
    monkeypatch.setattr(connector, "ensure_own_topics", lambda *asked: made.append(asked))
    return SimpleNamespace(
        run=SimpleNamespace(connector=SimpleNamespace(name="dc1"), file=file, configuration=file),
        configuration=file,
        names=SimpleNamespace(is_shared=True),
        admin=None,
        monitor=SimpleNamespace(watch=made.append, other_tables=lambda _: []),
        staging=SimpleNamespace(watch=made.append),
        inbox=SimpleNamespace(put=made.append),
        specs=LoadSpecs(spec),
        schema=None,
        _told_apart=None,
        made=made,
    )


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('deduplicate = { key = ["id"], window = "7d" }', "orders has `deduplicate`"),
        (
            'unknown_fields = "refuse"\ndynamic_columns = { allow = ["a"] }',
            "a server hashes what it stores",
        ),
    ],
)
def test_nothing_is_taken_up_that_this_driver_may_not_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, why: str
) -> None:
    """Members of a fleet would deduplicate each by itself, or add columns while another one
    inserts."""
    more = '[deduplication]\nstore = "redis://host:6379"\n[fleet]\nmember = "a"\n'
    assembly = assembly_of(configuration_of(tmp_path, more=more), monkeypatch)
    text = (tmp_path / "sluice.toml").read_text()
    entry = f'[[table]]\nname = "orders"\n{table}\n'
    (tmp_path / "sluice.toml").write_text(text.replace('[[table]]\nname = "orders"\n', entry))
    document = document_of(load(tmp_path / "sluice.toml", {}))
    version = Version(2, 1, document, "alice", "", 1)
    with pytest.raises(NotWhileRunningError, match=f"share the partitions, and .*{why}"):
        _Applied(assembly)._prepare(version)
    assert assembly.made == []
    # A driver alone may; but nobody may where the entry had another table.
    assembly.names.is_shared = False
    assembly.monitor.other_tables = lambda _: ["orders"]
    with pytest.raises(NotWhileRunningError, match="table orders: an entry keeps its table"):
        _Applied(assembly)._prepare(version)
    assert assembly.made == []
    assembly.monitor.other_tables = lambda _: []
    _Applied(assembly)._prepare(version)
    assert isinstance(assembly.made[-1], ConfigurationRead)


def test_a_later_start_looks_for_replicas_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at those that there were when something was applied, which may be gone by then."""
    file, used = configuration_of(tmp_path), list[Configuration]()
    assembly = assembly_of(file, monkeypatch)
    assembly.run.use = lambda _, configuration: used.append(configuration)
    of_now = partial(with_replicas, shards={"s1": ("http://of-now:8123",)})
    monkeypatch.setattr(connector, "resolved", of_now)
    applied: Any = _Applied(assembly)
    applied._prepare(Version(1, 0, document_of(file), "alice", "", 1))
    applied.finder = SimpleNamespace(use=lambda *_: None)
    applied._applying = SimpleNamespace(taken=lambda _: None)
    assembly.made[-1].taken()
    assert [each.clickhouse for each in used] == [file.clickhouse]
