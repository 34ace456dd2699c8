"""Who may change something over HTTP: tokens in a file, which may change at any time."""

from __future__ import annotations

import hmac
import re
from collections import deque
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from sluice.core.errors import ConfigurationError

_LINE = re.compile(r"([A-Za-z0-9_.@-]{1,100})[ \t]+([!-~]{20,500})")


class Tokens:
    """The tokens of a file, a line `NAME TOKEN` each; `#` begins a comment. It is read again with
    each question, so that it is rotated without a restart.

    :param path: "" where nobody may change anything.
    :raises ConfigurationError: the file cannot be used.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._read()

    def name_of(self, token: str) -> str | None:
        """Whose token it is; None if nobody's. How long it takes says nothing of any token.

        :raises ConfigurationError: the file cannot be used by now.
        """
        asked, found = sha256(token.encode()).digest(), None
        for name, digest in self._read():
            if hmac.compare_digest(digest, asked):
                found = name
        return found

    def _read(self) -> list[tuple[str, bytes]]:
        if not self._path:
            return []
        try:
            lines = Path(self._path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigurationError(
                f"http.tokens_file: {self._path} cannot be read: {why}",
                "Let Sluice's user read it, or name another file.",
            ) from None
        found = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None:  # the line is not shown: it may be a token
                raise ConfigurationError(
                    f"http.tokens_file: line {number} of {self._path} is no name and token",
                    "Write a name, a space, and a token of 20 characters or more, as of "
                    "`openssl rand -hex 32`.",
                )
            found.append((match[1], sha256(match[2].encode()).digest()))
        return found


@dataclass(slots=True)
class Rate:
    """So many in a minute, and no more."""

    per_minute: int
    _at: deque[float] = field(default_factory=deque)

    def allows(self, now: float) -> bool:
        """Whether one more is possible; it counts if it is.

        :param now: of a clock that never goes back.
        """
        while self._at and now - self._at[0] >= 60:
            self._at.popleft()
        if len(self._at) >= self.per_minute:
            return False
        self._at.append(now)
        return True
