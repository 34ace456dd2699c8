"""What the doctor makes of servers that are away, or differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.core.errors import TransientError
from sluice.ops.doctor_clickhouse import ReplicaLook
from sluice.ops.doctor_findings import Examination, refusal
from sluice.ops.doctor_shards import check_contact, check_differences
from sluice.ops.doctor_tables import check_table
from tests.ops.doctor_facts import FACTS, LINEAGE, NEEDS, NEW, bad, look


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


def test_a_table_that_all_shards_have_alike_is_said_to_be() -> None:
    (finding,) = check_differences([look("s1", "http://a"), look("s2", "http://b")])
    assert (finding.level, finding.what) == ("ok", "2 servers in 2 shards describe it alike")
