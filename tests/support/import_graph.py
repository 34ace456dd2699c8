"""Which module of the package imports which, read from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

#: Each module's name, and those of the modules that it imports.
Graph = Mapping[str, frozenset[str]]


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Everything that a source consists of, the module first."""
    return tuple(ast.walk(ast.parse(source)))


def module_name(path: Path, package: Path) -> str:
    """`sluice.core.ranges` for its file; a folder's `__init__.py` has the folder's name."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def modules_of(package: Path) -> dict[str, Path]:
    """Every module of a package with its file."""
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


@cache
def import_graph(package: Path, *, types: bool = False) -> Graph:
    """Who imports whom within a package, imports inside functions included.

    Importing `a.b.c` runs `a` and `a.b` first, but those are not in the graph: a folder's
    `__init__.py` counts where it is imported by its name.

    :param types: also what is imported only for the type checker.
    """
    modules = modules_of(package)
    return {
        name: frozenset(_imported(path, name, modules, types)) - {name}
        for name, path in modules.items()
    }


def reached(graph: Graph, roots: Collection[str], without: Collection[str] = ()) -> set[str]:
    """The roots and all that they import, directly or not, with the folders' own modules.

    :param without: modules that are passed by.
    """
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        module = waiting.pop()
        if module in found or module in without or module not in graph:
            continue
        found.add(module)
        waiting.extend(graph[module])
        waiting.append(module.rpartition(".")[0])
    return found


def loader_modules(package: Path) -> set[str]:
    """What `sluice run` and its workers can reach.

    The command line hands over to other commands as well; those are passed by.
    """
    graph, files = import_graph(package), modules_of(package)
    commands = {
        module
        for module in graph["sluice.cli.main"]
        if module.startswith("sluice.cli.")
        and re.search(r"\n@(command|click\.group|click\.command)\(", files[module].read_text())
    }
    others = commands - reached(graph, ["sluice.cli.run"])
    return reached(graph, ["sluice.cli.main", "sluice.cli.run"], without=others)


def circles(graph: Graph) -> list[list[str]]:
    """The largest groups of modules that all reach each other, sorted."""
    onward = {module: reached_strictly(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in onward[module] if module in onward[other]))
        for module in graph
        if module in onward[module]
    }
    return sorted(list(group) for group in groups)


def reached_strictly(graph: Graph, module: str) -> set[str]:
    """What a module reaches by at least one import; itself only if it stands in a circle."""
    found: set[str] = set()
    waiting = list(graph[module])
    while waiting:
        other = waiting.pop()
        if other not in found and other in graph:
            found.add(other)
            waiting.extend(graph[other])
    return found


def _imported(path: Path, name: str, modules: Mapping[str, Path], types: bool) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _walk(nodes_of(path.read_text())[0], types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")
                base = ".".join([*parent[: len(parent) - node.level + 1], *filter(None, [base])])
            for alias in node.names:
                if f"{base}.{alias.name}" in modules:
                    yield f"{base}.{alias.name}"
                elif base in modules:
                    yield base


def _walk(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        yield node
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from _walk(other, types)
        else:
            yield from _walk(node, types)
