"""The ledger, facts about topics, and a look at a group, on a real broker."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from sluice.core import ledger as core_ledger
from sluice.core.ledger import (
    Background,
    Commit,
    CommittedOffset,
    LedgerEntry,
    checkpoint_entries,
    encode_entry,
    late_insert_entry,
    record_entry,
    spec_entry,
)
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import encode
from sluice.core.topics import short_topic_id
from sluice.kafka import ledger as ledger_module
from sluice.kafka import offsets
from sluice.kafka.ledger import entries, read_on, read_view
from sluice.kafka.log import TopicMissingError
from sluice.kafka.offsets import look, owner_in
from sluice.kafka.topics import OWN_TOPIC_SETTINGS, describe_topic, ensure_own_topic
from tests.kafka.groups import NOW, SETTLED, Group, intend
from tests.support.kafka import Kafka, numbered
from tests.support.world import wait_for

ANY_AGE = None
PATIENCE = 0.5


def no_spec(metadata: str) -> str | None:
    return None


def spec_of(metadata: str) -> str | None:
    return metadata.split("|")[9]


def test_what_was_recorded_is_found(group: Group) -> None:
    source = group.sources[0]
    driver = group.owning("a")
    rest, stored = {"orders": ((1, 3), (5, 6))}, {"orders": ((2, 0, 1), (5, 1, 4))}
    background = Background({"orders/s1": 5}, NOW, rest, 1000, stored=stored)
    record = intend("a", 0, 10)
    late_insert = late_insert_entry(Range(source, 0, 5), NOW + 1, {"orders/s1": 2})
    driver.record(
        Commit(
            {source: record},
            (
                spec_entry(record.spec, '{"a":1}'),
                record_entry(source, record, background),
                late_insert,
            ),
        ),
        {},
    )
    view = read_view(group.kafka.access(), group.ledger, [source], spec_of, ANY_AGE)
    assert view.metadata(source) == encode(record)
    assert view.background(source) == background
    assert view.specs == {record.spec: '{"a":1}'}
    assert [entry["deadline_ms"] for entry in view.late_inserts] == [NOW + 1]
    other = TopicPartition(group.topic, 77)
    assert view.metadata(other) is None and view.background(other) == Background()


def test_entries_of_another_connector_are_not_ours(group: Group) -> None:
    group.owning("a")
    view = read_view(group.kafka.access("dc2"), group.ledger, group.sources, no_spec, ANY_AGE)
    assert view.records == {} and view.complete
    ours = read_view(group.kafka.access("dc1"), group.ledger, group.sources, no_spec, ANY_AGE)
    assert ours.metadata(group.sources[0]) == encode(replace(SETTLED, owner="a"))


def test_late_inserts_of_longer_leases_than_todays_are_found(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease was lowered between two drivers: what the first one left counts by its own."""
    monkeypatch.setattr(ledger_module, "FIRST_CHUNK_MESSAGES", 5)
    ledger, source, hour_ms = kafka.topic(1), TopicPartition("t", 0), 3_600_000
    late_insert = late_insert_entry(Range(source, 0, 5), NOW + hour_ms, {"orders/s1": 2})
    written = [encode_entry("dc1", NOW, late_insert)]
    for number in range(100):
        at_ms = NOW + 1000 * number
        record = replace(intend("a", 10 * number, 10 * number + 10), deadline_ms=at_ms + hour_ms)
        entry = record_entry(source, record, Background())
        written.append(encode_entry("dc1", at_ms, entry))
    kafka.produce(ledger, written)
    since_ms = NOW + 100_000 - 2 * 10_000
    view = read_view(kafka.access(), ledger, [source], no_spec, since_ms)
    assert [entry["deadline_ms"] for entry in view.late_inserts] == [NOW + hour_ms]


@pytest.mark.parametrize("chunk", [1, 2, 5, 1000])
def test_it_is_read_backwards_only_as_far_as_needed(
    group: Group, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old load spec, then many records; the last record is found whatever the chunks."""
    monkeypatch.setattr(ledger_module, "FIRST_CHUNK_MESSAGES", chunk)
    source = group.sources[0]
    driver = group.owning("a")
    driver.record(Commit({source: SETTLED}, (spec_entry(SETTLED.spec, "{}"),)), {})
    last = SETTLED
    for number in range(6):
        last = intend("a", number * 10, number * 10 + 10)
        driver.record(Commit({source: last}, (record_entry(source, last, Background()),)), {})
    access = group.kafka.access()
    view = read_view(access, group.ledger, [source], no_spec, ANY_AGE)
    assert view.metadata(source) == encode(last)
    assert view.complete == (chunk == 1000)
    with_spec = read_view(access, group.ledger, [source], spec_of, ANY_AGE)
    assert with_spec.specs == {SETTLED.spec: "{}"}
    assert with_spec.metadata(source) == encode(last)
    old = read_view(access, group.ledger, [source], no_spec, 0)
    assert old.complete, "everything that is younger must be read"


IDLE, NEW, GONE = (TopicPartition("t", number) for number in (1, 2, 3))


def long_ledger(kafka: Kafka, others: list[TopicPartition] | None, parts: int = 1) -> str:
    """Records of two partitions at the very beginning, a checkpoint with one of them, and many
    records of a third one before and after it."""
    ledger, at_ms = kafka.topic(1), NOW

    def record(source: TopicPartition, number: int = 0) -> tuple[bytes, bytes]:
        made = replace(SETTLED, begin=number, end=number)
        return encode_entry("dc1", at_ms + number, record_entry(source, made, Background()))

    written = [record(GONE), record(IDLE)]
    written += [record(TopicPartition("t", 0), number) for number in range(50)]
    repeated = [IDLE, *(TopicPartition("t", 10 + number) for number in range(parts - 1))]
    last = [record_entry(source, SETTLED, Background()) for source in repeated]
    entries = checkpoint_entries(last, others)
    assert len(entries) == parts
    written += [encode_entry("dc1", at_ms + 50, entry) for entry in entries]
    written += [record(TopicPartition("t", 0), number) for number in range(51, 60)]
    kafka.produce(ledger, written)
    return ledger


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_a_checkpoint_answers_for_idle_and_for_new_partitions(
    kafka: Kafka, chunk: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever chunks its parts are read in."""
    monkeypatch.setattr(ledger_module, "FIRST_CHUNK_MESSAGES", chunk)
    monkeypatch.setattr(core_ledger, "CHECKPOINT_RECORDS_MAX", 1)
    ledger = long_ledger(kafka, [GONE], parts)
    view = read_view(kafka.access(), ledger, [IDLE, NEW], no_spec, ANY_AGE, [NEW])
    assert not view.complete
    assert view.metadata(IDLE) == encode(SETTLED) and view.metadata(NEW) is None
    assert view.recorded is not None and NEW not in view.recorded
    assert view.recorded >= {GONE, IDLE, TopicPartition("t", 0)}


def test_what_a_checkpoint_does_not_know_is_looked_for_to_the_beginning(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "FIRST_CHUNK_MESSAGES", 5)
    ledger = long_ledger(kafka, [GONE])
    view = read_view(kafka.access(), ledger, [GONE], no_spec, ANY_AGE, [GONE])
    assert view.complete and view.metadata(GONE) == encode(SETTLED)
    # The group holds an offset of it, so somebody recorded it.
    assert read_view(kafka.access(), ledger, [NEW], no_spec, ANY_AGE, []).complete
    nobody_knows = long_ledger(kafka, None)
    view = read_view(kafka.access(), nobody_knows, [NEW], no_spec, ANY_AGE, [NEW])
    assert view.complete and view.recorded == {GONE, IDLE, TopicPartition("t", 0)}


def test_aborted_entries_are_not_there(group: Group) -> None:
    group.kafka.transaction(group.ledger, [(b"dc1", b'{"type":"record"}')], commit=False)
    group.owning("a")
    group.kafka.until_stable(group.ledger)
    found = list(entries(group.kafka.access(), group.ledger))
    assert [body["type"] for _, body in found] == ["record"]
    offsets = [offset for offset, _ in found]
    assert list(entries(group.kafka.access(), group.ledger, begin=offsets[0] + 1)) == []


def test_up_to_the_last_stable_offset_nothing_is_waited_for(group: Group) -> None:
    """What was committed beyond a transaction that is open comes with what is read on."""
    source, access = group.sources[0], group.kafka.access()
    driver = group.owning("a")
    group.kafka.until_stable(group.ledger)
    blocking = group.kafka.open_transaction(group.ledger, [(b"dc1", b"{}")])
    last = intend("a", 0, 10)
    driver.record(Commit({source: last}, (record_entry(source, last, Background()),)), {})
    view = read_view(access, group.ledger, [source], no_spec, ANY_AGE, is_stable=True)
    assert view.metadata(source) == encode(replace(SETTLED, owner="a"))
    blocking.abort_transaction(30)
    read_on(access, group.ledger, view)
    assert view.metadata(source) == encode(last)


def test_an_empty_ledger(group: Group) -> None:
    view = read_view(group.kafka.access(), group.ledger, group.sources, no_spec, ANY_AGE)
    assert view.complete and view.records == {} and view.specs == {}


def test_own_topics_have_explicit_settings(kafka: Kafka) -> None:
    name = kafka.own_topic()
    # A broker that was asked to create a topic may take a moment until it describes it.
    wait_for(lambda: describe_topic(kafka.admin, name) is not None, 30, "the topic")
    facts = describe_topic(kafka.admin, name)
    assert facts is not None
    assert (facts.partitions, facts.replication) == (1, 1)
    assert {key: facts.settings[key] for key in OWN_TOPIC_SETTINGS} == OWN_TOPIC_SETTINGS
    assert facts.settings["min.insync.replicas"] == "1"
    assert ensure_own_topic(kafka.admin, name) is False
    assert describe_topic(kafka.admin, "does-not-exist") is None


# Facts about topics


def test_a_topic_made_again_has_another_id(kafka: Kafka) -> None:
    name = kafka.topic(partitions=3)
    first, partitions = kafka.log.topics([name])[name]
    assert partitions == 3
    assert kafka.log.topics([name])[name][0] == first
    kafka.delete_topic(name)
    kafka.topic(partitions=2, name=name)
    second, partitions = kafka.log.topics([name])[name]
    assert partitions == 2 and second != first
    for identity in (first, second, short_topic_id(-1, -1), short_topic_id(2**62, -(2**63))):
        assert re.fullmatch(r"[A-Za-z0-9_-]{11}", identity)


def test_a_missing_topic_is_told(kafka: Kafka) -> None:
    with pytest.raises(TopicMissingError, match="nowhere") as caught:
        kafka.log.topics(["nowhere"])
    assert "Create the topic" in caught.value.hint


def test_begins_ends_and_times(kafka: Kafka) -> None:
    name = kafka.topic()
    source = TopicPartition(name, 0)
    kafka.produce(name, numbered(10))
    kafka.delete_records(name, 4)
    assert kafka.log.begins([source]) == {source: 4}
    assert kafka.log.stable_ends([source]) == {source: 10}
    time.sleep(0.01)
    moment = int(time.time() * 1000)
    kafka.produce(name, numbered(5))
    assert kafka.log.at_time([source], moment) == {source: 10}
    assert kafka.log.at_time([source], 0) == {source: 4}
    assert kafka.log.at_time([source], moment + 3_600_000) == {source: -1}
    assert kafka.log.begins([]) == {}


# A look at a group


def test_a_look_tells_what_is_open(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is not told in time counts as open, and a busy broker answers slowly.
    monkeypatch.setattr(offsets, "_SEARCH_TIMEOUT_SECONDS", 1.0)
    group = Group(kafka, partitions=3)
    open_one, settled, never = group.sources
    driver = group.recorder("a")
    taken = driver.take_over([open_one, settled])
    first = replace(SETTLED, owner="a")
    driver.finish_take_over(taken, Commit({open_one: first, settled: first}))
    held = CommittedOffset(0, encode(first))
    calm = look(kafka.access(), group.name, group.sources, 30)
    assert calm.found == {open_one: held, settled: held, never: None}
    assert calm.unstable == frozenset()
    producer = driver.own_producer()
    producer.begin_transaction()
    from sluice.kafka.transactions import _split

    (part,) = _split({open_one: intend("a", 0, 10)})
    metadata = driver._reader.consumer_group_metadata()
    producer.send_offsets_to_transaction(part, metadata, 10)
    started = time.monotonic()
    during = look(kafka.access(), group.name, group.sources, PATIENCE)
    assert time.monotonic() - started < 30, "the transaction would go on for a minute"
    assert during.unstable == {open_one}
    assert during.found == calm.found
    producer.commit_transaction(10)
    kafka.until(lambda: not look(kafka.access(), group.name, group.sources, PATIENCE).unstable)
    assert look(kafka.access(), group.name, [], PATIENCE).found == {}
    group.close()


def test_the_owner_in_what_is_found() -> None:
    record = intend("a", 5, 10)
    assert owner_in(CommittedOffset(5, encode(record))) == "a"
    assert owner_in(None) == "genesis"
    assert owner_in(CommittedOffset(6, encode(record))) == "genesis"
    assert owner_in(CommittedOffset(6, "from a console")) == "genesis"


def test_an_entry_without_a_partition_belongs_to_the_connector(group: Group) -> None:
    driver = group.owning("a")
    driver.record(
        Commit(
            dict.fromkeys(group.sources, SETTLED),
            (LedgerEntry(None, {"type": "load_spec", "x": 1}),),
        ),
        {},
    )
    (message,) = [m for m in group.kafka.read(group.ledger) if b'"x"' in m.value()]
    assert message.key() == b"dc1"
