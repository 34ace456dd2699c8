"""The verifier's judgement: legal histories are clean, each wrong step is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.core.anomalies import (
    Acknowledged,
    Anomaly,
    AnomalyKind,
    Event,
    Forgotten,
    Judge,
    Settled,
)
from sluice.core.records import Kind
from tests.core.histories import SOURCE, TABLES, TEXTS, Writer, instance, legal_histories

LEDGER = st.booleans()
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def judged(writer: Writer, *, complete: bool = True) -> list[Anomaly]:
    return judged_events(writer.events, ledger=writer.ledger, complete=complete)


def judged_events(events: list[Event], *, ledger: bool, complete: bool = True) -> list[Anomaly]:
    judge = Judge(lambda *_: TABLES, has_receipts=ledger, complete=complete)
    return [anomaly for event in events for anomaly in judge.take(event)]


def kinds(anomalies: list[Anomaly]) -> set[str]:
    return {anomaly.kind.value for anomaly in anomalies}


@PATIENT
@given(LEDGER.flatmap(legal_histories))
def test_a_legal_history_is_clean(writer: Writer) -> None:
    assert judged(writer) == []


@PATIENT
@given(LEDGER.flatmap(lambda ledger: legal_histories(ledger, min_steps=3)), st.data())
def test_a_history_that_begins_anywhere_is_clean(writer: Writer, data: st.DataObject) -> None:
    """Compaction and retention remove the oldest part."""
    events = writer.events[data.draw(st.integers(0, len(writer.events) - 1)) :]
    assert judged_events(events, ledger=writer.ledger, complete=False) == []


@pytest.mark.parametrize("ledger", [True, False])
def test_ranges_of_bundles_are_judged_as_those_alone(ledger: bool) -> None:
    """One is given back, the next one loaded; of the third a probe says what is missing."""
    writer, bundle = Writer(ledger), "0123456789abcdef.7"
    together = {"kind": Kind.INTEND, "begin": 100, "end": 110, "attempt": 1, "bundle": bundle}
    writer.write(writer.follow(**together))
    writer.write(writer.follow(kind=Kind.SETTLE, end=100, attempt=0, bundle=""))
    writer.write(writer.follow(**together))
    writer.loaded()
    writer.write(writer.follow(**together | {"begin": 110, "end": 120}))
    writer.rest = dict.fromkeys(TABLES, 4)
    probe = {"kind": Kind.PROBE, "attempt": 2, "rest": "0123456789ab", "bundle": ""}
    writer.write(writer.follow(**probe))
    writer.loaded()
    writer.write(writer.follow(kind=Kind.SETTLE, begin=120, end=120, attempt=0, rest=""))
    assert judged(writer) == []


@pytest.mark.parametrize("token", ["p/bundle/dc1/another.2/t/s1", "p/0/dc1/x/t/s1/100-110"])
def test_a_receipt_of_another_bundle_is_noticed(token: str) -> None:
    writer = Writer(True)
    range_of_it = {"kind": Kind.INTEND, "begin": 100, "end": 110, "attempt": 1}
    writer.write(writer.follow(**range_of_it, bundle="0123456789abcdef.7"))
    writer.receipt(TABLES[0], 10, token=token)
    writer.settled(10, 10, 0, {})
    writer.write(writer.follow(kind=Kind.SETTLE, begin=110, end=110, attempt=0, bundle=""))
    assert judged(writer) != []


# Mutations: a legal history, then one wrong step. Each gives what it must be called.


def gap(writer: Writer, by: int) -> None:
    begin = writer.record.end + by
    writer.loaded()
    writer.write(writer.follow(kind=Kind.INTEND, begin=begin, end=begin + 5, attempt=1, rest=""))


def settled_beyond(writer: Writer, by: int) -> None:
    at = writer.record.end + by
    writer.loaded()
    writer.write(writer.follow(kind=Kind.SETTLE, begin=at, end=at, attempt=0, rest=""))


def overlap(writer: Writer, by: int) -> None:
    begin = max(writer.record.begin + 1, writer.record.end - by)
    writer.write(writer.follow(kind=Kind.INTEND, begin=begin, end=begin + 100, attempt=1, rest=""))


def longer(writer: Writer, by: int) -> None:
    writer.write(writer.follow(kind=Kind.RENEW, end=writer.record.end + by))


def cut_otherwise(writer: Writer, by: int) -> None:
    end = max(writer.record.begin + 1, writer.record.end - by)
    writer.write(writer.follow(kind=Kind.INTEND, end=end, attempt=1, rest=""))


def settled_in_the_middle(writer: Writer, by: int) -> None:
    at = max(writer.record.begin + 1, writer.record.end - by)
    writer.write(writer.follow(kind=Kind.SETTLE, begin=at, end=at, attempt=0, rest=""))


def backward(writer: Writer, by: int) -> None:
    end = writer.record.begin
    begin = max(0, end - by)
    writer.write(writer.follow(kind=Kind.INTEND, begin=begin, end=end, attempt=1, rest=""))


def settled_back(writer: Writer, by: int) -> None:
    at = max(0, writer.record.begin - by)
    writer.write(writer.follow(kind=Kind.SETTLE, begin=at, end=at, attempt=0, rest=""))


def adopted_back_without_a_generation(writer: Writer, by: int) -> None:
    at = max(0, writer.record.begin - by)
    record = writer.follow(kind=Kind.SETTLE, begin=at, end=at, attempt=0, rest="")
    writer.write(replace(record, owner="operator-x"), f"adopt --offset {at}")


def without_a_take_over(writer: Writer, by: int) -> None:
    writer.loaded()
    begin = writer.record.end
    record = writer.follow(kind=Kind.INTEND, begin=begin, end=begin + by, attempt=1, rest="")
    writer.write(replace(record, owner="run-other"))


def old_batch(writer: Writer, by: int) -> None:
    writer.write(writer.follow(kind=Kind.RENEW, batch=max(0, writer.record.batch - by)))


def another_topic(writer: Writer, by: int) -> None:
    writer.write(writer.follow(kind=Kind.RENEW, topic_id="zzzzzzzzzzz"))


def new_generation_by_a_driver(writer: Writer, by: int) -> None:
    writer.write(writer.follow(kind=Kind.RENEW, generation=writer.record.generation + 1))


def no_record(writer: Writer, by: int) -> None:
    commit = replace(instance(writer.record, 9999), record=None, metadata="", problem="no record")
    writer.events.append(commit)


def other_spec(writer: Writer, by: int) -> None:
    # A range that a driver intended: the load spec must not change while it is in doubt.
    writer.settle()
    writer.intend(by)
    other = TEXTS[1] if writer.record.spec == TEXTS[0] else TEXTS[0]
    writer.write(writer.follow(kind=Kind.RENEW, spec=other))


def renewed_though_settled(writer: Writer, by: int) -> None:
    writer.settle()
    end = writer.record.end
    writer.write(writer.follow(kind=Kind.PROBE, begin=end, end=end + by, attempt=1, rest="aa"))


MUTATIONS: dict[Callable[[Writer, int], None], AnomalyKind] = {
    gap: AnomalyKind.GAP,
    settled_beyond: AnomalyKind.GAP,
    overlap: AnomalyKind.OVERLAP,
    longer: AnomalyKind.OVERLAP,
    cut_otherwise: AnomalyKind.OVERLAP,
    settled_in_the_middle: AnomalyKind.OVERLAP,
    backward: AnomalyKind.BACKWARD,
    settled_back: AnomalyKind.BACKWARD,
    adopted_back_without_a_generation: AnomalyKind.BACKWARD,
    without_a_take_over: AnomalyKind.FOREIGN,
    old_batch: AnomalyKind.FOREIGN,
    another_topic: AnomalyKind.FOREIGN,
    new_generation_by_a_driver: AnomalyKind.FOREIGN,
    no_record: AnomalyKind.FOREIGN,
    other_spec: AnomalyKind.STEP,
    renewed_though_settled: AnomalyKind.STEP,
}


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@PATIENT
@given(ledger=LEDGER, by=st.integers(1, 20), data=st.data())
def test_a_wrong_step_is_called_what_it_is(
    mutate: Callable[[Writer, int], None], ledger: bool, by: int, data: st.DataObject
) -> None:
    writer = data.draw(legal_histories(ledger))
    writer.intend(25)
    writer.intend(50)  # something is in doubt, and offsets lie before it
    legal = len(writer.events)
    mutate(writer, by)
    found = judged(writer)
    of_ranges = {k.value for k in (AnomalyKind.BACKWARD, AnomalyKind.OVERLAP, AnomalyKind.GAP)}
    expected = MUTATIONS[mutate].value
    assert kinds(found) & (of_ranges | {"foreign", "step"}) == {expected}, found
    assert judged_events(writer.events[:legal], ledger=ledger) == []
    (first, *_) = found
    assert first.tables == TABLES
    assert first.after.place.offset >= 10 * legal
    assert first.before is not None and first.before.record is not None


@PATIENT
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
@given(ledger=LEDGER, by=st.integers(1, 20), data=st.data())
def test_tables_that_the_file_does_not_have_change_no_judgement(
    mutate: Callable[[Writer, int], None], ledger: bool, by: int, data: st.DataObject
) -> None:
    """As of a version that was applied since the verifier has started: a load spec of the ledger
    names them, and without one nobody does."""
    writer = data.draw(legal_histories(ledger))
    writer.intend(25)
    writer.intend(50)
    mutate(writer, by)
    judge = Judge(lambda *_: (), has_receipts=ledger, complete=True)
    found = [anomaly for event in writer.events for anomaly in judge.take(event)]
    assert [replace(each, tables=()) for each in found] == [
        replace(each, tables=()) for each in judged(writer)
    ]
    has_spec = ledger and found[0].after.record is not None
    assert found[0].tables == (TABLES if has_spec else ())


@PATIENT
@given(legal_histories(True), st.sampled_from(["", "lost", "rows", "shard"]))
def test_the_blocks_of_all_shards_are_counted_together(writer: Writer, how: str) -> None:
    """A receipt for each shard; only their sum accounts for the messages."""
    writer.settle()
    writer.intend(25)
    mark = len(writer.events)
    writer.settle(bad=3)
    at = next(n for n, e in enumerate(writer.events) if n >= mark and isinstance(e, Acknowledged))
    whole = writer.events[at]
    assert isinstance(whole, Acknowledged)
    first = replace(whole, rows=5, messages=5)
    token = whole.token.replace("/s1/", "/s2/")
    rest = whole.rows - 5
    second = replace(whole, shard="s2", token=token, rows=rest, messages=rest)
    if how == "rows":
        second = replace(second, rows=rest - 1, messages=rest - 1)
    elif how == "shard":
        second = replace(second, shard="s1")
    writer.events[at : at + 1] = [first] if how == "lost" else [first, second]
    assert kinds(judged(writer)) == ({"count"} if how else set())


@PATIENT
@given(legal_histories(True), st.sampled_from(["rows", "settle", "twice", "lost", "table"]))
def test_a_wrong_count_is_called_what_it_is(writer: Writer, how: str) -> None:
    writer.settle()
    writer.intend(25)
    mark = len(writer.events)
    writer.settle(bad=3)
    events = writer.events
    receipts = [n for n, e in enumerate(events) if n >= mark and isinstance(e, Acknowledged)]
    (settle,) = (n for n, e in enumerate(events) if n >= mark and isinstance(e, Settled))
    assert judged(writer) == [] and len(receipts) == 2
    receipt = events[receipts[0]]
    assert isinstance(receipt, Acknowledged)
    if how == "rows":
        events[receipts[0]] = replace(receipt, rows=receipt.rows - 1, messages=receipt.rows - 1)
    elif how == "settle":
        del events[settle]
    elif how == "twice":
        events.insert(settle, events[settle])
    elif how == "lost":
        del events[receipts[0]]
    else:
        events[receipts[0]] = replace(receipt, entry="nowhere")
    found = judged(writer)
    assert kinds(found) == {"count"}
    if how in ("rows", "lost"):
        assert (TABLES[0],) in [anomaly.tables for anomaly in found], found


def test_a_receipt_of_another_range_is_noticed() -> None:
    writer = Writer(ledger=True)
    writer.intend(10)
    writer.receipt("orders", 10, begin=50, end=60)
    writer.loaded()
    writer.write(writer.follow(kind=Kind.SETTLE, begin=110, end=110, attempt=0))
    (anomaly,) = judged(writer)
    assert anomaly.kind is AnomalyKind.COUNT
    assert "[50, 60)" in anomaly.what and anomaly.tables == ("orders",)


def test_a_probe_may_load_no_more_than_was_missing() -> None:
    writer = Writer(ledger=True)
    writer.intend(10)
    writer.probe(4)
    writer.receipt("orders", 5)
    writer.settled(10, 5, 0, {})
    writer.write(writer.follow(kind=Kind.SETTLE, begin=110, end=110, attempt=0, rest=""))
    (anomaly,) = judged(writer)
    assert anomaly.kind is AnomalyKind.COUNT
    assert anomaly.what == "5 rows and 0 dead letters of 4 offsets that were missing"


def test_a_spec_that_the_ledger_lacks_is_noticed() -> None:
    writer = Writer(ledger=True)
    writer.record = replace(writer.record, spec="f" * 16)
    writer.intend(10)
    writer.intend(10)
    (anomaly,) = judged(writer)
    assert anomaly.kind is AnomalyKind.STEP and "is not in the ledger" in anomaly.what
    assert judged(writer, complete=False) == []


def test_a_decision_without_a_reason_is_not_believed() -> None:
    writer = Writer(ledger=True)
    writer.write(writer.follow(begin=150, end=150, owner="operator-1"))
    (anomaly,) = judged(writer)
    assert anomaly.kind is AnomalyKind.FOREIGN and "no reason" in anomaly.what
    # The offsets topic never says why.
    other = Writer(ledger=False)
    other.write(other.follow(begin=150, end=150, owner="operator-1"))
    assert judged(other) == []


def test_what_an_operator_does_not_do() -> None:
    writer = Writer(ledger=False)
    writer.write(writer.follow(kind=Kind.INTEND, begin=100, end=110, attempt=1, owner="operator-1"))
    assert kinds(judged(writer)) == {"step"}


def test_a_history_begins_with_a_settle() -> None:
    writer = Writer(ledger=False)
    writer.intend(10)
    del writer.events[0]
    (anomaly,) = judged(writer)
    assert anomaly.kind is AnomalyKind.STEP and anomaly.before is None
    assert judged(writer, complete=False) == []


def test_the_same_commit_again_changes_nothing_in_the_group() -> None:
    writer = Writer(ledger=False)
    writer.intend(10)
    writer.events.append(replace(writer.events[-1]))
    assert judged(writer) == []
    ledger = Writer(ledger=True)
    ledger.intend(10)
    ledger.events.append(replace(ledger.events[-1]))
    assert "foreign" in kinds(judged(ledger)), "the ledger has each record once"


def test_a_driver_may_begin_anew_after_offset_and_ledger_are_gone() -> None:
    writer = Writer(ledger=False)
    writer.intend(10)
    place = writer.events[-1]
    writer.events.append(Forgotten("dc1", SOURCE, place.place, 0))
    new = replace(writer.follow(batch=1, owner="run-9"), kind=Kind.SETTLE, begin=0, end=0)
    writer.write(new)
    assert judged(writer) == []
    # Without the tombstone it is an anomaly.
    del writer.events[-2]
    assert kinds(judged(writer)) == {"backward", "foreign"}


def test_steps_are_counted() -> None:
    writer = Writer(ledger=True)
    writer.intend(10)
    writer.renew()
    writer.intend(20, bad=1)
    writer.take_over(TEXTS[1])
    writer.decide(110)
    judge = Judge(lambda *_: TABLES, has_receipts=True, complete=True)
    assert [anomaly for event in writer.events for anomaly in judge.take(event)] == []
    chain = judge.chains["dc1", SOURCE]
    assert chain.steps == {"settle": 3, "intend": 2, "renew": 2, "take-over": 2, "decision": 1}
    assert chain.messages == 10
    assert chain.rows == {"orders": 9, "copies": 9}
