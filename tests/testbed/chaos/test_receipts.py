"""What receipts may say, and how attempts are counted on the wire."""

from __future__ import annotations

from typing import Any

from sluice.clickhouse.insert import plan_insert, query_id_of, query_id_prefix
from sluice.testbed.chaos.replicas import examine_receipts
from sluice.testbed.chaos.requests import Posts

URLS = {"s1": ("http://a", "http://b", "http://c")}


def receipt(token: str, replica: str, *failed: str, **more: Any) -> dict[str, Any]:
    past = {"failed_over": list(failed), "in_doubt": False} if failed else {}
    return {"type": "receipt", "token": token, "shard": "s1", "replica": replica, **past, **more}


def test_failovers_are_counted_by_what_was_wrong() -> None:
    found = examine_receipts(
        [
            {"type": "record"},
            receipt("1", "http://a"),
            receipt("2", "http://b", "http://a PING_FAILED"),
            receipt("3", "http://c", "http://a PING_FAILED", "http://b LOST", in_doubt=True),
        ],
        URLS,
    )
    assert (found.blocks, found.failed_over, found.in_doubt, found.problems) == (3, 2, 1, ())
    assert found.passed == {"PING_FAILED": 2, "LOST": 1}
    assert found.by_replica == {"http://a": 1, "http://b": 1, "http://c": 1}


def test_locked_and_unlocked_inserts_are_counted() -> None:
    insert_locks = [None, {"held": True}, {"held": True}, {"held": False}]
    more = [{"queueing": each} if each else {} for each in insert_locks]
    entries = [receipt(str(n), "http://a", **each) for n, each in enumerate(more)]
    found = examine_receipts(entries, URLS)
    assert (found.blocks, found.locked_inserts, found.unlocked_inserts) == (4, 2, 1)


def test_a_block_with_two_receipts_is_a_problem() -> None:
    found = examine_receipts([receipt("1", "http://a"), receipt("1", "http://b")], URLS)
    assert found.problems == ("2 receipts of 1",)


def test_the_block_of_a_bundle_is_one_block() -> None:
    """Each member has a receipt of it; a second block under its token is a problem all the same."""
    block = [
        receipt("1", "http://b", "http://a LOST", in_doubt=True, is_shared=number > 0)
        for number in range(3)
    ]
    found = examine_receipts(block, URLS)
    assert (found.blocks, found.failed_over, found.in_doubt, found.problems) == (1, 1, 1, ())
    assert examine_receipts(block + block, URLS).problems == ("2 receipts of 1",)


def test_a_replica_that_was_asked_twice_or_is_none_is_a_problem() -> None:
    for failed in (["http://a X"], ["http://b X", "http://b X"], ["http://other X"]):
        assert len(examine_receipts([receipt("1", "http://a", *failed)], URLS).problems) == 1


def test_attempts_of_a_block_are_counted_over_connections_and_pieces() -> None:
    posts = Posts()

    def request(token: str, attempt: str) -> bytes:
        query_id = query_id_of(token, attempt)
        plan = plan_insert("default", "orders", ["id"], b"\0" * 50_000, None, query_id, {})
        return f"POST {plan.path} HTTP/1.1\r\n\r\n".encode() + bytes(plan.body[-1])

    first, second = posts.watch(), posts.watch()
    assert first.feed(request("1", "0a"))
    whole = request("2", "0b")
    for begin in range(0, len(whole), 37):
        first.feed(whole[begin : begin + 37])
    second.feed(request("1", "0c"))
    assert {name: len(found) for name, found in posts.of_block.items()} == {
        query_id_prefix("1"): 2,
        query_id_prefix("2"): 1,
    }
    assert posts.total == 3
