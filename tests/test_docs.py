"""What the documents name exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from click.exceptions import Exit

from sluice.clickhouse.reactions import REACTIONS
from sluice.prove.running import EXPERIMENTS
from tests.cli.support import parse
from tests.ops.metrics_document import families
from tests.support.import_graph import nodes_of

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\(([\w./-]+)\)")
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), target


def test_the_site_has_every_document() -> None:
    named = re.findall(r": (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_named_tests_exist(document: Path) -> None:
    for file, name in NAMED.findall(document.read_text()):
        path = ROOT / "tests" / file
        assert path.is_file(), file
        nodes = nodes_of(path.read_text())
        functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{file}::{name}"


def in_make_test(file: str, name: str) -> bool:
    """Whether `make test` runs it, at least with some of its parameters."""
    module = nodes_of((ROOT / "tests" / file).read_text())[0]
    assert isinstance(module, ast.Module)
    marked = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    marks = {node.name: {ast.unparse(each) for each in node.decorator_list} for node in marked}
    return name in marks and marks[name].isdisjoint({"pytest.mark.long", "pytest.mark.slow"})


def test_every_guarantee_names_a_test_that_make_test_runs() -> None:
    lines = (ROOT / "docs" / "GUARANTEES.md").read_text().splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    rows = [
        line for number, line in enumerate(lines) if line.startswith("| ") and number not in heads
    ]
    assert len(rows) > 25
    for row in rows:
        assert any(in_make_test(file, name) for file, name in NAMED.findall(row)), row


def test_the_experiments_of_prove_are_listed_as_they_are() -> None:
    text = (ROOT / "docs" / "GUARANTEES.md").read_text()
    section = text.partition("## What it rests on in ClickHouse")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", section, re.MULTILINE)
    assert listed == [(experiment.name, experiment.fact) for experiment in EXPERIMENTS]


PROTOCOL = ROOT / "docs" / "PROTOCOL.md"
#: A rule, an invariant or a hazard, where it is named and where it is defined.
NAME = re.compile(r"\b[RIH][1-9]\d?\b")
DEFINED = re.compile(r"^### ([RIH][1-9]\d?) .+\n\n\*\*", re.MULTILINE)
#: How they were called once: `rule 3`, `invariant 4`, and hazards by a letter and a number.
#: Others say so of the first bytes of an Avro message, and of a decoder's rules.
FORMER = re.compile(
    r"(?<!9\.9\.9, )\b([Rr]ules?|[Ii]nvariants?) \d|\bhazards? [A-G]\b|\b(?!C3 01\b)[A-G][1-9]\d?\b"
)


def citing_files() -> list[Path]:
    found = [*(ROOT / "sluice").rglob("*.py"), *(ROOT / "sluice").rglob("*.c")]
    found += (ROOT / "tests").rglob("*.py")
    return [path for path in [*found, *DOCUMENTS] if path != Path(__file__)]


def test_rules_invariants_and_hazards_are_defined_once_and_cited() -> None:
    defined = DEFINED.findall(PROTOCOL.read_text())
    assert len(defined) == len(set(defined)) >= 50
    cited = {path: set(NAME.findall(path.read_text())) for path in citing_files()}
    for path, names in cited.items():
        assert names <= set(defined), f"{path}: PROTOCOL.md does not define {names - set(defined)}"
    anywhere, held = set[str](), set[str]()
    for path, names in cited.items():
        anywhere |= names if path != PROTOCOL else set()
        if path.name == "GUARANTEES.md" or path.is_relative_to(ROOT / "tests"):
            held |= names
    assert set(defined) <= anywhere
    assert {name for name in defined if not name.startswith("H")} <= held


def test_former_names_of_rules_and_hazards_are_gone() -> None:
    for path in citing_files():
        found = FORMER.search(path.read_text())
        assert found is None, f"{path}: {found.group()!r} has another name in PROTOCOL.md"


SOURCE = re.compile(r"`([\w/]+\.(?:py|c))`")


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/ARCHITECTURE.md", "docs/PROTOCOL.md"])
def test_files_that_are_named_exist(name: str) -> None:
    """By their path, below the package, its decoders, the tests, or everything."""
    places = [ROOT, ROOT / "sluice", ROOT / "sluice" / "decode", ROOT / "tests"]
    for named in SOURCE.findall((ROOT / name).read_text()):
        if "/" in named:
            assert any((place / named).is_file() for place in places), named
        else:
            assert any(ROOT.glob(f"[st]*/**/{named}")), named


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
    for command, rest in found:
        words = shlex.split(rest)
        if words:
            parse(command, *words)
        else:
            with pytest.raises(Exit) as ended:
                parse(command, "--help")
            assert ended.value.exit_code == 0


def test_metrics_of_the_runbook_exist() -> None:
    known: set[str] = set()
    for family in families().values():
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
