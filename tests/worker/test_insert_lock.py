"""A block's turn: when it is asked for, and when the next loader may have its own."""

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


def turn_at(ensemble: Ensemble) -> InsertLock:
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
    turn = turn_at(ensemble)
    turn.take(10)
    assert turn.queueing is not None and turn.queueing.held
    for error in errors:
        assert 0 < turn.before_sending(30.0) <= 30.0
        turn.failed(error)
    if is_stored:
        turn.before_sending(30.0)
    turn.end(is_stored=is_stored)
    if next_waits:
        assert 29 < ensemble.markers[TABLE] <= 31
        with pytest.raises(LockWaitError):
            turn_at(ensemble).take(0.1)
    else:
        assert TABLE not in ensemble.markers
        turn_at(ensemble).take(0.1)


def test_a_failure_before_anything_was_sent_keeps_nobody_waiting(ensemble: Ensemble) -> None:
    turn = turn_at(ensemble)
    turn.take(10)
    turn.failed(UNSENT)
    turn.failed(UNANSWERED)  # of a query
    turn.end(is_stored=False)
    turn_at(ensemble).take(0.1)


def test_an_interruption_leaves_what_was_sent_under_way(ensemble: Ensemble) -> None:
    turn = turn_at(ensemble)
    turn.take(10)
    turn.before_sending(30.0)
    turn.end(is_stored=False)
    assert ensemble.markers[TABLE] > 29


def test_what_another_server_was_sent_before_is_announced_too(ensemble: Ensemble) -> None:
    turn = turn_at(ensemble)
    turn.take(10)
    turn.before_sending(30.0)
    turn.failed(UNANSWERED)
    assert turn.before_sending(1.0) <= 1.0
    assert ensemble.markers[TABLE] > 29


def test_a_turn_is_taken_once_and_lost_with_its_session(ensemble: Ensemble) -> None:
    locks = MemoryLocks(ensemble)
    turn = InsertLock(locks, TABLE)
    turn.take(10)
    turn.take(0.1)
    turn.before_sending(30.0)
    ensemble.expire(locks)
    turn.end(is_stored=True)
    assert turn.queueing is not None and (turn.queueing.held, turn.queueing.lost) == (True, True)
    again = InsertLock(locks, "/tables/other")
    again.take(10)
    ensemble.expire(locks)
    with pytest.raises(LockLostError):
        again.before_sending(30.0)


def test_nothing_is_sent_when_the_lock_took_all_the_time(
    ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = turn_at(ensemble)
    turn.take(10)
    clock = iter((100.0, 131.0))
    monkeypatch.setattr(insert_lock, "_boot_seconds", lambda: next(clock))
    with pytest.raises(LockWaitError, match="too long"):
        turn.before_sending(30.0)
    turn.end(is_stored=False)
    turn_at(ensemble).take(0.1)


def test_without_anybody_to_ask_blocks_are_sent_out_of_turn(ensemble: Ensemble) -> None:
    ensemble.is_away = True
    turn = turn_at(ensemble)
    turn.take(10)
    assert turn.before_sending(30.0) == 30.0
    turn.end(is_stored=True)
    assert turn.queueing is not None and not turn.queueing.held
    nobody = InsertLock(None, TABLE)
    nobody.take(10)
    assert nobody.before_sending(30.0) == 30.0
    nobody.end(is_stored=True)
    assert nobody.queueing is None


def test_turns_are_counted() -> None:
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
