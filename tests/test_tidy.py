"""Habits that a machine can hold: sizes, names, dead modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_layers import PACKAGE, imports_of, module_name

ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
#: Tables of cases may grow a little longer.
TEST_FILE_LINES_MAX = 500

#: Abbreviations that make a reader guess, and the words for them. `conf` is Spark's own key.
BANNED_NAMES = {
    "tp": "partition",
    "tps": "partitions",
    "cfg": "configuration",
    "mgr": "manager, or better what it does",
    "msg": "message",
    "msgs": "messages",
    "ch": "clickhouse",
    "buf": "buffer",
    "cnt": "count",
    "idx": "index",
    "num": "count, or number of what",
    "tbl": "table",
    "ts": "timestamp_ms, or time",
    "tmp": "temporary, or what it holds",
    "ctx": "context",
    "req": "request",
    "resp": "response",
    "exc": "error",
    "utils": "what the functions do",
    "helpers": "what the functions do",
    "misc": "what the functions do",
}

#: What was left open.
BANNED_TEXT = re.compile(r"\bTODO\b|\bFIXME\b|\bXXX\b")

#: Started by Python or by pip, imported by nobody.
ENTRY_POINTS = {"sluice", "sluice.__main__"}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(source: str) -> Iterator[str]:
    """Functions above the limit, from `def` to the last line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.name} has {lines} lines"


def names_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of what a module names itself; what others named is not our doing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def banned_names(source: str) -> Iterator[str]:
    """Names with a banned abbreviation as one of their words."""
    for line, name in names_of(source):
        for word in re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_"):
            if word in BANNED_NAMES:
                yield f"line {line}: {name}; write {BANNED_NAMES[word]}"


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=shown)
def test_files_and_functions_stay_short(path: Path) -> None:
    source = path.read_text()
    lines_max = FILE_LINES_MAX if path in SOURCES else TEST_FILE_LINES_MAX
    assert len(source.splitlines()) <= lines_max
    assert list(long_functions(source)) == []


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_names_are_words(path: Path) -> None:
    assert list(banned_names(path.read_text())) == []
    assert path.stem not in BANNED_NAMES


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=shown)
def test_text_is_for_readers_of_the_project(path: Path) -> None:
    found = [
        f"line {number}: {line.strip()}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BANNED_TEXT.search(line) and path != Path(__file__)
    ]
    assert found == []


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_modules_say_what_they_are(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module begins with a docstring"


def test_no_module_is_dead() -> None:
    """Each is imported by another one, or started by `python -m`."""
    modules = {module_name(path).removesuffix(".__init__"): path for path in SOURCES}
    imported: set[str] = set()
    for module, path in modules.items():
        for _, name in imports_of(path.read_text(), module_name(path)):
            if name != module:
                # `from a.b import c` uses a.b, and a.b.c if that is a module
                imported |= {name, name.rpartition(".")[0]}
    started = {
        module for module, path in modules.items() if '__name__ == "__main__"' in path.read_text()
    }
    packages = {module for module, path in modules.items() if path.name == "__init__.py"}
    assert sorted(set(modules) - imported - started - packages - ENTRY_POINTS) == []


def test_the_tidy_rules_notice() -> None:
    body = "\n".join("    pass" for _ in range(FUNCTION_LINES_MAX))
    assert list(long_functions(f"def f() -> None:\n{body}"))
    assert not list(long_functions(f"def f() -> None:\n{body[:-9]}"))
    for source in ("tp = 1", "def f(cfg): ...", "class KafkaMgr: ...", "def send_msg(): ..."):
        assert list(banned_names(source)), source
    for source in ("spark.conf = 1", "x = message.ts", "timestamps = 1", "f(msg=1)"):
        assert not list(banned_names(source)), source
    assert BANNED_TEXT.search("# TODO: later") and not BANNED_TEXT.search("todo lists")
