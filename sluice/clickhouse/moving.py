"""Moving the ClickHouse partitions of one table into another, each exactly once (R21).

A MOVE is no redo by itself: two at once may take the same part, and a server that is killed in
between has it in both tables [measured]. So there is one mover at a time, who *claims* a table by
renaming it: what was sent under its older name fails. What a claim leaves open when its server is
started again is decided by the parts that the target got since.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import literal, qualified
from sluice.clickhouse.structure import known_uuid

#: A table, or its new name, that another attempt was quicker with.
UNKNOWN_TABLE, TABLE_EXISTS = 60, 57
#: What a server says of a partition whose table has other columns than the one that it is to go to.
OTHER_STRUCTURE = 122
#: Of a server that does not say which process serves it.
RUN_UNKNOWN = "0" * 16
#: A server says when it started to the second, give or take one (`core/server_runs.py`).
_STARTED_SECONDS_MAX = 2


def run_name(server_run: str) -> str:
    """A process of a server (`clickhouse.window.read_server_run`) in 16 hexadecimal digits."""
    drawn, _, started_ms = server_run.rpartition("@")
    digest = hashlib.sha256(drawn.encode()).hexdigest()[:8]
    return f"{digest}{int(started_ms) // 1000 & 0xFFFFFFFF:08x}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Who may move the partitions of a table, and since when anybody may have.

    :param by: 16 hexadecimal digits that nobody else has.
    :param block: the largest block number of the target before the first claim.
    :param run: which process of the server served it then; see `run_name`.
    """

    by: str
    block: int
    run: str

    @property
    def suffix(self) -> str:
        """As it ends the name of the claimed table."""
        return f"_{self.by}_{self.block:x}_{self.run}"

    def is_clear(self, run: str) -> bool:
        """Whether what the table still has is not moved: the same process has served it since
        before the first move, and none of them is under way."""
        if run == RUN_UNKNOWN or self.run[:8] != run[:8]:
            return False
        return abs(int(self.run[8:], 16) - int(run[8:], 16)) <= _STARTED_SECONDS_MAX


@dataclass(frozen=True, slots=True)
class PartFacts:
    """A part of a table.

    :param name: unique in its table.
    :param partition: the id of its ClickHouse partition.
    :param number: its largest block number.
    :param content: a hash of its files; "" where the server does not say.
    :param uuid: keeps when it is moved, and has only where its table was told to give it one; "".
    """

    name: str
    partition: str
    number: int
    level: int
    rows: int
    content: str
    active: bool
    uuid: str = ""

    @property
    def is_mutated(self) -> bool:
        """Whether a mutation made it of another part, which may be forgotten by now."""
        return self.name.count("_") > 3

    @property
    def identity(self) -> str:
        """By what it is known in another table: what no other part has, or its content."""
        return self.uuid or self.content


def read_parts(server: Server, database: str, table: str) -> list[PartFacts]:
    """All parts of a table, active or not, but those without rows.

    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        "SELECT * FROM system.parts WHERE database = {database:String} AND table = {table:String}",
        {"database": database, "table": table},
    )
    found = []
    for row in rows:
        name = str(row["name"])
        partition, _, number, level = name.split("_")[:4]
        content = str(row.get("hash_of_all_files", ""))
        active = bool(row["active"])
        if int(row["rows"]):
            told = (int(number), int(level), int(row["rows"]), content, active)
            uuid = known_uuid(str(row.get("uuid", "")))
            found.append(PartFacts(name, partition, *told, uuid))
    return found


def stored_rows_of(parts: Sequence[PartFacts]) -> dict[str, int]:
    """How many rows a table has in each ClickHouse partition."""
    found: dict[str, int] = {}
    for part in parts:
        if part.active:
            found[part.partition] = found.get(part.partition, 0) + part.rows
    return dict(sorted(found.items()))


def are_there(stored: Sequence[PartFacts], since: Sequence[PartFacts]) -> list[bool | None]:
    """Of each part of a claimed table, whether it is in the target, too. Pure.

    Parts are known by their content, of which several may be equal: then they are there only if at
    least as many came. So the answer is the same when some of those that are there were dropped.

    :param since: parts that came into the target since the claim. Whoever else inserts exactly the
        same rows meanwhile makes such a part.
    :returns: None: a merge or a mutation since then may hide it, or only some of those that are
        equal came.
    """
    wanted = Counter((part.partition, part.identity) for part in stored)
    # A part that was altered since stands there twice, with one number.
    numbers = {(part.partition, part.number, part.identity) for part in since}
    came = Counter((partition, identity) for partition, _, identity in numbers)
    found: list[bool | None] = []
    for part in stored:
        key = (part.partition, part.identity)
        beside = [each for each in since if each.partition == part.partition]
        is_hidden = any(each.level > part.level or each.is_mutated for each in beside)
        if part.identity and came[key] >= wanted[key]:
            found.append(True)
        elif beside and (is_hidden or came[key] or not part.identity):
            found.append(None)
        else:
            found.append(False)
    return found


def has_moved(
    claim: Claim,
    partition: str,
    stored: Sequence[PartFacts],
    target: Sequence[PartFacts],
    *,
    is_unique: bool,
) -> bool | None:
    """Whether a partition that a claimed table still has is in the target, too. Pure.

    :param stored: parts of the claimed table; `target`: of the target.
    :param is_unique: no other block has the same rows: so their content tells them apart.
    :returns: None: its parts do not tell.
    """
    mine = [part for part in stored if part.partition == partition and part.active]
    since = [part for part in target if part.partition == partition and part.number > claim.block]
    if not since:
        return False
    # What was merged since may be made of parts that are there, and of others.
    if not all(part.uuid or is_unique for part in mine) or any(part.level for part in mine):
        return None
    came = {part.identity for part in since}
    if came.isdisjoint(part.identity for part in mine) and _are_all_known(claim, target):
        return False
    answers = set(are_there(mine, since))
    return answers.pop() if len(answers) == 1 else None


def _are_all_known(claim: Claim, target: Sequence[PartFacts]) -> bool:
    """Whether the server still lists each part that came into the target since a claim, as it came,
    though it was merged: parts of a table have numbers without gaps, whatever their partition."""
    came = {part.number for part in target if part.number > claim.block}
    as_they_came = {part.number for part in target if part.level == 0 and not part.is_mutated}
    return as_they_came.issuperset(range(claim.block + 1, max(came, default=0) + 1))


def move_statement(
    source: tuple[str, str], target: tuple[str, str], partition: str, *, moves: bool
) -> str:
    """The statement that brings a partition into the target.

    :param source: database and table, as `target`.
    :param moves: the server takes it out of the source; else it stays there, too.
    """
    part = f"PARTITION ID {literal(partition)}"
    if moves:
        return f"ALTER TABLE {qualified(*source)} MOVE {part} TO TABLE {qualified(*target)}"
    return f"ALTER TABLE {qualified(*target)} ATTACH {part} FROM {qualified(*source)}"


def left_to_move(
    stored: Mapping[str, int], there: Mapping[str, int], rows: int
) -> list[str] | None:
    """The partitions of a claimed table that are not in the target, by how many rows of the block
    each of the two has. Pure.

    :param rows: of the whole block.
    :returns: None where the numbers do not fit together.
    """
    left = [partition for partition in stored if not there.get(partition)]
    both = [partition for partition in stored if there.get(partition)]
    is_whole = sum(there.values()) + sum(stored[each] for each in left) == rows
    return left if is_whole and all(stored[each] == there[each] for each in both) else None
