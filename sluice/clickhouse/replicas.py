"""Whether the servers of a shard are replicas of one table."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.clickhouse.schema import TableFacts
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import TableSpec


class ReplicaAwayError(TransientError):
    """This replica takes no inserts now; another one may. Nothing was sent."""

    hint = "See system.replicas on that server; the block goes to another replica meanwhile."


def refuse_own_windows(facts: TableFacts, shard: str, urls: Sequence[str]) -> None:
    """Several servers must not have a window each, of a table or of a view's target.

    :param urls: all servers of the shard.
    :raises TerminalError: they have.
    """
    for each in (facts, *(dependent.target for dependent in facts.all_dependents())):
        if len(urls) > 1 and each.engine.endswith("MergeTree") and not each.replicated:
            raise TerminalError(
                f"{each.target} on {each.url} is a {each.engine}, which is not replicated, and the "
                f"shard {shard} names {len(urls)} servers: a block in doubt at one is unknown to "
                "the others",
                "Use ReplicatedMergeTree tables, or name one server in that shard.",
            )


def refuse_other_table(
    facts: TableFacts, table: TableSpec, shard: str, urls: Sequence[str]
) -> None:
    """Blocks in doubt at one replica are known at another only if both are one table (H15).

    :param facts: of the table on one server.
    :param table: what the block was made for.
    :param urls: all servers of the shard.
    :raises TerminalError: it is another table, or each server has one of its own.
    :raises ReplicaAwayError: it takes no inserts now.
    """
    refuse_own_windows(facts, shard, urls)
    where = f"{facts.target} on {facts.url}"
    path = dict(table.zookeeper_paths).get(shard)
    if path is None:
        return
    if facts.zookeeper_path and facts.zookeeper_path != path:
        raise TerminalError(
            f"{where} is the table at {facts.zookeeper_path} in ZooKeeper, and the blocks are for "
            f"the one at {path}: what is in doubt there is unknown here",
            "Name only servers whose replicas share one zookeeper_path in a shard, then start the "
            "driver again.",
        )
    if not facts.replicated:
        raise TerminalError(
            f"{where} is a {facts.engine}, and the blocks are for the Replicated table at {path}",
            "Start the driver again: what is in doubt is probed.",
        )
    if facts.is_readonly or not facts.zookeeper_path:
        raise ReplicaAwayError(f"{where} is read-only: it has no session with ZooKeeper")
