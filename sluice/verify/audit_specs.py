"""What the messages of a log were loaded by: the load specs of then, as the ledger has them (R8).

A table lacks nothing of what was settled before an entry loaded the topic into it, or before its
route took the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sluice.core.load_spec import NEEDED_LINEAGE, LoadSpec, Route
from sluice.core.ranges import Interval, subtract


class LoadedAs(NamedTuple):
    """How a table entry loads a topic.

    :param target: the table, as database.table.
    :param counts_rows: messages may have any number of rows.
    :param tells: rows carry their offset.
    """

    target: str
    route: Route | None
    counts_rows: bool
    tells: bool

    def is_like(self, other: LoadedAs) -> bool:
        """Whether it loads the same messages into the same table."""
        return (self.target, self.route) == (other.target, other.route)


#: All entries that load a topic, by name.
LoadedBy = Mapping[str, LoadedAs]


def loaded_by(spec: LoadSpec, topic: str) -> LoadedBy:
    """What a load spec loads a topic by."""
    return {
        table.entry: LoadedAs(
            table.target, table.route, table.rows == "many", set(table.lineage) >= NEEDED_LINEAGE
        )
        for table in spec.tables_of(topic)
    }


class Stretch(NamedTuple):
    """Offsets [begin, end) that were loaded by the same entries.

    :param is_recorded: False: they are settled, and the ledger does not say by what they were
        loaded. Then `by` is what the topic is loaded by now.
    """

    begin: int
    end: int
    by: LoadedBy
    is_recorded: bool = True

    def loading(self, target: str) -> tuple[str, ...]:
        """The entries of which rows with their offset came into a table."""
        return tuple(n for n, one in self.by.items() if one.target == target and one.tells)


def stretches(
    within: Interval,
    assigned: Iterable[Interval],
    loaded_under: Iterable[tuple[int, int, str]],
    today: LoadedBy,
    find: Callable[[str], LoadedBy | None],
) -> list[Stretch]:
    """The offsets within an interval, in order. What is not settled is judged by the entries of
    now.

    :param assigned: what is settled, and was loaded.
    :param loaded_under: from offset to offset the digest of a load spec, in order.
    :param find: what a load spec loads the topic by; None if it is not known.
    """
    known = [
        Stretch(begin, end, by)
        for begin, end, digest in loaded_under
        if (by := find(digest)) is not None
    ]
    recorded = [(each.begin, each.end) for each in known]
    unknown = (rest for interval in assigned for rest in subtract(interval, recorded))
    known += [Stretch(begin, end, today, False) for begin, end in unknown]
    found: list[Stretch] = []
    at, last = within
    for each in sorted(known, key=lambda stretch: stretch.begin):
        _append(found, Stretch(at, min(each.begin, last), today))
        _append(found, each._replace(begin=max(each.begin, at), end=min(each.end, last)))
        at = max(at, each.end)
    _append(found, Stretch(at, last, today))
    return found


def _append(found: list[Stretch], later: Stretch) -> None:
    """Joins it to the last one where both were loaded alike."""
    if later.begin >= later.end:
        return
    if found and found[-1][2:] == later[2:]:
        later = later._replace(begin=found.pop().begin)
    found.append(later)
