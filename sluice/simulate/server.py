"""Requests to the simulated ClickHouse: the real client over a server in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from sluice.clickhouse.connection import Reply, Request
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import InsertPlan
from sluice.clickhouse.probe import PresentOffsets, SyncState
from sluice.clickhouse.reactions import nothing_sent, reply_lost
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.structure import Structure
from sluice.core.lease import LeaseOverError
from sluice.core.server_runs import server_run
from sluice.simulate import faults
from sluice.simulate.clickhouse import Block, clickhouse_partition

if TYPE_CHECKING:
    from sluice.simulate.world import World

_TOKEN_KEY = "insert_deduplication_token="
#: Codes with which a server refuses before it begins, and after it may have stored.
_BEFORE = {
    "insert: quorum error before storing": "285",
    "insert: table is read-only": "242",
    "insert: too many queries": "202",
}
#: Refused for good: before anything is stored, and while it is.
ACCESS_DENIED, VIOLATED_CONSTRAINT = "497", "469"
_OK = Reply(200, None, None, b"")
#: So long after the lease an insert may begin: clocks differ by less than 5 s, and a process may
#: be paused between the check and the POST for as long as the server keeps its connection.
LATE_START_MS = 5_000 + 4_000


class _Connection:
    """A connection that has just answered /ping."""

    def __init__(self, world: World) -> None:
        self.sock = None
        self._world = world
        self._restarts = world.clickhouse.restarts
        self._used_at = world.now

    @property
    def has_ended(self) -> bool:
        """Closed by a restart, or idle for longer than the server keeps it."""
        world = self._world
        return (
            world.clickhouse.restarts != self._restarts
            or world.now - self._used_at > world.plan.keep_alive_ms
        )


class SimulatedServer(Server):
    """The real `Server` down to the connection, which is simulated."""

    def __init__(self, world: World, url: str = "http://s1") -> None:
        super().__init__(url)
        self._world = world
        self._plan: InsertPlan | None = None

    def insert(
        self, plan: InsertPlan, lease: Callable[[], float], timeout_seconds: float = 30.0
    ) -> InsertReply:
        self._plan = plan
        self._world.before_insert()

        def check() -> float:
            try:
                return lease()
            except LeaseOverError:
                self._world.faults.note("lease over before the insert")
                raise

        return super().insert(plan, check, timeout_seconds)

    def clock_ms(self) -> int:
        return self._world.now + self._world.clickhouse.skew_ms

    def ask(self, what: str) -> None:
        """A query's way to the server and back.

        :raises TransientServerError: the server does not answer.
        """
        world = self._world
        fault = world.call(what, faults.QUERY)
        if fault == "query fails" or world.clickhouse.is_down(self.url, world.now):
            raise nothing_sent(self.url, what, "CONNECTION_REFUSED", "simulated")

    def _ping(self, what: str, timeout_seconds: float) -> Any:
        world = self._world
        fault = world.call("ping", faults.PING)
        if fault == "ping fails" or world.clickhouse.is_down(self.url, world.now):
            raise nothing_sent(self.url, what, "PING_FAILED", "simulated")
        self._connection = _Connection(world)  # type: ignore[assignment]
        return self._connection

    def close(self) -> None:
        self._connection = None

    def _exchange(
        self,
        what: str,
        connection: Any,
        request: Request,
        timeout_seconds: float,
        read_only: bool,
    ) -> Reply:
        world, plan = self._world, self._plan
        assert plan is not None
        if world.call("post", faults.BEFORE_POST) == "paused between lease check and insert":
            world.sleep(world.rng.randrange(2 * world.plan.keep_alive_ms))
        if connection.has_ended or world.clickhouse.is_down(self.url, world.now):
            raise reply_lost(self.url, what, "CONNECTION_LOST", "simulated", read_only)
        insertion = _Insertion(world, plan)
        world.looking.pop(world.process, None)
        if world.now > insertion.deadline_ms + LATE_START_MS:
            late_ms = world.now - insertion.deadline_ms
            world.checks.violate(f"an insert began {late_ms} ms after its lease (rule 9)")
        return insertion.answer(self.url, what, timeout_seconds)


class _Insertion:
    """One insert in the server's hands: it goes on whatever becomes of its client."""

    def __init__(self, world: World, plan: InsertPlan) -> None:
        block = plan.body[-1]
        assert isinstance(block, Block)
        self._world = world
        self._block = block
        self._table = world.clickhouse.tables[plan.target.partition(".")[2]]
        self._prefix = plan.query_id.rpartition("-")[0]
        _, _, token = plan.path.partition(_TOKEN_KEY)
        self._token = unquote(token.partition("&")[0]) if token else None
        self._restarts = world.clickhouse.restarts
        # ALTER waits for the inserts that run.
        self._columns = self._table.columns
        self.deadline_ms = world.deadline_of_task()

    def answer(self, url: str, what: str, timeout_seconds: float) -> Reply:
        """What the client gets, or does not get."""
        world, rng = self._world, self._world.rng
        fault = world.draw_insert_fault()
        world.say(f"insert {self._token}: {fault}")
        if fault is None and world.clickhouse.is_read_only(url, world.now):
            fault = "insert: table is read-only"
        took_ms = rng.randrange(2, 60)
        if self._table.refuses_until > world.now and fault is None:
            refusal = self._table.refusal
            if refusal == VIOLATED_CONSTRAINT:
                # Judged part by part: some may be stored already.
                self._store_in(took_ms, rng.randrange(self._parts() + 1))
                world.sleep(took_ms + 1)
            return Reply(500, refusal, None, b"simulated")
        if fault in _BEFORE:
            return Reply(500, _BEFORE[fault], None, b"simulated")
        if fault == "insert: request lost":
            world.sleep(took_ms)
            raise reply_lost(url, what, "CONNECTION_LOST", "simulated", False)
        if fault in ("insert: hangs and lands late", "insert: hangs and never lands"):
            self._hang(fault == "insert: hangs and lands late")
            world.sleep(int(timeout_seconds * 1000))
            raise reply_lost(url, what, "SOCKET_TIMEOUT", "simulated", False)
        if fault == "insert: slow":
            took_ms = max(took_ms, min(rng.randrange(5_000, 29_900), self._room_ms()))
        parts_max = None
        if fault == "insert: partial over ClickHouse partitions":
            parts = self._parts()
            parts_max = rng.randrange(parts) if rng.random() < 0.2 else rng.randrange(1, parts + 1)
        self._store_in(took_ms, parts_max)
        if took_ms >= timeout_seconds * 1000:
            world.sleep(int(timeout_seconds * 1000))
            raise reply_lost(url, what, "SOCKET_TIMEOUT", "simulated", False)
        world.sleep(took_ms + 1)
        if fault == "insert: acknowledgement lost" or (world.clickhouse.restarts != self._restarts):
            raise reply_lost(url, what, "CONNECTION_LOST", "simulated", False)
        if parts_max is not None:
            return Reply(500, rng.choice(("241", "252", "999")), None, b"simulated")
        if fault == "insert: quorum error after storing":
            return Reply(500, rng.choice(("319", "286")), None, b"simulated")
        return _OK

    def _parts(self) -> int:
        divisor = self._table.shape.partition_divisor
        return len({clickhouse_partition(row, divisor) for row in self._block.rows})

    def _hang(self, lands: bool) -> None:
        """What arrived before the lease's end may be executed some time after it, at most
        as late as clocks may differ: later than that nobody is protected (rule 9)."""
        room_ms = self._room_ms()
        if lands and room_ms > 0:
            self._store_in(self._world.rng.randrange(room_ms), None)

    def _room_ms(self) -> int:
        return self.deadline_ms + self._world.plan.late_ms_max - self._world.now

    def _store_in(self, delay_ms: int, parts_max: int | None) -> None:
        world, clickhouse = self._world, self._world.clickhouse
        clickhouse.running[self._prefix] += 1
        world.inserts_running += 1

        def store() -> None:
            clickhouse.running[self._prefix] -= 1
            world.inserts_running -= 1
            if clickhouse.restarts != self._restarts:
                return
            world.say(f"stores {self._token} {self._block.rows}, {parts_max} parts")
            if world.now > self.deadline_ms:
                world.faults.note("late insert after the lease")
            if self._token is not None and parts_max != 0:
                world.checks.storing(self._token, self._table.shape.name, self._block)
            before = self._table.deduplicated
            self._table.insert(self._token, self._block, self._columns, parts_max)
            if self._table.deduplicated > before:
                world.faults.note("block deduplicated")

        world.scheduler.at(delay_ms, store)


# What stands for the statements that read system tables and lineage columns.


def describe_table(server: Server, database: str, table: str) -> TableFacts:
    """See `sluice.clickhouse.schema.describe_table`."""
    world = _asked(server, "describe table")
    return world.clickhouse.tables[table].facts()


def read_structures(
    server: Server, tables: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], Structure]:
    """See `sluice.clickhouse.structure.read_structures`."""
    world = _asked(server, "structures")
    found = world.clickhouse.tables
    world.looking[world.process] = None
    facts = {where: found[where[1]].facts() for where in tables}
    return {
        where: Structure(each.columns, each.partition_key, each.sorting_key)
        for where, each in facts.items()
    }


def window_mark(server: Server, facts: TableFacts) -> int:
    """See `sluice.clickhouse.window.window_mark`."""
    world = _asked(server, "window mark")
    return world.clickhouse.tables[facts.table].mark


def read_server_run(server: Server) -> str:
    """See `sluice.clickhouse.window.read_server_run`."""
    world = _asked(server, "server run")
    return server_run(str(world.clickhouse.restarts), 0)


def running_query_ids(server: Server, prefix: str) -> list[str]:
    """See `sluice.clickhouse.probe.running_query_ids`."""
    world = _asked(server, "processes")
    return [prefix] if world.clickhouse.running[prefix] else []


def replicas_in_sync(server: Server, facts: TableFacts) -> SyncState:
    """See `sluice.clickhouse.probe.replicas_in_sync`."""
    _asked(server, "replicas")
    return SyncState(True)


def present_offsets(
    server: Server, facts: TableFacts, topic: str, partition: int, begin: int, end: int
) -> list[PresentOffsets]:
    """See `sluice.clickhouse.probe.present_offsets`."""
    world = _asked(server, "present offsets")
    world.faults.note("probe")
    rows = world.clickhouse.tables[facts.table].rows
    return [
        PresentOffsets(offset, offset + 1, count, 1)
        for (source, offset), numbers in sorted(rows.items())
        if (source.topic, source.partition) == (topic, partition)
        and begin <= offset < end
        and (count := numbers.total())
    ]


def _asked(server: Server, what: str) -> World:
    assert isinstance(server, SimulatedServer)
    server.ask(what)
    return server._world
