"""Versions of what a pipeline loads, as they were applied: entries of the ledger and of the topic
of decisions.

Of two persons who apply at once the log decides: a version names the one that it follows, and who
reads it passes it over where another one stands by then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.core.ledger import LedgerEntry

#: Types of ledger entries.
APPLY, TAKEN = "apply", "taken"

#: A message of a topic of the pipeline holds it, with room.
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Version:
    """What is loaded, from when it was applied.

    :param base: the version that stood in the same topic before; 0: none.
    :param document: see `config.applied`.
    """

    number: int
    base: int
    document: str
    by: str
    why: str
    at_ms: int

    @property
    def name(self) -> str:
        return f"version {self.number}"

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        why = f": {self.why}" if self.why else ""
        return f"{self.name}, applied by {self.by} at {moment:%Y-%m-%dT%H:%M:%SZ}{why}"

    @property
    def digest(self) -> str:
        """What it is, whatever its number."""
        return digest_of(self.document)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a driver made of a version.

    :param error: why it goes on under what it has; "": it loads by the version.
    """

    number: int
    owner: str
    error: str
    at_ms: int


def digest_of(document: str) -> str:
    """Twelve hexadecimal digits."""
    return hashlib.sha256(document.encode()).hexdigest()[:12]


def apply_entry(number: int, base: int, document: str, by: str, why: str) -> LedgerEntry:
    """An entry of the ledger with a version."""
    body = {"type": APPLY, "version": number, "base": base, "digest": digest_of(document)}
    return LedgerEntry(None, {**body, "document": document, "by": by, "why": why})


def taken_entry(number: int, owner: str, error: str) -> LedgerEntry:
    """An entry of the ledger with a driver's answer."""
    return LedgerEntry(None, {"type": TAKEN, "version": number, "owner": owner, "error": error})


def version_of(entry: Mapping[str, Any]) -> Version:
    """What an entry applies.

    :raises KeyError, TypeError, ValueError: it is no such entry.
    """
    number, base, document = entry["version"], entry["base"], entry["document"]
    if not (isinstance(number, int) and isinstance(base, int) and number > base >= 0):
        raise ValueError(f"version {number!r} after {base!r}")
    if digest_of(document) != entry["digest"] or not isinstance(json.loads(document), dict):
        raise ValueError(f"version {number} is not the text that its digest names")
    by, why = str(entry["by"]), str(entry["why"])
    return Version(number, base, document, by, why, int(entry["at_ms"]))
