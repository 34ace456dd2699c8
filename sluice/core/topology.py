"""The shards of a cluster as its servers describe it. Pure: what they said is passed in.

A shard is its name (H15), and never its number: numbers are positions in a list that somebody may
put in another order. The name is what the servers themselves say (the macro {shard}), which also
stands in the ZooKeeper path of their tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.core.errors import ConfigurationError


class ShardsChangedError(ConfigurationError):
    """The cluster has other shards than the configuration names."""


@dataclass(frozen=True, slots=True)
class Member:
    """A server of a cluster, as `system.clusters` names it.

    :param group: number of its shard; no more than a sign that some servers belong together.
    :param port: of the native protocol.
    """

    group: int
    host: str
    port: int

    @property
    def key(self) -> str:
        """host:port, as it stands in `addresses`."""
        return f"{self.host}:{self.port}"


def url_of(member: Member, scheme: str, http_port: int, addresses: Mapping[str, str]) -> str:
    """The HTTP address of a server."""
    if member.key in addresses:
        return addresses[member.key]
    host = f"[{member.host}]" if ":" in member.host else member.host
    return f"{scheme}://{host}:{http_port}"


@dataclass(frozen=True, slots=True)
class Found:
    """Shards that were recognised.

    :param shards: sorted URLs of the replicas by the shard's name: whatever order the servers
        tell them in, a partition starts at the same replica.
    :param silent: URLs of each shard of which no server answers: nobody knows its name now.
    """

    shards: Mapping[str, tuple[str, ...]]
    silent: tuple[tuple[str, ...], ...] = ()


def recognise(groups: Iterable[Sequence[str]], said: Mapping[str, str | None]) -> Found:
    """Give each shard its name.

    A server that does not answer belongs to the shard of those that it is listed with; before it
    is sent a block, its table is compared with theirs.

    :param groups: URLs of servers that are replicas of one shard.
    :param said: the shard's name by URL; None for a server that does not answer.
    :raises ConfigurationError: servers contradict each other.
    """
    shards: dict[str, tuple[str, ...]] = {}
    silent: list[tuple[str, ...]] = []
    of: dict[str, str] = {}
    for group in groups:
        urls = tuple(sorted(set(group)))
        for url in urls:
            if url in of:
                raise ConfigurationError(
                    f"{url} would be the address of two servers in different shards",
                    "Say where each of them is, as in [clickhouse] addresses = "
                    '{ "host:9000" = "http://host:8123" }.',
                )
            of[url] = url
        names = {url: name for url in urls if (name := said.get(url)) is not None}
        if not names:
            silent.append(urls)
            continue
        if len(set(names.values())) > 1:
            shown = ", ".join(f"{url}: {name}" for url, name in names.items())
            raise ConfigurationError(
                f"servers of one shard say that they are of different ones: {shown}",
                "Give all servers of a shard the same macro {shard}; or the address of one of "
                "them leads to another server (see [clickhouse] addresses).",
            )
        name = next(iter(names.values()))
        if name in shards:
            raise ConfigurationError(
                f"two shards of the cluster have one name, {name}: {', '.join(shards[name])} and "
                f"{', '.join(urls)}",
                "Give the servers of each shard a macro {shard} of its own.",
            )
        shards[name] = urls
    return Found(shards, tuple(silent))


def difference(named: Iterable[str], found: Found) -> str:
    """How the shards of a cluster differ from those that are named; "" if they do not.

    While a shard is silent, one that is missing may be that one.
    """
    wanted, there = set(named), set(found.shards)
    parts = []
    if there - wanted:
        parts.append(f"it has {_listed(there - wanted)}, which [clickhouse] shards does not name")
    if wanted - there and len(wanted - there) > len(found.silent):
        parts.append(f"it lacks {_listed(wanted - there)}, which [clickhouse] shards names")
    elif len(wanted - there) < len(found.silent):
        more = "; ".join(", ".join(urls) for urls in found.silent)
        parts.append(f"it has more shards than are named, of which nobody answers: {more}")
    return ", and ".join(parts)


def taken_up(known: Mapping[str, tuple[str, ...]], found: Found) -> dict[str, tuple[str, ...]]:
    """The replicas of each known shard as they are now; those of a shard that is silent, or not
    there any more, stay as they were, and a shard that is not known is left alone."""
    return {name: found.shards.get(name, urls) for name, urls in known.items()}


def _listed(names: Iterable[str]) -> str:
    names = sorted(names)
    return f"{'the shard' if len(names) == 1 else 'the shards'} {', '.join(names)}"
