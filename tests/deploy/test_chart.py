"""The chart's configuration and the names that its templates use. Nothing renders it here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from sluice import __version__
from sluice.config import load

CHART = Path(__file__).parents[2] / "deploy" / "chart"


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


def test_its_configuration_loads_and_answers_probes(tmp_path: Path) -> None:
    path = tmp_path / "sluice.toml"
    path.write_text(values()["configuration"])
    configuration = load(path, {"CLICKHOUSE_PASSWORD": "secret"})
    assert configuration.http is not None
    assert (configuration.http.host, configuration.http.port) == ("0.0.0.0", 9464)
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


def test_templates_use_values_that_exist() -> None:
    """A name that nobody defines renders as nothing."""
    known = values()
    for template in sorted((CHART / "templates").iterdir()):
        for name in re.findall(r"\.Values\.([\w.]+)", template.read_text()):
            within: Any = known
            for word in name.split("."):
                assert word in within, f"{template.name}: {name}"
                within = within[word]
