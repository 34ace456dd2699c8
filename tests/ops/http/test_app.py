"""What the HTTP server answers, and whom it refuses, over a real socket."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from sluice.config import HttpConfiguration, load
from sluice.config.applied import document_of
from sluice.core.decided import Frozen, Subject, Version
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.ranges import TopicPartition
from sluice.driver.loop import ConnectorLoop
from sluice.kafka.errors import UnknownCommitError
from sluice.ops.driver_decisions import DecisionRefusedError
from sluice.ops.http import app, server
from sluice.ops.http.server import HttpServer, hosts_of
from sluice.ops.http.tokens import Tokens
from sluice.ops.metrics import RunningCollector
from sluice.ops.running import FILE_EVERY_MS, Rates, look_at
from tests.driver.loop_world import World, run
from tests.ops.http.scene import ALICE, Served, run_of
from tests.ops.http.test_page import every_state

P0 = TopicPartition("a", 0)
Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:

        def start(*runs: Any, **more: Any) -> Served:
            served = Served(tmp_path, runs, **more)
            stack.callback(served.server.stop)
            return served

        yield start


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What was decided; nothing is written anywhere."""
    heard: list[dict[str, str]] = []

    def decide(configuration: object, **words: str) -> list[str]:
        heard.append(words)
        return ["connector dc1: it is frozen"]

    for name in ("freeze", "resume", "drain", "set_value"):
        monkeypatch.setattr(app, name, decide)
    return heard


def loaded(count: int = 25) -> ConnectorLoop:
    world = World([P0])
    world.ends[P0] = count
    loop = run(world)
    # The server's clock is the real one.
    loop.round_at_ms = time.time_ns() // 1_000_000
    return loop


def test_metrics_status_and_health_of_a_driver_that_has_loaded(serve: Serve) -> None:
    served = serve(run_of(loaded()))
    families = {
        f.name for f in text_string_to_metric_families(served.ask("/metrics").body.decode())
    }
    assert {"sluice_rows", "sluice_lag_messages", "sluice_frozen"} <= families
    assert served.ask("/live").json() == {"live": True, "reasons": []}
    ready = served.ask("/ready")
    assert (ready.status, ready.json()) == (200, {"ready": True, "reasons": []})
    status = served.ask("/status").json()
    (connector,) = status["connectors"]
    assert (status["pipeline"], connector["name"], connector["verdict"]) == (
        "orders",
        "dc1",
        "idle",
    )
    (table,) = connector["tables"]
    assert (table["name"], table["target"], table["rows"]) == ("t", "d.t", 25)
    assert table["windows"][0]["left"] > 0.9
    assert connector["applied"] is None
    assert table["amounts"]["last_settled_ms"] > 0


def test_what_was_applied_is_told(serve: Serve) -> None:
    version = Version(3, 2, '{"tables": []}', "alice", "clicks are new", 1_800_000_000_000)
    (connector,) = serve(run_of(loaded(), version=version)).ask("/status").json()["connectors"]
    assert connector["applied"] == {
        "number": 3,
        "by": "alice",
        "why": "clicks are new",
        "at_ms": 1_800_000_000_000,
        "file_differs": True,
    }


def test_a_file_that_is_not_what_was_applied_is_told_until_it_is(serve: Serve) -> None:
    """Whichever of the two changes."""
    served = serve(first := run_of(loaded()))
    path, text = served.configuration.path, served.configuration.path.read_text()
    first.version = Version(1, 0, document_of(served.configuration), "alice", "", 1)
    rates, at_ms = Rates(), 1_800_000_000_000

    def differs(after_ms: int) -> bool:
        nonlocal at_ms
        at_ms += after_ms
        now = look_at(first, rates, at_ms)
        told = RunningCollector(lambda: [now], "p").collect()
        (sample,) = next(f for f in told if f.name == "sluice_file_not_applied").samples
        assert now.applied is not None
        assert (sample.labels, sample.value) == ({"connector": "p.dc1"}, now.applied.file_differs)
        return now.applied.file_differs

    assert not differs(0)
    path.write_text(text.replace("[batch]", '[batch]\nmax_delay = "2s"'))  # is never applied
    assert not differs(FILE_EVERY_MS)
    path.write_text(text + '[[table]]\nname = "u"\ntopics = ["a"]\n')
    assert not differs(FILE_EVERY_MS - 1) and differs(1)
    first.version = Version(2, 1, document_of(load(path, {})), "SIGHUP", "", 2)
    assert not differs(1)
    path.write_text(text + "[[table]]\n")  # half-made
    assert differs(FILE_EVERY_MS)
    first.version = None
    (sample,) = next(
        f
        for f in RunningCollector(lambda: [look_at(first, rates, at_ms)], "p").collect()
        if f.name == "sluice_file_not_applied"
    ).samples
    assert sample.value == 0


def test_a_thousand_partitions_are_scraped_in_time_and_make_a_bounded_number_of_series(
    serve: Serve,
) -> None:
    """In 100 ms of a core, as the best of some scrapes: the machine may do other work."""
    made = app.make_app(serve().configuration, every_state(), Tokens(""), ("*",))
    scrape = next(r for r in made.routes if isinstance(r, Route) and r.path == "/metrics").endpoint
    took = []
    for _ in range(5):
        began = time.thread_time()
        text = scrape(None).body.decode()
        took.append(time.thread_time() - began)
    assert min(took) < 0.1, took
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    of_partitions = [line for line in samples if 'partition="' in line]
    assert len(of_partitions) == 8 * 1_000
    assert len(samples) - len(of_partitions) < 800  # of three tables and three connectors


def test_partitions_may_be_left_out_of_metrics(serve: Serve) -> None:
    served = serve(run_of(loaded()), more="[http]\npartition_metrics = false\n")
    text = served.ask("/metrics").body.decode()
    assert "sluice_table_lag_messages" in text and 'partition="' not in text


def test_it_is_not_ready_while_nothing_is_assigned_or_nothing_moves(serve: Serve) -> None:
    def reasons(*runs: Any) -> list[str]:
        served = serve(*runs)
        answer = served.ask("/ready")
        assert answer.status == (503 if answer.json()["reasons"] else 200)
        assert answer.json()["ready"] is not bool(answer.json()["reasons"])
        return list(answer.json()["reasons"])

    starting = run_of(None, doing="taking over", error=TransientError("Kafka is away"))
    assert reasons(starting) == [
        "connector dc1: is taking over, which failed, and is tried again: Kafka is away"
    ]
    empty = World([]).loop()
    empty.round_at_ms = time.time_ns() // 1_000_000
    assert "has no partitions" in reasons(run_of(empty))[0]
    still = loaded()
    still.round_at_ms -= 60_000
    assert re.search(r"has made no round for [67]\d s", reasons(run_of(still))[0])
    frozen = loaded()
    frozen.freezing.take((Frozen(Subject(), "alice", "why", 1),), 1)
    assert "the pipeline is frozen by alice" in reasons(run_of(frozen))[0]
    stopped = loaded()
    stopped.states[P0].stop(TransientError("gone"))
    assert "stopped at 25: gone" in reasons(run_of(stopped))[0]
    assert reasons(run_of(loaded()), run_of(None, "dc2")) == ["connector dc2: is starting"]
    ended = run_of(None, is_ended=True, status=2)
    assert "has ended with status 2" in reasons(ended)[0]
    served = serve(ended)
    assert served.ask("/live").status == 503
    assert serve(ended, run_of(loaded(), "dc2")).ask("/live").status == 200


def test_a_freeze_names_whose_token_it_was(serve: Serve, said: list[dict[str, str]]) -> None:
    served = serve()
    answer = served.decide("/freeze", {"why": "a disk", "table": "t"})
    assert (answer.status, answer.json()) == (
        200,
        {"by": "alice", "frozen": ["connector dc1: it is frozen"]},
    )
    assert served.decide("/resume", {"why": "done", "data_center": "east"}).status == 200
    nothing = dict.fromkeys(("connector", "table", "replica", "data_center"), "")
    assert said == [
        nothing | {"by": "alice", "why": "a disk", "table": "t"},
        nothing | {"by": "alice", "why": "done", "data_center": "east"},
    ]


def test_levels_limits_and_a_drain_name_whose_token_it_was(
    serve: Serve, said: list[dict[str, Any]]
) -> None:
    served = serve()
    lines = ["connector dc1: it is frozen"]
    for path, words, answers in (
        ("/log-level", {"level": "debug"}, "settings"),
        ("/limits", {"max_inflight_inserts": 8, "connector": "dc1"}, "settings"),
        ("/limits", {"max_inflight_inserts": None}, "settings"),
        ("/drain", {}, "drained"),
    ):
        answer = served.decide(path, {"why": "a look", **words})
        assert (answer.status, answer.json()) == (200, {"by": "alice", answers: lines})
        assert served.decide(path, {"why": "x", **words}, Authorization="").status == 401
        assert served.decide(path, words).status == 400  # why?
        assert served.decide(path, {"why": "x", **words, "table": "t"}).status == 400
    for path in ("/log-level", "/limits"):
        assert served.decide(path, {"why": "x"}).status == 400
    usual = {"by": "alice", "why": "a look"}
    assert said == [
        {**usual, "name": "log_level", "value": "debug"},
        {**usual, "name": "max_inflight_inserts", "value": 8, "connector": "dc1"},
        {**usual, "name": "max_inflight_inserts", "value": None, "connector": ""},
        usual,
    ]


def test_tokens_are_rotated_without_a_restart(serve: Serve, said: list[dict[str, str]]) -> None:
    served = serve(tokens=f"# who may\n\nbob@example.com {'b' * 30}\nalice {ALICE}\n")
    assert served.decide("/freeze", {"why": "x"}).json()["by"] == "alice"
    bearer = f"Bearer {'b' * 30}"
    assert served.decide("/freeze", {"why": "x"}, Authorization=bearer).json()["by"] == (
        "bob@example.com"
    )
    served.tokens.write_text(f"carol {'c' * 30}\n")
    assert served.decide("/freeze", {"why": "x"}).status == 401
    served.tokens.write_text("carol short\n")
    refused = served.decide("/freeze", {"why": "x"})
    assert refused.status == 503 and b"short" not in refused.body
    served.tokens.unlink()
    assert served.decide("/freeze", {"why": "x"}).status == 503
    assert len(said) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer "}, 401),
        ({"Authorization": f"Basic {ALICE}"}, 401),
        ({"Authorization": f"Bearer {ALICE}x"}, 401),
        ({"Authorization": f"Bearer {ALICE[:-1]}"}, 401),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": "evil.example"}, 400),
    ],
)
def test_who_may_not_decide(
    serve: Serve, said: list[dict[str, str]], headers: dict[str, str], status: int
) -> None:
    answer = serve().decide("/freeze", {"why": "x"}, **headers)
    assert answer.status == status and ALICE.encode() not in answer.body
    assert said == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 4000, 400),
        (b"[]", 400),
        (b"\xff", 400),
        (b'{"table": "t"}', 400),
        (b'{"why": 1}', 400),
        (b'{"why": "x", "by": "bob"}', 400),
        (b'{"why": "' + b"x" * 5000 + b'"}', 413),
    ],
)
def test_bodies_that_are_refused(
    serve: Serve, said: list[dict[str, str]], body: bytes, status: int
) -> None:
    answer = serve().decide("/freeze", body)
    assert answer.status == status, answer.body
    assert said == []


def test_nobody_decides_without_tokens_and_nobody_tries_for_long(
    serve: Serve, said: list[dict[str, str]]
) -> None:
    served = serve(tokens="")
    found = [served.decide("/freeze", {"why": "x"}).status for _ in range(13)]
    assert found == [401] * app.REFUSALS_PER_MINUTE + [429] * 3
    served = serve()
    found = [served.decide("/freeze", {"why": "x"}).status for _ in range(32)]
    assert found == [200] * app.DECISIONS_PER_MINUTE + [429] * 2
    # Who tries without a token does not keep those out who have one.
    served = serve()
    for _ in range(13):
        served.decide("/freeze", {"why": "x"}, Authorization="")
    assert served.decide("/freeze", {"why": "x"}).status == 200


def test_what_goes_wrong_behind_it_is_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status in (
        (ConfigurationError("no [[table]] is named"), 404),
        (DecisionRefusedError("is not frozen", "Nothing is frozen."), 409),
        (TransientError("Kafka is away"), 503),
        (UnknownCommitError("nobody knows"), 500),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> list[str]:
            raise error

        monkeypatch.setattr(app, "resume", fail)
        answer = serve().decide("/resume", {"why": "x"})
        assert answer.status == status
        assert str(error) in answer.json()["error"]


def test_paths_methods_and_headers(serve: Serve) -> None:
    served = serve(run_of(loaded()))
    for path in (
        "/../page.py",
        "/%2e%2e/app.py",
        "/page.css/../app.py",
        "//etc/passwd",
        "/x",
        "/a%00",
    ):
        assert served.ask(path).status == 404, path
    for path in ("/freeze", "/resume", "/log-level", "/limits", "/drain"):
        assert served.ask(path).status == 405
    for path in ("/", "/status", "/metrics"):
        assert served.ask(path, "POST", "x").status == 405
        headers = {name.lower(): value for name, value in served.ask(path).headers.items()}
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers and "server" not in headers
    assert served.ask("/status", headers={"Host": "evil.example"}).status == 400
    assert served.ask("/status", headers={"Host": f"localhost:{served.port}"}).status == 200
    assert served.ask("/", headers={"X": "y" * 100_000}).status == 431


def test_what_is_served_is_described(serve: Serve) -> None:
    served = serve()
    document = served.ask("/openapi.json").json()
    routes = app.make_app(served.configuration, [], None, ["*"]).routes  # type: ignore[arg-type]
    assert {(r.path, "POST" in r.methods) for r in routes} == {  # type: ignore[attr-defined]
        (path, "post" in methods) for path, methods in document["paths"].items()
    }


def test_who_takes_his_time_over_a_request_is_cut_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve()
    with monkeypatch.context() as patch:
        patch.setattr(server, "SILENT_SECONDS", 0.2)
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.settimeout(30)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localh")
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
    assert served.ask("/").status == 200


def test_an_address_that_is_taken_and_names(serve: Serve) -> None:
    served = serve()
    with pytest.raises(ConfigurationError, match="cannot be listened on"):
        taken = HttpConfiguration(("127.0.0.1", served.port))
        HttpServer(taken, served.configuration, [])
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        HttpServer(
            HttpConfiguration(("127.0.0.1", 0), tokens_file="/nowhere"), served.configuration, []
        )
    assert hosts_of(HttpConfiguration(("0.0.0.0", 1))) == ("*",)
    assert hosts_of(HttpConfiguration(("localhost", 1))) == hosts_of(HttpConfiguration(("::1", 1)))


@pytest.mark.parametrize("listen", ["0.0.0.0", "127.0.0.1"])
def test_probes_and_metrics_are_asked_for_by_an_address_whatever_names_it_has(
    serve: Serve, listen: str
) -> None:
    """By that of a pod; on a loopback address a page elsewhere is to read nothing all the same."""
    served = serve(run_of(loaded()))
    where = HttpConfiguration((listen, 0), ("sluice.example",))
    named = HttpServer(where, served.configuration, [run_of(loaded())])
    served.port = named.port
    is_network = listen == "0.0.0.0"
    answers = {"sluice.example": True, "10.0.0.7:9464": is_network, "127.0.0.1": True}
    try:
        for path in ("/live", "/ready", "/metrics"):
            for host, is_answered in answers.items():
                asked = served.ask(path, headers={"Host": host})
                assert asked.status == (200 if is_answered else 400), (path, host)
        for path in ("/", "/status", "/live/", "//live"):
            assert served.ask(path, headers={"Host": "10.0.0.7:9464"}).status == 400, path
        assert served.ask("/status", headers={"Host": "sluice.example"}).status == 200
    finally:
        named.stop()
