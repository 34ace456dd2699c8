"""A local store, on a boot that tests may change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.claims.local import LocalStore


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    path = tmp_path / "boot_id"
    path.write_text("first\n")
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "made" / "claims"


@pytest.fixture
def store(directory: Path, boot: Path) -> Iterator[LocalStore]:
    found = LocalStore(str(directory), boot_id=boot, lock_seconds=5)
    yield found
    found.close()
