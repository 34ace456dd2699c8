"""How rows stand in the file that the engine reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_NONE: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RowFormat:
    """What a plan has to know of it.

    :param engine: its name for the engine.
    :param formats: of the tables that are read like this.
    :param settings: of every query that reads it, SQL literals by name.
    """

    engine: str
    formats: frozenset[str]
    settings: Mapping[str, object] = field(default_factory=lambda: _NONE)


JSON_EACH_ROW = RowFormat("JSONEachRow", frozenset(("JSONEachRow",)))
