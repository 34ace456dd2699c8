"""Dead letters: the topic's messages, written in the transaction that settles.

The topic holds one message for each message and table entry that does not take it: it may be
bad for one table and good for another, and then only that one is to get it by a replay. Beside
them it holds marks: which dead letters were replayed, and which were purged. A mark stands in the
partition that holds its dead letters, behind them. Kafka deletes from the front, so no mark is lost
while a dead letter that it speaks of is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from sluice import __version__
from sluice.core.dead_letters import (
    ATTEMPT_HEADER,
    FACTS,
    ORIGIN_HEADER,
    ORIGIN_TIMESTAMP_HEADER,
    REPLAY_HEADERS,
    TABLE_HEADER,
)
from sluice.core.ranges import Interval, normalize
from sluice.core.receipts import DeadLetter, Origin
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaDeniedError, KafkaTerminalError, KafkaUnavailableError
from sluice.kafka.headers import Headers
from sluice.kafka.tail import OPEN_SECONDS, LogMessage, Tail
from sluice.kafka.topics import partition_count

KIND_HEADER = "sluice.kind"
_OWN_HEADER = "sluice."
_ORIGINAL_HEADER = "sluice.header."
#: The reason of a dead letter that was purged: nothing but its place is known any more.
PURGED = "purged"

_STALL_SECONDS = 30.0
#: Room for the headers that we add and for the record batch around a message.
_OVERHEAD_BYTES = 4096
_ERROR_BYTES_MAX = 1024
#: Offsets in one mark: about 20 bytes each, and a message must be small enough for any topic.
_INTERVALS_MAX = 20_000


class DeadLetterKey(NamedTuple):
    """What dead letters have in common but for their offsets.

    :param topic: that their messages stand in, as `partition`.
    :param topic_id: see `DeadLetter`, as `generation`.
    """

    topic: str
    partition: int
    table: str
    topic_id: str = ""
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead letter went back into its source topic.

    :param offset: of the dead letter, in this partition of the dead-letter topic.
    :param by: who did it, as user@host.
    :param run: the replay that did it.
    """

    partition: int
    offset: int
    at_ms: int
    by: str
    run: str


@dataclass(frozen=True, slots=True)
class Purged:
    """Dead letters that were deleted, so that an audit still knows what became of their messages.

    :param before: everything below this offset of the dead-letter topic was to be deleted.
    :param offsets: of the messages whose dead letters stood there.
    :param is_done: whether the topic was cut there since; else the dead letters are still there.
    """

    partition: int
    before: int
    at_ms: int
    by: str
    offsets: Mapping[DeadLetterKey, tuple[Interval, ...]]
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class StoredDeadLetter:
    """A dead letter as the topic holds it.

    :param partition: of the dead-letter topic; likewise the offset.
    :param written_at_ms: when the driver heard of it; else the time of the record.
    :param version: of the Sluice that wrote it.
    :param cut: what of the message is not wholly there: "value", "headers", "key".
    """

    partition: int
    offset: int
    letter: DeadLetter
    written_at_ms: int
    version: str
    cut: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be produced.

    :param partition: None: the producer chooses.
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers

    @property
    def bytes(self) -> int:
        """About what it takes in a record batch."""
        own = sum(len(name) + len(content or b"") + 8 for name, content in self.headers)
        return 100 + len(self.key or b"") + len(self.value or b"") + own


def replayed_mark(topic: str, stored: StoredDeadLetter, mark: Replayed) -> Outgoing:
    """A mark as a message without key and value. For other readers it names the dead letter's own
    message and table entry, too.

    :param topic: of the dead letters.
    """
    letter = stored.letter
    headers: Headers = [
        (KIND_HEADER, b"replayed"),
        ("sluice.letter", b"%d/%d" % (mark.partition, mark.offset)),
        ("sluice.at", b"%d" % mark.at_ms),
        ("sluice.by", mark.by.encode()),
        ("sluice.run", mark.run.encode()),
        ("sluice.topic", letter.topic.encode()),
        ("sluice.partition", b"%d" % letter.partition),
        ("sluice.offset", b"%d" % letter.offset),
        ("sluice.table", letter.table.encode()),
    ]
    return Outgoing(topic, mark.partition, None, None, headers)


def purged_marks(topic: str, mark: Purged) -> list[Outgoing]:
    """A mark as messages; several where it is long.

    :param topic: of the dead letters.
    """
    headers: Headers = [
        (KIND_HEADER, b"purged"),
        ("sluice.before", b"%d" % mark.before),
        ("sluice.at", b"%d" % mark.at_ms),
        ("sluice.by", mark.by.encode()),
    ]
    bodies = (
        {**key._asdict(), "offsets": intervals[first : first + _INTERVALS_MAX]}
        for key, intervals in mark.offsets.items()
        for first in range(0, len(intervals), _INTERVALS_MAX)
    )
    return [
        Outgoing(
            topic, mark.partition, None, json.dumps(body, separators=(",", ":")).encode(), headers
        )
        for body in bodies
    ]


def read_mark(
    partition: int, low: int, headers: Mapping[str, bytes], value: bytes | None
) -> Replayed | Purged | None:
    """The mark that a message of the dead-letter topic is; None if it is a dead letter.

    :param low: the first offset that the partition still holds.
    :raises ValueError, KeyError: it says it is a mark, and is none.
    """
    kind = headers.get(KIND_HEADER)
    if kind is None:
        return None
    at_ms, by = int(headers["sluice.at"]), headers["sluice.by"].decode()
    if kind == b"replayed":
        where, offset = headers["sluice.letter"].split(b"/")
        return Replayed(int(where), int(offset), at_ms, by, headers["sluice.run"].decode())
    if kind == b"purged":
        body = json.loads(value or b"")
        topic, number, table = str(body["topic"]), int(body["partition"]), str(body["table"])
        key = DeadLetterKey(
            topic, number, table, str(body.get("topic_id", "")), body.get("generation")
        )
        intervals = tuple((int(begin), int(end)) for begin, end in body["offsets"])
        before = int(headers["sluice.before"])
        return Purged(partition, before, at_ms, by, {key: intervals}, is_done=before <= low)
    raise ValueError(f"a mark of the unknown kind {kind!r}")


def joined(
    parts: Sequence[Mapping[DeadLetterKey, tuple[Interval, ...]]],
) -> dict[DeadLetterKey, tuple[Interval, ...]]:
    """Several marks' offsets as one; they may overlap."""
    by_key: dict[DeadLetterKey, list[Interval]] = {}
    for part in parts:
        for key, intervals in part.items():
            by_key.setdefault(key, []).extend(intervals)
    return {key: normalize(intervals) for key, intervals in by_key.items()}


def wrap(topic: str, letter: DeadLetter, message_bytes_max: int) -> Outgoing:
    """Key and value as they were; origin and reason in headers.

    What the topic does not take is cut (H21): first the payload, then the message's own
    headers, then the key, each of which `sluice.truncated` names. The origin always stays,
    and with it the way to the whole message.

    :param topic: of the dead letters; `message_bytes_max` is its max.message.bytes.
    """
    letter = recognised(letter)
    room = message_bytes_max - _OVERHEAD_BYTES
    cut: list[str] = ["value"] if letter.truncated else []
    key, value = letter.key, letter.value
    original = [(f"{_ORIGINAL_HEADER}{name}", content) for name, content in letter.headers]
    original_bytes = sum(len(name) + len(content or b"") + 16 for name, content in original)
    if key is not None and len(key) > room // 2:
        key, cut = key[: room // 4], [*cut, "key"]
    room -= len(key or b"")
    if original_bytes > room // 2:
        original, original_bytes, cut = [], 0, [*cut, "headers"]
    room -= original_bytes
    if value is not None and len(value) > room:
        value, cut = value[:room], [*cut, "value"]
    error = letter.error.encode(errors="replace")[:_ERROR_BYTES_MAX]
    source, timestamp = letter.topic.encode(), _shown(letter.timestamp_ms)
    partition, offset = b"%d" % letter.partition, b"%d" % letter.offset
    first, first_timestamp = b"%b/%b/%b" % (source, partition, offset), timestamp
    if letter.origin is not None:
        first, first_timestamp = (
            shown_origin(letter.origin),
            _shown(letter.origin.timestamp_ms),
        )
    headers: Headers = [
        ("sluice.reason", letter.reason.encode()),
        ("sluice.error", error),
        ("sluice.topic", source),
        ("sluice.partition", partition),
        ("sluice.offset", offset),
        ("sluice.timestamp", timestamp),
        ("sluice.table", letter.table.encode()),
        ("sluice.column", letter.column.encode()),
        ("sluice.truncated", ",".join(cut).encode()),
        (ORIGIN_HEADER, first),
        (ORIGIN_TIMESTAMP_HEADER, first_timestamp),
        (ATTEMPT_HEADER, b"%d" % letter.attempt),
        ("sluice.attempted-at", b"%d" % letter.attempted_at_ms),
        ("sluice.connector", letter.connector.encode()),
        ("sluice.load-spec", letter.spec.encode()),
        ("sluice.topic-id", letter.topic_id.encode()),
        ("sluice.generation", _shown(letter.generation)),
        ("sluice.version", __version__.encode()),
        *((f"{_OWN_HEADER}{name}", value.encode()) for name, value in letter.facts),
    ]
    return Outgoing(topic, None, key, value, headers + original)


def unwrap(message: LogMessage) -> DeadLetter:
    """Read a dead letter back.

    :raises KeyError, ValueError: the message is none.
    """
    own = own_headers(message.headers)
    letter = DeadLetter(
        topic=own["sluice.topic"].decode(),
        partition=int(own["sluice.partition"]),
        offset=int(own["sluice.offset"]),
        timestamp_ms=_read_number(own.get("sluice.timestamp", b"")),
        key=message.key,
        value=message.value,
        headers=tuple(
            (name.removeprefix(_ORIGINAL_HEADER), content)
            for name, content in message.headers
            if name.startswith(_ORIGINAL_HEADER)
        ),
        reason=own["sluice.reason"].decode(),
        error=own.get("sluice.error", b"").decode(errors="replace"),
        table=own.get("sluice.table", b"").decode(),
        column=own.get("sluice.column", b"").decode(),
        truncated=own.get("sluice.truncated", b"") != b"",
        attempt=int(own.get(ATTEMPT_HEADER, b"1")),
        attempted_at_ms=int(own.get("sluice.attempted-at", b"0")),
        connector=own.get("sluice.connector", b"").decode(),
        spec=own.get("sluice.load-spec", b"").decode(),
        topic_id=own.get("sluice.topic-id", b"").decode(),
        generation=_read_number(own.get("sluice.generation", b"")),
        facts=tuple(
            (name, own[header].decode(errors="replace"))
            for name in FACTS
            if (header := f"{_OWN_HEADER}{name}") in own
        ),
    )
    origin = _read_origin(own) if ORIGIN_HEADER in own else letter.first
    return letter if origin == letter.first else letter._replace(origin=origin)


def shown_origin(origin: Origin) -> bytes:
    """A place as a header has it; no topic's name has a slash."""
    return f"{origin.topic}/{origin.partition}/{origin.offset}".encode()


def recognised(letter: DeadLetter) -> DeadLetter:
    """The dead letter of a message that a replay wrote: with the origin and the attempt that its
    headers tell, and without those headers, which are not the message's own.

    Whom the message was for stays with it if nobody took it: else the next replay would give
    it to every entry.
    """
    if not letter.headers:
        return letter
    written = {name: content or b"" for name, content in letter.headers if name in REPLAY_HEADERS}
    try:
        origin, attempt = _read_origin(written), int(written[ATTEMPT_HEADER])
    except (KeyError, ValueError):
        return letter  # no replay wrote them
    dropped = set(REPLAY_HEADERS) - (set() if letter.table else {TABLE_HEADER})
    headers = tuple(item for item in letter.headers if item[0] not in dropped)
    return letter._replace(headers=headers, origin=origin, attempt=max(1, attempt))


def _read_origin(headers: dict[str, bytes]) -> Origin:
    topic, partition, offset = headers[ORIGIN_HEADER].decode().split("/")
    timestamp_ms = _read_number(headers.get(ORIGIN_TIMESTAMP_HEADER, b""))
    return Origin(topic, int(partition), int(offset), timestamp_ms)


def _shown(number: int | None) -> bytes:
    return b"" if number is None else b"%d" % number


def _read_number(text: bytes) -> int | None:
    return int(text) if text else None


def own_headers(headers: Headers) -> dict[str, bytes]:
    """What Sluice says of a dead letter or a mark, without the message's own headers."""
    return {
        name: content or b""
        for name, content in headers
        if name.startswith(_OWN_HEADER) and not name.startswith(_ORIGINAL_HEADER)
    }


def read_dead_letters(
    access: KafkaAccess, topic: str, since_ms: int | None = None, *, to_log_end: bool = False
) -> Iterator[DeadLetter]:
    """All committed dead letters up to the topic's last stable offset, oldest first.

    Those that were purged are among them, with their place, what their mark says, and the reason
    "purged" only.

    :param since_ms: only what was written since then.
    :param to_log_end: also those beyond; see `DeadLetterTopic.records`.
    :raises StalledError: the topic exists but cannot be read to its end.
    """
    with closing(DeadLetterTopic(access, topic)) as held:
        for record in held.records(since_ms=since_ms, to_log_end=to_log_end):
            if isinstance(record, StoredDeadLetter):
                yield record.letter
            elif isinstance(record, Purged) and record.is_done:
                yield from _purged(record)


def _purged(mark: Purged) -> Iterator[DeadLetter]:
    for key, intervals in mark.offsets.items():
        where = key.topic, key.partition
        some = DeadLetter(*where, 0, None, None, None, (), PURGED, "", key.table)._replace(
            attempted_at_ms=mark.at_ms, topic_id=key.topic_id, generation=key.generation
        )
        for begin, end in intervals:
            for offset in range(begin, end):
                yield some._replace(offset=offset)


class DeadLetterTopic:
    """The topic, read by one client, however many partitions it has; one reading after the other.

    :raises SluiceError: Kafka does not answer.
    """

    def __init__(self, access: KafkaAccess, topic: str) -> None:
        self._access, self._topic = access, topic
        self._denied: KafkaDeniedError | None = None
        self._partitions = 0
        try:
            self._partitions = partition_count(access, topic)
        except KafkaDeniedError as error:
            self._denied = error
        self._tail: Tail | None = None

    @property
    def is_there(self) -> bool:
        """Whether there is such a topic, as far as this user may know; see `kafka.topics.sees`."""
        return self._partitions > 0

    def records(
        self,
        *,
        since_ms: int | None = None,
        to_log_end: bool = False,
        marks_only: bool = False,
        until: float | None = None,
    ) -> Iterator[StoredDeadLetter | Replayed | Purged]:
        """Everything that it holds, each partition in its order.

        :param since_ms: only what was written since then.
        :param to_log_end: also what is committed beyond the last stable offset, where another
            producer's open transaction holds it back; waits for that one to end.
        :param marks_only: leave the dead letters out; it costs a fraction.
        :param until: reading is given up then, by `time.monotonic`.
        :raises KafkaDeniedError: this user may not see it.
        :raises KafkaUnavailableError: there is none.
        :raises KafkaTerminalError: it holds something else.
        :raises StalledError: it cannot be read to its end.
        :raises TooMuchToReadError: it was not read to its end by then.
        """
        if self._denied is not None:
            raise self._denied
        if not self.is_there:
            text = f"reading dead letters {self._topic}: there is no such topic"
            raise KafkaUnavailableError(text)
        if self._tail is None:
            self._tail = Tail(self._access, self._topic, with_headers=True)
        tail = self._tail
        for partition in range(self._partitions):
            tail.turn_to(partition, since_ms=since_ms)
            end, patience = tail.stable_end, _STALL_SECONDS
            if to_log_end:
                end, patience = tail.log_end(), OPEN_SECONDS
            for message in tail.below(end, patience, until):
                if not marks_only or _is_mark(message):
                    yield _parsed(tail, message)

    def replayed(
        self,
        *,
        since_ms: int | None = None,
        to_log_end: bool = False,
        until: float | None = None,
    ) -> dict[tuple[int, int], Replayed]:
        """Which dead letters were replayed, by partition and offset of the topic; as `records`."""
        found = self.records(since_ms=since_ms, to_log_end=to_log_end, marks_only=True, until=until)
        return {(each.partition, each.offset): each for each in found if isinstance(each, Replayed)}

    def close(self) -> None:
        """Close the client."""
        if self._tail is not None:
            self._tail.close()


def _is_mark(message: LogMessage) -> bool:
    """Whether it says that it is a mark; it does so in its first header."""
    return bool(message.headers) and message.headers[0][0] == KIND_HEADER


def _parsed(tail: Tail, message: LogMessage) -> StoredDeadLetter | Replayed | Purged:
    partition, offset = tail.partition, message.offset
    try:
        own = own_headers(message.headers)
        mark = read_mark(partition, tail.log_begin, own, message.value)
        if mark is not None:
            return mark
        cut = tuple(own.get("sluice.truncated", b"").decode().split(","))
        letter, version = unwrap(message), own.get("sluice.version", b"").decode()
        at_ms = letter.attempted_at_ms or message.timestamp_ms
        return StoredDeadLetter(partition, offset, letter, at_ms, version, tuple(filter(None, cut)))
    except (KeyError, ValueError, TypeError) as error:
        raise no_dead_letter(tail, offset, error) from None


def no_dead_letter(tail: Tail, offset: int, error: Exception) -> KafkaTerminalError:
    """Why a message of such a topic cannot be one of Sluice's."""
    return KafkaTerminalError(
        f"dead letters {tail.topic}[{tail.partition}] hold a message at offset "
        f"{offset} that is no dead letter: {type(error).__name__}: {error}",
        "Only Sluice may write to its dead-letter topic: find the other producer, and name "
        "another topic in [dead_letters].",
    )
