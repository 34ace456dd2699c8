"""Bundles: ranges of several partitions that become one block for each table and shard (R19).

Each range of a bundle has a record of its own, which names the bundle. The name is a digest over
all of its members, so whoever repeats it knows from the records alone whether it has all of them.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Record

_DIGEST_CHARACTERS = 16
#: Bits of a place that say the offset; those above say which member. A range with offsets beyond
#: is loaded alone, and none is known of.
OFFSET_BITS = 48
#: Members that a place can tell apart.
MEMBERS_MAX = 1 << (63 - OFFSET_BITS)


class Member(NamedTuple):
    """One range of a bundle, and what its rows depend on besides. Members are ordered as the rows
    of the block are: by topic, partition and offset. A tuple, since there may be thousands.

    :param topic_id: of this incarnation of the topic, as in a record.
    :param generation: as in a record.
    :param rest: as in a record: the name of what a probe found missing, which is all of the range.
    """

    block_range: Range
    topic_id: str
    generation: int
    rest: str = ""

    @staticmethod
    def of(block_range: Range, record: Record) -> Member:
        """A range as it is recorded."""
        return Member(block_range, record.topic_id, record.generation, record.rest)


_source_of = attrgetter("block_range.source")


def bundle_name(members: Iterable[Member]) -> str:
    """The name of the bundle of these members, in whatever order they come: 16 hexadecimal digits,
    a dot, and how many they are.

    :raises ValueError: fewer than two members, more than MEMBERS_MAX, two of one partition, or
        offsets that a place cannot say.
    """
    # No two are of one partition, or there is no name.
    ordered = sorted(members, key=_source_of)
    sources = {member.block_range.source for member in ordered}
    if not 2 <= len(ordered) <= MEMBERS_MAX or len(sources) != len(ordered):
        raise ValueError(f"{len(ordered)} ranges of {len(sources)} partitions are no bundle")
    lines: list[str] = []
    for found, topic_id, generation, rest in ordered:
        if found.end >> OFFSET_BITS:
            raise ValueError(f"{found} has offsets beyond 2^{OFFSET_BITS}, so it is loaded alone")
        (topic, partition), begin, end = found.source, found.begin, found.end
        # A server may know the block of the bundle that it was in before without having it.
        more = f"/{rest}" if rest else ""
        lines.append(f"{topic}/{partition}/{begin}-{end}/{topic_id}/{generation}{more}\n")
    digest = hashlib.sha256("".join(lines).encode())
    return f"{digest.hexdigest()[:_DIGEST_CHARACTERS]}.{len(ordered)}"


def members_in(name: str) -> int:
    """How many members a bundle of this name has; one without a name."""
    return int(name.rpartition(".")[2]) if name else 1


def replica_number(source: TopicPartition, name: str) -> int:
    """By which number a block finds its first replica (`core.replicas.turn`): a range alone by its
    partition, a bundle by its name, since most bundles begin with the same partition.

    :param source: of the first range.
    :param name: "" of a range alone.
    """
    return int(name[:2], 16) if name else source.partition


def is_whole(name: str, members: Iterable[Member]) -> bool:
    """Whether these are all members of the bundle of this name."""
    found = list(members)
    try:
        return bundle_name(found) == name
    except ValueError:
        return False


def place_of(number: int, offset: int) -> int:
    """The place of a message in its block: one number for each message, ascending as the rows are.
    Of a range alone, and of a bundle's first member, it is the offset.

    :param number: of the member, from 0 on.
    """
    return number << OFFSET_BITS | offset
