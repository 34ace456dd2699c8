"""The exact test of structure, quick for messages that are one flat object.

Where some messages of a poll are bad, the others are mostly as flat as ever. Counting proves
them: a message that begins with its only `{`, ends with its only `}`, and holds an even number of
quotes, no bracket of another kind, no backslash and no newline. All its quotes delimit
strings, the first of them opens one and the last closes one, so both braces stand outside: it
is one object in the sense of boundaries.py, if no value can be missing either. What is not as
plain as that is tested there.
"""

from __future__ import annotations

import numpy as np

from sluice.decode.messages.boundaries import (
    MISSING_IN,
    OBJECTS,
    Mask,
    Positions,
    may_miss,
    structure_faults,
)


def object_faults(chunk: bytes, starts: Positions, ends: Positions) -> Mask:
    """`structure_faults` of objects, the same verdict for less."""
    plain = plain_objects(chunk, starts, ends)
    if not plain.any():
        return structure_faults(chunk, starts, ends)
    others = np.flatnonzero(~plain)
    faults = np.zeros(len(starts), np.bool_)
    if len(others):
        froms, tos = starts[others], ends[others]
        parts = [chunk[a:b] for a, b in zip(froms.tolist(), tos.tolist(), strict=True)]
        beyond = np.cumsum(tos - froms + 1)
        begins = np.concatenate(([0], beyond[:-1]))
        faults[others] = structure_faults(b"\n".join(parts), begins, beyond - 1)
    return faults


def plain_objects(chunk: bytes, starts: Positions, ends: Positions) -> Mask:
    """Which messages are flat objects that counting proves."""
    symbols = np.frombuffer(chunk + b"\n", np.uint8)
    last = ends - 1  # of an empty message the newline before it
    strange = symbols == ord("{")
    if 2 * np.count_nonzero(strange) > 3 * len(starts):
        return np.zeros(len(starts), np.bool_)
    strange[starts] = False
    for symbol, where in ((ord("}"), last), (ord("\n"), ends)):
        found = symbols == symbol
        found[where] = False
        strange |= found
    for symbol in b"[]\\":
        strange |= symbols == symbol
    strange |= may_miss(symbols, *MISSING_IN[OBJECTS])
    is_quote = (symbols == ord('"')).view(np.uint8)
    unsure = np.bitwise_or.reduceat(strange.view(np.uint8), starts)
    unsure |= np.bitwise_xor.reduceat(is_quote, starts)
    plain: Mask = unsure == 0
    plain &= symbols[starts] == ord("{")
    plain &= symbols[last] == ord("}")
    return plain
