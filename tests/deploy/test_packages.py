"""What is installed: locked with hashes, listed, and looked up among what is vulnerable."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pip_requirements_parser import RequirementsFile

ROOT = Path(__file__).parents[2]
LOCK, TESTS = ROOT / "requirements.lock", ROOT / "requirements-tests.lock"


def locked(file: Path) -> dict[str, Any]:
    found = RequirementsFile.from_file(str(file)).requirements
    return {canonicalize_name(each.name): each for each in found}


def test_the_locks_are_of_this_project_and_have_hashes() -> None:
    needed, besides = locked(LOCK), locked(TESTS)
    assert len(needed) > 30 and needed.keys().isdisjoint(besides)
    for each in (*needed.values(), *besides.values()):
        assert each.is_pinned, each.name
        assert each.hash_options, each.name
        assert all(len(digest) == len("sha256:") + 64 for digest in each.hash_options)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for texts, known in (
        (project["dependencies"], needed),
        (project["optional-dependencies"]["test"], needed | besides),
    ):
        for wanted in map(Requirement, texts):
            version = known[canonicalize_name(wanted.name)].get_pinned_version
            assert version in wanted.specifier, f"{wanted}: scripts/lock"


def test_the_bill_of_materials_lists_them() -> None:
    script = [sys.executable, str(ROOT / "scripts" / "sbom")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True)
    told = json.loads(done.stdout)
    assert (told["bomFormat"], told["metadata"]["component"]["name"]) == ("CycloneDX", "sluice")
    listed = {canonicalize_name(each["name"]): each for each in told["components"]}
    assert listed.keys() == locked(LOCK).keys()
    for name, each in locked(LOCK).items():
        assert listed[name]["version"] == each.get_pinned_version
        hashes = {f"sha256:{one['content']}" for one in listed[name]["hashes"]}
        assert hashes == set(each.hash_options)


@pytest.fixture(scope="module")
def judged() -> Callable[[str, str], tuple[list[str], str]]:
    loader = SourceFileLoader("audit", str(ROOT / "scripts" / "audit"))
    spec = spec_from_loader("audit", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module.judged  # type: ignore[no-any-return]


def test_what_was_not_audited_is_no_good_news(
    judged: Callable[[str, str], tuple[list[str], str]],
) -> None:
    """pip-audit 2.10 says of packages that its database does not answer for: no known
    vulnerabilities found."""
    clean: dict[str, Any] = {"name": "click", "version": "8.5.1", "vulns": []}
    known = {"id": "PYSEC-1", "fix_versions": ["9.0"], "aliases": [], "description": "…"}
    bad = {"name": "idna", "version": "3.20", "vulns": [known, {**known, "fix_versions": []}]}
    skipped = {"name": "attrs", "skip_reason": "Dependency not found on PyPI"}

    def of(*packages: object) -> tuple[list[str], str]:
        return judged(json.dumps({"dependencies": packages, "fixes": []}), "")

    assert of(clean) == ([], "")
    found, why = of(clean, bad)
    assert found == [
        "idna 3.20: PYSEC-1, fixed in 9.0",
        "idna 3.20: PYSEC-1, fixed in no version yet",
    ]
    assert why == ""
    found, why = of(clean, skipped)
    assert found == [] and why.startswith("of 1 of 2 packages nothing is known: Dependency not")
    found, why = judged("", "Traceback\nConnectionError: no route\n")
    assert found == [] and "cannot be asked: ConnectionError: no route" in why
