"""docs/METRICS.md is as the metrics are, and alerts fire on their trouble and without it do not."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ops import ebay_metrics
from tests.ops.metrics_document import NORMAL, document, families

ROOT = Path(__file__).parent.parent.parent


def test_the_document_is_made_of_the_metrics() -> None:
    differing = set(NORMAL) ^ set(families())
    assert not differing, f"{differing}: a metric without a line in NORMAL"
    assert (ROOT / "docs" / "METRICS.md").read_text() == document(), (
        "run `python -m tests.ops.metrics_document > docs/METRICS.md`"
    )


def test_each_of_ebays_families_has_one_here_or_a_reason() -> None:
    shown = {
        f"{name}_total" if family.type == "counter" else name for name, family in families().items()
    }
    theirs = ebay_metrics.names()
    assert len(theirs) == len(set(theirs)) == 111
    for names, ours, said in ebay_metrics.SAME:
        assert ours or said, names
        assert set(ours) <= shown | {"process_start_time_seconds"}, names


def test_alerts_name_metrics_that_exist() -> None:
    text = (ROOT / "monitoring" / "alerts.yml").read_text()
    named = set(re.findall(r"\bsluice_\w+", text))
    assert len(named) >= 8
    assert {name.removesuffix("_total") for name in named} <= set(families())
    for document_named in re.findall(r"docs/\w+\.md", text):
        assert (ROOT / document_named).is_file()


def test_alerts_fire_on_their_trouble_and_only_then() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs Debian's package prometheus: scripts/setup-tests")
    ended = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"],
        cwd=ROOT / "monitoring",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    tested = set(re.findall(r"Sluice\w+", (ROOT / "monitoring" / "alerts_test.yml").read_text()))
    assert tested == set(re.findall(r"alert: (\w+)", (ROOT / "monitoring/alerts.yml").read_text()))
