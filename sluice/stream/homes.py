"""Which of its shards remembers a query: the first one, which has its marks. Each other one has a
table that says so, its *home* (`marks.py`)."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.clickhouse.http import Server
from sluice.stream.errors import OtherCheckpointError
from sluice.stream.marks import Marks, drop_table
from sluice.stream.names import home_name, query_prefix


class Homes:
    """Of one query.

    :param servers: of each shard, by name; the first one has the marks.
    """

    def __init__(self, servers: Mapping[str, Server], database: str, query: str) -> None:
        self._query, prefix = query, query_prefix(query)
        self._marks = {shard: Marks(server, database, prefix) for shard, server in servers.items()}
        self._first, *self._others = servers

    @property
    def marks(self) -> Marks:
        """Those that count."""
        return self._marks[self._first]

    def check(self) -> None:
        """:raises OtherCheckpointError: it is another shard that remembers this query."""
        latest = self.marks.latest() if self._others else None
        for shard in self._others:
            marks = self._marks[shard]
            if marks.latest() is not None:
                raise self._remembered(
                    f"by the shard {shard} ({marks.server.url}), and not by the first one",
                    f"Name {shard} first in the option shards, and leave it there.",
                )
            home = marks.home()
            if home and (latest is None or latest.home != home):
                raise self._not_by_first(shard)
        if self.marks.home():
            raise self._not_by_first(self._first)

    def keep(self, home: str) -> None:
        """Have the other shards say whose marks count.

        :raises OtherCheckpointError: one says something else.
        """
        for shard in self._others:
            if self._marks[shard].keep_home(home) != home:
                raise self._not_by_first(shard)

    def forget(self) -> None:
        """The other shards do not say it any more."""
        for shard in self._others:
            marks = self._marks[shard]
            drop_table(marks.server, marks.database, home_name(marks.prefix))

    def _not_by_first(self, witness: str) -> OtherCheckpointError:
        """The shard `witness` says so."""
        marks = self._marks[witness]
        home, url = f"{marks.database}.{home_name(marks.prefix)}", marks.server.url
        return self._remembered(
            f"by another shard than {self._first}, which is named first now: so says {home} on "
            f"{url}",
            f"Name the shard first that was it, which has the tables {marks.prefix}mark_…. If the "
            f"query starts over into empty tables: drop {home} there.",
        )

    def _remembered(self, where: str, hint: str) -> OtherCheckpointError:
        return OtherCheckpointError(
            f'what the query "{self._query}" has written is remembered {where}', hint
        )
