"""What a worker process keeps between tasks: connections, decoders, load specs."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.claims.port import ClaimStore
from sluice.claims.stores import StoreAccess, open_store
from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.copying import Definitions
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts
from sluice.core.errors import TerminalError
from sluice.core.load_spec import LoadSpec, TableSpec, parse_spec
from sluice.core.replicas import Breaker
from sluice.decode.formats import make_decoder
from sluice.decode.keys.hashing import RowKeys
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import TableDecoder
from sluice.decode.messages.framing import Framing
from sluice.decode.schema.registry import provide
from sluice.decode.sharding.splitter import Splitter
from sluice.decode.version import decoder_version
from sluice.kafka.reader import RangeReader
from sluice.kafka.readers import Reader, make_reader
from sluice.kafka.registry import RegistryClient
from sluice.locks.port import Locks
from sluice.worker.assignment import TaskEnvironment


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """How a server takes blocks.

    :param settings: of every insert.
    :param tokens: it knows a block by its token; else by the rows.
    :param one_by_one: it refuses an insert into a table while another waits for its quorum.
    :param hashes: see `Capabilities`.
    """

    version: str
    settings: dict[str, str]
    tokens: bool
    one_by_one: bool = False
    hashes: str = ""

    def __str__(self) -> str:
        hashes = f" and {self.hashes}" if self.hashes else ""
        return f"{self.version} {'with' if self.tokens else 'without'} tokens{hashes}"


class OtherDecoderError(TerminalError):
    """This worker does not decode as the recorded load spec says."""

    hint = (
        "Give the driver and all workers the same packages (spark.pyspark.python, "
        "spark.submit.pyFiles or the machines' own), then start the driver again."
    )


@dataclass(slots=True)
class WorkerCache:
    """What a worker process keeps between tasks: connections, decoders, load specs.

    :param has: the decoder of this process.

    A Spark worker runs one task at a time, which may insert into several shards at once: what
    is known of servers may be used by several threads, each for servers of its own.
    """

    readers: dict[tuple[str, bool], Reader] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    profiles: dict[tuple[str, int, bool], ServerProfile] = field(default_factory=dict)
    specs: dict[str, LoadSpec] = field(default_factory=dict)
    decoders: dict[tuple[str, str], TableDecoder] = field(default_factory=dict)
    splitters: dict[tuple[str, str], Splitter] = field(default_factory=dict)
    key_hashes: dict[tuple[str, str], RowKeys] = field(default_factory=dict)
    stores: dict[StoreAccess, ClaimStore] = field(default_factory=dict)
    registries: set[str] = field(default_factory=set)
    #: By replica, load spec, entry and shard, what was looked at: whether the zone matters there.
    checked: dict[tuple[str, str, str, str], bool] = field(default_factory=dict)
    #: The same of staged entries: what the target is like, and what of it may change.
    staged: dict[tuple[str, str, str, str], tuple[TableFacts, Definitions]] = field(
        default_factory=dict
    )
    spare: MessageBuffer | None = None
    breaker: Breaker = field(default_factory=Breaker)
    locks: dict[str, Locks] = field(default_factory=dict)
    has: str = field(default_factory=decoder_version)
    #: A server that did not answer may still store a block of the range that is loaded now.
    may_land: bool = False
    #: See `TaskReport`, of the range that is loaded now.
    may_lack_part: bool = False
    looks: int = 0

    def begin_range(self, looks: int = 0) -> None:
        """A new range is loaded now.

        :param looks: see `ClickHouseAccess`.
        """
        self.may_land = self.may_lack_part = False
        if looks != self.looks:
            self.looks = looks
            self.profiles.clear()
            self.checked.clear()
            self.staged.clear()

    def lands_late(self) -> None:
        """See `may_land`."""
        self.may_land = True

    def lacks_part(self) -> None:
        """See `may_lack_part`."""
        self.may_lack_part = True

    def buffer(self, framing: Framing) -> MessageBuffer:
        """An empty buffer; first the one that was kept, whose memory is there already."""
        buffer, self.spare = self.spare or MessageBuffer(), None
        buffer.clear(framing)
        return buffer

    def keep(self, buffers: Iterable[MessageBuffer]) -> None:
        """Take buffers back: one is kept, the others are closed."""
        for buffer in buffers:
            if self.spare is None:
                buffer.clear()
                self.spare = buffer
            else:
                buffer.close()

    def reader(self, environment: TaskEnvironment, *, looks: bool = False) -> Reader:
        """The reader of this connector.

        :param looks: keys and headers are needed, which only librdkafka's reader gives.
        """
        key = (f"{environment.kafka.connector}@{environment.kafka.brokers}", looks)
        if key not in self.readers:
            self.readers[key] = (
                RangeReader(environment.kafka) if looks else make_reader(environment.kafka)
            )
        return self.readers[key]

    def spec(self, environment: TaskEnvironment, digest: str) -> LoadSpec:
        """The load spec that decides the rows.

        :raises OtherDecoderError: this process would make other rows of it.
        """
        if digest not in self.specs:
            spec = parse_spec(environment.specs[digest])
            if spec.decoder != self.has:
                raise OtherDecoderError(
                    f"the range is recorded for {spec.decoder}, and the worker on "
                    f"{platform.node()} decodes with {self.has}: nothing of it is inserted"
                )
            self.specs[digest] = spec
        return self.specs[digest]

    def decoder(self, environment: TaskEnvironment, digest: str, table: TableSpec) -> TableDecoder:
        """The compiled decoder of a table of a load spec."""
        self._provide_registry(environment, table)
        key = (digest, table.entry)
        if key not in self.decoders:
            self.decoders[key] = make_decoder(table)
        return self.decoders[key]

    def splitter(self, digest: str, table: TableSpec, columns: tuple[str, ...]) -> Splitter:
        """The compiled sharding of a table of a load spec, whose blocks have these columns."""
        key = (digest, table.entry)
        if key not in self.splitters:
            self.splitters[key] = Splitter(table, columns)
        return self.splitters[key]

    def row_keys(self, digest: str, table: TableSpec, columns: tuple[str, ...]) -> RowKeys:
        """What computes the deduplication keys of a table of a load spec."""
        key = (digest, table.entry)
        if key not in self.key_hashes:
            self.key_hashes[key] = RowKeys(table, columns)
        return self.key_hashes[key]

    def claims(self, environment: TaskEnvironment) -> ClaimStore:
        """The store of claims.

        :raises TerminalError: the configuration names none.
        """
        access = environment.claims
        if access is None:
            raise TerminalError(
                "the range deduplicates events, and the configuration names no store of claims",
                "Name one in [deduplication] store; docs/EVENTS.md says which there are.",
            )
        if access not in self.stores:
            self.stores[access] = open_store(access)
        return self.stores[access]

    def _provide_registry(self, environment: TaskEnvironment, table: TableSpec) -> None:
        """A registry that has moved since is asked where it is now: its numbers are the same.

        :raises TerminalError: the configuration names none any more.
        """
        url = table.registry
        if not url or url in self.registries:
            return
        if environment.registry is None:
            raise TerminalError(
                f"the range is recorded with schemas of the registry {url} for table entry "
                f"{table.entry}, and the configuration has no section [registry] any more",
                f'Put [registry] with url = "{url}" back, and start the driver again; take it out '
                "once `sluice status` shows no range of the entry's topics in doubt.",
            )
        provide(url, RegistryClient(environment.registry))
        self.registries.add(url)

    def server(self, environment: TaskEnvironment, url: str) -> Server:
        """The connection to a replica, with the password that the driver has read last."""
        if url not in self.servers:
            self.servers[url] = environment.clickhouse.connect(url)
        elif environment.clickhouse.source:
            self.servers[url].take_password(environment.clickhouse.password)
        return self.servers[url]

    def profile(
        self, environment: TaskEnvironment, url: str, quorum: int, *, deduplicates: bool
    ) -> ServerProfile:
        """How blocks are inserted into this server.

        :param quorum: so many replicas have to have them.
        :param deduplicates: see `insert_settings`.
        """
        key = (url, quorum, deduplicates)
        if key not in self.profiles:
            capabilities = read_capabilities(self.server(environment, url))
            seconds = environment.clickhouse.quorum_timeout_seconds
            self.profiles[key] = ServerProfile(
                capabilities.version_text,
                insert_settings(capabilities, quorum, seconds, deduplicates=deduplicates),
                capabilities.tokens,
                one_by_one=quorum > 1 and not capabilities.parallel_quorums,
                hashes=capabilities.hashes,
            )
        return self.profiles[key]

    def table_locks(self, environment: TaskEnvironment) -> Locks | None:
        """Where this process queues for tables; None: nowhere."""
        hosts = environment.clickhouse.zookeeper
        if hosts and hosts not in self.locks:
            # Most workers need none, and its library takes a while to load.
            from sluice.locks.zookeeper import ZooKeeperLocks

            self.locks[hosts] = ZooKeeperLocks(hosts)
        return self.locks.get(hosts)

    def forget(self, url: str) -> None:
        """After an error: the server may come back as another version."""
        # Threads of other servers may be adding theirs: a copy of the keys is one step.
        for profile in [key for key in tuple(self.profiles) if key[0] == url]:
            del self.profiles[profile]
        for looked in [key for key in tuple(self.checked) if key[0] == url]:
            del self.checked[looked]
        for staged in [key for key in tuple(self.staged) if key[0] == url]:
            del self.staged[staged]
