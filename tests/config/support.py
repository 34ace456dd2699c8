"""A configuration that loads, and ways to change it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.config import Configuration, load
from sluice.core.errors import ConfigurationError

MINIMAL = """\
[pipeline]
name = "orders"
[[connector]]
name = "dc1"
brokers = "localhost:9092"
topics = ["orders"]
[batch]
[clickhouse]
shards = { s1 = ["http://localhost:8123"] }
durability = "single"
[[table]]
name = "orders"
topics = ["orders"]
"""


def changed(old: str, new: str, text: str = MINIMAL) -> str:
    """The text with one place changed; the place must be there once."""
    assert text.count(old) == 1, (old, text)
    return text.replace(old, new)


def load_text(
    folder: Path, text: str, environment: Mapping[str, str] | None = None
) -> Configuration:
    path = folder / "sluice.toml"
    path.write_text(text, encoding="utf-8")
    return load(path, environment or {})


def findings_of(folder: Path, text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """The lines of the error, without the folder."""
    with pytest.raises(ConfigurationError) as caught:
        load_text(folder, text, environment)
    assert caught.value.hint
    return [line.removeprefix(f"{folder}/") for line in str(caught.value).splitlines()]
