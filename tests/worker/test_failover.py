"""One block, several replicas: who is offered it, and what is said when none has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.clickhouse import statements
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import query_id_prefix
from sluice.clickhouse.reactions import (
    build_error,
    nothing_sent,
    reaction_to,
    reply_lost,
)
from sluice.clickhouse.schema import Dependent, OtherColumnsError, TableFacts
from sluice.clickhouse.statements import EarlierAttemptRunsError, wait_for_earlier
from sluice.clickhouse.topology import ReplicaAwayError, refuse_other_table
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.lease import LeaseOverError
from sluice.core.load_spec import TableSpec
from sluice.core.receipts import Receipt
from sluice.core.replicas import Breaker
from sluice.worker.errors import BlockRefusedError, OtherVersionError, took_too_long
from sluice.worker.failover import FailoverAttempt, offer_block
from tests.driver.loop_world import table_spec
from tests.driver.test_specs import facts_of

A, B, C = "http://a:8123", "http://b:8123", "http://c:8123"


def answer(code: int, url: str = A) -> SluiceError:
    """What a server's error code means for an insert."""
    return build_error(reaction_to(code), code, url, f"code {code} on {url}")


def refused(url: str = A) -> SluiceError:
    return nothing_sent(url, "insert into d.t", "CONNECTION_REFUSED", "refused")


def lost(url: str = A) -> SluiceError:
    return reply_lost(url, "insert into d.t", "CONNECTION_LOST", "reset", False)


def columns_error(url: str = A) -> SluiceError:
    return BlockRefusedError(
        "t", OtherColumnsError(f"d.t on {url} has no column x"), is_unstored=True
    )


class Shard:
    """Replicas that answer in turn what they are told to; without words, OK."""

    def __init__(self, **words: list[SluiceError]) -> None:
        self.words = {url: words.get(url[7], []) for url in (A, B, C)}
        self.sent: list[str] = []
        self.breaker = Breaker()
        self.before: Callable[[str, FailoverAttempt], None] = lambda url, attempt: None

    def offer(self, *urls: str, seconds: float = 30.0) -> Receipt:
        return offer_block(urls or (A, B), self.breaker, seconds, self.send)

    def send(self, url: str, attempt: FailoverAttempt) -> Receipt:
        self.sent.append(url)
        self.before(url, attempt)
        attempt.seconds_left()
        if self.words[url]:
            raise self.words[url].pop(0)
        return Receipt("t", "d.t", "s1", "token", 9, 99, "sum", url, 1, 5)


def test_a_replica_that_answers_is_the_only_one() -> None:
    shard = Shard()
    receipt = shard.offer()
    assert (receipt.replica, receipt.failed_over, receipt.in_doubt) == (A, (), False)
    assert shard.sent == [A]


@pytest.mark.parametrize(
    ("error", "name", "in_doubt"),
    [
        (refused(), "CONNECTION_REFUSED", False),
        (ReplicaAwayError("read-only"), "ReplicaAwayError", False),
        (lost(), "CONNECTION_LOST", True),
        (answer(242), "TABLE_IS_READ_ONLY", True),
        (answer(210), "NETWORK_ERROR", True),
        (columns_error(), "BlockRefusedError", False),
    ],
)
def test_the_next_replica_takes_what_one_does_not(
    error: SluiceError, name: str, in_doubt: bool
) -> None:
    """Whether the first may still store it is for the driver to know: it counts the hold."""
    shard = Shard(a=[error])
    receipt = shard.offer()
    assert shard.sent == [A, B]
    assert (receipt.replica, receipt.failed_over) == (B, (f"{A} {name}",))
    assert receipt.in_doubt is in_doubt
    shard.sent.clear()
    assert shard.offer().failed_over == ()
    assert shard.sent == [B]  # it rests; only one block was tried at it


@pytest.mark.parametrize("code", [285, 286, 319, 252, 241, 202, 159, 236, 49])
def test_what_another_replica_cannot_help_is_for_the_driver(code: int) -> None:
    shard = Shard(a=[answer(code)])
    with pytest.raises(SluiceError, match=f"code {code}"):
        shard.offer()
    assert shard.sent == [A]
    assert shard.breaker.order((A, B), 0.0) == (A, B)


@pytest.mark.parametrize("code", [225, 244, 999])
def test_trouble_with_zookeeper_is_for_the_driver_and_the_next_attempt_begins_elsewhere(
    code: int,
) -> None:
    shard = Shard(a=[answer(code)])
    with pytest.raises(InDoubtError):
        shard.offer()
    assert shard.offer().replica == B
    assert shard.sent == [A, B]


def test_in_doubt_anywhere_is_in_doubt() -> None:
    shard = Shard(a=[lost()], b=[refused(B)])
    with pytest.raises(InDoubtError) as raised:
        shard.offer()
    assert "no answer" in str(raised.value) and f"on {B}" in str(raised.value)
    shard = Shard(a=[refused()], b=[lost(B)])
    with pytest.raises(InDoubtError, match="no answer"):
        shard.offer()
    shard = Shard(a=[lost()], b=[LeaseOverError("the lease ended")])
    with pytest.raises(InDoubtError):
        shard.offer()


def test_nothing_was_sent_anywhere() -> None:
    shard = Shard(a=[refused()], b=[refused(B)], c=[refused(C)])
    with pytest.raises(TransientError) as raised:
        shard.offer(A, B, C)
    assert not isinstance(raised.value, InDoubtError)
    assert all(url in str(raised.value) for url in (A, B, C))
    assert shard.offer(A, B, C).replica == A  # all of them rest, and are asked all the same


def test_columns_that_one_replica_lacks_may_be_on_their_way() -> None:
    shard = Shard(a=[columns_error()], b=[refused(B)])
    with pytest.raises(TransientError) as raised:
        shard.offer()
    assert not isinstance(raised.value, BlockRefusedError)
    shard = Shard(a=[columns_error(A)], b=[columns_error(B)])
    with pytest.raises(BlockRefusedError, match=A):
        shard.offer()


def test_a_refusal_for_good_is_final_wherever_it_comes_from() -> None:
    other = BlockRefusedError("t", TerminalError("another table"), is_unstored=False)
    for words in ([lost()], [refused()]):
        shard = Shard(a=words, b=[other])
        with pytest.raises(BlockRefusedError, match="another table"):
            shard.offer(A, B, C)
        assert shard.sent == [A, B]


def test_a_block_in_doubt_goes_to_the_same_version_only() -> None:
    """By what a server knows a block again is not the same in all versions."""
    versions = {A: "24.5 with tokens", B: "25.8 with tokens", C: "24.5 with tokens"}
    shard = Shard(a=[lost()])
    shard.before = lambda url, attempt: attempt.admit(url, versions[url])
    receipt = shard.offer(A, B, C)
    assert shard.sent == [A, B, C]
    assert receipt.replica == C and receipt.in_doubt
    assert receipt.failed_over == (f"{A} CONNECTION_LOST", f"{B} {OtherVersionError.__name__}")
    shard = Shard(a=[lost()])
    shard.before = lambda url, attempt: attempt.admit(url, versions[url])
    with pytest.raises(InDoubtError, match="another version"):
        shard.offer(A, B)
    shard = Shard(a=[refused()])  # nothing was sent, so nothing is in doubt
    shard.before = lambda url, attempt: attempt.admit(url, versions[url])
    assert shard.offer(A, B).replica == B


def test_no_replica_is_offered_a_block_when_the_time_of_its_insert_is_over() -> None:
    shard = Shard(a=[lost()])
    with pytest.raises(InDoubtError):
        shard.offer(seconds=0.5)
    assert shard.sent == [A]


PATH = "/clickhouse/tables/s1/t"


def replica_of(path: str = PATH, **changes: object) -> TableFacts:
    facts = replace(facts_of(), engine="ReplicatedMergeTree", replicated=True, zookeeper_path=path)
    return replace(facts, **changes)  # type: ignore[arg-type]


REPLICATED = replace(table_spec("t", ("a",)), zookeeper_paths=(("s1", PATH),))
PLAIN = table_spec("t", ("a",))


@pytest.mark.parametrize("urls", [(A,), (A, B)])
def test_replicas_of_one_table_are_let_in(urls: tuple[str, ...]) -> None:
    refuse_other_table(replica_of(), REPLICATED, "s1", urls)
    behind = Dependent("d.v", replica_of("/view"))
    refuse_other_table(replica_of(dependents=(behind,)), REPLICATED, "s1", urls)


@pytest.mark.parametrize(
    ("facts", "table", "urls", "words"),
    [
        (facts_of(), PLAIN, (A, B), "which is not replicated, and the shard s1 names 2 servers"),
        (replica_of("/other"), REPLICATED, (A, B), "is the table at /other in ZooKeeper"),
        (replica_of("/other"), REPLICATED, (A,), f"blocks are for the one at {PATH}"),
        (facts_of(), REPLICATED, (A,), "the blocks are for the Replicated table"),
        (replica_of(async_insert=True), REPLICATED, (A,), "has the table setting async_insert"),
        (
            replica_of(dependents=(Dependent("d.v", facts_of(table="behind")),)),
            REPLICATED,
            (A, B),
            "shop.behind on http://localhost:8123 is a MergeTree, which is not replicated",
        ),
    ],
)
def test_another_table_is_refused(
    facts: TableFacts, table: TableSpec, urls: tuple[str, ...], words: str
) -> None:
    with pytest.raises(TerminalError) as raised:
        refuse_other_table(facts, table, "s1", urls)
    assert words in raised.value.message
    assert raised.value.hint


def test_a_table_of_one_server_needs_no_replication() -> None:
    refuse_other_table(facts_of(), PLAIN, "s1", (A,))


@pytest.mark.parametrize("facts", [replica_of(is_readonly=True), replica_of("")])
def test_a_replica_without_a_session_is_away(facts: TableFacts) -> None:
    with pytest.raises(ReplicaAwayError):
        refuse_other_table(facts, REPLICATED, "s1", (A, B))


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("runs_for", "lease", "waited"), [(0.0, 600.0, 0.0), (4.0, 600.0, 4.0), (5.0, 8.0, None)]
)
def test_an_attempt_before_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, runs_for: float, lease: float, waited: float | None
) -> None:
    """As long as a block may take, and for half of what is left of the lease: the rest is for the
    block itself."""
    clock = Clock()
    monkeypatch.setattr(statements, "time", clock)
    asked: list[str] = []

    def running(server: object, prefix: str) -> list[str]:
        asked.append(prefix)
        return [f"{prefix}-1"] if clock.now < 1000.0 + runs_for else []

    monkeypatch.setattr(statements, "running_query_ids", running)
    left = lambda: 1000.0 + lease - clock.now  # noqa: E731
    if waited is None:
        with pytest.raises(EarlierAttemptRunsError, match="still runs") as raised:
            wait_for_earlier(Server(A), "token", 30.0, left)
        assert took_too_long(raised.value) and clock.now == 1004.0
    else:
        wait_for_earlier(Server(A), "token", 30.0, left)
        assert clock.now == 1000.0 + waited
    assert set(asked) == {query_id_prefix("token")}


def test_only_silence_asks_for_more_time() -> None:
    assert took_too_long(reply_lost(A, "insert", "SOCKET_TIMEOUT", "nothing", False))
    for error in (lost(), refused(), answer(209), answer(159), answer(41)):
        assert not took_too_long(error)
