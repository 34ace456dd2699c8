"""Traces of ranges: which one a record belongs to, and what a task did when. Pure.

A trace begins when a range, or a bundle, is first intended, and ends when it is settled. Its ids
are a function of the record, so that whoever goes on with the range, a task that repeats it or
another driver, goes on with its trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.core.values import pickled_by_fields, value


class TraceIds(NamedTuple):
    """What a trace is known by.

    :param trace: 16 bytes; `root`: 8 bytes, of the span of the whole range.
    """

    trace: int
    root: int


def trace_of(connector: str, source: TopicPartition, record: Record) -> TraceIds:
    """The trace of a range in doubt. The end is not part of it, since a range that is too heavy is
    shortened; a bundle has one trace, and a range that leaves it goes on in another one.

    :param connector: with its pipeline.
    """
    if record.bundle:
        name = f"bundle/{record.bundle}"
    else:
        where = f"{record.topic_id}/{record.generation}/{source.topic}/{source.partition}"
        name = f"range/{where}/{record.begin}"
    digest = hashlib.sha256(f"{connector}/{name}".encode()).digest()
    # Both have to be other than 0.
    trace, root = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    return TraceIds(trace or 1, root or 1)


@pickled_by_fields
@value
class WorkSpan:
    """Something that a task did. Times are nanoseconds of wall time since 1970.

    :param error: the kind of the error that ended it; "" if none did.
    :param facts: more of it: table, shard, token, replica, rows.
    """

    name: str
    began_ns: int
    ended_ns: int
    error: str = ""
    facts: Mapping[str, str | int] = field(default_factory=dict)
