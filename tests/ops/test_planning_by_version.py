"""Commands that a person gives plan by what is loaded, and not by a file that differs from it:
after a rollback, or the file of somebody who has an older one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cli.exit import ExitStatus
from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.config.applied import document_of
from sluice.core.decided import Subject, apply_entry
from sluice.driver.applying import loaded
from sluice.kafka import topics as topics_module
from sluice.kafka.decisions import write_decisions
from sluice.kafka.errors import KafkaUnavailableError
from sluice.machine.clock import now_ms
from sluice.ops.driver_decisions import read_decided
from sluice.testbed.local.children import free_ports
from tests.cli.support import run
from tests.ops.dead_letters import DeadLetters
from tests.ops.pipelines import Pipeline, settled
from tests.ops.test_claims import made_again
from tests.ops.test_dead_letters_claims import ClaimingLetters, claiming_letters
from tests.support.kafka import Kafka


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[DeadLetters]:
    made = DeadLetters(kafka, tmp_path)
    yield made
    made.close()


@pytest.fixture
def letters(
    kafka: Kafka, tmp_path: Path, embedded: Server, embedded_url: str
) -> Iterator[ClaimingLetters]:
    yield from claiming_letters(kafka, tmp_path, embedded, embedded_url)


def apply_and_then_change(pipeline: Pipeline, old: str, new: str, number: int = 1) -> None:
    """The file is applied as it is, and has something else afterwards."""
    configuration = load(pipeline.path, {})
    entry = apply_entry(number, number - 1, document_of(configuration), "alice", "")
    topics = configuration.ledger_topic, configuration.decisions_topic
    access, group = pipeline.kafka.access(), configuration.group("dc1")
    write_decisions(access, group, *topics, [entry], now_ms())
    text = pipeline.path.read_text()
    assert old in text
    pipeline.path.write_text(text.replace(old, new, 1))


def add_table(pipeline: Pipeline, name: str) -> str:
    """One more table of its topic; gives what stands in the file."""
    added = f'[[table]]\nname = "{name}"\ntopics = ["{pipeline.topic}"]\n'
    pipeline.path.write_text(pipeline.path.read_text() + added)
    return added


def test_a_dead_letter_goes_back_for_a_table_that_is_loaded(
    pipeline: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.fill(10)
    pipeline.write(3, table="orders")
    apply_and_then_change(pipeline, 'name = "orders"', 'name = "bids"')
    ended = run(capsys, "dead-letters", "replay", str(pipeline.path), "--yes")
    assert ended.status == ExitStatus.DONE, ended
    assert len(pipeline.written()) == 11


def test_a_parked_message_gives_up_the_claim_that_it_has_by_what_is_loaded(
    letters: ClaimingLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the file's key it has none: its copy would be left out as a duplicate of itself."""
    letters.claim(50, offset=5)
    letters.park(5, b'{"id": 50, "note": "x"}')
    apply_and_then_change(letters, 'key = ["id"]', 'key = ["note"]')
    ended = run(capsys, "dead-letters", "replay", str(letters.path), "--yes")
    assert ended.status == ExitStatus.DONE, ended
    assert letters.held(50) == [False]


@pytest.mark.slow
def test_who_decides_does_not_go_by_the_file_where_the_version_cannot_be_read(
    letters: ClaimingLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    """As without the right to read it: the file's key may be another one than the version's."""
    letters.fill(10)
    letters.insert({5: 50, 7: 70})
    letters.claim(50, offset=5)
    letters.park(5, b'{"id": 50, "note": "x"}')
    apply_and_then_change(letters, 'key = ["id"]', 'key = ["note"]')
    before = len(letters.written())
    path, topic = str(letters.path), letters.configuration.decisions_topic
    letters.kafka.produce(topic, [b"{"])
    where = ("--connector", "dc1", "--topic", letters.topic, "--partition", "0")
    for words in (
        ("dead-letters", "replay", path, "--yes"),
        ("resolve", path, *where, "--as", "loaded", "--yes"),
        ("adopt", path, *where, "--offset", "10", "--yes"),
        ("rewind", path, *where, "--to", "0", "--yes"),
        ("claims", "rebuild", path),
    ):
        ended = run(capsys, *words)
        assert ended.status == ExitStatus.BROKEN, words
        assert f"topic {topic} holds a message at offset 2 that is no decision" in ended.err
    assert len(letters.written()) == before and letters.held(50, 70) == [True, False]
    # Who only looks goes by the file.
    ended = run(capsys, "claims", "check", path)
    assert "sluice: error" not in ended.err and "orders" in ended.out, ended
    # A driver says itself of which table its claims are to be made again.
    made_again(letters)
    assert letters.held(50, 70) == [True, True]


@pytest.mark.slow
def test_of_several_connectors_only_those_that_are_decided_about_must_be_known(
    pipeline: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "ADMIN_TIMEOUT_SECONDS", 4.0)
    away = f'[[connector]]\nname = "dc2"\nbrokers = "127.0.0.1:{free_ports(1)[0]}"\n'
    text = pipeline.path.read_text() + f'{away}topics = ["{pipeline.topic}"]\n'
    pipeline.path.write_text(text)
    configuration = load(pipeline.path, {})
    assert loaded(configuration, {}, ["dc1"]) is configuration, "nothing was ever applied"
    with pytest.raises(KafkaUnavailableError):
        loaded(configuration, {}, ["dc1", "dc2"])


@pytest.mark.parametrize("words", [("rewind", "--to", "10"), ("adopt", "--offset", "10")])
def test_rows_are_to_be_removed_from_all_tables_that_are_loaded(
    words: tuple[str, ...], pipeline: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.fill(100)
    pipeline.drive(settled(40))
    apply_and_then_change(pipeline, add_table(pipeline, "bids"), "")
    where = ("--connector", "dc1", "--topic", pipeline.topic, "--partition", "0")
    ended = run(capsys, words[0], str(pipeline.path), *where, *words[1:])
    assert ended.status == ExitStatus.CONFIGURATION, "nobody can be asked"
    for table in ("shop.orders", "shop.bids"):
        assert f"ALTER TABLE {table} DELETE" in ended.err


@pytest.mark.slow
def test_a_table_that_is_loaded_is_frozen_and_one_that_is_retired_is_resumed(
    pipeline: DeadLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    apply_and_then_change(pipeline, add_table(pipeline, "bids"), "")
    path, said = str(pipeline.path), ("--table", "bids", "--by", "alice", "--why", "a disk")
    assert run(capsys, "freeze", path, *said).status == ExitStatus.DONE
    standing = [each.subject for each in read_decided(pipeline.configuration, "dc1").frozen]
    assert standing == [Subject("table", "bids")]
    apply_and_then_change(pipeline, "[ledger]", "[ledger]", number=2)
    assert run(capsys, "resume", path, *said).out == "nothing is frozen\n"
    ended = run(capsys, "resume", path, *said)
    assert ended.status == ExitStatus.BROKEN and "is not frozen" in ended.err
    assert run(capsys, "freeze", path, *said).status == ExitStatus.CONFIGURATION
