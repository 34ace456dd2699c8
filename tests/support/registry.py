"""A real schema registry (Apicurio, with its Confluent-compatible API) on a free port.

It is fetched once for each user from Maven Central, by the Ivy that PySpark ships, as the
local broker is.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from sluice.spark.java import cache_folder, require_java
from sluice.testbed.local import jars
from sluice.testbed.local.children import Child, free_ports

APICURIO_VERSION = "3.0.9"
_API = "/apis/ccompat/v7"
_MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="sluice" module="test-registry"/>
  <configurations defaultconfmapping="default->default"><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{APICURIO_VERSION}"
                transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
# The archive is all that is wanted, so its pom, whose parent is not published, is not read.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" root={root}/>
  </resolvers>
</ivysettings>
"""
_CENTRAL = "https://repo1.maven.org/maven2"


@dataclass(frozen=True, slots=True)
class Registry:
    """A running registry."""

    url: str

    def register(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> int:
        """Gives the schema's number."""
        body = {"schema": schema, "schemaType": kind, "references": references or []}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            return int(json.load(reply)["id"])


def _runner() -> Path:
    """The registry's jar; fetches it (110 MB) if it is not there."""
    folder = cache_folder() / f"apicurio-{APICURIO_VERSION}"
    runner = folder / f"apicurio-registry-app-{APICURIO_VERSION}-runner.jar"
    if not runner.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with jars._alone(folder.parent / f"{folder.name}.lock"):
            if not runner.exists():
                _fetch(folder)
    return runner


def _fetch(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as name:
        work = Path(name)
        (work / "ivy.xml").write_text(_MODULE)
        root = jars._maven_mirror(Path.home() / ".m2" / "settings.xml") or _CENTRAL
        (work / "settings.xml").write_text(_SETTINGS.format(root=quoteattr(root)))
        command = [str(require_java()), *jars._proxy_options(), "-jar", str(jars._ivy())]
        command += ["-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        command += ["-cache", str(work / "cache"), "-confs", "default"]
        command += ["-retrieve", f"{work}/[artifact]-[revision](-[classifier]).[ext]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        archives = list(work.glob("*.tar.gz"))
        if not archives:
            raise RuntimeError(f"Ivy brought no Apicurio:\n{(done.stdout + done.stderr)[-3000:]}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(work / "unpacked", filter="data")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "unpacked").rename(folder)


@contextmanager
def run_registry() -> Iterator[Registry]:
    """Run a registry, its schemas in memory, until the block ends."""
    runner, port = _runner(), free_ports(1)[0]
    url = f"http://127.0.0.1:{port}{_API}"
    with tempfile.TemporaryDirectory(prefix="sluice-registry-") as folder:
        command = [str(require_java()), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        command += [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
        server = Child(Path(folder))
        try:
            server.launch([*command, "-jar", str(runner)])
            server.wait_until(lambda: _answers(url), timeout_seconds=180)
            yield Registry(url)
        finally:
            server.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/subjects", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
