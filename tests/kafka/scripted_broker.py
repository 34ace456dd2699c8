"""A broker of a few lines over real sockets: for what a real one does rarely, or never."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from sluice.kafka.wire import messages
from tests.kafka.wire_log import SOURCE, MemoryLog

TLS = Path(__file__).parent / "tls"
AUTHORITY = TLS / "authority.pem"

#: What an answer to one request is: bytes, or None to close the connection.
Answer = Callable[[bytes], bytes | None]


@dataclass
class ScriptedBroker:
    """Answers by kind of request; `answers` may be changed while it runs.

    :param asked: the kinds of all requests.
    """

    log: MemoryLog
    port: int = 0
    versions: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {kind: (0, version) for kind, version in messages.VERSIONS.items()}
    )
    answers: dict[int, Answer] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    connections: int = 0

    def __post_init__(self) -> None:
        self.answers = {
            messages.API_VERSIONS: self._api_versions,
            messages.METADATA: self.metadata,
            messages.FETCH: self.fetch,
            messages.LIST_OFFSETS: self._list_offsets,
            messages.SASL_HANDSHAKE: lambda _: struct.pack(">hi", 0, 0),
            **self.answers,
        }

    def fetch(self, body: bytes) -> bytes:
        offset, _, size = struct.unpack_from(">qqi", body, len(body) - 26)
        return self.log._fetched(offset, size)

    def metadata(self, _body: bytes, leader: int = 7, error: int = 0) -> bytes:
        text = messages.text
        return b"".join(
            (
                struct.pack(">iii", 0, 1, 7) + text("localhost"),
                struct.pack(">ihh", self.port, -1, -1),
                struct.pack(">iih", 7, 1, error) + text(SOURCE.topic) + b"\0",
                struct.pack(">ihiii", 1, 0, SOURCE.partition, leader, 4),
                struct.pack(">iiiii", 1, 7, 1, 7, 0),
            )
        )

    def _api_versions(self, _body: bytes) -> bytes:
        known = [struct.pack(">hhh", kind, *span) for kind, span in self.versions.items()]
        return struct.pack(">hi", 0, len(known)) + b"".join(known)

    def _list_offsets(self, body: bytes) -> bytes:
        (which,) = struct.unpack(">q", body[-8:])
        offset = 0 if which == messages.EARLIEST else self.log.end
        head = struct.pack(">ii", 0, 1) + messages.text(SOURCE.topic)
        return head + struct.pack(">iihqq", 1, SOURCE.partition, 0, -1, offset)

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ssl.SSLError):
            stream = connection.makefile("rb")
            while head := stream.read(4):
                request = stream.read(struct.unpack(">i", head)[0])
                kind, _, correlation, client = struct.unpack_from(">hhih", request)
                self.asked.append(kind)
                answer = self.answers[kind](request[10 + client :])
                if answer is None:
                    return
                whole = struct.pack(">ii", len(answer) + 4, correlation) + answer
                connection.sendall(whole)


@contextmanager
def scripted_broker(broker: ScriptedBroker, tls: bool = False) -> Iterator[ScriptedBroker]:
    """The broker, on a free port of localhost."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "broker.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        broker.port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                broker.connections += 1
                threading.Thread(target=begin, args=(connection,), daemon=True).start()

        def begin(connection: socket.socket) -> None:
            with suppress(OSError):
                secured = context.wrap_socket(connection, server_side=True) if tls else connection
                broker.serve(secured)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield broker
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
