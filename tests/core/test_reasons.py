"""The reasons of dead letters: all are known, and the document has them all."""

from __future__ import annotations

import re
from pathlib import Path

from sluice.core.dead_letters import DUPLICATE, PARKED, REASONS, table
from sluice.decode.messages import fault

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "DEAD_LETTERS.md"
PACKAGE = Path(fault.__file__).parent.parent.parent


def test_every_reason_that_a_message_may_have_is_explained() -> None:
    constants = {
        name: value for name, value in vars(fault).items() if re.fullmatch("[A-Z][A-Z_]+", name)
    }
    named = {value for value in constants.values() if isinstance(value, str)}
    assert named | {DUPLICATE, PARKED} == set(REASONS)


def test_the_document_has_them_all() -> None:
    assert table() in DOCUMENT.read_text(), (
        "docs/DEAD_LETTERS.md is behind: put there what `python -m sluice.core.dead_letters` prints"
    )


def test_no_fault_has_a_reason_of_its_own() -> None:
    """A text in place of a constant would be a reason that nobody explains."""
    found = [
        (path.name, code)
        for path in (PACKAGE / "decode").rglob("*.py")
        for code in re.findall(r"Fault\(\s*[\"']([^\"']+)", path.read_text())
    ]
    assert found == []
