"""Kafka's jars, resolved once for each user by the Ivy that PySpark ships.

The folder appears by one rename, with a manifest of names and sizes: a process that was killed
half way leaves nothing that looks complete, and a damaged folder is made anew. Processes that
need the jars at the same time wait for the one that fetches them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from sluice.core.errors import TerminalError
from sluice.spark.context import spark_home
from sluice.spark.java import cache_folder, require_java

KAFKA_VERSION = "4.1.0"
_MANIFEST = "manifest.json"
_RESOLVE_SECONDS_MAX = 900
_MODULE = """<ivy-module version="2.0">
  <info organisation="sluice" module="local-broker"/>
  <configurations defaultconfmapping="default->default"><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{kafka}"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="2.24.3"/>
  </dependencies>
</ivy-module>
"""
_MIRROR_SETTINGS = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root={root}/></resolvers>
</ivysettings>
"""


def kafka_jars() -> Path:
    """The folder with the broker's jars; fetches them (about 45 s) if they are not there.

    :raises TerminalError: they cannot be fetched.
    """
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.parent / f"{folder.name}.lock"):
        if not is_complete(folder):  # another process may have fetched them meanwhile
            print(f"sluice: fetching Kafka {KAFKA_VERSION} into {folder}", file=sys.stderr)
            _fetch(folder)
    return folder


def is_complete(folder: Path) -> bool:
    """True if every file of the manifest is there with its size."""
    try:
        sizes: dict[str, int] = json.loads((folder / _MANIFEST).read_text())
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _fetch(folder: Path) -> None:
    """Resolve into a folder beside, write the manifest, put it in place."""
    prefix = f"{folder.name}.partial-"
    for left_over in folder.parent.glob(f"{prefix}*"):  # by a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as name:
        work = Path(name)
        _resolve(work)
        jars = work / "jars"
        sizes = {jar.name: jar.stat().st_size for jar in sorted(jars.glob("*.jar"))}
        if f"kafka_2.13-{KAFKA_VERSION}.jar" not in sizes:
            raise TerminalError("Ivy ended well but brought no Kafka", _hint())
        (jars / _MANIFEST).write_text(json.dumps(sizes, indent=1))
        if folder.exists():
            folder.rename(work / "damaged")
        jars.rename(folder)


def _resolve(work: Path) -> None:
    (work / "ivy.xml").write_text(_MODULE.format(kafka=KAFKA_VERSION))
    command = [str(require_java()), *_proxy_options(), "-jar", str(_ivy())]
    command += [*_settings_options(work), "-ivy", str(work / "ivy.xml")]
    command += ["-cache", str(work / "cache"), "-confs", "default"]
    command += ["-retrieve", f"{work}/jars/[artifact]-[revision](-[classifier]).[ext]"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_RESOLVE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise TerminalError(
            f"Ivy did not end within {_RESOLVE_SECONDS_MAX} s while it fetched Kafka", _hint()
        ) from None
    # Ivy ends with 0 even where dependencies were not found.
    if done.returncode != 0 or "UNRESOLVED DEPENDENCIES" in done.stdout + done.stderr:
        lines = (done.stdout + done.stderr).splitlines()
        told = [line.strip() for line in lines if "unresolved" in line or "ERROR" in line]
        raise TerminalError(
            f"Ivy could not fetch Kafka {KAFKA_VERSION}: {'; '.join((told or lines)[-3:])}", _hint()
        )


def _hint() -> str:
    return (
        "Check the network; behind a proxy set HTTPS_PROXY; for a mirror write"
        " ~/.ivy2/ivysettings.xml or a <mirror> in ~/.m2/settings.xml."
    )


def _ivy() -> Path:
    for jar in (spark_home() / "jars").glob("ivy-*.jar"):
        return jar
    raise TerminalError("PySpark's Ivy jar was not found", "Install Sluice with its dependencies.")


def _settings_options(work: Path) -> list[str]:
    """This user's own repositories: Ivy's settings, else a mirror in Maven's settings."""
    own = Path.home() / ".ivy2" / "ivysettings.xml"
    if own.is_file():
        return ["-settings", str(own)]
    root = _maven_mirror(Path.home() / ".m2" / "settings.xml")
    if not root:
        return []
    settings = work / "ivysettings.xml"
    settings.write_text(_MIRROR_SETTINGS.format(root=quoteattr(root)))
    return ["-settings", str(settings)]


def _maven_mirror(settings: Path) -> str:
    """The URL of the mirror that Maven would use for its central repository, "" for none."""
    try:
        tree = ElementTree.parse(settings)
    except (OSError, ElementTree.ParseError):
        return ""
    for mirror in tree.iterfind(".//{*}mirror"):
        serves = (mirror.findtext("{*}mirrorOf") or "").split(",")
        if {"*", "central", "external:*"} & {name.strip() for name in serves}:
            return (mirror.findtext("{*}url") or "").strip()
    return ""


def _proxy_options() -> list[str]:
    """Java does not read the usual variables for proxies."""
    options = []
    for scheme in ("http", "https"):
        value = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        proxy = urlsplit(value or "")
        if proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    return options


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the kernel frees the lock of a process that dies."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Fetch the jars if need be and print their folder."""
    try:
        print(kafka_jars())
    except TerminalError as error:
        print(f"sluice: {error.message}\nTry: {error.hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
