"""monitoring/dashboard.json: each query names metrics and labels that exist, and Prometheus reads
it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ops.metrics_document import families

DASHBOARD = json.loads(
    (Path(__file__).parent.parent.parent / "monitoring" / "dashboard.json").read_text()
)
#: What Grafana puts in place of its variables.
_VARIABLES = {"$__rate_interval": "5m", "$connector": "p.dc1", "$table": ".*"}
#: A metric, and its selector if it has one.
_SELECTED = re.compile(r"\b(sluice_\w+)(?:\{([^}]*)\})?")


def targets() -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of each."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def labels_of(sample: str) -> set[str] | None:
    """The labels that a sample of this name has; None: there is none."""
    for family in families().values():
        labels: Any = family._labelnames  # type: ignore[attr-defined]
        names = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        if sample in (family.name + suffix for suffix in names.get(family.type, [""])):
            return {*labels} | ({"le"} if sample.endswith("_bucket") else set())
    return None


def test_each_query_names_metrics_and_labels_that_exist() -> None:
    asked = list(targets())
    assert len(asked) >= 20
    for title, query, legend in asked:
        found = _SELECTED.findall(query)
        assert found, title
        grouped = {
            label.strip()
            for labels in re.findall(r"\b(?:by|on) \(([^)]*)\)", query)
            for label in labels.split(",")
        }
        shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert not grouped or shown <= grouped, title
        for sample, selector in found:
            labels = labels_of(sample)
            assert labels is not None, f"{title}: there is no {sample}"
            named = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert named | grouped | shown <= labels, f"{title}: {sample}"


def test_variables_name_metrics_and_labels_that_exist() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = {name for _, query, _ in targets() for name in re.findall(r"\$(\w+)", query)}
    assert used - {"__rate_interval"} <= variables.keys()
    for name in ("connector", "table"):
        query = variables[name]["query"]["query"]
        sample, label = re.fullmatch(r"label_values\((\w+)\S*, (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in (labels_of(sample) or ())


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells) and all(x < 24 for x, _ in cells)


def test_prometheus_reads_each_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs Debian's package prometheus: scripts/setup-tests")
    rules = []
    for number, (_, query, _) in enumerate(targets()):
        filled = re.sub(r"\$\w+", lambda found: _VARIABLES[found[0]], query)
        rules.append({"record": f"query_{number}", "expr": filled})
    path = tmp_path / "rules.yml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = [promtool, "check", "rules", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{len(rules)} rules found" in ended.stdout
