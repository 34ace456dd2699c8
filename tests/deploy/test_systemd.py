"""The unit, as systemd reads it, and what it says of `sluice run`."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.cli.exit import ExitStatus
from tests.cli.support import parse

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"


@pytest.fixture
def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, comment_prefixes="#")
    unit.read(FOLDER / "sluice@.service")
    return unit["Service"]


def analyze(*words: str) -> str:
    """What systemd-analyze says, which has to find nothing wrong."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs Debian's package systemd: scripts/setup-tests")
    done = subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a program that exists here; what systemd ignores, it says."""
    text = (FOLDER / "sluice@.service").read_text()
    unit = tmp_path / "sluice@.service"
    unit.write_text(text.replace("/opt/sluice/bin/sluice", "/bin/true"))
    assert analyze("verify", "--man=no", str(tmp_path / "sluice@orders.service")) == ""
    assert "Overall exposure" in analyze("security", "--offline=true", "--threshold=20", str(unit))


def test_the_command_and_its_statuses_are_those_of_run(service: configparser.SectionProxy) -> None:
    program, command, *words = shlex.split(service["ExecStart"])
    assert (program, command) == ("/opt/sluice/bin/sluice", "run")
    found = parse(command, *words)
    assert str(found["config"]) == "/etc/sluice/%i.toml"
    assert found["grace"] < int(service["TimeoutStopSec"].removesuffix("s"))
    assert int(service["SuccessExitStatus"]) == ExitStatus.IN_DOUBT
    prevented = [int(status) for status in service["RestartPreventExitStatus"].split()]
    assert prevented == [ExitStatus.CONFIGURATION, ExitStatus.OWNER_CHANGED]
    # A signal for all would end Spark while ranges are out.
    assert service["KillMode"] == "mixed"


def test_its_user_is_made(service: configparser.SectionProxy) -> None:
    words = shlex.split((FOLDER / "sluice.conf").read_text(), comments=True)
    assert words[:2] == ["u", service["User"]]
