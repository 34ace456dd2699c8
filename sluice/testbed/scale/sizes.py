"""How many bytes a range leaves in Kafka: made with the code that writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice.core.bundles import Member, bundle_name
from sluice.core.ledger import (
    Background,
    LedgerEntry,
    encode_entries,
    receipt_entry,
    record_entry,
    settled_entry,
)
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Loaded, Receipt, Stages
from sluice.core.records import Kind, Record, encode
from sluice.core.tokens import block_token
from sluice.kafka.transactions import SEND_BYTES_MAX, weight_of_offset

_NOW_MS = 1_790_000_000_000
_TOPIC = "shop.orders.created"
_TOPIC_ID = "AbCdEfGhIjK"
#: Ranges of one transaction.
_BUNDLED, _ALONE = 1_000, 32
#: Of a record in a batch of Kafka's format 2: length, attributes, deltas, lengths, no headers.
_RECORD_FRAME = 12
#: Of a committed offset, format 3: key: version, lengths, partition; value: version, offset,
#: leader epoch, length of the metadata, time.
_OFFSET_KEY, _OFFSET_VALUE = 2 + 2 + 2 + 4, 2 + 8 + 4 + 2 + 8


@dataclass(frozen=True, slots=True)
class LedgerBytes:
    """What a range leaves in the ledger, before the client's lz4. Entries of a transaction share
    messages, so it is less where more ranges are settled together.

    :param range: two records, to intend and to settle it, and its counts.
    :param receipt: of a block; each range has one of each block that its rows are in.
    """

    range: float
    receipt: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes.

    :param metadata: of one record, as it stands in the group.
    :param offset_send: of one partition in a request that sends offsets; `send_max` of them all.
    :param offset_stored: of one committed offset in __consumer_offsets.
    :param bundled: a range of a bundle of a thousand.
    :param alone: one of 32 ranges that are settled together, each with a block of its own.
    """

    metadata: int
    offset_send: int
    send_max: int
    offset_stored: int
    bundled: LedgerBytes
    alone: LedgerBytes


def typical_sizes() -> Sizes:
    """Of ranges in the middle of long logs."""
    records = _records(_BUNDLED, is_bundle=True)
    source, record = next(iter(records.items()))
    metadata = encode(record)
    names = len("sluice.orders.dc1") + len(_TOPIC)
    return Sizes(
        metadata=len(metadata),
        offset_send=weight_of_offset(source, metadata),
        send_max=SEND_BYTES_MAX,
        offset_stored=_RECORD_FRAME + _OFFSET_KEY + names + _OFFSET_VALUE + len(metadata),
        bundled=_ledger_bytes(records),
        alone=_ledger_bytes(_records(_ALONE, is_bundle=False)),
    )


def _records(count: int, *, is_bundle: bool) -> dict[TopicPartition, Record]:
    """Of so many ranges, of about fifty messages in a bundle, of 50,000 alone."""
    span = 50 if is_bundle else 50_000
    records = {}
    for number in range(1_000, 1_000 + count):
        begin = 12_345_600_000 + 7_919 * number
        records[TopicPartition(_TOPIC, number)] = Record(
            Kind.INTEND, 1_234_567, 1, begin, begin + span + number % 7, "0f1e2d3c4b5a", 0,
            _TOPIC_ID, "0123456789abcdef", 1, _NOW_MS, epoch=12,
        )  # fmt: skip
    if not is_bundle:
        return records
    name = bundle_name(
        Member(_range_of(source, record), _TOPIC_ID, 0) for source, record in records.items()
    )
    return {source: replace(record, bundle=name) for source, record in records.items()}


def _range_of(source: TopicPartition, record: Record) -> Range:
    return Range(source, record.begin, record.end)


def _ledger_bytes(records: dict[TopicPartition, Record]) -> LedgerBytes:
    """Of each of these ranges, where one transaction intends and another one settles them all."""
    background = Background({"orders/s1234": 123_456_789}, _NOW_MS, {}, 100_663_296)
    settled, receipts = [], []
    for number, (source, record) in enumerate(records.items()):
        receipt = _receipt(source, record, is_shared=bool(record.bundle and number))
        # What the members of a bundle took together is told of the first one.
        stages = Stages() if receipt.is_shared else _STAGES
        found, batch = _range_of(source, record), record.batch
        loaded = Loaded((receipt,), (), receipt.rows, 200 * receipt.rows, 0, stages)
        settled.append(settled_entry(found, batch, 1, loaded))
        receipts.append(receipt_entry(found, batch, 1, receipt))
    intended = [record_entry(source, record, background) for source, record in records.items()]
    idle = [
        record_entry(source, _settled(record), Background(since_ms=_NOW_MS))
        for source, record in records.items()
    ]
    written = _bytes_of(intended) + _bytes_of([*settled, *idle])
    return LedgerBytes(written / len(records), _bytes_of(receipts) / len(records))


def _settled(record: Record) -> Record:
    """The record behind it, where nothing more has come yet."""
    return replace(
        record,
        kind=Kind.SETTLE,
        attempt=0,
        begin=record.end,
        reservation=0,
        deadline_ms=0,
        bundle="",
    )


_STAGES = Stages(0.1234, 0.0123, 0.1234, 0.1234, 0.1234, 0.0, 0.4321, 0.2345)


def _receipt(source: TopicPartition, record: Record, *, is_shared: bool) -> Receipt:
    token = block_token(
        pipeline="orders", generation=0, connector="dc1", topic_id=_TOPIC_ID,
        block_range=_range_of(source, record), entry="orders", target="shop.orders",
        shard="s1234", rest="", bundle=record.bundle,
    )  # fmt: skip
    rows = record.end - record.begin
    # The block's checksum: that of a bundle's is the same in all receipts.
    checksum = "0123456789abcdef" if record.bundle else f"{record.begin:016x}"
    return Receipt(
        "orders", "shop.orders", "s1234", token, rows, 80 * rows, checksum,
        "http://clickhouse-1234-2.example.com:8123", 1, 123, _NOW_MS, is_shared=is_shared,
    )  # fmt: skip


def _bytes_of(entries: Iterable[LedgerEntry]) -> int:
    messages = encode_entries("dc1", _NOW_MS, entries)
    return sum(len(key) + len(value) + _RECORD_FRAME for key, value in messages)
