"""How the store of claims is doing, as anybody may see it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field

from sluice.claims.port import StoreFacts
from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.driver.claims import not_made_again, waiting_for
from sluice.ops.claims import store_of


@dataclass(frozen=True, slots=True)
class ClaimsStatus:
    """The store of claims.

    :param facts: None: it does not answer.
    :param waits: by scope, why entries that claim in it may not load now; "": they may.
    :param lacks: by scope, tables whose rows may have no claims, since nobody loads them now.
    :param problem: why it does not answer.
    """

    url: str
    facts: StoreFacts | None = None
    waits: dict[str, str] = field(default_factory=dict)
    lacks: dict[str, list[str]] = field(default_factory=dict)
    problem: str = ""

    def line(self) -> str:
        """All of it, in one line."""
        if self.facts is None:
            return f"claims: {self.url} cannot be used: {self.problem}"
        facts = self.facts
        keys = "" if facts.keys is None else f", about {facts.keys:,} keys"
        most = "" if facts.max_bytes is None else f" of {facts.max_bytes:,}"
        waits = "; ".join(f"{scope} waits: {why}" for scope, why in self.waits.items() if why)
        lacks = "".join(
            f"; {scope} lacks claims of {', '.join(targets)}, which nobody loads now"
            for scope, targets in self.lacks.items()
        )
        return (
            f"claims: {self.url}, run {facts.run[:12]}{keys}, {facts.used_bytes:,}{most} bytes; "
            f"{waits or 'open'}{lacks}"
        )


def read_claims_status(configuration: Configuration) -> ClaimsStatus | None:
    """None where no table entry deduplicates."""
    scopes = sorted({configuration.scope_of(table) for table in configuration.tables} - {""})
    if not scopes or configuration.deduplication is None:
        return None
    url = configuration.deduplication.url
    try:
        with closing(store_of(configuration)) as store:
            run = store.run()
            notes = store.notes()
            now_ms = time.time_ns() // 1_000_000
            asked = (notes, run, scopes, now_ms)
            return ClaimsStatus(url, store.facts(), waiting_for(*asked), not_made_again(*asked))
    except SluiceError as error:
        return ClaimsStatus(url, problem=error.message)
