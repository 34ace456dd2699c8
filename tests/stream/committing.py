"""A target, rows that are staged for it, and drivers that commit them and may die between any two
statements. The server and everything that is sent to it are real."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import InsertPlan
from sluice.clickhouse.schema import describe_table
from sluice.stream.commit import Committer, Epoch, QueryIdentity
from sluice.stream.marks import Winner
from sluice.stream.names import query_prefix, staged_name
from sluice.stream.options import SHARD
from sluice.stream.staging import InsertManner, Stage

PARTITIONS = 2
_DDL = (
    "CREATE TABLE {name} (id Int64, text String) ENGINE = MergeTree PARTITION BY id % "
    f"{PARTITIONS} ORDER BY id"
)


_T = TypeVar("_T")


class DiedError(BaseException):
    """The process is gone: nothing catches this, and nothing follows."""


class Mortal(Server):
    """A client whose process dies at its nth statement.

    :param dies_at: counted from 0; None: never.
    :param after: the statement is done before.
    """

    def __init__(self, url: str, dies_at: int | None = None, *, after: bool = False) -> None:
        super().__init__(url)
        self._dies_at = dies_at
        self._after = after
        self.statements = list[str]()

    def execute(self, sql: str, *arguments: Any, **more: Any) -> str:
        return self._step(sql, lambda: super(Mortal, self).execute(sql, *arguments, **more))

    def insert(self, plan: InsertPlan, *arguments: Any) -> InsertReply:
        return self._step(plan.query, lambda: super(Mortal, self).insert(plan, *arguments))

    def _step(self, sql: str, send: Callable[[], _T]) -> _T:
        number = len(self.statements)
        if self._dies_at is not None and (number > self._dies_at):
            raise DiedError
        self.statements.append(sql)
        if number == self._dies_at and not self._after:
            raise DiedError
        reply = send()
        if number == self._dies_at:
            raise DiedError
        return reply


class Unlisted(Server):
    """A client whose first look at which table has a name comes while somebody renames it: as a
    server may list it then, under neither name. It has its name back before the next statement."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.url)
        self._name = f"{target.database}.{target.table}"
        self.looks = 0

    def query(self, sql: str, *arguments: Any, **more: Any) -> list[dict[str, Any]]:
        if " AS own" not in sql:
            return super().query(sql, *arguments, **more)
        self.looks += 1
        if self.looks > 1:
            return super().query(sql, *arguments, **more)
        self.execute(f"RENAME TABLE {self._name} TO {self._name}_away")
        try:
            return super().query(sql, *arguments, **more)
        finally:
            self.execute(f"RENAME TABLE {self._name}_away TO {self._name}")


class Target:
    """A fresh table, and what is staged for it."""

    def __init__(self, url: str, database: str, ddl: str = _DDL) -> None:
        self.url = url
        self.database = database
        self.server = Server(url)
        self.table = f"t{uuid.uuid4().hex[:8]}"
        self.server.execute(ddl.format(name=f"{database}.{self.table}"))
        self.query = f"query {self.table}"
        self._numbers = itertools.count(0, 1000)

    def stage(self, epoch: int, tasks: int = 2, checkpoint: str = "c", rows: int = 7) -> Epoch:
        """Rows that no other call stages, as so many tasks stage them."""
        winners = []
        facts = describe_table(self.server, self.database, self.table)
        settings = insert_settings(read_capabilities(self.server))
        manner = InsertManner(settings, "lz4", 30.0)
        for partition in range(tasks):
            prefix = query_prefix(self.query)
            name = staged_name(prefix, checkpoint, epoch, partition, uuid.uuid4().hex[:12])
            stage = Stage(self.server, facts, name, manner)
            first = next(self._numbers)
            ids = list(range(first, first + rows))
            texts = [f"epoch {epoch}" for _ in ids]
            stage.add([pa.record_batch({"id": pa.array(ids), "text": pa.array(texts)})])
            stage.check()
            winners.append(Winner(SHARD, name, rows))
        return Epoch(epoch, tuple(winners), tasks * rows, False)

    def committer(
        self, server: Server | None = None, checkpoint: str = "c", takeover: str = ""
    ) -> Committer:
        who = QueryIdentity(self.query, checkpoint, takeover)
        return Committer({SHARD: server or Server(self.url)}, self.database, self.table, who)

    def ids_of(self, epoch: Epoch) -> list[int]:
        """Those that were staged, before they are committed."""
        found = [
            int(row["id"])
            for staged in epoch.winners
            for row in self.server.query(f"SELECT id FROM {self.database}.{staged.table}")
        ]
        return sorted(found)

    def ids(self, where: str = "1") -> list[int]:
        rows = self.server.query(
            f"SELECT id FROM {self.database}.{self.table} WHERE {where} ORDER BY id"
        )
        return [int(row["id"]) for row in rows]

    def tables(self) -> Counter[str]:
        """How many tables of each kind the query has beside its target."""
        prefix = query_prefix(self.query)
        rows = self.server.query(
            "SELECT name FROM system.tables WHERE database = {database:String} "
            "AND startsWith(name, {prefix:String})",
            {"database": self.database, "prefix": prefix},
        )
        kinds: Mapping[str, str] = {"mark": "mark", "new": "new"}
        parts = (str(row["name"])[len(prefix) :].split("_")[0] for row in rows)
        return Counter(kinds.get(part, "staged") for part in parts)
