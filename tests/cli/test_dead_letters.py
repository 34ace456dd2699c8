"""What `sluice dead-letters` prints, and what it asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.cli.exit import ExitStatus
from sluice.core.receipts import DeadLetter, Origin
from sluice.kafka.dead_letters import Replayed, StoredDeadLetter
from sluice.ops.dead_letters import Found
from sluice.ops.dead_letters_purging import PartitionPurge, PurgePlan
from sluice.ops.dead_letters_replaying import Refusal, ReplayPlan, ReplayReport
from tests.cli.support import run

LETTER = DeadLetter(
    topic="orders",
    partition=3,
    offset=1234,
    timestamp_ms=1_000,
    key=b"k",
    value=b'{"id": "\x1b[2J' + b"x" * 500,
    headers=(("trace", b"t"),),
    reason="cannot-parse",
    error="not an object",
    table="orders",
)
STORED = StoredDeadLetter(0, 77, LETTER, 1_700_000_000_000, "0.1", ())
PLACE = ("--topic", "orders", "--partition", "3", "--offset", "1234")


class DeadLetters:
    """Puts dead letters in the place of what Kafka holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Found] = [Found("dc1", STORED, None)]
        self.asked: list[Any] = []
        monkeypatch.setattr("sluice.ops.dead_letters.find", self._find)

    def _find(self, _: object, selection: object) -> Any:
        self.asked.append(selection)
        return iter(self.found)


@pytest.fixture
def dead_letters(monkeypatch: pytest.MonkeyPatch) -> DeadLetters:
    return DeadLetters(monkeypatch)


def test_list(dead_letters: DeadLetters, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys, "dead-letters", "list", config)
    assert ended.status == ExitStatus.DONE
    first, second = ended.out.splitlines()
    assert first == "dc1 orders 3 1234  cannot-parse: orders: not an object"
    assert second.strip().startswith('{"id": "\\x1b[2Jxxx')
    assert len(second.strip()) == 100
    (entry,) = json.loads(run(capsys, "dead-letters", "list", config, "--json").out)
    assert (entry["connector"], entry["offset"], entry["key"]) == ("dc1", 1234, "k")
    assert entry["headers"] == [{"name": "trace", "value": "t"}]
    assert entry["origin"]["offset"] == 1234 and entry["replayed_at_ms"] is None


def test_list_says_what_was_replayed(
    dead_letters: DeadLetters, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    again = DeadLetter(
        *("orders", 3, 2000, None, None, b"{", (), "cannot-parse", "why", "orders"),
        origin=Origin("orders", 3, 1234, 1_000),
        attempt=2,
    )
    mark = Replayed(0, 77, 1_700_000_000_000, "ada@host", "run")
    stored = StoredDeadLetter(0, 90, again, 0, "0.1", ())
    dead_letters.found = [Found("dc1", STORED, mark), Found("dc1", stored, None)]
    lines = run(capsys, "dead-letters", "list", config).out.splitlines()
    assert lines[0].startswith("dc1 orders 3 1234 (replayed 2023-11-14T22:13:20Z)  cannot")
    assert lines[2].startswith("dc1 orders 3 1234 (attempt 2)  cannot-parse")
    ended = run(capsys, "dead-letters", "list", config, "--limit", "1")
    assert len(ended.out.splitlines()) == 2


def test_summary(
    dead_letters: DeadLetters, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "dead-letters", "list", config, "--summary").out.splitlines()
    assert lines[0].split() == [
        *("connector", "table", "reason", "dead", "letters", "waiting", "first", "last")
    ]
    assert lines[1].split()[:5] == ["dc1", "orders", "cannot-parse", "1", "1"]
    (count,) = json.loads(run(capsys, "dead-letters", "list", config, "--summary", "--json").out)
    assert (count["dead_letters"], count["waiting"]) == (1, 1)


def test_show(dead_letters: DeadLetters, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended = run(capsys, "dead-letters", "show", config, *PLACE)
    assert ended.status == ExitStatus.DONE
    assert (dead_letters.asked[-1].partition, dead_letters.asked[-1].offset) == (3, 1234)
    lines = ended.out.splitlines()
    said = {line[:13].strip(): line[13:].strip() for line in lines}
    assert said["origin"] == "orders[3] offset 1234"
    assert (said["timestamp"], said["replayed"]) == ("1970-01-01T00:00:01Z", "no")
    assert (said["header trace"], said["cut"]) == ("t", "no")
    assert "replay CONFIG --topic orders --partition 3 --offset 1234" in said["what to do"]
    assert lines[-2] == "payload:"
    assert lines[-1] == '{"id": "\\x1b[2J' + "x" * 500
    hexadecimal = run(capsys, "dead-letters", "show", config, *PLACE, "--hex").out
    assert "00000000  7b 22 69 64 22 3a 20 22 1b 5b 32 4a 78 78 78 78" in hexadecimal
    (entry,) = json.loads(run(capsys, "dead-letters", "show", config, *PLACE, "--json").out)
    assert entry["value"].endswith("x" * 500) and entry["advice"]


def test_show_of_what_is_not_there(
    dead_letters: DeadLetters, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dead_letters.found = []
    ended = run(capsys, "dead-letters", "show", config, *PLACE)
    assert ended.status == ExitStatus.BROKEN
    assert "no dead letter is of orders[3] offset 1234" in ended.err


def test_replay_shows_asks_and_reports(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ReplayPlan({"dc1": {(0, 77)}}, {("dc1", "orders", "orders"): 2}, replayed_before=1)
    report = ReplayReport(replayed=1, refused=1)
    report.refusals.append(Refusal("dc1", STORED, "it is gone", "Produce it again."))
    done: list[object] = []
    where = "sluice.ops.dead_letters_replaying"
    monkeypatch.setattr("sluice.driver.applying.loaded", lambda configuration, *_: configuration)
    monkeypatch.setattr(f"{where}.plan_replay", lambda *_: plan)

    def replay(*_: object, by: str | None, why: str) -> ReplayReport:
        done.append((by, why))
        return report

    monkeypatch.setattr(f"{where}.replay", replay)
    refused = run(capsys, "dead-letters", "replay", config)  # pytest's stdin is no terminal
    assert (refused.status, done) == (ExitStatus.CONFIGURATION, [])
    assert "produce 2 messages to orders of connector dc1 again" in refused.err
    assert "skip 1 that were replayed before" in refused.err
    words = ("--yes", "--by", "alice", "--why", "mended")
    ended = run(capsys, "dead-letters", "replay", config, *words)
    assert ended.status == ExitStatus.BROKEN  # one was refused
    assert ended.out.splitlines() == [
        "replayed         1",
        "replayed before  1",
        "refused          1",
        "dc1 orders 3 1234  it is gone. Try: Produce it again.",
    ]
    plan.counts = {}
    assert run(capsys, "dead-letters", "replay", config).status == ExitStatus.DONE
    assert done == [("alice", "mended")]


def test_purge_wants_to_know_what(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ((), ("--all", "--replayed")):
        ended = run(capsys, "dead-letters", "purge", config, *words)
        assert ended.status == ExitStatus.CONFIGURATION
        assert "purge needs to know what" in ended.err
    chosen = PartitionPurge(before=78)
    chosen.take(STORED, is_meant=True)
    plan = PurgePlan({"dc1": {0: chosen}})
    asked: list[Any] = []
    where = "sluice.ops.dead_letters_purging"

    def plan_purge(_: object, selection: object) -> PurgePlan:
        asked.append(selection)
        return plan

    monkeypatch.setattr(f"{where}.plan_purge", plan_purge)
    monkeypatch.setattr(f"{where}.purge", lambda *_, by, why: plan)
    refused = run(capsys, "dead-letters", "purge", config, "--all")
    assert refused.status == ExitStatus.CONFIGURATION
    assert "delete 1 dead letters for good" in refused.err
    ended = run(capsys, "dead-letters", "purge", config, "--replayed", "--yes")
    assert (ended.status, ended.out) == (ExitStatus.DONE, "purged  1\nkept    0\n")
    assert asked[-1].replayed is True
