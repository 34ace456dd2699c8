from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.cli.output import print_json, print_json_list
from sluice.config import Secret


@dataclass(frozen=True, slots=True)
class Intent:
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Status:
    topic: str
    intent: Intent | None
    password: Secret


def test_dataclasses_become_objects(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([Status("orders", Intent(0, 7), Secret("hunter2")), Path("x")])
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "orders", "intent": {"begin": 0, "end": 7}, "password": "***"},
        "x",
    ]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_is_one_document_with_a_line_for_each(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    print_json_list({"key": b"a\xff", "offset": offset} for offset in range(count))
    written = capsys.readouterr().out
    assert json.loads(written) == [{"key": "a\\xff", "offset": offset} for offset in range(count)]
    assert written.count('"key"') == count
