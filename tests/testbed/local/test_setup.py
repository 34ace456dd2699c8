"""Java and Kafka's jars: what set-up finds and what it repairs. Nothing is downloaded here."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sluice.core.errors import TerminalError
from sluice.spark import java
from sluice.testbed.local import jars


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "new", "21.0.8")))
    assert java.find_java() == tmp_path / "new" / "bin" / "java"


def test_an_old_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "old", "1.8.0_392")))
    monkeypatch.setenv("PATH", str(_fake_java(tmp_path / "other", "11.0.2") / "bin"))
    monkeypatch.setattr(java.sys, "prefix", str(tmp_path / "nowhere"))
    assert java.find_java() is None
    with pytest.raises(TerminalError) as told:
        java.require_java()
    assert "Install Java 17" in told.value.hint


def test_the_wrapper_drops_only_the_module_it_lacks(tmp_path: Path) -> None:
    wrapper = tmp_path / "java"
    wrapper.write_text(java._WRAPPER.format(java="/bin/echo"))
    wrapper.chmod(0o755)
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "-cp", "*", "Main"]
    done = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "-Dx=a b -cp * Main\n"


def test_damaged_jars_are_seen(tmp_path: Path) -> None:
    assert not jars.is_complete(tmp_path)
    (tmp_path / "a.jar").write_bytes(b"1234")
    (tmp_path / "manifest.json").write_text(json.dumps({"a.jar": 4}))
    assert jars.is_complete(tmp_path)
    (tmp_path / "a.jar").write_bytes(b"12")
    assert not jars.is_complete(tmp_path)


def test_a_half_finished_fetch_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "sluice" / f"kafka-{jars.KAFKA_VERSION}"
    folder.mkdir(parents=True)
    left_over = folder.parent / f"{folder.name}.partial-x"
    left_over.mkdir()

    def resolve(work: Path) -> None:
        (work / "jars").mkdir()
        (work / "jars" / f"kafka_2.13-{jars.KAFKA_VERSION}.jar").write_bytes(b"jar")

    monkeypatch.setattr(jars, "_resolve", resolve)
    assert jars.kafka_jars() == folder
    assert jars.is_complete(folder)
    assert not left_over.exists()


def test_mirrors_of_maven_are_used(tmp_path: Path) -> None:
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>'
        "<mirror><mirrorOf>other</mirrorOf><url>http://a.invalid/</url></mirror>"
        "<mirror><mirrorOf>central</mirrorOf><url>http://b.invalid/m</url></mirror>"
        "</mirrors></settings>"
    )
    assert jars._maven_mirror(settings) == "http://b.invalid/m"
    assert jars._maven_mirror(tmp_path / "nosuch.xml") == ""


def _fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return home
