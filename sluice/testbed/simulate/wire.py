"""The wire to the simulated ClickHouse: connections under the real client.

Everything above it is the real code: pings, checks of the lease, statements and what is made of
their rows, inserts, and what their errors mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import lru_cache
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sluice.clickhouse.connection import Address, Reply, Request
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import InsertPlan
from sluice.core.lease import LeaseOverError
from sluice.testbed.simulate import faults
from sluice.testbed.simulate.inserters import Inserter
from sluice.testbed.simulate.inserts import Insertion
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.statements import find
from sluice.testbed.simulate.world import World

#: So long after the lease an insert may begin: clocks differ by less than 5 s, and a process may
#: be paused between the check and the POST for as long as the server keeps its connection.
LATE_START_MS = 5_000 + 4_000
#: The longest that a POST may go on beyond its lease: by as much as clocks differ.
LATE_END_MS = 2_600 + 100
#: How many of the readings that come again and again take no time, and never fail.
LIGHT_SHARE = 0.8
#: Codes of refused reads.
_REFUSALS = ("202", "241", "999", "159")


class SimulatedServer(Server):
    """The real client. What strikes a task that is about to insert strikes before its ping."""

    def __init__(self, world: World, url: str) -> None:
        super().__init__(url)
        self._world = world

    def insert(
        self, plan: InsertPlan, lease: Callable[[], float], timeout_seconds: float = 30.0
    ) -> InsertReply:
        self._world.before_insert()

        def check() -> float:
            try:
                return lease()
            except LeaseOverError:
                self._world.faults.note("lease over before the insert")
                raise

        reply = super().insert(plan, check, timeout_seconds)
        refused = self._connection.refused if isinstance(self._connection, Connection) else None
        if refused is not None:
            self._world.violate(f"an insert counts as done, and was answered {refused!r}")
        return reply


class Connection:
    """An open connection; it outlives the process that sends on it by what is on its way."""

    def __init__(self, parts: Parts, url: str) -> None:
        self._parts = parts
        self._world = world = parts.world
        self.host = world.clickhouse.hosts[url]
        self.sock: Any = SimpleNamespace(settimeout=lambda seconds: None)
        self._restarts = self.host.restarts
        self._used_at = world.now
        #: When the last ping was answered: the lease is checked then.
        self.checked_at = world.now
        #: The machine stops sending after so long; 0: it never does.
        self.gives_up_after = 0.0
        #: What was not delivered is thrown away when it is closed.
        self.is_dropped = False
        #: Of which a part is still on its way.
        self.undelivered: Inserter | None = None
        #: What the last insert was refused with; None: it was not.
        self.refused: bytes | None = None

    def close(self) -> None:
        """Nothing is sent on it any more."""
        self.sock = None

    @property
    def has_ended(self) -> bool:
        """Closed by a restart, or idle for longer than the server keeps it."""
        return (
            self.sock is None
            or self.host.restarts != self._restarts
            or self._world.now - self._used_at > self._world.plan.keep_alive_ms
        )

    @property
    def is_cut(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.has_ended or self.host.down_until > self._world.now

    def request(self, method: str, path: str) -> None:
        """A ping is about to be answered."""
        assert (method, path.rpartition("/")[2]) == ("GET", "ping")

    def getresponse(self) -> Any:
        """The answer to a ping."""
        world = self._world
        is_light = world.rng.random() < LIGHT_SHARE and not world.is_inserting
        fault = None if is_light else world.call("ping", faults.PING)
        if fault == "ping fails" or self.is_cut:
            raise ConnectionResetError("simulated")
        self._used_at = self.checked_at = world.now
        date = formatdate((world.now + self.host.skew_ms) / 1000, usegmt=True)
        return SimpleNamespace(
            status=200,
            read=lambda: b"Ok.\n",
            getheader=lambda name: date if name == "Date" else None,
        )

    def exchange(self, request: Request, timeout_seconds: float) -> Reply:
        """Send a request and read the whole reply.

        :raises OSError: no reply.
        """
        keys = _parsed(request.path.partition("?")[2])
        if keys.get("query", "").startswith("INSERT"):
            reply = self._insert(request, keys, timeout_seconds)
        else:
            sql = bytes(request.body[0]).decode()
            is_step = "query_id" in keys and not sql.lstrip().startswith("SELECT")
            reply = (
                self._stage(sql, keys, timeout_seconds)
                if is_step
                else self._ask(sql, timeout_seconds)
            )
        self._used_at = self._world.now
        return reply

    def _ask(self, sql: str, timeout_seconds: float) -> Reply:
        world, statement = self._world, find(sql)
        # Drivers look at windows again and again: steps are for what happens.
        is_light = not statement.label or (statement.is_light and world.rng.random() < LIGHT_SHARE)
        fault = None if is_light else world.call(statement.label, faults.QUERY)
        if fault == "query fails" or self.is_cut:
            raise ConnectionResetError("simulated")
        if fault == "query is refused":
            return Reply(500, world.rng.choice(_REFUSALS), None, b"simulated")
        rows = statement.answer(self._parts, self.host, sql)
        if fault == "answer of a query is slow":
            answer_ms = world.rng.randrange(8_000)
            world.sleep(min(answer_ms, int(timeout_seconds * 1000)))
        elif fault == "answer of a query is cut off":
            return Reply(200, None, None, b'{"meta": [{"name":')
        names = list(rows[0]) if rows else []
        document = {
            "meta": [{"name": name} for name in names],
            "data": [[row[name] for name in names] for row in rows],
        }
        return Reply(200, None, None, json.dumps(document).encode())

    def _insert(self, request: Request, keys: dict[str, str], timeout_seconds: float) -> Reply:
        world = self._world
        if world.call("post", faults.BEFORE_POST) == "paused between lease check and insert":
            world.sleep(world.rng.randrange(2 * world.plan.keep_alive_ms))
        world.looking.pop(world.process, None)
        if self.is_cut:
            raise ConnectionResetError("simulated")
        if "__sluice_" in keys["query"]:
            return self._stage(keys["query"], keys, timeout_seconds, request.body[-1])
        insertion = Insertion(self._parts, self, request, keys, timeout_seconds)
        late_ms = world.now - insertion.deadline_ms
        if late_ms > LATE_START_MS:
            world.violate(f"an insert began {late_ms} ms after its lease (R9)")
        end_ms = self.checked_at + int(timeout_seconds * 1000) - insertion.deadline_ms
        if end_ms > LATE_END_MS:
            world.violate(f"an insert may go on {end_ms} ms beyond its lease (I1)")
        reply = insertion.answer()
        is_done = reply.status == 200 and not (reply.header_code or reply.body)
        self.refused = None if is_done else reply.body
        return reply

    def _stage(
        self, sql: str, keys: dict[str, str], timeout_seconds: float, block: Any = None
    ) -> Reply:
        """A statement about a staged block, within the lease of its task."""
        world, staging = self._world, self._parts.staging
        assert staging is not None
        deadline_ms = min(each.deadline_ms for each in world.records_of_task().values())
        if world.now - deadline_ms > LATE_START_MS:
            world.violate(f"a statement began {world.now - deadline_ms} ms after its lease")
        self.refused = None
        return staging.run(self, sql, keys["query_id"], timeout_seconds, block)


@lru_cache(maxsize=64)
def _parsed(keys: str) -> dict[str, str]:
    return dict(parse_qsl(keys, keep_blank_values=True))


@lru_cache(maxsize=64)
def _encoded(keys: tuple[tuple[str, str], ...]) -> str:
    return urlencode(keys)


def encoded(keys: Mapping[str, str]) -> str:
    """Stands for `urlencode`: nearly all queries carry the same settings."""
    return _encoded(tuple(keys.items()))


def connecting(parts: Parts) -> Callable[..., Connection]:
    """Stands for `sluice.clickhouse.connection.open_connection`."""

    world = parts.world

    def open_connection(address: Address, timeout_seconds: float, tls: object) -> Connection:
        if world.clickhouse.hosts[address.url].down_until > world.now:
            if world.rng.random() < 0.3:
                world.sleep(int(timeout_seconds * 1000))
                raise TimeoutError("simulated")
            raise ConnectionRefusedError("simulated")
        return Connection(parts, address.url)

    return open_connection


def has_ended(connection: Connection) -> bool:
    """Stands for `sluice.clickhouse.connection.has_ended`."""
    return connection.has_ended


def give_up_after(connection: Connection, seconds: float) -> None:
    """Stands for `sluice.clickhouse.connection.give_up_after`."""
    connection.gives_up_after = seconds


def drop(connection: Connection) -> None:
    """Stands for `sluice.clickhouse.connection.drop`."""
    connection.is_dropped = True
    if connection.undelivered is not None:
        connection.undelivered.is_over = True


def exchange(connection: Connection, request: Request, timeout_seconds: float) -> Reply:
    """Stands for `sluice.clickhouse.connection.exchange`."""
    return connection.exchange(request, timeout_seconds)
