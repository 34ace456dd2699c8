"""Bugs on purpose about windows, leases, possible late inserts and replicas, as somebody who does
not know the rules would make them; see `planted`."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.clickhouse import http
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.reactions import nothing_sent
from sluice.core import budget, lease
from sluice.core.budget import Hold, WindowState
from sluice.core.errors import SluiceError
from sluice.driver import (
    connector,
    dispatching,
    probing,
    record_updates,
    recording,
    remembering,
    round_planner,
    start,
    state,
)
from sluice.driver.freezing import Freezing
from sluice.driver.monitor import WindowMonitor
from sluice.driver.observing import TopicObserver
from sluice.driver.record_updates import Budget, RecordPlanner
from sluice.driver.state import Holds, PartitionState
from sluice.kafka import recorder, transactions
from sluice.kafka.errors import UnknownCommitError
from sluice.testbed.simulate import wire
from sluice.testbed.simulate.patches import patched
from sluice.worker import inserting, leases, loading

Plant = Callable[[], AbstractContextManager[None]]


def _newest_hold_only() -> AbstractContextManager[None]:
    """Entries are counted since the newest hold on a window instead of the oldest."""
    real = budget.room

    def room(window: WindowState, holds: Any, ended: int = 0) -> int:
        held = list(holds)
        newest = max((hold.insert_counter for hold in held), default=window.insert_counter)
        return real(window, [Hold(newest, hold.reservation) for hold in held], ended)

    return patched((record_updates, "room", room))


def _largest_reservation_only() -> AbstractContextManager[None]:
    """Of all reservations that may still land only the largest counts."""
    real = budget.room

    def room(window: WindowState, holds: Any, ended: int = 0) -> int:
        held = list(holds)
        most = max((hold.reservation for hold in held), default=0)
        first = [Hold(hold.insert_counter, 0) for hold in held]
        return real(window, first, ended) - most

    return patched((record_updates, "room", room))


def _no_grace_after_the_lease() -> AbstractContextManager[None]:
    """A lease is over everywhere as soon as it is over here."""

    def has_expired(deadline: int, now_ms: int) -> bool:
        return lease.has_expired(deadline, now_ms, 0)

    modules = (dispatching, recording, state, record_updates)
    return patched(*((module, "has_expired", has_expired) for module in modules))


def _late_inserts_are_not_recorded() -> AbstractContextManager[None]:
    """The ledger does not learn of inserts that may come late."""
    real = record_updates.settling

    def settling(found: PartitionState, now_ms: int) -> Any:
        entries, *others = real(found, now_ms)
        return tuple(e for e in entries if e.body["type"] != "suspect"), *others

    return patched((record_updates, "settling", settling))


def _late_inserts_end_with_their_lease() -> AbstractContextManager[None]:
    """A late insert is forgotten when its lease ends, while a server may still store it."""
    real = Holds.forget

    def forget(self: Holds, now_ms: int, read_started_ms: int) -> None:
        real(self, now_ms, read_started_ms)
        self.late_inserts = [
            late_insert for late_insert in self.late_inserts if late_insert.deadline_ms > now_ms
        ]

    return patched((Holds, "forget", forget))


def _inserts_outlive_their_lease() -> AbstractContextManager[None]:
    """The lease is checked before the POST, and does not end it (I1)."""
    real = leases.HeldLease.check

    def check(self: Any, *parts: Any) -> float:
        real(self, *parts)
        return math.inf

    return patched((leases.HeldLease, "check", check))


def _unknown_status_is_success() -> AbstractContextManager[None]:
    """319 after the headers were sent counts as OK."""

    def exchange(*parts: Any) -> Any:
        reply = wire.exchange(*parts)
        if reply.status == 200 and b"Code: 319" in reply.body:
            return replace(reply, header_code=None, body=b"")
        return reply

    return patched((http, "exchange", exchange))


def _errors_after_the_headers_are_not_read() -> AbstractContextManager[None]:
    """A reply that begins with 200 counts as OK."""

    def exchange(connection: Any, request: Any, timeout: float) -> Any:
        reply = wire.exchange(connection, request, timeout)
        is_insert = "INSERT" in request.path
        return replace(reply, header_code=None, body=b"") if is_insert else reply

    return patched((http, "exchange", exchange))


def _undelivered_is_not_dropped() -> AbstractContextManager[None]:
    """What a server has not taken when the POST ends goes on being sent."""
    return patched(
        (http, "drop", lambda connection: None), (http, "give_up_after", lambda *_: None)
    )


def _lost_answers_are_transient() -> AbstractContextManager[None]:
    """An insert without an answer is thought not to have been sent."""

    def reply_lost(url: str, what: str, name: str, why: str, read_only: bool) -> SluiceError:
        return nothing_sent(url, what, name, why)

    return patched((http, "reply_lost", reply_lost))


def _probe_ignores_running_inserts() -> AbstractContextManager[None]:
    """A probe that has found the lease over looks while a server still stores."""
    return patched(
        (probing, "running_query_ids", lambda *_: []),
        (dispatching, "has_expired", lambda deadline, now_ms: now_ms > deadline),
    )


def _probe_looks_into_one_shard() -> AbstractContextManager[None]:
    """What lies in other shards counts as missing."""
    real = probing.ClickHouseProber._look

    def look(self: Any, probe: Any, table: Any, since_ms: int) -> None:
        real(self, probe, replace(table, shards=table.shards[:1]), since_ms)

    return patched((probing.ClickHouseProber, "_look", look))


def _renewals_are_young() -> AbstractContextManager[None]:
    """The age of a block is counted from its last renewal on."""
    real = RecordPlanner.renew

    def renew(
        self: RecordPlanner, found: PartitionState, now_ms: int, reservation: int | None = None
    ) -> Any:
        step = real(self, found, now_ms, reservation)
        return replace(step, background=replace(step.background, since_ms=now_ms))

    return patched((RecordPlanner, "renew", renew))


def _age_does_not_matter() -> AbstractContextManager[None]:
    """Windows that forget by time are thought not to."""
    return patched(
        (remembering, "still_young", lambda *_: True),
        (inserting, "still_young", lambda *_: True),
    )


def _insert_counters_are_stamped_after_reading() -> AbstractContextManager[None]:
    """What is inserted while an insert counter is read counts as seen by it."""
    real = WindowMonitor._read_target_shard

    def read_target_shard(self: Any, *parts: Any) -> Any:
        found = real(self, *parts)
        now_ms = self._now_ms()
        return {
            target_shard: replace(w, read_started_ms=now_ms) for target_shard, w in found.items()
        }

    return patched((WindowMonitor, "_read_target_shard", read_target_shard))


def _nobody_looks_at_windows() -> AbstractContextManager[None]:
    """A repeat, or a failover, is sent without a look at what came into the window since."""
    return patched(
        (inserting, "_require_remembered", lambda *_: None),
        (Budget, "take_again", lambda *_: True),
        (round_planner, "why_forgotten", lambda *_: ""),
    )


def _successors_get_no_time() -> AbstractContextManager[None]:
    """Who is fenced takes over again at once, also from a successor."""
    return patched((recorder, "SUCCESSOR_PATIENCE_SECONDS", 0.0))


def _cuts_are_not_looked_for() -> AbstractContextManager[None]:
    """A log whose leader has changed is thought to hold what it held."""
    return patched((connector, "find_cuts", lambda *_: {}))


def _former_leaders_are_believed() -> AbstractContextManager[None]:
    """Whatever leader answers, its end counts."""
    return patched((TopicObserver, "_drop_unverified", lambda self, ends: iter(())))


def _stopped_commits_count() -> AbstractContextManager[None]:
    """A commit that was interrupted counts as done."""
    real = transactions._commit

    def commit(producer: Any, stop: Any) -> None:
        try:
            real(producer, stop)
        except UnknownCommitError:
            return

    return patched((transactions, "_commit", commit))


def _second_attempts_insert() -> AbstractContextManager[None]:
    """A task that Spark started again inserts without a look of the driver."""
    return patched((loading, "_refused", lambda *_: None))


def _take_over_drops_late_inserts() -> AbstractContextManager[None]:
    """A successor does not take in what the ledger says of late inserts."""
    real = start.take_over

    def take_over(*parts: Any, **named: Any) -> Any:
        started = real(*parts, **named)
        started.late_inserts = []
        return started

    return patched((connector, "take_over", take_over))


def _old_looks_are_good_enough() -> AbstractContextManager[None]:
    """A range is repeated on what the windows held before it came back."""
    real = remembering.why_forgotten

    def why_forgotten(found: Any, spec: Any, windows: Any, now: int, _: int) -> Any:
        return real(found, spec, windows, now, 0)

    return patched(
        (round_planner, "why_forgotten", why_forgotten),
        (inserting, "_require_remembered", lambda *_: None),
    )


def _restarted_servers_are_believed() -> AbstractContextManager[None]:
    """A plain table's server that was started again is thought to have all that it knows."""
    return patched(
        (remembering, "is_same_run", lambda *_: True),
        (inserting, "is_same_run", lambda *_: True),
    )


def _probe_does_not_wait_for_replicas() -> AbstractContextManager[None]:
    """A probe looks at a replica that is behind."""
    return patched((probing, "why_not_in_sync", lambda *_: ""))


def _what_is_frozen_is_sent() -> AbstractContextManager[None]:
    """A freeze keeps new ranges back, and repeats ranges in doubt (R23)."""
    return patched((Freezing, "of", lambda freezing, state: ()))


def _frozen_replicas_are_sent_blocks() -> AbstractContextManager[None]:
    """A replica that is frozen gets no blocks (R23)."""

    def all_of(access: ClickHouseAccess, shard: str, **_: bool) -> tuple[str, ...]:
        return access.shards[shard]

    return patched((ClickHouseAccess, "taking", all_of))


RULE_BUGS: dict[str, Plant] = {
    "what-is-frozen-is-sent": _what_is_frozen_is_sent,
    "frozen-replicas-are-sent-blocks": _frozen_replicas_are_sent_blocks,
    "renewals-are-young": _renewals_are_young,
    "second-attempts-insert": _second_attempts_insert,
    "newest-hold-only": _newest_hold_only,
    "largest-reservation-only": _largest_reservation_only,
    "no-grace-after-the-lease": _no_grace_after_the_lease,
    "late-inserts-are-not-recorded": _late_inserts_are_not_recorded,
    "late-inserts-end-with-their-lease": _late_inserts_end_with_their_lease,
    "inserts-outlive-their-lease": _inserts_outlive_their_lease,
    "unknown-status-is-success": _unknown_status_is_success,
    "errors-after-the-headers-are-not-read": _errors_after_the_headers_are_not_read,
    "undelivered-is-not-dropped": _undelivered_is_not_dropped,
    "lost-answers-are-transient": _lost_answers_are_transient,
    "probe-ignores-running-inserts": _probe_ignores_running_inserts,
    "probe-looks-into-one-shard": _probe_looks_into_one_shard,
    "age-does-not-matter": _age_does_not_matter,
    "insert-counters-are-stamped-after-reading": _insert_counters_are_stamped_after_reading,
    "nobody-looks-at-windows": _nobody_looks_at_windows,
    "successors-get-no-time": _successors_get_no_time,
    "cuts-are-not-looked-for": _cuts_are_not_looked_for,
    "former-leaders-are-believed": _former_leaders_are_believed,
    "take-over-drops-late-inserts": _take_over_drops_late_inserts,
    "old-looks-are-good-enough": _old_looks_are_good_enough,
    "restarted-servers-are-believed": _restarted_servers_are_believed,
    "probe-does-not-wait-for-replicas": _probe_does_not_wait_for_replicas,
    "stopped-commits-count": _stopped_commits_count,
}
