"""What deduplicating costs a worker, by part: CPU time of blocks of the benchmark's orders.

    python -m tests.worker.claim_cost [--rounds 5] [--again 0.05] [--store redis://host:6379/0]

Each round is a block that nobody has claimed, with a share of rows that came in the block before.
CPU time is of this process, with the threads of its engine; that of a Redis is its own.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sluice.claims.port import ClaimStore
from sluice.claims.stores import StoreAccess, open_store
from sluice.core.claims import CLAIMS, Deduplicate
from sluice.core.ledger import Background
from sluice.core.load_spec import Column, TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.keys.hashing import RowKeys
from sluice.decode.keys.kept import kept
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import Origin, Origins
from sluice.testbed.local.orders import Orders, Shape
from sluice.testbed.simulate.planting import patched
from sluice.worker import claiming
from sluice.worker.assignment import Assignment
from sluice.worker.bundle import Bundle
from tests.worker.test_claiming import a_table

ROWS = 250_000
#: The parts of `claiming.claim`, by where it calls them; what is left is its own.
PARTS = ("keys", "owners", "store", "left out")


def order_table() -> TableSpec:
    columns = [Column(*text.split(" ", 1)) for text in Shape().definitions]  # type: ignore[arg-type]
    key = Deduplicate(("order_id",), 86_400, "p/d.one")
    whole = a_table()
    return a_table(columns=(*columns, *whole.columns[2:]), deduplicate=key, require=("order_id",))


class Cost:
    """Of one round, in seconds of CPU time by part."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}

    def measured(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*parts: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return call(*parts, **named)
            finally:
                taken = time.process_time() - began
                self.parts[name] = self.parts.get(name, 0.0) + taken

        return counted


def round_of(
    table: TableSpec, decoder: Any, keys: RowKeys, store: ClaimStore, messages: list[bytes], at: int
) -> dict[str, float]:
    cost, source = Cost(), TopicPartition("t", 0)
    record = Record(Kind.INTEND, 1, 1, at, at + len(messages), "me", 0, "Zm9vYmFyYmE", "d", 1, 1)
    assignment = Assignment(
        Range(source, at, at + len(messages)),
        record,
        Background(since_ms=time.time_ns() // 1_000_000, servers={CLAIMS: store.run()}),
        sent_at_ms=0,
        is_first=True,
    )
    bundle = Bundle((assignment,))
    origins = Origins((Origin(source, "p/dc1/Zm9vYmFyYmE/one/0"),))
    buffer = MessageBuffer(framing_of(table))
    buffer.add(messages, range(at, at + len(messages)))
    decoded = cost.measured("decode", decoder.decode)(buffer, origins)
    with patched((claiming, "kept", cost.measured("left out", kept))):
        whole = cost.measured("whole", claiming.claim)
        whole(
            _Measured(store, cost, {"claim": "store", "run": "store"}),
            _Measured(bundle, cost, {"owners": "owners"}),
            table,
            _Measured(keys, cost, {"of": "keys"}),
            *(decoded, origins, 7),
        )
    parts = cost.parts
    parts["rest"] = parts["whole"] - sum(parts.get(name, 0.0) for name in PARTS)
    return {name: 1e6 * seconds / len(messages) for name, seconds in parts.items()}


class _Measured:
    """Stands before an object, and measures some of its calls."""

    def __init__(self, real: Any, cost: Cost, names: dict[str, str]) -> None:
        self._real, self._cost, self._names = real, cost, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        part = self._names.get(name)
        return found if part is None else self._cost.measured(part, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--again", type=float, default=0.0)
    parser.add_argument("--store", default="")
    asked = parser.parse_args()
    table, orders = order_table(), Orders(1)
    list(orders.take(1))  # an order_id of 0 looks as if it were absent
    decoder = make_decoder(table)
    keys, dice = RowKeys(table, decoder.columns), np.random.default_rng(1)
    before: list[bytes] = []
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(StoreAccess(asked.store or f"local:{Path(folder) / 'claims'}"))
        for number in range(asked.rounds + 1):
            messages = [event for chunk in orders.take(ROWS) for event in chunk]
            again = int(ROWS * asked.again) if before else 0
            for place in dice.choice(ROWS, again, replace=False).tolist():
                messages[place] = before[place]
            found = round_of(table, decoder, keys, store, messages, number * ROWS)
            rounds += [found] if number else []  # the first one makes the engine's session
            before = messages
        store.close()
    for name in ("decode", *PARTS, "rest", "whole"):
        median = statistics.median(each.get(name, 0.0) for each in rounds)
        print(f"{name:>10}  {median:6.3f} µs of CPU time a row")


if __name__ == "__main__":
    main()
