"""What the doctor makes of servers that are away, or differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.core.errors import TransientError
from sluice.ops.doctor_clickhouse import ReplicaLook, look_at_replica
from sluice.ops.doctor_findings import Examination, refusal
from sluice.ops.doctor_shards import check_apart, check_contact, check_differences
from sluice.ops.doctor_tables import check_table
from tests.ops.doctor_facts import ENTRY, FACTS, LINEAGE, NEEDS, NEW, bad, look
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.fixtures import fresh_database


@pytest.fixture
def replicated(
    clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer
) -> Iterator[str]:
    yield from fresh_database(clickhouse_18.url, clickhouse_18_second.url)


@pytest.mark.parametrize(
    ("alive", "durability", "levels"),
    [
        ((True, True, True), "quorum", []),
        ((True, True, False), "quorum", ["warning"]),
        ((True, False, False), "quorum", ["error", "error"]),
        ((True, False, False), "single", ["warning", "warning"]),
        ((False, True, True), "quorum", ["warning"]),
        ((False, False, False), "single", ["error"] * 3),
    ],
)
def test_servers_that_are_away(alive: tuple[bool, ...], durability: str, levels: list[str]) -> None:
    looks = [look("s1", f"http://{n}", FACTS if a else None) for n, a in enumerate(alive)]
    needed = 2 if durability == "quorum" else 1
    findings = check_contact(looks, lambda shard: needed)
    assert [finding.level for finding in findings] == levels
    assert {finding.check for finding in findings} <= {"clickhouse"}


def test_a_server_that_is_read_only_takes_no_blocks() -> None:
    """The others may be enough. It does not say how many replicas there are."""
    frozen = replace(FACTS, is_readonly=True, replicas_total=0, replicas_active=0)
    looks = [look("s1", "http://a", frozen), look("s1", "http://b")]
    (warning,) = check_contact(looks, lambda shard: 1)
    assert warning.level == "warning" and "shop.orders is read-only" in warning.what
    assert "RESTART REPLICA" in warning.fix
    (error,) = check_contact(looks, lambda shard: 2)
    assert error.level == "error" and isinstance(refusal([error]), TransientError)
    found = Examination("here")
    check_table(found, frozen, NEW, NEEDS)
    assert bad(found) == {}


def test_servers_of_one_shard_with_other_windows_or_versions() -> None:
    narrow = replace(FACTS, window_blocks=100)
    warning, _ = check_differences([look("s1", "http://a"), look("s1", "http://b", narrow)])
    assert (warning.level, warning.check) == ("warning", "window")
    assert "http://b: 100 blocks" in warning.what
    other = look("s1", "http://b")
    assert other.capabilities is not None
    other.capabilities = replace(other.capabilities, version=(25, 8))
    (warning, _) = check_differences([look("s1", "http://a"), other])
    assert (warning.level, warning.check) == ("warning", "version")
    assert "http://a: 26.9, http://b: 25.8" in warning.what
    (fine,) = check_differences([look("s1", "http://a"), look("s2", "http://b", narrow)])
    assert fine.level == "ok"


def test_views_that_each_server_of_a_shard_made_by_itself() -> None:
    def fed(uuid: str, *, replicated: bool = True) -> TableFacts:
        target = replace(FACTS, table="sums", replicated=replicated)
        return replace(FACTS, dependents=(Dependent("shop.view", target, uuid=uuid),))

    one = look("s1", "http://a", replace(fed("1a"), url="http://a"))
    other = look("s1", "http://b", replace(fed("1b"), url="http://b"))
    (warning, _) = check_differences([one, other])
    assert (warning.level, warning.check) == ("warning", "views")
    assert "shop.view has another UUID" in warning.what and "http://b: 1b" in warning.what
    alike = (fed("1a"), fed("0000-00"), fed("1b", replicated=False))
    for facts in alike:
        (fine,) = check_differences([one, look("s1", "http://b", replace(facts, url="http://b"))])
        assert fine.level == "ok"
    (fine,) = check_differences([one, look("s2", "http://b", replace(fed("1b"), url="http://b"))])
    assert fine.level == "ok"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (look("s1", "http://b"), ""),
        (look("s1", "http://b", replace(FACTS, columns=LINEAGE)), "another columns"),
        (look("s2", "http://b", replace(FACTS, partition_key="id")), "another partition key"),
        (look("s1", "http://b", replace(FACTS, zookeeper_path="/x")), "different tables: /orders"),
        (look("s2", "http://b", replace(FACTS, zookeeper_path="/x")), ""),
        (look("s1", "http://b", zone="Asia/Tokyo"), "http://b: Asia/Tokyo"),
    ],
)
def test_servers_that_differ(other: ReplicaLook, words: str) -> None:
    findings = check_differences([look("s1", "http://a"), other])
    errors = [finding for finding in findings if finding.level == "error"]
    assert len(errors) == (1 if words else 0)
    assert not words or words in errors[0].what


NODES = [("r1", 17), ("r2", 19)]


def shards_found(
    one: ReplicaLook, other: ReplicaLook, of_url: Mapping[str, list[tuple[str, int]]]
) -> list[str]:
    """What is found of two shards.

    :param of_url: the nodes of its replicas that each server shows, and what made them; one that is
        not named is not to be asked.
    """

    def connect(url: str) -> object:
        rows = [{"name": name, "czxid": made} for name, made in of_url[url]]
        return nullcontext(SimpleNamespace(query=lambda *_: rows))

    told: Any = SimpleNamespace(connect=connect)
    configuration: Any = SimpleNamespace(shards_of=lambda _: ("s1", "s2"))
    findings = check_apart(configuration, told, [ENTRY, ENTRY], [one, other])
    assert {(each.level, each.check) for each in findings} <= {("error", "shards")}
    return [each.what for each in findings]


def test_two_shards_that_are_one_table() -> None:
    """Whoever deletes the rows of one of them, which an audit calls doubled, has none."""
    one, other = look("s1", "http://a"), look("s2", "http://b")
    assert shards_found(one, look("s2", "http://b", replace(FACTS, zookeeper_path="/x")), {}) == []
    own_ensembles = {"http://a": NODES, "http://b": [("r1", 17), ("r2", 18)]}
    assert shards_found(one, other, own_ensembles) == []
    (same,) = shards_found(one, other, {"http://a": NODES, "http://b": NODES})
    assert (
        "is one table in the shards s1 and s2, since both have the zookeeper_path /orders" in same
    )
    assert shards_found(one, other, {"http://a": [], "http://b": []}) == []
    plain = replace(FACTS, replicated=False, zookeeper_path="")
    (same,) = shards_found(look("s1", "http://a", plain), look("s2", "http://a", plain), {})
    assert "since both name http://a" in same
    assert shards_found(look("s1", "http://a", plain), look("s2", "http://b", plain), {}) == []


def test_two_shards_that_share_one_path(old: Server, second: Server, replicated: str) -> None:
    access = ClickHouseAccess({"s1": (old.url,), "s2": (second.url,)}, "default", "", "single")
    entry = replace(ENTRY, target=f"{replicated}.orders")
    configuration: Any = SimpleNamespace(shards_of=lambda _: ("s1", "s2"))

    def found(paths: str) -> list[str]:
        looks = []
        for server, shard, path in zip((old, second), access.shards, paths, strict=True):
            server.execute(f"DROP TABLE IF EXISTS {replicated}.orders")
            server.execute(
                f"CREATE TABLE {replicated}.orders (id UInt64) ENGINE = ReplicatedMergeTree("
                f"'/apart/{replicated}/{path}', '{{replica}}') ORDER BY id"
            )
            looks.append(look_at_replica(access, shard, server.url, [(replicated, "orders")]))
        return [each.what for each in check_apart(configuration, access, [entry], looks)]

    (same,) = found("aa")
    assert "is one table in the shards s1 and s2" in same
    assert found("ab") == []


def test_a_table_that_all_shards_have_alike_is_said_to_be() -> None:
    (finding,) = check_differences([look("s1", "http://a"), look("s2", "http://b")])
    assert (finding.level, finding.what) == ("ok", "2 servers in 2 shards describe it alike")
