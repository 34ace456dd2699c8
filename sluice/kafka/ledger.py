"""Reading the ledger topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sluice.core.ledger import LedgerView, entries_in, others_in
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaTerminalError
from sluice.kafka.tail import LogMessage, Tail, log_ends

#: How many messages the ledger is read back from its end first; doubled until everything is found.
#: A message may hold the entries of a thousand partitions.
FIRST_CHUNK_MESSAGES = 2_000


def entries(
    access: KafkaAccess,
    topic: str,
    begin: int | None = None,
    end: int | None = None,
    since_ms: int | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Committed entries of the ledger in order, with their offsets, up to its last stable offset.
    Several may have one offset.

    :param end: read up to here instead; waits for open transactions below it.
    :param since_ms: begin at what was written since then.
    :raises StalledError: the ledger exists but cannot be read to its end.
    """
    with closing(Tail(access, topic, begin=begin, since_ms=since_ms)) as tail:
        for message in tail.below(end):
            yield from ((message.offset, entry) for entry in _parsed(topic, message))


#: Before this many offsets there is a message: a transaction has one at least, and a marker.
_TAIL_OFFSETS = 1_000


def last_before(access: KafkaAccess, topic: str, at_ms: int) -> int | None:
    """When the last message of the ledger was written that is older; None if it has none.

    :raises SluiceError: it cannot be read.
    """
    with closing(Tail(access, topic, since_ms=at_ms)) as tail:
        stop = tail.position
        tail.seek(stop - _TAIL_OFFSETS)
        return max((message.timestamp_ms for message in tail.below(stop)), default=None)


def first_since(access: KafkaAccess, topic: str, since_ms: int) -> int:
    """The offset of the first message of the ledger that was written since then, or where it will
    be.

    :raises SluiceError: it cannot be read.
    """
    with closing(Tail(access, topic, since_ms=since_ms)) as tail:
        return tail.position


def _parsed(topic: str, message: LogMessage) -> tuple[dict[str, Any], ...]:
    try:
        return entries_in(json.loads(message.value or b""))
    except (ValueError, TypeError, KeyError):
        raise KafkaTerminalError(
            f"ledger {topic} holds a message at offset {message.offset} that is not an entry",
            "Only Sluice may write to its ledger: find the other producer, and name another "
            "topic in [ledger] or remove the message (delete-records).",
        ) from None


def read_view(
    access: KafkaAccess,
    topic: str,
    sources: Iterable[TopicPartition],
    specs_of: Callable[[str], str | None],
    since_ms: int | None,
    uncommitted: Iterable[TopicPartition] = (),
    *,
    is_stable: bool = False,
) -> LedgerView:
    """Read the ledger backwards until it answers for all partitions.

    From its very end, not from its stable one: while another producer of the same ledger
    has a transaction open, later entries are committed and still lie beyond the last stable offset.

    :param is_stable: from its last stable offset all the same, so that nothing is waited for: who
        asks reads on once nobody can write for these partitions any more.
    :param specs_of: digest of the load spec that a record's metadata names; None to need none.
    :param since_ms: everything younger is read in any case, for the possible late inserts; and
        more, where what is read tells of longer leases than today's. None: possible late inserts
        are of no interest.
    :param uncommitted: partitions of which the group holds nothing. A checkpoint that says that
        they have no record is enough, with a record of another partition of the topic if there is
        one anywhere: a new partition of a known topic begins at its beginning. For the others a
        record is looked for to the very beginning.
    """
    wanted, uncommitted = set(sources), set(uncommitted)
    low, high = log_ends(access, topic, is_stable=False)
    view, stop, chunk, newest_ms = LedgerView(end=high), high, FIRST_CHUNK_MESSAGES, 0
    if is_stable:
        low, view.end = log_ends(access, topic, is_stable=True)
        view.is_whole, stop = view.end >= high, view.end
    checkpoints = _Checkpoints()
    while True:
        begin = max(low, stop - chunk)
        times = _read_chunk(access, topic, begin, stop, view, checkpoints)
        newest_ms = max(newest_ms, times.newest_ms)
        if since_ms is not None:
            since_ms = min(since_ms, newest_ms - 2 * times.lease_ms)
        view.complete = begin == low
        view.recorded = checkpoints.recorded
        if view.recorded is not None or view.complete:
            view.recorded = (view.recorded or frozenset()) | view.records.keys()
        new = set() if view.recorded is None else uncommitted - view.recorded
        known = {source.topic for source in new} & {s.topic for s in view.recorded or ()}
        needed = {specs_of(str(entry["metadata"])) for entry in view.records.values()} - {None}
        found = wanted <= view.records.keys() | new and needed <= view.specs.keys()
        found = found and known <= {source.topic for source in view.records}
        is_past = since_ms is None or times.oldest_ms < since_ms
        if view.complete or (found and is_past):
            return view
        stop, chunk = begin, chunk * 2


def read_on(access: KafkaAccess, topic: str, view: LedgerView) -> None:
    """Read what came since a view was read, into it."""
    _, high = log_ends(access, topic, is_stable=False)
    if high <= view.end:
        return
    later = LedgerView()
    _read_chunk(access, topic, view.end, high, later, _Checkpoints())
    view.records |= later.records
    view.specs |= later.specs
    view.late_inserts += later.late_inserts
    view.end = high
    if view.recorded is not None:
        view.recorded |= later.records.keys()


@dataclass(slots=True)
class _Times:
    """When a chunk's entries were written.

    :param lease_ms: the longest lease of a record or possible late insert in it: today's may be
        shorter than that of who left possible late inserts behind.
    """

    oldest_ms: int = 1 << 62
    newest_ms: int = 0
    lease_ms: int = 0


class _Checkpoints:
    """What checkpoints say of all partitions, once all parts of one were read."""

    def __init__(self) -> None:
        self.recorded: frozenset[TopicPartition] | None = None
        self._parts: dict[int, dict[int, dict[str, Any]]] = {}

    def take(self, entry: dict[str, Any]) -> None:
        """One part. The parts of one transaction were written at one time."""
        parts = self._parts.setdefault(int(entry["at_ms"]), {})
        parts[int(entry["part"])] = entry
        if len(parts) < int(entry["parts"]):
            return
        others = others_in(parts[0])
        if others is not None:
            own = (record for part in parts.values() for record in part["records"])
            self.recorded = (self.recorded or frozenset()) | others | set(map(_source, own))


def _source(entry: dict[str, Any]) -> TopicPartition:
    return TopicPartition(entry["topic"], entry["partition"])


def _read_chunk(
    access: KafkaAccess,
    topic: str,
    begin: int,
    end: int,
    view: LedgerView,
    checkpoints: _Checkpoints,
) -> _Times:
    """Add an older chunk to the view; what is there already is younger and stays."""
    records: dict[TopicPartition, dict[str, Any]] = {}
    late_inserts: list[dict[str, Any]] = []
    times = _Times()
    for _, entry in entries(access, topic, begin, end):
        times.oldest_ms = min(times.oldest_ms, int(entry["at_ms"]))
        times.newest_ms = max(times.newest_ms, int(entry["at_ms"]))
        if entry["connector"] != access.connector:
            continue
        times.lease_ms = max(times.lease_ms, _lease_ms(entry))
        if entry["type"] == "load_spec":
            view.specs.setdefault(entry["digest"], entry["text"])
        elif entry["type"] == "record":
            records[_source(entry)] = entry
        elif entry["type"] == "checkpoint":
            checkpoints.take(entry)
            records |= {_source(record): record for record in entry["records"]}
        elif entry["type"] == "late_insert":
            late_inserts.append(entry)
    view.records = records | view.records
    view.late_inserts = late_inserts + view.late_inserts
    return times


def _lease_ms(entry: dict[str, Any]) -> int:
    """How much longer somebody may insert for an entry, from when it was written on."""
    if entry["type"] == "late_insert":
        return max(0, int(entry["deadline_ms"]) - int(entry["at_ms"]))
    fields = str(entry.get("metadata", "")).split("|")
    if entry["type"] != "record" or len(fields) < 12 or not fields[11].isdigit():
        return 0
    return max(0, int(fields[11]) - int(entry["at_ms"]))
