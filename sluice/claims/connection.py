"""A connection to one Redis or Valkey server: commands, and typed replies."""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass, field

from sluice.claims.port import StoreAwayError, StoreRefusedError

_CONNECT_SECONDS_MAX = 5.0
#: A server that writes a snapshot or loads a script may keep everybody waiting for seconds.
_REPLY_SECONDS_MAX = 20.0
_RECEIVE_BYTES = 1 << 18

Reply = bytes | int | None | list["Reply"]

OTHERS_KEYS = "Another program writes keys that begin with `sluice:`; give claims a database."
#: What a server answers that no repeat can change, by the first word of the reply.
_REFUSALS = {
    "NOAUTH": "Write its password into the configuration.",
    "WRONGPASS": "Correct the user or the password.",
    "NOPERM": "Give the user the right to use every key and command of Sluice.",
    "WRONGTYPE": OTHERS_KEYS,
    "NAMESAKE": "Name the table entry otherwise: claims of two are told apart no more.",
}
#: What the first word of a reply would be, as a script says it, some before Redis 7.
_SAID_IN_SCRIPTS = re.compile(
    r"can't run this command|ACL failure|\b(?P<word>WRONGTYPE|OOM|NAMESAKE)\b"
)
_FULL = "Give it more memory (maxmemory), or make the window shorter."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is, and how it is entered.

    :param user: "" for the default user; `password`: "" for none.
    :param tls: None: not encrypted.
    """

    host: str
    port: int
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def tls_context(ca_file: str) -> ssl.SSLContext:
    """What a server has to show.

    :param ca_file: certificates in PEM that sign it; "" for those of the machine.
    :raises StoreRefusedError: the file cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        raise StoreRefusedError(f"ca_file {ca_file!r}: {error}", "Correct ca_file.") from None


def command(*arguments: bytes) -> bytes:
    """As it is sent."""
    texts = [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"*%d\r\n%b" % (len(arguments), b"".join(texts))


class Connection:
    """One thread's. It is closed by everything it raises: the replies that come are nobody's.

    :raises StoreAwayError: the server cannot be reached, or breaks off.
    :raises StoreRefusedError: it lets nobody in like this.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._received = bytearray()
        self._at = 0
        self._socket: socket.socket | None = None
        try:
            self._socket = socket.create_connection(
                (endpoint.host, endpoint.port), _CONNECT_SECONDS_MAX
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if endpoint.tls is not None:
                self._socket = endpoint.tls.wrap_socket(self._socket, server_hostname=endpoint.host)
            self._socket.settimeout(_REPLY_SECONDS_MAX)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise StoreRefusedError(
                f"store of claims {endpoint}: its certificate: {error.verify_message}",
                "Name the certificate that signs it as ca_file.",
            ) from None
        except OSError as error:
            raise self._away(error) from None
        if endpoint.password:
            user = (endpoint.user.encode(),) if endpoint.user else ()
            self.call(b"AUTH", *user, endpoint.password.encode())
        if endpoint.database:
            self.call(b"SELECT", b"%d" % endpoint.database)

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def send(self, commands: bytes) -> None:
        """Send commands; their replies have to be read, in order."""
        try:
            self._opened().sendall(commands)
        except OSError as error:
            raise self._away(error) from None
        except BaseException:
            self.close()
            raise

    def call(self, *arguments: bytes) -> Reply:
        """One command and its reply."""
        self.send(command(*arguments))
        return self.reply()

    def reply(self) -> Reply:
        """The next reply."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._exactly(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise self._told(line)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _line(self) -> bytes:
        while (end := self._received.find(b"\r\n", self._at)) < 0:
            self._receive()
        line = bytes(self._received[self._at : end])
        self._at = end + 2
        return line

    def _exactly(self, size: int) -> bytes:
        while len(self._received) - self._at < size:
            self._receive()
        self._at += size
        return bytes(self._received[self._at - size : self._at])

    def _receive(self) -> None:
        """Wait for more; what was read before is let go."""
        try:
            more = self._opened().recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._away(error) from None
        except BaseException:
            self.close()
            raise
        if not more:
            raise self._away("it closed the connection")
        del self._received[: self._at]
        self._at = 0
        self._received += more

    def _opened(self) -> socket.socket:
        if self._socket is None:
            raise StoreAwayError(f"store of claims {self.endpoint}: the connection is closed")
        return self._socket

    def _away(self, why: object) -> StoreAwayError:
        self.close()
        return StoreAwayError(f"store of claims {self.endpoint} does not answer: {why}")

    def _told(self, line: bytes) -> StoreAwayError | StoreRefusedError:
        """An error that the server answered."""
        self.close()
        text = line.lstrip(b"-").decode(errors="replace")
        word = text.partition(" ")[0]
        if word == "ERR" and (said := _SAID_IN_SCRIPTS.search(text)):
            word = said["word"] or "NOPERM"
        what = f"store of claims {self.endpoint}: {text}"
        if word in _REFUSALS:
            return StoreRefusedError(what, _REFUSALS[word])
        if word == "OOM":
            return StoreAwayError(f"store of claims {self.endpoint} is full: {text}", _FULL)
        if "unknown command" in text:
            return StoreRefusedError(what, "Use Redis 5 or later, or Valkey, with Lua scripts.")
        return StoreAwayError(what)
