"""Moving the ClickHouse partitions of one table into another, each exactly once (R21): those of a
stored block, and those of what a Spark query staged.

A MOVE is no redo by itself: two at once may take the same part, and a server that is killed in
between has it in both tables [measured]. So there is one mover at a time, who *claims* a table by
renaming it: what was sent under its older name fails. What a claim leaves open when its server is
started again is decided by the parts that the target got since.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts, describe_table, known_uuid
from sluice.clickhouse.sql import identifier, literal, qualified
from sluice.clickhouse.statements import Statements
from sluice.clickhouse.system import said_of_table
from sluice.clickhouse.vanishing import CannotTellError
from sluice.clickhouse.window import read_insert_counter, read_server_run
from sluice.core.errors import InDoubtError, TerminalError

#: A table, or its new name, that another attempt was quicker with.
UNKNOWN_TABLE, TABLE_EXISTS = 60, 57
#: What a server says of a partition whose table has other columns than the one that it is to go to.
OTHER_STRUCTURE = 122
#: Of a server that does not say which process serves it.
RUN_UNKNOWN = "0" * 16
#: How a claim ends the name of a table; see `Claim.read`.
CLAIM_PATTERN = r"_(?P<by>[0-9a-f]{16})_(?P<number>[0-9a-f]+)_(?P<run>[0-9a-f]{16})"
#: A server says when it started to the second, give or take one (`core/server_runs.py`).
_STARTED_SECONDS_MAX = 2
_LOST_HINT = (
    "Look at the server's log and at its detached parts. Then compare the table with the topic "
    "(`sluice audit`), and decide with `sluice resolve`."
)


class OvertakenError(InDoubtError):
    """Another attempt at the same staged rows goes on with them."""

    hint = "The next attempt does what is left to do; no action is needed."


class StagedRowsError(TerminalError):
    """Staged rows are gone, or nobody can tell whether they were moved."""


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

    @staticmethod
    def read(found: re.Match[str]) -> Claim | None:
        """What `CLAIM_PATTERN` has found, if anything."""
        return Claim(found["by"], int(found["number"], 16), found["run"]) if found["by"] else None

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
    found = []
    for row in said_of_table(server, "SELECT * FROM system.parts", database, table):
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


def moved_parts(
    claim: Claim,
    stored: Sequence[PartFacts],
    target: Sequence[PartFacts],
    *,
    is_unique: bool,
) -> dict[PartFacts, bool | None]:
    """Of each part of a claimed table, whether it is in the target, too. Pure.

    :param target: all parts that the server lists of the target.
    :param is_unique: no other block has the same rows: so their content tells them apart.
    :returns: None: the parts do not tell.
    """
    since = [part for part in target if part.number > claim.block]
    are_all_known = _are_all_known(claim, target)
    # What was taken out because it had arrived may come back with a power failure: its number in
    # the target is below that of the claim that came then, and nobody else has its uuid.
    uuids = {part.uuid for part in target} - {""}
    found: dict[PartFacts, bool | None] = {}
    for part in stored:
        beside = [each for each in since if each.partition == part.partition]
        is_hidden = any(each.level > part.level or each.is_mutated for each in beside)
        has_identity = part.uuid or (is_unique and part.content)
        if part.uuid in uuids:
            found[part] = True
        elif not beside:
            found[part] = False
        elif part.level or not has_identity:
            # What was merged in the stored block may be of parts that are there, and of others.
            found[part] = None
        elif part.identity in {each.identity for each in beside}:
            found[part] = True
        else:
            found[part] = None if is_hidden and not are_all_known else False
    return found


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


def names_like(server: Server, database: str, prefix: str) -> list[str]:
    """The names of all tables that begin like this, sorted.

    :raises ServerError: terminal or transient.
    """
    rows = server.query(
        "SELECT name FROM system.tables WHERE database = {database:String} "
        "AND substring(name, 1, {length:UInt32}) = {prefix:String} ORDER BY name",
        {"database": database, "prefix": prefix, "length": len(prefix.encode())},
    )
    return [str(row["name"]) for row in rows]


def add_columns_of(server: Server, facts: TableFacts, database: str, name: str) -> str | None:
    """The statement that gives a staging table the columns that its target got since it was made;
    None: there are none. What is stored has the defaults there, as in the target.

    :param facts: of the target, as it is now.
    :raises ServerError: terminal or transient.
    """
    rows = said_of_table(server, "SELECT name FROM system.columns", database, name)
    known = {str(row["name"]) for row in rows}
    added, after = [], "FIRST"
    for column in facts.columns:
        if column.name not in known:
            default = f" {column.kind} {column.expression}" if column.kind else ""
            added.append(f"ADD COLUMN {identifier(column.name)} {column.type}{default} {after}")
        after = f"AFTER {identifier(column.name)}"
    return f"ALTER TABLE {qualified(database, name)} {', '.join(added)}" if added else None


def rename(statements: Statements, name: str, to: str) -> bool:
    """Rename a table, whose older name nobody can begin to use then; False: somebody was quicker.

    :raises ServerError: of any kind.
    """
    before, after = (qualified(statements.database, each) for each in (name, to))
    try:
        statements.run(f"RENAME TABLE {before} TO {after}")
    except ServerError as error:
        if error.code not in (UNKNOWN_TABLE, TABLE_EXISTS):
            raise  # A server says either first where the new name is taken, and the old one gone.
        return False
    return True


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows of a block tell whether they are in a target.

    :param of_block: how many there are.
    :param are_unique: no other block has the same rows.
    :param why_unknown: why they do not tell, asked when it matters; None: they do.
    :param count: how many the target has of them, by ClickHouse partition.
    :param if_lost: what a person does if the server has lost some.
    """

    of_block: int
    are_unique: bool
    why_unknown: Callable[[TableFacts], str | None]
    count: Callable[[TableFacts], dict[str, int]]
    if_lost: str = _LOST_HINT


def untold(why: str, of_block: int, if_lost: str = _LOST_HINT) -> Rows:
    """Rows that do not tell, and why."""
    return Rows(of_block, False, lambda facts: why, lambda facts: {}, if_lost)


@dataclass(frozen=True, slots=True)
class Mover:
    """Moves the staged rows that are for one table.

    :param target: where they go.
    """

    statements: Statements
    target: TableFacts
    rows: Rows

    def move(self, name: str, claim: Claim | None) -> str | None:
        """Claim a table, and move what is not moved yet.

        :param name: its name by the last look, of which `claim` is the end.
        :returns: its new name: all of it is in the target; None: somebody else was quicker, and
            nothing of it was done here.
        :raises OvertakenError: somebody else claimed it meanwhile.
        :raises TerminalError: nobody can tell what was moved, or it does not fit any more.
        """
        base, own = name, self._own(claim)
        if claim is not None:
            base = name.removesuffix(claim.suffix)
        held = base + own.suffix
        if not self._has_all(name, claim) or not rename(self.statements, name, held):
            return None
        try:
            if claim is not None:
                # From now on nobody moves, and what one process of the server did is done or not.
                self.statements.wait_for_others()
                run = self._run_now()
            if claim is None or own.is_clear(run):
                left = list(stored_rows_of(self._parts(held)))
            else:
                held, left = self._settle(base, own, run)
            if not left:
                self._require_claimed(held)  # else a statement would say so
            self._move_all(held, left)
        except TerminalError as error:
            self._require_claimed(held)
            if isinstance(error, ServerError) and error.code == UNKNOWN_TABLE:
                self._describe()  # says so, if it is the target that has gone
            raise
        return held

    def _own(self, before: Claim | None) -> Claim:
        """A claim of this attempt, after the one that the table has."""
        block = read_insert_counter(self.statements.server, self.target)
        if before is None:
            return Claim(self.statements.attempt, block, self._run_now())
        # A server that was started again may count from less than before.
        return replace(before, by=self.statements.attempt, block=min(before.block, block))

    def _run_now(self) -> str:
        """Which process serves the server, where it moves partitions at all."""
        statements = self.statements
        return run_name(read_server_run(statements.server)) if statements.moves else RUN_UNKNOWN

    def _describe(self) -> TableFacts:
        return describe_table(self.statements.server, self.target.database, self.target.table)

    def _parts(self, name: str) -> list[PartFacts]:
        """Of a staging table, those that count."""
        parts = read_parts(self.statements.server, self.statements.database, name)
        return [part for part in parts if part.active]

    def _move_all(self, name: str, left: list[str]) -> None:
        """Move these partitions; those that are moved go from the list."""
        statements, source = self.statements, (self.statements.database, name)
        to = (self.target.database, self.target.table)
        for is_last in (False, True):
            try:
                while left:
                    statements.run(move_statement(source, to, left[0], moves=statements.moves))
                    del left[0]
                return
            except ServerError as error:
                if error.code != OTHER_STRUCTURE:
                    raise
                add = add_columns_of(statements.server, self._describe(), *source)
                if is_last or add is None:
                    raise altered(self.target, [qualified(*source)], error) from error
                statements.run(add)

    def _has_all(self, name: str, claim: Claim | None) -> bool:
        """Whether a table of which nothing was moved is there. It is counted before it is claimed:
        what a claimed one lacks counts as moved.

        :raises StagedRowsError: it has lost rows that were sealed, as after a power failure.
        """
        rows, is_whole = self.rows.of_block, claim is None or not self.statements.moves
        if not is_whole:
            return True
        server, database = self.statements.server, self.statements.database
        for _ in range(2):
            found = sum(part.rows for part in self._parts(name))
            if found == rows:
                return True
            # Whoever renames it meanwhile is done with that then.
            self.statements.wait_for_others()
            if name not in names_like(server, database, name):
                return False
        raise StagedRowsError(
            f"{database}.{name} on {server.url} has {found} of the {rows} rows that were "
            f"sealed in it: the server has lost some before they came into {self.target.target}",
            self.rows.if_lost,
        )

    def _require_claimed(self, name: str) -> None:
        """What was read of a table since its claim holds.

        :raises OvertakenError: another attempt has claimed it since: what is not in a table of that
            name any more is not moved for that.
        """
        server, database = self.statements.server, self.statements.database
        if name not in names_like(server, database, name):
            raise OvertakenError(f"another attempt has claimed {database}.{name} since")

    def _settle(self, base: str, claim: Claim, run: str) -> tuple[str, list[str]]:
        """Of a claimed table of which partitions may have been moved without anybody knowing, as
        the server was started again: take out what is in the target, and claim it anew, so that
        what it has is not moved.

        :param run: which process serves the server; read before anything of the table.
        :returns: the table's name then, and the partitions that are not moved.
        :raises TerminalError: nobody can tell, or rows are lost.
        """
        statements, facts, held = self.statements, self._describe(), base + claim.suffix
        parts = self._parts(held)
        # A server that copies partitions leaves them: whole ones only, of which rows tell.
        is_unique = self.rows.are_unique and statements.moves
        target = read_parts(statements.server, facts.database, facts.table)
        answers = moved_parts(claim, parts, target, is_unique=is_unique)
        if None in answers.values():
            left = self._left_by_rows(held, facts, parts, answers)
            arrived = [part for part in parts if part.partition not in left]
        else:
            arrived = [part for part in parts if answers[part]]
            unmoved = [part for part in parts if not answers[part]]
            self._require_moved(facts, sum(part.rows for part in unmoved))
            left = list(stored_rows_of(unmoved))
        if not statements.moves:
            return held, left
        for part in arrived:
            table = qualified(statements.database, held)
            statements.run(f"ALTER TABLE {table} DROP PART {literal(part.name)}")
        block = read_insert_counter(statements.server, self.target)
        now = base + Claim(statements.attempt, block, run).suffix
        if not rename(statements, held, now):
            raise OvertakenError(f"another attempt has claimed {statements.database}.{held} since")
        return now, left

    def _require_moved(self, facts: TableFacts, left: int) -> None:
        """What a claimed table lacks is in the target, as far as rows of the target tell.

        :param left: how many rows are not moved.
        :raises StagedRowsError: it is not, as after a power failure.
        """
        if self.rows.why_unknown(facts) is not None:
            return
        try:
            there = sum(self.rows.count(facts).values())
        except CannotTellError:
            return
        if there + left != self.rows.of_block:
            raise StagedRowsError(
                f"{facts.target} on {facts.url} has {there} rows of a block of "
                f"{self.rows.of_block}, of which {left} are not moved yet: the server was "
                "started again while it moved them, and has lost or doubled some",
                self.rows.if_lost,
            )

    def _left_by_rows(
        self,
        name: str,
        facts: TableFacts,
        parts: Sequence[PartFacts],
        answers: Mapping[PartFacts, bool | None],
    ) -> list[str]:
        """The partitions that are not moved, where parts do not tell.

        :raises TerminalError: rows do not either.
        """
        why = self.rows.why_unknown(facts)
        if why is None:
            assert self.rows.of_block is not None
            there = self.rows.count(facts)
            left = left_to_move(stored_rows_of(parts), there, self.rows.of_block)
            if left is not None:
                return left
            why = "the numbers of rows in both do not fit together"
        unknown = {part.partition for part, moved in answers.items() if moved is None}
        stored = f"{self.statements.database}.{name}"
        raise StagedRowsError(
            f"the server {facts.url} was started again while ClickHouse partitions of {stored} "
            f"were moved into {facts.target}: nobody can tell whether {', '.join(sorted(unknown))} "
            "were moved, since the target has other parts by now, and its rows do not tell: "
            f"{why}",
            f"Compare the two tables. Drop from {stored} the partitions, or parts of them, whose "
            "rows are in the target; move the others (ALTER TABLE … MOVE PARTITION ID … TO TABLE "
            "…). Leave the empty table: the next attempt goes on from there.",
        )


def altered(target: TableFacts, tables: Iterable[str], why: object) -> StagedRowsError:
    """An ALTER of the target that is more than new columns, and that nobody can follow.

    :param tables: what was staged.
    """
    return StagedRowsError(
        f"{target.target} on {target.url} was altered after rows for it were staged and sealed, "
        f"and what was staged does not fit any more: {why}",
        f"Alter {', '.join(tables)} as the target was, or alter the target back until they are "
        "moved; the next attempt goes on then. Nothing is lost, and nothing is there twice.",
    )
