"""What claims cost in a store: seconds and CPU of the client for each call, bytes a claim, and of a
Redis its own CPU, with that of the processes that write its log anew.

python scripts/claims_bench.py redis://127.0.0.1:6379/0 --fill 1000000 10000000
The store should be empty and nobody else's: nothing of it is dropped at the end.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from sluice.claims.masters import address_of, connect, information
from sluice.claims.owners import Keys, Owners, owners_of
from sluice.claims.stores import StoreAccess, open_store
from sluice.core.claims import KEY_BYTES

#: An owner is a message of one of so many partitions.
PARTITIONS = 16
TOPIC = "Zm9vYmFyYmE"


class Clock:
    """CPU that the servers of a store have used, and their processes in the background."""

    def __init__(self, access: StoreAccess) -> None:
        self._access = access

    def read(self) -> tuple[float, float]:
        if self._access.is_local:
            return 0.0, 0.0
        masters = connect(address_of(self._access.url, self._access.password, self._access.ca_file))
        used = [information(connection, b"cpu") for connection in masters.connections]
        masters.close()
        own, children = (
            sum(float(each[f"used_cpu_{kind}{whose}"]) for each in used for kind in ("user", "sys"))
            for whose in ("", "_children")
        )
        return own, children


def owners_from(first: int, count: int) -> Owners:
    """The messages of a block: stretches of offsets of each partition."""
    each = -(-count // PARTITIONS)
    numbers = np.arange(count) // each
    offsets = (first // PARTITIONS + np.arange(count) % each).astype(np.uint64)
    rows = np.zeros(count, np.uint32)
    return owners_of([TOPIC] * PARTITIONS, range(PARTITIONS), numbers, 7, offsets, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--password", default="")
    parser.add_argument("--ca-file", default="")
    parser.add_argument("--keys", type=int, default=250_000, help="of one call")
    parser.add_argument("--fill", type=int, nargs="*", default=[0, 1_000_000], help="live claims")
    parser.add_argument("--calls", type=int, default=5, help="the median of so many is told")
    options = parser.parse_args()
    access = StoreAccess(options.url, options.password, options.ca_file)
    store, clock = open_store(access), Clock(access)
    drawn = np.random.default_rng()
    print(f"run {store.run()}; at first {store.facts()}")
    began, now = store.facts().used_bytes, int(time.time())
    live = 0

    def claim(block: tuple[Keys, Owners]) -> None:
        assert (store.claim(*block, now + 86_400, now) == block[1]).all()

    def told(what: str, work: Callable[[tuple[Keys, Owners]], object]) -> None:
        seconds, processor, before = [], [], clock.read()[0]
        for block in blocks:
            at, spent = time.perf_counter(), time.process_time()
            work(block)
            seconds.append(time.perf_counter() - at)
            processor.append((time.process_time() - spent) / options.keys * 1e6)
        of_server = (clock.read()[0] - before) / len(blocks) / options.keys * 1e6
        print(
            f"{live:>12,} live, {what:<9} {statistics.median(seconds):.3f} s "
            f"({min(seconds):.3f} to {max(seconds):.3f}), client "
            f"{statistics.median(processor):.2f} µs CPU a key, server {of_server:.2f}",
            flush=True,
        )

    def block() -> tuple[Keys, Owners]:
        nonlocal made
        made += options.keys
        keys = drawn.integers(0, 256, (options.keys, KEY_BYTES), np.uint8)
        return keys, owners_from(made, options.keys)

    made = 0
    for fill in options.fill:
        before, added = clock.read(), 0
        while live + added < fill:
            claim(block())
            added += options.keys
        live += added
        if added:
            own, children = (
                (now - then) / added * 1e6 for now, then in zip(clock.read(), before, strict=True)
            )
            print(
                f"{live:>12,} live, filled: server {own:.2f} µs CPU a key, children {children:.2f}"
            )
        blocks = [block() for _ in range(options.calls)]
        told("new", claim)
        live += options.keys * options.calls
        told("repeated", claim)
        used = store.facts().used_bytes - began
        print(f"{live:>12,} live, {used / live:.1f} bytes a claim", flush=True)
    told("released", lambda block: store.release(*block))


if __name__ == "__main__":
    main()
