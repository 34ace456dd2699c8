"""A pipeline that deduplicates, with rows that it has loaded and claims that it has made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sluice.claims.owners import Keys, Owners, owners_of, written_offsets
from sluice.claims.port import ClaimStore
from sluice.clickhouse.http import Server
from sluice.config import Configuration, load
from sluice.core.budget import TargetShard
from sluice.core.claims import CLAIMS, loader_number
from sluice.core.ledger import Background, Commit, record_entry, settled_entry
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Duplicates, Loaded
from sluice.core.tokens import row_source
from sluice.driver.specs import read_spec
from sluice.ops.claims import store_of
from sluice.verify.message_keys import MessageKeys
from sluice.worker.routing import Router
from tests.kafka.groups import SETTLED, intend
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka

WINDOW_SECONDS = 7200
MORE = """\
[deduplication]
store = "local"
"""


class Claiming(Pipeline):
    """A table of orders, of which `id` tells one event from another."""

    def __init__(self, kafka: Kafka, folder: Path, server: Server, database: str) -> None:
        super().__init__(kafka, folder, url=server.url, database=database)
        self.server = server
        self.database = database
        text = self.path.read_text().replace(
            f'[[table]]\nname = "orders"\ntopics = ["{self.topic}"]\n',
            f'[[table]]\nname = "orders"\ntopics = ["{self.topic}"]\n'
            f'deduplicate = {{ key = ["id"], window = "{WINDOW_SECONDS}s" }}\n',
        )
        self.path.write_text(text + MORE)
        self.configuration: Configuration = load(self.path, {})
        server.execute(
            f"CREATE TABLE {database}.orders (id UInt64, note String, _topic String, "
            "_partition UInt32, _offset UInt64, _row UInt32, _source String) "
            "ENGINE = MergeTree ORDER BY id"
        )

    @property
    def spec(self) -> LoadSpec:
        return read_spec(self.configuration, "dc1")

    @property
    def table(self) -> TableSpec:
        return self.spec.tables[0]

    def insert(self, ids: dict[int, int], source: str | None = None, partition: int = 0) -> None:
        """Rows: the id that stands in the message at each offset."""
        who = row_source(
            pipeline=self.pipeline,
            connector="dc1",
            topic_id=self.topic_id,
            entry="orders",
            generation=0,
        )
        said = who if source is None else source
        values = ", ".join(
            f"({key}, 'n{key}', '{self.topic}', {partition}, {offset}, 0, '{said}')"
            for offset, key in ids.items()
        )
        self.server.execute(f"INSERT INTO {self.database}.orders VALUES {values}")

    def recorded(self, begin: int, end: int, since_ms: int) -> None:
        """A range that was recorded then, and has claimed."""
        record = intend("", begin, end)
        background = Background({TargetShard("orders", CLAIMS).key: 0}, since_ms)
        self.drive(record, background=background)

    @contextmanager
    def store(self) -> Iterator[ClaimStore]:
        with closing(store_of(self.configuration)) as store:
            yield store

    def keys(self, *ids: int) -> Keys:
        """Of messages with these ids."""

        def feed(router: Router) -> None:
            values = [b'{"id": %d, "note": "x"}' % key for key in ids]
            router.deliver(values, range(len(ids)))

        keyed = MessageKeys(self.spec, self.table)
        return keyed.of(TopicPartition(self.topic, 0), self.topic_id, feed).keys

    def owners(self, *offsets: int, **other: Any) -> Owners:
        """Of the messages at these offsets."""
        loader = loader_number(self.pipeline, other.get("connector", "dc1"), "orders")
        return owners_of(
            [other.get("topic_id", self.topic_id)],
            [0],
            0,
            loader,
            np.array(offsets, np.uint64),
            np.zeros(len(offsets), np.uint32),
        )

    def settled(self, begin: int, end: int, *duplicates: int) -> None:
        """A range was loaded, and these messages of it were left out as duplicates."""
        source, spec = self.sources[0], self.spec
        told = Duplicates(
            len(duplicates), len(duplicates), written_offsets(np.array(duplicates, np.uint64))
        )
        loaded = Loaded((), (), end - begin, 0, 0, duplicates={"orders": told})
        self.drive(intend("", begin, end), spec=spec)
        done = replace(
            SETTLED, begin=end, end=end, owner="next", topic_id=self.topic_id, spec=spec.digest()
        )
        driver = self.recorder("next")
        taken = driver.take_over([source])
        entries = (
            settled_entry(Range(source, begin, end), 1, 1, loaded),
            record_entry(source, done, Background()),
        )
        driver.finish_take_over(taken, Commit({source: done}, entries))
        self.kafka.until_stable(self.ledger)
