"""Whether the messages of the rows within the window own the keys of their events (R20)."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import OWNER, Keys, Owners, topic_bytes
from sluice.claims.port import ClaimStore
from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import identifier
from sluice.config import Configuration
from sluice.core.budget import TargetShard
from sluice.core.claims import CLAIMS, OWNER_BYTES, loader_number
from sluice.core.load_spec import LINEAGE_TYPES, SOURCE
from sluice.core.records import InvalidRecordError, decode
from sluice.driver.shards import on_shard
from sluice.driver.specs import access_of, kafka_access
from sluice.kafka.cluster import Cluster
from sluice.kafka.ledger import entries
from sluice.ops.claims import KeyedTable, key_columns_of, store_of, stored_keys

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
    for keys, owners in stored_keys(configuration, keyed, keyed.window_seconds):
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
        if topic not in Cluster(access).topics:
            continue
        for _, entry in entries(access, topic):
            if entry["type"] != "record" or entry["connector"] != connector.name:
                continue
            if int(entry["since_ms"]) < since_ms or int(entry["begin"]) == int(entry["end"]):
                continue
            claiming = {
                target.entry
                for target in map(TargetShard.of, entry["marks"])
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
        for stored in on_shard(access, shard, ask):
            if _is_of(str(stored[SOURCE]), bytes(owner[:8])):
                key = ", ".join(f"{name} = {stored[name]!r}" for name in shown)
                place = f"{stored['_topic']}[{where['partition']}] offset {where['offset']}"
                return f"{place}: {who}; {key}"
    return f"partition {where['partition']} offset {where['offset']}: {who}"


def _is_of(source: str, topic: bytes) -> bool:
    """Whether a row's `_source` names this topic."""
    parts = source.split("/")
    return len(parts) == 5 and len(parts[2]) == 11 and topic_bytes(parts[2]) == topic
