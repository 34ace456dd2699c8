"""The record of a partition: what stands in Kafka as the metadata of its committed offset.

R1 and R2. The committed offset itself is always `begin`, which is the settled
position: nothing below it is outstanding, and everything from it on is still to load.
A record is one line of printable ASCII below 200 bytes, closed by a checksum.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import field
from enum import Enum

from sluice.core.errors import TerminalError
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset
from sluice.core.values import pickled_by_fields, value

FORMAT_VERSION = "S1"
RECORD_BYTES_MAX = 200

#: The owner of partitions that have no record yet. The first record of a partition is
#: committed under the transactional id of this owner, so two first drivers fence each other.
GENESIS = "genesis"

#: Owner ids that begin so belong to a person's decision (`sluice adopt`, `resolve`, `rewind`).
OPERATOR_PREFIX = "operator-"

_FIELDS = re.compile(r"[A-Za-z0-9_.-]*")


class Kind(Enum):
    """What a record says about its range."""

    INTEND = "i"  # the range after the one before; that one is settled by this record
    RENEW = "r"  # same range, new deadline or reservation
    SHORTEN = "s"  # same begin, smaller end; only after "too heavy, nobody inserted"
    CHANGE_SPEC = "t"  # same range, another load spec; only after the only task refused its own
    ADD_COLUMNS = "w"  # same range, a wider load spec; only after all who were sent it refused it
    PROBE = "p"  # same range, but only the offsets that a probe found missing
    SETTLE = "e"  # empty range: nothing is outstanding (eBay's special block)

    @property
    def word(self) -> str:
        """What the ledger has, and people read."""
        return self.name.lower()


class InvalidRecordError(TerminalError):
    """The metadata of a committed offset is not a record of ours."""

    hint = "Someone else committed in this consumer group; `sluice adopt` decides where to go on."


@pickled_by_fields
@value
class Record:
    """One record. Times are milliseconds of wall time since 1970.

    :param batch: number of the transaction of this loop that wrote it, from 1 on.
    :param attempt: how often this range was given a new lease, from 1 on; 0 when settled.
    :param owner: last part of the transactional.id that may write the next record.
    :param generation: raised by `sluice rewind`, so that tokens differ (H12).
    :param topic_id: 11 characters that name this incarnation of the topic (H12).
    :param spec: digest of the load spec that decides the rows.
    :param reservation: entries of a deduplication window that each block may take (R10).
    :param deadline_ms: after this nobody starts an insert for this record (R9).
    :param rest: digest of the offsets that a probe found missing, "" without a probe.
    :param epoch: of the leader that vouched for all offsets below `end`.
    :param bundle: name of the bundle that the range is loaded in (`core.bundles`), "" alone.
    """

    kind: Kind
    batch: int
    attempt: int
    begin: int
    end: int
    owner: str
    generation: int
    topic_id: str
    spec: str
    reservation: int
    deadline_ms: int
    rest: str = ""
    epoch: int = EPOCH_UNKNOWN
    bundle: str = ""
    #: As `encode` writes it: it is committed, compared and put into the ledger.
    _line: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.begin < 0 or self.end < self.begin:
            raise ValueError(f"not a range: {self}")
        if (self.kind is Kind.SETTLE) != (self.begin == self.end):
            raise ValueError(f"only a settle is empty, and it always is: {self}")
        written = (self.owner, self.topic_id, self.spec, self.rest, self.bundle)
        if not _FIELDS.fullmatch("".join(written)):
            raise ValueError(f"one of {written!r} cannot stand in a record")
        if self.bundle and not self.in_doubt:
            raise ValueError(f"only a range in doubt is in a bundle: {self}")

    @property
    def in_doubt(self) -> bool:
        """Whether its range may be loaded wholly, partly or not at all."""
        return self.kind is not Kind.SETTLE

    @property
    def log_end(self) -> EpochOffset:
        """What the log held at least when this was recorded."""
        return EpochOffset(self.end, self.epoch)


def encode(record: Record) -> str:
    """The record as offset metadata."""
    if not record._line:
        object.__setattr__(record, "_line", _written(record))
    return record._line


def _written(record: Record) -> str:
    # A record without a bundle, or an epoch, is written as before there were any.
    added = ""
    if record.bundle:
        added = f"|{record.epoch}|{record.bundle}"
    elif record.epoch != EPOCH_UNKNOWN:
        added = f"|{record.epoch}"
    body = (
        f"{FORMAT_VERSION}|{record.kind._value_}|{record.batch}|{record.attempt}|{record.begin}|"
        f"{record.end}|{record.owner}|{record.generation}|{record.topic_id}|{record.spec}|"
        f"{record.reservation}|{record.deadline_ms}|{record.rest}{added}"
    )
    line = f"{body}|{zlib.crc32(body.encode()):08x}"
    if len(line) > RECORD_BYTES_MAX:
        raise ValueError(f"record of {len(line)} bytes, {RECORD_BYTES_MAX} allowed: {line}")
    return line


def decode(offset: int, metadata: str | None) -> Record:
    """Read a committed offset and its metadata back.

    :raises InvalidRecordError: not ours, damaged, or it contradicts its offset.
    """
    if not metadata:
        raise InvalidRecordError(f"offset {offset} was committed without metadata")
    body, _, checksum = metadata.rpartition("|")
    fields = body.split("|")
    if fields[0] != FORMAT_VERSION or len(fields) not in (13, 14, 15):
        raise InvalidRecordError(f"offset {offset} was committed with metadata {metadata[:80]!r}")
    if f"{zlib.crc32(body.encode()):08x}" != checksum:
        raise InvalidRecordError(f"the checksum of the record at offset {offset} does not fit")
    try:
        record = Record(
            kind=Kind(fields[1]),
            batch=int(fields[2]),
            attempt=int(fields[3]),
            begin=int(fields[4]),
            end=int(fields[5]),
            owner=fields[6],
            generation=int(fields[7]),
            topic_id=fields[8],
            spec=fields[9],
            reservation=int(fields[10]),
            deadline_ms=int(fields[11]),
            rest=fields[12],
            epoch=int(fields[13]) if len(fields) > 13 else EPOCH_UNKNOWN,
            bundle=fields[14] if len(fields) > 14 else "",
        )
    except ValueError as error:
        raise InvalidRecordError(f"the record at offset {offset} is damaged: {error}") from None
    if record.begin != offset:
        raise InvalidRecordError(f"offset {offset} carries a record that begins at {record.begin}")
    return record


def may_follow(previous: Record | None, following: Record) -> bool:
    """Whether the chain of records allows this step (R2).

    `adopt` and `rewind` are a person's steps and leave the chain on purpose; their entries
    in the ledger say why. Where offsets may be loaded again they raise the generation.
    """
    if previous is None:
        return following.kind is Kind.SETTLE
    if following.generation > previous.generation:
        return following.kind is Kind.SETTLE
    same_bundle = following.bundle == previous.bundle
    same_begin = following.begin == previous.begin
    same_end = following.end == previous.end
    match following.kind:
        case Kind.INTEND:
            return following.begin == previous.end
        case Kind.SETTLE:
            # At the begin: nothing is outstanding, or nobody inserted anything of it (R19, R20).
            may_stay = not previous.rest or not previous.in_doubt
            return following.begin == previous.end or (same_begin and may_stay)
        case Kind.RENEW:
            same_range = same_begin and same_end and following.rest == previous.rest
            return previous.in_doubt and same_range and same_bundle
        case Kind.CHANGE_SPEC:
            # Only the first attempt's one task may refuse its load spec: nobody else was ever
            # allowed to insert, and what it inserted before is the same under both load specs.
            first = previous.kind is Kind.INTEND and previous.attempt == 1
            same_range = same_begin and same_end and following.rest == ""
            return first and same_range and same_bundle and following.spec != previous.spec
        case Kind.ADD_COLUMNS:
            # Refusing for fields is a function of the range and of its load spec, and for schemas
            # it is known of each task that was sent it: nobody ever inserted what differs.
            same_range = same_begin and same_end and following.rest == previous.rest
            is_other = following.spec != previous.spec
            return previous.in_doubt and same_range and same_bundle and is_other
        case Kind.PROBE:
            return previous.in_doubt and same_begin and same_end and following.rest != ""
        case Kind.SHORTEN:
            # Too heavy is a function of the range, so nobody ever inserted any of it, not
            # even if a probe was recorded meanwhile; the rest begins anew.
            return (
                previous.in_doubt
                and previous.bundle == following.bundle == following.rest == ""
                and same_begin
                and following.end < previous.end
            )


def may_hand_over(previous: Record, following: Record) -> bool:
    """Whether an owner may name another one in its next record (R25): what is settled goes, as it
    is, and nothing else."""
    is_settled = previous.kind is following.kind is Kind.SETTLE
    return is_settled and following.begin == previous.begin
