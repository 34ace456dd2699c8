"""The order of replicas: spread over partitions, and those that failed last."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.replicas import REST_SECONDS_FIRST, REST_SECONDS_MAX, Breaker, host_matches, turn

REPLICAS = ("a", "b", "c")


def test_partitions_spread_over_the_replicas_in_the_order_of_the_configuration() -> None:
    assert turn(REPLICAS, 0) == ("a", "b", "c")
    assert turn(REPLICAS, 1) == ("b", "c", "a")
    assert turn(REPLICAS, 5) == ("c", "a", "b")
    assert turn(("a",), 7) == ("a",)
    assert Counter(turn(REPLICAS, p)[0] for p in range(12)) == {"a": 4, "b": 4, "c": 4}


def test_a_replica_that_failed_is_tried_last_until_its_rest_is_over() -> None:
    breaker = Breaker()
    breaker.failed("a", 100.0)
    just_before = 100.0 + REST_SECONDS_FIRST - 0.001
    assert breaker.order(REPLICAS, 100.0) == ("b", "c", "a")
    assert breaker.order(turn(REPLICAS, 2), just_before) == ("c", "b", "a")
    assert breaker.order(REPLICAS, 100.0 + REST_SECONDS_FIRST) == REPLICAS


def test_all_that_failed_keep_their_order() -> None:
    breaker = Breaker()
    for replica in REPLICAS:
        breaker.failed(replica, 100.0)
    assert breaker.order(REPLICAS, 100.0) == REPLICAS
    assert breaker.order(turn(REPLICAS, 1), 100.0) == ("b", "c", "a")


def test_each_further_failure_doubles_the_rest_up_to_a_limit() -> None:
    breaker, now, rests = Breaker(), 0.0, []
    for _ in range(40):
        breaker.failed("a", now)
        begun = now
        while breaker.rests("a", now):
            now += 0.5
        rests.append(now - begun)
    assert rests[:5] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert set(rests[5:]) == {REST_SECONDS_MAX}


def test_failures_within_one_rest_count_once() -> None:
    """Where all replicas are away, every attempt fails at each of them."""
    breaker = Breaker()
    for tenth in range(20):
        breaker.failed("a", tenth / 10)
    assert not breaker.rests("a", 2.0)
    breaker.failed("a", 2.0)
    assert breaker.rests("a", 5.9)
    assert not breaker.rests("a", 6.0)


def test_a_success_forgets_the_failures() -> None:
    breaker = Breaker()
    for now in (0.0, 10.0, 30.0):
        breaker.failed("a", now)
    breaker.succeeded("a")
    assert not breaker.rests("a", 30.0)
    breaker.failed("a", 31.0)
    assert not breaker.rests("a", 31.0 + REST_SECONDS_FIRST)
    breaker.succeeded("b")  # never failed: harmless


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True),
    st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.floats(0, 100)), max_size=20),
    st.floats(0, 200),
)
def test_nobody_is_ever_left_out(
    replicas: list[str], history: list[tuple[str, bool, float]], now: float
) -> None:
    breaker = Breaker()
    for replica, failed, at in sorted(history, key=lambda item: item[2]):
        breaker.failed(replica, at) if failed else breaker.succeeded(replica)
    order = breaker.order(replicas, now)
    assert sorted(order) == sorted(replicas)
    resting = [breaker.rests(replica, now) for replica in order]
    assert resting == sorted(resting)
    assert not any(breaker.rests(replica, now + 100 + REST_SECONDS_MAX) for replica in replicas)


def test_preferred_replicas_come_first_and_both_kinds_are_turned() -> None:
    replicas = ("e1", "w1", "e2", "w2")
    east = {"e1", "e2"}
    assert turn(replicas, 0, east) == ("e1", "e2", "w1", "w2")
    assert turn(replicas, 1, east) == ("e2", "e1", "w2", "w1")
    assert turn(replicas, 0, {"elsewhere"}) == replicas


@given(
    st.lists(st.sampled_from("abcdef"), unique=True, min_size=1),
    st.sets(st.sampled_from("abcdef")),
    st.sets(st.sampled_from("abcdef")),
    st.integers(0, 1000),
)
def test_every_replica_is_tried_once_whatever_is_preferred_or_behind(
    replicas: list[str], preferred: set[str], behind: set[str], partition: int
) -> None:
    order = Breaker().order(turn(replicas, partition, preferred), 0.0, behind)
    assert sorted(order) == sorted(replicas)
    ranks = [(replica in behind, replica not in preferred) for replica in order]
    assert ranks == sorted(ranks)


def test_a_replica_that_failed_comes_after_one_that_is_behind() -> None:
    breaker = Breaker()
    breaker.failed("a", 100.0)
    assert breaker.order(REPLICAS, 100.0, {"b"}) == ("c", "b", "a")


def test_hosts_by_pattern() -> None:
    url = "http://ch1.east.example.com:8123"
    assert host_matches(url, "*.east.example.com")
    assert host_matches(url, "CH1.East.example.com")
    assert host_matches(url, "ch1.east.example.com:8123")
    assert not host_matches(url, "ch1.east.example.com:9000")
    assert not host_matches(url, "east.example.com")
    assert host_matches("http://[::1]:8123", "[::1]:8123")
