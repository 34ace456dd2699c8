"""Every replica of a cluster against what was produced, and against the others of its shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sluice.clickhouse.http import Server
from sluice.kafka.dead_letters import read_dead_letters
from sluice.testbed.chaos.clustered import ClusterStage
from sluice.testbed.chaos.content import ContentReport, Rows, compare, rows_in
from sluice.testbed.chaos.receipts import ReceiptFindings, examine_receipts
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
    ledger = [entry for center in stage.centers.values() for entry in stage.ledger(center)]
    receipts = examine_receipts(ledger, of_shards(stage))
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

        dead_letters = read_dead_letters(center.access, stage.configuration.dead_letters_topic)
        places = [(letter.partition, letter.offset) for letter in dead_letters]
        reports.append(compare(truth, rows_of, places))
    return sum(reports[1:], reports[0])


def of_shards(stage: ClusterStage) -> dict[str, tuple[str, ...]]:
    """The URLs of each shard's replicas, as the configuration has them."""
    return {
        shard: tuple(
            f"http://127.0.0.1:{way.port}"
            for name, way in stage.ways.items()
            if name.startswith(f"{shard}/")
        )
        for shard in stage.cluster.shards
    }


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
