"""The commit of an epoch: what was staged gets into the target, once.

A redo log. The mark that seals an epoch names its staging tables; then each of them is moved; then
the mark is done. Whoever finds a sealed mark only finishes it. How far a table is stands in its
name, which one client at a time can change (`clickhouse/moving.py`):

    staged  --RENAME-->  claimed, by one mover  --MOVE PARTITION, each-->  claimed and empty

1. Look at the latest mark: refuse, finish what is sealed, or know that the epoch is done.
2. Seal: make the mark of the next number.
3. Look again: whoever was late gives up.
4. Move.
5. Done.
6. Remove what counts no more.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import Mover, StagedRowsError, names_like, untold
from sluice.clickhouse.moving import OvertakenError as ClaimedError
from sluice.clickhouse.schema import TableFacts, describe_table, read_uuids
from sluice.clickhouse.statements import Statements
from sluice.core.errors import ConfigurationError, InDoubtError, TransientError
from sluice.stream.direct import Memory
from sluice.stream.errors import (
    AlreadyLoadedError,
    CheckpointSetBackError,
    OtherCheckpointError,
    OtherTableError,
    OvertakenError,
)
from sluice.stream.homes import Homes
from sluice.stream.marks import Mark, Winner, drop_table, statements_about
from sluice.stream.names import Staged, mark_name, parse_staged, query_prefix
from sluice.stream.replacing import LOOKS, LOOKS_WHILE_RENAMED, Replacer

_ATTEMPTS = 7
_PAUSE_SECONDS = 0.5
_PAUSE_SECONDS_MAX = 15.0


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """Who commits.

    :param query: the name that the user gave the query.
    :param checkpoint: the id of its checkpoint.
    :param takeover: the id of a checkpoint before it, whose place it takes; "" for none.
    """

    query: str
    checkpoint: str
    takeover: str = ""

    def check(self, latest: Mark | None) -> None:
        """:raises OtherCheckpointError: another checkpoint counts this query's epochs, or has begun
        one that this one cannot end."""
        if latest is None or latest.checkpoint == self.checkpoint:
            return
        if latest.checkpoint == self.takeover:
            self._check_ended(latest)
            return
        raise OtherCheckpointError(
            f'the query "{self.query}" has written {latest.table} up to epoch {latest.epoch} under '
            f"the checkpoint {latest.checkpoint}, and now comes with the checkpoint "
            f"{self.checkpoint}, which counts its epochs anew: what it reads again would be in the "
            "table twice",
            "If this is another query, or one that starts over into an empty table: give it a new "
            "name (option `query`). If it goes on exactly where the rows in the table end: option "
            f'takeover = "{latest.checkpoint}". Else start it with its old checkpoint.',
        )

    def _check_ended(self, latest: Mark) -> None:
        if latest.state == "open":
            raise OtherCheckpointError(
                f'the query "{self.query}" has begun epoch {latest.epoch} of {latest.table} with '
                f"mode direct under the checkpoint {latest.checkpoint}, and not ended it: some of "
                "its rows may be there, and only that checkpoint knows which to repeat",
                "Start the query with its old checkpoint until that epoch is done, and take over "
                "then. If the old checkpoint is gone: compare the table with the query's source by "
                "hand, so that it ends where the new checkpoint begins; then drop the table "
                f"{mark_name(query_prefix(self.query), latest.number)} beside it.",
            )


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is to be committed.

    :param winners: the staging tables of the tasks that have rows.
    :param rows: in all of them.
    :param replaces: all rows of the target go.
    :param is_direct: the tasks have inserted its rows themselves.
    """

    number: int
    winners: Sequence[Winner]
    rows: int
    replaces: bool
    is_direct: bool = False

    @property
    def changes_target(self) -> bool:
        """Whether there is anything to get into the target when it is committed."""
        return bool(self.winners) or self.replaces


class Committer:
    """Commits epochs of one query into one table. Not for several threads.

    :param servers: of each shard, by name; the first one has the marks.
    """

    def __init__(
        self, servers: Mapping[str, Server], database: str, table: str, who: QueryIdentity
    ) -> None:
        self._servers = servers
        self._server = next(iter(servers.values()))
        self._database = database
        self._table = table
        self._who = who
        self._prefix = query_prefix(who.query)
        self._claims = set[str]()
        #: Staging tables all of whose rows are in the target.
        self._moved = set[Winner]()
        #: A mark that seals rows of this one's may be there, now or later.
        self.may_be_sealed = False
        self.homes = Homes(servers, database, who.query)
        self.marks = self.homes.marks

    def check(self) -> None:
        """:raises OtherCheckpointError: nothing may be written under this name."""
        self._who.check(self.marks.latest())

    def commit(self, epoch: Epoch) -> bool:
        """Get the rows of an epoch into the target, unless rows of it are there.

        :returns: whether it was these rows.
        :raises OtherCheckpointError, CheckpointSetBackError, OvertakenError: nothing was done.
        :raises StagedRowsError: a person has to look.
        :raises ServerError: of any kind; to be called again.
        """
        latest = self.settled()
        if self._is_known(latest, epoch.number, has_rows=epoch.changes_target):
            assert latest is not None
            if latest.state == "open":
                if not epoch.is_direct:
                    raise CheckpointSetBackError(
                        f"epoch {epoch.number} was begun with mode direct, and some of its rows "
                        f"may be in {self._database}.{self._table}",
                        'Start the query with the option mode = "direct" until this epoch is done.',
                    )
                self.marks.set_done(latest)
            self._sweep(latest)
            return latest.claim in self._claims
        if epoch.changes_target:
            self._finish(self._seal(latest, epoch))
        elif latest is not None:
            # Else a checkpoint that ends before the latest mark would seem to end with it.
            self._sweep(self._seal(latest, epoch))
        return True

    def knows(self, number: int) -> bool:
        """Whether rows of this epoch are in the target. What was sealed is there then.

        :raises OtherCheckpointError, CheckpointSetBackError: it may not be written.
        """
        return self._is_known(self.settled(), number)

    def begin(self, number: int, memory: Memory, chunk_rows: int) -> Mark:
        """The mark of an epoch that is inserted directly: an open one, unless it is done.

        :param memory: what the target's windows are now, if nobody has begun it yet.
        :param chunk_rows: of each insert but a task's last.
        :raises OtherCheckpointError, CheckpointSetBackError: nothing was done.
        :raises ConfigurationError: it was begun with other chunks, and tokens name chunks.
        """
        for _ in range(_ATTEMPTS):
            latest = self.settled()
            if self._is_known(latest, number):
                assert latest is not None
                if latest.state == "open" and latest.chunk_rows != chunk_rows:
                    raise ConfigurationError(
                        f"option batch_rows is {chunk_rows}, and epoch {number} of "
                        f"{self._database}.{self._table} was begun with {latest.chunk_rows}: a "
                        "repeat would not know what is there, and double or lose rows",
                        f'Start the query with batch_rows = "{latest.chunk_rows}" until this epoch '
                        "is done.",
                    )
                return latest
            mark = Mark(
                1 if latest is None else latest.number + 1,
                self._who.checkpoint,
                number,
                "open",
                self._table,
                claim=uuid.uuid4().hex[:8],
                insert_counters=memory.counters,
                run=memory.run,
                since_ms=memory.since_ms,
                chunk_rows=chunk_rows,
                home=_home_of(latest),
                shards=tuple(self._servers),
                uuids=memory.uuids,
            )
            self.marks.create(mark)
        raise OvertakenError(f'other drivers of the query "{self._who.query}" run at the same time')

    def _is_known(self, latest: Mark | None, number: int, *, has_rows: bool = True) -> bool:
        """Whether the latest mark is that of this epoch; one that had no rows, and comes with some
        now, is not known: none of it is there.

        :raises CheckpointSetBackError: it is of a later one, or of one that was never ended.
        :raises OtherTableError: it is of this one in another table.
        """
        if latest is None or latest.checkpoint != self._who.checkpoint:
            return False
        if number < latest.epoch:
            raise CheckpointSetBackError(
                f'the query "{self._who.query}" comes with epoch {number} for '
                f"{self._database}.{self._table}, which has epoch {latest.epoch} already"
            )
        if number > latest.epoch and latest.state == "open":
            raise CheckpointSetBackError(
                f'the query "{self._who.query}" comes with epoch {number} for '
                f"{self._database}.{self._table}, where epoch {latest.epoch} was begun and not "
                "ended"
            )
        if number == latest.epoch and latest.table != self._table:
            raise OtherTableError(
                f'the query "{self._who.query}" comes with epoch {number} for '
                f"{self._database}.{self._table}, and has written this epoch into "
                f"{self._database}.{latest.table}: a query is known by its name, whatever its table"
            )
        return number == latest.epoch and not (has_rows and latest.is_empty)

    def settled(self) -> Mark | None:
        """The latest mark, after what it sealed is in the target.

        :raises OtherCheckpointError: nothing was done.
        """
        latest = self.marks.latest()
        self._who.check(latest)
        return self.finish_sealed(latest)

    def finish_sealed(self, latest: Mark | None) -> Mark | None:
        """The latest mark, after what it sealed is in the target, whoever did so."""
        while latest is not None and latest.state == "sealed":
            self._finish(latest)
            latest = self.marks.latest()
        return latest

    def refuse_known(self) -> None:
        """:raises AlreadyLoadedError: this name, of a batch, has a mark. What it sealed is in the
        target then."""
        latest = self.settled()
        if latest is not None:
            raise AlreadyLoadedError(
                f'a batch "{self._who.query}" is in {self._database}.{latest.table} already, with '
                f"{latest.rows} rows, and the rows of this one are not"
            )

    def forget(self) -> None:
        """Remove the marks of a query whose name nobody has again."""
        latest = self.marks.latest()
        self.marks.drop_below(0 if latest is None else latest.number + 1)
        self.homes.forget()

    def _seal(self, latest: Mark | None, epoch: Epoch) -> Mark:
        """Steps 2 and 3; of an epoch without rows, step 5, too."""
        number = 1 if latest is None else latest.number + 1
        claim = uuid.uuid4().hex[:8]
        self._claims.add(claim)
        replaces, puts, uuids = "", "", tuple[str, ...]()
        if epoch.changes_target:
            where = [(self._database, self._table)]
            servers = self._servers.values()
            uuids = tuple(each for server in servers for each in read_uuids(server, where))
        if epoch.replaces:
            (replaces,) = uuids
            puts = self._replacer(claim).prepare(self._table, number)
        mark = Mark(
            number,
            self._who.checkpoint,
            epoch.number,
            "sealed" if epoch.changes_target else "done",
            self._table,
            tuple(sorted(epoch.winners)),
            epoch.rows,
            claim,
            replaces=replaces,
            puts=puts,
            home=_home_of(latest),
            shards=tuple(self._servers),
            uuids=uuids,
        )
        self.may_be_sealed = True
        is_ours = self.marks.create(mark)
        newest = self.marks.latest()
        if is_ours and newest is not None and newest.number == number:
            return mark
        if is_ours:
            drop_table(self._server, self._database, mark_name(self._prefix, number))
        raise OvertakenError(
            f'another driver of the query "{self._who.query}" committed into '
            f"{self._database}.{self._table} while this one was about to commit epoch "
            f"{epoch.number}"
        )

    def _finish(self, mark: Mark) -> None:
        """Steps 4 to 6, from wherever somebody came to."""
        claim = uuid.uuid4().hex[:16]
        try:
            if mark.puts:
                self._replacer(claim[:8]).put_in_place(mark)
            else:
                self._move(mark, claim)
        except (StagedRowsError, ClaimedError) as error:
            newest = self.marks.latest()
            if newest is None or (newest.number == mark.number and newest.state == "sealed"):
                if isinstance(error, ClaimedError):
                    raise OvertakenError(
                        f"another driver goes on with the epoch: {error}"
                    ) from error
                raise
            return  # Another driver finished it, and removed what it had moved.
        self.marks.set_done(mark)
        self._sweep(mark)

    def _move(self, mark: Mark, claim: str) -> None:
        for each in mark.winners:
            if each.shard not in self._servers:
                raise StagedRowsError(
                    f"epoch {mark.epoch} of {self._database}.{mark.table} is sealed and has rows "
                    f"on the shard {each.shard}, which no option names",
                    "Start the query with the shards that it had until this epoch is done.",
                )
        self.homes.keep(mark.home)
        for shard, server in self._servers.items():
            left = [each for each in mark.winners if each.shard == shard]
            left = [each for each in left if each not in self._moved]
            if left:
                target = describe_table(server, self._database, mark.table)
                _require_same(target, mark, shard, left[0])
                for each in left:
                    move_table(server, target, each, claim)
                    self._moved.add(each)

    def _sweep(self, done: Mark) -> None:
        """Remove what was staged for epochs that are done: what was moved, and what no message
        named. Never what a later epoch stages, nor what one without rows may come again with."""
        for server in self._servers.values():
            self._sweep_server(server, done)
        self._replacer("").drop(done.number)
        self.marks.drop_below(done.number)

    def _sweep_server(self, server: Server, done: Mark) -> None:
        gone = {done.checkpoint, self._who.takeover} - {""}
        for staged in map(parse_staged, names_like(server, self._database, self._prefix)):
            if staged is None or not any(staged.is_of(each) for each in gone):
                continue
            ends_before = done.epoch if done.is_empty else done.epoch + 1
            if staged.is_of(done.checkpoint) and staged.epoch >= ends_before:
                continue
            drop_table(server, self._database, staged.name)

    def _replacer(self, claim: str) -> Replacer:
        return Replacer(self._server, self._database, self._prefix, claim)


def move_table(server: Server, target: TableFacts, staged: Winner, claim: str) -> None:
    """Get all rows of a staging table into its target.

    :param claim: 16 hexadecimal digits, drawn for who moves it.
    """
    base = staged.table
    statements = statements_about(server, target.database, base, claim)
    if_lost = (
        "Look at the server's log, and at the detached parts of the staging table: the next "
        "attempt goes on when they are attached again (ALTER TABLE … ATTACH PART). Else: "
        f"{_by_hand(base)}"
    )
    rows = untold("they do not say where they are from", staged.rows, if_lost)
    mover = Mover(statements, target, rows)
    for _ in range(LOOKS):
        found = _find(statements, target, base)
        if mover.move(found.name, found.claim) is not None:
            return
    raise StagedRowsError(
        f"{target.database}.{base} on {server.url} changes its name all the time",
        "Several drivers commit the same epoch at once: stop all but one.",
    )


def _require_same(target: TableFacts, mark: Mark, shard: str, left: Winner) -> None:
    """:raises StagedRowsError: another table has the target's name than when the mark was made."""
    sealed = dict(zip(mark.shards, mark.uuids, strict=False)).get(shard)
    if sealed and target.uuid != sealed:
        raise StagedRowsError(
            f"{target.target} on {target.url} is another table than the one that epoch "
            f"{mark.epoch} was sealed for, which has the uuid {sealed}: some of the epoch may be "
            "in that one",
            "Give that one its name back: the next attempt goes on then, and when the epoch is "
            f"done, it may have another name. If it is gone: {_by_hand(left.table)}",
        )


def _find(statements: Statements, target: TableFacts, base: str) -> Staged:
    server, database = statements.server, target.database
    for _ in range(LOOKS_WHILE_RENAMED):
        for found in map(parse_staged, names_like(server, database, base)):
            if found is not None and found.base == base:
                return found
        statements.wait_for_others()
    raise StagedRowsError(
        f"{database}.{base} on {server.url} is gone, which holds rows that are committed and may "
        f"not be in {target.target} yet",
        f"Who dropped it? {_by_hand(base)}",
    )


def _by_hand(base: str) -> str:
    """What to do where an epoch cannot be ended.

    :param base: the first name of one of its staging tables.
    """
    return (
        "Compare the table with the query's source by hand, and take out of it what it has of this "
        f"epoch; then drop the newest of the tables {base[:20]}mark_…, and the query loads the "
        "whole epoch anew."
    )


def _home_of(latest: Mark | None) -> str:
    return uuid.uuid4().hex if latest is None else latest.home


_T = TypeVar("_T")


def patiently(action: Callable[[], _T], goes_on: Callable[[float], bool] | None = None) -> _T:
    """Do it, and again from its beginning while the server is away or an answer was lost.

    :param goes_on: whether to wait for longer than a minute, asked with the seconds since the
        beginning.
    :raises SluiceError: as the action does; half a minute's outage is waited out.
    """
    began = time.monotonic()
    for attempt in itertools.count(1):
        try:
            return action()
        except (InDoubtError, TransientError):
            is_over = attempt >= _ATTEMPTS
            if is_over and (goes_on is None or not goes_on(time.monotonic() - began)):
                raise
            time.sleep(min(_PAUSE_SECONDS * 2 ** (attempt - 1), _PAUSE_SECONDS_MAX))
    raise AssertionError("the last attempt returns or raises")
