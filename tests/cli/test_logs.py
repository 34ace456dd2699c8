from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from sluice.cli import logs
from sluice.config import Secret


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("sluice")
    before = (list(root.handlers), root.level, own.level)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    own.setLevel(before[2])


log = logging.getLogger("sluice.driver.loop")


def test_json_lines_unless_on_a_terminal() -> None:
    stream = io.StringIO()
    logs.configure(None, is_debug=False, stream=stream)
    log.info("settled", extra={"topic": "orders", "partition": 3, "password": Secret("hunter2")})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "event": "settled",
        "logger": "sluice.driver.loop",
        "topic": "orders",
        "partition": 3,
        "password": "***",
    }


def test_text_on_a_terminal() -> None:
    stream = Terminal()
    logs.configure(None, is_debug=False, stream=stream)
    log.info("settled", extra={"topic": "orders", "why": "it is full", "key": Secret("hunter2")})
    log.warning("waiting", extra={"bytes": ""})
    first, second = stream.getvalue().splitlines()
    assert first[12:] == ' settled topic=orders why="it is full" key=***'
    assert second[12:] == ' warning: waiting bytes=""'


def test_the_format_can_be_chosen() -> None:
    stream = Terminal()
    logs.configure("json", is_debug=False, stream=stream)
    log.info("one\ntwo")
    assert json.loads(stream.getvalue())["event"] == "one\ntwo"


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("is_debug", [False, True])
def test_tracebacks_and_details_only_with_debug(log_format: str, is_debug: bool) -> None:
    stream = io.StringIO()
    logs.configure(log_format, is_debug=is_debug, stream=stream)
    log.debug("a detail")
    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("failed", extra={"partition": 3})
    written = stream.getvalue()
    assert "ValueError: broken" in written
    assert ("Traceback" in written) is is_debug
    assert ("a detail" in written) is is_debug


def test_other_libraries_are_quiet() -> None:
    stream = io.StringIO()
    logs.configure("text", is_debug=False, stream=stream)
    logging.getLogger("py4j").info("chatter")
    logging.getLogger("py4j").warning("trouble")
    assert "chatter" not in stream.getvalue()
    assert "trouble" in stream.getvalue()
