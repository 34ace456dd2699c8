"""The tables' side of an audit: how many rows each offset has."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.probe import source_literal, why_not_in_sync
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import OF_RANGE
from sluice.clickhouse.vanishing import lacking_in_key
from sluice.core.errors import TransientError
from sluice.core.load_spec import SOURCE, Sharding
from sluice.core.ranges import TopicPartition
from sluice.decode.sharding.splitter import sharding_key
from sluice.driver.specs import carries
from sluice.verify.audit_chunk import Counts

_logger = logging.getLogger("sluice.audit")

_TIMEOUT_SECONDS = 600.0

# Inside out: rows of each (offset, _row); rows of each offset; offsets with equal counts in
# one sorted array; the begins and ends of its runs without gaps.
_RUNS = f"""
SELECT found, different,
    arrayFilter((o, before) -> o != before + 1, offsets,
        arrayPushFront(arrayPopBack(offsets), toInt64(-2))) AS firsts,
    arrayFilter((o, after) -> o + 1 != after, offsets,
        arrayPushBack(arrayPopFront(offsets), toInt64(-2))) AS lasts
FROM (
    SELECT found, different, arraySort(groupArray(o)) AS offsets
    FROM (
        SELECT o, sum(n) AS found, count() AS different
        FROM (
            SELECT toInt64(_offset) AS o, ROW AS r, count() AS n
            {OF_RANGE} WHOSE
            GROUP BY o, r
        )
        GROUP BY o
    )
    GROUP BY found, different
)
"""

_OUTSIDE = """
SELECT countIf(_offset < {begin:UInt64}) AS below, countIf(_offset >= {end:UInt64}) AS above,
    toUInt64(max(_offset)) AS last
FROM {database:Identifier}.{table:Identifier}
WHERE _topic = {topic:String} AND _partition = {partition:UInt32} WHOSE
"""

_MISPLACED = (
    f"SELECT count() AS n {OF_RANGE} AND (KEY) % {{shards:UInt64}} != {{place:UInt64}} WHOSE"
)

_OTHERS = """
SELECT toString(_source) AS who, count() AS n, toUInt64(min(_offset)) AS first,
    toUInt64(max(_offset)) AS last
FROM {database:Identifier}.{table:Identifier}
WHERE _topic = {topic:String} AND _partition = {partition:UInt32}
    AND _offset >= {begin:UInt64} WHOSE
GROUP BY who ORDER BY who
"""

_NAMELESS = """
SELECT 1 AS n FROM {database:Identifier}.{table:Identifier}
WHERE _topic = {topic:String} AND _source = SOURCE LIMIT 1
"""

_PARTITIONS = """
SELECT toUInt64(_partition) AS partition, count() AS n
FROM {database:Identifier}.{table:Identifier}
WHERE _topic = {topic:String} AND _partition >= {count:UInt32} WHOSE
GROUP BY partition ORDER BY partition
"""


@dataclass(frozen=True, slots=True)
class Loaders:
    """Who loads rows, as the column `_source` says it; "" said nothing, before it was added.

    :param but: everybody but these.
    """

    names: tuple[str, ...]
    but: bool = False


@dataclass(frozen=True, slots=True)
class Outside:
    """Rows of a partition outside an interval of offsets.

    :param last: the largest offset of all its rows; 0 without any.
    """

    below: int
    above: int
    last: int


class TableReader:
    """Reads the lineage columns of one table on its shards. Not for several threads at once.

    :param shards: their names.
    :param is_gentle: rows are counted in one thread of a server, of a replica that has all that any
        has.
    :raises TerminalError: the table cannot be read.
    :raises TransientError: no replica of a shard answers.
    """

    def __init__(
        self,
        access: ClickHouseAccess,
        database: str,
        table: str,
        shards: Iterable[str],
        *,
        is_gentle: bool = False,
    ) -> None:
        self.target = f"{database}.{table}"
        self._settings = {"max_threads": "1"} if is_gentle else {}
        self._places = [
            _open(access, shard, database, table, must_be_complete=is_gentle)
            for shard in sorted(shards)
        ]

    @property
    def facts(self) -> TableFacts:
        """Of the table on the first shard."""
        return self._places[0][1]

    def close(self) -> None:
        """Close the connections."""
        for server, _ in self._places:
            server.close()

    @property
    def tells(self) -> bool:
        """Whether rows say who loaded them, on each shard."""
        return all(
            any(column.name == SOURCE and carries(column) for column in facts.columns)
            for _, facts in self._places
        )

    def has_nameless(self, topic: str) -> bool:
        """Whether rows of a topic say nothing of who loaded them, as from before the column
        `_source` was added."""
        return any(
            server.query(
                _NAMELESS.replace("SOURCE", source_literal(facts, "")),
                _names(facts, topic),
                self._settings,
                timeout_seconds=_TIMEOUT_SECONDS,
            )
            for server, facts in self._places
        )

    def counts(
        self, source: TopicPartition, begin: int, end: int, whose: Loaders | None = None
    ) -> tuple[Counts, Counts]:
        """For each offset of [begin, end): its rows, and how many differ in `_row`.

        Rows of a message stand in one shard together, so the same ones in another are doubled."""
        found = np.zeros(end - begin, np.int32)
        different = np.zeros(end - begin, np.int32)
        where = {"partition": source.partition, "begin": begin, "end": end}
        for row in self._rows(_RUNS, source.topic, whose, where):
            inside = _inside(begin, end, row["firsts"], row["lasts"])
            found[inside] += int(row["found"])
            different[inside] = np.maximum(different[inside], int(row["different"]))
        return found, different

    def outside(
        self, source: TopicPartition, begin: int, end: int, whose: Loaders | None = None
    ) -> Outside:
        """Rows of the partition below begin, and from end on."""
        where = {"partition": source.partition, "begin": begin, "end": end}
        rows = [*self._rows(_OUTSIDE, source.topic, whose, where)]
        below, above = (sum(int(row[name]) for row in rows) for name in ("below", "above"))
        return Outside(below, above, max(int(row["last"]) for row in rows))

    def others(
        self, source: TopicPartition, begin: int, known: Loaders
    ) -> tuple[dict[str, int], int, int]:
        """Rows from begin on that none of these loaded, by what `_source` says; the first of
        their offsets, and the last plus 1."""
        found: dict[str, int] = {}
        first, end = 1 << 64, 0
        where = {"partition": source.partition, "begin": begin}
        for row in self._rows(_OTHERS, source.topic, Loaders(known.names, but=True), where):
            who = str(row["who"])
            found[who] = found.get(who, 0) + int(row["n"])
            first, end = min(first, int(row["first"])), max(end, int(row["last"]) + 1)
        return found, first, end

    def misplaced(
        self,
        source: TopicPartition,
        begin: int,
        end: int,
        sharding: Sharding,
        whose: Loaders | None = None,
    ) -> int:
        """Rows of [begin, end) that stand in another shard than this sharding says; 0 where the
        server cannot tell.
        """
        where = {"partition": source.partition, "begin": begin, "end": end}
        where["shards"] = len(self._places)
        try:
            return sum(
                int(row["n"])
                for row in self._rows(_MISPLACED, source.topic, whose, where, sharding)
            )
        except TerminalServerError as error:
            _logger.warning("%s: whose shard a row is cannot be told: %s", self.target, error)
            return 0

    def beyond(self, topic: str, count: int, whose: Loaders | None = None) -> dict[int, int]:
        """Rows by partition, for partitions from `count` on."""
        found: dict[int, int] = {}
        for row in self._rows(_PARTITIONS, topic, whose, {"count": count}):
            partition = int(row["partition"])
            found[partition] = found.get(partition, 0) + int(row["n"])
        return found

    def _rows(
        self,
        query: str,
        topic: str,
        whose: Loaders | None,
        where: Mapping[str, int],
        sharding: Sharding | None = None,
    ) -> Iterator[dict[str, Any]]:
        """What all shards answer; to each its place among them is told, too."""
        for place, (server, facts) in enumerate(self._places):
            yield from server.query(
                _asked(facts, query, whose, sharding),
                {**_names(facts, topic), **where, "place": place},
                self._settings,
                timeout_seconds=_TIMEOUT_SECONDS,
            )


def _asked(
    facts: TableFacts, query: str, whose: Loaders | None, sharding: Sharding | None = None
) -> str:
    """The query for this table. Where rows that come twice are one, it is asked for as such."""
    if not lacking_in_key(facts):
        query = query.replace("{table:Identifier}", "{table:Identifier} FINAL")
    has_row = any(column.name == "_row" for column in facts.columns)
    words = {
        "ROW": "toUInt64(_row)" if has_row else "toUInt64(0)",
        "KEY": "" if sharding is None else sharding_key(sharding, facts.columns),
        "WHOSE": _whose(facts, whose),
    }
    # All at once: who loads rows may be called like one of these words.
    return re.sub(r"\b(?:ROW|KEY|WHOSE)\b", lambda found: words[found[0]], query)


def _whose(facts: TableFacts, whose: Loaders | None) -> str:
    """The condition on `_source`."""
    if whose is None or not whose.names:
        return ""
    names = ", ".join(source_literal(facts, name) for name in whose.names)
    return f"AND _source {'NOT IN' if whose.but else 'IN'} ({names})"


def _names(facts: TableFacts, topic: str) -> dict[str, str | int | list[str] | list[int]]:
    return {"database": facts.database, "table": facts.table, "topic": topic}


def _inside(
    begin: int, end: int, firsts: Sequence[int], lasts: Sequence[int]
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The offsets that lie in one of the runs."""
    steps = np.zeros(end - begin + 1, np.int32)
    steps[np.array(firsts, np.int64) - begin] += 1
    steps[np.array(lasts, np.int64) + 1 - begin] -= 1
    inside: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.cumsum(steps[:-1]) > 0
    return inside


def _open(
    access: ClickHouseAccess, shard: str, database: str, table: str, *, must_be_complete: bool
) -> tuple[Server, TableFacts]:
    """The first replica of a shard that has everything; else the first that answers.

    :raises TransientError: none answers, or none that has everything if it must have.
    """
    behind: list[tuple[Server, TableFacts, str]] = []
    last: TransientError | None = None
    for url in access.shards[shard]:
        server = access.connect(url)
        try:
            facts = describe_table(server, database, table)
            why = why_not_in_sync(server, facts, others_may_be_away=True)
        except TransientError as error:
            server.close()
            last = error
            continue
        if not why:
            for other, _, _ in behind:
                other.close()
            return server, facts
        behind.append((server, facts, why))
    if not behind:
        assert last is not None
        raise last
    if must_be_complete:
        for server, _, _ in behind:
            server.close()
        raise TransientError(
            f"no replica has all rows of {database}.{table}: {behind[0][2]}",
            "Nothing is known of its rows until then; `sluice quorum` says what it lacks.",
        )
    _logger.warning("%s; rows that only other replicas have count as missing", behind[0][2])
    for other, _, _ in behind[1:]:
        other.close()
    return behind[0][0], behind[0][1]
