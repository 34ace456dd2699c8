"""`python -m tests.mutants`: breaks the code in many small ways, and says what notices each.

    make mutants MUTANTS=300 SEED=1

For each mutant the tests that call the changed function are run, and by itself the simulator, up
to the first broken promise. What was judged is kept in `.local/mutants/results.jsonl` and is not
judged again, so a run may be stopped and begun again; `--again` judges those that survived
the simulator, the tests or both. Mutants that change nothing anybody could see stand, with the
reason, in `equivalent.toml`; they are not drawn.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutants.judging import FOLDERS, Map, Verdict, judge
from tests.mutants.mutations import Mutant, every
from tests.mutants.scope import ROOT, sources
from tests.mutants.trees import Tree

KEPT = ROOT / ".local" / "mutants"
EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def parsed() -> argparse.Namespace:
    """The arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--mutants", type=int, default=300, help="how many are drawn")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--seeds", type=int, default=300, help="of the simulator, from 1")
    parser.add_argument("--steps", type=int, default=2500, help="of each seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop then; 0: when all is done")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--kept", type=Path, default=KEPT, help="folder of map and results")
    parser.add_argument(
        "--parts", default="tests,simulator,servers", help="what is asked, of these three"
    )
    parser.add_argument(
        "--again", choices=("simulator", "both", "all"), help="judge again what survived"
    )
    parser.add_argument("--map", action="store_true", help="find out anew what calls what")
    parser.add_argument("--list", action="store_true", help="only list what would be drawn")
    return parser.parse_args()


def equivalents() -> dict[str, str]:
    """Why each of the known mutants changes nothing."""
    with EQUIVALENT.open("rb") as file:
        return {item["mutant"]: item["why"] for item in tomllib.load(file)["equivalent"]}


def drawn(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """A sample that stays nearly the same when code around it changes."""

    def place(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()

    return sorted(mutants, key=place)[:count]


def read_map(options: argparse.Namespace) -> Map:
    """What calls what: found out once in some minutes, and again of tests that have changed."""
    tests, seeds = options.kept / "tests.json", options.kept / f"seeds-{options.steps}.json"
    digests = options.kept / "digests.json"
    known = {} if options.map or not tests.exists() else json.loads(tests.read_text())
    before = json.loads(digests.read_text()) if known and digests.exists() else {}
    now = _digests()
    changed = sorted(name for name in now if now[name] != before.get(name))
    if known and options.parts == "simulator":
        changed = []
    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as folder:
        tree = Tree(Path(folder) / "map")
        if changed:
            print(f"what the tests of {len(changed)} files call", file=sys.stderr)
            fresh = tree.folder / "tests.json"
            arguments = ["-q", "-p", "tests.mutants.reached", *changed]
            ended = tree.python("pytest", arguments, 3600, REACHED=str(fresh))
            print(ended.output[-600:], file=sys.stderr)
            known = {n: test for n, test in known.items() if n.partition("::")[0] in now}
            known = {n: t for n, t in known.items() if n.partition("::")[0] not in changed}
            tests.write_text(json.dumps(known | json.loads(fresh.read_text())))
            digests.write_text(json.dumps(now))
        if options.map or not seeds.exists():
            print("what each seed of the simulator calls", file=sys.stderr)
            figures = [str(options.seeds), str(options.steps), str(seeds)]
            ended = tree.python("tests.mutants.reached", figures, 3600)
            print(ended.output[-600:], file=sys.stderr)
        tree.close()
    calling = json.loads(seeds.read_text())
    few = {name: [s for s in found if s <= options.seeds] for name, found in calling.items()}
    return Map(json.loads(tests.read_text()), few)


def _digests() -> dict[str, str]:
    """Of each file of tests."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in files
    }


def results(path: Path) -> dict[str, dict[str, Any]]:
    """The last verdict of each mutant that was judged."""
    if not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {verdict["key"]: verdict for verdict in found}


def is_open(kept: dict[str, Any] | None, again: str | None) -> bool:
    """Whether a mutant is still to be judged."""
    if kept is None or again == "all":
        return True
    survived_both = kept["test"] is None and kept["simulator"] is None
    return (again == "simulator" and kept["simulator"] is None) or (
        again == "both" and survived_both
    )


def run(options: argparse.Namespace, mutants: list[Mutant], texts: dict[str, bytes]) -> None:
    """Judge what is open, in several trees side by side; each verdict is kept at once."""
    path = options.kept / "results.jsonl"
    kept = results(path)
    todo = [mutant for mutant in mutants if is_open(kept.get(mutant.key), options.again)]
    reached = read_map(options)
    ends_at = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    lock = threading.Lock()
    trees: SimpleQueue[Tree] = SimpleQueue()
    parts = set(options.parts.split(","))

    def one(mutant: Mutant) -> None:
        if time.monotonic() > ends_at:
            return
        tree = trees.get()
        try:
            verdict = judge(tree, mutant, texts[mutant.path], reached, options.steps, parts)
        finally:
            trees.put(tree)
        before = kept.get(mutant.key)
        if before and options.again != "all":
            verdict.test = verdict.test or before["test"]
            verdict.simulator = verdict.simulator or before["simulator"]
        with lock, path.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")
            print(shown(verdict), flush=True)

    with tempfile.TemporaryDirectory(prefix="sluice-mutants-") as folder:
        for number in range(options.processes):
            tree = Tree(Path(folder) / f"tree{number}")
            package = tree.folder / "sluice"
            if any((package / path).read_bytes() != text for path, text in texts.items()):
                raise SystemExit("the checkout changed meanwhile: begin again")
            trees.put(tree)
        with ThreadPoolExecutor(options.processes) as pool:
            list(pool.map(one, todo))
        while not trees.empty():
            trees.get().close()


def shown(verdict: Verdict) -> str:
    """One line of a verdict."""
    simulator = verdict.simulator or "-"
    return (
        f"{verdict.seconds:6.1f} s  {verdict.key[:150]} (line {verdict.line})\n"
        f"          simulator: {simulator[:120]}\n          test: {verdict.test or '-'} "
        f"({', '.join(verdict.looked)})"
    )


def report(options: argparse.Namespace, mutants: list[Mutant], known: dict[str, str]) -> int:
    """The rates, and what survived; 1 if they are too low."""
    judged = results(options.kept / "results.jsonl")
    here = [judged[mutant.key] for mutant in mutants if mutant.key in judged]
    if not here:
        return 1
    simulator = sum(verdict["simulator"] is not None for verdict in here)
    test = sum(verdict["test"] is not None for verdict in here)
    survivors = [v for v in here if v["simulator"] is None and v["test"] is None]
    both = len(here) - len(survivors)
    print(f"\n{len(here)} mutants of {len(mutants)} drawn; {len(known)} known as equivalent")
    print(f"caught by the simulator  {simulator:4} {simulator / len(here):6.1%}")
    print(f"caught by a test         {test:4} {test / len(here):6.1%}")
    print(f"caught by either         {both:4} {both / len(here):6.1%}")
    for verdict in survivors:
        print(f"survives: {verdict['key']} (line {verdict['line']})")
    return 0 if simulator >= 0.6 * len(here) and both >= 0.95 * len(here) else 1


def main() -> int:
    """Run and report."""
    options = parsed()
    options.kept.mkdir(parents=True, exist_ok=True)
    texts = {str(path.relative_to(ROOT / "sluice")): path.read_bytes() for path in sources()}
    known = equivalents()
    found = [mutant for mutant in every(texts) if mutant.key not in known]
    found = [mutant for mutant in found if options.only in mutant.key]
    mutants = drawn(found, options.mutants, options.seed)
    if options.list:
        for mutant in mutants:
            print(mutant.key)
        return 0
    print(f"{len(found)} mutants, {len(mutants)} drawn by seed {options.seed}", file=sys.stderr)
    run(options, mutants, texts)
    return report(options, mutants, known)


if __name__ == "__main__":
    sys.exit(main())
