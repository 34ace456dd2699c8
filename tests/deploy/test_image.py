"""The image's instructions, as far as they can be tried without a container; the wheel is real."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
import yaml

from sluice import __version__
from sluice.config import load
from sluice.config.clickhouse import CertificatesConfiguration
from tests.cli.support import parse
from tests.ops.http.scene import CONFIGURATION, Served, run_of
from tests.support.certificates import Authority

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile, in its order: (FROM, …), (RUN, …), …"""
    text = (FOLDER / "Dockerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line]


def last_stage() -> dict[str, str]:
    """The instructions after the last FROM; of those that stand there twice, all of their text."""
    found: dict[str, str] = {}
    for name, words in instructions():
        found = {} if name == "FROM" else found | {name: f"{found.get(name, '')}{words}\n"}
    return found


def copied() -> list[str]:
    """What comes from the repository."""
    words = [shlex.split(words)[:-1] for name, words in instructions() if name == "COPY"]
    return [name for names in words if not names[0].startswith("--from") for name in names]


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    assert {"sluice", "requirements.lock", "setup.py"} <= {*copied()}
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    for name in copied():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored
    assert any(fnmatch.fnmatch("sluice/x/_y.so", f"*{each.strip('*')}") for each in ignored[-2:])


def test_the_driver_is_nobody_and_has_no_compiler() -> None:
    stage = last_stage()
    user, _, _ = stage["USER"].strip().partition(":")
    assert user.isdigit() and int(user) > 0
    assert f"--uid {user} " in stage["RUN"]
    assert not re.search(r"\b(gcc|make|git|curl)\b", stage["RUN"])
    assert parse(*json.loads(stage["CMD"].splitlines()[-1])) is not None
    assert json.loads(stage["ENTRYPOINT"]) == ["sluice"]


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("is_ended", [False, True])
def test_the_health_check_asks_whether_it_lives(
    tmp_path: Path, is_ended: bool, has_tls: bool
) -> None:
    """As `[http]` says of the file that the image's own command runs. Other sections may have been
    changed since, and be wrong: before, a driver was unhealthy for that."""
    stage = last_stage()
    python, *check, path = json.loads(stage["HEALTHCHECK"].partition("CMD ")[2])
    assert path == json.loads(stage["CMD"].splitlines()[-1])[-1]
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.sign("driver")
    tls = CertificatesConfiguration(str(authority.certificate), str(certificate), str(key))
    run = run_of(None, is_ended=is_ended)
    served = Served(tmp_path, [run], tls=tls if has_tls else None)
    more = '[registry]\nurl = "${NOT_SET}"\n'
    more += f'[http]\nlisten = "0.0.0.0:{served.port}"\n'
    if has_tls:
        more += f'tls = {{ certificate = "{certificate}", key = "{key}", ca = "{tls.ca}" }}\n'
    configured = tmp_path / "sluice.toml"
    configured.write_text(CONFIGURATION.format(name="orders") + more)
    try:
        words = [sys.executable if python == "python" else python, *check, str(configured)]
        done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    finally:
        served.server.stop()
    assert done.returncode == (1 if is_ended else 0), done.stderr


def test_the_compose_file_is_of_one_piece() -> None:
    configuration = load(FOLDER / "sluice.toml", {"CLICKHOUSE_PASSWORD": "secret"})
    path = ROOT / "deploy" / "compose.yaml"
    services = yaml.safe_load(path.read_text())["services"]
    (connector,) = configuration.connectors
    ((server,),) = (shard.replicas for shard in configuration.clickhouse.shards)
    kafka = services[connector.brokers.partition(":")[0]]["environment"]
    assert kafka["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{connector.brokers}"
    assert f"--topic={connector.topics[0]}" in services["topic"]["command"]
    clickhouse = services[urlsplit(server).hostname]["environment"]
    assert clickhouse["CLICKHOUSE_DB"] == configuration.clickhouse.database
    assert clickhouse["CLICKHOUSE_USER"] == configuration.clickhouse.user
    driver = services["sluice"]
    assert clickhouse["CLICKHOUSE_PASSWORD"] == driver["environment"]["CLICKHOUSE_PASSWORD"]
    assert configuration.http is not None and configuration.http.host == "0.0.0.0"
    assert driver["ports"] == [f"127.0.0.1:{configuration.http.port}:{configuration.http.port}"]
    build = driver["build"]
    assert (path.parent / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    for service in services.values():
        for volume in service.get("volumes", ()):
            assert (path.parent / volume.partition(":")[0]).is_file(), volume
        assert {*service.get("depends_on", ())} <= {*services}
    table = (FOLDER / "orders.sql").read_text()
    assert f"CREATE TABLE IF NOT EXISTS {configuration.tables[0].target}\n" in table


@pytest.mark.slow
def test_the_wheel_is_whole(tmp_path: Path) -> None:
    """Made of what the image copies, by way of the source distribution, and installed elsewhere;
    packages that it needs are those of this environment."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def done(*words: str | Path, folder: Path = source) -> str:
        ended = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout

    pip = (sys.executable, "-m", "pip", "--no-cache-dir", "--disable-pip-version-check")
    build = f"from setuptools.build_meta import build_sdist; build_sdist({str(out)!r})"
    done(sys.executable, "-c", build)
    (archive,) = out.iterdir()
    done(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", out, archive)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        held = {name for name in packed.namelist() if name.startswith("sluice/")}
    written = {str(path.relative_to(source)) for path in (source / "sluice").rglob("*.*")}
    assert written <= held
    compiled = {name.partition(".")[0] for name in held if name.endswith(".so")}
    named = re.findall(r'"(sluice\.[\w.]+)", "sluice/', (ROOT / "setup.py").read_text())
    assert compiled == {name.replace(".", "/") for name in named} and compiled
    elsewhere = tmp_path / "venv"
    venv.create(elsewhere, symlinks=True)
    (site,) = elsewhere.glob("lib/python*/site-packages")
    (site / "needed.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    python = elsewhere / "bin" / "python"
    done(python, *pip[1:], "install", "--no-deps", "--force-reinstall", wheel)
    told = done(elsewhere / "bin" / "sluice", "--version", folder=tmp_path)
    assert told == f"sluice {__version__}\n"
    where = "import sluice.ops.http.app, sluice.claims.local; print(sluice.__file__)"
    assert done(python, "-c", where, folder=tmp_path).startswith(str(elsewhere))
