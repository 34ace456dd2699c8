"""The status page by the keyboard alone, in a real Chromium: what has the focus is seen, in an
order that makes sense; Enter does, Escape leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.ops.http import app
from sluice.ops.http.planned import Planned
from tests.ops.http.scene import ALICE, Served
from tests.ops.http.test_page import HOSTILE, every_state
from tests.support.browser import Browser

LETTER: dict[str, Any] = {
    **{"connector": "dc1", "table": "orders", "column": "id", "reason": HOSTILE, "error": HOSTILE},
    **{"topic": "orders", "partition": 3, "offset": 17, "attempt": 1, "at_ms": 1_700_000_000_000},
    **{"replayed_at_ms": None, "replayed_by": None, "bytes": 9, "sample": HOSTILE, "key": None},
    **{"headers": [], "advice": "Fix the producer."},
}
COUNT: dict[str, Any] = {
    **{"connector": "dc1", "table": "orders", "reason": HOSTILE, "dead_letters": 2, "waiting": 2},
    **{"first_ms": 1, "last_ms": 1_700_000_000_000},
}
ENTRY: dict[str, Any] = {
    **{"type": "record", "kind": "intend", "at_ms": 1_700_000_000_000, "owner": HOSTILE},
    **{"connector": "dc1", "topic": "orders", "partition": 3, "begin": 10, "end": 20},
}


@pytest.fixture(scope="module")
def replayed() -> Iterator[list[str]]:
    """Why something was replayed. What is read from Kafka and done there is another test's
    (`test_planned.py`); here it is what a page shows of it."""
    done: list[str] = []

    def plan(configuration: object, runs: object, by: str, said: Any, at_ms: int) -> Planned:
        def do() -> list[str]:
            done.append(f"{said.reason} of {said.table}, by {by}: {said.why}")
            return ["2 replayed, 0 replayed before, 0 refused"]

        return Planned([f"produce 2 messages to {HOSTILE}"], "", do)

    letters = {"complete": True, "masked": False, "counts": [COUNT], "dead_letters": [LETTER]}
    history = {"complete": False, "found": 1, "entries": [ENTRY]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app, "plan_replay", plan)
        patch.setattr(app, "look_at_dead_letters", lambda *_: letters)
        patch.setattr(app, "look_at_history", lambda *_: history)
        yield done


@pytest.fixture(scope="module")
def browsing(
    replayed: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Browser, str]]:
    folder = tmp_path_factory.mktemp("keyboard")
    served = Served(folder, every_state())
    browser = Browser(folder / "chromium")
    try:
        yield browser, f"http://127.0.0.1:{served.port}/"
    finally:
        browser.close()
        served.server.stop()


@pytest.fixture
def page(browsing: tuple[Browser, str]) -> Browser:
    """The page, as it is when it was opened."""
    browser, url = browsing
    browser.open("about:blank", "location.href === 'about:blank'")
    browser.open(url, "document.querySelectorAll('article').length > 0")
    return browser


FOCUSED = "(document.activeElement.id || document.activeElement.tagName.toLowerCase())"
#: What has the focus is outlined, and stands where it can be seen.
SEEN = """(() => {
  const of = document.activeElement, style = getComputedStyle(of), box = of.getBoundingClientRect();
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
    && box.bottom > 0 && box.top < innerHeight;
})()"""


def tab_to(page: Browser, name: str) -> list[str]:
    """Press Tab until this has the focus; gives what had it on the way."""
    way: list[str] = []
    while not way or way[-1] != name:
        page.press("Tab")
        way.append(page.run(FOCUSED))
        assert page.run(SEEN), way
        assert len(way) < 40, way
    return way


@pytest.mark.slow
def test_dead_letters_are_found_and_replayed_without_a_mouse(
    page: Browser, replayed: list[str]
) -> None:
    way = tab_to(page, "token")
    assert way[:-1] and set(way[:-1]) <= {"summary", "div"}, "what stands above comes first"
    page.type(ALICE)
    assert tab_to(page, "look") == [
        *("what", "connector", "table", "reason", "topic", "partition", "offset", "look")
    ]
    page.press("Enter")
    page.wait("document.querySelector('#found article') !== null")
    assert page.run("document.title") != "owned" and page.run("document.images.length") == 0
    page.wait(f"{FOCUSED} === 'look'")
    tab_to(page, "button")
    page.press("Enter")
    page.wait("document.getElementById('dialog').open")
    assert page.run(FOCUSED) == "why" and page.run(SEEN)
    page.press("Escape")
    page.wait("!document.getElementById('dialog').open")
    assert page.run("document.activeElement.textContent").startswith("Replay"), "where it was"
    page.press("Enter")
    page.wait("document.getElementById('dialog').open")
    page.press("Enter")
    assert page.run("document.getElementById('steps').children.length") == 0, "why is missing"
    page.type("they are mended")
    page.press("Enter")
    page.wait("document.getElementById('steps').children.length === 1")
    page.wait(f"{FOCUSED} === 'go'")
    assert replayed == [] and "produce 2 messages" in page.run(
        "document.getElementById('steps').textContent"
    )
    page.press("Enter")
    page.wait(f"{FOCUSED} === 'leave'")
    assert replayed == [f"{HOSTILE} of orders, by alice: they are mended"]
    page.press("Enter")
    page.wait("!document.getElementById('dialog').open")


def test_history_and_a_wrong_token(page: Browser) -> None:
    tab_to(page, "token")
    page.type("x" * 20)
    tab_to(page, "what")
    page.press("ArrowDown")
    assert page.run("document.getElementById('what').value") == "history"
    tab_to(page, "partition")
    page.type("3")
    page.press("Enter")
    page.wait("document.querySelector('#found [role=alert]') !== null")
    assert "a token is missing, or is not known" in page.run(
        "document.getElementById('found').textContent"
    )
    page.run(f"document.getElementById('token').value = '{ALICE}'")
    page.press("Enter")
    page.wait("document.querySelector('#found table') !== null")
    text = page.run("document.getElementById('found').textContent")
    assert "[10, 20)" in text and "There was more than could be read" in text


def test_the_list_of_partitions_opens_and_the_focus_stays_when_the_page_is_new(
    page: Browser,
) -> None:
    tab_to(page, "summary")
    page.press("Enter")
    page.wait("document.activeElement.parentElement.open")
    key = page.run("document.activeElement.parentElement.dataset.key")
    page.run("document.activeElement.parentElement.dataset.old = 'yes'")
    page.wait("document.querySelector('[data-old]') === null")
    assert page.run("document.activeElement.parentElement.dataset.key") == key
    assert page.run("document.activeElement.parentElement.open") and page.run(SEEN)
