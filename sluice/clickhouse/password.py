"""Who Sluice is to a server: user and password, which may change while Sluice runs."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field

from sluice.clickhouse.reactions import ServerError, while_it_changes
from sluice.core.errors import ConfigurationError
from sluice.machine.secret_source import SecretSource

#: What servers say to a wrong password: WRONG_PASSWORD, REQUIRED_PASSWORD,
#: AUTHENTICATION_FAILED (newer servers, whatever was wrong).
REFUSED_CODES = frozenset({193, 194, 516})
#: Refusals this many times further apart than the patience do not belong together.
_RESTS = 10


@dataclass(slots=True)
class Refusals:
    """Since when servers refuse the password that its source gives, in this process.

    The server's and the source's password never change at the same moment.
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
        """The source has another password now."""
        with self._lock:
            self._first_seconds = None


@functools.cache
def refusals(source: SecretSource) -> Refusals:
    """Those of all connections of this process that use the source."""
    return Refusals()


@dataclass(slots=True)
class Login:
    """What one connection shows a server. No text of it is fit for messages but the user.

    :param source: what it says when the server refuses the password is tried next.
    :param patience_seconds: a refused password is transient for so long, where it has a source.
    :param bearer: the password is a token; a server takes no user beside it.
    """

    user: str
    password: str = field(repr=False)
    source: SecretSource | None = None
    patience_seconds: float = 0.0
    bearer: bool = False

    def headers(self) -> dict[str, str | bytes]:
        """Of a request.

        :raises ConfigurationError: the password has several lines.
        """
        if "\n" in self.password or "\r" in self.password:
            raise ConfigurationError(
                "the password or token of ClickHouse has several lines, which no HTTP header can",
                "Give it in one line.",
            )
        headers: dict[str, str | bytes] = {"User-Agent": "sluice"}
        if self.bearer:
            return {**headers, "Authorization": b"Bearer " + self.password.encode()}
        if self.user:
            headers["X-ClickHouse-User"] = self.user.encode()
        if self.password:
            headers["X-ClickHouse-Key"] = self.password.encode()
        return headers

    def masked(self, text: str) -> str:
        """What a server replies, fit for messages."""
        return text.replace(self.password, "***") if self.password else text

    def refused(self, error: ServerError) -> ServerError:
        """What a refusal of the password is: final, or the next request carries what its source
        says by now. On a machine that has no such file or command it is what the driver read.
        """
        if self.source is None:
            return error
        known, why = refusals(self.source), ""
        try:
            said = self.source.other_than(self.password)
        except ConfigurationError as unread:
            why = unread.message
        else:
            if said != self.password:
                self.password = said
                known.forget()
                return while_it_changes(error, self.source.name, "")
        if known.is_final(self.patience_seconds, time.monotonic()):
            return error
        return while_it_changes(error, self.source.name, why)
