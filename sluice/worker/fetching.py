"""The messages of a bundle, or of a range alone, into the buffers of its table entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sluice.core.bundles import place_of
from sluice.core.errors import SluiceError
from sluice.core.receipts import BundleTooHeavy, TooHeavy
from sluice.kafka.reader import Deliver, RangeReader, ReadResult
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.routing import Router
from sluice.worker.stage_clocks import StageClocks
from sluice.worker.worker_cache import WorkerCache

if TYPE_CHECKING:
    from sluice.kafka.wire.reader import DeliverText


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read.

    :param results: of each member, in their order; fewer if it is too heavy.
    :param too_heavy: nobody inserts it; None: it is within the limit.
    :param unread: the first member that could not be read, and why.
    """

    results: tuple[ReadResult, ...]
    too_heavy: TooHeavy | BundleTooHeavy | None = None
    unread: tuple[int, SluiceError] | None = None

    @property
    def messages(self) -> int:
        """Of all members, tombstones included."""
        return sum(result.messages for result in self.results)

    @property
    def bytes(self) -> int:
        """Of their keys and values."""
        return sum(result.bytes for result in self.results)


def fetch(
    cache: WorkerCache,
    environment: TaskEnvironment,
    bundle: Bundle,
    router: Router,
    clocks: StageClocks,
) -> Reading:
    """Read the members one after the other, so that their messages stand in the block's order."""
    results: list[ReadResult] = []
    total = 0
    for number, member in enumerate(bundle.members):
        left = bundle.bytes_max - total
        try:
            result = _fetch_member(cache, environment, member, number, max(left, 0), router, clocks)
        except SluiceError as error:
            return Reading(tuple(results), unread=(number, error))
        results.append(result)
        total += result.bytes
        if bundle.is_alone and result.heavy_at is not None:
            return Reading(tuple(results), TooHeavy(result.heavy_at, total))
        if not bundle.is_alone and (result.heavy_at is not None or total > bundle.bytes_max):
            return Reading(tuple(results), BundleTooHeavy(total))
    return Reading(tuple(results))


def _fetch_member(
    cache: WorkerCache,
    environment: TaskEnvironment,
    member: Assignment,
    number: int,
    bytes_max: int,
    router: Router,
    clocks: StageClocks,
) -> ReadResult:
    """Read one range.

    :param number: of the member.
    """
    reader = cache.reader(environment, looks=router.looks)
    block_range, epoch = member.block_range, member.record.epoch
    view = router.only_view
    if view is None:
        deliver = _moved(clocks.checking(router.deliver), number)
        if isinstance(reader, RangeReader):
            look = router.look if router.looks else None
            return reader.read(block_range, bytes_max, deliver, look, epoch)
        return reader.read(block_range, bytes_max, deliver, epoch)
    if isinstance(reader, RangeReader):
        add = _moved(clocks.checking(view.buffer.add), number)
        return reader.read(block_range, bytes_max, add, None, epoch)
    add_text = _moved_text(clocks.checking(view.buffer.add_text), number)
    return reader.read_text(block_range, bytes_max, add_text, epoch)


def _moved(deliver: Deliver, number: int) -> Deliver:
    """Deliver with places instead of offsets."""
    if number == 0:
        return deliver
    base = place_of(number, 0)

    def moved(values: list[bytes], offsets: Sequence[int]) -> None:
        if isinstance(offsets, range):
            deliver(values, range(offsets.start + base, offsets.stop + base))
        else:
            deliver(values, [offset + base for offset in offsets])

    return moved


def _moved_text(deliver: DeliverText, number: int) -> DeliverText:
    """As `_moved`."""
    if number == 0:
        return deliver
    base = np.uint64(place_of(number, 0))

    def moved(
        text: memoryview, offsets: NDArray[np.uint64], ends: NDArray[np.int64], may_be_long: bool
    ) -> None:
        deliver(text, offsets + base, ends, may_be_long)

    return moved
