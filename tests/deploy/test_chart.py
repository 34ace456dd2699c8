"""The chart's configuration, the names that its templates use, and, in a long test, what Helm makes
of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
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


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Helm, built from Go's module proxy the first time."""
    command = ["go", "run", "helm.sh/helm/v3/cmd/helm@v3.16.4", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def templated(*options: str, kubernetes: str = "1.27.0") -> subprocess.CompletedProcess[str]:
    """Helm takes itself for a client of an old cluster unless it is told."""
    return helm("template", "orders", str(CHART), "--kube-version", kubernetes, *options)


def rendered(*options: str) -> dict[str, Any]:
    """What the chart makes, by kind."""
    made = templated(*options)
    assert made.returncode == 0, made.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(made.stdout) if each}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_helm_makes_one_driver_or_a_fleet(tmp_path: Path) -> None:
    for options in ((), ("--set", "serviceMonitor.enabled=true")):
        checked = helm("lint", "--strict", str(CHART), *options)
        assert checked.returncode == 0, checked.stdout
    alone = rendered()
    assert alone.keys() == {"ConfigMap", "Deployment", "NetworkPolicy", "Service"}
    assert alone["Deployment"]["spec"]["replicas"] == 1
    assert alone["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    refused = templated("--set", "members=3")
    assert refused.returncode != 0 and "needs a section [fleet]" in refused.stderr
    path = tmp_path / "sluice.toml"
    path.write_text(values()["configuration"] + "[fleet]\n")
    load(path, {"CLICKHOUSE_PASSWORD": "secret"})
    fleet = rendered("--set", "members=3", "--set-file", f"configuration={path}")
    assert fleet.keys() == alone.keys() - {"Deployment"} | {"StatefulSet", "PodDisruptionBudget"}
    members = fleet["StatefulSet"]["spec"]
    assert (members["replicas"], members["serviceName"]) == (3, "orders-sluice")
    assert members["template"]["spec"] == alone["Deployment"]["spec"]["template"]["spec"]
    budget = fleet["PodDisruptionBudget"]["spec"]
    assert members["selector"] == budget["selector"]
    # A pod that waits for Kafka, or stands frozen, is not ready, and may be moved.
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    old = templated(kubernetes="1.26.0")
    assert old.returncode != 0 and "kubeVersion" in old.stderr


TLS = 'tls = { certificate = "/etc/sluice-secrets/tls/tls.crt" }\n'


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("more", "scheme"),
    [
        ("", "HTTP"),
        (TLS, "HTTPS"),
        ("# tls = { ca = 'x' }\n[fleet]\n", "HTTP"),
        ("[http.tls]  # of the driver\ncertificate = 'x'\n[[table]]\nname = 'ca = '\n", "HTTPS"),
        ("[registry]\nurl = 'https://registry'\ntls = { ca = 'x' }\n", "HTTP"),
        (TLS.replace(" }", ', ca = "clients.pem" }'), ""),
        ("[http.tls]\ncertificate = 'x'\nca = 'clients.pem'\n", ""),
        ("tls.ca = 'clients.pem'\n", ""),
        ("[ http . tls ]\ncertificate = 'x'\n", "HTTPS"),
        ("[ http . tls ]\ncertificate = 'x'\nca = 'clients.pem'\n", ""),
    ],
)
def test_probes_ask_by_the_scheme_of_the_configuration(
    tmp_path: Path, more: str, scheme: str
) -> None:
    path = tmp_path / "sluice.toml"
    path.write_text(values()["configuration"] + more)
    options = ("--set-file", f"configuration={path}", "--set", "serviceMonitor.enabled=true")
    if not scheme:
        refused = templated(*options)
        assert refused.returncode != 0 and "[http] tls has ca" in refused.stderr
        return
    made = rendered(*options)
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == scheme, probe
    (endpoint,) = made["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["scheme"] == scheme.lower()
