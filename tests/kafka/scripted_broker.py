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

from sluice.core.ranges import TopicPartition
from sluice.kafka.wire import messages
from sluice.kafka.wire.messages import Cursor
from tests.kafka.wire_log import MemoryLog, fetch_answer

TLS = Path(__file__).parent / "tls"
AUTHORITY = TLS / "authority.pem"

#: What an answer to one request is: bytes, or None to close the connection.
Answer = Callable[[bytes], bytes | None]


@dataclass
class ScriptedBroker:
    """Answers by kind of request; `answers` may be changed while it runs.

    :param more: logs that it leads, too.
    :param others: brokers of the same cluster.
    :param asked: the kinds of all requests.
    """

    log: MemoryLog
    more: list[MemoryLog] = field(default_factory=list)
    others: list[ScriptedBroker] = field(default_factory=list)
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
            messages.LIST_OFFSETS: self.list_offsets,
            messages.SASL_HANDSHAKE: lambda _: struct.pack(">hi", 0, 0),
            **self.answers,
        }

    def fetch(self, body: bytes) -> bytes:
        return fetch_answer([self.log, *self.more], body)

    def metadata(self, _body: bytes, leader: int = 7) -> bytes:
        """Brokers 7 and up, and who leads what."""
        brokers = [self, *self.others]
        text = messages.text
        parts = [struct.pack(">ii", 0, len(brokers))]
        for number, broker in enumerate(brokers, 7):
            parts += struct.pack(">i", number), text("localhost")
            parts.append(struct.pack(">ih", broker.port, -1))
        led = [(log, n) for n, b in enumerate(brokers, leader) for log in (b.log, *b.more)]
        topics = sorted({log.source.topic for log, _ in led})
        parts.append(struct.pack(">hii", -1, 7, len(topics)))
        for topic in topics:
            own = [(log.source.partition, n) for log, n in led if log.source.topic == topic]
            parts += struct.pack(">h", 0), text(topic), struct.pack(">bi", 0, len(own))
            for partition, number in own:
                parts.append(struct.pack(">hiii", 0, partition, number, 4))
                parts.append(struct.pack(">iiiii", 1, 7, 1, 7, 0))
        return b"".join(parts)

    def _api_versions(self, _body: bytes) -> bytes:
        known = [struct.pack(">hhh", kind, *span) for kind, span in self.versions.items()]
        return struct.pack(">hi", 0, len(known)) + b"".join(known)

    def list_offsets(self, body: bytes, epoch: int = 4) -> bytes:
        """Of each partition that it leads; the others are refused."""
        logs = {log.source: log for log in (self.log, *self.more)}
        cursor = Cursor(memoryview(body), struct.calcsize(">ib"))
        topics = cursor.number("i")
        parts = [struct.pack(">ii", 0, topics)]
        for _ in range(topics):
            topic, count = cursor.text(), cursor.number("i")
            parts.append(messages.text(topic) + struct.pack(">i", count))
            for _ in range(count):
                partition, _, which = cursor.numbers("iiq")
                log = logs.get(TopicPartition(topic, partition))
                error = 6 if log is None else log.error
                end = -1 if log is None or error else log.end
                offset = 0 if which == messages.EARLIEST and not error else end
                parts.append(struct.pack(">ihqqi", partition, error, -1, offset, epoch))
        return b"".join(parts)

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
