"""Marks: what a query has committed, in ClickHouse itself.

A mark is a table without rows whose comment says what it stands for. CREATE TABLE is the only
statement of a server that one of several clients can win, and it brings its comment along: a mark
is there with its content, or not at all. The numbers of a query's marks only grow, and **only the
largest counts**. It is never dropped, so that whoever was late, and makes a mark whose number was
in use before, finds a larger one.

The marks of a query over several shards are on the first one. On each of the others a table in the
same manner, its *home*, has the id that these marks bear, before any row gets into a target: so a
shard that is named first later on is known for one that has no marks.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import TABLE_EXISTS, UNKNOWN_TABLE, names_like
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.sql import literal, qualified
from sluice.clickhouse.statements import Statements
from sluice.clickhouse.system import said_of_table
from sluice.core.errors import InDoubtError, TransientError
from sluice.stream.names import home_name, mark_name, mark_number

#: A mark names every staging table of its epoch; the server's default allows 256 KiB.
_STATEMENT_BYTES_MAX = str(64 << 20)
#: What a statement may take, and one before it is waited for.
_SECONDS = 60.0


class Winner(NamedTuple):
    """A staging table whose rows are those of an epoch.

    :param table: its first name.
    :param rows: that were staged in it.
    """

    shard: str
    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class Mark:
    """What became of one epoch.

    :param number: of the mark, see the head of the module.
    :param checkpoint: the id of the checkpoint that counts the epochs.
    :param state: "open": tasks insert into the target under tokens; "sealed": `winners` are the
        rows of the epoch, and have to get into the target; "done": all of it is there.
    :param table: the target.
    :param winners: in the order in which they are moved.
    :param rows: of the epoch; of no meaning while it is open.
    :param claim: drawn by whoever made it.
    :param insert_counters, run, since_ms: of an open mark, see `direct.Memory`.
    :param chunk_rows: of an open mark: of each insert of a task but the last.
    :param replaces: the uuid of the target that goes when all of its rows are replaced; "" if they
        stay.
    :param puts: the uuid of the table that comes then.
    :param home: drawn with the first mark of a query, and the same in those after it.
    :param shards: the names of all that the query had, in their order.
    :param uuids: of an open mark, see `direct.Memory`; of a sealed one, of the target
        on each of `shards`.
    """

    number: int
    checkpoint: str
    epoch: int
    state: Literal["open", "sealed", "done"]
    table: str
    winners: tuple[Winner, ...] = ()
    rows: int = 0
    claim: str = ""
    insert_counters: tuple[int, ...] = ()
    run: str = ""
    since_ms: int = 0
    chunk_rows: int = 0
    replaces: str = ""
    puts: str = ""
    home: str = ""
    shards: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """The epoch had no rows. (Of one of mode direct, no mark says how many it had.)"""
        return self.state == "done" and not (self.rows or self.puts or self.insert_counters)

    def text(self) -> str:
        """As the comment of a table has it."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_mark(text: str) -> Mark:
    """The contrary of `Mark.text`."""
    raw: dict[str, Any] = json.loads(text)
    raw["winners"] = tuple(Winner(*each) for each in raw["winners"])
    for name in ("insert_counters", "shards", "uuids"):
        raw[name] = tuple(raw[name])
    return Mark(**raw)


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of one query in one database.

    :param prefix: see `names.query_prefix`.
    """

    server: Server
    database: str
    prefix: str

    def latest(self) -> Mark | None:
        """The one that counts; None before the first.

        :raises ServerError: terminal or transient.
        """
        rows = self.server.query(
            "SELECT name, comment FROM system.tables WHERE database = {database:String} "
            "AND startsWith(name, {prefix:String}) ORDER BY name DESC LIMIT 1",
            {"database": self.database, "prefix": f"{self.prefix}mark_"},
        )
        return parse_mark(str(rows[0]["comment"])) if rows else None

    def create(self, mark: Mark) -> bool:
        """Make a mark. False: another made one of its number before.

        :raises ServerError: of any kind; in doubt if it may come into being later.
        """
        name = mark_name(self.prefix, mark.number)
        statement = (
            f"CREATE TABLE {qualified(self.database, name)} (nothing UInt8) ENGINE = Null "
            f"COMMENT {literal(mark.text())}"
        )
        statements = statements_about(self.server, self.database, name)
        try:
            statements.run(statement)
        except (InDoubtError, TransientError):
            statements.wait_for_others()
            made = self._read(name)
            if made is None:
                raise
            return made.claim == mark.claim
        except ServerError as error:
            if error.code != TABLE_EXISTS:
                raise
            made = self._read(name)
            return made is not None and made.claim == mark.claim
        return True

    def set_done(self, mark: Mark) -> None:
        """All of it is in the target. Harmless when repeated.

        :raises ServerError: of any kind.
        """
        name = qualified(self.database, mark_name(self.prefix, mark.number))
        done = replace(mark, state="done", winners=())
        try:
            self.server.execute(f"ALTER TABLE {name} MODIFY COMMENT {literal(done.text())}")
        except ServerError as error:
            if error.code != UNKNOWN_TABLE:
                raise  # Else a later mark is there, and this one counts no more.

    def drop_below(self, number: int) -> None:
        """Remove what counts no more."""
        for name in names_like(self.server, self.database, f"{self.prefix}mark_"):
            found = mark_number(name)
            if found is not None and found < number:
                drop_table(self.server, self.database, name)

    def home(self) -> str:
        """The id of the marks, on another shard, that count for this one; "" if none do.

        :raises ServerError: terminal or transient.
        """
        return self._comment(home_name(self.prefix)) or ""

    def keep_home(self, home: str) -> str:
        """Say whose marks count for this shard, unless that is said; gives what is said then.

        :raises ServerError: of any kind; to be called again.
        """
        if not self.home():
            name = qualified(self.database, home_name(self.prefix))
            self.server.execute(
                f"CREATE TABLE IF NOT EXISTS {name} (nothing UInt8) ENGINE = Null "
                f"COMMENT {literal(home)}"
            )
        return self.home()

    def _read(self, name: str) -> Mark | None:
        comment = self._comment(name)
        return None if comment is None else parse_mark(comment)

    def _comment(self, name: str) -> str | None:
        select = "SELECT comment FROM system.tables"
        rows = said_of_table(self.server, select, self.database, name)
        return str(rows[0]["comment"]) if rows else None


def drop_table(server: Server, database: str, table: str) -> None:
    """At once, so that what a server keeps of dropped tables does not pile up."""
    server.execute(f"DROP TABLE IF EXISTS {qualified(database, table)} SYNC")


def statements_about(server: Server, database: str, name: str, attempt: str = "") -> Statements:
    """Those of one attempt about a table of a query, or about what that becomes.

    :param name: its first name.
    :param attempt: 16 hexadecimal digits that nobody else has, where it renames something.
    """
    settings = {"max_query_size": _STATEMENT_BYTES_MAX}
    what = (database, f"{database}.{name}", name, attempt, True, settings)
    return Statements(server, *what, lambda: 2 * _SECONDS, _SECONDS)
