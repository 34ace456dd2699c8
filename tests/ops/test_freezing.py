"""Freezing and resuming on a real broker: what is written, what a driver hears, what is shown."""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli.ledger import line_of
from sluice.config import load
from sluice.core.decided import (
    DRAIN,
    FREEZE,
    LOG_LEVEL,
    MAX_INFLIGHT_INSERTS,
    Asked,
    Decided,
    Frozen,
    Setting,
    Subject,
    asked_entry,
    decision_entry,
    set_entry,
)
from sluice.core.errors import ConfigurationError
from sluice.core.ledger import encode_entry
from sluice.driver import deciding
from sluice.driver.deciding import DecisionWatch
from sluice.driver.ports import DecisionsRead
from sluice.kafka.decisions import write_decisions
from sluice.kafka.errors import KafkaTerminalError
from sluice.kafka.tail import LogMessage
from sluice.ops.driver_decisions import (
    DecisionRefusedError,
    drain,
    freeze,
    read_decided,
    reload,
    resume,
    set_value,
)
from sluice.ops.ledger_view import LedgerSelection, read_ledger
from sluice.ops.status import read_status
from sluice.verify.history import Place, ledger_events
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka

TABLE = Subject("table", "orders")


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka, tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_a_freeze_is_in_the_ledger_and_whoever_runs_hears_of_it(pipeline: Pipeline) -> None:
    configuration, kafka = pipeline.configuration, pipeline.kafka
    assert read_decided(configuration, "dc1") == Decided()
    said = {"by": "alice", "why": "a disk is changed"}
    (line,) = freeze(configuration, connector="", table="orders", **said)
    assert "table orders is frozen by alice since 20" in line and line.endswith("a disk is changed")
    heard: queue.SimpleQueue[DecisionsRead] = queue.SimpleQueue()
    topic = configuration.decisions_topic
    watch = DecisionWatch(kafka.access(), topic, heard.put, lambda: None, lambda: None)
    standing = watch.start().frozen
    try:
        assert [each.subject for each in standing] == [TABLE]
        freeze(configuration, connector="dc1", table="", by="bob", why="a broker moves")
        subjects = [each.subject for each in heard.get(timeout=30).decided.frozen]
        assert subjects == [TABLE, Subject("connector")]
        with pytest.raises(DecisionRefusedError, match="the pipeline is not frozen") as refused:
            resume(configuration, connector="", table="", **said)
        assert "table orders of connector dc1, the connector of connector dc1" in refused.value.hint
        (left,) = resume(configuration, connector="", table="orders", by="bob", why="it is done")
        assert "the connector is frozen by bob" in left
        assert [each.by for each in heard.get(timeout=30).decided.frozen] == ["bob"]
    finally:
        watch.stop()
    (status,) = read_status(configuration)
    assert len(status.frozen) == 1 and "by bob" in status.frozen[0]
    for offset, message in enumerate(pipeline.kafka.read(pipeline.ledger)):
        found = LogMessage(offset, 0, message.key(), message.value())
        assert ledger_events("dc1", Place(pipeline.ledger, 0, offset), found) == []
    entries = [
        (entry["type"], entry["what"], entry["table"], entry["by"], entry["why"])
        for entry in read_ledger(configuration, LedgerSelection(table="orders"))
    ]
    assert entries == [
        ("freeze", "table", "orders", "alice", "a disk is changed"),
        ("freeze", "connector", "", "bob", "a broker moves"),
        ("resume", "table", "orders", "bob", "it is done"),
    ]


@pytest.mark.slow
def test_a_replica_and_a_data_center_are_frozen_by_their_hosts(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """So that another configuration opens none of them."""
    text = pipeline.path.read_text().replace(
        '["http://127.0.0.1:1"] }',
        '["http://a.east:8123", "http://b.west:8123", "http://b.west:8124"] }\n'
        'data_centers = { east = ["*.east"], west = ["*.west"] }',
    )
    pipeline.path.write_text(text)
    configuration, said = load(pipeline.path, {}), {"by": "alice", "why": "a disk is changed"}
    for named in (
        {"replica": "c.west:8123"},
        {"replica": "b.west"},
        {"replica": "*"},
        {"data_center": "north"},
    ):
        with pytest.raises(ConfigurationError, match=r"not one replica|has no"):
            freeze(configuration, **named, **said)
    with pytest.raises(DecisionRefusedError, match="table orders and replica a are two decisions"):
        freeze(configuration, table="orders", replica="a", **said)
    (line,) = freeze(configuration, replica="http://B.west:8124/", **said)
    assert "replica b.west:8124 is frozen by alice since 20" in line
    freeze(configuration, data_center="east", connector="dc1", **said)
    found = read_decided(configuration, "dc1").frozen
    assert [(str(each.subject), each.hosts) for each in found] == [
        ("replica b.west:8124", ("b.west:8124",)),
        ("data center east", ("*.east",)),
    ]
    (status,) = read_status(configuration)
    assert status.frozen == () and len(status.frozen_replicas) == 2
    freeze(configuration, replica="b.west:8123", **said)
    (status,) = read_status(configuration)
    assert len(status.frozen) == 3  # nobody takes its blocks
    first, *_ = read_ledger(configuration, LedgerSelection())
    assert line_of(first).endswith("  replica b.west:8124, by alice: a disk is changed")
    # It need not be configured any more.
    other = pipeline.configuration
    with pytest.raises(DecisionRefusedError, match="replica c:1 is not frozen"):
        resume(other, replica="c:1", **said)
    resume(other, replica="b.west:8124", **said)
    resume(other, data_center="east", **said)
    assert [str(each.subject) for each in read_decided(other, "dc1").frozen] == [
        "replica b.west:8123"
    ]


def test_what_is_refused_writes_nothing(pipeline: Pipeline) -> None:
    configuration = pipeline.configuration
    said = {"by": "alice", "why": "because"}
    for named in ({"connector": "dc9", "table": ""}, {"connector": "", "table": "nobody"}):
        with pytest.raises(ConfigurationError, match="named"):
            freeze(configuration, **named, **said)
    for by, why in (("", "x"), ("a\nb", "x"), ("a", "x" * 501)):
        with pytest.raises(DecisionRefusedError, match="is refused: the "):
            freeze(configuration, connector="", table="", by=by, why=why)
    for name, value, connector in (
        (LOG_LEVEL, "trace", ""),
        (LOG_LEVEL, "debug", "dc1"),
        (MAX_INFLIGHT_INSERTS, 0, ""),
        (MAX_INFLIGHT_INSERTS, True, ""),
        (MAX_INFLIGHT_INSERTS, "8", ""),
        ("max_delay", 1, ""),
    ):
        with pytest.raises(DecisionRefusedError, match="set is refused: "):
            set_value(configuration, name=name, value=value, connector=connector, **said)
    assert read_decided(configuration, "dc1") == Decided()


@pytest.mark.slow
def test_what_is_no_decision_is_told_with_its_place(pipeline: Pipeline) -> None:
    configuration, topic = pipeline.configuration, pipeline.configuration.decisions_topic
    freeze(configuration, connector="", table="", by="alice", why="because")
    # A newer version may freeze what this one does not know. The ledger has it, too.
    entry = decision_entry(FREEZE, Subject("rack", "r1"), "bob", "it burns")  # type: ignore[arg-type]
    topics = configuration.ledger_topic, topic
    write_decisions(pipeline.kafka.access(), configuration.group("dc1"), *topics, [entry], 1)
    pipeline.kafka.produce(topic, [b"{"])
    with pytest.raises(KafkaTerminalError, match="at offset 2 that is no decision") as caught:
        read_decided(configuration, "dc1")
    assert "newer version" in caught.value.hint and "sluice ledger" in caught.value.hint
    pipeline.kafka.until_stable(pipeline.ledger)
    lines = [line_of(entry) for entry in read_ledger(configuration, LedgerSelection())]
    assert "the pipeline, by alice: because" in lines[0] and "rack, by bob: it burns" in lines[1]
    # Decided again in another topic, it stands before a driver starts.
    text = pipeline.path.read_text() + f'[decisions]\ntopic = "{topic}-2"\n'
    pipeline.path.write_text(text)
    other = load(pipeline.path, {})
    freeze(other, connector="", table="", by="alice", why="because")
    assert [each.by for each in read_decided(other, "dc1").frozen] == ["alice"]


def test_decisions_of_other_connectors_and_hostile_texts() -> None:
    entry = decision_entry(FREEZE, TABLE, "a\x1b[31m", "line\nbreak" + "x" * 900)
    body = {"connector": "dc1", "at_ms": 7, **entry.body}
    (frozen,) = (decided := Decided().after(body)).frozen
    assert frozen == Frozen(TABLE, "a [31m", ("line break" + "x" * 900)[:500], 7)
    again = decided.after(body | {"at_ms": 8})
    assert again.frozen == (Frozen(TABLE, frozen.by, frozen.why, 8),)
    assert decided.after(body | {"type": "resume"}) == Decided()
    assert decided.after({"type": "receipt"}) == decided
    with pytest.raises(ValueError, match="cannot be frozen"):
        Decided().after(body | {"what": "world"})
    place = decision_entry(FREEZE, Subject("replica", "a:1"), "alice", "why").body
    with pytest.raises(ValueError, match="replica a:1 has no hosts"):
        Decided().after(body | place)
    assert encode_entry("dc1", 7, entry)[0] == b"dc1"


def test_values_that_are_set_and_taken_back() -> None:
    facts = {"connector": "dc1", "at_ms": 7}
    decided = Decided()
    for name, value in ((LOG_LEVEL, "debug"), (MAX_INFLIGHT_INSERTS, 8), (LOG_LEVEL, "error")):
        decided = decided.after(facts | set_entry(name, value, "alice\x1b", "why").body)
    assert decided.settings == (
        Setting(MAX_INFLIGHT_INSERTS, 8, "alice ", "why", 7),
        Setting(LOG_LEVEL, "error", "alice ", "why", 7),
    )
    assert [decided.value_of(name) for name in (LOG_LEVEL, MAX_INFLIGHT_INSERTS)] == ["error", 8]
    assert "max_inflight_inserts is 8 by alice" in decided.settings[0].line()
    back = decided.after(facts | set_entry(LOG_LEVEL, None, "alice", "why").body)
    assert back.settings == decided.settings[:1] and back.value_of(LOG_LEVEL) is None
    drained = back.after(facts | asked_entry(DRAIN, "bob", "why").body)
    assert drained.asked == {Asked(DRAIN, "bob", "why", 7)} and drained.settings == back.settings
    one = facts | asked_entry(DRAIN, "bob", "why", "east-1").body
    assert drained.after(one | {"type": "of a newer version"}) == drained
    assert drained.after(one).asked - drained.asked == {Asked(DRAIN, "bob", "why", 7, "east-1")}
    newer = LogMessage(0, 0, b"dc1", json.dumps(one | {"type": "of a newer version"}).encode())
    assert ledger_events("dc1", Place("ledger", 0, 0), newer) == []
    for body in (set_entry(LOG_LEVEL, "loud", "a", "b").body, set_entry("x", 1, "a", "b").body):
        with pytest.raises(ValueError, match=r"has to be one of|cannot be set"):
            decided.after(facts | body)


@pytest.fixture
def fresh_level() -> Iterator[None]:
    """This process may have run a driver at another level, and tells it from the level of now."""
    deciding._level_at_start.cache_clear()
    yield
    deciding._level_at_start.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_level")
def test_a_driver_hears_of_levels_limits_and_its_end(pipeline: Pipeline) -> None:
    configuration, logs = pipeline.configuration, logging.getLogger("sluice")
    at_start, said = logs.level, {"by": "alice", "why": "a look"}
    drained, reloaded = threading.Event(), threading.Event()

    def watch() -> tuple[DecisionWatch, queue.SimpleQueue[DecisionsRead]]:
        heard: queue.SimpleQueue[DecisionsRead] = queue.SimpleQueue()
        topic = configuration.decisions_topic
        hearing = heard.put, drained.set, reloaded.set
        return DecisionWatch(pipeline.kafka.access(), topic, *hearing, "east-1"), heard

    drain(configuration, by="bob", why="before it ran")
    first, heard = watch()
    try:
        first.start()
        set_value(configuration, name=LOG_LEVEL, value="debug", **said)
        assert heard.get(timeout=30).decided.value_of(LOG_LEVEL) == "debug"
        assert logs.level == logging.DEBUG
        (line, _) = set_value(configuration, name=MAX_INFLIGHT_INSERTS, value=3, **said)[::-1]
        assert "connector dc1: max_inflight_inserts is 3 by alice since 20" in line
        assert heard.get(timeout=30).decided.value_of(MAX_INFLIGHT_INSERTS) == 3
        assert reload(configuration, **said)[0].endswith("looks at columns, topics and replicas")
        assert reloaded.wait(30) and not drained.is_set()
        assert drain(configuration, by="bob", why="the machine is changed") == [
            "connector dc1: each driver that runs settles what is out, and ends"
        ]
        assert drained.wait(30)
    finally:
        first.stop()
    drained.clear()
    reloaded.clear()
    second, heard = watch()
    try:
        assert second.start().value_of(LOG_LEVEL) == "debug"  # it survives a start
        set_value(configuration, name=LOG_LEVEL, value=None, **said)
        assert heard.get(timeout=30).decided.value_of(LOG_LEVEL) is None
        assert logs.level == at_start and not (drained.is_set() or reloaded.is_set())
        # Of a fleet one member may be meant.
        (line,) = drain(configuration, by="bob", why="a machine", member="east-2")
        assert line == "connector dc1: member east-2 settles what is out, and ends"
        assert len(heard.get(timeout=30).decided.asked) == 4 and not drained.is_set()
        drain(configuration, by="bob", why="a machine", member="east-1")
        assert drained.wait(30)
    finally:
        second.stop()
        logs.setLevel(at_start)


def test_what_is_asked_for_while_a_member_starts_anew_is_done(pipeline: Pipeline) -> None:
    """It was fenced, and goes on in its process. Else all others would end, and it would take all
    partitions over."""
    configuration = pipeline.configuration

    def start(known: Decided | None) -> tuple[Decided, bool]:
        """What is decided by then, and whether it is to end."""
        access, topic, drained = pipeline.kafka.access(), configuration.decisions_topic, list[int]()
        hearing = (lambda _: None), (lambda: drained.append(1)), (lambda: None)
        watch = DecisionWatch(access, topic, *hearing, "east-1", known)
        try:
            return watch.start(), bool(drained)
        finally:
            watch.stop()

    drain(configuration, by="bob", why="before it ran")
    heard, is_drained = start(None)
    assert not is_drained
    drain(configuration, by="bob", why="a machine", member="east-2")
    heard, is_drained = start(heard)
    assert not is_drained
    drain(configuration, by="bob", why="the machine is changed")
    heard, is_drained = start(heard)
    assert is_drained
    _, is_drained = start(heard)
    assert not is_drained, "it was done once"
