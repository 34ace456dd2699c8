"""What the commands do with the answers of the libraries behind them.

The libraries themselves have their own tests; here single functions of them answer what a test
wants, in their own types, to calls that the real ones would take.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice.cli.exit import ExitStatus
from sluice.config import Configuration
from sluice.ops.doctor_findings import Finding, Level
from sluice.ops.partition_decisions.situation import Decider, PartitionSelection, Plan
from sluice.ops.status import IntentStatus, PartitionStatus, ReplicaStatus
from sluice.verify.audit import AuditReport
from tests.cli.support import run


def found(level: Level) -> Finding:
    fix = "" if level == "ok" else "ALTER TABLE shop.orders …"
    return Finding(level, "window", "shop.orders", "remembers 0 blocks", fix)


class Answers:
    """Puts functions in the place of a library's, which must have them and take such calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def set(self, module: str, **functions: Callable[..., Any]) -> None:
        library = importlib.import_module(module)
        for name, function in functions.items():
            self._monkeypatch.setattr(library, name, _taking(getattr(library, name), function))


def _taking(real: Callable[..., Any], answer: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(real)

    def call(*arguments: Any, **named: Any) -> Any:
        signature.bind(*arguments, **named)
        return answer(*arguments, **named)

    return call


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers(monkeypatch)
    made.set("sluice.driver.applying", loaded=lambda configuration, *_: configuration)
    return made


@pytest.mark.parametrize(
    ("levels", "status"), [((), 0), (("ok", "warning"), 0), (("ok", "error", "warning"), 1)]
)
def test_doctor(
    levels: tuple[Level, ...],
    status: int,
    answers: Answers,
    config: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers.set("sluice.ops.doctor", examine=lambda _: [found(level) for level in levels])
    ended = run(capsys, "doctor", config)
    assert ended.status == status
    header, *rows = ended.out.splitlines()
    assert re.split("  +", header) == ["check", "verdict", "what was found", "what to do"]
    assert [row.split()[:2] for row in rows[: len(levels)]] == [["window", word] for word in levels]
    assert ended.out.count("ALTER TABLE") == sum(level != "ok" for level in levels)
    ended = run(capsys, "doctor", config, "--json")
    assert ended.status == status
    assert [finding["level"] for finding in json.loads(ended.out)] == list(levels)


def test_run_hands_over_and_returns_the_status(
    answers: Answers, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []

    def run_pipeline(configuration: Any, **options: Any) -> int:
        assert all(callable(options.pop(name)) for name in ("examine", "observe", "reload"))
        calls.append((configuration.pipeline, options))
        return 3

    answers.set("sluice.driver.pipeline", run_pipeline=run_pipeline)
    answers.set("sluice.ops.doctor_spark", look_at_spark=lambda _: [found("warning"), found("ok")])
    ended = run(capsys, "run", config, "--until-caught-up", "--grace", "2m")
    assert ended.status == ExitStatus.IN_DOUBT
    assert calls == [("orders", {"until_caught_up": True, "grace_seconds": 120.0})]
    assert ended.err.count("remembers 0 blocks") == 1, "of this machine, for all connectors"


def test_status(answers: Answers, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    intent, shards = IntentStatus("intend", 1000, 2000, "in doubt"), ("s1", "s2")
    partitions = [
        PartitionStatus("dc1", "orders", 0, 1000, intent, 12345, 11345, 7, "sluice.a", shards),
        PartitionStatus("dc1", "orders", 1, None, None, 0, 0, None, None, shards),
    ]
    answers.set("sluice.ops.status", read_status=lambda _: partitions)
    ended = run(capsys, "status", config)
    assert ended.status == ExitStatus.DONE
    header, first, second = ended.out.splitlines()
    assert header.split()[:4] == ["connector", "topic", "partition", "committed"]
    assert "12,345" in first and "in doubt" in first
    assert second.split() == ["dc1", "orders", "1", *"-----", "0", "0", "-", "-", "s1", "s2"]
    refused = "connector dc1: topic b is not loaded"
    answers.set("sluice.ops.http.asking", read_refused=lambda _: [refused])
    assert run(capsys, "status", config).out.splitlines()[3:] == [refused]
    first_object = json.loads(run(capsys, "status", config, "--json").out)[0]
    assert first_object["intent"] == {
        "kind": "intend",
        "begin": 1000,
        "end": 2000,
        "state": "in doubt",
    }
    assert list(first_object) == [
        "connector",
        "topic",
        "partition",
        "committed",
        "intent",
        "stable_end",
        "lag",
        "batch",
        "owner",
        "shards",
        "frozen",
        "frozen_replicas",
    ]


def test_status_of_replicas(
    answers: Answers, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    replicas = [
        ReplicaStatus("s1", "http://a:1", "east", "", 2, 1500, 2, 2),
        ReplicaStatus("s1", "http://b:1", "", "it does not answer", None, None, None, None),
    ]
    answers.set("sluice.ops.status", read_replicas=lambda _: replicas)
    ended = run(capsys, "status", config, "--replicas")
    assert ended.status == ExitStatus.DONE
    _, first, second = ended.out.splitlines()
    assert first.split() == ["s1", "http://a:1", "east", "its", "own", "2", "1,500", "2", "2"]
    assert second.split()[:3] == ["s1", "http://b:1", "last"]
    assert second.endswith("it does not answer")
    shown = json.loads(run(capsys, "status", config, "--replicas", "--json").out)
    assert [each["delay_seconds"] for each in shown] == [2, None]


def test_quorum_looks_at_what_is_loaded(
    answers: Answers, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    looked: list[Configuration] = []

    def look(configuration: Configuration, _: object) -> list[Any]:
        looked.append(configuration)
        return []

    answers.set("sluice.driver.applying", loaded=lambda made, _: replace(made, pipeline="loaded"))
    answers.set("sluice.ops.quorum", look=look)
    assert run(capsys, "quorum", config).status == ExitStatus.DONE
    assert [each.pipeline for each in looked] == ["loaded"]


@pytest.mark.parametrize("broken", [None, "missing", "doubled", "foreign"])
def test_audit(
    broken: str | None, answers: Answers, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = dict.fromkeys(("missing", "doubled", "foreign"), 0)
    if broken is not None:
        counts[broken] = 1
    report = AuditReport(
        produced=1_000_000,
        loaded=999_700,
        dead_lettered=300,
        skipped=0,
        partitions=(),
        unaudited=(),
        **counts,
    )
    answers.set("sluice.verify.audit", audit=lambda _, **__: report)
    ended = run(capsys, "audit", config)
    assert ended.status == (ExitStatus.BROKEN if broken else ExitStatus.DONE)
    assert "dead-lettered        300" in ended.out


@pytest.mark.parametrize(
    ("words", "planner", "decided"),
    [
        (("resolve", "--as", "loaded"), "plan_resolve", {"outcome": "loaded"}),
        (("adopt", "--offset", "7"), "plan_adopt", {"offset": 7}),
        (("rewind", "--to", "9"), "plan_rewind", {"to": 9}),
    ],
)
def test_decisions_show_ask_and_apply(
    words: tuple[str, ...],
    planner: str,
    decided: dict[str, Any],
    answers: Answers,
    config: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []
    applied: list[Any] = []
    plan_made = Plan("dc1", "operator", (), ("commit 7 for orders[3]",))

    def plan(configuration: Any, selection: PartitionSelection, **decision: Any) -> Any:
        asked.append((selection, decision))
        return plan_made

    decisions = "sluice.ops.partition_decisions"
    answers.set(f"{decisions}.carrying_out", apply=lambda _, plan: applied.append(plan))
    module = "resolving" if planner == "plan_resolve" else "positions"
    answers.set(f"{decisions}.{module}", **{planner: plan})
    where = ("--connector", "dc1", "--topic", "orders", "--partition", "3")
    command = (words[0], config, *words[1:], *where, "--by", "alice", "--why", "it is late")
    refused = run(capsys, *command)  # pytest's stdin is no terminal
    assert refused.status == ExitStatus.CONFIGURATION
    assert "commit 7 for orders[3]" in refused.err
    assert applied == []
    assert run(capsys, *command, "--yes").status == ExitStatus.DONE
    assert applied == [plan_made]
    decider = Decider("alice", "it is late")
    selection = PartitionSelection("dc1", "orders", (3,))
    assert asked[-1] == (selection, {**decided, "decider": decider})
