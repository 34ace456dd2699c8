"""Claims against tables: made again from the rows that are there, and compared with them (R20)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from sluice.claims.owners import Keys, Owners
from sluice.claims.port import ClaimStore, StoreFacts
from sluice.claims.stores import open_store
from sluice.config import Configuration
from sluice.core.claims import key_space
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.load_spec import TableSpec
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.claims import not_made_again, waiting_for
from sluice.driver.specs import access_of, read_spec, registry_access, store_access
from sluice.verify import stored_keys as stored
from sluice.verify.message_keys import decoder_of

_logger = logging.getLogger("sluice.claims")


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """A table whose rows have keys of one space.

    :param entries: that load it so.
    """

    space: str
    entries: tuple[str, ...]
    table: TableSpec

    @property
    def window_seconds(self) -> int:
        """How long a claim holds."""
        assert self.table.deduplicate is not None
        return self.table.deduplicate.window_seconds


@dataclass(slots=True)
class Rebuilt:
    """What became of a table's rows.

    :param rows: that were read, and have a key.
    :param claimed: whose message owns their key now, whoever claimed it for it.
    :param others: whose key another message has: of an event that came again after its window.
    """

    target: str
    space: str
    entries: tuple[str, ...]
    rows: int = 0
    claimed: int = 0
    others: int = 0


def keyed_tables(
    configuration: Configuration,
    connector: str | None = None,
    entry: str | None = None,
    space: str | None = None,
) -> list[KeyedTable]:
    """The tables of entries that deduplicate, once for each key space: whichever connector or entry
    has loaded a row, its key is the same.

    :param connector: only of its entries; likewise the others.
    :raises ConfigurationError: there are none.
    """
    found: dict[tuple[str, str], KeyedTable] = {}
    names = [each.name for each in configuration.connectors]
    if connector is not None:
        names = [configuration.connector(connector).name]
    for name in names:
        for table in read_spec(configuration, name).tables:
            if table.deduplicate is None or entry not in (None, table.entry):
                continue
            where = (key_space(table.deduplicate, table.columns), table.target)
            if space in (None, where[0]):
                before = found.get(where)
                entries = (*(() if before is None else before.entries), table.entry)
                longest = max(
                    (table, *(() if before is None else (before.table,))), key=_window_seconds
                )
                found[where] = KeyedTable(where[0], tuple(sorted(set(entries))), longest)
    if not found:
        raise ConfigurationError(
            "no table entry that is meant deduplicates",
            "Name one with `deduplicate`, or a connector that loads one.",
        )
    return [found[where] for where in sorted(found)]


def _window_seconds(table: TableSpec) -> int:
    assert table.deduplicate is not None
    return table.deduplicate.window_seconds


def store_of(configuration: Configuration) -> ClaimStore:
    """The store of claims.

    :raises ConfigurationError: none is configured.
    """
    if configuration.deduplication is None:
        raise ConfigurationError(
            "no store of claims is configured", "Name one in [deduplication] store."
        )
    return open_store(store_access(configuration.deduplication))


def rebuild(
    configuration: Configuration, tables: list[KeyedTable], since_ms: int | None = None
) -> list[Rebuilt]:
    """Claim the key of each row that came since then for the message that it is of, where nobody
    has it. A part is read as a whole, so older rows are claimed with it.

    :param since_ms: None: for each table, as long ago as its window.
    :raises SluiceError: not every replica answers, not all rows are shown, or the store does not
        answer; what was claimed by then stays, and the command may be repeated.
    """
    with closing(store_of(configuration)) as store:
        return [_rebuild(configuration, store, each, since_ms) for each in tables]


def _rebuild(
    configuration: Configuration, store: ClaimStore, keyed: KeyedTable, since_ms: int | None
) -> Rebuilt:
    found = Rebuilt(keyed.table.target, keyed.space, keyed.entries)
    window_ms = 1000 * keyed.window_seconds
    age_ms = window_ms if since_ms is None else max(0, time.time_ns() // 1_000_000 - since_ms)
    for keys, owners in stored_keys(configuration, keyed, age_ms // 1000 + 1):
        now_s = int(time.time())
        holders = store.claim(keys, owners, now_s + keyed.window_seconds, now_s)
        mine = int((holders == owners).all(axis=1).sum())
        found.rows += len(keys)
        found.claimed += mine
        found.others += len(keys) - mine
        _logger.info("%s: %d rows read", found.target, found.rows)
    return found


def stored_keys(
    configuration: Configuration, keyed: KeyedTable, age_seconds: int
) -> Iterator[tuple[Keys, Owners]]:
    """See `verify.stored_keys`."""
    access, table = access_of(configuration).patient(), keyed.table
    return stored.stored_keys(access, table, _row_keys(configuration, table), age_seconds)


def key_columns_of(configuration: Configuration, table: TableSpec) -> tuple[str, ...]:
    """The columns that keys and owners are made of."""
    return _row_keys(configuration, table).columns


def _row_keys(configuration: Configuration, table: TableSpec) -> RowKeys:
    return RowKeys(table, decoder_of(table, registry_access(configuration)).columns)


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
