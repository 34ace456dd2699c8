"""A password in a file, which may change while Sluice runs."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass, field
from pathlib import Path

#: What servers say to a wrong password: WRONG_PASSWORD, REQUIRED_PASSWORD,
#: AUTHENTICATION_FAILED (newer servers, whatever was wrong).
REFUSED_CODES = frozenset({193, 194, 516})
#: Refusals this many times further apart than the patience do not belong together.
_RESTS = 10


def read_password(path: str) -> str:
    """The first line of the file, without its end.

    :raises OSError: it cannot be read; UnicodeDecodeError: it is not UTF-8.
    """
    return Path(path).read_text(encoding="utf-8").partition("\n")[0].removesuffix("\r")


@dataclass(slots=True)
class Refusals:
    """Since when servers refuse the password that stands in a file, in this process.

    The server's and the file's password never change at the same moment.
    """

    _first_seconds: float | None = None
    _last_seconds: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_final(self, patience_seconds: float, now_seconds: float) -> bool:
        """To be asked at each refusal: whether they have lasted for so long. One that comes long
        after the last is a new beginning."""
        with self._lock:
            rested = now_seconds - self._last_seconds
            if self._first_seconds is None or rested > _RESTS * patience_seconds:
                self._first_seconds = now_seconds
            self._last_seconds = now_seconds
            return now_seconds - self._first_seconds >= patience_seconds

    def forget(self) -> None:
        """The file has another password now."""
        with self._lock:
            self._first_seconds = None


@functools.cache
def refusals(path: str) -> Refusals:
    """Those of all connections of this process that use the file."""
    return Refusals()
