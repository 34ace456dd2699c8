"""Which decoder this process has."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

from sluice.decode import RULES

#: The distribution that carries the decoding engine; "chdb" itself is only its wrapper.
ENGINE_DISTRIBUTION = "chdb-core"


@cache
def decoder_version() -> str:
    """What decides rows beside the text: the engine, by name and version, and our own rules.
    Told without loading the engine."""
    return f"chdb {version(ENGINE_DISTRIBUTION)}, rules {RULES}"
