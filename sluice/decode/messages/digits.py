"""How long the runs of digits in messages are, which decides how integers may be read.

Runs of up to 18 digits fit Int64; up to 60 digits fit the 256-bit reader; longer ones would
wrap there. Digits inside strings count too: the tests only have to err on the safe side.
"""

from __future__ import annotations

import re

import numpy as np

#: Any integer of so many digits fits Int64.
SHORT_DIGITS_MAX = 18
#: A digit run this long may wrap in the 256-bit reader or be cut by the widest decimal.
_OVERLONG = re.compile(rb"[0-9]{61,}")
STAND_IN = b"9" * 60

_HIGH_NIBBLES = np.uint64(0xF0F0F0F0F0F0F0F0)
_HIGH_NIBBLES_OF_DIGITS = np.uint64(0x3030303030303030)
_SIX_EACH = np.uint64(0x0606060606060606)
#: Around an aligned word of digits: what a run of 19 that fills the word must reach into.
_REACH = np.arange(-SHORT_DIGITS_MAX, SHORT_DIGITS_MAX + 8)


def has_long_run(chunk: bytes | memoryview) -> bool:
    """Whether 19 digits or more follow each other somewhere.

    Such a run fills an aligned word of eight bytes. So only words that are all digits are
    looked at closely; most chunks have few.
    """
    words = np.frombuffer(chunk, np.uint64, len(chunk) // 8)
    hits = np.flatnonzero((words & _HIGH_NIBBLES) == _HIGH_NIBBLES_OF_DIGITS)
    if not len(hits):
        return False
    hits = hits[((words[hits] + _SIX_EACH) & _HIGH_NIBBLES) == _HIGH_NIBBLES_OF_DIGITS]
    if not len(hits):
        return False
    symbols = np.frombuffer(chunk, np.uint8)
    around = hits[:, None] * 8 + _REACH
    inside = (around >= 0) & (around < len(symbols))
    digits = (symbols[np.where(inside, around, 0)] - ord("0") < 10) & inside
    # Digits that touch the word on its left, and on its right, uninterrupted.
    left = np.logical_and.accumulate(digits[:, SHORT_DIGITS_MAX - 1 :: -1], axis=1).sum(axis=1)
    right = np.logical_and.accumulate(digits[:, SHORT_DIGITS_MAX + 8 :], axis=1).sum(axis=1)
    return bool((left + 8 + right > SHORT_DIGITS_MAX).any())


def is_overlong(value: bytes | memoryview) -> bool:
    """Whether a number in here may be too long even for 256 bits."""
    return _OVERLONG.search(value) is not None


def shorten_digits(value: bytes) -> bytes:
    """The message with over-long digit runs replaced by 60 nines.

    60 nines fit the readers without wrapping and fit no narrower integer; a fraction of 60
    nines is seen as cut. So the verdict on this text is the verdict on the message.
    """
    return _OVERLONG.sub(STAND_IN, value)
