"""How long the runs of digits in messages are, which decides how integers may be read.

Runs of up to 18 digits fit Int64; up to 60 digits fit the 256-bit reader; longer ones would
wrap there. Digits inside strings count too: the tests only have to err on the safe side.
"""

from __future__ import annotations

import re

from sluice.decode.messages.brackets import has_digits

#: Any integer of so many digits fits Int64.
SHORT_DIGITS_MAX = 18
#: A digit run this long may wrap in the 256-bit reader or be cut by the widest decimal.
OVERLONG_DIGITS = 61
_OVERLONG = re.compile(rb"[0-9]{%d,}" % OVERLONG_DIGITS)
STAND_IN = b"9" * 60


def has_long_run(chunk: bytes | memoryview) -> bool:
    """Whether 19 digits or more follow each other somewhere."""
    return has_digits(chunk, SHORT_DIGITS_MAX + 1)


def shorten_digits(value: bytes) -> bytes:
    """The message with over-long digit runs replaced by 60 nines.

    60 nines fit the readers without wrapping and fit no narrower integer; a fraction of 60
    nines is seen as cut. So the verdict on this text is the verdict on the message.
    """
    return _OVERLONG.sub(STAND_IN, value)
