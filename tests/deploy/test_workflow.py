"""The workflow file is YAML, and what it runs and builds exists."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_workflow_runs_what_ci_runs_and_builds_wheels() -> None:
    # "on" is a boolean in YAML 1.1.
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow[True]["push"]["branches"] == ["main"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert "bash .ci/run" in [step.get("run") for step in steps]
    assert (ROOT / ".ci" / "run").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    oldest = project["project"]["requires-python"].removeprefix(">=3.")
    assert f"cp3{oldest}-*" in project["tool"]["cibuildwheel"]["build"].split()
    assert any("cibuildwheel" in step.get("uses", "") for step in steps)
