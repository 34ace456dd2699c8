"""How many dead letters of a topic nobody has replayed, counted on and on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

from sluice.kafka.clients import KafkaAccess
from sluice.kafka.dead_letters import KIND_HEADER, no_dead_letter, own_headers
from sluice.kafka.tail import LogMessage, Tail
from sluice.kafka.topics import partition_count


class Waiting:
    """Those of one connector, by source topic and table entry. A mark stands in the partition of
    its dead letter, behind it, and there is one for each that was replayed: so each look goes on
    where the one before ended, and nothing is kept but the counts. Where the log was cut, as by a
    purge, its partition is counted anew.

    Connectors of one cluster that load one topic into one table are not told apart by marks.
    """

    def __init__(self, access: KafkaAccess, topic: str, connector: str) -> None:
        self._access, self._topic, self._connector = access, topic, connector
        #: By partition: where its log began, up to where it was read, and the counts.
        self._read: dict[int, tuple[int, int, Counter[tuple[str, str]]]] = {}

    def look(self, through: Callable[[Iterable[LogMessage]], Iterable[LogMessage]]) -> None:
        """Count what came since the last look.

        :param through: gives all of them, with rests in between.
        :raises SluiceError: the topic cannot be read, or holds something else.
        """
        partitions = partition_count(self._access, self._topic)
        if not partitions:
            return
        with closing(Tail(self._access, self._topic, with_headers=True)) as tail:
            for partition in range(partitions):
                before, begin, read = self._read.get(partition, (0, 0, Counter()))
                tail.turn_to(partition, begin)
                low, end = tail.log_begin, tail.stable_end
                # Of its own, so that a look that fails halfway leaves nothing counted.
                counts = Counter(read)
                if before != low:
                    tail.seek(low)
                    counts = Counter()
                for message in through(tail.below(end)):
                    try:
                        self._take(own_headers(message.headers), low, counts)
                    except (KeyError, ValueError) as error:
                        raise no_dead_letter(tail, message.offset, error) from None
                self._read[partition] = low, end, counts

    def _take(self, own: Mapping[str, bytes], low: int, counts: Counter[tuple[str, str]]) -> None:
        kind = own.get(KIND_HEADER)
        key = own.get("sluice.topic", b"").decode(), own.get("sluice.table", b"").decode()
        if kind is None:
            if own.get("sluice.connector", b"").decode() in ("", self._connector):
                counts[key] += 1
        elif kind == b"replayed" and counts[key]:
            _, offset = own["sluice.letter"].split(b"/")
            # Of one that was cut off since, the mark may still be there.
            counts[key] -= int(offset) >= low

    def by_table(self) -> Counter[str]:
        """How many of each table entry, as the last look found them."""
        found = Counter[str]()
        for _, _, counts in self._read.values():
            for (_, table), count in counts.items():
                found[table] += count
        return found
