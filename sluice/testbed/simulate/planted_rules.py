"""Bugs on purpose about windows, leases, possible late inserts, replicas and bundles (R19), as
somebody who does not know the rules would make them; see `planted`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.clickhouse import http
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.reactions import nothing_sent
from sluice.core import budget, bundles, lease
from sluice.core.budget import Hold, WindowState
from sluice.core.bundles import Member
from sluice.core.errors import SluiceError
from sluice.driver import (
    bundling,
    connector,
    dispatching,
    probing,
    record_updates,
    recording,
    remembering,
    repeating,
    state,
)
from sluice.driver.freezing import Freezing
from sluice.driver.monitor import WindowMonitor
from sluice.driver.observing import TopicObserver
from sluice.driver.record_updates import Budget, RecordPlanner
from sluice.driver.state import Holds, PartitionState
from sluice.kafka import recorder, transactions
from sluice.kafka.errors import UnknownCommitError
from sluice.kafka.log import Cuts
from sluice.testbed.simulate import wire
from sluice.testbed.simulate.decoding import DecodedRows, VersionedDecoder, with_rows
from sluice.testbed.simulate.planting import Bugs, patched
from sluice.worker import inserting, leases, loading

RULE_BUGS = Bugs()


@RULE_BUGS.instead_of(record_updates, "room")
def newest_hold_only(real: Any, window: WindowState, holds: Any, ended: int = 0) -> Any:
    """Entries are counted since the newest hold on a window instead of the oldest."""
    held = list(holds)
    newest = max((hold.insert_counter for hold in held), default=window.insert_counter)
    return real(window, [Hold(newest, hold.reservation) for hold in held], ended)


@RULE_BUGS.instead_of(record_updates, "room")
def largest_reservation_only(real: Any, window: WindowState, holds: Any, ended: int = 0) -> Any:
    """Of all reservations that may still land only the largest counts."""
    held = list(holds)
    most = max((hold.reservation for hold in held), default=0)
    first = [Hold(hold.insert_counter, 0) for hold in held]
    return real(window, first, ended) - most


@RULE_BUGS.plant
def no_grace_after_the_lease() -> AbstractContextManager[None]:
    """A lease is over everywhere as soon as it is over here."""

    def has_expired(deadline: int, now_ms: int) -> bool:
        return lease.has_expired(deadline, now_ms, 0)

    modules = (dispatching, recording, state, record_updates)
    return patched(*((module, "has_expired", has_expired) for module in modules))


@RULE_BUGS.instead_of(record_updates, "settling")
def late_inserts_are_not_recorded(real: Any, found: PartitionState, now_ms: int) -> Any:
    """The ledger does not learn of inserts that may come late."""
    entries, *others = real(found, now_ms)
    return tuple(e for e in entries if e.body["type"] != "late_insert"), *others


@RULE_BUGS.instead_of(Holds, "forget")
def late_inserts_end_with_their_lease(
    real: Any, self: Holds, now_ms: int, read_started_ms: int
) -> None:
    """A late insert is forgotten when its lease ends, while a server may still store it."""
    real(self, now_ms, read_started_ms)
    self.late_inserts = [
        late_insert for late_insert in self.late_inserts if late_insert.deadline_ms > now_ms
    ]


@RULE_BUGS.instead_of(leases.HeldLease, "check")
def inserts_outlive_their_lease(real: Any, self: Any, *parts: Any) -> float:
    """The lease is checked before the POST, and does not end it (I1)."""
    real(self, *parts)
    return math.inf


@RULE_BUGS.instead_of(http, "exchange")
def unknown_status_is_success(_: Any, *parts: Any) -> Any:
    """319 after the headers were sent counts as OK."""
    reply = wire.exchange(*parts)
    if reply.status == 200 and b"Code: 319" in reply.body:
        return replace(reply, header_code=None, body=b"")
    return reply


@RULE_BUGS.instead_of(http, "exchange")
def errors_after_the_headers_are_not_read(
    _: Any, connection: Any, request: Any, timeout: float
) -> Any:
    """A reply that begins with 200 counts as OK."""
    reply = wire.exchange(connection, request, timeout)
    is_insert = "INSERT" in request.path
    return replace(reply, header_code=None, body=b"") if is_insert else reply


@RULE_BUGS.plant
def undelivered_is_not_dropped() -> AbstractContextManager[None]:
    """What a server has not taken when the POST ends goes on being sent."""
    return patched(
        (http, "drop", lambda connection: None), (http, "give_up_after", lambda *_: None)
    )


@RULE_BUGS.instead_of(http, "reply_lost")
def lost_answers_are_transient(
    _: Any, url: str, what: str, name: str, why: str, read_only: bool
) -> SluiceError:
    """An insert without an answer is thought not to have been sent."""
    return nothing_sent(url, what, name, why)


@RULE_BUGS.plant
def probe_ignores_running_inserts() -> AbstractContextManager[None]:
    """A probe that has found the lease over looks while a server still stores."""
    return patched(
        (probing, "running_query_ids", lambda *_: []),
        (dispatching, "has_expired", lambda deadline, now_ms: now_ms > deadline),
    )


@RULE_BUGS.plant
def quorums_that_were_given_up_are_believed() -> AbstractContextManager[None]:
    """An OK to a repeat means that the quorum was reached."""
    return patched((inserting, "_require_quorum", lambda *_: None))


@RULE_BUGS.instead_of(probing.ClickHouseProber, "_look")
def probe_looks_into_one_shard(real: Any, self: Any, probe: Any, table: Any, since_ms: int) -> None:
    """What lies in other shards counts as missing."""
    real(self, probe, replace(table, shards=table.shards[:1]), since_ms)


@RULE_BUGS.instead_of(RecordPlanner, "renew")
def renewals_are_young(
    real: Any,
    self: RecordPlanner,
    found: PartitionState,
    now_ms: int,
    reservation: int | None = None,
) -> Any:
    """The age of a block is counted from its last renewal on."""
    step = real(self, found, now_ms, reservation)
    return replace(step, background=replace(step.background, since_ms=now_ms))


@RULE_BUGS.plant
def age_does_not_matter() -> AbstractContextManager[None]:
    """Windows that forget by time are thought not to."""
    return patched(
        (remembering, "still_young", lambda *_: True),
        (budget, "still_young", lambda *_: True),
    )


@RULE_BUGS.instead_of(WindowMonitor, "_read_target_shard")
def insert_counters_are_stamped_after_reading(real: Any, self: Any, *parts: Any) -> Any:
    """What is inserted while an insert counter is read counts as seen by it."""
    found = real(self, *parts)
    now_ms = self._now_ms()
    return {target_shard: replace(w, read_started_ms=now_ms) for target_shard, w in found.items()}


@RULE_BUGS.plant
def nobody_looks_at_windows() -> AbstractContextManager[None]:
    """A repeat, or a failover, is sent without a look at what came into the window since."""
    return patched(
        (inserting, "_require_remembered", lambda *_: None),
        (Budget, "take_again", lambda *_: True),
        (repeating, "why_forgotten", lambda *_: ""),
    )


@RULE_BUGS.plant
def successors_get_no_time() -> AbstractContextManager[None]:
    """Who is fenced takes over again at once, also from a successor."""
    return patched((recorder, "SUCCESSOR_PATIENCE_SECONDS", 0.0))


@RULE_BUGS.plant
def cuts_are_not_looked_for() -> AbstractContextManager[None]:
    """A log whose leader has changed is thought to hold what it held."""
    return patched((connector, "find_cuts", lambda *_: Cuts()))


@RULE_BUGS.plant
def former_leaders_are_believed() -> AbstractContextManager[None]:
    """Whatever leader answers, its end counts."""
    return patched((TopicObserver, "_drop_unverified", lambda *_: iter(())))


@RULE_BUGS.instead_of(transactions, "_commit")
def stopped_commits_count(real: Any, producer: Any, stop: Any) -> None:
    """A commit that was interrupted counts as done."""
    try:
        real(producer, stop)
    except UnknownCommitError:
        return


@RULE_BUGS.plant
def second_attempts_insert() -> AbstractContextManager[None]:
    """A task that Spark started again inserts without a look of the driver."""
    return patched((loading, "_refused", lambda *_: None))


@RULE_BUGS.instead_of(connector, "take_over")
def take_over_drops_late_inserts(real: Any, *parts: Any, **named: Any) -> Any:
    """A successor does not take in what the ledger says of late inserts."""
    started = real(*parts, **named)
    started.late_inserts = []
    return started


@RULE_BUGS.plant
def old_looks_are_good_enough() -> AbstractContextManager[None]:
    """A range is repeated on what the windows held before it came back."""
    real = remembering.why_forgotten

    def why_forgotten(found: Any, spec: Any, windows: Any, now: int, _: int) -> Any:
        return real(found, spec, windows, now, 0)

    return patched(
        (repeating, "why_forgotten", why_forgotten),
        (inserting, "_require_remembered", lambda *_: None),
    )


@RULE_BUGS.plant
def restarted_servers_are_believed() -> AbstractContextManager[None]:
    """A plain table's server that was started again is thought to have all that it knows."""
    return patched(
        (remembering, "is_same_run", lambda *_: True),
        (inserting, "is_same_run", lambda *_: True),
    )


@RULE_BUGS.plant
def probe_does_not_wait_for_replicas() -> AbstractContextManager[None]:
    """A probe looks at a replica that is behind."""
    return patched((probing, "why_not_in_sync", lambda *_: ""))


@RULE_BUGS.plant
def what_is_frozen_is_sent() -> AbstractContextManager[None]:
    """A freeze keeps new ranges back, and repeats ranges in doubt (R23)."""
    return patched((Freezing, "of", lambda freezing, state: ()))


@RULE_BUGS.instead_of(ClickHouseAccess, "taking")
def frozen_replicas_are_sent_blocks(
    real: Any, access: ClickHouseAccess, shard: str, **_: bool
) -> tuple[str, ...]:
    """A replica that is frozen gets no blocks (R23)."""
    return access.shards[shard]


BUNDLE_BUGS = Bugs()


@BUNDLE_BUGS.plant
def rows_in_order_of_arrival() -> AbstractContextManager[None]:
    """The rows of a bundle's members stand in the order in which a broker sent them."""
    real, turn = VersionedDecoder.decode, itertools.count()

    def decode(self: VersionedDecoder, buffer: Any, origins: Any) -> DecodedRows:
        decoded = real(self, buffer, origins)
        sources = [origin.source for origin in origins.members]
        if next(turn) % 2:
            sources.reverse()
        rows = sorted(decoded.native.rows, key=lambda row: sources.index(row.source))
        return with_rows(decoded, tuple(rows), self._divisor)

    return patched((VersionedDecoder, "decode", decode))


@BUNDLE_BUGS.plant
def members_are_recorded_one_by_one() -> AbstractContextManager[None]:
    """The records of a bundle are written in several transactions."""
    return patched((recording, "bounded", lambda updates: updates[:1]))


@BUNDLE_BUGS.plant
def bundle_named_by_its_partitions() -> AbstractContextManager[None]:
    """The digest says nothing of offsets."""
    real = bundles.bundle_name

    def bundle_name(members: Iterable[Member]) -> str:
        whole = [replace(each.block_range, begin=0, end=1) for each in members]
        return real(Member(each, "", 0) for each in whole)

    return patched((bundles, "bundle_name", bundle_name), (bundling, "bundle_name", bundle_name))


@BUNDLE_BUGS.instead_of(repeating.Repeats, "_dissolved")
def given_back_while_it_may_land(real: Any, self: Any, members: list[PartitionState]) -> Any:
    """A bundle that is no more is planned anew although some task may have inserted it."""
    for member in members:
        member.untouched = True
    return real(self, members)


@BUNDLE_BUGS.instead_of(repeating, "_as_first")
def each_member_keeps_its_lease(real: Any, state: PartitionState, update: Any, attempt: int) -> Any:
    """A new attempt renews the lease of the first member only."""
    found = real(state, update, attempt)
    if state.source == update.source:
        return found
    return replace(found, record=replace(found.record, deadline_ms=state.record.deadline_ms))


@BUNDLE_BUGS.instead_of(Holds, "at")
def all_bundles_are_one_hold(
    real: Any, self: Holds, target_shard: Any, states: list[PartitionState], now_ms: int
) -> Any:
    """Of all bundles that may still be inserted one counts against the window."""
    bundled = [state for state in states if state.record.bundle]
    return real(self, target_shard, [s for s in states if s not in bundled] + bundled[:1], now_ms)
