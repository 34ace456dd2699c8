"""What `doctor` looks at in one ClickHouse server: whether it answers, its clock, its tables,
and whether an insert would be let in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.capabilities import Capabilities, insert_settings, read_capabilities
from sluice.clickhouse.http import INSERT_TIMEOUT_SECONDS, Server
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.topology import read_condition
from sluice.clickhouse.window import crowding, read_insert_counter
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.lease import CLOCK_SKEW_MS_MAX
from sluice.core.planning import CROWDED_FROM
from sluice.core.replicas import Condition
from sluice.machine.clock import now_ms
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.doctor_front import FrontLook, look_at_front, plan_no_rows
from sluice.ops.doctor_rights import check_clickhouse_rights
from sluice.ops.grants import DOCTOR, ClickHouseRight

_Name = tuple[str, str]
RightsOf = Callable[[Mapping[str, TableFacts]], Sequence[ClickHouseRight]]


@dataclass(slots=True)
class ReplicaLook:
    """What was seen of one server.

    :param away: why it does not answer, None if it does.
    :param capabilities: None if they could not be read.
    :param tables: facts by (database, table) of the targets that may be loaded.
    :param condition: how its replicas are doing, None if that could not be read.
    """

    shard: str
    url: str
    findings: list[Finding] = field(default_factory=list)
    away: SluiceError | None = None
    capabilities: Capabilities | None = None
    tables: dict[_Name, TableFacts] = field(default_factory=dict)
    condition: Condition | None = None
    front: FrontLook = field(default_factory=FrontLook)

    @property
    def where(self) -> str:
        return f"shard {self.shard} at {self.url}"


def look_at_replica(
    access: ClickHouseAccess,
    shard: str,
    url: str,
    names: Sequence[_Name],
    past_windows: Collection[_Name] = (),
    rights: RightsOf = lambda tables: (),
) -> ReplicaLook:
    """Examine one server. What cannot be read is a finding, never an exception.

    :param names: (database, table) of the targets.
    :param rights: what is needed there, by the facts of the tables as far as they can be read.
    :param past_windows: those of them whose blocks are sent past their windows.
    """
    with access.connect(url) as server:
        look = ReplicaLook(shard, server.url)
        try:
            server.ping()
            look.capabilities = read_capabilities(server)
        except TransientError as error:
            look.away = error
            return look
        except SluiceError as error:
            look.findings.append(Finding("error", "access", look.where, error.message, error.hint))
            return look
        found = Examination(look.where)
        found.ok("clickhouse", f"version {look.capabilities.version_text} answers")
        found.attempt("clock", lambda: _check_clock(found, server))
        look.findings += found.findings
        for database, table in names:
            has_window = (database, table) not in past_windows
            _look_at_table(look, server, access, database, table, has_window=has_window)
        _look_at_rights(look, server, access, rights)
        _look_at_way(look, server, access)
        with suppress(SluiceError):  # a look at the tables has told it
            look.condition = read_condition(server, look.tables, counts=False)
        return look


def _look_at_way(look: ReplicaLook, server: Server, access: ClickHouseAccess) -> None:
    capabilities = look.capabilities
    assert capabilities is not None
    found = Examination(look.where)

    def look_at() -> None:
        tables = list(look.tables.values())
        look.front = look_at_front(found, access, server, capabilities, tables)

    found.attempt("front", look_at)
    look.findings += found.findings


def _check_clock(found: Examination, server: Server) -> None:
    """Lease and window are measured by two clocks."""
    ahead_ms = clock_ahead_ms(server)
    if abs(ahead_ms) > CLOCK_SKEW_MS_MAX:
        found.error(
            "clock",
            f"its clock is {abs(ahead_ms) / 1000:.1f} s "
            f"{'ahead of' if ahead_ms > 0 else 'behind'} the clock here",
            "Synchronise the clocks of both machines (chrony, ntpd).",
        )
    found.ok("clock", f"its clock differs by less than {CLOCK_SKEW_MS_MAX // 1000} s")


def clock_ahead_ms(server: Server) -> int:
    """How far the server's clock is surely ahead of ours; negative if it is behind, 0 if the
    difference drowns in the answer's travel time and in the clock's resolution."""
    server.ping()
    for text, resolution_ms in (
        ("SELECT toUnixTimestamp64Milli(now64(3)) AS now_ms", 1),
        ("SELECT toUInt64(toUnixTimestamp(now())) * 1000 AS now_ms", 1000),
    ):
        before_ms = now_ms()
        try:
            earliest_ms = int(server.query(text)[0]["now_ms"])
        except TerminalError:
            if resolution_ms > 1:
                raise
            continue  # a server before 20.1 has no now64
        after_ms = now_ms()
        if earliest_ms > after_ms:
            return earliest_ms - after_ms
        return min(0, earliest_ms + resolution_ms - before_ms)
    return 0


def _look_at_rights(
    look: ReplicaLook, server: Server, access: ClickHouseAccess, rights: RightsOf
) -> None:
    found = Examination(look.where)
    known = {facts.target: facts for facts in look.tables.values()}
    needed = [
        each for each in rights(known) if look.shard in each.shards and each.command in ("", DOCTOR)
    ]

    def check() -> None:
        running_query_ids(server, "sluice-doctor")  # of servers that cannot say
        check_clickhouse_rights(found, server, access.user, needed)

    found.attempt("rights", check)
    look.findings += found.findings


def _look_at_table(
    look: ReplicaLook,
    server: Server,
    access: ClickHouseAccess,
    database: str,
    table: str,
    *,
    has_window: bool,
) -> None:
    found = Examination(f"{database}.{table} on {server.url}")
    try:
        facts = describe_table(server, database, table)
        look.tables[database, table] = facts
    except SluiceError as error:
        found.refused("table", error)
    else:
        if has_window:
            _check_insert_counter(found, server, facts)
        found.attempt("parts", lambda: _check_parts(found, server, facts))
        assert look.capabilities is not None
        if not facts.is_readonly:  # `check_contact` tells of that
            _rehearse_insert(found, server, access, look, facts, has_window=has_window)
    look.findings += found.findings


def _check_insert_counter(found: Examination, server: Server, facts: TableFacts) -> None:
    """Nothing is loaded where it cannot be read."""
    try:
        read_insert_counter(server, facts)
    except TransientError as error:
        found.failed("insert-counter", error)
    except SluiceError as error:
        found.error("insert-counter", error.message, error.hint)
    found.ok("insert-counter", "how much of the window is used can be read")


def _check_parts(found: Examination, server: Server, facts: TableFacts) -> None:
    """A server that does not merge takes blocks for a while, then slowly, then none."""
    crowded = crowding(server, facts)
    what = f"the fullest partition has {crowded:.0%} of the parts that delay inserts"
    if crowded >= CROWDED_FROM:
        found.warning(
            "parts",
            f"{what}: ranges that are not full wait longer",
            "Look why it does not merge (SYSTEM START MERGES, system.merges, its disk), or raise "
            "max_delay, so that blocks are larger.",
        )
    found.ok("parts", what)


def _rehearse_insert(
    found: Examination,
    server: Server,
    access: ClickHouseAccess,
    look: ReplicaLook,
    facts: TableFacts,
    *,
    has_window: bool,
) -> None:
    """Insert no row at all, with the settings of a real insert: rights, locked settings,
    columns and quorum answer as they will for a block."""
    capabilities = look.capabilities
    assert capabilities is not None
    try:
        settings = insert_settings(
            capabilities,
            access.quorum_of(look.shard),
            access.quorum_timeout_seconds,
            deduplicates=has_window,
        )
        plan = plan_no_rows(facts, settings, has_token=capabilities.tokens and has_window)
        server.insert(plan, lambda: INSERT_TIMEOUT_SECONDS)
    except SluiceError as error:
        found.error("insert", f"an insert of no rows is refused: {error.message}", error.hint)
    found.ok("insert", "an insert of no rows is accepted")
