"""`python -m tests.mutants.simulated STEPS SEED…`: seeds up to the first broken promise.

Prints one line of JSON. What an error or a seed without an end breaks is caught, too.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
import traceback

#: An ordinary seed takes less than a second.
SECONDS_OF_SEED_MAX = 90


def main() -> None:
    """Run them."""
    began = time.monotonic()
    steps, seeds = int(sys.argv[1]), [int(seed) for seed in sys.argv[2:]]
    answer: dict[str, object] = {"caught": False, "seeds": len(seeds)}
    ran = 0
    try:
        from sluice.testbed.simulate.runs import run_seed

        for seed in seeds:
            faulthandler.dump_traceback_later(SECONDS_OF_SEED_MAX, exit=True)
            result = run_seed(seed, steps)
            ran += 1
            if result.violations:
                answer = {"caught": True, "seed": seed, "why": result.violations[0]}
                break
    except Exception:
        answer = {"caught": True, "why": traceback.format_exc()[-400:]}
    answer["ran"], answer["seconds"] = ran, round(time.monotonic() - began, 1)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
