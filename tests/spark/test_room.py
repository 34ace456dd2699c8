"""How many workers a local master starts, and how many have room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.core.errors import TerminalError
from sluice.ops import doctor_spark
from sluice.ops.doctor_findings import Examination
from sluice.ops.doctor_spark import check_room, look_at_spark
from sluice.spark.context import SUBMITTED
from sluice.spark.room import local_workers, memory_bytes, workers_that_fit
from tests.config.support import MINIMAL, load_text


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own").write_text("5:memory:/x\n0::/system.slice/sluice.service\n")
    return tmp_path / "own"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "groups/system.slice/sluice.service").mkdir(parents=True)
    return tmp_path / "groups"


@pytest.mark.parametrize(
    ("master", "workers"),
    [("local", 1), ("local[3]", 3), ("local[4, 2]", 4), ("yarn", None), ("local-cluster[1]", None)],
)
def test_workers_of_a_master(master: str, workers: int | None) -> None:
    assert local_workers(master) == workers


def test_one_for_each_core_that_it_may_use(groups: Path, own: Path) -> None:
    assert local_workers("local[*]", groups, own) == len(os.sched_getaffinity(0))
    (groups / "system.slice" / "cpu.max").write_text("50000 100000\n")
    assert local_workers("local[*]", groups, own) == 1
    assert local_workers("local[8]", groups, own) == 8


def test_the_least_limit_of_memory_counts(groups: Path, own: Path) -> None:
    machine = memory_bytes(groups, own)
    (groups / "system.slice/sluice.service/memory.max").write_text("max\n")
    assert memory_bytes(groups, own) == machine > 1 << 28
    (groups / "system.slice/memory.max").write_text("100000000\n")
    assert memory_bytes(groups, own) == 100_000_000
    (groups / "memory").mkdir()
    (groups / "memory" / "memory.limit_in_bytes").write_text("90000000")
    assert memory_bytes(groups, own) == 90_000_000


def test_more_workers_than_have_room_are_warned_of() -> None:
    assert [workers_that_fit(gigabytes << 30) for gigabytes in (0, 1, 2, 4, 64)] == [
        *(1, 1, 2, 5, 113)
    ]
    found = Examination("here")
    check_room(found, 32, 4 << 30)
    check_room(found, 2, 4 << 30)
    (finding,) = found.findings
    assert finding.level == "warning" and "32 Python workers" in finding.what
    assert "0.9 GB the rest" in finding.what
    assert 'master = "local[5]"' in finding.fix


@pytest.mark.parametrize("master", ["local[1]", "spark://host:7077"])
def test_without_java_spark_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str
) -> None:
    """Its driver runs here, whatever the master is."""

    def require_java() -> None:
        raise TerminalError("no Java 17 or later was found", "install it")

    monkeypatch.setattr(doctor_spark, "require_java", require_java)
    monkeypatch.delenv(SUBMITTED, raising=False)
    configuration = load_text(tmp_path, f'{MINIMAL}\n[spark]\nmaster = "{master}"\n')
    (finding,) = (each for each in look_at_spark(configuration) if each.check == "java")
    assert (finding.level, finding.fix, finding.passing) == ("error", "install it", False)
    assert finding.what == "no Java 17 or later was found"
