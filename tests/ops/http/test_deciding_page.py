"""The page's form for what a person decides, by the keyboard in a real Chromium; what is told
before it is done is read from a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sluice.ops.driver_decisions import read_decided
from tests.ops.http.scene import ALICE, Served, run_of
from tests.ops.http.test_keyboard import FOCUSED, SEEN, tab_to
from tests.ops.pipelines import Pipeline, settled
from tests.support.browser import Browser
from tests.support.kafka import Kafka

DIALOG = "document.getElementById('dialog').open"
STEPS = "document.getElementById('steps').innerText"


@dataclass
class Deciding:
    """The page of a driver that has the partition of a pipeline.

    :param heard: what its loop was told to record.
    """

    page: Browser
    url: str
    pipeline: Pipeline
    heard: list[tuple[Any, ...]]

    def open(self) -> None:
        """The page as it is when it was opened, with a token, at the choice of a decision."""
        self.page.open("about:blank", "location.href === 'about:blank'")
        self.page.open(self.url, "document.querySelectorAll('section').length > 2")
        tab_to(self.page, "token")
        self.page.type(ALICE)

    def choose(self, decision: str) -> None:
        """By the arrows."""
        tab_to(self.page, "decision")
        while self.page.run("document.activeElement.value") != decision:
            self.page.press("ArrowDown")

    def fill(self, *words: str) -> list[str]:
        """One after the other, by Tab; gives their names."""
        names = []
        for word in words:
            self.page.press("Tab")
            names.append(self.page.run("document.activeElement.name"))
            assert self.page.run(SEEN)
            self.page.type(word)
        return names

    def ask(self, why: str) -> None:
        """From the form through the dialog, until the server has answered."""
        self.page.press("Enter")
        self.page.wait(DIALOG)
        assert self.page.run(FOCUSED) == "why" and self.page.run(SEEN)
        self.page.type(why)
        self.page.press("Enter")
        self.page.wait(
            f"{STEPS} !== '' || document.querySelector('#problem [role=alert]') !== null"
        )

    def leave(self) -> None:
        self.page.press("Escape")
        self.page.wait(f"!{DIALOG}")


@pytest.fixture(scope="module")
def deciding(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deciding]:
    folder = tmp_path_factory.mktemp("deciding")
    pipeline = Pipeline(kafka, folder)
    pipeline.fill(10)
    pipeline.drive(settled(6))
    heard: list[tuple[Any, ...]] = []
    run = run_of(None, owner="driver", decide=lambda *said: heard.append(said))
    served = Served(folder, [run], of=pipeline.configuration)
    browser = Browser(folder / "chromium")
    try:
        yield Deciding(browser, f"http://127.0.0.1:{served.port}/", pipeline, heard)
    finally:
        browser.close()
        served.server.stop()
        pipeline.close()


@pytest.mark.parametrize(
    ("decision", "field", "value", "told", "done"),
    [
        ("rewind", "to", "2", "from settled at 6 to settled at 2", "goes on from 2"),
        ("rewind", "to", "1971-01-31T00:00:00Z", "to settled at 0", "goes on from 0"),
        ("adopt", "offset", "8", "from settled at 6 to settled at 8", "goes on from 8"),
    ],
)
def test_a_partition_goes_on_elsewhere_once_it_was_told(
    deciding: Deciding, decision: str, field: str, value: str, told: str, done: str
) -> None:
    page, topic = deciding.page, deciding.pipeline.topic
    deciding.heard.clear()
    deciding.open()
    deciding.choose(decision)
    names = deciding.fill("dc1", topic, "0", value)
    assert names == ["connector", "topic", "partitions", field]
    deciding.ask("a test")
    page.wait(f"{FOCUSED} === 'go'")
    assert f"{decision}: connector dc1, topic {topic}, partitions 0," in page.run(
        "document.getElementById('subject').textContent"
    )
    steps = page.run(STEPS)
    assert f"{topic}[0]" in steps and told in steps and deciding.heard == []
    page.press("Enter")
    page.wait(f"{FOCUSED} === 'leave'")
    assert page.run(STEPS) == f"{topic}[0] {done}"
    ((_, record),) = deciding.heard
    (decided,) = record.args[1].decided
    assert decided.entries[0].body["why"].endswith(", by alice: a test")
    page.press("Enter")
    page.wait(f"!{DIALOG}")
    assert page.run("document.activeElement.name") == field, "where it was"


def test_an_answer_that_comes_late_is_not_shown_of_another_decision(deciding: Deciding) -> None:
    page = deciding.page

    def ask(path: str) -> None:
        page.type("a test")
        page.press("Enter")
        page.wait(f"late.at(-1) === '{path}'")

    deciding.open()
    page.run(
        "window.late = [], window.tell = [], window.kept = fetch; "
        "window.fetch = (path, how) => how.method !== 'POST' ? kept(path, how) "
        ": new Promise((told) => (late.push(path), tell.push(told)));"
    )
    page.run("openDialog('/freeze', {}, 'freeze', 'Freeze')")
    ask("/freeze")
    deciding.leave()
    page.run("openDialog('/rewind', {}, 'rewind', 'Rewind')")
    page.run("tell[0](new Response(JSON.stringify({ frozen: ['it is'] })))")
    ask("/rewind")
    assert page.run(STEPS) == ""
    page.run("tell[1](new Response(JSON.stringify({ planned: ['to 2'], confirm: 'x' })))")
    page.wait(f"{STEPS} === 'to 2' && {FOCUSED} === 'go'")
    deciding.leave()


def test_what_is_refused_is_told(deciding: Deciding) -> None:
    page = deciding.page
    deciding.heard.clear()
    deciding.open()
    deciding.choose("resolve")
    assert deciding.fill("dc1", deciding.pipeline.topic, "0") == [
        *("connector", "topic", "partitions")
    ]
    deciding.ask("a test")
    problem = page.run("document.getElementById('problem').textContent")
    assert "no range is in doubt" in problem and "Try: " in problem
    assert page.run("document.getElementById('why').readOnly") is False and deciding.heard == []
    deciding.leave()


@pytest.mark.parametrize(
    ("partitions", "offset", "told"),
    [
        ("0-1000", "1", "more than 1000 partitions"),
        ("0-999, 5000", "1", "more than 1000 partitions"),
        ("7-3", "1", "7-3 are no partitions"),
        ("0", "9007199254740993", "more than this page can say"),
    ],
)
def test_what_cannot_be_said_asks_nobody(
    deciding: Deciding, partitions: str, offset: str, told: str
) -> None:
    page = deciding.page
    deciding.open()
    deciding.choose("adopt")
    deciding.fill("dc1", "x", partitions, offset)
    page.press("Enter")
    page.wait("document.querySelector('#undecided [role=alert]') !== null")
    assert told in page.run("document.getElementById('undecided').textContent")
    assert not page.run(DIALOG)


def test_without_a_token_it_is_asked_for(deciding: Deciding) -> None:
    page = deciding.page
    deciding.open()
    page.run("document.getElementById('token').value = ''")
    deciding.choose("freeze")
    tab_to(page, "ask")
    page.press("Enter")
    page.wait(f"{FOCUSED} === 'token'")
    assert not page.run(DIALOG)


@pytest.mark.slow
def test_a_table_is_frozen_and_resumed(deciding: Deciding) -> None:
    """At once: it is taken back as easily."""
    page, configuration = deciding.page, deciding.pipeline.configuration
    deciding.open()
    deciding.choose("freeze")
    assert deciding.fill("", "orders") == ["connector", "table"]
    deciding.ask("a disk is changed")
    assert page.run("document.getElementById('subject').textContent") == "freeze: table orders"
    assert "table orders is frozen by alice" in page.run(STEPS)
    assert [each.subject.name for each in read_decided(configuration, "dc1").frozen] == ["orders"]
    deciding.leave()
    page.press("Tab", modifiers=8)
    page.press("Tab", modifiers=8)
    assert page.run(FOCUSED) == "decision"
    page.press("ArrowDown")
    page.press("Tab")
    assert page.run("document.activeElement.name") == "connector"
    deciding.ask("the disk is new")
    assert page.run(STEPS) == "Nothing is frozen now."
    assert not read_decided(configuration, "dc1").frozen
    deciding.leave()
