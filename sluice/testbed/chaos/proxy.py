"""A TCP proxy that breaks connections on purpose.

It forwards bytes between clients and one server, and does to them what networks do. It runs
on an event loop in a thread of its own; all public methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

from sluice.testbed.chaos.requests import Watch, WatchMaker

_PIECE_BYTES = 1 << 16
_CONNECT_SECONDS_MAX = 5.0
#: A dropped reply: so long after its first byte the client's connection is reset.
_RESET_AFTER_SECONDS = 0.2
#: And for so long the server may go on with what it was asked.
_LINGER_SECONDS = 5.0
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Kind(StrEnum):
    """What a fault does while it lasts."""

    #: All connections are reset (RST), and each new one at once.
    CUT = "cut"
    #: Every piece waits `seconds`, in both directions.
    DELAY = "delay"
    #: Nothing passes; what was held is delivered at the end, even if the client has left.
    HOLD = "hold"
    #: Wanted requests reach the server, their replies vanish, then the client is reset.
    DROP_REPLY = "drop-reply"
    #: Everything is swallowed in silence; connections seem open, and are reset at the end.
    HALF_OPEN = "half-open"
    #: At most `bytes_per_second` pass for each connection and direction.
    THROTTLE = "throttle"


@dataclass(frozen=True, slots=True)
class LinkFault:
    """A fault on all connections of a proxy.

    :param seconds: of a DELAY.
    :param bytes_per_second: of a THROTTLE.
    """

    kind: Kind
    seconds: float = 0.2
    bytes_per_second: int = 64 * 1024


@dataclass(slots=True)
class Counters:
    """What a proxy has done so far.

    :param resets: connections that it reset.
    :param dropped_replies: replies to wanted requests that it withheld.
    """

    connections: int = 0
    resets: int = 0
    dropped_replies: int = 0
    swallowed_bytes: int = 0
    forwarded_bytes: int = 0


class Proxy:
    """Listens on loopback, forwards to one server.

    :param watch: recognises the requests whose replies DROP_REPLY withholds.
    :param server: (host, port); may be set later, before the first client comes.
    """

    def __init__(self, watch: WatchMaker, server: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.server = server
        self.counters = Counters()
        self._watch = watch
        self._fault: LinkFault | None = None
        self._ambush: tuple[float, Callable[[], None]] | None = None
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def fault(self) -> LinkFault | None:
        """What is broken now."""
        return self._fault

    def strike(self, fault: LinkFault) -> None:
        """Begin a fault; it replaces the one before."""
        self._call(lambda: self._set(fault))

    def heal(self) -> None:
        """End the fault. Connections that lost bytes are reset: they cannot go on."""
        self._call(lambda: self._set(None))

    def ambush(self, after_seconds: float, action: Callable[[], None]) -> None:
        """Once: forward the next wanted request, wait so long, call `action`.

        :param action: called in the proxy's thread; it must be short.
        """
        self._call(lambda: setattr(self, "_ambush", (after_seconds, action)))

    def disarm(self) -> bool:
        """Take an ambush back; False if it has struck."""
        before = self._ambush is not None
        self._call(lambda: setattr(self, "_ambush", None))
        return before

    def close(self) -> None:
        """Reset all connections and stop. Harmless when repeated."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _call(self, change: Callable[[], None]) -> None:
        """Run in the loop's thread and wait until it is done."""
        done = threading.Event()

        def run() -> None:
            change()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def _set(self, fault: LinkFault | None) -> None:
        self._fault = fault
        for link in list(self._links):
            if link.lossy or (fault is not None and fault.kind is Kind.CUT):
                link.reset()
        self._changed.set()
        self._changed = asyncio.Event()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        listening = self._loop.run_until_complete(
            asyncio.start_server(self._accept, sock=self._socket, limit=_PIECE_BYTES)
        )
        self._loop.run_forever()
        listening.close()
        for link in list(self._links):
            link.reset()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counters.connections += 1
        if self._fault is not None and self._fault.kind is Kind.CUT:
            self.counters.resets += 1
            return _reset(writer)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS_MAX):
                server = await asyncio.open_connection(*self.server, limit=_PIECE_BYTES)
        except OSError:
            self.counters.resets += 1
            return _reset(writer)
        link = _Link(self, (reader, writer), server, self._watch())
        self._links.add(link)
        try:
            await link.run()
        except asyncio.CancelledError:
            return None  # the proxy closes; asyncio would report it as an error
        finally:
            self._links.discard(link)
        return None

    async def passes(self, data: bytes) -> bool:
        """Wait as long as the fault wants; False if it swallows the bytes."""
        while True:
            fault, changed = self._fault, self._changed
            match fault.kind if fault else None:
                case Kind.HOLD:
                    await changed.wait()
                    continue
                case Kind.HALF_OPEN:
                    self.counters.swallowed_bytes += len(data)
                    return False
                case Kind.DELAY | Kind.THROTTLE:
                    assert fault is not None
                    is_delay = fault.kind is Kind.DELAY
                    seconds = fault.seconds if is_delay else len(data) / fault.bytes_per_second
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await changed.wait()
            self.counters.forwarded_bytes += len(data)
            return True

    @property
    def piece_bytes(self) -> int:
        """Throttled pieces are small, so that bytes flow rather than come in lumps."""
        is_slow = self._fault is not None and self._fault.kind is Kind.THROTTLE
        return 4096 if is_slow else _PIECE_BYTES

    def take_ambush(self) -> tuple[float, Callable[[], None]] | None:
        """The ambush, which strikes once."""
        taken, self._ambush = self._ambush, None
        return taken

    @property
    def drops_replies(self) -> bool:
        """Whether replies to wanted requests vanish now."""
        return self._fault is not None and self._fault.kind is Kind.DROP_REPLY


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection, and ours to the server."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams, watch: Watch) -> None:
        self.lossy = False
        self._proxy = proxy
        self._client_in, self._client_out = client
        self._server_in, self._server_out = server
        self._watch = watch
        self._withholds = False

    async def run(self) -> None:
        """Forward both directions until one side ends or the link is reset."""
        up = asyncio.create_task(self._requests())
        down = asyncio.create_task(self._replies())
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if up.done() and not down.done():
                # The client left; what it sent is with the server, which may still answer.
                await asyncio.wait({down}, timeout=_LINGER_SECONDS if self._withholds else 0.1)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for writer in (self._client_out, self._server_out):
                with contextlib.suppress(OSError, RuntimeError):
                    writer.close()

    def reset(self) -> None:
        """RST to both sides."""
        self._proxy.counters.resets += 1
        _reset(self._client_out)
        _reset(self._server_out)

    async def _requests(self) -> None:
        with _ends_quietly():
            while data := await self._client_in.read(self._proxy.piece_bytes):
                wanted = self._watch.feed(data)
                if not await self._proxy.passes(data):
                    self.lossy = True
                    continue
                ambush = self._proxy.take_ambush() if wanted else None
                self._withholds |= wanted and self._proxy.drops_replies
                self._server_out.write(data)
                await self._server_out.drain()
                if ambush is not None:
                    await asyncio.sleep(ambush[0])
                    ambush[1]()

    async def _replies(self) -> None:
        with _ends_quietly():
            while data := await self._server_in.read(self._proxy.piece_bytes):
                if self._withholds:
                    self._proxy.counters.dropped_replies += 1
                    self._proxy.counters.swallowed_bytes += len(data)
                    self.lossy = True
                    await asyncio.sleep(_RESET_AFTER_SECONDS)
                    self._proxy.counters.resets += 1
                    _reset(self._client_out)
                    # Not a word to the server: it goes on as if the client were still there.
                    await asyncio.sleep(_LINGER_SECONDS)
                    return
                if not await self._proxy.passes(data):
                    self.lossy = True
                    continue
                self._client_out.write(data)
                await self._client_out.drain()


@contextlib.contextmanager
def _ends_quietly() -> Iterator[None]:
    """A connection that breaks is what this module is about."""
    with contextlib.suppress(OSError, RuntimeError):
        yield


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        raw = writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        writer.transport.abort()
