"""Each fault of the proxy does what it says, on real connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import END_TRANSACTION, PRODUCE, Inserts, KafkaRequests
from tests.support.world import wait_for

#: Far longer than anything takes here, on any machine.
PATIENCE_SECONDS = 20.0
#: Long enough that what could have come would have come.
A_WHILE_SECONDS = 0.5


class WantsBang:
    """The wanted requests are those with an exclamation mark."""

    def feed(self, data: bytes) -> bool:
        return b"!" in data


class Echo:
    """A server that answers each piece with itself, and remembers what it got."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._socket.getsockname()[1])
        self.received = b""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            while data := client.recv(65536):
                self.received += data
                client.sendall(data)

    def close(self) -> None:
        self._socket.close()

    def has(self, text: bytes) -> bool:
        """Whether it gets these bytes, in time."""
        until = time.monotonic() + PATIENCE_SECONDS
        while text not in self.received and time.monotonic() < until:
            time.sleep(0.01)
        return text in self.received


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(WantsBang, echo.address) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with connect(proxy) as connection:
        assert ask(connection, b"hello") == b"hello"
        yield connection


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), PATIENCE_SECONDS)


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return receive(client, len(text))


def receive(client: socket.socket, count: int) -> bytes:
    answer = b""
    while len(answer) < count and (data := client.recv(65536)):
        answer += data
    return answer


def silent(client: socket.socket) -> bool:
    """Nothing comes, not even an end."""
    client.settimeout(A_WHILE_SECONDS)
    try:
        client.recv(1)
        return False
    except TimeoutError:
        return True
    finally:
        client.settimeout(PATIENCE_SECONDS)


def test_bytes_pass_in_both_directions(proxy: Proxy, client: socket.socket) -> None:
    large = bytes(range(256)) * 4096
    threading.Thread(target=client.sendall, args=(large,), daemon=True).start()
    assert receive(client, len(large)) == large
    assert proxy.counters.connections == 1
    assert proxy.counters.forwarded_bytes == 2 * (len(large) + 5)


def test_the_end_of_a_client_reaches_the_server(proxy: Proxy, echo: Echo) -> None:
    with connect(proxy) as client:
        client.sendall(b"last words")
    assert echo.has(b"last words")


def test_a_server_that_is_away_resets_the_client(proxy: Proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        proxy.server = ("127.0.0.1", closed.getsockname()[1])
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_cut_resets_what_is_open_and_what_comes(proxy: Proxy, client: socket.socket) -> None:
    proxy.strike(LinkFault(Kind.CUT))
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises((ConnectionResetError, BrokenPipeError)), connect(proxy) as late:
        late.sendall(b"x")
        late.recv(1)
        late.recv(1)
    proxy.heal()
    with connect(proxy) as again:
        assert ask(again, b"again") == b"again"


def test_delay_holds_each_piece_up(proxy: Proxy, client: socket.socket) -> None:
    proxy.strike(LinkFault(Kind.DELAY, seconds=0.4))
    began = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    assert time.monotonic() - began >= 0.75, "0.4 s there, 0.4 s back"
    proxy.heal()
    assert ask(client, b"fast") == b"fast"
    assert proxy.counters.resets == 0


def test_hold_delivers_at_the_end(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.strike(LinkFault(Kind.HOLD))
    client.sendall(b"late")
    assert silent(client)
    assert b"late" not in echo.received
    proxy.heal()
    assert receive(client, 4) == b"late"
    assert proxy.counters.resets == 0


def test_hold_delivers_what_a_client_sent_before_it_left(proxy: Proxy, echo: Echo) -> None:
    """The insert that arrives long after its sender gave up."""
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"
        proxy.strike(LinkFault(Kind.HOLD))
        client.sendall(b"testament")
    time.sleep(A_WHILE_SECONDS)
    assert b"testament" not in echo.received
    proxy.heal()
    assert echo.has(b"testament")


def test_drop_reply_delivers_the_request(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.strike(LinkFault(Kind.DROP_REPLY))
    assert ask(client, b"a ping") == b"a ping", "other replies pass"
    client.sendall(b"insert!")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert b"insert!" in echo.received
    assert proxy.counters.dropped_replies == 1
    proxy.heal()
    with connect(proxy) as again:
        assert ask(again, b"insert!") == b"insert!"


def test_half_open_swallows_in_silence_and_resets_at_the_end(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    with connect(proxy) as untouched:
        assert ask(untouched, b"idle") == b"idle"
        proxy.strike(LinkFault(Kind.HALF_OPEN))
        client.sendall(b"into the void")
        wait_for(lambda: proxy.counters.swallowed_bytes == 13, PATIENCE_SECONDS, "what is lost")
        assert silent(client)
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        assert ask(untouched, b"alive") == b"alive", "it lost nothing"
    assert b"void" not in echo.received


def test_throttle_limits_the_rate(proxy: Proxy, client: socket.socket) -> None:
    proxy.strike(LinkFault(Kind.THROTTLE, bytes_per_second=64 * 1024))
    text = b"x" * 64 * 1024
    began = time.monotonic()
    threading.Thread(target=client.sendall, args=(text,), daemon=True).start()
    assert receive(client, len(text)) == text
    assert time.monotonic() - began >= 0.9
    assert proxy.counters.resets == 0


def test_an_ambush_strikes_once_at_a_wanted_request(
    proxy: Proxy, client: socket.socket, echo: Echo
) -> None:
    struck: list[bytes] = []
    sprung = threading.Event()

    def strike() -> None:
        struck.append(echo.received)
        sprung.set()

    proxy.ambush(0.0, strike)
    assert ask(client, b"nothing") == b"nothing"
    assert not struck
    client.sendall(b"now!")
    assert sprung.wait(PATIENCE_SECONDS)
    receive(client, 4)
    assert ask(client, b"more!") == b"more!"
    assert len(struck) == 1
    assert not proxy.disarm(), "it has struck"
    proxy.ambush(0.0, strike)
    assert proxy.disarm()


def frame(kind: int, content: bytes) -> bytes:
    body = kind.to_bytes(2, "big") + content
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_kafka_requests_are_told_apart_however_they_are_cut(step: int) -> None:
    wanted = frame(END_TRANSACTION, b"x" * 40)
    decoy = frame(PRODUCE, wanted * 2)
    stream = decoy + decoy + wanted + decoy
    watch = KafkaRequests(frozenset({END_TRANSACTION}))
    found = [at for at in range(0, len(stream), step) if watch.feed(stream[at : at + step])]
    head_end = 2 * len(decoy) + 5
    assert found == [head_end - head_end % step]


@pytest.mark.parametrize("step", [1, 5, 1000])
def test_inserts_are_told_from_other_requests(step: int) -> None:
    stream = b"GET /ping HTTP/1.1\r\n\r\nPOST /?wait_end_of_query=1 HTTP/1.1\r\n\r\nSELECT 1"
    watch = Inserts()
    assert not any(watch.feed(stream[at : at + step]) for at in range(0, len(stream), step))
    stream = b"POST /?query=INSERT+INTO+t+FORMAT+Native HTTP/1.1\r\n\r\n"
    found = [watch.feed(stream[at : at + step]) for at in range(0, len(stream), step)]
    assert sum(found) == 1
