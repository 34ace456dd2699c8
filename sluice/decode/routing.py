"""What decides where the messages of a topic go. Who loads them, probes or audits reads it here, so
that all of them choose alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

from sluice.core.load_spec import Route
from sluice.core.routing import Looked, Seen, looked, takes
from sluice.decode.envelope.walk import envelope_tables

_NOBODY: Seen = (None, (), None)
_NOTHING = looked(None, (), None)


class Routes:
    """Of all entries of a topic.

    :param entries: their routes, by name.
    """

    def __init__(self, entries: Mapping[str, Route | None]) -> None:
        self._entries = entries
        ways = {route.by for route in entries.values() if route is not None}
        #: Whether keys and headers may matter; with one entry, none of them changes a route.
        self.looks = len(entries) > 1 or bool(ways)
        #: Whether they do, even if no message says which one entry it is for.
        self.needs_headers = bool(ways - {"envelope"})
        self._reads_envelopes = "envelope" in ways
        self._seen: Sequence[Seen] = ()

    def look(self, messages: Sequence[Seen]) -> None:
        """What Kafka says of the messages that are read next, in their order."""
        self._seen = messages

    def look_at_none(self, count: int) -> None:
        """So many messages are read next, of which none says which one entry it is for, and no
        other key or header is needed."""
        self._seen = [_NOBODY] * count

    def read(self, values: Sequence[bytes | None]) -> list[Looked]:
        """What decides about the messages of one poll; None is the value of a tombstone.

        :raises ValueError: keys and headers are needed, and nobody has looked at these messages.
        """
        seen, self._seen = self._seen, ()
        if not (self.looks or seen):
            return [_NOTHING] * len(values)
        tables: Iterable[bytes | None] = repeat(None, len(values))
        if self._reads_envelopes:
            tables = envelope_tables([value or b"" for value in values])
        found = zip(seen, tables, strict=True)
        return [looked(key, headers, table) for (key, headers, _), table in found]

    def takes(self, entry: str, message: Looked) -> bool:
        """Whether an entry takes a message."""
        return takes((entry,), self._entries[entry], message)
