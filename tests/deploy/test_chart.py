"""The chart fits to the image; where helm is installed, what it renders."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice import __version__
from sluice.config import load
from tests.cli.support import parse
from tests.deploy.test_image import last_stage

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


def helm(*words: str) -> str:
    """What helm says, which has to find nothing wrong."""
    program = shutil.which("helm")
    if program is None:
        pytest.skip("needs helm")
    done = subprocess.run(
        [program, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_helm_renders_is_one_driver_in_the_image() -> None:
    helm("lint", "--strict", str(CHART))
    secrets = ["--set", "environmentSecrets={one}", "--set", "mountedSecrets={two}"]
    text = helm("template", "o", str(CHART), *secrets, "--set", "serviceMonitor.enabled=true")
    found = {each["kind"]: each for each in yaml.safe_load_all(text)}
    kinds = {"ConfigMap", "Deployment", "Service", "NetworkPolicy", "ServiceMonitor"}
    assert {*found} == kinds
    spec = found["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    understood = parse(*container["args"])
    assert understood["grace"] < pod["terminationGracePeriodSeconds"]
    stage = last_stage()
    user = int(stage["USER"].partition(":")[0])
    assert pod["securityContext"]["runAsUser"] == user
    assert str(container["ports"][0]["containerPort"]) == stage["EXPOSE"].strip()
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    where = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert where["temporary"] == "/tmp" and where["secret-two"] == "/etc/sluice-secrets/two"
    assert {each["name"] for each in pod["volumes"]} == {*where}
    assert container["envFrom"] == [{"secretRef": {"name": "one"}}]
    written = found["ConfigMap"]["data"]["sluice.toml"]
    assert written == values()["configuration"]
    labels = spec["template"]["metadata"]["labels"]
    for kind in ("Service", "NetworkPolicy"):
        selector = found[kind]["spec"].get("selector") or found[kind]["spec"]["podSelector"]
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= labels.items()
    assert json.dumps(found["NetworkPolicy"]["spec"]["egress"][-1]) == "{}"
