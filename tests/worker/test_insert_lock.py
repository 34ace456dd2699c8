"""The insert lock for a block: when it is asked for, and when the next loader may have its own."""

from __future__ import annotations

import pytest

from sluice.clickhouse.reactions import error_from_reply, nothing_sent, reply_lost
from sluice.core.errors import InDoubtError, SluiceError
from sluice.core.receipts import Loaded, Queueing, Receipt
from sluice.driver.counters import Counters
from sluice.locks.port import LockLostError, LockWaitError
from sluice.worker import insert_lock
from sluice.worker.insert_lock import InsertLock
from tests.locks.memory import Ensemble, MemoryLocks

TABLE = "/tables/t"


@pytest.fixture
def ensemble(monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    monkeypatch.setattr(insert_lock, "LATE_SECONDS", 0.0)
    return Ensemble()


def lock_at(ensemble: Ensemble) -> InsertLock:
    return InsertLock(MemoryLocks(ensemble), TABLE)


def word(code: int) -> SluiceError:
    text = f"Code: {code}, e.displayText() = DB::Exception"
    return error_from_reply(
        url="u", what="insert", status=500, header_code=None, text=text, read_only=False
    )


UNANSWERED = reply_lost("u", "insert", "SOCKET_TIMEOUT", "nothing within 30 s", False)
UNSENT = nothing_sent("u", "insert", "PING_FAILED", "/ping")


@pytest.mark.parametrize(
    ("errors", "is_stored", "next_waits"),
    [
        ([], True, False),
        ([word(286)], False, False),
        ([UNANSWERED], False, True),
        ([UNANSWERED, word(286)], False, True),  # the first may still be at it
        ([UNANSWERED], True, False),  # another one has acknowledged it
        ([InDoubtError("the window moved")], False, False),  # ours; nothing was sent
    ],
)
def test_the_next_one_waits_only_for_what_may_be_under_way(
    ensemble: Ensemble, errors: list[SluiceError], is_stored: bool, next_waits: bool
) -> None:
    lock = lock_at(ensemble)
    lock.take(10)
    assert lock.queueing is not None and lock.queueing.held
    for error in errors:
        assert 0 < lock.before_sending(30.0) <= 30.0
        lock.failed(error)
    if is_stored:
        lock.before_sending(30.0)
    lock.end(is_stored=is_stored)
    if next_waits:
        assert 29 < ensemble.markers[TABLE] <= 31
        with pytest.raises(LockWaitError):
            lock_at(ensemble).take(0.1)
    else:
        assert TABLE not in ensemble.markers
        lock_at(ensemble).take(0.1)


def test_a_failure_before_anything_was_sent_keeps_nobody_waiting(ensemble: Ensemble) -> None:
    lock = lock_at(ensemble)
    lock.take(10)
    lock.failed(UNSENT)
    lock.failed(UNANSWERED)  # of a query
    lock.end(is_stored=False)
    lock_at(ensemble).take(0.1)


def test_an_interruption_leaves_what_was_sent_under_way(ensemble: Ensemble) -> None:
    lock = lock_at(ensemble)
    lock.take(10)
    lock.before_sending(30.0)
    lock.end(is_stored=False)
    assert ensemble.markers[TABLE] > 29


def test_what_another_server_was_sent_before_is_announced_too(ensemble: Ensemble) -> None:
    lock = lock_at(ensemble)
    lock.take(10)
    lock.before_sending(30.0)
    lock.failed(UNANSWERED)
    assert lock.before_sending(1.0) <= 1.0
    assert ensemble.markers[TABLE] > 20  # less what passed between the two


def test_an_insert_lock_is_taken_once_and_lost_with_its_session(ensemble: Ensemble) -> None:
    locks = MemoryLocks(ensemble)
    lock = InsertLock(locks, TABLE)
    lock.take(10)
    lock.take(0.1)
    lock.before_sending(30.0)
    ensemble.expire(locks)
    lock.end(is_stored=True)
    assert lock.queueing is not None and (lock.queueing.held, lock.queueing.lost) == (True, True)
    again = InsertLock(locks, "/tables/other")
    again.take(10)
    ensemble.expire(locks)
    with pytest.raises(LockLostError):
        again.before_sending(30.0)


def test_nothing_is_sent_when_the_lock_took_all_the_time(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_at(ensemble)
    lock.take(10)
    clock = iter((100.0, 131.0))
    monkeypatch.setattr(insert_lock, "_boot_seconds", lambda: next(clock))
    with pytest.raises(LockWaitError, match="too long"):
        lock.before_sending(30.0)
    lock.end(is_stored=False)
    lock_at(ensemble).take(0.1)


def test_without_anybody_to_ask_inserts_are_unlocked(ensemble: Ensemble) -> None:
    ensemble.is_away = True
    lock = lock_at(ensemble)
    lock.take(10)
    assert lock.before_sending(30.0) == 30.0
    lock.end(is_stored=True)
    assert lock.queueing is not None and not lock.queueing.held
    nobody = InsertLock(None, TABLE)
    nobody.take(10)
    assert nobody.before_sending(30.0) == 30.0
    nobody.end(is_stored=True)
    assert nobody.queueing is None


def test_locked_and_unlocked_inserts_are_counted() -> None:
    receipts = tuple(
        Receipt("t", "d.t", "s1", "k", 1, 1, "", "u", 1, 1, queueing=queueing)
        for queueing in (
            None,
            Queueing(1500, held=True),
            Queueing(500, held=True, lost=True),
            Queueing(0, held=False),
        )
    )
    counters = Counters()
    counters.settled(Loaded(receipts, (), 4, 4, 0))
    assert (counters.locked_inserts, counters.insert_lock_wait_seconds) == (2, 2.0)
    assert (counters.unlocked_inserts, counters.insert_locks_lost) == (1, 1)
