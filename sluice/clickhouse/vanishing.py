"""What makes rows of a table go away, or hides them from who reads it (R11).

Whoever counts rows to find out what was loaded has to know that none of them went meanwhile, and
that the server shows all that it has. Where neither can be known, nothing is concluded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import TerminalServerError
from sluice.clickhouse.schema import TableFacts, table_setting, table_settings
from sluice.clickhouse.sql import literal
from sluice.clickhouse.system import said_of_table
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import LINEAGE_TYPES

#: A server's clock may be off from the driver's by less than a lease allows for.
_CLOCKS_APART_SECONDS = 60
_COUNT_TIMEOUT_SECONDS = 600.0
_LOOKS = 5

#: What a profile may say that makes a reader see fewer rows, or others, than there are. Read only
#: and sent only where it differs, so that a profile with harmless values may be read-only.
_SEEING_ALL = {
    "limit": "0",
    "offset": "0",
    "final": "0",
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "apply_deleted_mask": "1",
    "apply_patch_parts": "1",
    "use_query_cache": "0",
    "use_query_condition_cache": "0",
    "optimize_trivial_count_query": "0",
    "optimize_use_implicit_projections": "0",
    "optimize_use_projections": "0",
    "select_sequential_consistency": "0",
    "enable_parallel_replicas": "0",
    "max_parallel_replicas": "1",
    "extremes": "0",
    "group_by_use_nulls": "0",
    "dialect": "clickhouse",
    "max_execution_time": "0",
    **dict.fromkeys(
        (
            *("max_rows_to_read", "max_bytes_to_read", "max_rows_to_read_leaf"),
            *("max_bytes_to_read_leaf", "max_rows_to_group_by", "max_rows_to_sort"),
            *("max_bytes_to_sort", "max_result_rows", "max_result_bytes", "max_rows_in_set"),
            *("max_bytes_in_set", "max_rows_in_distinct", "max_bytes_in_distinct"),
        ),
        "0",
    ),
    **dict.fromkeys(
        (
            *("read_overflow_mode", "read_overflow_mode_leaf", "group_by_overflow_mode"),
            *("sort_overflow_mode", "result_overflow_mode", "timeout_overflow_mode"),
            *("set_overflow_mode", "distinct_overflow_mode", "timeout_overflow_mode_leaf"),
        ),
        "throw",
    ),
}
#: Those that every server has: an answer without them was cut off by one of them.
ALWAYS_KNOWN = {
    name: _SEEING_ALL[name]
    for name in (
        *("max_rows_to_read", "max_bytes_to_read", "max_rows_to_group_by", "max_rows_to_sort"),
        *("max_result_rows", "max_result_bytes", "max_execution_time", "read_overflow_mode"),
        *("group_by_overflow_mode", "sort_overflow_mode", "result_overflow_mode"),
        *("timeout_overflow_mode", "extremes", "max_parallel_replicas"),
    )
}
#: The user may not change settings, or not this one.
_SETTING_CODES = {164, 452}


class CannotTellError(TerminalError):
    """Nobody can tell what of a range is in a table."""

    hint = "`sluice resolve` decides, after a look at the table."


def why_not_seen(facts: TableFacts) -> str | None:
    """Why a probe would not see all that was inserted into this table, by its definition. Pure."""
    dependents = len(list(facts.all_dependents()))
    if dependents:
        return f"{facts.target} feeds {dependents} materialized views, which a probe cannot see"
    return why_rows_go(facts)


def why_rows_go(facts: TableFacts) -> str | None:
    """Why rows of this table may go without anybody's statement, by its definition; None if they
    stay. Pure."""
    kind = facts.engine.removeprefix("Replicated")
    if facts.takes_patches:
        return (
            f"{facts.target} takes lightweight updates and deletes (enable_block_number_column and "
            "enable_block_offset_column): once they are merged, nothing says when that was"
        )
    ttl = _ttl_of(facts)
    if ttl:
        return f"{facts.target} has {ttl}"
    if kind == "ReplacingMergeTree":
        lacking = lacking_in_key(facts)
        if lacking:
            return (
                f"{facts.target} is a {facts.engine}, which keeps one row of each sorting key, and "
                f"its sorting key has no {', '.join(lacking)}"
            )
        if len(engine_arguments(facts)) > 1:
            return f"{facts.target} is a {facts.engine} that takes deleted rows out"
        return None
    if kind != "MergeTree":
        return f"{facts.target} is a {facts.engine}, which merges rows into others"
    return None


def tokens_went_until_ms(facts: TableFacts) -> int:
    """Until when a window may have forgotten a block whatever came after it, by the table's
    definition; 0 if it never does. Pure.

    With a part that merged to no row the server takes what it knew of the part's blocks [measured,
    26.9], and no insert counter tells. Where a TTL did it, a repeat has expired rows only, which go
    like those before.
    """
    until_ms = facts.dropped_empty_until_ms if _may_merge_to_nothing(facts) else 0
    return until_ms and until_ms + 1000 * _CLOCKS_APART_SECONDS


def why_tokens_go(facts: TableFacts) -> str | None:
    """Why it does so as the table is now; None if it does not. Pure."""
    if not (_may_merge_to_nothing(facts) and facts.drops_empty_parts):
        return None
    return (
        f"{facts.target} is a {facts.engine}, of which a part may merge to no row: what its window "
        "knows of that part's blocks goes with it (remove_empty_parts)"
    )


def _may_merge_to_nothing(facts: TableFacts) -> bool:
    kind = facts.engine.removeprefix("Replicated")
    return (
        kind in ("CollapsingMergeTree", "VersionedCollapsingMergeTree")
        or (kind == "SummingMergeTree" and _sums_to_zero(facts))
        or (kind == "ReplacingMergeTree" and bool(cleanup_settings(facts)))
    )


def _sums_to_zero(facts: TableFacts) -> bool:
    """Whether a row that was not all 0 may be taken out: some of its numbers have a sign."""
    key = key_elements(facts.sorting_key)
    return any(_SIGNED.search(each.type) for each in facts.columns if each.name not in key)


_SIGNED = re.compile(
    r"\b(?:Int|Float|BFloat|Decimal)\d*\b|\b(?:Map|Array|Nested|AggregateFunction)\("
)


def cleanup_settings(facts: TableFacts) -> list[str]:
    """The settings by which a table takes deleted keys out for good by itself."""
    settings = table_settings(facts.engine_full)
    on = [name for name in settings if "replacing_merge_with_cleanup" in name]
    return on if any(settings[name] not in ("0", "false") for name in on) else []


def key_elements(sorting_key: str) -> list[str]:
    """What a table is sorted by: names of columns without quotes, and expressions."""
    key = sorting_key.strip()
    if len(elements := _elements(key)) == 1 and key.startswith("(") and key.endswith(")"):
        elements = _elements(key[1:-1])
    return [each.strip("`") for each in elements]


def lacking_in_key(facts: TableFacts) -> list[str]:
    """The lineage columns that a table is not sorted by; all of those of one that does not keep one
    of equal rows."""
    if not facts.engine.endswith("ReplacingMergeTree"):
        return list(LINEAGE_TYPES)
    key = key_elements(facts.sorting_key)
    return [name for name in LINEAGE_TYPES if name not in key]


def _ttl_of(facts: TableFacts) -> str:
    """What of a table's TTL takes rows, or their lineage, away, in words; "" if nothing does."""
    outside = _QUOTED.sub("''", facts.engine_full)
    found = re.search(r"\bTTL\b(.*?)(?:\bSETTINGS\b|$)", outside, re.DOTALL)
    for rule in _elements(found[1]) if found else ():
        if not re.search(r"\b(?:TO\s+(?:DISK|VOLUME)|RECOMPRESS)\b", rule):
            return f"a TTL that deletes rows ({rule.strip()})"
    columns = _QUOTED.sub("''", facts.create_table_query).split("ENGINE", 1)[0]
    for column in _elements(columns.partition("(")[2]):
        name = column.strip().partition(" ")[0].strip("`")
        if name in LINEAGE_TYPES and re.search(r"\bTTL\b", column):
            return f"a TTL of the column {name}"
    return ""


_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'")
_STEP = re.compile(r"[(\[]|[)\]]|,|[^(\[)\],]+")


def _elements(text: str) -> list[str]:
    """What commas outside of brackets separate."""
    found, depth = [""], 0
    for step in _STEP.findall(text):
        depth += (step in "([") - (step in ")]")
        if depth < 0:
            break
        if step == "," and not depth:
            found.append("")
        else:
            found[-1] += step
    return [each.strip() for each in found if each.strip()]


def engine_arguments(facts: TableFacts) -> list[str]:
    """The arguments of an engine that are no texts (of a Replicated one's path), without quotes: of
    a ReplacingMergeTree its version, and what says that a row is deleted."""
    head = re.match(r"\w+\s*\(", facts.engine_full)
    if head is None:
        return []
    arguments = _elements(_QUOTED.sub("''", facts.engine_full[head.end() :]))
    return [each.strip("`") for each in arguments if each != "''"]


def seeing_all(server: Server) -> dict[str, str]:
    """The settings with which a query sees all rows, whatever the user's profile says.

    :raises CannotTellError: the server does not say all of them.
    """
    for first in (None, ALWAYS_KNOWN, {**ALWAYS_KNOWN, "limit": "0", "offset": "0"}):
        rows = server.query(
            "SELECT name, value FROM system.settings WHERE has({names:Array(String)}, name)",
            {"names": sorted(_SEEING_ALL)},
            first,
        )
        found = {str(row["name"]): str(row["value"]) for row in rows}
        if found.keys() >= ALWAYS_KNOWN.keys():
            wrong = {name for name in found if _differs(found[name], _SEEING_ALL[name])}
            # What was sent hides what the profile says.
            return {name: _SEEING_ALL[name] for name in wrong | (first or {}).keys()}
    raise CannotTellError(
        f"{server.url} does not show all of its settings to Sluice's user, so nobody can tell "
        "whether it shows all rows"
    )


def _differs(value: str, wanted: str) -> bool:
    return value != wanted and not (wanted in ("0", "{}") and value in ("", "0", "false", "{}"))


def require_all_rows(
    server: Server, facts: TableFacts, settings: Mapping[str, str], but: Sequence[str] = ()
) -> None:
    """Whether this user is shown every row that the parts of the table hold: a row policy, a
    filter, and rows that were deleted but not yet merged away hide some. What each part holds is
    known without reading it.

    :param settings: see `seeing_all`.
    :param but: parts whose rows are not asked for.
    :raises CannotTellError: rows are hidden, or the user may not send these settings.
    :raises TransientError: parts came and went while they were counted.
    """
    known = set(but)
    where = f"WHERE {not_in(but)}" if but else ""
    for _ in range(_LOOKS):
        before = [part for part in _parts(server, facts) if part.name not in known]
        try:
            rows = server.query(
                "SELECT _part AS part, count() AS n FROM {database:Identifier}.{table:Identifier} "
                f"{where} GROUP BY part",
                {"database": facts.database, "table": facts.table},
                settings,
                _COUNT_TIMEOUT_SECONDS,
            )
        except TerminalServerError as error:
            if error.code not in _SETTING_CODES:
                raise
            raise CannotTellError(
                f"{facts.target} on {server.url}: the profile of Sluice's user has values of "
                f"{', '.join(sorted(settings))} that may hide rows, and cannot be changed: {error}",
                "Take them out of that profile; or `sluice resolve`, after a look at the table.",
            ) from None
        shown = {str(row["part"]): int(row["n"]) for row in rows}
        held = {part.name: part for part in (*before, *_parts(server, facts))}
        fewer = [name for name, n in shown.items() if name in held and n != held[name].rows]
        active = [part for part in before if part.active and part.rows]
        unseen = [part for part in active if not part.is_in(held[n] for n in shown if n in held)]
        if not fewer and not unseen:
            return
    if fewer or all(part in _parts(server, facts) for part in unseen):
        name = (fewer or [part.name for part in unseen])[0]
        raise CannotTellError(
            f"{facts.target} on {server.url}: part {name} holds {held[name].rows} rows, and "
            f"Sluice's user is shown {shown.get(name, 0)}: a row policy hides rows, or some were "
            "deleted",
            "Take the row policy away from Sluice's user; or `sluice resolve`, after a look at "
            "the table.",
        )
    raise TransientError(
        f"{facts.target} on {server.url}: parts come and go too fast to be counted",
        "The probe is repeated; nothing is loaded before it can be believed.",
    )


def not_in(parts: Sequence[str]) -> str:
    """The condition that a row is in none of these parts, of which there are some."""
    return f"_part NOT IN ({', '.join(map(literal, parts))})"


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    rows: int
    active: bool

    def is_in(self, others: Iterable[_Part]) -> bool:
        """Whether one of the others is this part, or was merged from it among others."""
        partition, low, high = self._place
        for other in others:
            where, other_low, other_high = other._place
            if where == partition and other_low <= low and high <= other_high:
                return True
        return False

    @property
    def _place(self) -> tuple[str, int, int]:
        """Partition, first and last block number."""
        partition, low, high = self.name.split("_")[:3]
        return partition, int(low), int(high)


def _parts(server: Server, facts: TableFacts) -> list[_Part]:
    select = "SELECT name, rows, active FROM system.parts"
    rows = said_of_table(server, select, facts.database, facts.table)
    return [
        _Part(str(row["name"]), int(row["rows"]), bool(row["active"]))
        for row in rows
        if not str(row["name"]).startswith("patch-")
    ]


def require_unchanged(server: Server, facts: TableFacts, since_ms: int) -> None:
    """Whether nobody has deleted or changed rows of the table since then.

    :raises CannotTellError: a mutation did, or may have.
    """
    since = max(0, since_ms // 1000 - _CLOCKS_APART_SECONDS)
    rows = said_of_table(
        server,
        "SELECT mutation_id, command, toUnixTimestamp(create_time) AS created, is_done "
        "FROM system.mutations",
        *(facts.database, facts.table),
        "ORDER BY created",
    )
    later = [row for row in rows if int(row["created"]) >= since]
    where = f"{facts.target} on {server.url}"
    for row in later:
        command = str(row["command"])
        if _TAKES_ROWS.search(command):
            raise CannotTellError(
                f"{where}: the mutation {row['mutation_id']} has changed rows since the range was "
                f"begun: {command[:200]}"
            )
    done = sum(int(row["is_done"]) for row in rows)
    # Those that are kept are the last ones: one from before says that none since then is missing.
    if later and done == sum(int(row["is_done"]) for row in later):
        kept = table_setting(server, facts, _KEPT)
        if 0 < kept <= done:
            raise CannotTellError(
                f"{where}: the server keeps the last {kept} mutations that are done ({_KEPT}), and "
                "all of them came since the range was begun: one that is forgotten may have "
                "deleted rows",
                f"`sluice resolve`, after a look at the table. A larger {_KEPT} of the table "
                "prevents it.",
            )


_KEPT = "finished_mutations_to_keep"
_TAKES_ROWS = re.compile(r"\b(?:DELETE|UPDATE|TTL)\b", re.IGNORECASE)
