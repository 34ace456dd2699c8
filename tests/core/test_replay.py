"""The replay table: every combination of facts meets exactly one rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from enum import Enum
from itertools import product
from typing import get_type_hints

import pytest

from sluice.core.replay import (
    REPLAY_RULES,
    Committed,
    Decision,
    Executable,
    Facts,
    Ledger,
    Log,
    Memory,
    Probe,
    Topic,
    decide,
)

FINE = Facts(
    committed=Committed.SETTLED,
    ledger=Ledger.AGREES,
    topic=Topic.KNOWN,
    log=Log.COVERS,
    memory=Memory.HOLDS,
    executable=Executable.YES,
    probe=Probe.POSSIBLE,
)
DOUBT = replace(FINE, committed=Committed.IN_DOUBT)
NEVER = replace(FINE, committed=Committed.ABSENT, ledger=Ledger.ABSENT)


def every_combination() -> Iterator[Facts]:
    hints: dict[str, type[Enum]] = get_type_hints(Facts)
    for values in product(*(hints[field.name] for field in fields(Facts))):
        yield Facts(*values)  # type: ignore[arg-type]


def test_every_combination_meets_exactly_one_rule() -> None:
    combinations = list(every_combination())
    assert len(combinations) == 4 * 3 * 3 * 3 * 2 * 2 * 2
    for facts in combinations:
        matching = [rule for rule in REPLAY_RULES if rule.matches(facts)]
        assert len(matching) == 1, (facts, matching)


def test_every_rule_and_every_decision_is_used() -> None:
    used = {
        number
        for facts in every_combination()
        for number, rule in enumerate(REPLAY_RULES)
        if rule.matches(facts)
    }
    assert used == set(range(len(REPLAY_RULES)))
    assert {rule.decision for rule in REPLAY_RULES} == set(Decision)


def test_loading_needs_agreement_an_old_topic_and_the_offsets() -> None:
    loads = {Decision.CONSUME, Decision.REPLAY, Decision.PROBE}
    for facts in every_combination():
        decision = decide(facts)
        if decision in loads:
            assert facts.ledger is Ledger.AGREES, facts
            assert facts.topic is not Topic.RECREATED, facts
            assert facts.log is Log.COVERS, facts
        if decision in (Decision.REPLAY, Decision.PROBE):
            assert facts.committed is Committed.IN_DOUBT, facts
        if decision is Decision.REPLAY:
            assert facts.memory is Memory.HOLDS and facts.executable is Executable.YES, facts
        if decision is Decision.PROBE:
            assert facts.probe is Probe.POSSIBLE, facts
        if decision in (Decision.START, Decision.START_AT_ZERO):
            assert facts.committed is Committed.ABSENT and facts.ledger is Ledger.ABSENT, facts


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        (FINE, Decision.CONSUME),
        (DOUBT, Decision.REPLAY),
        (replace(DOUBT, memory=Memory.OVERRUN), Decision.PROBE),
        (replace(DOUBT, executable=Executable.NO), Decision.PROBE),
        (
            replace(DOUBT, memory=Memory.OVERRUN, probe=Probe.IMPOSSIBLE),
            Decision.STOP_RESOLVE,
        ),
        (
            replace(DOUBT, executable=Executable.NO, probe=Probe.IMPOSSIBLE),
            Decision.STOP_RESOLVE,
        ),
        (replace(DOUBT, probe=Probe.IMPOSSIBLE), Decision.REPLAY),
        (replace(NEVER, topic=Topic.NEW), Decision.START),
        (replace(NEVER, topic=Topic.NEW, log=Log.BEGIN_LOST), Decision.START),
        (NEVER, Decision.START_AT_ZERO),
        (replace(NEVER, log=Log.BEGIN_LOST), Decision.STOP_LOG_BEGIN),
        (replace(FINE, committed=Committed.ABSENT), Decision.STOP_OFFSETS_LOST),
        (replace(FINE, committed=Committed.INVALID), Decision.STOP_FOREIGN),
        (replace(FINE, ledger=Ledger.DIFFERS), Decision.STOP_LEDGER),
        (replace(FINE, ledger=Ledger.ABSENT), Decision.STOP_LEDGER),
        (replace(FINE, topic=Topic.RECREATED), Decision.STOP_RECREATED),
        (replace(DOUBT, log=Log.BEGIN_LOST), Decision.STOP_LOG_BEGIN),
        (replace(DOUBT, log=Log.END_LOST), Decision.STOP_LOG_END),
    ],
)
def test_what_follows(facts: Facts, decision: Decision) -> None:
    assert decide(facts) is decision
    assert decision.stops is decision.value.startswith("stop")
