"""Which messages of a range go to which table entries.

Entries that take the same messages in the same framing share one buffer. What decides is in the
load spec and in the message itself, so a repeat makes the same choice (R8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from sluice.core.ledger import Rest
from sluice.core.load_spec import Route, TableSpec
from sluice.core.ranges import Interval, contains
from sluice.core.routing import Looked, Seen, takes
from sluice.decode.formats import framing_of
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import MessageFacts, Origins, looks_beside
from sluice.decode.messages.framing import Framing
from sluice.decode.messages.views import subset
from sluice.decode.routing import Routes

#: The value that is read for a tombstone.
_NO_FIELDS = b"{}"


@dataclass(slots=True)
class View:
    """The messages that some entries share.

    :param rest: for a probe's record, the offsets to load; None: all.
    :param excluded: of some entries, places in the buffer that are for another entry only.
    :param tombstones: are among them.
    """

    buffer: MessageBuffer
    route: Route | None
    rest: tuple[Interval, ...] | None
    tombstones: bool = False
    entries: list[str] = field(default_factory=list)
    excluded: dict[str, list[int]] = field(default_factory=dict)

    @property
    def takes_all(self) -> bool:
        """Whether nothing is left out, but for dead letters that came back."""
        return self.route is None and self.rest is None


class Router:
    """Puts the messages of a range, or of a bundle of them, into the buffers of their entries.

    What is called an offset here is the message's place (`core.bundles.place_of`).

    :param origins: where the messages come from.
    :param tables: the entries that get messages.
    :param rest: of a probe's record, which is alone, by entry; empty for a whole range.
    :param make_buffer: an empty buffer of this framing.
    :param of_topic: all entries of the topic, if `tables` are some of them.
    """

    def __init__(
        self,
        origins: Origins,
        tables: Sequence[TableSpec],
        rest: Rest,
        make_buffer: Callable[[Framing], MessageBuffer],
        of_topic: Sequence[TableSpec] = (),
    ) -> None:
        views: dict[tuple[object, ...], View] = {}
        for table in tables:
            framing = framing_of(table)
            wanted = rest.get(table.entry, ()) if rest else None
            deletes = table.tombstones == "delete"
            key = (framing, table.route, wanted, deletes)
            if key not in views:
                views[key] = View(make_buffer(framing), table.route, wanted, deletes)
            views[key].entries.append(table.entry)
        self.views = list(views.values())
        self._routes = Routes({each.entry: each.route for each in (*of_topic, *tables)})
        self._facts = any(looks_beside(table) for table in tables)
        #: Whether keys and headers may matter.
        self.looks = self._facts or self._routes.looks
        #: Whether they do, even if no message says which one entry it is for.
        self.needs_headers = self._facts or self._routes.needs_headers
        if self._facts:
            for view in self.views:
                view.buffer.facts = MessageFacts(origins, [], [], [], [])
        #: Whether messages without a value are asked for.
        self.takes_tombstones = any(view.tombstones for view in self.views)
        #: Offsets of messages that no entry takes.
        self.unrouted: list[int] = []
        self._all_have_a_place = any(view.route is None for view in self.views)
        self._seen: list[Seen] = []

    @property
    def only_view(self) -> View | None:
        """The one view that takes everything but what is for one entry, if there is no choice."""
        (first, *others) = self.views
        return first if not others and first.takes_all and not self.needs_headers else None

    def view_of(self, entry: str) -> View:
        """The view with an entry's messages."""
        return next(view for view in self.views if entry in view.entries)

    @property
    def buffers(self) -> list[MessageBuffer]:
        """Of all views."""
        return [view.buffer for view in self.views]

    def look(self, messages: list[Seen]) -> None:
        """What decides about the messages that are delivered next, in their order."""
        self._seen = messages
        self._routes.look(messages)

    def start_over(self) -> None:
        """Forget what was delivered. None of the entries asks for what Kafka says of a message."""
        for view in self.views:
            view.buffer.clear()
            view.excluded.clear()
        self.unrouted.clear()

    def deliver_unseen(self, values: list[bytes], offsets: Sequence[int]) -> None:
        """Take the messages of one poll, whose keys and headers are not needed."""
        if self.looks:
            self._routes.look_at_none(len(values))
        self.deliver(values, offsets)

    def deliver(self, values: list[bytes], offsets: Sequence[int]) -> None:
        """Take the messages of one poll; None is the value of a tombstone that was asked for."""
        dead = {place for place, value in enumerate(values) if value is None}
        messages = self._routes.read(values)
        if dead:
            values = [_NO_FIELDS if value is None else value for value in values]
        has_place = [self._all_have_a_place and message.only is None for message in messages]
        for view in self.views:
            wanted = self._wanted(view, offsets, messages, has_place, dead)
            if view.buffer.facts is not None:
                self._keep_facts(view.buffer.facts, wanted, dead)
            if len(wanted) == len(values):
                view.buffer.add(values, offsets)
            elif wanted:
                view.buffer.add([values[i] for i in wanted], [offsets[i] for i in wanted])
        if not all(has_place):
            self.unrouted += [o for o, has in zip(offsets, has_place, strict=True) if not has]

    def _keep_facts(self, facts: MessageFacts, places: Iterable[int], dead: set[int]) -> None:
        for place in places:
            key, headers, timestamp_ms = self._seen[place]
            facts.keys.append(key)
            facts.headers.append(headers)
            facts.timestamps_ms.append(timestamp_ms)
            facts.tombstones.append(place in dead)

    def _wanted(
        self,
        view: View,
        offsets: Sequence[int],
        messages: list[Looked],
        has_place: list[bool],
        dead: set[int],
    ) -> list[int] | range:
        """Places of the view's messages; marks those that have found a place, as each tombstone has
        that no entry takes.

        :param dead: places of tombstones.
        """
        takes_dead = view.tombstones or not dead
        if view.takes_all and takes_dead and all(message.only is None for message in messages):
            return range(len(offsets))
        wanted: list[int] = []
        for place, message in enumerate(messages):
            if place in dead and not view.tombstones:
                has_place[place] = True
                continue
            if not takes(view.entries, view.route, message):
                continue
            has_place[place] = True
            if view.rest is not None and not contains(view.rest, offsets[place]):
                continue
            if message.only is not None:
                for entry in view.entries:
                    if entry != message.only:
                        at = view.buffer.messages + len(wanted)
                        view.excluded.setdefault(entry, []).append(at)
            wanted.append(place)
        return wanted

    @contextmanager
    def messages_of(self, entry: str) -> Iterator[MessageBuffer]:
        """The buffer of an entry's messages."""
        view = self.view_of(entry)
        excluded = view.excluded.get(entry)
        if not excluded:
            yield view.buffer
            return
        kept = np.delete(np.arange(view.buffer.messages), excluded)
        with subset(view.buffer, kept) as messages:
            yield messages
