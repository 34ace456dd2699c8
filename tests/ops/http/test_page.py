"""The status page: in a real Chromium, and what can be said of it without one."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from sluice.core.decided import Frozen, Setting, Subject, Version
from sluice.core.errors import TerminalError, TransientError
from sluice.core.ranges import TopicPartition
from sluice.core.replicas import Condition, ReplicaHealth
from sluice.driver.connector import ConnectorRun
from sluice.driver.parking import Parking
from sluice.driver.ports import ReplicaState
from sluice.ops.http import app
from sluice.ops.proof import _begun
from sluice.verify.continuous import Turn
from tests.driver.loop_world import START_MS, World, run, table_spec
from tests.ops.http.scene import Served, run_of
from tests.ops.http.screenshots import PICTURES
from tests.support.browser import chromium

PAGE = Path(app.__file__).parent
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


class Watch:
    """What is known of two replicas."""

    differs = ""

    def current(self) -> list[ReplicaState]:
        well, away = ReplicaHealth(Condition(delay_seconds=2, queue=5)), ReplicaHealth(None, "away")
        return [ReplicaState("s1", "http://r1", well), ReplicaState("s1", "http://r2", away)]


def every_state() -> list[ConnectorRun]:
    """A connector with a thousand partitions of three tables, in every state, and two without."""
    sources = [TopicPartition(topic, n) for topic in "abc" for n in range(334)][:1000]
    tables = tuple(table_spec(name, (name,)) for name in "abc")
    world = World(sources, tables)
    world.parking = Parking(["c"])
    world.ends = dict.fromkeys(sources, 10)
    loop = run(world)
    loop.replicas = Watch()
    states = list(loop.states.values())
    now = time.time_ns() // 1_000_000
    loop.round_at_ms = now + 3_600_000  # however long a browser takes to start
    states[0].stop(TerminalError(HOSTILE, "Ask somebody."))
    for state in states[340:380]:
        state.waiting_since_ms, state.stable_end = now + 3_600_000, 700
    states[390].waiting_since_ms = now - 900_000
    loop.dead_letters.counts[("a", HOSTILE)] = 12
    loop._topics.refused.refuse({"d": TerminalError(HOSTILE, "Narrow it.")})
    loop.freezing.standing = (
        Frozen(Subject("table", "c"), "alice", HOSTILE, START_MS),
        Frozen(Subject("replica", "r2"), "bob", HOSTILE, START_MS, ("r2",)),
    )
    loop.settings = (Setting("log_level", "debug", "bob", HOSTILE, START_MS),)
    starting = run_of(None, "dc2", doing="taking over", error=TransientError("Kafka is away"))
    version = Version(3, 2, "{}", "alice", HOSTILE, START_MS)
    return [
        run_of(loop, HOSTILE, version=version),
        starting,
        run_of(None, "dc3", is_ended=True, status=4),
    ]


@pytest.mark.slow
def test_a_browser_shows_every_state_and_runs_nothing_of_a_name(tmp_path: Path) -> None:
    served = Served(tmp_path, every_state())
    served.proof._records["audit"] = _begun("audit", 60.0, time.time_ns() // 1_000_000)
    where = (f"doubled: {HOSTILE}",)
    served.proof._records["audit"].take(Turn("audit", 0, 0, problems={"doubled": 1}, where=where))
    try:
        url = f"http://127.0.0.1:{served.port}/"
        shown = chromium(tmp_path / "chromium", "--virtual-time-budget=4000", "--dump-dom", url)
    finally:
        served.server.stop()
    assert "<title>stopped, starting, ended, found · orders</title>" in shown
    assert "<img" not in shown and shown.count("<script") == 3
    assert shown.count("&lt;img src=x onerror=") >= 4
    text = re.sub(r"<[^>]*>", " ", shown)
    for words in (
        "1 of 1000 partitions, a[0] first: stopped at 10:",
        "is taking over, which failed, and is tried again: Kafka is away",
        "version 3, applied by alice",
        "it is not applied",
        "has ended with status 4",
        "table c is frozen by alice since",
        "log_level is debug by bob since",
        "topic d is not loaded:",
        "s for a free task, or for room in a deduplication window",
        "40 loading",
        "2 replicas, 1 of them tried last or silent, 1 frozen",
        "replica r2 is frozen by bob since",
        "1 doubled: doubled:",
        "`sluice audit` says more",
    ):
        assert words in text, words


def test_it_takes_nothing_from_elsewhere() -> None:
    for name in ("page.html", "page.css", "page.js", "deciding.js", "closer.js"):
        text = (PAGE / name).read_text()
        assert not re.search(r"https?://|//[a-z]+\.|@import|innerHTML|eval\(", text)


def test_its_colours_have_enough_contrast() -> None:
    """4.5 to 1, as WCAG AA asks of text, light and dark."""
    schemes = re.findall(r":root \{(.*?)\}", (PAGE / "page.css").read_text(), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        colours = dict(re.findall(r"--(\w+): (#\w{6})", scheme))
        for name in colours.keys() - {"ground", "line", "raised"}:
            lighter, darker = sorted(
                (luminance(colours[name]), luminance(colours["ground"])), reverse=True
            )
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (name, colours[name])


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_thousand_partitions_are_no_long_answer(tmp_path: Path) -> None:
    """Those that are well are counted, and of the others some are shown."""
    served = Served(tmp_path, every_state())
    try:
        answer = served.ask("/status")
    finally:
        served.server.stop()
    assert len(answer.body) < 200_000
    connector = answer.json()["connectors"][0]
    assert sum(connector["amounts"]["partitions"].values()) == 1000
    assert len(connector["troubled"]) == 50
    assert connector["troubled"][0]["verdict"] == "stopped"


def test_the_pictures_of_readme_are_small() -> None:
    """They are taken by `python -m tests.ops.http.screenshots docs/images`."""
    root = PAGE.parents[2]
    named = set(re.findall(r"docs/images/([\w-]+\.png)", (root / "README.md").read_text()))
    assert named == {name for name, *_ in PICTURES}
    for name in named:
        picture = (root / "docs" / "images" / name).read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) < 150_000, name
