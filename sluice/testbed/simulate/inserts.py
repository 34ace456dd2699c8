"""One insert in a simulated server's hands: it goes on whatever becomes of its client."""

from __future__ import annotations

import re

from sluice.clickhouse.connection import Reply, Request
from sluice.testbed.simulate.clickhouse import Block, InsertSettings, Part, Table, groups_of
from sluice.testbed.simulate.inserters import Connection, key_of
from sluice.testbed.simulate.parts import Parts

#: Refused for good: before anything is stored, and while it is.
ACCESS_DENIED, VIOLATED_CONSTRAINT = "497", "469"
#: Codes with which a server refuses before it begins.
_BEFORE = {
    "insert: quorum error before storing": ("285", "286"),
    "insert: table is read-only": ("242",),
    "insert: too many queries": ("202",),
    "insert: too many parts": ("252",),
    "insert: no room on the disk": ("243", "75"),
}
#: Codes after which a block may be stored wholly, partly, later, or not.
_IN_DOUBT = (
    *("159", "394", "209", "210", "32", "999", "244", "225", "241", "203", "236", "235"),
    *("384", "279", "319", "1002"),
)
#: What the machine of a client goes on sending if nobody stops it.
UNBOUNDED_MS = 90_000
_OK = Reply(200, None, '{"written_rows":"1"}', b"")
_INTO = re.compile(r"^INSERT INTO `d`\.`(\w+)` \(([^)]*)\) FORMAT Native$")


def table_in(query: str) -> str:
    """The name of the table of an insert."""
    name, _ = groups_of(_INTO, query)
    return str(name)


class Insertion:
    """An insert: what is stored, when, and what its client hears of it."""

    def __init__(
        self,
        parts: Parts,
        connection: Connection,
        request: Request,
        keys: dict[str, str],
        timeout_seconds: float,
    ) -> None:
        block = request.body[-1]
        assert isinstance(block, Block)
        self._parts = parts
        self._world = world = parts.world
        self._connection, self._host = connection, connection.host
        self.block = block
        self.table: Table = self._host.tables[table_in(keys["query"])]
        self._check_columns(keys["query"])
        self.token = keys.get("insert_deduplication_token")
        self._query_id = keys["query_id"]
        self._quorum = int(keys.get("insert_quorum", "1"))
        self._is_parallel = keys.get("insert_quorum_parallel", "0") == "1"
        self._quorum_ms = int(keys.get("insert_quorum_timeout", "600000"))
        self._keys = keys
        views = keys.get("deduplicate_blocks_in_dependent_materialized_views")
        self._settings_of_insert = InsertSettings(
            keys.get("insert_deduplicate") == "1", views == "1"
        )
        self._restarts = self._host.restarts
        # ALTER waits for the inserts that run.
        self._columns = self.table.columns
        self._records = world.records_of_task()
        self._since_ms = world.since_ms_of_task()
        record = next(iter(self._records.values()))
        self.deadline_ms = record.deadline_ms
        self._timeout_ms = int(timeout_seconds * 1000)
        self._end_ms = connection.checked_at + self._timeout_ms
        #: Past the window, whatever the loader thinks of it.
        self._replaces = self.table.shape.replaces
        count = self._count_parts()
        if count > record.reservation and not self._replaces:
            world.violate(
                f"a block of {count} entries was sent with a reservation of {record.reservation} "
                "(I5)"
            )
        self._landing: object = None
        #: How many parts were lost before this block was stored; and whether any of it was new.
        self._lost_before, self._is_new = parts.quorums.lost, False
        #: Something of it may still be stored.
        self._is_pending = False
        #: A plain table's server dies when it knows the block, and does not have it yet.
        self._dies_between = False
        self._parts.claim_rules.inserts(self._records, block.entry)
        parts.invariants.blocks.inserts(block, self._records, self.table)
        self._mine = self._parts.inserters.insert_begins(self._records, self.table, block.entry)

    def _check_columns(self, query: str) -> None:
        """The statement names each column of the block in its order (R8); what it does not
        name is filled by the server."""
        _, columns = groups_of(_INTO, query)
        named = tuple(name.strip("`") for name in columns.split(", "))
        if named != self.block.columns:
            self._world.violate(f"an insert of the columns {self.block.columns} names {named} (R8)")

    # What the client gets

    def answer(self) -> Reply:
        """What the client gets, or does not get."""
        try:
            return self._answer()
        finally:
            self._mine.is_over = not self._is_pending or self._connection.is_dropped

    def _answer(self) -> Reply:
        world, rng = self._world, self._world.rng
        fault = world.draw_insert_fault()
        world.say(f"insert {self.token} at {self._host.url}: {fault}")
        refused = self._refused()
        if refused is not None and fault is None:
            return refused
        if fault is not None:
            self._parts.adversary.load_as_others(self.table, self.block)
            self._parts.adversary.forget_schemas()
        took_ms = rng.randrange(2, 60)
        if fault in _BEFORE:
            return self._error(rng.choice(_BEFORE[fault]))
        if fault == "insert: request lost":
            # However long its worker sleeps before it hears of that.
            self._mine.is_over = True
            world.sleep(took_ms)
            raise ConnectionResetError("simulated")
        if fault == "insert: answer cut off, lands late":
            self._land_in_time()
            world.sleep(took_ms)
            raise ConnectionResetError("simulated")
        if fault == "insert: reply of a proxy":
            if rng.random() < 0.5:
                self._land_in(rng.randrange(max(1, self.room_ms())))
            return Reply(rng.choice((502, 503, 504, 429, 408)), None, None, b"simulated")
        if fault in ("insert: hangs and lands late", "insert: hangs and never lands"):
            return self._hang(lands=fault == "insert: hangs and lands late")
        return self._stored(fault, took_ms)

    def _refused(self) -> Reply | None:
        world, table = self._world, self.table
        if self._host.read_only_until > world.now:
            return self._error("242")
        most = int(self._keys.get("max_partitions_per_insert_block", "1"))
        if most and self._count_parts() > most:
            return Reply(500, "252", None, b"Code: 252. Too many partitions for one insert")
        if self._keys.get("async_insert") != "0":
            return _OK  # put into a buffer that is lost
        if table.refuses_until > world.now:
            if table.refusal == VIOLATED_CONSTRAINT:
                # Judged part by part: some may be stored already.
                self._land_in(1, world.rng.randrange(self._count_parts() + 1))
                world.sleep(2)
            return self._error(table.refusal)
        if self._quorum > 1 and self._parts.quorums.is_open(table) and not self._is_parallel:
            return self._error("286")
        return None

    def _error(self, code: str) -> Reply:
        """As one version or another says it."""
        how = self._world.rng.random()
        text = f"Code: {code}, e.displayText() = DB::Exception: simulated".encode()
        if how < 0.6:
            return Reply(500, code, None, text)
        if how < 0.8:  # 18.16
            return Reply(500, None, None, text)
        # After the headers were sent: what fails at the end of a long insert.
        return Reply(200, code if how < 0.9 else None, None, b"\r\n" + text)

    def _hang(self, *, lands: bool) -> Reply:
        world, connection = self._world, self._connection
        if lands:
            self._land_in_time()
        else:
            # A part of it is on its way: it arrives unless somebody stops the sending.
            limit = connection.gives_up_after
            until = world.now + (UNBOUNDED_MS if limit == 0 else int(limit * 1000))

            self._is_pending = True
            connection.undelivered = self._mine
            self._mine.sends_until_ms = until

            def arrive() -> None:
                self._is_pending, self._mine.is_over = False, True
                if not connection.is_dropped and world.now < until:
                    self._store(None)
                    late_ms = world.now - self._end_ms
                    world.violate(f"a block arrives {late_ms} ms after its POST had to end (I1)")

            world.scheduler.at(self._timeout_ms + world.rng.randrange(1, 20_000), arrive)
        world.sleep(self._timeout_ms)
        raise TimeoutError("simulated")

    def _stored(self, fault: str | None, took_ms: int) -> Reply:
        world, rng = self._world, self._world.rng
        if world.plan.inserts_take_ms and fault is None:
            took_ms = min(world.plan.inserts_take_ms + took_ms, max(1, self.room_ms()))
            world.faults.note("insert: slower than its time-out")
        if fault == "insert: slow":
            took_ms = max(took_ms, min(rng.randrange(5_000, 29_900), self.room_ms()))
        parts_max = None
        if fault == "insert: partial over ClickHouse partitions":
            parts = self._count_parts()
            parts_max = rng.randrange(parts) if rng.random() < 0.2 else rng.randrange(1, parts + 1)
        self._dies_between = fault == "insert: server dies between token and part"
        if fault == "insert: fails in any way" and rng.random() < 0.5:
            parts_max = 0
        self._land_in(took_ms, parts_max)
        if took_ms >= self._timeout_ms:
            world.sleep(self._timeout_ms)
            raise TimeoutError("simulated")
        world.sleep(took_ms + 1)
        if fault == "insert: acknowledgement lost" or self._host.restarts != self._restarts:
            raise ConnectionResetError("simulated")
        if parts_max is not None:
            return self._error(rng.choice(_IN_DOUBT))
        if fault == "insert: quorum error after storing":
            return self._error(rng.choice(("319", "286")))
        if self._quorum > 1:
            return self._wait_for_quorum()
        return _OK

    def _wait_for_quorum(self) -> Reply:
        """Of a block that only another server has, reached and given up look alike (H26)."""
        world, quorums = self._world, self._parts.quorums
        until = world.now + self._quorum_ms
        sees_all = self._is_new or quorums.has(self.table, self.block, self._host)
        while quorums.holds(self.table, self.token, self.block):
            if self._host.down_until > world.now:
                raise ConnectionResetError("simulated")
            if world.now >= min(until, self._end_ms):
                if world.now >= self._end_ms:
                    raise TimeoutError("simulated")
                return self._error("319")
            world.sleep(max(1, min(1_000, until - world.now, self._end_ms - world.now)))
        is_lost = quorums.lost != self._lost_before
        if is_lost and not sees_all:
            world.faults.note("OK to a repeat whose quorum was given up")
        return self._error("319") if is_lost and sees_all else _OK

    def _count_parts(self) -> int:
        return len(self.table.partitions_of(self.block.rows))

    # What is stored, and when

    def room_ms(self) -> int:
        """How long it may take."""
        return self._world.room_ms(self.deadline_ms, self._end_ms)

    def _land_in_time(self) -> None:
        """It lands when it does most harm: when its token is forgotten, or at the last moment."""
        world, room_ms = self._world, self.room_ms()
        if room_ms <= 0:
            return
        if world.rng.random() < 0.5:
            self._land_in(world.rng.randrange(room_ms))
            return
        self._land_in(room_ms - 1)
        self._parts.adversary.wait(self.table, self.token, self._land_now)

    def _land_now(self) -> None:
        landing, self._landing = self._landing, None
        if landing is not None:
            self._store(None)

    def _land_in(self, delay_ms: int, parts_max: int | None = None) -> None:
        world = self._world
        executed = world.executing(self._host, self._query_id)
        mine = self._landing = object()
        self._is_pending = True
        token = self.token

        def land() -> None:
            if self._landing is mine:
                self._landing = None
                self._store(parts_max)

        def end() -> None:
            executed()
            self._is_pending, self._mine.is_over = False, True
            self._parts.adversary.end(self.table, token, self._land_now)

        world.scheduler.at(max(0, delay_ms), land)
        world.scheduler.at(max(0, delay_ms), end)

    def _store(self, parts_max: int | None) -> None:
        world, table = self._world, self.table
        if self._host.restarts != self._restarts:
            return
        world.say(f"stores {self.token} {self.block.rows}, {parts_max} parts")
        if world.now > self.deadline_ms:
            world.faults.note("late insert after the lease")
        if self._replaces and parts_max != 0:
            name = self._query_id.rpartition("-")[0]
            self._parts.invariants.blocks.storing(name, self.block)
        elif self.token is not None and parts_max != 0:
            self._parts.invariants.blocks.storing(self.token, self.block)
            for each in (table, *table.views):
                self._parts.adversary.before_store(each, self.token)
            self._parts.invariants.blocks.stored(table, self.block, self._records, self.token)
        elif parts_max != 0:
            self._parts.invariants.blocks.stored_by_hash(
                table, self.block, self._records, self._columns
            )
        before = table.deduplicated
        parts = table.insert(
            self.token, self.block, self._columns, parts_max, self._settings_of_insert
        )
        if table.deduplicated > before:
            world.faults.note("block deduplicated")
        self._parts.claim_rules.stored(parts, table, self.block.entry, self._since_ms, self._host)
        key = key_of(self._records, self.block.entry)
        table.stored_of[key] += len(parts)
        if parts_max is None:
            table.landed.add(key)
        # Where rows are hashed, what a probe finds has the hash of what the server knows.
        may_lack = (self._replaces or self.token is not None) and not table.shape.is_replicated
        if parts and self._dies_between and may_lack:
            table.lose_rows(parts[-1])
            world.restart(self._host, world.rng.randrange(1, 5_000))
        if parts:
            self._replicate(parts)
            if not self._replaces:
                self._parts.invariants.check_budget(table)
            elif table.has_again(self.block.rows):
                world.faults.note("equal row came again")

    def _replicate(self, parts: list[Part]) -> None:
        # One of them may be lost before the insert looks at its quorum.
        self._lost_before, self._is_new = self._parts.quorums.lost, True
        hosts = self._world.clickhouse.replicas_of(self._host.shard)
        for host in hosts:
            if host is not self._host and self.table.shape.is_replicated:
                self._parts.quorums.fetch_later(self.table, host, self._host, parts, self._quorum)
