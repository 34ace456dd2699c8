"""What the documents name exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from sluice.cli.main import build_parser
from sluice.clickhouse.reactions import REACTIONS
from sluice.ops.metrics import LaneCollector
from sluice.prove.running import EXPERIMENTS

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


def test_the_experiments_of_prove_are_listed_as_they_are() -> None:
    text = (ROOT / "docs" / "GUARANTEES.md").read_text()
    section = text.partition("## What it rests on in ClickHouse")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", section, re.MULTILINE)
    assert listed == [(experiment.name, experiment.fact) for experiment in EXPERIMENTS]


RUNBOOK = ROOT / "docs" / "RUNBOOK.md"
COMMAND = re.compile(r"(?:^|`)sluice ([a-z][\w-]*)([^`\n]*)", re.MULTILINE)
METRIC = re.compile(r"`(sluice_\w+)")
#: Each in this order, in each section of the runbook.
HEADS = ("Symptom", "Metric", "Command", "What not to do", "Verified by")


def test_the_runbook_says_of_each_trouble_what_it_must() -> None:
    sections = RUNBOOK.read_text().split("\n## ")[1:]
    assert len(sections) >= 10
    for section in sections:
        places = [section.find(f"\n**{head}") for head in HEADS]
        assert -1 not in places and places == sorted(places), section.splitlines()[0]
        verified = section[places[-1] :]
        assert NAMED.search(verified), section.splitlines()[0]


def test_commands_of_the_runbook_exist() -> None:
    """Their options too; a command alone stands for itself."""
    found = COMMAND.findall(RUNBOOK.read_text())
    assert len(found) > 20
    parser = build_parser()
    for command, rest in found:
        words = shlex.split(rest)
        if words:
            parser.parse_args([command, *words])
        else:
            with pytest.raises(SystemExit) as ended:
                parser.parse_args([command, "--help"])
            assert ended.value.code == 0


def test_metrics_of_the_runbook_exist() -> None:
    known: set[str] = set()
    for family in LaneCollector([]).collect():
        known |= (
            {family.name, f"{family.name}_total"} if family.type == "counter" else {family.name}
        )
    found = set(METRIC.findall(RUNBOOK.read_text()))
    assert len(found) >= 6
    assert found <= known


def test_errors_of_the_runbook_are_clickhouses() -> None:
    """NAME (CODE), and the labels of the metric."""
    text = RUNBOOK.read_text()
    named = re.findall(r"`([A-Z_]+) \((\d+)\)`", text)
    assert len(named) > 5
    for name, code in named:
        assert REACTIONS[int(code)].name == name
    labels = re.findall(r'error="(\w+)"', text)
    known = {reaction.name for reaction in REACTIONS.values()} | {"CONNECTION_REFUSED"}
    assert labels and {*labels} <= known
