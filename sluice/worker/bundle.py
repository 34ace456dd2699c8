"""What becomes one block for each table and shard: the ranges of a bundle, or one range alone;
and its messages, in the buffers of its table entries.

To a worker, a range alone is a bundle of one. What is said of the block is divided among the
members again, since each of them has a record, receipts and counts of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import Owners, owners_of
from sluice.core.bundles import Member, is_whole, place_of
from sluice.core.errors import SluiceError, TerminalError
from sluice.core.ledger import Background, common_background
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.ranges import Interval, Range, intervals_of
from sluice.core.receipts import BundleTooHeavy, Receipt, TooHeavy
from sluice.core.records import Record
from sluice.core.tokens import block_token, row_source
from sluice.decode.messages.facts import Origin, Origins
from sluice.kafka.errors import UnreadRangeError
from sluice.kafka.reader import RangeReader, ReadResult, Wanted
from sluice.kafka.readers import Reader, require_topics
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.routing import Router
from sluice.worker.stage_clocks import StageClocks
from sluice.worker.worker_cache import WorkerCache


@dataclass(frozen=True, slots=True)
class Bundle:
    """The assignments of a bundle, in the order of its members, or one alone.

    :param background: what is known of all of them.
    :raises TerminalError: they are not what the record's bundle is.
    """

    members: tuple[Assignment, ...]
    background: Background = field(init=False)

    def __post_init__(self) -> None:
        common = common_background([member.background for member in self.members])
        object.__setattr__(self, "background", common)
        name, records = self.name, [member.record for member in self.members]
        of = [Member.of(member.block_range, member.record) for member in self.members]
        same = {(record.bundle, record.spec) for record in records}
        if len(same) != 1 or (sorted(of) != of) or (name and not is_whole(name, of)):
            raise TerminalError(
                f"{self}: these ranges are not the whole bundle {name or 'of one range'}",
                "This is a bug: report it. Nothing of them was inserted.",
            )
        if not name and len(self.members) > 1:
            raise TerminalError(f"{self}: no bundle", "This is a bug: report it.")
        if name and not all(map(_is_all_missing, self.members)):
            raise TerminalError(f"{self}: a part of a range", "This is a bug: report it.")

    def __str__(self) -> str:
        first, *others = self.members
        more = f" and {len(others)} more of bundle {self.name}" if others else ""
        return f"{first.block_range}{more}"

    @property
    def name(self) -> str:
        """See `core.bundles.bundle_name`; "" of a range alone."""
        return self.members[0].record.bundle

    @property
    def is_alone(self) -> bool:
        """Whether it is one range, recorded without a bundle."""
        return len(self.members) == 1

    @property
    def first(self) -> Range:
        """The first of its ranges."""
        return self.members[0].block_range

    @property
    def spec(self) -> str:
        """The digest of the load spec that all members were recorded under."""
        return self.members[0].record.spec

    @property
    def _record(self) -> Record:
        return self.members[0].record

    @property
    def reservation(self) -> int:
        """Entries of a window that each block may take: what each member is reserved."""
        return min(member.record.reservation for member in self.members)

    @property
    def deadline_ms(self) -> int:
        """Until when all members may be inserted."""
        return min(member.record.deadline_ms for member in self.members)

    @property
    def sent_at_ms(self) -> int:
        """See `Assignment`."""
        return min(member.sent_at_ms for member in self.members)

    @property
    def is_first(self) -> bool:
        """Whether no other task was ever sent any of it."""
        return all(member.is_first for member in self.members)

    @property
    def looks_for_fields(self) -> bool:
        """See `Assignment`."""
        return any(member.looks_for_fields for member in self.members)

    @property
    def insert_seconds(self) -> float:
        """See `Assignment`."""
        return max(member.insert_seconds for member in self.members)

    def origins(self, spec: LoadSpec, table: TableSpec | None) -> Origins:
        """Where the messages come from, and who loads their rows into a table entry, if it is one
        that is asked for."""
        return Origins(
            tuple(
                Origin(
                    member.block_range.source,
                    row_source(
                        pipeline=spec.pipeline,
                        connector=spec.connector,
                        topic_id=member.record.topic_id,
                        entry=table.entry if table else "",
                        generation=(table.row_generation(member.record.generation) if table else 0),
                    ),
                )
                for member in self.members
            )
        )

    def token(self, pipeline: str, connector: str, table: TableSpec, shard: str) -> str:
        """The identity of its block in one table of one shard (R7)."""
        record = self._record
        return block_token(
            pipeline=pipeline,
            generation=record.generation,
            connector=connector,
            topic_id=record.topic_id,
            block_range=self.first,
            entry=table.entry,
            target=table.target,
            shard=shard,
            rest=record.rest,
            bundle=record.bundle,
        )

    def staged_token(self, pipeline: str, connector: str, table: TableSpec, shard: str) -> str:
        """The same where the block is staged: that of the whole range, whatever a probe found in
        other tables (R21)."""
        member = replace(self.members[0], record=replace(self._record, rest="", bundle=""))
        return replace(self, members=(member,)).token(pipeline, connector, table, shard)

    def owners(
        self, of: Origins, loader: int, places: NDArray[np.uint64], rows: NDArray[np.uint32]
    ) -> Owners:
        """The owners that rows of a table entry are (`core.claims`).

        :param of: see `origins`; `loader`: see `core.claims.loader_number`.
        :param places: of their messages; `rows`: the number of each within its message.
        """
        numbers = of.numbers(places)
        return owners_of(
            [member.record.topic_id for member in self.members],
            [member.block_range.source.partition for member in self.members],
            0 if numbers is None else numbers,
            loader,
            of.offsets(places),
            rows,
        )

    def counted(self, places: NDArray[np.uint64]) -> list[int]:
        """How many of these places are of each member.

        :param places: in any order; a place that stands there twice counts twice.
        """
        if self.is_alone:
            return [len(places)]
        ordered = np.sort(places)
        return list(map(int, np.diff(np.searchsorted(ordered, self._borders))))

    def divided(self, places: Sequence[int]) -> list[list[int]]:
        """These places as offsets of each member, in the given order."""
        if self.is_alone:
            return [list(places)]
        found: list[list[int]] = [[] for _ in self.members]
        which = np.searchsorted(self._borders, np.array(places, np.uint64), side="right") - 1
        for place, number in zip(places, which.tolist(), strict=True):
            found[number].append(place - place_of(number, 0))
        return found

    def message_at(self, place: int) -> str:
        """Where a message stands, in words."""
        parts = zip(self.members, self.divided([place]), strict=True)
        ((source, offset),) = [(m.block_range.source, at[0]) for m, at in parts if at]
        return f"offset {offset} of {source}"

    def shares(self, receipt: Receipt, places: NDArray[np.uint64]) -> tuple[Receipt | None, ...]:
        """What each member has of a block; None: no row.

        :param places: of the block's rows.
        """
        if self.is_alone:
            return (receipt,)
        rows = self.counted(places)
        messages = self.counted(np.unique(places)) if receipt.messages is not None else rows
        first = next(number for number, count in enumerate(rows) if count)
        return tuple(
            None
            if not count
            else replace(
                receipt,
                rows=count,
                bytes=receipt.bytes * count // receipt.rows,
                messages=None if receipt.messages is None else made,
                is_shared=number != first,
            )
            for number, (count, made) in enumerate(zip(rows, messages, strict=True))
        )

    def divided_intervals(
        self, empty: Mapping[str, Sequence[int]]
    ) -> list[dict[str, tuple[Interval, ...]]]:
        """For each member, by table entry, offsets as intervals; an entry without any is left
        out."""
        found: list[dict[str, tuple[Interval, ...]]] = [{} for _ in self.members]
        for entry, places in empty.items():
            for own, offsets in zip(found, self.divided(places), strict=True):
                if offsets:
                    own[entry] = intervals_of(offsets)
        return found

    def require_topics(self, reader: Reader) -> None:
        """See `sluice.kafka.readers.require_topics`; called after its messages were read.

        :raises UnreadRangeError: with the number of a member.
        """
        members = self.members
        require_topics(reader, [(m.block_range.source, m.record.topic_id) for m in members])

    @property
    def _borders(self) -> NDArray[np.uint64]:
        numbers = range(len(self.members) + 1)
        return np.array([place_of(number, 0) for number in numbers], np.uint64)


def _is_all_missing(member: Assignment) -> bool:
    """Whether nothing of a range is known to be there: such ranges only form a bundle."""
    found, background = member.block_range, member.background
    whole = ((found.begin, found.end),)
    return not background.stored and all(each == whole for each in background.rest.values())


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
        Wanted(member.block_range, member.record.epoch, place_of(number, 0), member.record.topic_id)
        for number, member in enumerate(bundle.members)
    ]
    reader = cache.reader(environment, looks=router.needs_headers)
    try:
        results = _read(reader, wanted, bundle, router, clocks)
        if router.looks and not isinstance(reader, RangeReader) and reader.has_addressed:
            # A dead letter came back: which one entry it is for, only its headers say.
            router.start_over()
            reader = cache.reader(environment, looks=True)
            results = _read(reader, wanted, bundle, router, clocks)
        bundle.require_topics(reader)
    except UnreadRangeError as unread:
        return Reading((), unread=(unread.number, unread.reason))
    heavy_at, total = results[-1].heavy_at, sum(result.bytes for result in results)
    if bundle.is_alone:
        return Reading(results, None if heavy_at is None else TooHeavy(heavy_at, total))
    # One message is always allowed, but not within a bundle: it is loaded alone.
    is_heavy = heavy_at is not None or total > bundle.background.bytes_max
    return Reading(results, BundleTooHeavy() if is_heavy else None)


def _read(
    reader: Reader, wanted: Sequence[Wanted], bundle: Bundle, router: Router, clocks: StageClocks
) -> tuple[ReadResult, ...]:
    view, bytes_max = router.only_view, bundle.background.bytes_max
    timed = clocks.timing("check")  # once for each poll, not for each message
    if isinstance(reader, RangeReader):
        takes = router.deliver if view is None or router.looks else view.buffer.add
        look = router.look if router.looks else None
        return reader.read_ranges(
            wanted, bytes_max, timed(takes), look, tombstones=router.takes_tombstones
        )
    if view is None:
        return reader.read_ranges(wanted, bytes_max, timed(router.deliver_unseen))
    return reader.read_text(wanted, bytes_max, timed(view.buffer.add_text))
