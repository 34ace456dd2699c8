"""Finding topics in a real cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import NewPartitions

from sluice.config import Configuration
from sluice.config.topics import TopicRefusedError
from sluice.core.ranges import TopicPartition
from sluice.driver import connector
from sluice.driver.discovering import GONE_LOOKS, TopicFinder, topics_to_load, topics_today
from sluice.kafka.clients import make_admin
from sluice.kafka.log import SourceLog, TopicMissingError
from tests.config.support import MINIMAL, load_text
from tests.support.kafka import Kafka


def configuration_of(folder: Path, named: str, pattern: str, *tables: str) -> Configuration:
    """One connector; an entry into the same table for each of the expressions."""
    configuration = load_text(folder, MINIMAL)
    (connector,), (table,) = configuration.connectors, configuration.tables
    return replace(
        configuration,
        connectors=(replace(connector, topics=(named,), topic_pattern=pattern),),
        tables=tuple(
            replace(table, name=f"t{number}", topics=(named,) * (not number), topic_pattern=each)
            for number, each in enumerate(tables)
        ),
    )


def test_topics_are_found_when_they_are_there(kafka: Kafka, tmp_path: Path) -> None:
    log = SourceLog(kafka.admin)
    named = kafka.topic()
    every, late = f"{named}\\..*", f"{named}\\.late"
    assert topics_today(configuration_of(tmp_path, named, ""), "dc1", log) == (named,)
    configuration = configuration_of(tmp_path, named, every, every, late)
    finder = TopicFinder(configuration, "dc1", log)
    assert finder.find({named}) == ([], {}) and finder.is_named(named)
    early = kafka.topic(name=f"{named}.early")
    assert finder.find({named}) == ([early], {}) and not finder.is_named(early)
    assert finder.find({named, early}) == ([], {})
    assert topics_to_load(configuration, "dc1", log) == (named, early)

    kafka.topic(name=f"{named}.late")
    found, refused = finder.find({named, early})
    assert found == [] and list(refused) == [f"{named}.late"]
    assert f"{named}.late goes to default.orders twice" in str(refused[f"{named}.late"])
    with pytest.raises(TopicRefusedError, match="twice"):
        topics_to_load(configuration, "dc1", log)


def test_partitions_that_are_added_are_there_for_who_has_asked_before(kafka: Kafka) -> None:
    """The client keeps for minutes how many there were."""
    topic, log = kafka.topic(), SourceLog(make_admin(kafka.access()))
    first, second = partitions(topic)
    assert log.stable_ends([first]) == {first: 0}
    kafka.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    kafka.until(lambda: log.stable_ends([first, second], partial=True).keys() == {first, second})


class Described:
    """What Kafka says of topics."""

    def __init__(self, *topics: str) -> None:
        self.counts = dict.fromkeys(topics, 2)

    def names(self) -> list[str]:
        return sorted(self.counts)

    def topics(self, names: Iterable[str], *, partial: bool = False) -> dict[str, tuple[str, int]]:
        found = {name: ("T" * 11, self.counts[name]) for name in names if name in self.counts}
        if not partial and found.keys() != set(names):
            raise TopicMissingError("one of them does not exist")
        return found


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def test_a_topic_that_is_gone_or_refused_leaves_the_partitions_of_the_others(
    tmp_path: Path,
) -> None:
    """A fleet looks at all of them: one topic that somebody deleted ended each hand-over."""
    log = Described("x", "x.early", "x.late")
    configuration = configuration_of(tmp_path, "x", r"x\..*", r"x\..*", r"x\.late")
    finder = TopicFinder(configuration, "dc1", cast(SourceLog, log))
    assert finder.partitions() == finder.partitions() == [*partitions("x"), *partitions("x.early")]
    del log.counts["x"]
    for _ in range(GONE_LOOKS - 1):  # one broker may not know it yet
        with pytest.raises(TopicMissingError, match="topic x does not exist"):
            finder.partitions()
    assert finder.partitions() == finder.partitions() == partitions("x.early")
    assert list(finder.left_out) == ["x.late", "x"]
    assert str(finder.left_out["x"]) == "topic x does not exist"
    log.counts["x"] = 2
    assert finder.partitions() == [*partitions("x"), *partitions("x.early")]
    del log.counts["x"]
    with pytest.raises(TopicMissingError):
        finder.partitions()
    assert list(finder.left_out) == ["x.late"]
    assert "x.late goes to default.orders twice" in str(finder.left_out["x.late"])


def test_an_heir_looks_at_what_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Described("x.early")
    configuration = configuration_of(tmp_path, "x", r"x\..*", r"x\..*")
    monkeypatch.setattr(connector, "Recorder", lambda *_, **__: None)
    monkeypatch.setattr(connector, "SourceLog", lambda *_: log)
    monkeypatch.setattr(connector, "Heir", lambda parts, read, sources, *_: sources)
    run = SimpleNamespace(connector=configuration.connectors[0], _give_up=None)
    assembly: Any = object.__new__(connector._Assembly)
    assembly.configuration, assembly.run, assembly.log = configuration, run, log
    assembly.kafka = assembly.names = assembly.admin = None
    assembly.specs = SimpleNamespace(today=SimpleNamespace(spec=SimpleNamespace(tables=())))
    assembly.applying = connector._Applied(assembly)
    monkeypatch.setattr(connector._Assembly, "_start_parts", lambda *_, **__: None)
    sources = assembly._make_heir(SimpleNamespace(announce=None))
    for _ in range(GONE_LOOKS - 1):
        with pytest.raises(TopicMissingError):
            sources()
    assert sources() == partitions("x.early")


def test_nothing_matches_yet(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = configuration_of(tmp_path, "x", "nothing-like-it", "nothing-.*")
    (connector,) = configuration.connectors
    configuration = replace(configuration, connectors=(replace(connector, topics=()),))
    assert topics_to_load(configuration, "dc1", SourceLog(kafka.admin)) == ()
    assert 'no topic matches topic_pattern = "nothing-like-it" yet' in caplog.text
