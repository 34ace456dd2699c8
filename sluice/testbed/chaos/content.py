"""The content of the table against what was produced, independent of `sluice audit`."""

from __future__ import annotations

import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from sluice.core.errors import TerminalError
from sluice.testbed.chaos.sending import Truth

_TIMEOUT_SECONDS = 300.0
ROW = np.dtype([("offset", "<u8"), ("identity", "<u8")])
_EXAMPLES_MAX = 5

Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class ContentReport:
    """What is not as it must be; all zero if everything is.

    :param loaded: rows of produced events, each once.
    :param lost: events without a row.
    :param doubled: rows beyond the first of an offset, or of an event where these are compared.
    :param foreign: rows at offsets where no good event is.
    :param altered: rows with another event's identity.
    :param dead_letters: dead letters of broken events, each once.
    :param dead_letters_missing: broken events without one.
    :param dead_letters_doubled: dead letters beyond the first of an event.
    :param dead_letters_foreign: dead letters of good events.
    :param examples: the first findings.
    """

    loaded: int
    lost: int
    doubled: int
    foreign: int
    altered: int
    dead_letters: int
    dead_letters_missing: int
    dead_letters_doubled: int
    dead_letters_foreign: int
    examples: tuple[str, ...]

    @property
    def is_exact(self) -> bool:
        """Every event is where it must be, once."""
        wrong = self.lost + self.doubled + self.foreign + self.altered
        return (
            wrong
            + self.dead_letters_missing
            + self.dead_letters_doubled
            + self.dead_letters_foreign
            == 0
        )

    def __add__(self, other: ContentReport) -> ContentReport:
        """Both together."""
        return ContentReport(
            **{
                each.name: getattr(self, each.name) + getattr(other, each.name)
                for each in fields(self)
            }
        )


def compare(
    truth: Truth, rows_of: Callable[[int], Rows], dead_letters: Iterable[tuple[int, int]]
) -> ContentReport:
    """Compare row by row: (partition, offset, order_id), and every dead letter. Each message is a
    row, also where an `order_id` comes again, as from the next `Production`.

    :param rows_of: all rows of a partition, as `rows_in` gives them.
    :param dead_letters: (partition, offset) of all dead letters.
    """
    sums: Counter[str] = Counter()
    examples: list[str] = []
    for partition in range(len(truth.offsets)):
        _judge(partition, rows_of(partition), _expected(truth, partition), sums, examples)
    return _report(truth, sums, examples, dead_letters)


def compare_events(
    truth: Truth, rows_of: Callable[[int], Rows], dead_letters: Iterable[tuple[int, int]]
) -> ContentReport:
    """The same where a table deduplicates by `order_id`: each event is one row, of any of its
    messages. A row is doubled if it is not the only one of its event.
    """
    sums: Counter[str] = Counter()
    examples: list[str] = []
    loaded: list[npt.NDArray[np.uint64]] = []
    for partition in range(len(truth.offsets)):
        found, expected = rows_of(partition), _expected(truth, partition)
        is_known = np.isin(found["offset"], expected["offset"])
        at = np.searchsorted(expected["offset"], found["offset"][is_known])
        is_altered = found["identity"][is_known] != expected["identity"][at]
        findings = {"foreign": found[~is_known], "altered": found[is_known][is_altered]}
        for what, rows in findings.items():
            sums[what] += len(rows)
            if len(rows):
                examples.append(f"{what}: partition {partition}, {_shown(rows['offset'])}")
        loaded.append(found["identity"][is_known][~is_altered])
    events = np.unique(np.concatenate([np.asarray(each) for each in truth.identities]))
    there, counts = np.unique(np.concatenate(loaded), return_counts=True)
    lost, doubled = np.setdiff1d(events, there), there[counts > 1]
    sums["loaded"], sums["lost"] = len(there), len(lost)
    sums["doubled"] = int((counts - 1).sum())
    for what, which in (("lost", lost), ("doubled", doubled)):
        for identity in which[:_EXAMPLES_MAX].tolist():
            places = [
                f"{number}/{offset}"
                for number, (offsets, identities) in enumerate(
                    zip(truth.offsets, truth.identities, strict=True)
                )
                for offset in np.asarray(offsets)[np.asarray(identities) == identity].tolist()
            ]
            examples.append(f"{what}: event {identity}, sent at {', '.join(places)}")
    return _report(truth, sums, examples, dead_letters)


def _expected(truth: Truth, partition: int) -> Rows:
    """By offset."""
    expected = np.empty(len(truth.offsets[partition]), ROW)
    expected["offset"] = truth.offsets[partition]
    expected["identity"] = truth.identities[partition]
    return expected[np.argsort(expected["offset"])]


def _report(
    truth: Truth,
    sums: Counter[str],
    examples: list[str],
    dead_letters: Iterable[tuple[int, int]],
) -> ContentReport:
    counts = Counter(dead_letters)
    missing, strange = truth.broken - counts.keys(), counts.keys() - truth.broken
    examples += [f"no dead letter: {where}" for where in sorted(missing)[:_EXAMPLES_MAX]]
    examples += [f"dead letter of a good event: {w}" for w in sorted(strange)[:_EXAMPLES_MAX]]
    return ContentReport(
        loaded=sums["loaded"],
        lost=sums["lost"],
        doubled=sums["doubled"],
        foreign=sums["foreign"],
        altered=sums["altered"],
        dead_letters=len(truth.broken & counts.keys()),
        dead_letters_missing=len(missing),
        dead_letters_doubled=sum(counts.values()) - len(counts),
        dead_letters_foreign=len(strange),
        examples=tuple(examples[:20]),
    )


def _judge(
    partition: int, found: Rows, expected: Rows, sums: Counter[str], examples: list[str]
) -> None:
    """Add one partition's findings."""
    offsets, first, counts = np.unique(found["offset"], return_index=True, return_counts=True)
    is_known = np.isin(offsets, expected["offset"])
    is_loaded = np.isin(expected["offset"], offsets)
    at = np.searchsorted(expected["offset"], offsets[is_known])
    is_altered = found["identity"][first[is_known]] != expected["identity"][at]
    findings = {
        "lost": expected["offset"][~is_loaded],
        "doubled": offsets[counts > 1],
        "foreign": offsets[~is_known],
        "altered": offsets[is_known][is_altered],
    }
    sums["loaded"] += int(is_loaded.sum())
    sums["doubled"] += int((counts - 1).sum())
    for what in ("lost", "foreign", "altered"):
        sums[what] += len(findings[what])
    for what, where in findings.items():
        if len(where):
            examples.append(f"{what}: partition {partition}, {_shown(where)}")


def _shown(offsets: npt.NDArray[np.uint64]) -> str:
    return f"{len(offsets)} offsets: {', '.join(map(str, offsets[:_EXAMPLES_MAX]))}"


def rows_in(
    url: str, table: str, topic: str, partition: int, source: int | str | None = None
) -> Rows:
    """All rows of one partition of a topic, doubled ones as often as they are there.

    :param source: only those whose `_source` is this number, or this text.
    :raises TerminalError: the server does not answer with rows.
    """
    query = (
        f"SELECT _offset, order_id FROM {table} WHERE _topic = '{topic}' "
        f"AND _partition = {partition} {'' if source is None else f'AND _source = {source!r}'} "
        "ORDER BY _offset FORMAT RowBinary"
    )
    with urllib.request.urlopen(url, data=query.encode(), timeout=_TIMEOUT_SECONDS) as reply:
        raw = reply.read()
    if len(raw) % ROW.itemsize:
        raise TerminalError(f"{url}: not rows: {raw[:200]!r}", "Read the server's log.")
    return np.frombuffer(raw, ROW)
