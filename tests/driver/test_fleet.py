"""Members of a fleet at a real broker: who hears whom, and who may start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.core.errors import ConfigurationError, OwnerChangedError
from sluice.core.fleet.floors import Share
from sluice.core.fleet.placement import owner_id
from sluice.core.fleet.records import Report, encode, key_of
from sluice.core.records import GENESIS
from sluice.driver import fleet as fleet_module
from sluice.driver.connector import ConnectorRun
from sluice.driver.fleet import refuse_beside_fleet
from sluice.driver.inheriting import SharesRead
from sluice.kafka import fleet as topic_module
from sluice.kafka.errors import KafkaRefusedError, KafkaUnavailableError
from sluice.kafka.fleet import FleetTopic
from sluice.kafka.topics import FLEET_TOPIC_SETTINGS, describe_topic
from sluice.spark.jobs import SparkJobs
from tests.config.support import MINIMAL, load_text
from tests.driver.fleet_driver import Driver, read
from tests.support.kafka import Kafka
from tests.support.world import wait_for

#: Of a member beside which nobody may start: its next report is waited for.
PATIENT_SECONDS = 4.0
WINDOW = "d.t/s1"
#: Why a driver shares no partitions.
ALONE = "a table deduplicates"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(fleet_module, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(topic_module, "_IDENTIFY_SECONDS", 0.3)


Start = Callable[..., Driver]


@pytest.fixture
def topic(kafka: Kafka) -> str:
    return f"sluice.{time.monotonic_ns()}.fleet"


@pytest.fixture
def start(kafka: Kafka, topic: str) -> Iterator[Start]:
    made: list[Driver] = []

    def begin(name: str, owner: str, **more: Any) -> Driver:
        made.append(Driver(kafka, topic, name, owner, **more))
        return made[-1].start()

    yield begin
    for each in made:
        each.stop()


@pytest.mark.slow
def test_members_hear_of_each_other(kafka: Kafka, topic: str, start: Start) -> None:
    first = start("a", "run-1")
    wait_for(lambda: first.member.view().number >= 2, 60, "two reports")
    assert first.share is None and first.windows.current() is first.world.current()
    facts = describe_topic(kafka.admin, topic)
    assert facts is not None and facts.partitions == 1
    assert {n: facts.settings[n] for n in FLEET_TOPIC_SETTINGS} == FLEET_TOPIC_SETTINGS
    report = read(kafka, topic)["run-1"]
    assert report.floors == {WINDOW: 0} and report.partitions == 1 and report.slots == 2
    assert (report.member, report.data_center, report.boot) == ("a", "east", "b1")
    first.goes = False
    second = start("b", "run-2")
    assert second.share == Share(None, 0, 2)  # before the first one has counted it
    first.goes = True
    wait_for(lambda: first.living == second.living == ["run-1", "run-2"], 60, "both")
    wait_for(lambda: first.share is not None, 60, "the first one's share")
    wait_for(
        lambda: second.share is not None and second.share.floor == 0, 60, "the second one's share"
    )
    assert read(kafka, topic)["run-1"].counted.keys() == {"run-2"}
    second.goes = False
    wait_for(lambda: first.living == ["run-1"], 60, "the second one's silence")
    wait_for(lambda: not second.member.is_fresh, 60, "that it hears nothing of itself")
    assert first.member.view().silent == ("run-2",) and first.share is not None
    second.goes = True
    wait_for(lambda: first.living == ["run-1", "run-2"], 60, "the second one's return")


def test_a_member_counts_the_busy_partitions_that_its_own_report_names(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """Of those that another one has said before, it has one: no minute has to be measured."""
    made = FleetTopic(kafka.access(), topic, is_made=True)
    made.send(Report("run-2", "b", 1, members_max=2, busy={"a/0": 3, "a/7": 1}))
    assert made.flush(10)
    made.close()
    assert Driver(kafka, topic, "a", "run-1").member.busy_partitions == 0  # it has not reported
    first = start("a", "run-1")
    wait_for(lambda: first.member.busy_partitions == 1, 60, "its own report")
    assert read(kafka, topic)["run-1"].busy == {"a/0": 3}


def test_nobody_is_alone_before_it_has_looked_who_has_records(kafka: Kafka, topic: str) -> None:
    """The topic may have been lost just before, with the reports of all others."""
    first = Driver(kafka, topic, "a", "run-1").start(looks=False)
    try:
        wait_for(lambda: first.member.view().number >= 3, 60, "three reports")
        assert first.share is not None and first.share.floor is None
        began = time.monotonic()
        first.took(SharesRead(alive=frozenset({"run-9"}), unowned=2, elsewhere=3))
        assert (first.member.unowned, first.member.elsewhere) == (2, 3)
        assert first.member.look_age_seconds <= time.monotonic() - began
        first.took(SharesRead(alive=frozenset({"run-9"}), failure="Kafka is away"))
        age = first.member.look_age_seconds
        number = first.member.view().number
        wait_for(lambda: first.member.view().number >= number + 2, 60, "two reports")
        assert first.share is not None and first.share.floor is None
        assert first.member.look_failure == "Kafka is away"
        assert first.member.look_age_seconds > age
        began = time.monotonic()
        first.took(SharesRead(alive=frozenset({"run-1"})))
        assert first.member.look_age_seconds <= time.monotonic() - began
        assert not first.member.look_failure
        wait_for(lambda: first.share is None, 60, "that it is alone")
    finally:
        first.stop()


@pytest.mark.slow
def test_who_may_start(kafka: Kafka, topic: str, start: Start) -> None:
    stopping, alone = threading.Event(), {"why": ALONE, "silent_seconds": PATIENT_SECONDS}
    refuse_beside_fleet(kafka.access(), topic, stopping)  # there is no such topic
    first = start("a", "run-1", **alone)
    with pytest.raises(ConfigurationError, match=ALONE):
        start("b", "run-2", **alone)
    with pytest.raises(ConfigurationError, match="runs on another machine as run-1"):
        start("a", "run-2", boot="b2", **alone)
    with pytest.raises(ConfigurationError, match="no section"):
        refuse_beside_fleet(kafka.access(), topic, stopping)
    assert read(kafka, topic).keys() == {"run-1"}
    second = start("a", "run-2", **alone)  # on this machine: that one is fenced
    first.stop()
    assert second.share is None
    wait_for(lambda: read(kafka, topic).keys() == {"run-2"}, 60, "the first one's end")
    wait_for(lambda: second.living == ["run-2"], 60, "that the second one has read of it")
    assert second.share is None
    second.stop()
    third = start("b", "run-3", boot="b2", **alone)  # which waits until that one is silent
    refused = pytest.raises(ConfigurationError, match='the driver "b" reports')
    with refused:
        refuse_beside_fleet(kafka.access(), topic, stopping)
    third.stop()
    refuse_beside_fleet(kafka.access(), topic, stopping)


def test_of_two_that_begin_at_once_the_first_in_the_topic_goes_on(
    kafka: Kafka, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(found: FleetTopic, *_: object) -> None:
        """Somebody else reports between the look and the own report."""
        found.send(Report("run-9", "z", 1))
        assert found.flush(10)

    monkeypatch.setattr(fleet_module, "reporting", looked)
    with pytest.raises(ConfigurationError, match='the driver "z" runs as run-9'):
        start("a", "run-1", why=ALONE)
    assert read(kafka, topic).keys() == {"run-9"}


def test_a_topic_that_is_made_anew_is_read_from_its_beginning(
    kafka: Kafka, topic: str, start: Start
) -> None:
    first = start("a", "run-1")
    wait_for(lambda: first.member.view().number >= 2, 60, "two reports")
    before, _ = kafka.log.topics([topic])[topic]
    kafka.admin.delete_topics([topic])[topic].result(30)

    def is_back() -> bool:
        found = kafka.log.topics([topic], partial=True)
        return topic in found and found[topic][0] != before and "run-1" in read(kafka, topic)

    wait_for(is_back, 60, "a report in the new topic")
    number = first.member.view().number
    wait_for(lambda: first.member.view().number > number, 30, "that it is read back")
    assert first.share is None


def test_what_cannot_be_read_is_passed_over_and_told_once(
    kafka: Kafka, topic: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    first = start("a", "run-1")
    newer = encode(Report("run-7", "g", 1)).replace(b'"version":1', b'"version":2')
    for value in (b"garbage", newer):
        kafka.produce(topic, [(key_of("dc1", "run-7"), value)])
    wait_for(lambda: first.member.unreadable == 2, 60, "both")
    assert sum("no report" in message for message in caplog.messages) == 1
    assert first.living == ["run-1"]


def test_a_topic_that_is_away_stops_no_loop(
    kafka: Kafka, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    first = start("a", "run-1")
    wait_for(lambda: first.member.view().number >= 2, 60, "two reports")
    real, asked, answers = FleetTopic.poll, threading.Event(), threading.Event()

    def poll(self: FleetTopic, timeout_seconds: float) -> Any:
        asked.set()
        answers.wait(60)
        raise KafkaUnavailableError("the broker is away")

    monkeypatch.setattr(FleetTopic, "poll", poll)
    assert asked.wait(60)
    began = time.monotonic()
    first.see()
    assert time.monotonic() - began < 30, "no round waits for the broker"
    answers.set()
    wait_for(lambda: "it goes on loading" in caplog.text, 60, "the warning")
    assert first.share is None
    number = first.member.view().number
    monkeypatch.setattr(FleetTopic, "poll", real)
    wait_for(lambda: first.member.view().number > number, 30, "a report")


def test_a_driver_without_fleet_ends_with_2_beside_one(
    kafka: Kafka, tmp_path: Path, start: Start, topic: str
) -> None:
    start("a", "run-1", silent_seconds=PATIENT_SECONDS)
    text = MINIMAL.replace("localhost:9092", kafka.brokers)
    pipeline = topic.removeprefix("sluice.").removesuffix(".fleet")
    configuration = load_text(tmp_path, text.replace('name = "orders"', f'name = "{pipeline}"', 1))
    assert configuration.fleet_topic == topic
    jobs = Future[SparkJobs]()  # Spark has not started yet
    run = ConnectorRun(
        *(configuration, configuration.connectors[0], jobs, threading.Event()),
        lambda configuration, name: None,
    )
    run.run(until_caught_up=False, grace_seconds=1.0)
    assert run.status == 2 and "It is a member of a fleet" in str(run.error)


def test_an_id_is_written_off_once_nobody_inherits_it_any_more(
    kafka: Kafka, topic: str, start: Start
) -> None:
    first = start("a", "run-1")
    other, dead = Report("run-2", "b", 1, members_max=2), Report("run-3", "c", 1, members_max=2)
    for report in (dead, replace(other, inherits=("run-3",))):
        kafka.produce(topic, [(key_of("dc1", report.owner), encode(report))])
    wait_for(lambda: first.member._counting.known.keys() == {"run-2", "run-3"}, 60, "both")
    first.announce("run-3")
    assert read(kafka, topic)["run-1"].inherits == ("run-3",)
    first.took(SharesRead(inherited=frozenset({"run-3"})))
    first.finds = SharesRead(alive=frozenset({"run-9"}))
    number = first.member.view().number
    wait_for(lambda: first.member.view().number >= number + 3, 60, "three reports")
    assert read(kafka, topic)["run-1"].inherits == ()
    assert "run-3" in read(kafka, topic)  # the other one has not said that it has all of it
    assert first.share == Share(None, 0, 2)  # and nobody knows what run-9 holds
    value = encode(replace(other, number=2))
    kafka.produce(topic, [(key_of("dc1", "run-2"), value)])
    wait_for(lambda: "run-3" not in read(kafka, topic), 60, "its end")


def test_an_id_counts_while_another_heir_may_have_what_it_held(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """The one that comes later finds nothing; the other one has not said its floors yet."""
    first = start("a", "run-1")
    low, high = {WINDOW: 3}, {WINDOW: 50}
    dead = Report("run-3", "c", 1, members_max=2, floors=low)
    other = Report("run-2", "b", 1, members_max=2, floors=high, inherits=("run-3",))
    for report in (dead, other):
        kafka.produce(topic, [(key_of("dc1", report.owner), encode(report))])
    wait_for(lambda: first.member._counting.others.keys() == {"run-2", "run-3"}, 60, "both")
    first.announce("run-3")
    first.took(SharesRead(inherited=frozenset({"run-3"})))
    assert first.member._counting.others.keys() == {"run-2", "run-3"}
    number = first.member.view().number
    wait_for(lambda: first.member.view().number >= number + 3, 60, "three reports")
    assert first.member._counting.others["run-3"].floors == low
    said = replace(other, number=2, floors=low, inherits=())
    kafka.produce(topic, [(key_of("dc1", "run-2"), encode(said))])
    wait_for(
        lambda: first.member._counting.others.keys() == {"run-2"},
        60,
        "the floors that take its place",
    )
    assert first.member._counting.others["run-2"].floors == low


def test_who_reports_while_it_is_taken_over_counts_and_is_not_written_off(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """It may have initialised its id after its heir did, so that nothing fences it (R24)."""
    first = start("a", "run-1")
    slow = Report("run-3", "c", 1, members_max=2, floors={WINDOW: 0})
    kafka.produce(topic, [(key_of("dc1", "run-3"), encode(slow))])
    wait_for(lambda: first.member._counting.known.keys() == {"run-3"}, 60, "its report")
    first.announce("run-3")
    again = replace(slow, number=2)
    kafka.produce(topic, [(key_of("dc1", "run-3"), encode(again))])
    wait_for(lambda: first.member._counting.known["run-3"] == again, 60, "its next report")
    first.took(SharesRead(inherited=frozenset({"run-3"})))
    number = first.member.view().number
    wait_for(lambda: first.member.view().number >= number + 3, 60, "three reports")
    assert (
        first.member._counting.others.keys() == read(kafka, topic).keys() - {"run-1"} == {"run-3"}
    )


def test_an_id_counts_until_its_heir_has_read_what_others_said_before(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """Another heir has announced itself before it took anything, and is not heard yet. Of an id
    without a report nothing is known, so nobody reserves anything meanwhile."""
    first = start("a", "run-1")
    wait_for(lambda: first.share is None, 60, "that it is alone")
    first.goes = False
    first.took(SharesRead(inherited=frozenset({"run-3", GENESIS})))
    assert first.member._has_strangers
    first.goes = True
    wait_for(lambda: not first.member._has_strangers, 60, "a report that came back")
    first.took(SharesRead(inherited=frozenset({GENESIS})))
    assert not first.member._has_strangers


def test_an_id_that_is_written_off_counts_while_its_heir_says_that_it_inherits_it(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """The topic was lost, and with it the report in which the heir says its floors."""
    first = start("a", "run-1")
    dead = Report("run-3", "c", 1, members_max=2, floors={WINDOW: 3}, inherits=("run-4",))
    before = Report("run-4", "d", 1, members_max=2, floors={WINDOW: 2}, inherits=("run-3",))
    heir = Report("run-2", "b", 1, members_max=2, floors={WINDOW: 50}, inherits=("run-3",))
    for report in (before, dead, heir):
        kafka.produce(topic, [(key_of("dc1", report.owner), encode(report))])
    wait_for(lambda: len(first.member._counting.others) == 3, 60, "all of them")
    kafka.produce(topic, [(key_of("dc1", owner), None) for owner in ("run-3", "run-4")])
    wait_for(lambda: first.member._fold.others.keys() == {"run-2"}, 60, "their ends")
    number = first.member.view().number
    wait_for(lambda: first.member.view().number >= number + 2, 60, "two reports")
    assert first.member._counting.others == {"run-2": heir, "run-3": dead, "run-4": before}
    said = replace(heir, number=2, floors={WINDOW: 2}, inherits=())
    kafka.produce(topic, [(key_of("dc1", "run-2"), encode(said))])
    wait_for(lambda: first.member._counting.others == {"run-2": said}, 60, "its floors")


def test_who_may_be_taking_over_does_not_write_itself_off(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """Its commit may come yet: whoever inherits from it finds that out."""
    first, second = start("a", "run-1"), start("b", "run-2")
    wait_for(lambda: len(first.living) == 2, 60, "both")
    first.announce("run-3")
    for each in (first, second):
        each.goes = False
        each.member.stop(is_over=True)
    wait_for(lambda: not any(m.member._thread.is_alive() for m in (first, second)), 60, "their end")
    assert read(kafka, topic).keys() == {"run-1"}


def test_who_was_written_off_or_started_again_ends(kafka: Kafka, topic: str, start: Start) -> None:
    ids = [owner_id("a", at, "00") for at in (1, 2)]
    first = start("a", ids[0])
    first.goes = False
    second = start("a", ids[1])
    wait_for(lambda: bool(first.member.later), 60, "two reports of the later one")
    with pytest.raises(OwnerChangedError) as error:
        first.see()
    assert error.value.owner == ids[1]
    second.goes = False
    kafka.produce(topic, [(key_of("dc1", ids[1]), None)])
    wait_for(lambda: second.member._fold.is_gone, 60, "the message")
    with pytest.raises(OwnerChangedError, match="written"):
        second.see()


def test_who_was_fenced_by_a_later_start_ends_though_no_record_says_by_whom(
    kafka: Kafka, topic: str, start: Start, tmp_path: Path
) -> None:
    """Under another id it would be the later one, and end that one."""
    ids = [owner_id("a", at, "00") for at in (1, 2)]
    first = start("a", ids[0])
    configuration = load_text(tmp_path, f'{MINIMAL}\n[fleet]\nmember = "a"\n')
    run = ConnectorRun(
        *(configuration, configuration.connectors[0], Future[SparkJobs](), threading.Event()),
        lambda configuration, name: None,
    )
    run.fleet, fenced = first.member, OwnerChangedError(f"{ids[0]} was fenced")
    assert run._goes_on_without(fenced)
    refusals = [KafkaRefusedError("no such user")]

    def begin() -> str:
        if refusals:
            raise refusals.pop()
        return "begun"

    assert run._patiently("starting", begin) == "begun", "it was let in before, so it waits"
    first.goes = False
    start("a", ids[1])
    wait_for(lambda: bool(first.member.later), 60, "two reports of the later one")
    assert not run._goes_on_without(fenced)


def test_members_take_the_fleet_to_be_as_large(
    kafka: Kafka, topic: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start("a", "run-1", silent_seconds=PATIENT_SECONDS)
    with pytest.raises(ConfigurationError, match=ALONE):
        start("b", "run-2", why=ALONE)
    first.member._blank = replace(first.member._blank, members_max=3)
    monkeypatch.setattr(first.member._shared, "_blank", first.member._blank)
    wait_for(lambda: read(kafka, topic)["run-1"].members_max == 3, 60, "its report")
    with pytest.raises(ConfigurationError, match="members_max = 3; this one has 2"):
        start("b", "run-2")


def test_an_id_is_written_off_after_the_report_whose_floors_take_its_place(
    kafka: Kafka, topic: str, start: Start
) -> None:
    """Who heard of its end before would count neither."""
    first = start("a", "run-1")
    dead = Report("run-3", "c", 1, members_max=2, floors={WINDOW: 0})
    kafka.produce(topic, [(key_of("dc1", "run-3"), encode(dead))])
    wait_for(lambda: first.member._counting.known.keys() == {"run-3"}, 60, "its report")
    first.announce("run-3")
    first.goes = False  # no report is made meanwhile
    number = first.member.view().number
    first.took(SharesRead(inherited=frozenset({"run-3"})))

    def hear(owner: str) -> None:
        kafka.produce(topic, [(key_of("dc1", owner), encode(Report(owner, "d", 1)))])
        wait_for(lambda: owner in first.member._counting.known, 60, f"the report of {owner}")

    hear("run-4")
    hear("run-5")  # whatever follows for it of the one before is written
    assert first.member._topic is not None and first.member._topic.flush(60)
    assert "run-3" in read(kafka, topic)
    first.goes = True
    wait_for(lambda: "run-3" not in read(kafka, topic), 60, "its end")
    assert read(kafka, topic)["run-1"].number > number
