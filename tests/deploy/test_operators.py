"""The examples for Spark operators, and, in a long test, what their own definitions say of them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from sluice import __version__
from sluice.config import load
from sluice.spark.context import spark_home
from sluice.spark.pod import driver_command
from tests.cli.support import parse
from tests.deploy.test_image import instructions, last_stage

FOLDER = Path(__file__).parents[2] / "deploy" / "operators"
#: A folder with the operators' definitions of a SparkApplication, as their releases or a cluster
#: have them (`kubectl get customresourcedefinitions -o yaml NAME`): kubeflow.yaml, apache.yaml.
DEFINITIONS = os.environ.get("SLUICE_OPERATOR_DEFINITIONS")

Schema = dict[str, Any]


def example(name: str) -> dict[str, Any]:
    """The application of an example; its configuration is the other document."""
    return {each["kind"]: each for each in yaml.safe_load_all((FOLDER / name).read_text())}


def templates(application: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the driver's pod and of an executor's."""
    spec = application["spec"]
    if "driverSpec" in spec:
        driver, executor = spec["driverSpec"], spec["executorSpec"]
        return driver["podTemplateSpec"], executor["podTemplateSpec"]
    return spec["driver"]["template"], spec["executor"]["template"]


@pytest.mark.parametrize("name", ["kubeflow.yaml", "apache.yaml"])
def test_it_is_of_one_piece_with_the_image(name: str, tmp_path: Path) -> None:
    documents = example(name)
    application, configured = documents["SparkApplication"], documents["ConfigMap"]
    spec = application["spec"]
    path = tmp_path / "sluice.toml"
    path.write_text(configured["data"]["sluice.toml"])
    configuration = load(path, {"CLICKHOUSE_PASSWORD": "secret"})
    assert configuration.spark.master.startswith("k8s://")
    assert configuration.http is not None and configuration.http.host == "0.0.0.0"
    command = spec.get("arguments") or spec["driverArgs"]
    assert parse(*command) is not None
    image = spec.get("image") or spec["sparkConf"]["spark.kubernetes.container.image"]
    assert image.endswith(f"/sluice:{__version__}")
    version = spec.get("sparkVersion") or spec["runtimeVersions"]["sparkVersion"]
    packages = (FOLDER.parents[1] / "requirements.lock").read_text()
    assert f"\npyspark=={version} " in packages
    stage = last_stage()
    user = int(stage["USER"].partition(":")[0])
    driver, executor = templates(application)
    for template in (driver, executor):
        (container,) = template["spec"]["containers"]
        assert container["command"] == ["python", "-m", "sluice.spark.pod"]
        assert template["spec"]["securityContext"]["runAsUser"] == user
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert stage["VOLUME"].strip() in mounted
        assert {*mounted.values()} == {each["name"] for each in template["spec"]["volumes"]}
    (container,) = driver["spec"]["containers"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/live", "port": "http"}
    assert not {"readinessProbe", "startupProbe"} & {*container}
    (port,) = container["ports"]
    assert port["containerPort"] == configuration.http.port
    assert driver["spec"]["volumes"][0]["configMap"]["name"] == configured["metadata"]["name"]
    program = spec.get("mainApplicationFile") or spec["pyFiles"]
    python = next(words for words in stage["COPY"].splitlines()).split()[-1]
    release = next(words for name, words in instructions() if name == "FROM").partition("-")[0]
    site = f"{python}/lib/{release.replace(':', '')}/site-packages"
    assert program == f"local://{site}/sluice/__main__.py"


def test_pods_are_alike_for_both_operators() -> None:
    first, second = (example(name) for name in ("kubeflow.yaml", "apache.yaml"))
    assert first["ConfigMap"] == second["ConfigMap"]
    assert templates(first["SparkApplication"]) == templates(second["SparkApplication"])


def strict(schema: Schema) -> Schema:
    """It refuses fields that it does not name, as Kubernetes does where it is asked for it."""
    made = dict(schema)
    if "properties" in schema:
        made["properties"] = {name: strict(each) for name, each in schema["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            made[inner] = strict(schema[inner])
    return made


def application_schema(definition: str) -> Schema:
    """What a SparkApplication may be, of the newest version."""
    versions = yaml.safe_load(definition)["spec"]["versions"]
    schema = strict(versions[-1]["schema"]["openAPIV3Schema"])
    # Of every object, so that a definition may leave it to Kubernetes.
    every = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    schema["properties"] |= every | {"metadata": {"type": "object"}}
    return schema


def with_templates(kubeflow: Schema) -> Schema:
    """Kubeflow's definition says nothing of pod templates, and all of what they are made of."""
    spec = kubeflow["properties"]["spec"]["properties"]
    pod = spec["driver"]["properties"]
    parts = {
        "automountServiceAccountToken": {"type": "boolean"},
        "enableServiceLinks": {"type": "boolean"},
        "terminationGracePeriodSeconds": pod["terminationGracePeriodSeconds"],
        "securityContext": pod["podSecurityContext"],
        "containers": pod["sidecars"],
        "volumes": spec["volumes"],
    }
    template = {
        "type": "object",
        "properties": {
            "metadata": {
                "type": "object",
                "properties": {"labels": pod["labels"]},
                "additionalProperties": False,
            },
            "spec": {"type": "object", "properties": parts, "additionalProperties": False},
        },
        "additionalProperties": False,
    }
    whole = copy.deepcopy(kubeflow)
    within = whole["properties"]["spec"]["properties"]
    for pod_of in ("driver", "executor"):
        within[pod_of]["properties"]["template"] = template
    return whole


def refusals(schema: Schema, application: dict[str, Any]) -> list[str]:
    """What the definition does not take, by its path."""
    found = Draft202012Validator(schema).iter_errors(application)
    return [f"{'/'.join(map(str, each.path))}: {each.message}" for each in found]


def mistakes(application: dict[str, Any]) -> list[dict[str, Any]]:
    """The application with one name of a field misspelled, each once."""
    made = []

    def misspell(node: Any, path: tuple[Any, ...]) -> None:
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(node, dict) and not {"labels", "sparkConf", "metadata"} & {*path}:
                wrong = copy.deepcopy(application)
                place = wrong
                for step in path:
                    place = place[step]
                place[f"{key}x"] = place.pop(key)
                made.append(wrong)
            if isinstance(inner, dict | list):
                misspell(inner, (*path, key))

    misspell(application, ())
    return made


@pytest.mark.long
@pytest.mark.skipif(DEFINITIONS is None, reason="SLUICE_OPERATOR_DEFINITIONS names no folder")
@pytest.mark.parametrize("name", ["kubeflow.yaml", "apache.yaml"])
def test_the_definition_takes_it_and_none_with_a_mistake(name: str) -> None:
    schema = application_schema((Path(str(DEFINITIONS)) / name).read_text())
    if name == "kubeflow.yaml":
        schema = with_templates(schema)
    application = example(name)["SparkApplication"]
    assert refusals(schema, application) == []
    wrong = mistakes(application)
    assert len(wrong) > 50
    taken = [each for each in wrong if not refusals(schema, each)]
    assert taken == []


@contextmanager
def recording() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Takes everything, in the place of Kubernetes' API; its address, and what came."""
    came: list[dict[str, Any]] = []

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            came.append(made)
            answer = made | {"metadata": made["metadata"] | {"uid": f"uid-{len(came)}"}}
            body = json.dumps(answer).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PATCH(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.long
def test_spark_leaves_in_pods_what_the_templates_say(tmp_path: Path) -> None:
    """Spark's own client of cluster mode makes the driver's pod."""
    spec = example("kubeflow.yaml")["SparkApplication"]["spec"]
    wanted = spec["driver"]["template"]
    template = tmp_path / "driver.yaml"
    template.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Pod"} | wanted))
    conf = {
        "spark.kubernetes.driver.podTemplateFile": str(template),
        "spark.kubernetes.container.image": spec["image"],
        "spark.kubernetes.submission.waitAppCompletion": "false",
    }
    with recording() as (address, came):
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", f"k8s://{address}"]
        command += ["--deploy-mode", "cluster", "--name", "orders"]
        command += [f"--conf={name}={value}" for name, value in conf.items()]
        done = subprocess.run(
            [*command, spec["mainApplicationFile"], *spec["arguments"]],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    (pod,) = (each["spec"] for each in came if each["kind"] == "Pod")
    (made,), (container,) = pod["containers"], wanted["spec"]["containers"]
    for name in ("command", "envFrom", "livenessProbe", "securityContext"):
        assert made[name] == container[name]
    for name in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks"):
        assert pod[name] == wanted["spec"][name]
    for mount in container["volumeMounts"]:
        assert mount in made["volumeMounts"]
    assert "SPARK_DRIVER_BIND_ADDRESS" in {each["name"] for each in made["env"]}
    role, *rest = made["args"]
    words, _ = driver_command(rest, {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"})
    assert role == "driver" and words[-4:] == spec["arguments"] and words[-5] == "sluice"
