"""The section [clickhouse]: which servers the rows go to, and when they are there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationInfo

from sluice.config.findings import RefusedError
from sluice.config.secret import Secret
from sluice.config.section import Conflict, Listed, Section
from sluice.config.values import (
    DatabaseName,
    FileName,
    Name,
    SecretText,
    Text,
    Url,
    a_duration,
    a_table,
    a_text,
    shown,
)
from sluice.core.flights import INFLIGHT_INSERTS_LIMIT, INFLIGHT_INSERTS_MAX
from sluice.core.replicas import ReplicaLimits, host_matches, majority

Durability = Literal["quorum", "single"]
Quorum = int | Literal["auto"]

#: So much earlier than an insert a quorum is given up, so that the server can say so.
QUORUM_EARLIER_SECONDS = 5.0

_NO_SHARDS = 'is missing; write it like { s1 = ["http://localhost:8123"] }'
_NO_CLUSTER_SHARDS = (
    'is missing: name the shards of the cluster, as in ["s1", "s2"]; on each of its '
    "servers, SELECT substitution FROM system.macros WHERE macro = 'shard' says which"
)
_ENSEMBLE = re.compile(
    r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
    r"(?:,(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})*"
    r"(?:/[A-Za-z0-9._-]+)*",
    re.ASCII,
)


_REPLICAS_OF_A_QUORUM: TypeAdapter[int] = TypeAdapter(
    Annotated[int, Field(strict=True, ge=2, le=100)]
)


def _a_quorum(value: object) -> Quorum:
    if value == "auto":
        return "auto"
    if isinstance(value, str):
        raise RefusedError(f'{shown(value)} is not possible; use a number of replicas, or "auto"')
    if value == 1 and not isinstance(value, bool):
        raise RefusedError('1 is no quorum; write durability = "single" instead')
    return _REPLICAS_OF_A_QUORUM.validate_python(value)


def _an_ensemble(value: object) -> str:
    text = a_text(value)
    if not _ENSEMBLE.fullmatch(text):
        raise RefusedError(
            f"{shown(value)} is no ZooKeeper; write host:port, several separated by commas, and "
            'a path behind them if need be, like "one:2181,two:2181/loaders"'
        )
    return text


def _a_host_pattern(value: object) -> str:
    text = a_text(value)
    if "/" in text:
        raise RefusedError(f"{shown(value)} is no host; write it like east-*.example.com")
    return text


def _a_native_address(value: object) -> str:
    host, _, port = a_text(value).rpartition(":")
    if not host or not port.isdecimal():
        raise RefusedError("is not host:port as in system.clusters")
    return f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class ShardConfiguration:
    """A shard is known by its name, not by its position (H15).

    :param replicas: base URLs without a trailing slash, in order of preference. Empty where the
        servers are to be asked, see `ClusterConfiguration`.
    """

    name: str
    replicas: tuple[str, ...]


_REPLICAS: TypeAdapter[dict[str, tuple[str, ...]]] = TypeAdapter(dict[Name, Listed[Url]])
_NAMES: TypeAdapter[tuple[str, ...]] = TypeAdapter(Listed[Name])


def _shards(written: object, info: ValidationInfo) -> tuple[ShardConfiguration, ...]:
    """Replicas by the shard's name; of a cluster only the names, and its servers know the rest.

    They are named here although the servers know them, too: which shards there are decides where
    rows go, and that must never change by itself.
    """
    if info.data.get("cluster") is not None:
        return tuple(ShardConfiguration(n, ()) for n in _NAMES.validate_python(written))
    if not a_table(written):
        raise RefusedError("must not be empty")
    return tuple(ShardConfiguration(*each) for each in _REPLICAS.validate_python(written).items())


@dataclass(frozen=True, slots=True)
class CertificatesConfiguration(Section):
    """Files in PEM for https; "" where there is none.

    :param ca: certificates that servers' certificates are checked against; "": those that the
        machine trusts.
    :param certificate: that Sluice shows to servers.
    """

    ca: FileName = ""
    certificate: FileName = ""
    key: FileName = ""
    key_password: SecretText = field(default_factory=Secret)

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        for name in ("key", "key_password"):
            if name in written and not self.certificate:
                yield name, "is of no use without a certificate"


@dataclass(frozen=True, slots=True)
class ClusterConfiguration(Section):
    """Where the replicas of the shards stand: in `system.clusters` of any server.

    :param servers: URLs; the first of them that answers is asked.
    :param http_port: of all replicas; 0: that of the first of `servers`.
    :param addresses: URLs by `host:port` as system.clusters has them, the port being that of the
        native protocol, for replicas whose address is not scheme://host:port.
    :param shard_macro: the macro whose value is the name of a server's shard.
    """

    name: Text
    servers: Listed[Url]
    http_port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 0
    addresses: Mapping[Annotated[str, BeforeValidator(_a_native_address)], Url] = field(
        default_factory=dict
    )
    shard_macro: Text = "shard"

    @property
    def scheme(self) -> str:
        """Of the replicas' HTTP addresses."""
        return urlsplit(self.servers[0]).scheme

    @property
    def port(self) -> int:
        """Of the replicas' HTTP addresses."""
        return self.http_port or urlsplit(self.servers[0]).port or 8123


@dataclass(frozen=True, slots=True)
class ClickHouseConfiguration(Section):
    """The cluster that the rows go to.

    :param cluster: None: the replicas of each shard stand in the file.
    :param token: a JWT, shown as a bearer token instead of user and password.
    :param quorum: so many replicas of a shard have to have a block; "auto": most of those it
        names. This and the next two are of no meaning with durability = "single".
    :param quorum_timeout_seconds: for so long the server waits for them.
    :param zookeeper: where loaders queue for a table whose server takes one quorum insert at a
        time: host:port, several separated by commas, and a path if need be; "": nowhere.
    :param max_inflight_inserts: ranges in flight for each replica of a table, of each connector.
    :param insert_timeout_seconds: what a block may take before it is in doubt.
    :param data_centers: patterns of hosts, or of host:port, by data center.
    :param prefer: the data center whose replicas are tried first; "": none is preferred.
    :param max_replica_delay_seconds: a replica beyond it, or with a longer queue, is tried last.
    """

    database: DatabaseName = "default"
    cluster: ClusterConfiguration | None = None
    shards: Annotated[tuple[ShardConfiguration, ...], PlainValidator(_shards)] = ()
    user: Text = "default"
    password: SecretText = field(default_factory=Secret)
    token: SecretText = field(default_factory=Secret)
    tls: CertificatesConfiguration = field(default_factory=CertificatesConfiguration)
    durability: Durability = "quorum"
    quorum: Annotated[Quorum, PlainValidator(_a_quorum)] = 2
    # An insert may end after 30 s; the server's own word on the quorum has to come before that.
    quorum_timeout_seconds: Annotated[float, a_duration(1.0, 25.0)] = 25.0
    zookeeper: Annotated[str, BeforeValidator(_an_ensemble)] = ""
    max_inflight_inserts: Annotated[int, Field(strict=True, ge=1, le=INFLIGHT_INSERTS_LIMIT)] = (
        INFLIGHT_INSERTS_MAX
    )
    insert_timeout_seconds: Annotated[float, a_duration(1.0, 3600.0)] = 30.0
    data_centers: Mapping[Text, Listed[Annotated[str, BeforeValidator(_a_host_pattern)]]] = field(
        default_factory=dict
    )
    prefer: Text = ""
    max_replica_delay_seconds: Annotated[float, a_duration(1.0, 7 * 86_400.0)] = 300.0
    max_replica_queue: Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)] = 1000

    @property
    def limits(self) -> ReplicaLimits:
        """A replica beyond them is tried last."""
        return ReplicaLimits(self.max_replica_delay_seconds, self.max_replica_queue)

    def quorum_of(self, shard: ShardConfiguration) -> int:
        """For how many replicas of a shard a block waits with durability = "quorum"."""
        return majority(len(shard.replicas)) if self.quorum == "auto" else self.quorum

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if not self.shards:
            yield (
                "shards",
                _NO_CLUSTER_SHARDS if self.cluster else _NO_SHARDS,
            )
        if "token" in written:
            if not self.token:
                yield "token", "must not be empty"
            if "user" in written or "password" in written:
                yield "token", "stands beside user or password; keep one way"
        urls = [url for shard in self.shards for url in shard.replicas]
        if "tls" in written and urls and not any(url.startswith("https:") for url in urls):
            yield "tls", "is of no use: no URL in shards begins with https"
        if self.durability == "single":
            vain = [key for key in ("quorum", "quorum_timeout", "zookeeper") if key in written]
            for key in vain:
                yield (
                    key,
                    'has no meaning with durability = "single"; take it out, or write '
                    'durability = "quorum"',
                )
        else:
            yield from self._quorums_that_cannot_be()
        yield from self._hosts_that_are_not_there(urls)

    def _quorums_that_cannot_be(self) -> Iterator[Conflict]:
        for shard in self.shards:
            if len(shard.replicas) == 1:
                yield (
                    "durability",
                    f'"quorum" needs two replicas, and the shard {shard.name} has one; add its '
                    'other replicas, or write durability = "single": then one machine\'s word is '
                    "enough",
                )
            elif shard.replicas and len(shard.replicas) < self.quorum_of(shard):
                yield (
                    "quorum",
                    f"waits for {self.quorum} replicas, and the shard {shard.name} names "
                    f'{len(shard.replicas)}; name its others, or write at most that, or "auto"',
                )
        seconds = self.quorum_timeout_seconds + QUORUM_EARLIER_SECONDS
        if self.insert_timeout_seconds < seconds:
            yield (
                "insert_timeout",
                f"must be {seconds:g} s at least, {QUORUM_EARLIER_SECONDS:g} s more than "
                "quorum_timeout: a server that waits for a quorum has to say that it did not come",
            )

    def _hosts_that_are_not_there(self, urls: list[str]) -> Iterator[Conflict]:
        """Where the file has the replicas, each of them is in one data center at most, and no
        pattern is without any: a mistake in one would move the load without a word."""
        for name, patterns in self.data_centers.items():
            for pattern in patterns if urls else ():
                if not any(host_matches(url, pattern) for url in urls):
                    yield (
                        ("data_centers", name),
                        f"{shown(pattern)} is the host of no replica in `shards`",
                    )
        for url in urls:
            of = [
                name
                for name, patterns in self.data_centers.items()
                if any(host_matches(url, pattern) for pattern in patterns)
            ]
            if len(of) > 1:
                yield (
                    ("data_centers", of[1]),
                    f"{url} is in {of[0]}, too; a replica has one data center",
                )
