"""Imports point downwards only. Imports inside functions and for types count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.import_graph import circles, import_graph, loader_modules, nodes_of, reached

PACKAGE = Path(__file__).parent.parent / "sluice"

_INSTRUMENTS = {"testbed.local", "testbed.simulate", "testbed.chaos"}

#: What each folder may import; its own modules it always may. The folders of `testbed` count
#: each for itself.
_LIBRARIES = {"producer", "core", "machine", "kafka", "decode", "clickhouse", "claims", "locks"}
_LOADER = _LIBRARIES | {"config", "worker", "spark", "driver"}
ALLOWED = {
    "producer": set[str](),
    "core": set[str](),
    "machine": {"core"},
    "config": {"core", "machine"},
    "kafka": {"producer", "core", "machine"},
    "decode": {"producer", "core", "machine", "claims"},
    "clickhouse": {"producer", "core", "machine"},
    "claims": {"core", "machine"},
    "locks": {"core", "machine"},
    "stream": {"core", "machine", "decode", "clickhouse"},
    "worker": _LIBRARIES,
    "spark": _LIBRARIES | {"worker"},
    "driver": _LIBRARIES | {"config", "spark", "worker"},
    "verify": _LOADER,
    "ops": _LOADER | {"verify"},
    "testbed": set[str](),
    "testbed.local": _LOADER | {"verify", "ops"},
    "testbed.simulate": _LOADER | {"verify", "ops", "testbed.local"},
    "testbed.chaos": _LOADER | {"verify", "ops", "testbed.local"},
    "prove": _LOADER | {"testbed.chaos"},
    "cli": _LOADER | {"verify", "ops", "prove"} | _INSTRUMENTS,
}

#: The same inside `decode`. What stands beside its folders chooses among their decoders.
DECODE = {
    "engine": set[str](),
    "messages": {"engine"},
    "text": {"engine", "messages"},
    "typed": {"engine", "messages"},
    "schema": {"engine", "messages"},
    "sequential": {"engine", "messages", "typed", "schema"},
    "envelope": {"engine", "messages", "typed", "schema"},
    "mapping": {"engine", "messages", "schema"},
    "sharding": {"engine", "messages"},
    "keys": {"engine", "messages"},
    "values": {"engine", "messages", "schema"},
}

#: All that `core` may use besides itself: nothing of it asks the machine (`machine` does), so that
#: what is decided there is decided alike whenever and wherever it is asked.
PURE = {
    *("__future__", "base64", "bisect", "collections", "dataclasses", "datetime", "difflib"),
    *("enum", "fnmatch", "functools", "hashlib", "heapq", "itertools", "json", "math"),
    *("operator", "re", "statistics", "typing", "urllib", "uuid", "zlib"),
}

#: What the driver knows of the worker: what it is sent, and why it did not insert.
OF_WORKER = {"sluice.worker.assignment", "sluice.worker.errors"}

#: Only these folders know these packages.
CONFINED = {
    "confluent_kafka": {"kafka"} | _INSTRUMENTS,
    "chdb": {"decode", "testbed.local", "testbed.simulate"},
    "pyspark": {"driver", "spark", "stream", "testbed.local"},
    "argparse": set[str](),
    "click": {"cli"},
    "rich": {"cli"},
    "starlette": {"ops"},
    "uvicorn": {"ops"},
    "kazoo": {"locks"},
    "pydantic": {"config", "ops"},
    "pydantic_core": {"config"},
}


def imports_of(source: str, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports.

    `from a import b` gives a.b, since b may be a module.
    """
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = module.split(".")[: -node.level]
                base = ".".join([*parent, base] if base else parent)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(source: str, folder: str, module: str) -> list[str]:
    """The imports of one module that the layers forbid."""
    found = []
    for line, name in imports_of(source, module):
        parts = name.split(".")
        where = f"{module}:{line} imports {name}"
        if parts[0] == "sluice":
            # `from sluice import __version__` is no layer
            target = folder_of(parts)
            if target in ALLOWED and target != folder and target not in ALLOWED[folder]:
                found.append(where)
        elif (folder == "core" and parts[0] not in PURE) or (
            parts[0] in CONFINED and folder not in CONFINED[parts[0]]
        ):
            found.append(where)
    return found


def folder_of(parts: Sequence[str]) -> str:
    """The layer that a module is of, of which these are the parts of the name."""
    inner = ".".join(parts[1:3])
    return inner if inner in ALLOWED else "".join(parts[1:2])


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_imports_point_downwards(folder: str) -> None:
    found = [
        violation
        for path in sorted(PACKAGE.rglob("*.py"))
        if folder_of(module_name(path).split(".")) == folder
        for violation in violations(path.read_text(), folder, module_name(path))
    ]
    assert found == []


def within_decode(source: str, folder: str, module: str) -> list[str]:
    """The imports of one module of a folder of `decode` that its layers forbid."""
    found = []
    for line, name in imports_of(source, module):
        parts = name.split(".")
        allowed = DECODE[folder] | {folder}
        if parts[:2] == ["sluice", "decode"] and parts[2] not in allowed:
            found.append(f"{module}:{line} imports {name}")
    return found


@pytest.mark.parametrize("folder", sorted(DECODE))
def test_decode_has_layers_of_its_own(folder: str) -> None:
    found = [
        violation
        for path in sorted((PACKAGE / "decode" / folder).rglob("*.py"))
        for violation in within_decode(path.read_text(), folder, module_name(path))
    ]
    assert found == []
    assert within_decode("from sluice.decode.formats import x", folder, "m") != []


def test_the_driver_knows_only_what_workers_are_sent_and_report() -> None:
    found = {
        (path.name, name)
        for path in sorted((PACKAGE / "driver").rglob("*.py"))
        for _, name in imports_of(path.read_text(), module_name(path))
        if name.startswith("sluice.worker") and name.rpartition(".")[0] not in OF_WORKER
    }
    assert found == set()


def test_every_folder_of_decode_has_its_layer() -> None:
    folders = {p.name for p in (PACKAGE / "decode").iterdir() if any(p.glob("*.py"))}
    assert folders == set(DECODE)


def test_every_folder_has_its_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if any(path.glob("*.py"))}
    instruments = [path for path in (PACKAGE / "testbed").iterdir() if any(path.glob("*.py"))]
    assert folders | {f"testbed.{path.name}" for path in instruments} <= set(ALLOWED)


def test_the_loader_never_imports_an_instrument() -> None:
    """Whatever `sluice run` and its workers can reach."""
    needed = loader_modules(PACKAGE)
    assert {"sluice.cli.run", "sluice.driver.loop", "sluice.worker.loading"} <= needed
    assert not {m for m in needed if m.startswith(("sluice.testbed", "sluice.prove"))}


def test_workers_never_import_the_configuration() -> None:
    """Nor what reads it: each of many worker processes would wait for that."""
    graph = import_graph(PACKAGE)
    needed = reached(graph, [name for name in graph if name.startswith("sluice.worker.")])
    assert not {name for name in needed if name.startswith("sluice.config")}


def test_no_module_imports_itself_through_others() -> None:
    """Not inside functions, and not for types either."""
    assert circles(import_graph(PACKAGE, types=True)) == []


def test_the_rule_has_no_circle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {folder for folder in ALLOWED if ALLOWED[folder] <= done} - done
        assert ready, f"a circle among {set(ALLOWED) - done}"
        done |= ready


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("core", "import numpy"),
        ("core", "import time"),
        ("core", "def f():\n    from sluice.config import load"),
        ("config", "from sluice.kafka.clients import make_admin"),
        ("kafka", "import sluice.decode.reader"),
        ("worker", "from sluice.config import Configuration"),
        ("driver", "from pydantic import ValidationError"),
        ("kafka", "from sluice import clickhouse"),
        ("kafka", "from ..decode import reader"),
        ("decode", "if TYPE_CHECKING:\n    from sluice.clickhouse.http import Server"),
        ("spark", "from sluice.testbed.local.broker import run_kafka"),
        ("driver", "from sluice.ops import doctor"),
        ("worker", "from sluice.driver.state import PartitionState"),
        ("worker", "from sluice.spark.jobs import SparkJobs"),
        ("spark", "from sluice.driver.loop import ConnectorLoop"),
        ("verify", "from sluice.ops import doctor"),
        ("ops", "from sluice.testbed.local import demo"),
        ("ops", "from sluice import testbed"),
        ("testbed.local", "from sluice.cli.main import main"),
        ("testbed.local", "from sluice.testbed.chaos.proxy import Proxy"),
        ("testbed.simulate", "from sluice.cli.main import main"),
        ("testbed.chaos", "from sluice.cli.main import main"),
        ("cli", "import pyspark.sql"),
        ("worker", "import click"),
        ("driver", "from rich.table import Table"),
        ("spark", "import confluent_kafka as ck"),
    ],
)
def test_the_rule_notices(folder: str, source: str) -> None:
    assert violations(source, folder, f"sluice.{folder}.module")


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("core", "import hashlib\nfrom sluice.core.errors import SluiceError"),
        ("kafka", "import confluent_kafka\nfrom sluice import __version__"),
        ("kafka", "from .errors import kafka_error"),
        ("spark", "from sluice.kafka import reader\nimport pyspark"),
        ("ops", "from sluice.verify.audit import audit"),
    ],
)
def test_the_rule_lets_pass(folder: str, source: str) -> None:
    assert violations(source, folder, f"sluice.{folder}.module") == []
