"""What the doctor says of quorums, and of loaders that should take insert locks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.locks import zookeeper
from sluice.ops.doctor_shards import check_insert_locks
from sluice.testbed.local.children import free_ports
from tests.ops.doctor_facts import FACTS, NEW, OLD, look, table

ACCESS = ClickHouseAccess({"s1": ("http://a", "http://b")}, "", "", "quorum")


def test_a_quorum_of_other_numbers() -> None:
    four = replace(FACTS, replicas_active=4, replicas_total=4)
    assert table(four, quorum=4) == {}
    found = table(replace(four, replicas_active=3), quorum=4)
    assert "3 of 4 replicas are active, and a quorum needs 4" in found["durability"].what
    found = table(quorum=4)
    assert "waits for 4 replicas, and there are 2" in found["durability"].what
    # Most of those that the shard names are not most of those that there are.
    assert table(four, quorum=2) == {}
    found = table(four, quorum=2, is_majority=True)
    assert found["durability"].level == "warning"
    assert "waits for 2 of the 2 replicas that the shard names" in found["durability"].what
    assert "most of which are 3" in found["durability"].what


def test_turns_where_a_server_takes_one_quorum_insert_at_a_time(zookeeper_port: int) -> None:
    old = [replace(look("s1", f"http://{n}"), capabilities=OLD) for n in "ab"]
    (finding,) = check_insert_locks(ACCESS, old)
    assert (finding.level, finding.check) == ("warning", "insert-lock")
    assert "shard s1 (18.16.1) refuse an insert" in finding.what and "zookeeper = " in finding.fix
    assert check_insert_locks(replace(ACCESS, durability="single"), old) == []
    asked = replace(ACCESS, zookeeper=f"127.0.0.1:{zookeeper_port}/doctor")
    (finding,) = check_insert_locks(asked, old)
    assert (finding.level, finding.what) == ("ok", "loaders can take insert locks")


def test_no_turns_where_servers_wait_side_by_side() -> None:
    modern = replace(NEW, settings={**NEW.settings, "insert_quorum_parallel": "1"})
    looks = [replace(look("s1", "http://a"), capabilities=modern)]
    assert check_insert_locks(ACCESS, looks) == []
    (finding,) = check_insert_locks(replace(ACCESS, zookeeper="nobody:1"), looks)
    assert finding.level == "ok" and "not needed" in finding.what


def test_a_zookeeper_that_does_not_answer_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are loaded without it."""
    monkeypatch.setattr(zookeeper, "CONNECT_SECONDS", 0.5)
    looks = [replace(look("s1", "http://a"), capabilities=OLD)]
    access = replace(ACCESS, zookeeper=f"127.0.0.1:{free_ports(1)[0]}")
    (finding,) = check_insert_locks(access, looks)
    assert finding.level == "warning" and "cannot take insert locks" in finding.what
