"""Mutated messages of every text format: each is a row or bad, whatever stands around it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.decode.text_fuzz import FORMATS, attack, subject

WAYS: dict[str, dict[str, Any]] = {
    "one": {},
    "many": {"rows": "many"},
    "drop": {"rows": "many", "bad_rows": "drop-row"},
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table_format", FORMATS)
def test_mutated_messages(table_format: str, way: str) -> None:
    attacked = subject(table_format, **WAYS[way])
    seen = attack(attacked, random.Random(f"{table_format} {way} 0"), 120, 2)
    # With drop-row, a message of bad rows only is an empty one.
    assert "row" in seen and seen & {"bad", "empty"}, "mutants of one kind attack nothing"
