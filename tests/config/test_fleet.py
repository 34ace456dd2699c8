"""[fleet]: what a driver is called, and how its fleet hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import FleetConfiguration
from tests.config.support import MINIMAL, changed, findings_of, load_text


def test_a_driver_is_no_member_unless_the_file_says_so(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, MINIMAL)
    assert configuration.fleet is None and configuration.fleet_topic == "sluice.orders.fleet"
    fleet = load_text(tmp_path, f"{MINIMAL}[fleet]\n").fleet
    assert fleet == FleetConfiguration("", "", 8, 8.0)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("", "host"),
        ('data_center = "east"', "east.host"),
        ('data_center = "east"\nmember = "m1"', "m1"),
    ],
)
def test_a_member_has_a_name_of_its_own(tmp_path: Path, keys: str, name: str) -> None:
    fleet = load_text(tmp_path, f"{MINIMAL}[fleet]\n{keys}\n").fleet
    assert fleet is not None and fleet.name("host") == name


@pytest.mark.parametrize(
    ("key", "finding"),
    [
        ("members_max = 0", "fleet.members_max: 0 is out of range; use 1 or more"),
        ("members_max = 65", "fleet.members_max: 65 is out of range; use 64 or less"),
        ('silent_after = "1s"', "fleet.silent_after"),
        ('member = ""', "fleet.member: must not be empty"),
        ('name = "a"', "fleet.name: unknown key"),
    ],
)
def test_what_is_refused(tmp_path: Path, key: str, finding: str) -> None:
    (line,) = findings_of(tmp_path, f"{MINIMAL}[fleet]\n{key}\n")
    assert finding in line


def test_its_topic_is_no_source_and_no_other_topic_of_sluice(tmp_path: Path) -> None:
    text = changed('topics = ["orders"]\n[batch]', 'topics = ["sluice.orders.fleet"]\n[batch]')
    found = findings_of(tmp_path, text)
    assert any('"sluice.orders.fleet" is written by this pipeline itself' in x for x in found)
    (line,) = findings_of(tmp_path, f'{MINIMAL}[ledger]\ntopic = "sluice.orders.fleet"\n')
    assert "ledger.topic: is where the members of a fleet report" in line
