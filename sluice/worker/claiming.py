"""Claims of a block's keys: which rows go into the table, and which are duplicates (R20, H23)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import NOBODY, OWNER, Owners, topic_bytes, topic_text
from sluice.claims.port import ClaimStore, StoreAwayError
from sluice.core.claims import CLAIMS, OWNER_BYTES, Deduplicate
from sluice.core.dead_letters import DUPLICATE, DUPLICATE_KEY, DUPLICATE_OF
from sluice.core.load_spec import TableSpec
from sluice.core.receipts import ClaimedRows, DeadLetterReason, Into
from sluice.core.server_runs import is_same_run
from sluice.decode.keys.hashing import Keyed, RowKeys
from sluice.decode.keys.kept import kept
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import Origins
from sluice.worker.bundle import Bundle

#: Of what a copy says of its key.
_KEY_CHARACTERS_MAX = 1_000


class OtherStoreError(StoreAwayError):
    """The store of claims is not the one that the range was recorded under."""

    hint = (
        "The driver looks into the tables first, and claims what it finds; no action is needed. "
        "`sluice status` says what it waits for."
    )


@dataclass(frozen=True, slots=True)
class Claimed:
    """A block whose keys are claimed.

    :param block: without the rows that others own.
    :param left_out: rows that others own.
    :param counts: what was asked; `left_out` of it in two parts.
    :param places: of messages of which all rows are left out, ascending.
    :param told: where copies are wanted, of each row that is left out: the place of its message,
        the values of its key in JSON, and who has that.
    """

    block: Decoded
    left_out: int
    counts: ClaimedRows
    places: NDArray[np.uint64]
    told: tuple[tuple[int, str, Owners], ...] = ()


def require_run(store: ClaimStore, bundle: Bundle) -> None:
    """The claims of a range are worth something in the store's run that its record names: another
    one may lack claims, of this range or of others.

    :raises OtherStoreError: it is another one.
    """
    run = store.run()
    recorded = bundle.background.servers.get(CLAIMS)
    if not is_same_run(recorded, run):
        raise OtherStoreError(
            f"{bundle}: it is recorded under run {recorded or 'none'} of the store of claims, "
            f"which is in run {run}; nothing was inserted"
        )


def claim(
    store: ClaimStore,
    bundle: Bundle,
    table: TableSpec,
    row_keys: RowKeys,
    decoded: Decoded,
    origins: Origins,
    loader: int,
) -> Claimed:
    """Claim the keys of a block. A row stays if the message that it is of owns its key, whoever
    claimed it for this message.

    :param decoded: what may be inserted: nothing of it is refused any more for what it says.
    :param loader: see `core.claims.loader_number`.
    :raises StoreAwayError: nobody answers, or not everybody was asked; nothing was inserted.
    """
    deduplicate = _of(table)
    require_run(store, bundle)
    keyed = row_keys.of(decoded)
    owners = bundle.owners(origins, loader, decoded.offsets, keyed.rows)
    # Of equal keys the first one stays, whatever the order of the block: the same one each time.
    asked = _canonical(keyed, decoded.offsets)
    # The same in each attempt, so that what holds and what is over is the same, too.
    since_s = bundle.background.since_ms // 1000
    mine = np.ascontiguousarray(owners[asked])
    began = time.monotonic()
    holders = store.claim(
        np.ascontiguousarray(keyed.keys[asked]), mine, since_s + deduplicate.window_seconds, since_s
    )
    require_run(store, bundle)  # it may have changed between two of them
    seconds = time.monotonic() - began
    is_mine = (holders.view(np.uint32) == mine.view(np.uint32)).all(axis=1)
    if is_mine.all():
        return Claimed(decoded, 0, ClaimedRows(len(mine), 0, 0, seconds), np.empty(0, np.uint64))
    stays = np.ones(decoded.rows, np.bool_)
    stays[asked] = is_mine
    block = kept(decoded, stays)
    places = np.unique(decoded.offsets[~stays])
    if keyed.rows.any():  # of some messages other rows may stay
        places = np.setdiff1d(places, block.offsets)
    told: tuple[tuple[int, str, Owners], ...] = ()
    if deduplicate.duplicates != "drop" and len(places):
        of_rows = np.zeros((decoded.rows, OWNER_BYTES), np.uint8)
        of_rows[asked] = holders
        left = kept(decoded, ~stays)
        told = tuple(zip(left.offsets.tolist(), row_keys.texts(left), of_rows[~stays], strict=True))
    left_out = decoded.rows - block.rows
    in_ranges = _in_ranges(bundle, loader, holders[~is_mine])
    counts = ClaimedRows(len(mine), in_ranges, left_out - in_ranges, seconds)
    return Claimed(block, left_out, counts, places, told)


def _in_ranges(bundle: Bundle, loader: int, owners: Owners) -> int:
    """How many of these owners are rows of the bundle's ranges, for the same table entry."""
    found = np.ascontiguousarray(owners).view(OWNER)[:, 0]
    topics = np.ascontiguousarray(owners[:, :8]).view(np.uint64)[:, 0]
    count = 0
    for member in bundle.members:
        block_range, source = member.block_range, member.block_range.source
        (topic,) = np.frombuffer(topic_bytes(member.record.topic_id), np.uint64)
        is_of = (found["partition"] == source.partition) & (topics == topic)
        is_of &= (found["offset"] >= block_range.begin) & (found["offset"] < block_range.end)
        count += int(np.count_nonzero(is_of & (found["loader"] == loader)))
    return count


def duplicate_faults(
    table: TableSpec, bundle: Bundle, claimed: Claimed
) -> Iterator[tuple[int, DeadLetterReason]]:
    """What is said of each message that made no row, with its place."""
    topics = {member.record.topic_id: member.block_range.source.topic for member in bundle.members}
    is_copied = set(claimed.places.tolist())
    for place, key, owner in claimed.told:
        if place not in is_copied:
            continue
        (found,) = owner.view(OWNER)
        topic = topic_text(bytes(owner[:8]))
        where = f"{topics.get(topic, f'topic {topic}')}[{found['partition']}]"
        facts = [(DUPLICATE_KEY, key[:_KEY_CHARACTERS_MAX])]
        if bytes(owner) == NOBODY:
            error = "a row that no message is known of has this key"
        else:
            error = f"{where} offset {found['offset']} has this key"
            facts.append((DUPLICATE_OF, f"{topic}/{found['partition']}/{found['offset']}"))
        into: Into = "duplicates" if _of(table).duplicates == "topic" else "dead-letters"
        yield place, DeadLetterReason(table.entry, DUPLICATE, error, into=into, facts=tuple(facts))


def _of(table: TableSpec) -> Deduplicate:
    assert table.deduplicate is not None, table.entry
    return table.deduplicate


def _canonical(keyed: Keyed, places: NDArray[np.uint64]) -> NDArray[np.int64] | slice:
    """The rows that have a key, in the order of messages and of rows in them."""
    is_ordered = bool((places[1:] >= places[:-1]).all()) and not keyed.rows.any()
    if is_ordered and keyed.has_key.all():
        return slice(None)  # nothing is copied
    found = np.flatnonzero(keyed.has_key)
    return found if is_ordered else found[np.lexsort((keyed.rows[found], places[found]))]
