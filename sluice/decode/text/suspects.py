"""Where the bad messages of a block may be, at the price of one more pass of the engine.

A search, not a verdict: `isolate.find_faults` judges what is suspect, and what is not is
decoded strictly afterwards. Should a bad message hide here, that fails, and all are judged.
"""

from __future__ import annotations

import numpy as np

from sluice.decode.engine.native import read_header
from sluice.decode.engine.session import EngineError, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.marked import Indices, marked_file
from sluice.decode.text.plan import Plan

#: A bad message makes so many suspect; a mark costs as much as reading a few messages.
_MARKED_ONE_IN = 32
_SAMPLED_TOGETHER = 512
_SAMPLED_ONE_IN = 16


def find_suspects(plan: Plan, buffer: MessageBuffer, indices: Indices) -> Indices:
    """Those among these messages that are bad, and neighbours of theirs; all if undecided.

    A few stretches tell whether a search is worth its pass: where most messages turn out to
    be suspect, it is not.
    """
    sample = indices[np.arange(len(indices)) // _SAMPLED_TOGETHER % _SAMPLED_ONE_IN == 0]
    if len(sample) < len(indices) and 2 * len(_search(plan, buffer, sample)) > len(sample):
        return indices
    return _search(plan, buffer, indices)


def _search(plan: Plan, buffer: MessageBuffer, indices: Indices) -> Indices:
    """One lenient pass over the text, in which one message in a few carries a mark.

    No message makes more than one row, so where there are as many rows as messages between two
    marks, each row is its message.
    """
    with marked_file(buffer, indices, _MARKED_ONE_IN, b"\n") as marked:
        rows = run_marked(plan.lenient(marked.path, marked.field, len(indices)))
    if rows is None:
        return indices
    marks, codes = rows
    at_row = np.flatnonzero(marks)
    at_place = marks[at_row] - 1
    if not len(at_row) or at_row[0] or at_place[0]:
        at_row, at_place = np.append(0, at_row), np.append(0, at_place)
    messages = np.diff(at_place, append=len(indices))
    whole = np.diff(at_row, append=len(marks)) == messages
    suspect = np.repeat(~whole, messages)
    faulty = np.flatnonzero(codes)
    stretch = np.searchsorted(at_row, faulty, side="right") - 1
    places = at_place[stretch] + faulty - at_row[stretch]
    suspect[places[whole[stretch]]] = True
    chosen: Indices = indices[suspect]
    return chosen


def run_marked(query: str) -> tuple[Indices, Indices] | None:
    """Run a query that gives columns i and f, both UInt32."""
    try:
        result = run(query, "Native")
    except EngineError:
        return None
    block = result.bytes()
    if not block:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    _, rows, position = read_header(memoryview(block))
    width = 4 * rows
    head = len(b"\x01i\x06UInt32")
    marks = np.frombuffer(block, np.uint32, rows, position + head)
    codes = np.frombuffer(block, np.uint32, rows, position + head + width + head)
    return marks.astype(np.int64), codes.astype(np.int64)
