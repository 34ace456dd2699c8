"""Hosts of a test's own: network namespaces of this machine, with an address each, on one bridge.

What listens on this machine's loopback address alone, as the local stack does, is reached from such
a host at the same address and port: over the bridge, so that a cut link cuts it off.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from sluice.testbed.chaos.spark_cluster import LOOPBACK
from sluice.testbed.local.lifetime import dying_with_parent

#: For measurements between networks (RFC 2544): nobody's address.
_NETWORK = "198.18.77"
#: This machine's address on the bridge.
HERE = f"{_NETWORK}.1"
#: Listens on the first address, and connects to the second one, on the same ports.
_FORWARD = """
import asyncio, sys
here, there, *ports = sys.argv[1:]

async def copy(reader, writer):
    try:
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def main():
    for port in ports:
        async def serve(reader, writer, port=port):
            try:
                there_reader, there_writer = await asyncio.open_connection(there, port)
            except OSError:
                return writer.close()
            await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))
        await asyncio.start_server(serve, here, port)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True)
class Host:
    """A network namespace.

    :param link: this machine's end of its cable.
    """

    name: str
    address: str
    link: str

    @property
    def inside(self) -> list[str]:
        """What a command has to begin with to run there."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Nothing gets through any more, in no direction, and nobody is told."""
        _ip("link", "set", self.link, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self.link, "up")


@contextmanager
def running_hosts(count: int, ports: Sequence[int]) -> Iterator[list[Host]]:
    """Hosts until the block ends; to be used by root.

    :param ports: that listen on this machine's loopback address.
    """
    bridge = f"sl{os.getpid()}"
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", bridge)
        _ip("address", "add", f"{HERE}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        forward = [sys.executable, "-c", _FORWARD]
        numbers = [str(port) for port in ports]
        _run(stack, [*forward, HERE, LOOPBACK, *numbers])
        hosts = []
        for number in range(count):
            host = Host(f"{bridge}-{number}", f"{_NETWORK}.{number + 2}", f"{bridge}{number}")
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "delete", host.name)
            _ip("link", "add", host.link, "type", "veth", "peer", "eth0", "netns", host.name)
            _ip("link", "set", host.link, "master", bridge, "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
            _run(stack, [*host.inside, *forward, LOOPBACK, HERE, *numbers])
            hosts.append(host)
        yield hosts


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _run(stack: ExitStack, command: list[str]) -> None:
    process = subprocess.Popen(dying_with_parent(command))
    stack.callback(process.wait)
    stack.callback(process.kill)
