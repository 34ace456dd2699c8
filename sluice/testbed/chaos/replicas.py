"""Every replica of a cluster against what was produced, and against the others of its shard; and
what the ledger's receipts say of replicas that were passed by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.clickhouse.http import Server
from sluice.kafka.dead_letters import read_dead_letters
from sluice.testbed.chaos.cluster_stage import ClusterStage
from sluice.testbed.chaos.content import ContentReport, Rows, compare, rows_in
from sluice.testbed.chaos.sending import Truth
from sluice.testbed.chaos.stage import TABLE
from sluice.testbed.local.orders import COLUMNS, LINEAGE


@dataclass(frozen=True, slots=True)
class ReplicaFindings:
    """What every replica holds, and how it got there.

    :param content: of the worst replica, over all shards and connectors.
    :param rows: in each server's table, foreign rows included.
    :param posts: attempts to insert a block, of all drivers and workers.
    :param problems: what is not as it must be.
    """

    content: ContentReport
    rows: Mapping[str, int]
    receipts: ReceiptFindings
    posts: int
    problems: tuple[str, ...]


def compare_replicas(stage: ClusterStage, truths: Mapping[str, Truth]) -> ReplicaFindings:
    """Compare every replica, row by row.

    :param truths: by connector.
    """
    stage.make_whole()
    problems: list[str] = []
    contents = []
    for number in range(1, stage.layout.replicas + 1):
        content = _content(stage, truths, number)
        contents.append(content)
        problems += [f"replica r{number}: {example}" for example in content.examples]
    rows = whole_tables(stage, problems)
    receipts = examine_receipts(stage.ledger(), of_shards(stage))
    return ReplicaFindings(
        content=max(contents, key=lambda each: len(each.examples)),
        rows=rows,
        receipts=receipts,
        posts=stage.posts.total,
        problems=(*problems, *receipts.problems),
    )


def _content(stage: ClusterStage, truths: Mapping[str, Truth], number: int) -> ContentReport:
    """All rows of all shards, as replicas of this number have them."""
    servers = [servers[number - 1] for servers in stage.cluster.shards.values()]
    reports = []
    for name, truth in truths.items():
        center = stage.centers[name]
        topic = center.topic

        def rows_of(partition: int, topic: str = topic) -> Rows:
            found = [rows_in(server.url, TABLE, topic, partition) for server in servers]
            return np.concatenate(found)

        dead_letters = stage.configuration.dead_letters_topic
        letters = read_dead_letters(center.access, dead_letters, to_log_end=True)
        places = [(letter.partition, letter.offset) for letter in letters]
        reports.append(compare(truth, rows_of, places))
    return sum(reports[1:], reports[0])


def of_shards(stage: ClusterStage) -> dict[str, tuple[str, ...]]:
    """The URLs of each shard's replicas, as the configuration has them."""
    return {shard.name: shard.replicas for shard in stage.configuration.clickhouse.shards}


def whole_tables(stage: ClusterStage, problems: list[str]) -> dict[str, int]:
    """Rows of each server; all columns of all rows must be the same within a shard.

    :param problems: is added to.
    """
    names = ", ".join(column.split()[0] for column in COLUMNS + LINEAGE)
    query = f"SELECT count() AS n, sum(cityHash64({names})) AS hash FROM {TABLE}"
    rows: dict[str, int] = {}
    for shard, servers in stage.cluster.shards.items():
        found = {}
        for server in servers:
            name = f"{shard}/{server.settings.replica}"
            with Server(server.url) as client:
                found[name] = client.query(query, timeout_seconds=300)[0]
            rows[name] = int(found[name]["n"])
        if len({(str(each["n"]), str(each["hash"])) for each in found.values()}) > 1:
            problems.append(f"the replicas of {shard} differ: {found}")
    return rows


@dataclass(frozen=True, slots=True)
class ReceiptFindings:
    """All receipts of a run.

    :param blocks: that were acknowledged and settled.
    :param by_replica: how many each server acknowledged, by URL.
    :param failed_over: blocks that one replica at least did not take before, in the same task.
    :param passed: how often a replica was passed by, by what was wrong with it.
    :param in_doubt: of `failed_over`, those that a replica passed by may have stored as well.
    :param locked_inserts: blocks that were sent under the table's insert lock.
    :param unlocked_inserts: that were sent without it, since nobody could be asked.
    :param problems: what no receipt may say.
    """

    blocks: int
    by_replica: Mapping[str, int]
    failed_over: int
    passed: Mapping[str, int]
    in_doubt: int
    locked_inserts: int
    unlocked_inserts: int
    problems: tuple[str, ...]


def examine_receipts(
    entries: Iterable[Mapping[str, Any]], replicas: Mapping[str, tuple[str, ...]]
) -> ReceiptFindings:
    """Look at all receipts.

    :param entries: of ledgers; those that are no receipts are passed over.
    :param replicas: URLs of each shard.
    """
    # A bundle's block has a receipt for each of its members, the first of which counts it.
    receipts = [e for e in entries if e["type"] == "receipt" and not e.get("is_shared")]
    tokens = Counter(str(each["token"]) for each in receipts)
    problems = [f"{count} receipts of {token}" for token, count in tokens.items() if count > 1]
    passed: Counter[str] = Counter()
    queued = [each["queueing"] for each in receipts if each.get("queueing")]
    locked_inserts = sum(bool(each["held"]) for each in queued)
    past = [each for each in receipts if each.get("failed_over")]
    for each in past:
        before = [str(told).partition(" ") for told in each["failed_over"]]
        passed.update(name for _, _, name in before)
        tried = [url for url, _, _ in before] + [str(each["replica"])]
        if len(set(tried)) < len(tried) or not set(tried) <= set(replicas[each["shard"]]):
            problems.append(f"{each['token']} was offered to {', '.join(tried)}")
    return ReceiptFindings(
        blocks=len(receipts),
        by_replica=dict(sorted(Counter(str(each["replica"]) for each in receipts).items())),
        failed_over=len(past),
        passed=dict(sorted(passed.items())),
        in_doubt=sum(bool(each.get("in_doubt")) for each in past),
        locked_inserts=locked_inserts,
        unlocked_inserts=len(queued) - locked_inserts,
        problems=tuple(problems),
    )
