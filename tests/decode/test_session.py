"""The engine's session."""

from __future__ import annotations

import pytest

from sluice.decode.engine.session import EngineError, run

BREAKS = (
    "SELECT number, throwIf(number = 5000, 'x') FROM numbers(10000) SETTINGS max_block_size = 1000"
)


@pytest.mark.parametrize("output", ["Native", "TSV", "RowBinary"])
def test_a_query_that_breaks_in_the_middle_leaves_nothing_to_the_next(output: str) -> None:
    """The engine keeps what it has written, and gives it out with the next result."""
    clean = run("SELECT 1", output).bytes()
    with pytest.raises(EngineError):
        run(BREAKS, output)
    assert run("SELECT 1", output).bytes() == clean
