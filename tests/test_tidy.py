"""Habits that a machine can hold: sizes, names, dead modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.import_graph import nodes_of
from tests.test_layers import PACKAGE, imports_of, module_name

ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FUNCTION_LINES_MAX = 70
CLASS_LINES_MAX = 300
#: These are larger; they may shrink.
LARGE_CLASSES = {
    "Server": 308,
}
FILE_LINES_MAX = 900
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

#: Started by Python, by pip or, through `pyspark_sluice`, by Spark; imported by nobody.
ENTRY_POINTS = {"sluice", "sluice.__main__", "sluice.stream.source", "sluice.stream.updating"}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def long_functions(source: str) -> Iterator[str]:
    """Functions and classes above their limits, from `def` or `class` to the last line."""
    for node in nodes_of(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            lines_max = FUNCTION_LINES_MAX
            if isinstance(node, ast.ClassDef):
                lines_max = LARGE_CLASSES.get(node.name, CLASS_LINES_MAX)
            if lines > lines_max:
                yield f"{node.name} has {lines} lines"


def names_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of what a module names itself; what others named is not our doing."""
    for node in nodes_of(source):
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


def offenders(paths: list[Path], look: Callable[[Path], Iterable[str]]) -> list[str]:
    """What is wrong, each with its file."""
    return [f"{shown(path)}: {what}" for path in paths for what in look(path)]


@pytest.mark.slow
def test_files_and_functions_stay_short() -> None:
    def look(path: Path) -> Iterator[str]:
        source = path.read_text()
        lines_max = FILE_LINES_MAX if path in SOURCES else TEST_FILE_LINES_MAX
        lines = len(source.splitlines())
        if lines > lines_max:
            yield f"{lines} lines; {lines_max} at most"
        yield from long_functions(source)

    assert offenders([*SOURCES, *TESTS], look) == []


def test_names_are_words() -> None:
    assert offenders(SOURCES, lambda path: banned_names(path.read_text())) == []
    assert [shown(path) for path in SOURCES if path.stem in BANNED_NAMES] == []


def test_text_is_for_readers_of_the_project() -> None:
    def look(path: Path) -> Iterator[str]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if BANNED_TEXT.search(line):
                yield f"line {number}: {line.strip()}"

    assert offenders([path for path in [*SOURCES, *TESTS] if path != Path(__file__)], look) == []


def test_modules_say_what_they_are() -> None:
    """A module begins with a docstring."""
    modules = {path: nodes_of(path.read_text())[0] for path in SOURCES}
    assert [
        shown(path)
        for path, module in modules.items()
        if isinstance(module, ast.Module) and not ast.get_docstring(module)
    ] == []


def test_a_test_that_hangs_fails_with_its_name(tmp_path: Path) -> None:
    hanging = tmp_path / "test_hanging.py"
    hanging.write_text("import time\ndef test_it() -> None:\n    time.sleep(3600)\n")
    options = ["-c", str(ROOT / "pyproject.toml"), "-o", "timeout=1", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"--rootdir={tmp_path}", str(hanging)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "FAILED test_hanging.py::test_it" in ended.stdout, ended.stdout + ended.stderr


def test_every_test_has_a_bound(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) > 0


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
    body = "\n".join("    x = 1" for _ in range(CLASS_LINES_MAX))
    assert list(long_functions(f"class C:\n{body}")) == [f"C has {CLASS_LINES_MAX + 1} lines"]
    for source in ("tp = 1", "def f(cfg): ...", "class KafkaMgr: ...", "def send_msg(): ..."):
        assert list(banned_names(source)), source
    for source in ("spark.conf = 1", "x = message.ts", "timestamps = 1", "f(msg=1)"):
        assert not list(banned_names(source)), source
    assert BANNED_TEXT.search("# TODO: later") and not BANNED_TEXT.search("todo lists")
