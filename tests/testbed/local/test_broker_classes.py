"""The archive of the broker's classes, which set-up makes: used, harmless where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.spark import archives
from sluice.spark.java import require_java
from sluice.testbed.local import broker_classes
from sluice.testbed.local.broker_classes import archive_path
from sluice.testbed.local.jars import kafka_jars
from tests.support.kafka import Kafka


def test_a_broker_starts_from_the_archive_that_set_up_has_made(kafka: Kafka) -> None:
    made = archive_path(require_java(), kafka_jars())
    assert archives.is_whole(made), "make setup"
    assert str(made.resolve()) in Path(f"/proc/{kafka.broker.serving_pid}/maps").read_text()


def test_other_jars_have_another_archive(tmp_path: Path) -> None:
    (tmp_path / "a-1.jar").touch()
    first = archive_path(require_java(), tmp_path)
    (tmp_path / "manifest.json").touch()
    assert archive_path(require_java(), tmp_path) == first
    (tmp_path / "a-1.jar").rename(tmp_path / "a-2.jar")
    assert archive_path(require_java(), tmp_path) != first


def test_set_up_goes_on_where_none_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(broker_classes, "archive_path", lambda java, jars: tmp_path / "file" / "a")
    assert broker_classes.main() == 0
    assert capsys.readouterr().out.startswith("none, Kafka starts without: ")
