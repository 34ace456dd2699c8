"""Versions in a real topic of decisions: plans, who wins, and what drivers said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.config import Configuration, load
from sluice.config.applied import document_of
from sluice.core.decided import Version, apply_entry, taken_entry
from sluice.core.errors import ConfigurationError
from sluice.core.fleet.records import Report
from sluice.driver.applying import loaded
from sluice.driver.specs import kafka_access
from sluice.kafka.decisions import write_decisions
from sluice.kafka.fleet import FleetTopic
from sluice.machine.clock import now_ms
from sluice.ops import applying
from sluice.ops.applying import (
    ApplyRefusedError,
    OwnFile,
    apply,
    apply_own_file,
    plan,
    plan_rollback,
)
from sluice.ops.doctor import Finding
from sluice.ops.doctor_kafka import look_at_kafka
from sluice.ops.driver_decisions import freeze, read_decided, resume
from sluice.ops.ledger_view import LedgerSelection, read_ledger
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[Pipeline]:
    made = Pipeline(kafka, tmp_path)
    yield made
    made.close()


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Finding]]:
    """What the doctor finds, each where there is a table of that name."""
    made: list[tuple[str, Finding]] = []

    def examine(configuration: Configuration) -> list[Finding]:
        names = {table.name for table in configuration.tables}
        return [finding for name, finding in made if name in names]

    monkeypatch.setattr(applying, "examine", examine)
    return made


def with_table(pipeline: Pipeline, name: str) -> Configuration:
    """The file, with one more table of its topic."""
    text = pipeline.path.read_text()
    first = pipeline.configuration.tables[0]
    text += f'\n[[table]]\nname = "{name}"\ntopics = ["{first.topics[0]}"]\n'
    pipeline.path.write_text(text)
    return load(pipeline.path, {})


def test_an_entry_keeps_its_table(pipeline: Pipeline, findings: list[tuple[str, Finding]]) -> None:
    """Drivers that run know its windows by its name; under another name it is another entry."""
    written = with_table(pipeline, "other").path.read_text()

    def with_other_table(name: str) -> Configuration:
        table = f'name = "{name}"\ntarget = "shop.elsewhere"'
        pipeline.path.write_text(written.replace('name = "other"', table))
        return load(pipeline.path, {})

    apply(plan(load(pipeline.path, {})), by="alice", why="")
    planned = plan(with_other_table("other"))
    (refusal,) = planned.refusals
    assert refusal.startswith('table other: target: not set becomes "shop.elsewhere", and an entry')
    with pytest.raises(ApplyRefusedError, match="give the entry another name than other"):
        apply(planned, by="alice", why="")
    renamed = plan(with_other_table("renamed"))
    assert renamed.refusals == () and apply(renamed, by="alice", why="").number == 2
    # They still know the one that is retired by now.
    (refusal,) = plan(with_other_table("other")).refusals
    assert 'target: not set becomes "shop.elsewhere" since version 1, and an entry' in refusal
    pipeline.path.write_text(written)
    assert plan(load(pipeline.path, {})).refusals == ()


def test_a_signal_applies_no_file_that_has_not_changed(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    """What was applied from another machine meanwhile stays, though this file never was a
    version."""
    first = pipeline.configuration
    own_file = OwnFile(first)
    more = with_table(pipeline, "more")
    apply(plan(more), by="ci", why="")
    (line,) = own_file.apply_if_changed(first, by="SIGHUP")
    assert "has not changed since this driver read it, and version 1, applied by ci" in line
    assert line.endswith(f"it is not applied. Try: sluice apply {first.path}")
    assert [version.number for version in applying.versions(first).versions] == [1]
    # The new file comes to this machine at last, and then a newer one, which is refused at first.
    assert own_file.apply_if_changed(more, by="SIGHUP") == []
    findings.append(("newer", Finding("error", "window", "shop.newer", "has no window", "ALTER")))
    newer = with_table(pipeline, "newer")
    with pytest.raises(ApplyRefusedError, match="has no window"):
        own_file.apply_if_changed(newer, by="SIGHUP")
    findings.clear()
    (line,) = own_file.apply_if_changed(newer, by="SIGHUP")
    assert line.startswith("version 2: add table newer: ")


def test_a_table_that_is_frozen_is_not_loaded_under_another_name(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    first = pipeline.configuration
    apply(plan(first), by="alice", why="")
    freeze(first, by="bob", why="another disk", table="orders")
    text = pipeline.path.read_text()
    target = first.tables[0].target
    renamed = f'name = "renamed"\ntarget = "{target}"'
    pipeline.path.write_text(text.replace('name = "orders"\ntopics', f"{renamed}\ntopics"))
    configuration = load(pipeline.path, {})
    (refusal,) = plan(configuration).refusals
    assert refusal.startswith(
        f"table renamed: it is loaded into {target}, and table orders is frozen by bob since 20"
    )
    resume(first, by="bob", why="it is there", table="orders")
    assert plan(configuration).refusals == ()


@pytest.mark.slow
def test_versions_one_after_the_other(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    first = pipeline.configuration
    assert loaded(first, {}) is first
    # SIGHUP alone, with the file of the start, makes no version.
    own_file = OwnFile(first)
    assert own_file.apply_if_changed(first, by="SIGHUP") == []
    planned = plan(first)
    assert planned.number == 1 and "nothing was applied before" in planned.lines[0]
    assert str(apply(planned, by="alice", why="")).startswith("version 1, applied by alice at 20")
    assert not plan(first).does_something

    second = with_table(pipeline, "more")
    planned, late = plan(second), plan(second)
    assert planned.lines == (
        "add table more: it is loaded from the next messages of its topics on into shop.more",
    )
    assert apply(planned, by="bob", why="more").number == 2
    with pytest.raises(ApplyRefusedError, match="somebody else applied meanwhile: version 2"):
        apply(plan_rollback_of_before(late), by="carol", why="")

    broken = Finding("error", "window", "default.bad", "has no window", "ALTER")
    known = Finding("error", "window", "default.more", "has no window", "ALTER")
    findings += [("bad", broken), ("more", known)]
    third = with_table(pipeline, "bad")
    planned = plan(third)
    assert planned.refusals == ("default.bad: has no window. Try: ALTER",)
    with pytest.raises(ApplyRefusedError, match="has no window"):
        apply(planned, by="alice", why="")
    assert applying.versions(third).applied == applying.versions(first).versions[1]

    back = plan_rollback(third, None)
    assert back.lines[0].startswith("version 1, applied by alice at 20")
    assert back.lines[0].endswith(", again") and "retire table more" in back.lines[1]
    assert apply(back, by="alice", why="it was wrong").number == 3
    assert [v.document for v in applying.versions(first).versions][::2] == [back.document] * 2
    # Who goes back once more does not have version 2 again; by its number it can be had.
    with pytest.raises(ApplyRefusedError, match="an older version is not there"):
        plan_rollback(third, None)
    assert plan_rollback(third, 2).lines[0].startswith("version 2, applied by bob at 20")
    with pytest.raises(ApplyRefusedError, match="version 9 is not there"):
        plan_rollback(third, 9)

    # What an audit compares is what is loaded, and not what stands in the file.
    assert [table.name for table in loaded(third, {}).tables] == [first.tables[0].name]
    assert loaded(first, {}) is first

    # A driver's own file that was rolled back from is not brought back by a signal.
    (line,) = own_file.apply_if_changed(second, by="SIGHUP")
    assert "is what version 2, applied by bob" in line and "is not applied" in line
    assert applying.versions(first).versions[-1].number == 3
    with pytest.raises(ApplyRefusedError, match="has no window"):
        apply_own_file(first, by="ci", why="a new file")
    findings.clear()
    (line,) = own_file.apply_if_changed(with_table(pipeline, "new"), by="SIGHUP")[:1]
    assert line.startswith("version 4: add table ")
    with_table(pipeline, "newest")
    applied = apply_own_file(first, by="ci", why="a new file")
    assert applied[0].startswith("version 5, applied by ci at 20")
    assert applied[1].startswith("add table newest: ")
    (line,) = apply_own_file(first, by="ci", why="a new file")
    assert line.startswith("nothing has changed since version 5")
    pipeline.path.write_text("[")
    with pytest.raises(ApplyRefusedError, match="is not TOML"):
        apply_own_file(first, by="ci", why="a new file")
    pipeline.kafka.until_stable(pipeline.ledger)
    types = [(e["type"], e["version"]) for e in read_ledger(first, LedgerSelection())]
    assert types == [("apply", number) for number in (1, 2, 2, 3, 4, 5)]


def test_the_doctor_says_where_a_file_is_not_what_is_loaded(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    """As after `helm upgrade` with another table, which a new start does not take up."""

    def said(configuration: Configuration) -> tuple[str, str, str]:
        look = look_at_kafka(configuration, configuration.connector("dc1"))
        (found,) = (each for each in look.findings if each.check == "applied")
        return found.level, found.what, found.fix

    apply(plan(pipeline.configuration), by="alice", why="")
    assert said(pipeline.configuration) == ("ok", "version 1 is what the file has", "")
    changed = with_table(pipeline, "more")
    level, what, fix = said(changed)
    assert level == "warning" and what.startswith("version 1, applied by alice at 20")
    assert what.endswith(f"{pipeline.path} has other tables or topics")
    assert fix.startswith(f"`sluice apply {pipeline.path}` ")
    assert said(loaded(changed, {}))[0] == "ok"  # as a driver that starts is examined
    assert findings == []


@pytest.mark.slow
def test_a_connector_that_is_new_takes_the_next_version_wherever_its_name_stands(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    for configuration in (pipeline.configuration, with_table(pipeline, "second")):
        apply(plan(configuration), by="alice", why="")
    text = with_table(pipeline, "third").path.read_text()
    other = f'[[connector]]\nname = "aa"\nbrokers = "{pipeline.kafka.brokers}"\n'
    pipeline.path.write_text(f'{text}{other}topics = ["{pipeline.topic}"]\n')
    configuration = load(pipeline.path, {})
    planned = plan(configuration)
    assert planned.number == 3 and any("add table third" in line for line in planned.lines)
    assert apply(planned, by="alice", why="").number == 3
    decided = {name: read_decided(configuration, name) for name in ("aa", "dc1")}
    assert {each.applied.document for each in decided.values() if each.applied} == {
        planned.document
    }
    assert [v.number for v in decided["aa"].versions] == [3]
    # All of them are still there to go back to.
    assert [v.number for v in applying.versions(configuration).versions] == [1, 2, 3]
    assert not plan(configuration).does_something


def test_two_clusters_with_different_versions_of_one_number_get_the_next_one(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    """As after two persons, of whom one has no connector aa in the file."""
    before = document_of(pipeline.configuration)
    text = with_table(pipeline, "more").path.read_text()
    other = f'[[connector]]\nname = "aa"\nbrokers = "{pipeline.kafka.brokers}"\n'
    pipeline.path.write_text(f'{text}{other}topics = ["{pipeline.topic}"]\n')
    configuration = load(pipeline.path, {})
    topics = configuration.ledger_topic, configuration.decisions_topic
    for name, document in (("aa", document_of(configuration)), ("dc1", before)):
        entry = apply_entry(1, 0, document, "bob", "")
        access, group = pipeline.kafka.access(name), configuration.group(name)
        write_decisions(access, group, *topics, [entry], now_ms())
    planned = plan(configuration)
    (line,) = planned.lines
    assert line.startswith("connector dc1 has another version 1, applied by bob at 20")
    assert apply(planned, by="alice", why="").number == 2
    decided = [read_decided(configuration, name).applied for name in ("aa", "dc1")]
    assert {each.document for each in decided if each} == {document_of(configuration)}
    assert not plan(configuration).does_something


@pytest.mark.slow
def test_a_version_that_is_refused_by_now_is_replaced_by_the_file(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    """An older Sluice took it: a route by envelope of messages that name no table."""
    configuration = pipeline.configuration
    document = json.loads(document_of(configuration))
    document["table"][0]["route"] = {"envelope": "orders"}
    entry = apply_entry(1, 0, json.dumps(document), "alice", "")
    topics = configuration.ledger_topic, configuration.decisions_topic
    access, group = pipeline.kafka.access(), configuration.group("dc1")
    write_decisions(access, group, *topics, [entry], now_ms())
    with pytest.raises(ConfigurationError, match="messages of JSONEachRow have none") as caught:
        loaded(configuration, {})
    assert f"`sluice apply {configuration.path}`" in caught.value.hint
    planned = plan(configuration)
    assert planned.number == 2 and "change table orders: route: " in planned.lines[0]
    apply(planned, by="alice", why="corrected")
    assert loaded(configuration, {}) is configuration


def test_a_table_whose_name_is_a_variable_is_added(pipeline: Pipeline) -> None:
    before = pipeline.configuration
    text = f'[[table]]\nname = "${{MORE}}"\ntopics = ["{pipeline.topic}"]\n'
    pipeline.path.write_text(pipeline.path.read_text() + text)
    after = load(pipeline.path, {"MORE": "bids"})
    base = Version(1, 0, document_of(before), "alice", "", 0)
    (line,) = applying._lines(after, base, document_of(after))
    assert line.startswith("add table ${MORE}: ") and line.endswith(" into shop.bids")


def report(configuration: Configuration, *owners: str, is_alone: bool = False) -> None:
    """Members of a fleet report."""
    access = kafka_access(configuration, "dc1")
    topic = FleetTopic(access, configuration.fleet_topic, is_made=True)
    for owner in owners:
        topic.send(Report(owner, owner, 1, silent_seconds=60, is_alone=is_alone))
    topic.flush(10)
    topic.close()


def test_what_members_that_share_cannot_load_is_refused_while_they_run(
    pipeline: Pipeline, findings: list[tuple[str, Finding]]
) -> None:
    with_table(pipeline, "events")
    text = pipeline.path.read_text() + 'deduplicate = { key = ["id"], window = "7d" }\n'
    pipeline.path.write_text(f'{text}[deduplication]\nstore = "redis://host:6379"\n')
    configuration = load(pipeline.path, {})
    report(configuration, "run-1", is_alone=True)
    assert plan(configuration).refusals == ()
    report(configuration, "run-2")
    (refusal,) = plan(configuration).refusals
    assert refusal.startswith("connector dc1: members of a fleet share the partitions, and ")
    assert "[[table]] events has `deduplicate`" in refusal and "stop all members" in refusal
    assert plan(pipeline.configuration).refusals == ()


def plan_rollback_of_before(late: applying.Plan) -> applying.Plan:
    """The plan of somebody who looked before the last version came, and wants something else."""
    from dataclasses import replace

    return replace(late, document=late.document.replace("more", "other"))


@pytest.mark.slow
def test_what_drivers_said(pipeline: Pipeline, findings: list[tuple[str, Finding]]) -> None:
    configuration = pipeline.configuration
    apply(plan(configuration), by="alice", why="")
    nobody = applying.Answers((), ())
    assert applying.answers(configuration, 1, 0.1) == {"dc1": nobody} and not nobody.are_all
    topics = configuration.ledger_topic, configuration.decisions_topic
    access, group = pipeline.kafka.access(), configuration.group("dc1")

    def say(owner: str, error: str) -> None:
        write_decisions(access, group, *topics, [taken_entry(1, owner, error)], now_ms())

    say("run-1", "no shard is named s9")
    (found,) = applying.answers(configuration, 1, 10).values()
    assert [(each.owner, each.error) for each in found.said] == [("run-1", "no shard is named s9")]
    assert found.are_all
    # Of a fleet all members that report are waited for.
    report(configuration, "run-1", "run-2")
    (found,) = applying.answers(configuration, 1, 0.1).values()
    assert found.missing == ("run-2",) and not found.are_all
    say("run-2", "")
    (found,) = applying.answers(configuration, 1, 10).values()
    assert [each.owner for each in found.said] == ["run-1", "run-2"] and found.are_all
