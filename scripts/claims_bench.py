"""What claims cost in a store: seconds and CPU of the client for each call, bytes a claim.

python scripts/claims_bench.py redis://127.0.0.1:6379/0 --fill 1000000 10000000
The store should be empty and nobody else's: nothing of it is dropped at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.claims.stores import StoreAccess, open_store
from sluice.core.claims import KEY_BYTES, OWNER_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--password", default="")
    parser.add_argument("--ca-file", default="")
    parser.add_argument("--keys", type=int, default=250_000, help="of one call")
    parser.add_argument("--fill", type=int, nargs="*", default=[0, 1_000_000], help="live claims")
    parser.add_argument("--calls", type=int, default=5, help="the median of so many is told")
    options = parser.parse_args()
    store = open_store(StoreAccess(options.url, options.password, options.ca_file))
    drawn = np.random.default_rng()
    print(f"run {store.run()}; at first {store.facts()}")
    began, now = store.facts().used_bytes, int(time.time())
    live = 0

    def claim(keys: Keys) -> Owners:
        return store.claim(keys, owners, now + 86_400, now)

    def told(what: str, work: Callable[[Keys], object], blocks: list[Keys]) -> None:
        seconds, processor = [], []
        for keys in blocks:
            at, spent = time.perf_counter(), time.process_time()
            work(keys)
            seconds.append(time.perf_counter() - at)
            processor.append((time.process_time() - spent) / len(keys) * 1e6)
        print(
            f"{live:>12,} live, {what:<9} {statistics.median(seconds):.3f} s "
            f"({min(seconds):.3f} to {max(seconds):.3f}), client "
            f"{statistics.median(processor):.2f} µs CPU a key",
            flush=True,
        )

    def block() -> Keys:
        return drawn.integers(0, 256, (options.keys, KEY_BYTES), np.uint8)

    owners = drawn.integers(0, 256, (options.keys, OWNER_BYTES), np.uint8)
    for fill in options.fill:
        while live < fill:
            claim(block())
            live += options.keys
        blocks = [block() for _ in range(options.calls)]
        told("new", claim, blocks)
        live += options.keys * options.calls
        told("repeated", claim, blocks)
        used = store.facts().used_bytes - began
        print(f"{live:>12,} live, {used / live:.1f} bytes a claim", flush=True)
    told("released", lambda keys: store.release(keys, owners), blocks)


if __name__ == "__main__":
    main()
