"""Mutated messages of every format: `python -m tests.decode.fuzz --mutants N --seed S`.

Each format runs in a process of its own, so that a crash of the engine is seen, and said with the
line that repeats it. Exit status 1: something does not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time

from tests.decode.fuzz.attack import Attack, Tally
from tests.decode.fuzz.subjects import ALL, subjects_of

#: Messages of a block: few, so that each is looked at singly; and many.
_SIZES = (40, 400, 4000, 4000, 4000, 4000)
_FILE_SIZES = (16, 40)
_FAILURES_MAX = 5


def attack(table_format: str, mutants: int, seed: int) -> Tally:
    """So many mutants of a format, the same for the same seed."""
    chance = random.Random(f"{table_format} {seed}")
    tally = Tally()
    subjects = subjects_of(table_format)
    for number, subject in enumerate(subjects, 1):
        attacking = Attack(subject, chance, 10 if subject.by_file else 200)
        enough = mutants * number // len(subjects)
        while tally.mutants < enough and len(tally.failures) < _FAILURES_MAX:
            sizes = _FILE_SIZES if subject.by_file else _SIZES
            size = min(chance.choice(sizes), 2 + (enough - tally.mutants) * 4 // 3)
            attacking.batch(size, tally)
            print(f"{tally.mutants} of {subject.text.rows}", flush=True)
    return tally


def _one_format(table_format: str, mutants: int, seed: int) -> int:
    tally = attack(table_format, mutants, seed)
    for failure in tally.failures:
        print(json.dumps({"failure": failure}), flush=True)
    became = dict(sorted(tally.became.items()))
    print(json.dumps({"mutants": tally.mutants, "became": became, "alone": tally.alone}))
    return 1 if tally.failures else 0


def _all(formats: list[str], mutants: int, seed: int) -> int:
    failed = 0
    for table_format in formats:
        command = [sys.executable, "-m", "tests.decode.fuzz", "--inside"]
        command += ["--format", table_format, "--mutants", str(mutants), "--seed", str(seed)]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        lines = done.stdout.splitlines()
        report = json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}
        tried = report.get("mutants", 0)
        words = f"{tried} mutants in {seconds:.0f} s ({tried / seconds:.0f}/s), {report}"
        print(f"{table_format}: {words if report else 'no report'}", flush=True)
        for line in lines[:-1]:
            if line.startswith("{"):
                print(f"  FAILED {json.loads(line)['failure']}", flush=True)
        if done.returncode:
            failed += 1
            last = lines[-2:] if lines else []
            print(f"  status {done.returncode} after {last}; again: {' '.join(command[1:])}")
            if not report:
                print(done.stderr[-3000:], flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.decode.fuzz", description=__doc__)
    parser.add_argument("--mutants", type=int, default=10_000, help="of each format")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", action="append", choices=ALL, help="only this; may be repeated")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    formats = arguments.format or list(ALL)
    if arguments.inside:
        return _one_format(formats[0], arguments.mutants, arguments.seed)
    return _all(formats, arguments.mutants, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
