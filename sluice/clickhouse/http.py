"""A thin client for one ClickHouse server over HTTP, on a connection that is kept.

Reads reconnect by themselves. An insert does not: `/ping`, the check of the lease and the
POST use one connection (R9), because a fresh connection after the check would let the
block arrive long after the lease (H8).
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from sluice.clickhouse import sql as sql_text
from sluice.clickhouse.connection import (
    FAILURES,
    Address,
    Reply,
    Request,
    begin,
    drop,
    exchange,
    give_up_after,
    has_ended,
    open_connection,
    reason_of,
)
from sluice.clickhouse.insert import InsertPlan
from sluice.clickhouse.password import REFUSED_CODES, Login
from sluice.clickhouse.reactions import (
    NETWORK_HINT,
    ServerError,
    code_in_text,
    error_from_reply,
    nothing_sent,
    other_query_id,
    reply_lost,
)
from sluice.clickhouse.tls import Tls
from sluice.core.errors import ConfigurationError
from sluice.machine.secret_source import SecretSource

CONNECT_TIMEOUT_SECONDS = 5.0
PING_TIMEOUT_SECONDS = 5.0
QUERY_TIMEOUT_SECONDS = 30.0
INSERT_TIMEOUT_SECONDS = 30.0

#: The server answers when it is done; 64-bit integers as numbers, which Python reads exactly.
_QUERY_SETTINGS = {"wait_end_of_query": "1", "output_format_json_quote_64bit_integers": "0"}


@dataclass(frozen=True, slots=True)
class InsertReply:
    """An acknowledged insert: the server said OK.

    :param written_rows: as the server counts them, views' targets included; None if it
        does not say (18.16). A deduplicated block may count as written.
    :param seconds: from the first byte sent to the end of the reply.
    """

    query_id: str
    url: str
    written_rows: int | None
    seconds: float


class Server:
    """One ClickHouse server. Not for several threads at once; cheap to create, connects late.

    :param url: http(s)://host:port; the user and password in it are used if none are given.
    :param password: sent in a header only; never part of a message.
    :param source: what it says when the server refuses the password is tried next.
    :param bearer: the password is a token, and says who the user is.
    :param patience_seconds: a refused password is transient for so long, where it has a source.
    :param tls: of https.
    :raises ConfigurationError: a URL that is not http or https.
    """

    def __init__(
        self,
        url: str,
        user: str = "",
        password: str = "",
        *,
        source: SecretSource | None = None,
        bearer: bool = False,
        patience_seconds: float = 0.0,
        tls: Tls | None = None,
        connect_timeout_seconds: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        parts = urlsplit(url)
        try:
            self._address = Address.of(parts)
        except ValueError:
            raise ConfigurationError(
                f"not a ClickHouse URL: {url.rpartition('@')[2]}",
                'Write shards like { s1 = ["http://host:8123"] }; https is 8443 as a rule.',
            ) from None
        self.connects = 0
        self._login = Login(
            user or unquote(parts.username or ""),
            password or unquote(parts.password or ""),
            source,
            patience_seconds,
            bearer,
        )
        self._tls = tls or Tls()
        self._connect_timeout_seconds = connect_timeout_seconds
        self._connection: http.client.HTTPConnection | None = None
        self._version: tuple[int, ...] | None = None
        self._clock: tuple[int, float] | None = None

    @property
    def url(self) -> str:
        """The address without user and password."""
        return self._address.url

    def __repr__(self) -> str:
        return f"Server({self.url!r}, user={self._login.user!r})"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_password(self, password: str) -> None:
        """The next requests carry this one."""
        self._login.password = password

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ping(self, timeout_seconds: float = PING_TIMEOUT_SECONDS) -> None:
        """Ask whether the server answers, and leave a live connection behind.

        :raises TransientServerError: it does not.
        """
        self._ping("ping", timeout_seconds)

    def clock_ms(self) -> int | None:
        """The most that the server's wall clock can show now, by its last answer to a ping;
        None if it does not say. Whoever answers a ping has a Date in its reply, to the second."""
        if self._clock is None:
            return None
        said_ms, asked_at = self._clock
        return said_ms + 999 + int((time.clock_gettime(time.CLOCK_BOOTTIME) - asked_at) * 1000)

    def version(self) -> tuple[int, ...]:
        """The server's version, read once for each connection: upgrades are noticed."""
        if self._version is None or self._connection is None:
            text = str(self.query("SELECT version() AS version")[0]["version"])
            self._version = tuple(int(part) for part in text.split(".") if part.isdigit())
        return self._version

    def query(
        self,
        sql: str,
        parameters: Mapping[str, sql_text.Parameter] | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
    ) -> list[dict[str, Any]]:
        """Run a SELECT without FORMAT; `{name:Type}` stands for a parameter.

        :returns: all rows, by column name; integers are exact. The reply is one JSON
            document, so a reply that was cut off or ends in an exception never passes.
        :raises ServerError: terminal or transient; a read is never in doubt.
        """
        text = sql_text.render(sql, parameters or {}) + "\nFORMAT JSONCompact"
        request = self._statement(text, settings)
        stale_possible = self._connection is not None
        try:
            reply = self._exchange("query", self._connect("query"), request, timeout_seconds, True)
        except ServerError as error:
            if not stale_possible or error.name != "CONNECTION_LOST":
                raise
            connection = self._connect("query")
            reply = self._exchange("query", connection, request, timeout_seconds, True)
        if reply.status != 200 or reply.header_code:
            sent = self._login.password
            refusal = self._reply_error("query", reply, read_only=True)
            if sent != self._login.password:
                return self.query(sql, parameters, settings, timeout_seconds)
            raise refusal
        try:
            document = json.loads(reply.body)
            names = [column["name"] for column in document["meta"]]
            return [dict(zip(names, row, strict=True)) for row in document["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise self._reply_error("query", reply, read_only=True) from error

    def execute(
        self,
        sql: str,
        parameters: Mapping[str, sql_text.Parameter] | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_seconds: float = QUERY_TIMEOUT_SECONDS,
    ) -> str:
        """Run any statement as it stands, once; gives the text of the reply.

        :raises ServerError: of any kind.
        """
        text = sql_text.render(sql, parameters) if parameters else sql
        connection = self._ping("statement", PING_TIMEOUT_SECONDS)
        request = self._statement(text, settings)
        reply = self._exchange("statement", connection, request, timeout_seconds, False)
        if reply.status != 200 or reply.header_code:
            raise self._reply_error("statement", reply, read_only=False)
        return reply.text

    def insert(
        self,
        plan: InsertPlan,
        lease: Callable[[], float],
        timeout_seconds: float = INSERT_TIMEOUT_SECONDS,
    ) -> InsertReply:
        """Insert one block: /ping, `lease()`, POST on that same connection (R9).

        :param lease: gives the seconds that are left, and raises when there are none; then
            nothing was sent.
        :param timeout_seconds: for the POST as a whole, at most what is left of the lease:
            a block that was not wholly delivered by then never lands. In doubt afterwards.
        :raises TransientServerError: not a byte of the insert was sent, or the server
            refused before it began.
        :raises InDoubtServerError: the block may be stored, now or later.
        :raises TerminalServerError: the identical block can never succeed; or it is stored, and
            something before the server replaces query ids.
        """
        what = f"insert into {plan.target}"
        request = Request(
            self._address.path + plan.path,
            plan.body,
            {**self._login.headers(), **dict(plan.headers)},
        )
        connection = self._ping(what, PING_TIMEOUT_SECONDS)
        seconds = min(timeout_seconds, lease())
        if has_ended(connection):
            self.close()
            why = "the connection was closed after /ping"
            raise nothing_sent(self.url, what, "CONNECTION_CLOSED", why, _KEEP_ALIVE)
        give_up_after(connection, seconds)
        begun = time.monotonic()
        reply = self._exchange(what, connection, request, seconds, False)
        if reply.status != 200 or reply.header_code or reply.body.strip():
            raise self._reply_error(what, reply, read_only=False)
        if reply.query_id not in (plan.query_id, None):  # servers before 23.2 do not say it
            raise other_query_id(self.url, what, plan.query_id, reply.query_id)
        seconds = time.monotonic() - begun
        return InsertReply(plan.query_id, self.url, _written_rows(reply.summary), seconds)

    def _ping(self, what: str, timeout_seconds: float) -> http.client.HTTPConnection:
        """A connection that has just answered /ping; a stale one is replaced once.

        A reply that closes the connection is for the caller to see (`has_ended`).
        """
        stale_possible = self._connection is not None
        connection = self._connect(what)
        try:
            return self._ping_on(connection, what, timeout_seconds)
        except FAILURES as error:
            self.close()
            if not stale_possible:
                raise self._ping_failed(what, reason_of(error)) from None
        try:
            return self._ping_on(self._connect(what), what, timeout_seconds)
        except FAILURES as error:
            self.close()
            raise self._ping_failed(what, reason_of(error)) from None

    def _ping_on(
        self, connection: http.client.HTTPConnection, what: str, timeout_seconds: float
    ) -> http.client.HTTPConnection:
        connection.sock.settimeout(timeout_seconds)
        asked_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        connection.request("GET", f"{self._address.path}/ping")
        response = connection.getresponse()
        body = response.read()
        said_ms = _wall_ms(response.getheader("Date"))
        self._clock = None if said_ms is None else (said_ms, asked_at)
        if response.status != 200:
            self.close()
            raise self._ping_failed(what, f"HTTP status {response.status}: {body[:100]!r}")
        return connection

    def _ping_failed(self, what: str, why: str) -> ServerError:
        return self._nothing_sent(what, "PING_FAILED", f"/ping: {why}")

    def _nothing_sent(self, what: str, name: str, why: str) -> ServerError:
        hint = _unreached_hint(self._address, why)
        return nothing_sent(self.url, what, name, why, hint)

    def _connect(self, what: str) -> http.client.HTTPConnection:
        """The kept connection if it is open, else a new one."""
        if self._connection is not None and not has_ended(self._connection):
            return self._connection
        self.close()
        context = self._tls.context() if self._address.secure else None
        try:
            self._connection = open_connection(
                self._address, self._connect_timeout_seconds, context
            )
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            name = "CONNECTION_REFUSED" if refused else "CONNECT_FAILED"
            raise self._nothing_sent(what, name, reason_of(error)) from None
        self._version = None
        self.connects += 1
        return self._connection

    def _exchange(
        self,
        what: str,
        connection: http.client.HTTPConnection,
        request: Request,
        timeout_seconds: float,
        read_only: bool,
    ) -> Reply:
        """Any failure closes the connection, so that a late reply meets nobody."""
        try:
            return exchange(connection, request, timeout_seconds)
        except TimeoutError:
            drop(connection)
            self.close()
            why = f"nothing within {timeout_seconds:g} s"
            raise reply_lost(self.url, what, "SOCKET_TIMEOUT", why, read_only) from None
        except FAILURES as error:
            self.close()
            why = reason_of(error)
            raise reply_lost(self.url, what, "CONNECTION_LOST", why, read_only) from None
        except BaseException:
            self.close()
            raise

    def _statement(self, text: str, settings: Mapping[str, str] | None) -> Request:
        keys = urlencode({**_QUERY_SETTINGS, **(settings or {})})
        return Request(f"{self._address.path}/?{keys}", (text.encode(),), self._login.headers())

    def _reply_error(self, what: str, reply: Reply, *, read_only: bool) -> ServerError:
        code, text = reply.header_code, reply.text
        if code is None and reply.status == 200:
            # An exception after HTTP 200 stands at the end, behind what was already sent.
            text = text[max(text.rfind("Code: "), 0) :]
        if code is None and (found := code_in_text(text)) is not None:
            code = str(found)
        error = error_from_reply(
            url=self.url,
            what=what,
            status=reply.status,
            header_code=code,
            text=self._login.masked(text),
            read_only=read_only,
        )
        # A proxy in front that looks at tokens knows no codes.
        is_refused = error.code in REFUSED_CODES or reply.status == 401
        return self._login.refused(error) if is_refused else error


def pieces(
    server: Server,
    sql: str,
    parameters: Mapping[str, sql_text.Parameter],
    settings: Mapping[str, str],
    timeout_seconds: float,
) -> Iterator[bytes]:
    """Run a SELECT with its FORMAT, and give the reply piece by piece as the server sends it.

    What goes wrong after the first piece stands as text in the middle of the reply, where its
    format breaks off: who reads it has to notice.

    :param timeout_seconds: until the first piece, and between two of them.
    :raises ServerError: terminal or transient; a read is never in doubt.
    """
    what = "query"
    text = sql_text.render(sql, parameters)
    connection = server._ping(what, PING_TIMEOUT_SECONDS)
    request = server._statement(text, {"wait_end_of_query": "0", **settings})
    try:
        response = begin(connection, request, timeout_seconds)
        code = response.getheader("X-ClickHouse-Exception-Code")
        if response.status != 200 or code:
            reply = Reply(response.status, code, None, response.read())
            raise server._reply_error(what, reply, read_only=True)
        connection.sock.settimeout(timeout_seconds)
        while piece := response.read(_PIECE_BYTES):
            yield piece
    except TimeoutError:
        why = f"nothing within {timeout_seconds:g} s"
        raise reply_lost(server.url, what, "SOCKET_TIMEOUT", why, True) from None
    except FAILURES as error:
        raise reply_lost(server.url, what, "CONNECTION_LOST", reason_of(error), True) from None
    finally:
        server.close()


_PIECE_BYTES = 1 << 20


def _unreached_hint(address: Address, why: str) -> str:
    """What to do where no server answered."""
    if "WRONG_VERSION_NUMBER" in why:
        return f"What listens there speaks no TLS: write http://{address.host}:…"
    if address.secure:
        # A server that wants a certificate just ends the connection, at times without a word.
        return f"{NETWORK_HINT} {_CERTIFICATES}"
    if address.port in _TLS_PORTS:
        return f"A listener with TLS ends a plain connection so: is it https? {NETWORK_HINT}"
    return NETWORK_HINT


#: Where ClickHouse listens for TLS by default, and what stands before it.
_TLS_PORTS = frozenset({443, 8443, 9440})
_CERTIFICATES = (
    "Look at the server's certificate, and at `tls` in [clickhouse]: its `ca` must have signed the "
    "server's, and its `certificate` is shown to a server that asks for one."
)
_KEEP_ALIVE = "The server, or a proxy before it, must keep connections alive (keep_alive_timeout)."


def _wall_ms(date: str | None) -> int | None:
    try:
        return int(parsedate_to_datetime(date or "").timestamp() * 1000)
    except (ValueError, TypeError):
        return None


def _written_rows(summary: str | None) -> int | None:
    try:
        return int(json.loads(summary or "")["written_rows"])
    except (ValueError, KeyError, TypeError):
        return None
