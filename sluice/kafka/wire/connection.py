"""One blocking connection to a broker; answers come in the order of the requests."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections import deque
from contextlib import suppress

import confluent_kafka as ck
import numpy as np

from sluice.core.errors import ConfigurationError
from sluice.kafka.errors import KafkaRefusedError, kafka_error
from sluice.kafka.wire import messages
from sluice.kafka.wire.messages import BrokenAnswerError, Cursor
from sluice.kafka.wire.security import Security, authenticate

#: A broker that sends nothing for so long is given up; less than the time to a stall, so
#: that there is time for another attempt.
SILENCE_SECONDS = 7.0

#: A broker sends more than was asked for only if one batch is larger.
ANSWER_BYTES_MAX = 1 << 30


class Connection:
    """Connected, authenticated, and known to speak our versions.

    :raises OSError: no connection.
    :raises SluiceError: the broker refuses, or is none.
    """

    def __init__(self, address: tuple[str, int], security: Security, client: str) -> None:
        self._client = client
        self._correlation = 0
        self._pending: deque[tuple[int, int]] = deque()
        self.name = f"{address[0]}:{address[1]}"
        #: Until then the broker reads no request, since a quota is used up; by `time.monotonic`.
        self.slowed_until = float("-inf")
        self._socket = socket.create_connection(address, SILENCE_SECONDS)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._secure(address[0], security)
            self._check_versions()
            if security.mechanism:
                self._authenticate(security)
        except BaseException:
            self.close()
            raise

    def send(self, kind: int, body: bytes, version: int | None = None) -> None:
        """Send a request; `receive` brings the answer.

        :param version: another one than all brokers know.
        """
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        self._pending.append((kind, self._correlation))
        try:
            whole = messages.request(kind, self._correlation, self._client, body, version)
            self._socket.sendall(whole)
        except OSError as error:
            raise ConnectionError(f"{self.name}: {error}") from None

    def receive(self) -> memoryview:
        """The answer to the oldest request, after its head."""
        kind, expected = self._pending[0]
        head = bytearray(8)
        self._fill(memoryview(head))
        size, correlation = struct.unpack(">ii", head)
        if correlation != expected or not 4 <= size <= ANSWER_BYTES_MAX:
            raise BrokenAnswerError(
                f"{self.name} answered request {kind} with what is no answer of Kafka"
            )
        answer = np.empty(size - 4, np.uint8).data
        self._fill(answer)
        self._pending.popleft()  # only now: what was read in part is of no use
        return answer

    def comes(self, seconds: float) -> bool:
        """Whether something of an answer comes within so long."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is still to come, in whole or in part."""
        return bool(self._pending)

    def ask(self, kind: int, body: bytes, version: int | None = None) -> Cursor:
        """Send, and wait for the answer."""
        self.send(kind, body, version)
        return Cursor(self.receive())

    def close(self) -> None:
        """Safe to repeat."""
        with suppress(OSError):
            self._socket.close()

    def _fill(self, room: memoryview) -> None:
        """All of it. Without TLS the kernel waits for the whole, which saves waking up."""
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else socket.MSG_WAITALL
        filled = 0
        while filled < len(room):
            try:
                count = self._socket.recv_into(room[filled:], 0, flags)
            except BlockingIOError:
                raise TimeoutError(
                    f"{self.name} sent nothing for {SILENCE_SECONDS:.0f} s"
                ) from None
            if count == 0:
                raise ConnectionResetError(f"{self.name} closed the connection")
            filled += count

    def _secure(self, host: str, security: Security) -> None:
        if security.tls is None:
            # Time limits of the kernel, because Python's would poll before each call.
            limit = struct.pack("ll", int(SILENCE_SECONDS), 0)
            self._socket.settimeout(None)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, limit)
            return
        try:
            self._socket = security.tls.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise KafkaRefusedError(f"the certificate of {self.name}: {error}") from None

    def _check_versions(self) -> None:
        #: Request -> lowest and highest version that the broker knows.
        self.versions = known = messages.read_api_versions(self.ask(messages.API_VERSIONS, b""))
        for kind, name in messages.NAMES.items():
            lowest, highest = known.get(kind, (0, -1))
            if not lowest <= messages.VERSIONS[kind] <= highest:
                raise ConfigurationError(
                    f"{self.name} does not know version {messages.VERSIONS[kind]} of {name}",
                    'Brokers from 2.3 on do; for older ones set reader = "librdkafka".',
                )

    def _authenticate(self, security: Security) -> None:
        action = f"authenticating at {self.name} by {security.mechanism}"
        answer = self.ask(messages.SASL_HANDSHAKE, messages.text(security.mechanism))
        error = answer.number("h")
        if error:
            known = ", ".join(answer.array(answer.text))
            raise KafkaRefusedError(f"{action}: the broker offers {known or 'nothing'}")

        def exchange(token: bytes) -> bytes:
            body = struct.pack(">i", len(token)) + token
            answer = self.ask(messages.SASL_AUTHENTICATE, body)
            error, reason = answer.number("h"), answer.text()
            if error:
                refused = kafka_error(action, ck.KafkaError(error))
                raise type(refused)(f"{refused.message}: {reason}", refused.hint)
            return answer.bytes()

        authenticate(security, exchange)
