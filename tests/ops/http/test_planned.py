"""What is told before it is done, and what is read only when somebody asks: over a real socket, of
dead letters and a ledger in a real Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.machine.clock import now_ms
from sluice.ops.http import app, looking, planned
from sluice.ops.ledger_view import LedgerSelection, read_ledger
from tests.kafka.groups import intend
from tests.ops.dead_letters import DeadLetters
from tests.ops.http.scene import ALICE, Answer, Served, run_of
from tests.ops.pipelines import settled
from tests.support.kafka import Kafka

WORDS = {"why": "they are mended"}


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path) -> Iterator[DeadLetters]:
    made = DeadLetters(kafka, tmp_path)
    made.fill(10)
    yield made
    made.close()


@pytest.fixture
def served(pipeline: DeadLetters, tmp_path: Path) -> Iterator[Served]:
    """A driver whose loop has the partitions of the pipeline."""
    loop = SimpleNamespace(stopping=None)
    made = Served(tmp_path, [run_of(cast(Any, loop), owner="driver")], of=pipeline.configuration)
    yield made
    made.server.stop()


def look(served: Served, path: str, token: str = ALICE, **headers: str) -> Answer:
    return served.ask(path, headers={"Authorization": f"Bearer {token}"} | headers)


@pytest.mark.slow
def test_dead_letters_are_looked_at_replayed_and_purged(
    pipeline: DeadLetters, served: Served
) -> None:
    young: dict[str, Any] = {"attempted_at_ms": now_ms() - 1_000}
    large = {"reason": "out-of-range", "error": "300 is too large", "column": "id"}
    pipeline.write(3, reason="not-json", error="not JSON", **young)
    pipeline.write(5, 6, **large, **young)
    told = look(served, "/dead-letters?reason=out-of-range&limit=1").json()
    assert told["complete"] and not told["masked"]
    assert [(each["reason"], each["waiting"]) for each in told["counts"]] == [("out-of-range", 2)]
    (letter,) = told["dead_letters"]
    assert (letter["offset"], letter["sample"], letter["error"]) == (6, "6", "300 is too large")
    assert look(served, "/dead-letters?reason=none").json()["dead_letters"] == []

    plan = served.decide("/dead-letters/replay", WORDS | {"reason": "out-of-range"}).json()
    assert plan["planned"] == [
        f"produce 2 messages to {pipeline.topic} of connector dc1 again, for table entry orders"
    ]
    assert len(pipeline.written()) == 10, "nothing was done yet"
    pipeline.write(7, reason="out-of-range")  # younger than what was told: it stays
    said = WORDS | {"reason": "out-of-range", "confirm": plan["confirm"]}
    refused = served.decide("/dead-letters/replay", said | {"reason": "not-json"})
    assert refused.status == 409 and "is not what was confirmed" in refused.json()["error"]
    done = served.decide("/dead-letters/replay", said)
    assert done.json() == {"by": "alice", "done": ["2 replayed, 0 replayed before, 0 refused"]}
    assert [int(each.value()) for each in pipeline.written()[10:]] == [5, 6]
    assert served.decide("/dead-letters/replay", said).status == 409, "they were replayed"

    assert served.decide("/dead-letters/purge", WORDS).status == 409, "it says not which"
    purge = served.decide("/dead-letters/purge", WORDS | {"reason": "not-json"}).json()
    said = WORDS | {"reason": "not-json", "confirm": purge["confirm"]}
    assert served.decide("/dead-letters/purge", said).json()["done"] == ["1 purged, 0 kept"]
    counts = look(served, "/dead-letters").json()["counts"]
    assert [(each["reason"], each["dead_letters"]) for each in counts] == [("out-of-range", 3)]
    pipeline.kafka.until_stable(pipeline.ledger)
    decided = [
        (entry["type"], entry["by"], entry["why"], len(entry["steps"]))
        for entry in read_ledger(pipeline.configuration, LedgerSelection())
    ]
    assert decided == [
        ("replay", "alice", "they are mended", 1),
        ("purge", "alice", "they are mended", 1),
    ]


def test_where_values_are_masked_no_sample_is_shown(pipeline: DeadLetters, tmp_path: Path) -> None:
    pipeline.write(3, value=b"secret", key=b"secret", headers=(("h", b"secret"),))
    configuration = replace(pipeline.configuration, masked=("card",))
    served = Served(tmp_path, [], of=configuration)
    try:
        answer = look(served, "/dead-letters?whole=true")
    finally:
        served.server.stop()
    assert answer.json()["masked"] and b"secret" not in answer.body
    assert answer.json()["dead_letters"][0]["bytes"] == 6


def test_the_history_of_a_partition_and_of_a_block(pipeline: DeadLetters, served: Served) -> None:
    pipeline.drive(settled(4))
    pipeline.drive(intend("", 4, 9, batch=2), owner="next")
    pipeline.kafka.until_stable(pipeline.ledger)
    told = look(served, f"/history?topic={pipeline.topic}&partition=0&since_ms=0").json()
    assert told["complete"] and told["found"] == 2
    assert [(each["kind"], each["owner"]) for each in told["entries"]] == [
        ("settle", "driver"),
        ("intend", "next"),
    ]
    told = look(served, f"/history?topic={pipeline.topic}&partition=0&offset=8&since_ms=0").json()
    assert [each["begin"] for each in told["entries"]] == [4]
    assert look(served, "/history?topic=elsewhere").status == 404


def test_what_would_be_decided_about_a_partition_is_told_by_the_loop_that_has_it(
    pipeline: DeadLetters, tmp_path: Path
) -> None:
    pipeline.drive(settled(6))
    heard: list[tuple[Any, ...]] = []
    run = run_of(cast(Any, object()), owner="driver", decide=lambda *said: heard.append(said))
    served = Served(tmp_path, [run], of=pipeline.configuration)
    said: dict[str, Any] = WORDS | {
        "connector": "dc1",
        "topic": pipeline.topic,
        "partitions": [0],
    }
    try:
        plan = served.decide("/rewind", said | {"to": 2}).json()
        assert plan["planned"][-1] == (
            "the driver that runs records it, and goes on from there by itself"
        )
        assert heard == []
        done = served.decide("/rewind", said | {"to": 2, "confirm": plan["confirm"]})
        assert done.json()["done"] == [f"{pipeline.topic}[0] goes on from 2"]
        ((sources, record),) = heard
        (decided,) = record.args[1].decided
        assert sources == (decided.source,) and decided.record.owner == "driver"
        assert decided.entries[0].body["why"] == "rewind --to 2, by alice: they are mended"
        again = served.decide("/adopt", said | {"offset": 3, "confirm": plan["confirm"]})
        assert again.status == 409, "what was confirmed is a rewind"
        for path, more in (("/rewind", {"to": 9}), ("/resolve", {"outcome": "loaded"})):
            assert served.decide(path, said | more).status == 409
        pipeline.drive(intend("", 6, 9, deadline_ms=now_ms() + 60_000, batch=9), owner="driver")
        refused = served.decide("/rewind", said | {"to": 2}).json()
        assert "its tasks may still insert" in refused["error"] and "Freeze" in refused["hint"]
        assert "--take-over" not in refused["hint"]
        assert len(heard) == 1
    finally:
        served.server.stop()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/rewind", {"to": "12"}),
        ("/rewind", {"to": "2026-01-31T00:00:00"}),
        ("/rewind", {"to": True}),
        ("/rewind", {"to": 1, "partitions": []}),
        ("/rewind", {"to": 1, "partitions": [-1]}),
        ("/rewind", {"to": 1, "partitions": ["0"]}),
        ("/rewind", {"to": 1, "take_over": True}),
        ("/rewind", {"to": 1, "by": "bob"}),
        ("/adopt", {}),
        ("/adopt", {"offset": 1 << 64}),
        ("/resolve", {"outcome": "maybe"}),
        ("/dead-letters/replay", {"limit": 1_000_000}),
        ("/dead-letters/replay", {"of": "../../etc"}),
        ("/dead-letters/purge", {"all": "yes"}),
    ],
)
def test_what_is_not_said_as_it_has_to_be(path: str, body: dict[str, Any], tmp_path: Path) -> None:
    where = {"connector": "dc1", "topic": "a", "partitions": [0]} if "-" not in path else {}
    served = Served(tmp_path, [])
    try:
        answer = served.decide(path, WORDS | where | body)
    finally:
        served.server.stop()
    assert answer.status == 400, answer.body


def test_who_may_not_look_or_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a freeze: who has no token, who asks too often, and a page of another site."""
    monkeypatch.setattr(app, "plan_replay", lambda *_: pytest.fail("it was planned"))
    monkeypatch.setattr(app, "look_at_history", lambda *_: {"entries": []})
    monkeypatch.setattr(app, "look_at_dead_letters", lambda *_: {"dead_letters": []})
    served = Served(tmp_path, [])
    try:
        for path in ("/history", "/dead-letters"):
            assert look(served, path, token="").status == 401
            assert look(served, path, Origin="http://evil.example").status == 403
            assert look(served, f"{path}?x=1").status == 400
            assert look(served, f"{path}?limit=100000").status == 400
            assert served.ask(path, "POST", "{}").status == 405
        found = [look(served, "/history").status for _ in range(app.LOOKS_PER_MINUTE)]
        assert found[0] == 200 and found[-1] == 429
        for path in ("/dead-letters/replay", "/dead-letters/purge", "/rewind", "/reload"):
            assert served.ask(path).status == 405
            assert served.decide(path, WORDS, Authorization="Bearer none").status == 401
            assert served.decide(path, WORDS, Sec_Fetch_Site="cross-site").status == 403
            assert served.decide(path, WORDS, Content_Type="text/plain").status == 415
            assert served.decide(path, b'{"why": "' + b"x" * 5000 + b'"}').status == 413
        stale = f"{now_ms() - planned.CONFIRM_MS_MAX - 1}-0"
        for confirm in (stale, "x", f"{now_ms() + 60_000}-0", "²-0"):
            answer = served.decide("/dead-letters/replay", WORDS | {"confirm": confirm})
            assert answer.status == 409 and "this confirmation is none" in answer.json()["error"]
    finally:
        served.server.stop()


def test_a_look_ends_in_time_and_one_is_made_at_a_time(
    pipeline: DeadLetters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.write(3)
    pipeline.drive(settled(4))
    monkeypatch.setattr(looking, "LOOK_SECONDS", -1.0)
    decisions = app.Decisions(pipeline.configuration, [], cast(Any, None))
    served = Served(tmp_path, [], of=pipeline.configuration)
    try:
        for path in ("/dead-letters", "/history"):
            told = look(served, path).json()
            assert not told["complete"]
    finally:
        served.server.stop()
    busy = decisions._alone(decisions._alone(lambda *_: {}))
    with pytest.raises(app.RefusedError, match="somebody else looks"):
        busy("alice", cast(Any, None))
    assert decisions._alone(lambda *_: {"x": 1})("alice", cast(Any, None)) == {"x": 1}
