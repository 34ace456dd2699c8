"""The messages of a bundle, or of a range alone, into the buffers of its table entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.bundles import place_of
from sluice.core.errors import SluiceError
from sluice.core.receipts import BundleTooHeavy, TooHeavy
from sluice.kafka.errors import UnreadRangeError
from sluice.kafka.reader import RangeReader, ReadResult, Wanted
from sluice.kafka.readers import Reader
from sluice.worker.assignment import TaskEnvironment
from sluice.worker.bundle import Bundle
from sluice.worker.routing import Router
from sluice.worker.stage_clocks import StageClocks
from sluice.worker.worker_cache import WorkerCache


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read.

    :param results: of each member, in their order; fewer if it is too heavy, none if one is unread.
    :param too_heavy: nobody inserts it; None: it is within the limit.
    :param unread: a member that could not be read, and why.
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
    """Read the members in their order, which is the block's, with places instead of offsets."""
    wanted = [
        Wanted(member.block_range, member.record.epoch, place_of(number, 0))
        for number, member in enumerate(bundle.members)
    ]
    reader = cache.reader(environment, looks=router.looks)
    try:
        results = _read(reader, wanted, bundle, router, clocks)
    except UnreadRangeError as unread:
        return Reading((), unread=(unread.number, unread.reason))
    heavy_at, total = results[-1].heavy_at, sum(result.bytes for result in results)
    if bundle.is_alone:
        return Reading(results, None if heavy_at is None else TooHeavy(heavy_at, total))
    # One message is always allowed, but not within a bundle: it is loaded alone.
    is_heavy = heavy_at is not None or total > bundle.bytes_max
    return Reading(results, BundleTooHeavy(total) if is_heavy else None)


def _read(
    reader: Reader, wanted: Sequence[Wanted], bundle: Bundle, router: Router, clocks: StageClocks
) -> tuple[ReadResult, ...]:
    view, bytes_max = router.only_view, bundle.bytes_max
    if isinstance(reader, RangeReader):
        deliver = clocks.checking(view.buffer.add if view else router.deliver)
        look = router.look if router.looks else None
        return reader.read_ranges(
            wanted, bytes_max, deliver, look, tombstones=router.takes_tombstones
        )
    if view is None:
        return reader.read_ranges(wanted, bytes_max, clocks.checking(router.deliver))
    return reader.read_text(wanted, bytes_max, clocks.checking(view.buffer.add_text))
