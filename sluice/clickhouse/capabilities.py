"""What a server can do, read once, and the settings of an insert that follow from it.

Settings are sent only if the server knows them: 18.16 answers an unknown one with code
115. They are explicit even where they are today's defaults, because defaults changed
(26.x: async_insert=1) and because profiles change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import zone_of
from sluice.core.errors import ConfigurationError

#: Squash limits so high that all Native blocks of one body become one server-side block
#: (R6). A block above the default limits is not split either, on 18.16 and 26.9.
_BLOCK_ROWS_MAX = "1000000000"
_BLOCK_BYTES_MAX = "68719476736"

_ALWAYS = {
    "async_insert": "0",
    # Of a table that was given the setting of this name a moment ago, which overrides ours.
    "wait_for_async_insert": "1",
    "async_insert_deduplicate": "1",
    "insert_deduplicate": "1",
    "deduplicate_insert": "enable",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
    # Before 24.8 a server would name a view by its UUID in what it knows of the view's blocks, and
    # one that was made on each replica has another UUID there.
    "update_insert_deduplication_token_in_dependent_materialized_views": "0",
    # Unset, they are what the insert has: all that a view makes of a block is one block.
    "min_insert_block_size_rows_for_materialized_views": "0",
    "min_insert_block_size_bytes_for_materialized_views": "0",
    # No limit; `worker.inserting` puts the block's reservation here.
    "max_partitions_per_insert_block": "0",
    "throw_on_max_partitions_per_insert_block": "1",
    "min_insert_block_size_rows": _BLOCK_ROWS_MAX,
    "min_insert_block_size_bytes": _BLOCK_BYTES_MAX,
    "use_strict_insert_block_limits": "0",
    "max_insert_threads": "1",
    "parallel_view_processing": "0",
    "materialized_views_ignore_errors": "0",
    # A column of another type than the block's is refused; 26.9 would convert, and narrow 300
    # to 44 without a word (H16). 18.16 refuses by itself [measured].
    "input_format_native_allow_types_conversion": "0",
    "send_progress_in_http_headers": "0",
    # Expressions of the table are worked out in the server's own zone, which the text names.
    "session_timezone": "",
}

#: Blocks of two views into one table are two from here on, whatever is set.
_TELLS_VIEWS_APART = (24, 8)

#: For tables that keep one of equal rows.
_PAST_WINDOWS = {
    "insert_deduplicate": "0",
    "async_insert_deduplicate": "0",
    "deduplicate_insert": "disable",
    "deduplicate_blocks_in_dependent_materialized_views": "0",
    # Merges do it; in the insert it costs as much as all the rest [measured].
    "optimize_on_insert": "0",
}

_OVERFLOWS = (
    *("group_by", "sort", "distinct", "join", "set"),
    *("result", "transfer", "read", "timeout"),
)

#: A profile may set these; an insert, and what its views select, must not inherit them: they end
#: early without a word, or leave something out (#111196 for the first). Sent whatever Sluice's
#: user has: a view with a definer selects under the definer's profile and what an insert says.
_NEVER = {
    "max_execution_time": "0",
    "limit": "0",
    "offset": "0",
    "ignore_materialized_views_with_dropped_target_table": "0",
    "input_format_native_decode_types_in_binary_format": "0",
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode_leaf": "throw",
    **{f"{what}_overflow_mode": "throw" for what in _OVERFLOWS},
}

#: What is asked of a server's settings: 26.9 has 1,857.
_ASKED = (
    *("insert_deduplication_token", "insert_quorum"),
    *("insert_quorum_timeout", "insert_quorum_parallel"),
    *{**_ALWAYS, **_PAST_WINDOWS, **_NEVER},
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts of one server.

    :param version: e.g. (18, 16, 1).
    :param settings: those of Sluice's settings that it knows, with the values that its user has.
    :param locked: settings that this user may not change.
    :param hashes: `insert_deduplication_version`, by which of several hashes it knows a block; ""
        before 26.2. Of a server that keeps it from this user: no other one's.
    """

    url: str
    version: tuple[int, ...]
    time_zone: str
    host_name: str
    settings: Mapping[str, str]
    locked: frozenset[str]
    hashes: str = ""

    @property
    def tokens(self) -> bool:
        """Whether a block can carry a token; else the server hashes the rows (H14)."""
        return "insert_deduplication_token" in self.settings

    @property
    def parallel_quorums(self) -> bool:
        """Whether inserts into one table may wait for their quorums side by side; else the next
        one is refused (286) as long as one waits."""
        return "insert_quorum_parallel" in self.settings

    @property
    def feeds_views_again(self) -> bool:
        """Whether a block that the table knows goes on to its views, whose targets then decide by
        their own windows. Else what an insert that broke off left out stays missing behind them."""
        return "deduplicate_blocks_in_dependent_materialized_views" in self.settings

    @property
    def tells_views_apart(self) -> bool:
        """Whether blocks that several views write into one table are known apart: else the second
        one of an insert is swallowed. By the hash of their rows they are, unless these are equal.
        """
        return self.version >= _TELLS_VIEWS_APART or not self.tokens

    @property
    def version_text(self) -> str:
        return ".".join(str(part) for part in self.version)


def read_capabilities(server: Server) -> Capabilities:
    """Read what the server can do.

    :raises ServerError: terminal or transient.
    """
    zone = zone_of(server)
    facts = server.query(f"SELECT {zone} AS time_zone, hostName() AS host_name")[0]
    rows = known_settings(server, _ASKED)
    return Capabilities(
        url=server.url,
        version=server.version(),
        time_zone=str(facts["time_zone"]),
        host_name=str(facts["host_name"]),
        settings={str(row["name"]): str(row["value"]) for row in rows},
        locked=frozenset(str(row["name"]) for row in rows if row.get("readonly")),
        hashes=_hashes_of(server),
    )


def _hashes_of(server: Server) -> str:
    if server.version() < _KNOWS_HASHES:
        return ""
    try:
        return str(server.query(_HASHES)[0]["hashes"])
    except TerminalServerError as error:
        if error.code != _ACCESS_DENIED:
            raise
        # Only another replica needs it, of a block that is in doubt at this one.
        return f"hashes that {server.url} does not show"


def known_settings(server: Server, names: Iterable[str]) -> list[dict[str, Any]]:
    """The rows of `system.settings` for those of these settings that the server knows.

    :raises ServerError: terminal or transient.
    :raises ConfigurationError: the server does not show all of them.
    """
    # A profile with `limit` would make settings look unknown.
    for settings in ({}, {"limit": "0"}):
        rows = server.query(
            f"SELECT *, (SELECT count() {_KNOWN}) AS known {_KNOWN}", {"names": [*names]}, settings
        )
        if rows and len(rows) == int(rows[0]["known"]):
            return rows
    raise ConfigurationError(
        f"{server.url} does not show all of its settings to Sluice's user",
        "Take limits of results out of that user's profile.",
    )


#: Each of a shard's servers has its own, until it is started again with another one.
_KNOWS_HASHES = (26, 2)
_HASHES = (
    "SELECT any(value) AS hashes FROM system.server_settings "
    "WHERE name = 'insert_deduplication_version'"
)
_ACCESS_DENIED = 497
_KNOWN = "FROM system.settings WHERE has({names:Array(String)}, name)"


def insert_settings(
    capabilities: Capabilities,
    quorum: int = 1,
    quorum_timeout_seconds: float = 25.0,
    *,
    deduplicates: bool = True,
) -> dict[str, str]:
    """The settings of every insert into this server, token aside; pure.

    :param quorum: so many replicas have to have the block; 1 asks for nothing. Always a number:
        the server's own 'auto' (from 22.9) changes with the replicas that are registered, so it
        could fall between two attempts, and some versions do not check it before they write.
    :param quorum_timeout_seconds: ends before that of `Server.insert`, so that the server can
        still say that the quorum did not come (319).
    :param deduplicates: False: past the table's window, which neither swallows such a block nor
        remembers it (R22).
    :raises ConfigurationError: a quorum is wanted and the server cannot wait for one.
    """
    wanted = {**_ALWAYS, **_NEVER, **({} if deduplicates else _PAST_WINDOWS)}
    if quorum > 1:
        if "insert_quorum" not in capabilities.settings:
            raise ConfigurationError(
                f"{capabilities.url} cannot wait for a quorum of replicas",
                'Write durability = "single" in [clickhouse] if one replica is enough.',
            )
        wanted |= {
            "insert_quorum": str(quorum),
            "insert_quorum_timeout": str(int(quorum_timeout_seconds * 1000)),
            # From 20.10; its default was 0 before 21.1, and a profile may say either.
            "insert_quorum_parallel": "1",
        }
    return {
        name: value
        for name, value in sorted(wanted.items())
        if name in capabilities.settings
        and not (name in capabilities.locked and capabilities.settings[name] == value)
    }
