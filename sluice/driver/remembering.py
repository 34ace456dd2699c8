"""Whether deduplication windows still know the blocks of a range in doubt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.core.budget import (
    TargetShard,
    own_target_shards,
    still_remembered,
    still_young,
    why_block_forgotten,
)
from sluice.core.claims import CLAIMS
from sluice.core.ledger import Background
from sluice.core.load_spec import LoadSpec
from sluice.core.server_runs import is_same_run
from sluice.driver.parking import parked_in
from sluice.driver.ports import ShardWindow
from sluice.driver.state import PartitionState


def target_shards_of(spec: LoadSpec, topic: str) -> list[TargetShard]:
    """Every table whose window knows a range of this topic; see `Budget.target_shards`, too. The
    claims of a table are to a range what one more window is (R20); a staged one has none (R21)."""
    return [
        target_shard
        for table in spec.tables_of(topic)
        if not table.parked
        for target_shard in (
            *own_target_shards(table),
            *([TargetShard(table.entry, CLAIMS)] if table.deduplicate else []),
        )
    ]


def why_forgotten(
    state: PartitionState,
    spec: LoadSpec,
    windows: Mapping[TargetShard, ShardWindow],
    now_ms: int,
    read_since_ms: int,
) -> str | None:
    """Why a block of a range may be unknown, or known without being there; "" where all are known.

    :param spec: under which it is sent again; what is parked in it is not.
    :returns: None if a window was not read since `read_since_ms`.
    """
    background, why = state.background, ""
    insert_counters = {
        TargetShard.of(key): count for key, count in background.insert_counters.items()
    }
    parked = parked_in(spec, state.source.topic)
    own = {target_shard.own for target_shard in insert_counters if target_shard.entry not in parked}
    own.update(target_shards_of(spec, state.source.topic))
    for target_shard in {*own, *(each for each in windows if each.own in own)}:
        window = windows.get(target_shard)
        if window is None or window.read_started_ms < read_since_ms:
            return None
        # A view that was not known when the range was intended: all that its table ever took.
        insert_counter = insert_counters.get(target_shard, 0)
        table = f"{window.state.table or target_shard.name} in shard {target_shard.shard}"
        if target_shard.shard == CLAIMS and still_remembered(window.state, insert_counter):
            why = _why_not_claimed(target_shard, window, background, now_ms) or why
        elif forgotten := why_block_forgotten(
            replace(window.state, table=table),
            insert_counter,
            background.since_ms,
            now_ms,
            seconds=window.seconds,
            lost_until_ms=window.lost_until_ms,
        ):
            why = forgotten
        elif window.server and not is_same_run(
            background.servers.get(target_shard.shard), window.server
        ):
            why = (
                f"the server of {table} was started again, or failed while it stored a block, "
                "and a table that is not replicated may know a block then that it has lost"
            )
    return why


def _why_not_claimed(
    target_shard: TargetShard, window: ShardWindow, background: Background, now_ms: int
) -> str:
    """Why the claims of a range may not be what they were when it was first sent (R20)."""
    entry = target_shard.entry
    if not still_young(window.seconds, background.since_ms, now_ms):
        return f"its claims of table entry {entry} hold for {window.seconds} s, and may be over"
    if not is_same_run(background.servers.get(CLAIMS), window.server):
        return f"the store of claims of table entry {entry} was started again, or is another one"
    return ""
