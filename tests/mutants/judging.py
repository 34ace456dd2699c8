"""One mutant at a time: what notices it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.mutants.mutations import Mutant
from tests.mutants.trees import Tree

#: Folders whose tests are about this code. Those of a whole driver come last, if at all.
FOLDERS = (
    "tests/core",
    "tests/driver",
    "tests/spark",
    "tests/worker",
    "tests/clickhouse",
    "tests/kafka",
    "tests/locks",
)
#: A test that takes longer by itself is not run.
SECONDS_OF_TEST_MAX = 20.0
#: What the tests of one mutant may take more than they take without one.
SECONDS_MORE = 90.0

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Map:
    """What calls which function: tests with their seconds, seeds of the simulator."""

    tests: dict[str, dict[str, Any]]
    seeds: dict[str, list[int]]

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Tests that call the function, the quickest first; and those that need a server."""
        found = sorted(
            (test["seconds"], name, test["server"])
            for name, test in self.tests.items()
            if test["seconds"] <= SECONDS_OF_TEST_MAX
            and (_calls(test["calls"], mutant) or _is_about(name, mutant))
        )
        plain = [name for _, name, server in found if not server]
        return plain, [name for _, name, server in found if server]

    def seeds_of(self, mutant: Mutant) -> list[int]:
        """Seeds that call the function; the others go as they go without the mutant."""
        found = {s for name, seeds in self.seeds.items() if _at(name, mutant) for s in seeds}
        if not found and not self.tests_of(mutant)[0]:
            found = {s for seeds in self.seeds.values() for s in seeds}  # newer than the map
        return sorted(found)


@dataclass(slots=True)
class Verdict:
    """What noticed a mutant."""

    key: str
    line: int
    test: str | None = None
    simulator: str | None = None
    seconds: float = 0.0
    looked: list[str] = field(default_factory=list)


def _at(name: str, mutant: Mutant) -> bool:
    path, _, function = name.partition(" ")
    # What a module or a class says is used by all of its functions.
    above = not mutant.function or function.startswith(f"{mutant.function}.")
    return path == mutant.path and (above or function == mutant.function)


def _is_about(test: str, mutant: Mutant) -> bool:
    """Whether a test is in the file about a module, whose constants it may look at."""
    folder, _, module = mutant.path.removesuffix(".py").rpartition("/")
    is_above = not mutant.function or (mutant.function[0].isupper() and "." not in mutant.function)
    return is_above and test.startswith(f"tests/{folder}/test_{module}.py::")


def _calls(names: Iterable[str], mutant: Mutant) -> bool:
    return any(_at(name, mutant) for name in names)


def by_tests(tree: Tree, tests: list[str], reached: Map) -> str | None:
    """The first test that fails; None if all pass."""
    if not tests:
        return None
    usual = sum(reached.tests[name]["seconds"] for name in tests)
    plugins = ["-p", "no:cacheprovider", "-p", "no:anyio", "-p", "no:xdist"]
    options = ["-x", "-q", "--no-header", "--tb=line", *plugins]
    ended = tree.python("pytest", [*options, *tests], 3 * usual + SECONDS_MORE)
    if ended.status == 0:
        return None
    if ended.status is None:
        return "they do not end"
    found = _FAILED.search(ended.output)
    return found[1] if found else f"status {ended.status}: {ended.output[-200:]}"


def by_simulator(
    tree: Tree, seeds: list[int], steps: int, seconds: float
) -> tuple[str | None, str]:
    """What the simulator says; and how far it came."""
    if not seeds:
        return None, "no seed calls it"
    arguments = [str(steps), *map(str, seeds)]
    ended = tree.python("tests.mutants.simulated", arguments, seconds)
    if ended.status is None:
        return None, f"not done after {seconds:.0f} s"
    try:
        answer = json.loads(ended.output.splitlines()[-1])
    except (IndexError, ValueError):
        return f"ended with status {ended.status}: {ended.output[-200:]}", ""
    if answer["caught"]:
        where = f"seed {answer['seed']}" if "seed" in answer else "error"
        return f"{where}, {answer['ran']} run: {answer['why']}", ""
    return None, f"{answer['ran']} seeds"


def judge(
    tree: Tree, mutant: Mutant, source: bytes, reached: Map, steps: int, parts: set[str]
) -> Verdict:
    """Both, each by itself.

    :param parts: which to ask: "tests", "servers", "simulator".
    """
    began = time.monotonic()
    verdict = Verdict(mutant.key, mutant.line)
    tree.breaks(mutant, source)
    try:
        plain, with_server = reached.tests_of(mutant)
        if "tests" in parts:
            verdict.test = by_tests(tree, plain, reached)
            verdict.looked.append(f"{len(plain)} tests")
        if "simulator" in parts:
            seeds = reached.seeds_of(mutant)
            verdict.simulator, far = by_simulator(tree, seeds, steps, 600)
            if far:
                verdict.looked.append(far)
        if "servers" in parts and verdict.test is None and verdict.simulator is None:
            verdict.test = by_tests(tree, with_server, reached)
            verdict.looked.append(f"{len(with_server)} tests with servers")
    finally:
        tree.fix(mutant, source)
    verdict.seconds = round(time.monotonic() - began, 1)
    return verdict
