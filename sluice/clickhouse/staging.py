"""The tables through which a block of a staged entry comes into its target, and their names (R21).

Beside a target `t`, for each block: the *marker* `t__sluice_<block>`, which says in the end that
the block is moved, and the *stored block* `t__sluice_<block>_<attempt>`, to which a claim adds who
moves it (`clickhouse/moving.py`). What views make of the block is in tables of the same name and
`_t<number>`, and copies of the views are called `_v<number>` (`clickhouse/copying.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

from sluice.clickhouse.copying import why_not_copied
from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import CLAIM_PATTERN, Claim, names_like
from sluice.clickhouse.schema import TOKENS, TableFacts, table_settings
from sluice.clickhouse.sql import identifier, qualified
from sluice.clickhouse.vanishing import why_not_seen
from sluice.core.errors import TerminalError
from sluice.core.load_spec import lacking_lineage

_NAME = re.compile(
    r"(?P<table>.+)__sluice_(?P<block>[0-9a-f]{16})"
    r"(?:_(?P<attempt>[0-9a-f]{16})(?:_(?P<kind>[tv])(?P<behind>[0-9]+))?"
    rf"(?:{CLAIM_PATTERN})?)?"
)
#: Settings of stored blocks: each part has a uuid, which it keeps when it is moved [measured], and
#: nothing is merged: a TTL of the target would take rows away that are counted, and drop parts all
#: of whose rows have expired, however large merges may be [measured, 26.9].
_OWN_SETTINGS = {
    "assign_part_uuids": "1",
    "max_bytes_to_merge_at_max_space_in_pool": "1",
    "max_bytes_to_merge_at_min_space_in_pool": "1",
    "max_number_of_merges_with_ttl_in_pool": "0",
}
#: A name is a name of files: ClickHouse takes 206 characters at most, less what it adds.
TARGET_CHARACTERS_MAX = 100
#: A column that a marker gets when its block is moved. All servers can add one to such a table.
_DONE = "done"
#: What they say of a column that is there already: those from 19.14 on, and those before.
COLUMN_EXISTS = (15, 44)


@dataclass(frozen=True, slots=True)
class Marker:
    """What a marker says: its block is sealed, and by which attempt.

    :param attempt: see `attempt_of`.
    :param loader: as the lineage column `_source` says it.
    :param checksum: of the block, as a receipt has it.
    :param deadline_ms: the end of the lease of the attempt.
    :param uuid: of the target; "" where tables have none.
    :param behind: database, name and uuid of the tables that views write to, as they are numbered.
    :param rows_behind: that are stored for each of them.
    :param is_done: all of the block is in its targets.
    """

    attempt: str
    uuid: str
    loader: str
    topic: str
    partition: int
    begin: int
    end: int
    rows: int
    checksum: str
    deadline_ms: int
    behind: tuple[tuple[str, str, str], ...] = ()
    rows_behind: tuple[int, ...] = ()
    is_done: bool = False

    def statement(self, database: str, name: str, engine: str) -> str:
        """Creates the marker, which fails where there is one."""
        told = asdict(self)
        del told["is_done"]
        note = identifier(json.dumps(told, sort_keys=True, separators=(",", ":")))
        return f"CREATE TABLE {qualified(database, name)} ({note} UInt8) ENGINE = {engine}"

    @staticmethod
    def read(column: str) -> Marker:
        """What the marker's column says."""
        told = json.loads(column)
        behind = tuple((database, table, uuid) for database, table, uuid in told.pop("behind"))
        rows_behind = tuple(told.pop("rows_behind"))
        return Marker(**told, behind=behind, rows_behind=rows_behind)


@dataclass(frozen=True, slots=True)
class StagingTable:
    """A table of a block, by its name.

    :param attempt: whose stored block it is; "": it is the marker.
    :param claim: None: nobody moves it yet.
    :param behind: 0: it is for the target; else the number of a table behind it, see `Marker`.
    :param is_view: it is a copy of a view.
    """

    name: str
    table: str
    block: str
    attempt: str = ""
    claim: Claim | None = None
    behind: int = 0
    is_view: bool = False

    @property
    def marker(self) -> str:
        """The name of the block's marker."""
        return f"{staging_prefix(self.table)}{self.block}"

    @property
    def deadline_ms(self) -> int:
        """Until when its attempt may fill it; of a stored block."""
        return int(self.attempt[:8], 16) * 1000


def block_name(token: str) -> str:
    """16 hexadecimal digits that name a block."""
    return hashlib.sha256(token.encode()).hexdigest()[:16]


def staging_prefix(table: str) -> str:
    """How the names of all staging tables of a target begin."""
    return f"{table}__sluice_"


def marker_name(table: str, token: str) -> str:
    """How the marker of a block is called; the names of its stored blocks begin like this."""
    return f"{staging_prefix(table)}{block_name(token)}"


def attempt_of(deadline_ms: int, random: bytes) -> str:
    """What names an attempt: the end of its lease in seconds, and 4 random bytes."""
    return f"{deadline_ms // 1000 + 1:08x}{random.hex()}"


def parsed(name: str) -> StagingTable | None:
    """What a table's name says; None: it is no staging table."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    place = (int(found["behind"] or 0), found["kind"] == "v")
    named = (name, found["table"], found["block"], found["attempt"] or "")
    return StagingTable(*named, Claim.read(found), *place)


def staging_tables(server: Server, database: str, prefix: str) -> list[StagingTable]:
    """The staging tables of a database whose names begin like this.

    :raises ServerError: terminal or transient.
    """
    found = map(parsed, names_like(server, database, prefix))
    return [each for each in found if each is not None]


def read_markers(server: Server, database: str, names: Iterable[str]) -> dict[str, Marker]:
    """What these markers say, as far as they are there, by name.

    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        "SELECT table AS marker, name AS note FROM system.columns "
        "WHERE database = {database:String} AND has({names:Array(String)}, table)",
        {"database": database, "names": sorted(names)},
    )
    done = {str(row["marker"]) for row in rows if row["note"] == _DONE}
    markers = {
        str(row["marker"]): Marker.read(str(row["note"])) for row in rows if row["note"] != _DONE
    }
    return {name: replace(marker, is_done=name in done) for name, marker in markers.items()}


def done_statement(database: str, marker: str) -> str:
    """Has a marker say that its block is moved, which it does not take back."""
    return f"ALTER TABLE {qualified(database, marker)} ADD COLUMN {_DONE} UInt8"


def stored_rows(server: Server, database: str, names: Collection[str]) -> dict[str, int]:
    """How many rows these tables have, by name, as the server counts them without reading.

    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        "SELECT table, sum(rows) AS stored FROM system.parts WHERE active "
        "AND database = {database:String} AND has({names:Array(String)}, table) GROUP BY table",
        {"database": database, "names": sorted(names)},
    )
    return dict.fromkeys(names, 0) | {str(row["table"]): int(row["stored"]) for row in rows}


def stored_name(marker: str, attempt: str, behind: int = 0) -> str:
    """How a table of a stored block is called, before it is claimed."""
    return f"{marker}_{attempt}_t{behind}" if behind else f"{marker}_{attempt}"


def copy_name(marker: str, attempt: str, number: int) -> str:
    """How a copy of a view is called, by which a stored block is filled."""
    return f"{marker}_{attempt}_v{number}"


def create_like(
    facts: TableFacts,
    database: str,
    name: str,
    *,
    moves: bool,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The statement that creates a table from whose partitions the target takes parts: like the
    target, as a table that merges no rows, so that what was inserted can be counted.

    :param facts: of the target.
    :param moves: see `why_not_staged`; then its parts are known by uuids of their own.
    :param more: settings that it has beside.
    :raises TerminalError: the target's definition is too old.
    """
    create = f"CREATE TABLE {qualified(database, name)} AS "
    create += qualified(facts.database, facts.table)
    if facts.engine == "MergeTree" and not (moves and "ORDER BY" in facts.engine_full):
        return create
    head = re.match(r"\w+\s*(\((?:[^()']|'(?:[^'\\]|\\.)*'|\([^()]*\))*\))?", facts.engine_full)
    clauses = facts.engine_full[head.end() :] if head else ""
    if "ORDER BY" not in clauses:
        raise TerminalError(
            f"{facts.target} on {facts.url} is defined in a way of long ago, without ORDER BY: "
            f"{facts.engine_full[:200]}",
            'Create it with ENGINE = … ORDER BY …; or delivery = "block".',
        )
    for name, value in {**_OWN_SETTINGS, **more}.items() if moves else ():
        if name in table_settings(facts.engine_full):
            clauses = re.sub(rf"\b{name} = [^,\s]+", f"{name} = {value}", clauses)
        else:
            comma = "," if "SETTINGS" in TOKENS.findall(clauses) else " SETTINGS"
            clauses += f"{comma} {name} = {value}"
    return f"{create} ENGINE = MergeTree {clauses.strip()}"


def why_not_staged(
    facts: TableFacts, lineage: Collection[str], rows: str, *, moves: bool
) -> str | None:
    """Why blocks cannot be staged for this table; None: they can. Pure.

    :param lineage: the lineage columns that the entry's blocks carry.
    :param rows: of a message, "one" or "many".
    :param moves: the server moves partitions between tables; else it copies them, and only the
        rows tell whether it has.
    """
    views = ", ".join(dependent.view for dependent in facts.all_dependents())
    if views and not moves:
        return (
            f"it feeds {views}, and this server copies partitions between tables instead of moving "
            "them: what views make of rows does not tell whether it has"
        )
    if views and (why := why_not_copied(facts)):
        return f"{why}, and a partition that is moved into it feeds no view"
    if unseen := ", ".join(facts.all_unseen()):
        return (
            f"it feeds {unseen}, of which the server shows no materialized view: this user may not "
            "see it (GRANT SHOW TABLES ON it), or it is a view of another kind; and a partition "
            "that is moved feeds none"
        )
    if facts.replicated:
        return "it is replicated, and a block is sealed at one server only"
    if len(facts.table) > TARGET_CHARACTERS_MAX:
        return f"its name has more than {TARGET_CHARACTERS_MAX} characters"
    if moves:
        return None
    lacking = lacking_lineage(lineage, rows)
    why = f"it has no lineage column {', '.join(lacking)}" if lacking else why_not_seen(facts)
    if why is not None:
        return (
            "this server copies partitions between tables instead of moving them, so its rows have "
            f"to tell whether it has, and they do not: {why}"
        )
    return None
