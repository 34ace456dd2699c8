"""What a person has frozen (R23), as the ledger and the topic of decisions have it.

Pure: `sluice.core.decided` holds it with all else that is decided, `sluice.driver.freezing` obeys
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from sluice.core.ledger import LedgerEntry

#: What may be frozen. Each stands and is resumed by itself: a table that was frozen stays so when
#: its pipeline is resumed.
What = Literal["pipeline", "connector", "table"]

#: Types of ledger entries.
FREEZE, RESUME = "freeze", "resume"

BY_MAX, WHY_MAX = 100, 500


@dataclass(frozen=True, slots=True)
class Subject:
    """What is frozen or resumed, within one connector.

    :param table: name of the table entry; "" unless it is one.
    """

    what: What = "pipeline"
    table: str = ""

    @classmethod
    def named(cls, table: str, connector: str) -> Subject:
        """What a person named; "" for what was not named. Neither means the whole pipeline."""
        return cls("table", table) if table else cls("connector" if connector else "pipeline")

    def __str__(self) -> str:
        return f"table {self.table}" if self.what == "table" else f"the {self.what}"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Something stands still since a person said so."""

    subject: Subject
    by: str
    why: str
    at_ms: int

    def line(self) -> str:
        """In words."""
        return f"{self.subject} is frozen by {self.by} since {since(self.at_ms)}: {self.why}"


#: Everything that is frozen in one connector, the oldest first.
Standing = tuple[Frozen, ...]


def decision_entry(decision: str, subject: Subject, by: str, why: str) -> LedgerEntry:
    """An entry of the ledger that freezes or resumes."""
    body = {"type": decision, "what": subject.what, "table": subject.table, "by": by, "why": why}
    return LedgerEntry(None, body)


def standing_after(standing: Standing, entry: Mapping[str, Any]) -> Standing:
    """What is frozen after an entry of the same connector. Other entries change nothing.

    :raises KeyError, ValueError: a decision that is none.
    """
    if entry["type"] not in (FREEZE, RESUME):
        return standing
    if entry["what"] not in ("pipeline", "connector", "table"):
        raise ValueError(f"{entry['what']!r} cannot be frozen")
    subject = Subject(entry["what"], str(entry["table"]))
    others = tuple(each for each in standing if each.subject != subject)
    if entry["type"] == RESUME:
        return others
    by, why = printable(entry["by"], BY_MAX), printable(entry["why"], WHY_MAX)
    return (*others, Frozen(subject, by, why, int(entry["at_ms"])))


def printable(text: object, length_max: int) -> str:
    """What a decision says of itself; who wrote it need not have been Sluice."""
    return "".join(each if each.isprintable() else " " for each in str(text))[:length_max]


def since(at_ms: int) -> str:
    """When something was decided, in words."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def holding(standing: Standing, entries: Iterable[str]) -> Standing:
    """What of it holds partitions whose messages go to these table entries."""
    named = set(entries)
    return tuple(
        each for each in standing if each.subject.what != "table" or each.subject.table in named
    )


def why_not_said(by: str, why: str) -> str | None:
    """What is wrong with what a person says of a decision; None if nothing is."""
    for name, text, length_max in (("the name", by, BY_MAX), ("the reason", why, WHY_MAX)):
        if not text.strip():
            return f"{name} is missing"
        if len(text) > length_max:
            return f"{name} has {len(text)} characters; {length_max} are possible"
        if not text.isprintable():
            return f"{name} has characters that cannot be printed"
    return None
