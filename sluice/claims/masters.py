"""Which servers of Redis or Valkey take claims: one, that which sentinels name, or a cluster's."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.claims.connection import Connection, Endpoint, Reply, tls_context
from sluice.claims.port import StoreAwayError, StoreRefusedError
from sluice.core.errors import ConfigurationError

_SCHEMES = ("redis", "redis-sentinel", "redis-cluster")
_FORMS = (
    "Write redis://HOST:PORT/DATABASE, redis-sentinel://HOST:PORT,HOST:PORT/MASTER/DATABASE or "
    "redis-cluster://HOST:PORT,HOST:PORT, or the same with rediss for TLS; USER@ may precede."
)
#: Of a cluster's slots.
_SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Address:
    """What the configuration says of a store.

    :param scheme: one of _SCHEMES, the same with TLS and without.
    :param servers: hosts and ports.
    :param master: the name that sentinels know it by.
    """

    scheme: str
    servers: tuple[tuple[str, int], ...]
    master: str = ""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def endpoint(self, host: str, port: int) -> Endpoint:
        return Endpoint(host, port, self.database, self.user, self.password, self.tls)


def address_of(url: str, password: str, ca_file: str) -> Address:
    """Read a URL.

    :raises ConfigurationError: it is none of the forms that are known.
    """
    scheme, _, rest = url.partition("://")
    places, _, path = rest.partition("/")
    user, _, servers = places.rpartition("@")
    tls = scheme.startswith("rediss")
    scheme = scheme.replace("rediss", "redis", 1)
    parts = [part for part in path.split("/") if part]
    try:
        found = tuple(_server(server) for server in servers.split(","))
        if scheme not in _SCHEMES or ":" in user or (len(found) > 1 and scheme == "redis"):
            raise ValueError
        master = parts.pop(0) if scheme == "redis-sentinel" else ""
        database = int(parts.pop(0)) if parts else 0
        if parts or database < 0 or (database and scheme == "redis-cluster"):
            raise ValueError
    except (ValueError, IndexError):
        # The URL is not repeated: it may hold a password
        raise ConfigurationError("the address of the store of claims is none", _FORMS) from None
    return Address(
        scheme, found, master, database, user, password, tls_context(ca_file) if tls else None
    )


def _server(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise ValueError(text)
    return host.strip("[]"), int(port)


@dataclass(slots=True)
class Masters:
    """Open connections to all servers that take claims.

    :param node_of_slot: in a cluster, the place among them of each slot's master.
    :param tags: appended to keys that each master has, so that it is the one to keep them.
    """

    connections: list[Connection]
    tags: list[bytes]
    node_of_slot: NDArray[np.intp] | None = None

    @property
    def are_open(self) -> bool:
        return all(connection.is_open for connection in self.connections)

    def serving(self, tags: NDArray[np.uint8]) -> list[Connection]:
        """Who has the keys with each of these texts in braces, one a line."""
        if self.node_of_slot is None:
            return self.connections * len(tags)
        return [self.connections[node] for node in self.node_of_slot[slots(tags)].tolist()]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def connect(address: Address) -> Masters:
    """Find the masters and connect to them.

    :raises StoreAwayError: none is found, or one is a replica now.
    :raises StoreRefusedError: it lets nobody in like this.
    """
    if address.scheme == "redis-cluster":
        return _cluster(address)
    if address.scheme == "redis-sentinel":
        place = _named_by_sentinels(address)
    else:
        place = address.servers[0]
    connection = _master(address.endpoint(*place))
    if information(connection, b"cluster").get("cluster_enabled") == "1":
        connection.close()
        raise StoreRefusedError(
            f"store of claims {connection.endpoint} is a node of a cluster",
            "Write redis-cluster:// (or rediss-cluster://) as its address.",
        )
    return Masters([connection], [b""])


def information(connection: Connection, section: bytes) -> dict[str, str]:
    """What INFO says."""
    text = connection.call(b"INFO", section)
    assert isinstance(text, bytes)
    lines = (line.partition(":") for line in text.decode().splitlines() if ":" in line)
    return {name: value for name, _, value in lines}


def _master(endpoint: Endpoint) -> Connection:
    connection = Connection(endpoint)
    if information(connection, b"replication").get("role") != "master":
        connection.close()
        raise StoreAwayError(
            f"store of claims {endpoint} is a replica, which takes no claims",
            "Write the master's address, or redis-sentinel:// with those of the sentinels.",
        )
    return connection


def _named_by_sentinels(address: Address) -> tuple[str, int]:
    """The first answer counts: whether it is a master is asked of the server itself."""
    why = ""
    for host, port in address.servers:
        for password in dict.fromkeys(("", address.password)):
            # Sentinels mostly have no password, and refuse one that they do not ask for
            try:
                sentinel = Connection(Endpoint(host, port, password=password, tls=address.tls))
                reply = sentinel.call(
                    b"SENTINEL", b"get-master-addr-by-name", address.master.encode()
                )
                sentinel.close()
            except (StoreAwayError, StoreRefusedError) as error:
                why = error.message
                continue
            if isinstance(reply, list):
                return _place(reply, host)
            why = f"sentinel {host}:{port} knows no master {address.master!r}"
    raise StoreAwayError(f"no sentinel names the store of claims: {why}")


def _place(reply: list[Reply], asked: str) -> tuple[str, int]:
    """Host and port, which is all that somebody asked said of another server."""
    host, port = reply[:2]
    assert isinstance(port, bytes | int)
    # A node that knows no name of its own says nothing
    return host.decode() if isinstance(host, bytes) and host else asked, int(port)


def _cluster(address: Address) -> Masters:
    """The masters of all slots, as the first node that answers knows them."""
    away = StoreAwayError("no node of the cluster of claims answers")
    for host, port in address.servers:
        try:
            node = Connection(address.endpoint(host, port))
            reply = node.call(b"CLUSTER", b"SLOTS")
            node.close()
            assert isinstance(reply, list)
            return _masters_of(address, reply, host)
        except StoreAwayError as error:
            away = error
    raise away


def _masters_of(address: Address, reply: list[Reply], asked: str) -> Masters:
    node_of_slot = np.full(_SLOTS, -1, np.intp)
    places: dict[tuple[str, int], int] = {}
    for line in reply:
        assert isinstance(line, list)
        begin, end, master = line[:3]
        assert isinstance(begin, int) and isinstance(end, int) and isinstance(master, list)
        number = places.setdefault(_place(master, asked), len(places))
        node_of_slot[begin : end + 1] = number
    if (node_of_slot < 0).any():
        raise StoreAwayError("the cluster of claims has slots that no node serves")
    masters = Masters([], _tags(node_of_slot, len(places)), node_of_slot)
    try:
        for place in places:
            masters.connections.append(_master(address.endpoint(*place)))
    except BaseException:
        masters.close()
        raise
    return masters


def _tags(node_of_slot: NDArray[np.intp], count: int) -> list[bytes]:
    """For each node a text whose slot it has: in braces, it alone decides the slot of a key."""
    # So many numbers of six digits meet every slot
    texts = np.array([list(b"%06d" % number) for number in range(200_000)], np.uint8)
    met, number_of_slot = np.unique(slots(texts), return_index=True)
    assert len(met) == _SLOTS
    first_slots = [int((node_of_slot == node).argmax()) for node in range(count)]
    return [b"{%06d}" % number_of_slot[slot] for slot in first_slots]


def _crc16_table() -> NDArray[np.uint16]:
    """CRC-16/XMODEM of each byte."""
    table: NDArray[np.uint16] = (np.arange(256) << 8).astype(np.uint16)
    for _ in range(8):
        table = np.where(table & 0x8000, (table << 1) ^ 0x1021, table << 1).astype(np.uint16)
    return table


_CRC16 = _crc16_table()


def slots(names: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """The slot of each key, one a line: names of one length without braces."""
    crc = np.zeros(len(names), np.uint16)
    for column in names.T:
        crc = (crc << 8) ^ _CRC16[(crc >> 8) ^ column]
    return (crc % _SLOTS).astype(np.uint16)
