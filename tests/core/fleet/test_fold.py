"""Who lives, as the topic's messages say it in their order, whatever was compacted away."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.fleet.fold import PATIENT_REPORTS, Fold
from sluice.core.fleet.records import Gone, Report
from sluice.core.fleet.view import SILENT_REPORTS
from tests.support.examples import examples

OWN = "run-1"


def report(owner: str, number: int = 1, wall_ms: int = 0) -> Report:
    return Report(owner, owner, number, wall_ms=wall_ms)


def fold(log: list[Report | Gone]) -> Fold:
    made = Fold(OWN)
    for offset, message in enumerate(log):
        made.take(offset, 0, message)
    return made


def living(made: Fold) -> list[str]:
    return [member.owner for member in made.view().living]


@st.composite
def logs(draw: st.DrawFn) -> list[Report | Gone]:
    """Each owner numbers its reports, and none comes back that is gone."""
    numbers = dict.fromkeys(["run-1", "run-2", "run-3", "run-4"], 0)
    log: list[Report | Gone] = []
    for owner in draw(st.lists(st.sampled_from(sorted(numbers)), max_size=40)):
        numbers[owner] += 1
        log.append(report(owner, numbers[owner], draw(st.integers(0, 10_000))))
    if draw(st.booleans()):
        log.append(Gone("run-4"))
    return log


def key(message: Report | Gone) -> str:
    return message.owner


@settings(max_examples=examples(100))
@given(logs(), st.randoms(use_true_random=False))
def test_compaction_and_reading_again_change_nothing(
    log: list[Report | Gone], chance: random.Random
) -> None:
    made = fold(log)
    view, others = made.view(), made.others
    last = {key(message): place for place, message in enumerate(log)}
    for offset, message in enumerate(log):
        if last[key(message)] == offset or chance.random() < 0.5:
            made.take(offset, 0, message)
    assert made.view() == view and made.others == others
    late = Fold("who comes later")
    for message in (log[place] for place in sorted(last.values())):
        late.take(0, 0, message)
    assert {o: h.report for o, h in late.others.items()} == {
        message.owner: message
        for message in (log[place] for place in last.values())
        if isinstance(message, Report)
    }


def test_who_does_not_report_is_silent_by_the_reports_of_who_looks() -> None:
    made = fold([report("run-2")])
    for number in range(1, SILENT_REPORTS):
        made.take(number, 0, report(OWN, number))
        assert living(made) == [OWN, "run-2"]
    made.take(9, 0, report(OWN, SILENT_REPORTS))
    assert living(made) == [OWN] and made.silent == {"run-2": SILENT_REPORTS}
    assert made.others.keys() == {"run-2"}
    made.take(10, 0, report("run-2", 2))
    assert living(made) == [OWN, "run-2"] and not made.silent


def test_who_reports_less_often_is_waited_for_longer() -> None:
    """As its `silent_after` has it; who reports more often is waited for as long as any other."""
    made = fold([replace(report("run-2"), silent_seconds=20), report("run-3")])
    for number in range(1, 2 * SILENT_REPORTS):
        made.take(number, 0, replace(report(OWN, number), silent_seconds=10))
        assert ("run-3" in living(made)) == (number < SILENT_REPORTS)
        assert "run-2" in living(made)
    made.take(99, 0, replace(report(OWN, 2 * SILENT_REPORTS), silent_seconds=10))
    assert living(made) == [OWN]


def test_nobody_is_suspected_by_who_was_asleep_or_alone() -> None:
    made = fold([report(OWN), *(report("run-2", number) for number in range(1, 100))])
    assert living(made) == [OWN, "run-2"]


def test_an_own_report_that_is_read_again_counts_once() -> None:
    made = fold([report("run-2"), *[report(OWN, 1)] * 10])
    assert living(made) == [OWN, "run-2"] and made.number == 1


def test_who_is_gone_is_nobodys_other() -> None:
    made = fold([report("run-2"), report(OWN), Gone("run-2")])
    assert living(made) == [OWN] and not made.others
    made.take(9, 0, report("run-2", 2))  # it was not
    assert living(made) == [OWN, "run-2"]


def test_many_that_fall_silent_at_once_are_not_suspected() -> None:
    made = fold([report(OWN), report("run-2"), report("run-3"), report("run-4")])
    for number in range(2, SILENT_REPORTS + 1):
        made.take(10 + number, 0, report("run-4", number))
        made.take(10 + number, 0, report(OWN, number))
    assert made.view().is_suspecting and len(made.view().living) == 4
    for number in range(SILENT_REPORTS + 1, SILENT_REPORTS + 1 + PATIENT_REPORTS):
        made.take(10 + number, 0, report("run-4", number))
        made.take(10 + number, 0, report(OWN, number))
        assert living(made) == [OWN, "run-4"] and not made.view().is_suspecting
    made.take(99, 0, report(OWN, SILENT_REPORTS + 1 + PATIENT_REPORTS))
    assert made.view().is_suspecting


def test_one_that_falls_silent_is_suspected_and_so_are_those_of_former_days() -> None:
    one = fold([report(OWN), report("run-2"), report("run-3"), report(OWN, 2)])
    long_ago = fold([report("run-2"), report("run-3"), report("run-4")])
    for number in range(3, 3 + SILENT_REPORTS):
        one.take(10 + number, 0, report("run-3", number))
        one.take(10 + number, 0, report(OWN, number))
        long_ago.take(10 + number, 0, report(OWN, number))
    assert one.view().is_suspecting and one.silent.keys() == {"run-2"}
    for number in range(7, 10):
        long_ago.take(10 + number, 0, report(OWN, number))
    assert long_ago.view().is_suspecting and len(long_ago.silent) == 3


def test_whose_clock_is_off_is_nobodys_heir() -> None:
    """By the topic's clock, which has a vote: of two that differ one is right."""
    made = fold([report(OWN), report("run-2", wall_ms=5_001), report("run-3", wall_ms=5_000)])
    assert {m.owner: m.may_inherit for m in made.view().living} == {
        OWN: True,
        "run-2": True,
        "run-3": True,
    }
    made.take(9, 0, report("run-3", 2, wall_ms=0))
    assert {m.owner: m.may_inherit for m in made.view().living} == {
        OWN: True,
        "run-2": False,
        "run-3": True,
    }
    alone = fold([replace(report(OWN), wall_ms=60_000)])
    assert not alone.view().living[0].may_inherit
