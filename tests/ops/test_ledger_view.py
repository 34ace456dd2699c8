"""`sluice ledger` on a real broker: what is chosen, what is shown, following."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.core.errors import ConfigurationError
from sluice.core.ledger import (
    Background,
    Commit,
    LedgerEntry,
    receipt_entry,
    record_entry,
    settled_entry,
    spec_entry,
)
from sluice.core.ranges import Range
from sluice.core.receipts import Loaded
from sluice.ops.ledger_view import LedgerSelection, read_ledger
from tests.core.test_ledger import LOADED, RECEIPT
from tests.kafka.groups import NOW, SETTLED, intend
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    """Two partitions; [0, 10) of partition 1 was loaded and settled."""
    made = Pipeline(kafka, tmp_path, partitions=2)
    driver = made.owning("run-1")
    one = made.sources[1]
    record = intend("run-1", 0, 10, batch=2)
    driver.record(
        Commit({one: record}, (spec_entry("d", "{}"), record_entry(one, record, Background()))), {}
    )
    settled = intend("run-1", 10, 20, batch=3)
    entries = (*loaded(Range(one, 0, 10), 2, LOADED), record_entry(one, settled, Background()))
    driver.record(Commit({one: settled}, entries), {})
    made.kafka.until_stable(made.ledger)
    yield made
    made.close()


def loaded(block_range: Range, batch: int, facts: Loaded) -> tuple[LedgerEntry, ...]:
    return (
        receipt_entry(block_range, batch, 1, facts.receipts[0]),
        settled_entry(block_range, batch, 1, facts),
    )


def read(pipeline: Pipeline, **selection: Any) -> list[dict[str, Any]]:
    return list(read_ledger(pipeline.configuration, LedgerSelection(**selection)))


def kinds(entries: list[dict[str, Any]]) -> list[str]:
    return [entry.get("kind", entry["type"]) for entry in entries]


def test_everything_in_order_with_its_offset(pipeline: Pipeline) -> None:
    entries = read(pipeline)
    assert kinds(entries) == [
        *("settle", "settle", "load_spec", "intend", "receipt", "settled", "intend")
    ]
    assert [entry["offset"] for entry in entries] == sorted(entry["offset"] for entry in entries)
    receipt, settled = entries[4], entries[5]
    assert receipt["checksum"] == RECEIPT.checksum and receipt["attempt"] == 1
    assert (settled["messages"], settled["attempt"], settled["at_ms"]) == (10, 1, NOW)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"partition": 0}, ["settle"]),
        ({"partition": 1}, ["settle", "intend", "receipt", "settled", "intend"]),
        ({"partition": 7}, []),
        ({"table": "orders", "partition": 0}, ["settle"]),
    ],
)
def test_what_is_chosen(pipeline: Pipeline, selection: dict[str, Any], expected: list[str]) -> None:
    assert kinds(read(pipeline, **selection)) == expected


def test_only_younger_entries(pipeline: Pipeline) -> None:
    assert len(read(pipeline, since_ms=int(time.time() * 1000) - 600_000)) == 7
    assert read(pipeline, since_ms=NOW + 1) == []
    assert read(pipeline, since_ms=1) == read(pipeline)


def test_receipts_of_a_table_and_what_its_topics_did(pipeline: Pipeline) -> None:
    by_topic = read(pipeline, topic=pipeline.topic)
    assert "load_spec" not in kinds(by_topic) and len(by_topic) == 6
    assert kinds(read(pipeline, table="orders")) == kinds(read(pipeline))


@pytest.mark.parametrize("name", ["connector", "topic", "table"])
def test_names_that_the_configuration_does_not_have(pipeline: Pipeline, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(pipeline, **{name: "nowhere"})
    assert '"nowhere"' in str(caught.value)
    assert caught.value.hint.startswith("Name one of: ")


def test_what_is_no_entry_is_shown_as_such(pipeline: Pipeline) -> None:
    pipeline.kafka.produce(pipeline.ledger, [(b"k", b"from a console\x1b[2J")])
    entry = read(pipeline, partition=0)[-1]
    assert entry["type"] == "unreadable" and entry["connector"] == "dc1"
    ended = sluice(pipeline, "--partition", "0")
    assert "no entry of Sluice at ledger offset" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_following(pipeline: Pipeline) -> None:
    stop, seen = threading.Event(), []

    def run() -> None:
        for entry in read_ledger(pipeline.configuration, LedgerSelection(), stop):
            seen.append(entry)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        Kafka.until(lambda: len(seen) == 7, 60)
        body = {"type": "load_spec", "digest": "e", "text": ""}
        driver = pipeline.recorder("run-1")
        driver.differences({})
        driver.record(
            Commit(dict.fromkeys(pipeline.sources, SETTLED), (LedgerEntry(None, body),)), {}
        )
        Kafka.until(lambda: len(seen) == 8, 60)
    finally:
        stop.set()
        thread.join(60)
    assert seen[-1]["digest"] == "e"


def test_a_ledger_that_is_not_there_yet(pipeline: Pipeline) -> None:
    text = pipeline.path.read_text().replace(pipeline.ledger, "no-such-ledger")
    pipeline.path.write_text(text)
    ended = sluice(pipeline)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "there is no topic no-such-ledger yet" in ended.stderr


def sluice(pipeline: Pipeline, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sluice", "ledger", str(pipeline.path), *more],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_follows_until_it_is_told_to_stop(pipeline: Pipeline, number: int) -> None:
    command = [sys.executable, "-m", "sluice", "ledger", str(pipeline.path), "--follow", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        process.send_signal(number)
        assert process.wait(60) == 0
    assert [json.loads(line)["connector"] for line in lines] == ["dc1"] * 7
