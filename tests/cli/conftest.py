"""A configuration for commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config.example import EXAMPLE


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The path of the example."""
    path = tmp_path / "sluice.toml"
    path.write_text(EXAMPLE)
    return str(path)
