"""Whether a server is the process that it was."""

from __future__ import annotations

import pytest

from sluice.core.server_runs import is_same_run, server_run

BEFORE = server_run("a-b/c", 1_700_000_000_000)


@pytest.mark.parametrize(
    ("drawn", "started_ms", "is_same"),
    [
        ("a-b/c", 1_700_000_000_000, True),
        ("a-b/c", 1_700_000_000_957, True),  # it says for how many whole seconds it has been up
        ("a-b/c", 1_699_999_998_000, True),
        ("a-b/d", 1_700_000_000_000, False),
        ("a-b/c", 1_700_000_002_001, False),  # a server that draws nothing, started again
        ("a-b/c", 1_699_999_997_999, False),  # its clock was set: nobody knows
    ],
)
def test_the_same_process(drawn: str, started_ms: int, is_same: bool) -> None:
    assert is_same_run(BEFORE, server_run(drawn, started_ms)) is is_same


@pytest.mark.parametrize("before", [None, ""])
def test_what_was_not_written_down_is_not_the_same(before: str | None) -> None:
    assert not is_same_run(before, BEFORE)
