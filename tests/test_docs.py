"""What the documents name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\(([\w./-]+)\)")
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_tests_exist(document: Path) -> None:
    for file, name in NAMED.findall(document.read_text()):
        path = ROOT / "tests" / file
        assert path.is_file(), file
        tree = ast.walk(ast.parse(path.read_text()))
        functions = {node.name for node in tree if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file}::{name}"


def test_every_guarantee_names_a_test() -> None:
    lines = (ROOT / "docs" / "GUARANTEES.md").read_text().splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    rows = [
        line for number, line in enumerate(lines) if line.startswith("| ") and number not in heads
    ]
    assert len(rows) > 25
    for row in rows:
        assert NAMED.search(row), row
