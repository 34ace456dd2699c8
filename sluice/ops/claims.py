"""Claims against tables: made again from the rows that are there, and compared with them (R20)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import OWNER, Keys, Owners, topic_bytes
from sluice.claims.port import ClaimStore, StoreFacts
from sluice.claims.stores import open_store
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import identifier
from sluice.config import Configuration
from sluice.core.budget import TargetShard
from sluice.core.claim_notes import Part, not_made_again, waiting_for
from sluice.core.claims import CLAIMS, OWNER_BYTES, key_space, loader_number
from sluice.core.errors import ConfigurationError, SluiceError, TransientError
from sluice.core.load_spec import LINEAGE_TYPES, SOURCE, TableSpec
from sluice.core.records import InvalidRecordError, decode
from sluice.decode.keys.hashing import RowKeys
from sluice.driver.claims_rebuild import RebuildRequest
from sluice.driver.shards import on_shard
from sluice.driver.specs import access_of, kafka_access, read_spec, registry_access, store_access
from sluice.kafka.ledger import entries
from sluice.kafka.topics import sees
from sluice.machine.clock import now_ms
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
    access = access_of(configuration)
    with closing(store_of(configuration)) as store:
        return [_rebuild(configuration, access, store, each, since_ms) for each in tables]


def rebuild_as_asked(configuration: Configuration, request: RebuildRequest) -> None:
    """The same for a driver.

    :raises TransientError: the store is not the one that the driver asks.
    """
    space = Part.of_table(request.table).space
    keyed = KeyedTable(space, (request.table.entry,), request.table)
    access = replace(access_of(configuration), shards=request.shards)
    with closing(store_of(configuration)) as store:
        run = store.run()
        if run != request.run:
            raise TransientError(
                f"the store of claims that {configuration.path} names is run {run}, and the "
                f"driver's is run {request.run}",
                "If the file names another store by now, start the driver again.",
            )
        _rebuild(configuration, access, store, keyed, request.since_ms)


def _rebuild(
    configuration: Configuration,
    access: ClickHouseAccess,
    store: ClaimStore,
    keyed: KeyedTable,
    since_ms: int | None,
) -> Rebuilt:
    found = Rebuilt(keyed.table.target, keyed.space, keyed.entries)
    window_ms = 1000 * keyed.window_seconds
    age_ms = window_ms if since_ms is None else max(0, now_ms() - since_ms)
    for keys, owners in stored_keys(configuration, access, keyed, age_ms // 1000 + 1):
        now_s = int(time.time())
        holders = store.claim(keys, owners, now_s + keyed.window_seconds, now_s)
        mine = int((holders == owners).all(axis=1).sum())
        found.rows += len(keys)
        found.claimed += mine
        found.others += len(keys) - mine
        _logger.info("%s: %d rows read", found.target, found.rows)
    return found


def stored_keys(
    configuration: Configuration, access: ClickHouseAccess, keyed: KeyedTable, age_seconds: int
) -> Iterator[tuple[Keys, Owners]]:
    """See `verify.stored_keys`."""
    row_keys = _row_keys(configuration, keyed.table)
    return stored.stored_keys(access.patient(), keyed.table, row_keys, age_seconds)


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
            asked = (notes, run, scopes, now_ms())
            return ClaimsStatus(url, store.facts(), waiting_for(*asked), not_made_again(*asked))
    except SluiceError as error:
        return ClaimsStatus(url, problem=error.message)


EXAMPLES_MAX = 10
#: Ranges that were recorded so shortly within the window are not judged: their claims end now.
_MARGIN_SECONDS = 120
#: Asks who has a key: as claims go, nobody.
_ASKING = np.full(OWNER_BYTES, 0xFF, np.uint8)
_ENDED_S = 1
#: Topic id, loader and partition of an owner.
_PLACE_BYTES = 16


@dataclass(slots=True)
class Checked:
    """What a table's rows say of the claims.

    :param rows: in all parts that are younger than the window, with a key.
    :param claimed: whose message owns their key.
    :param unclaimed: whose key nobody has.
    :param others: whose key another message has.
    :param older: that no range within the window has brought, as the ledger says: their claims may
        be over.
    :param examples: the first that are wrong, in words.
    """

    target: str
    space: str
    entries: tuple[str, ...]
    rows: int = 0
    claimed: int = 0
    unclaimed: int = 0
    others: int = 0
    older: int = 0
    examples: list[str] = field(default_factory=list)


def check(configuration: Configuration, tables: list[KeyedTable]) -> list[Checked]:
    """Compare the rows of each table with who owns their keys. What it leaves in the store
    for keys that nobody has is over, and goes with the next sweep.

    :raises SluiceError: not every replica answers, not all rows are shown, or the store or Kafka
        does not answer.
    """
    with closing(store_of(configuration)) as store:
        return [_check(configuration, store, each) for each in tables]


def _check(configuration: Configuration, store: ClaimStore, keyed: KeyedTable) -> Checked:
    found = Checked(keyed.table.target, keyed.space, keyed.entries)
    since_s = int(time.time()) - keyed.window_seconds + _MARGIN_SECONDS
    begins = _begins(configuration, keyed, since_s * 1000)
    wrong: list[tuple[Owners, str]] = []
    access = access_of(configuration)
    for keys, owners in stored_keys(configuration, access, keyed, keyed.window_seconds):
        is_judged = _is_within(owners, begins)
        mine = owners[is_judged]
        asked = np.ascontiguousarray(keys[is_judged])
        owned_by, is_held = holders(store, asked)
        is_mine = is_held & (owned_by == mine).all(axis=1)
        found.rows += len(owners)
        found.older += len(owners) - len(mine)
        found.claimed += int(is_mine.sum())
        found.unclaimed += int((~is_held).sum())
        found.others += int((is_held & ~is_mine).sum())
        for place in np.flatnonzero(~is_mine)[: EXAMPLES_MAX - len(wrong)].tolist():
            who = _who(owned_by[place]) if is_held[place] else "nobody has its key"
            wrong.append((mine[place].copy(), who))
    found.examples = [_told(configuration, keyed, owner, who) for owner, who in wrong]
    return found


def holders(store: ClaimStore, keys: Keys) -> tuple[Owners, NDArray[np.bool_]]:
    """Who has each key, and whether anybody has, or had until lately. A claim that is over when it
    is made counts for nobody, whoever claims next; so the store is asked as by any other who
    claims, but as long ago that no claim is over: those that are kept for repeats have to stay.

    :param keys: contiguous.
    """
    asking = np.tile(_ASKING, (len(keys), 1))
    found = store.claim(keys, asking, _ENDED_S, _ENDED_S)
    return found, ~(found == _ASKING).all(axis=1)


def _begins(configuration: Configuration, keyed: KeyedTable, since_ms: int) -> dict[bytes, int]:
    """The first offset, by place, that a range within the window has claimed for."""
    found: dict[bytes, int] = {}
    for connector in configuration.connectors:
        access = kafka_access(configuration, connector.name)
        topic = configuration.ledger_topic
        if not sees(access, topic):
            continue
        for _, entry in entries(access, topic):
            if entry["type"] != "record" or entry["connector"] != connector.name:
                continue
            if int(entry["since_ms"]) < since_ms or int(entry["begin"]) == int(entry["end"]):
                continue
            claiming = {
                target.entry
                for target in map(TargetShard.of, entry["insert_counters"])
                if target.shard == CLAIMS
            }
            try:
                record = decode(int(entry["begin"]), str(entry["metadata"]))
            except InvalidRecordError:
                continue
            for name in claiming.intersection(keyed.entries):
                loader = loader_number(configuration.pipeline, connector.name, name)
                place = _place(record.topic_id, loader, int(entry["partition"]))
                found[place] = min(found.get(place, record.begin), record.begin)
    return found


def _place(topic_id: str, loader: int, partition: int) -> bytes:
    return topic_bytes(topic_id) + loader.to_bytes(4, "big") + partition.to_bytes(4, "big")


def _is_within(owners: Owners, begins: dict[bytes, int]) -> NDArray[np.bool_]:
    """Of each row, whether a range within the window has brought it."""
    places = np.ascontiguousarray(owners[:, :_PLACE_BYTES]).view(f"V{_PLACE_BYTES}")[:, 0]
    distinct, numbers = np.unique(places, return_inverse=True)
    none = np.iinfo(np.int64).max
    first = np.array([begins.get(place.tobytes(), none) for place in distinct], np.int64)
    offsets = owners.view(OWNER)[:, 0]["offset"].astype(np.int64)
    return np.asarray(offsets >= first[numbers.reshape(-1)], np.bool_)


def _who(owner: Owners) -> str:
    (found,) = owner.view(OWNER)
    return f"offset {found['offset']} of partition {found['partition']} has its key"


def _told(configuration: Configuration, keyed: KeyedTable, owner: Owners, who: str) -> str:
    """A row that is wrong, in words."""
    (found,) = owner.view(OWNER)
    table = keyed.table
    where: dict[str, str | int] = {
        "database": table.database,
        "table": table.table,
        "partition": int(found["partition"]),
        "offset": int(found["offset"]),
        "row": int(found["row"]),
    }
    row = "AND _row = {row:UInt32}" if "_row" in table.lineage else ""
    shown = [name for name in key_columns_of(configuration, table) if name not in LINEAGE_TYPES]
    query = (
        f"SELECT _topic, {SOURCE}, {', '.join(map(identifier, shown))} "
        "FROM {database:Identifier}.{table:Identifier} "
        f"WHERE _partition = {{partition:UInt32}} AND _offset = {{offset:UInt64}} {row}"
    )
    access = access_of(configuration)

    def ask(server: Server) -> list[dict[str, object]]:
        return server.query(query, where)

    for shard in table.shards:
        for found in on_shard(access, shard, ask):
            if _is_of(str(found[SOURCE]), bytes(owner[:8])):
                key = ", ".join(f"{name} = {found[name]!r}" for name in shown)
                place = f"{found['_topic']}[{where['partition']}] offset {where['offset']}"
                return f"{place}: {who}; {key}"
    return f"partition {where['partition']} offset {where['offset']}: {who}"


def _is_of(source: str, topic: bytes) -> bool:
    """Whether a row's `_source` names this topic."""
    parts = source.split("/")
    return len(parts) == 5 and len(parts[2]) == 11 and topic_bytes(parts[2]) == topic
