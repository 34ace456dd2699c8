"""Finding topics in a real cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.config import Configuration
from sluice.config.topics import TopicRefusedError
from sluice.driver.discovering import TopicFinder, topics_to_load, topics_today
from sluice.kafka.log import SourceLog
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


def test_nothing_matches_yet(
    kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = configuration_of(tmp_path, "x", "nothing-like-it", "nothing-.*")
    (connector,) = configuration.connectors
    configuration = replace(configuration, connectors=(replace(connector, topics=()),))
    assert topics_to_load(configuration, "dc1", SourceLog(kafka.admin)) == ()
    assert 'no topic matches topic_pattern = "nothing-like-it" yet' in caplog.text
