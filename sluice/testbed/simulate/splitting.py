"""A block's rows over several shards, by the offsets of their messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sluice.core.errors import SluiceError
from sluice.core.load_spec import TableSpec
from sluice.core.receipts import Receipt
from sluice.testbed.simulate.decoding import DecodedRows, divisor_of, with_rows
from sluice.testbed.simulate.world import World


class OffsetSplitter:
    """Stands for the real `Splitter`."""

    def __init__(self, table: TableSpec) -> None:
        self._table = table

    def split(
        self, decoded: DecodedRows, *, with_offsets: bool = False
    ) -> list[tuple[str, DecodedRows]]:
        """The shards that rows go to, by name, each with its block."""
        shards, divisor = self._table.shards, divisor_of(self._table)
        if len(shards) == 1:
            return [(shards[0], decoded)]
        parts = []
        for place, shard in enumerate(shards):
            rows = tuple(row for row in decoded.native.rows if row.offset % len(shards) == place)
            if rows:
                parts.append((shard, with_rows(decoded, rows, divisor)))
        return parts


def sending_parallel(world: World) -> Callable[..., tuple[list[Receipt], list[SluiceError]]]:
    """Stands for `sluice.worker.parallel.send_parallel`: one actor for each shard."""

    def send_parallel(
        parts: list[tuple[str, Any]], send: Callable[[str, Any], Receipt]
    ) -> tuple[list[Receipt], list[SluiceError]]:
        order = [shard for shard, _ in reversed(parts)]
        receipts: dict[str, Receipt] = {}
        errors: dict[str, Exception] = {}

        def send_one(shard: str, block: Any) -> None:
            try:
                receipts[shard] = send(shard, block)
            except Exception as error:
                errors[shard] = error

        while parts:
            shard, block = parts.pop()
            world.scheduler.spawn(world.process, partial(send_one, shard, block))
        pause_ms = 5
        while len(receipts) + len(errors) < len(order):
            world.sleep(pause_ms)
            pause_ms = min(2 * pause_ms, 1_000)
        failed: list[SluiceError] = []
        for shard in order:
            why = errors.get(shard)
            if isinstance(why, SluiceError):
                failed.append(why)
            elif why is not None:
                raise why
        return [receipts[shard] for shard in order if shard in receipts], failed

    return send_parallel
