"""Where replicas stand, and what a fault of a cluster touches."""

from __future__ import annotations

from itertools import islice

import pytest

from sluice.cli.main import main
from sluice.core.errors import ConfigurationError
from sluice.testbed.chaos.layout import WORKERS, Layout
from sluice.testbed.chaos.proxy import Kind
from sluice.testbed.chaos.schedule import Deed, Target, all_faults, schedule

FOUR = Layout(shards=1, replicas=4, data_centers=2)


def test_data_centers_have_equal_parts_of_each_shard() -> None:
    assert FOUR.centers == ["dc1", "dc2"]
    assert FOUR.servers == ["s1/r1", "s1/r2", "s1/r3", "s1/r4"]
    assert FOUR.servers_in("dc2") == ["s1/r3", "s1/r4"]
    assert Layout(2, 2, 2).servers_in("dc1") == ["s1/r1", "s2/r1"]
    assert Layout(2, 2).servers_in("dc1") == ["s1/r1", "s1/r2", "s2/r1", "s2/r2"]


def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="3 replicas cannot be spread over 2"):
        Layout(1, 3, 2)
    assert main(["chaos", "--shards", "3", "--replicas", "3"]) == 2
    assert "9 servers are more than one machine bears" in capsys.readouterr().err


def test_a_seed_gives_the_same_places_again() -> None:
    strikes = list(islice(schedule(7, False, FOUR), 200))
    assert strikes == list(islice(schedule(7, False, FOUR), 200))
    assert {s.place for s in strikes if s.target is Target.CLICKHOUSE} == set(FOUR.servers)
    assert {s.place for s in strikes if s.target is Target.DATA_CENTER} == set(FOUR.centers)
    faults = all_faults(False, FOUR)
    assert {(s.target, s.what) for s in strikes[: len(faults)]} == set(faults)


def test_every_target_is_struck_on_a_cluster_and_none_of_a_cluster_without_one() -> None:
    others = {Target.TABLE, Target.STORE, Target.STORE_LINK}  # of claims: `test_schedule.py`
    assert {target for target, _ in all_faults(True, FOUR)} == set(Target) - others
    assert Target.TABLE in {target for target, _ in all_faults(True)}
    of_a_cluster = {Target.ZOOKEEPER, Target.ZOOKEEPER_LINK, Target.DATA_CENTER}
    assert of_a_cluster.isdisjoint({target for target, _ in all_faults(True)})
    assert Target.DATA_CENTER not in {target for target, _ in all_faults(False, Layout(2, 2))}


def test_the_link_for_insert_locks_is_struck_where_there_is_one() -> None:
    for insert_locks in (True, False):
        layout = Layout(1, 2, insert_locks=insert_locks)
        struck = islice(schedule(7, False, layout), 400)
        places = {s.place for s in struck if s.target is Target.ZOOKEEPER_LINK}
        assert places == {*layout.servers, *([WORKERS] if insert_locks else [])}


def test_a_data_center_is_struck_as_a_whole() -> None:
    strikes = [s for s in islice(schedule(3, False, FOUR), 300) if s.place == "dc2"]
    killed = next(s for s in strikes if (s.target, s.what) == (Target.DATA_CENTER, Deed.KILL))
    assert killed.touches == {
        "data center dc2",
        "broker dc2",
        "clickhouse s1/r3",
        "clickhouse s1/r4",
    }
    cut = next(s for s in strikes if (s.target, s.what) == (Target.DATA_CENTER, Kind.CUT))
    assert cut.touches >= {"kafka link dc2", "clickhouse link s1/r3"}
    assert cut.touches.isdisjoint(killed.touches - {"data center dc2"})
