"""adopt and rewind on a real broker: what is planned, what is refused, what is committed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluice.core.errors import ConfigurationError, OwnerChangedError, TransientError
from sluice.core.ledger import Background
from sluice.core.records import Kind
from sluice.kafka import transactions as transactions_module
from sluice.machine.clock import now_ms
from sluice.ops import partitions as partitions_module
from sluice.ops.driver_decisions import DecisionRefusedError
from sluice.ops.partition_decisions import situation
from sluice.ops.partition_decisions.carrying_out import ChangedSinceError, apply
from sluice.ops.partition_decisions.positions import plan_adopt, plan_rewind
from sluice.ops.partition_decisions.resolving import plan_resolve
from sluice.ops.partition_decisions.situation import Decider, LeaseRunsError, Plan
from tests.kafka.groups import intend
from tests.ops.pipelines import Pipeline, settled
from tests.support.kafka import Kafka


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka, tmp_path)
    made.fill(100)
    yield made
    made.close()


def adopt(pipeline: Pipeline, offset: int, *partitions: int, take_over: bool = False) -> Plan:
    selection = pipeline.select(*partitions, take_over=take_over)
    return plan_adopt(pipeline.configuration, selection, offset=offset)


def rewind(pipeline: Pipeline, to: int | datetime, *partitions: int) -> Plan:
    return plan_rewind(pipeline.configuration, pipeline.select(*partitions), to=to)


def said(plan: Plan) -> str:
    return "\n".join(plan.steps)


def test_a_decision_is_about_what_is_configured_and_says_who_decides(pipeline: Pipeline) -> None:
    configuration, selection = pipeline.configuration, pipeline.select()
    with pytest.raises(ConfigurationError, match='none is named "dc9"'):
        plan_adopt(configuration, replace(selection, connector="dc9"), offset=0)
    with pytest.raises(ConfigurationError, match='"bids" is not among them') as caught:
        plan_adopt(configuration, replace(selection, topic="bids"), offset=0)
    assert pipeline.topic in caught.value.hint
    with pytest.raises(DecisionRefusedError, match="the reason is missing"):
        plan_adopt(configuration, selection, offset=0, decider=Decider("alice", " "))
    decider = Decider("alice", "a new beginning")
    apply(configuration, plan_adopt(configuration, selection, offset=0, decider=decider))
    assert pipeline.record().begin == 0
    assert pipeline.ledger_bodies("record")[-1]["why"] == (
        "adopt --offset 0, by alice: a new beginning"
    )


def test_adopt_forward_keeps_the_generation(pipeline: Pipeline) -> None:
    driver = pipeline.drive(settled(40, batch=7, generation=2))
    plan = adopt(pipeline, 60)
    where = f"{pipeline.topic}[0]"
    assert plan.steps[0].startswith(f"{where}: from settled at 40 to settled at 60, generation 2")
    assert "offsets [40, 60) are skipped" in said(plan)
    assert "loaded again" not in said(plan)
    assert "status 4" in plan.steps[-1] and "driver" in plan.steps[-1]
    assert pipeline.record().begin == 40, "planning changes nothing"
    apply(pipeline.configuration, plan)
    record = pipeline.record()
    assert (record.kind, record.begin, record.end) == (Kind.SETTLE, 60, 60)
    assert (record.generation, record.batch, record.topic_id) == (2, 8, pipeline.topic_id)
    assert record.owner == plan.operator and record.owner.startswith("operator-")
    last = pipeline.ledger_bodies("record")[-1]
    assert last["why"] == "adopt --offset 60" and last["begin"] == 60
    with pytest.raises(OwnerChangedError):  # the command ends with status 4
        driver.record(pipeline.commit(intend("driver", 40, 50)), {})
    assert pipeline.record() == record


def test_a_driver_goes_on_from_what_was_decided(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    apply(pipeline.configuration, adopt(pipeline, 60))
    following = pipeline.drive(intend("", 60, 80), owner="next")
    following.record(pipeline.commit(intend("next", 80, 90)), {})
    assert pipeline.record().begin == 80


def test_adopt_backwards_raises_the_generation_and_says_what_doubles(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    plan = adopt(pipeline, 10)
    assert "generation 1" in plan.steps[0]
    assert "rows of offsets [10, 40)" in said(plan)
    assert (
        f"ALTER TABLE shop.orders DELETE WHERE _topic = '{pipeline.topic}' AND _partition = 0 "
        "AND _offset >= 10" in said(plan)
    )
    assert "cannot be probed" in said(plan)
    apply(pipeline.configuration, plan)
    assert (pipeline.record().begin, pipeline.record().generation) == (10, 1)


def test_adopt_inside_a_range_in_doubt(pipeline: Pipeline) -> None:
    pipeline.drive(intend("", 40, 60, deadline_ms=1))
    plan = adopt(pipeline, 50)
    assert "from [40, 60) in doubt to settled at 50, generation 1" in plan.steps[0]
    assert "offsets [40, 50) are skipped" in said(plan)
    assert "rows of offsets [50, 60)" in said(plan)
    assert "no ClickHouse server answers: only this machine's clock says" in said(plan)


def test_adopt_after_a_foreign_commit(pipeline: Pipeline) -> None:
    driver = pipeline.drive(settled(40))
    pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 3)
    plan = adopt(pipeline, 40)
    assert "from offset 3 that someone else committed to settled at 40" in plan.steps[0]
    apply(pipeline.configuration, plan)
    assert (pipeline.record().begin, pipeline.record().generation) == (40, 0)
    with pytest.raises(OwnerChangedError):  # found in the ledger, and fenced
        driver.record(pipeline.commit(intend("driver", 40, 50)), {})


def test_adopt_where_only_foreign_hands_were(pipeline: Pipeline) -> None:
    pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 3)
    plan = adopt(pipeline, 0)
    assert "nothing is known of what was loaded before" in said(plan)
    apply(pipeline.configuration, plan)
    assert (pipeline.record().begin, pipeline.record().spec) == (0, "")


def test_adopt_after_lost_offsets(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    pipeline.kafka.admin.delete_consumer_groups([pipeline.name])[pipeline.name].result(20)
    plan = adopt(pipeline, 40)
    assert "from no offset (the ledger's last record: settled at 40)" in plan.steps[0]
    apply(pipeline.configuration, plan)
    assert pipeline.record().begin == 40


@pytest.mark.parametrize("how", ["lost", "foreign"])
def test_a_range_in_doubt_that_the_group_lost_is_put_back(pipeline: Pipeline, how: str) -> None:
    """Settling at its begin could double it, and settling at its end could lose it."""
    background = Background({"orders/s1": 9}, 5, {"orders": ((41, 44),)}, 1000)
    lost = intend("", 40, 60, deadline_ms=1, rest="0123456789ab", reservation=3)
    pipeline.drive(lost, background=background)
    if how == "lost":
        pipeline.kafka.admin.delete_consumer_groups([pipeline.name])[pipeline.name].result(20)
    else:
        pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 3)
    plan = adopt(pipeline, 40)
    assert "back to the ledger's last record, [40, 60) in doubt" in said(plan)
    apply(pipeline.configuration, plan)
    record = pipeline.record()
    assert (record.kind, record.begin, record.end) == (Kind.RENEW, 40, 60)
    assert (record.deadline_ms, record.rest, record.reservation) == (1, "0123456789ab", 3)
    body = pipeline.ledger_bodies("record")[-1]
    assert (body["insert_counters"], body["rest"]) == ({"orders/s1": 9}, {"orders": [[41, 44]]})


def test_adopt_a_topic_that_was_made_again(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    old = pipeline.topic_id
    pipeline.kafka.delete_topic(pipeline.topic)
    pipeline.kafka.topic(name=pipeline.topic)
    pipeline.fill(5)
    plan = adopt(pipeline, 0)
    assert "the topic was created again" in said(plan)
    apply(pipeline.configuration, plan)
    record = pipeline.record()
    assert (record.begin, record.generation) == (0, 1)
    assert record.topic_id == pipeline.topic_id != old


def test_adopt_works_without_a_ledger(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    pipeline.kafka.delete_topic(pipeline.ledger)
    apply(pipeline.configuration, adopt(pipeline, 40))
    assert pipeline.record().begin == 40
    assert len(pipeline.ledger_bodies("record")) == 1


@pytest.mark.parametrize(
    ("offset", "message", "hint"),
    [
        (29, r"offset 29 is gone: the log of .* holds \[30, 100\)", "30"),
        (101, r"offset 101 is not there yet: the log of .* holds \[30, 100\)", "100"),
    ],
)
def test_offsets_that_the_log_does_not_hold_are_refused(
    pipeline: Pipeline, offset: int, message: str, hint: str
) -> None:
    pipeline.drive(settled(40))
    pipeline.kafka.delete_records(pipeline.topic, 30)
    with pytest.raises(DecisionRefusedError, match=message) as caught:
        adopt(pipeline, offset)
    assert hint in caught.value.hint
    for edge in (30, 100):
        adopt(pipeline, edge)


def test_there_is_no_such_partition(pipeline: Pipeline) -> None:
    with pytest.raises(DecisionRefusedError, match="has 1 partitions"):
        adopt(pipeline, 0, 0, 1)


def test_a_running_lease_is_respected_unless_taken_over(pipeline: Pipeline) -> None:
    deadline_ms = now_ms() + 600_000
    running = intend("", 40, 60, deadline_ms=deadline_ms)
    pipeline.drive(running, background=Background({"orders/s1": 9}))
    with pytest.raises(LeaseRunsError, match=r"lease of driver on \[40, 60\) runs until") as caught:
        adopt(pipeline, 60)
    assert "--take-over" in caught.value.hint
    with pytest.raises(LeaseRunsError):
        rewind(pipeline, 5)
    for outcome in ("loaded", "not-loaded", "probe"):
        with pytest.raises(LeaseRunsError):
            plan_resolve(pipeline.configuration, pipeline.select(), outcome=outcome)
    plan = adopt(pipeline, 60, take_over=True)
    assert "tasks of driver may still insert [40, 60) until" in said(plan)
    apply(pipeline.configuration, plan)
    assert pipeline.record().begin == 60
    (late_insert,) = pipeline.ledger_bodies("late_insert")
    assert (late_insert["begin"], late_insert["end"], late_insert["insert_counters"]) == (
        40,
        60,
        {"orders/s1": 9},
    )
    assert late_insert["deadline_ms"] == deadline_ms


def test_a_lease_counts_until_its_grace_is_over(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline_ms = now_ms()
    monkeypatch.setattr(situation, "now_ms", lambda: deadline_ms + 2000)
    pipeline.drive(intend("", 40, 60, deadline_ms=deadline_ms))
    with pytest.raises(LeaseRunsError):
        adopt(pipeline, 60)


def test_an_open_transaction_is_waited_for(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "OPEN_PATIENCE_SECONDS", 0.3)
    driver = pipeline.drive(settled(40))
    producer = driver.own_producer()
    producer.begin_transaction()
    (part,) = transactions_module._split({pipeline.sources[0]: intend("driver", 40, 50)})
    metadata = driver._reader.consumer_group_metadata()
    producer.send_offsets_to_transaction(part, metadata, 10)
    with pytest.raises(TransientError, match="a transaction on group"):
        adopt(pipeline, 60)
    producer.abort_transaction(10)


def test_a_plan_that_is_out_of_date_does_nothing(pipeline: Pipeline) -> None:
    driver = pipeline.drive(settled(40))
    plan = adopt(pipeline, 60)
    moved = replace(intend("driver", 40, 50), topic_id=pipeline.topic_id)
    driver.record(pipeline.commit(moved), {})
    with pytest.raises(ChangedSinceError, match="changed since the plan") as caught:
        apply(pipeline.configuration, plan)
    assert "Nothing was done" in caught.value.hint
    assert pipeline.record() == moved
    driver.record(pipeline.commit(intend("driver", 50, 60)), {})  # it was not even fenced


def test_a_plan_is_carried_out_once(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    plan = adopt(pipeline, 60)
    apply(pipeline.configuration, plan)
    with pytest.raises(ChangedSinceError):
        apply(pipeline.configuration, plan)


def test_several_partitions_of_several_owners(kafka: Kafka, tmp_path: Path) -> None:
    pipeline = Pipeline(kafka, tmp_path, partitions=3)
    for partition in range(3):
        pipeline.fill(50, partition)
    pipeline.drive(settled(10), owner="a")
    pipeline.drive(settled(20), owner="b", partition=1)
    plan = adopt(pipeline, 30, 0, 1)
    assert "runs as a or b" in plan.steps[-1]
    apply(pipeline.configuration, plan)
    assert [pipeline.record(partition).begin for partition in (0, 1)] == [30, 30]
    assert pipeline.committed(2) is None
    pipeline.close()


def test_rewind_to_an_offset(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    plan = rewind(pipeline, 15)
    assert "to settled at 15, generation 1" in plan.steps[0]
    assert "rows of offsets [15, 40)" in said(plan) and "ALTER TABLE shop.orders" in said(plan)
    apply(pipeline.configuration, plan)
    assert (pipeline.record().begin, pipeline.record().generation) == (15, 1)
    assert pipeline.ledger_bodies("record")[-1]["why"] == "rewind --to 15"
    apply(pipeline.configuration, rewind(pipeline, 3))
    assert (pipeline.record().begin, pipeline.record().generation) == (3, 2)


def test_rewind_from_a_range_in_doubt_names_all_of_it(pipeline: Pipeline) -> None:
    pipeline.drive(intend("", 40, 60, deadline_ms=1))
    assert "rows of offsets [15, 60)" in said(rewind(pipeline, 15))


@pytest.mark.slow
def test_rewind_to_a_time(kafka: Kafka, tmp_path: Path) -> None:
    """Of two partitions one has nothing as young below its position, and stays."""
    pipeline = Pipeline(kafka, tmp_path, partitions=2)
    pipeline.fill(10)
    pipeline.fill(10, partition=1)
    time.sleep(0.02)
    moment = datetime.now(UTC)
    pipeline.fill(10)
    pipeline.drive(settled(20))
    pipeline.drive(settled(10), partition=1)
    plan = rewind(pipeline, moment, 0, 1)
    assert f"{pipeline.topic}[1]: stays as it is" in said(plan)
    apply(pipeline.configuration, plan)
    assert (pipeline.record().begin, pipeline.record(1).begin) == (10, 10)
    assert (pipeline.record().generation, pipeline.record(1).generation) == (1, 0)
    with pytest.raises(DecisionRefusedError, match="nothing to rewind"):
        rewind(pipeline, moment + timedelta(hours=1), 0, 1)
    pipeline.close()


def test_rewind_goes_back_only(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    for offset in (40, 41):
        with pytest.raises(DecisionRefusedError, match="is not before that") as caught:
            rewind(pipeline, offset)
        assert "sluice adopt" in caught.value.hint
    pipeline.kafka.delete_records(pipeline.topic, 30)
    with pytest.raises(DecisionRefusedError, match="offset 29 is gone"):
        rewind(pipeline, 29)


def test_rewind_needs_a_record_to_go_back_from(pipeline: Pipeline) -> None:
    pipeline.drive(settled(40))
    pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 50)
    with pytest.raises(DecisionRefusedError, match="someone else committed") as caught:
        rewind(pipeline, 5)
    assert "sluice adopt" in caught.value.hint
