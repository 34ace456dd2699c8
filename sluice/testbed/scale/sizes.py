"""How many bytes a range leaves in Kafka: made with the code that writes them."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core.ledger import (
    Background,
    encode_entry,
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
#: Of a record in a batch of Kafka's format 2: length, attributes, deltas, lengths, no headers.
_RECORD_FRAME = 12
#: Of a committed offset, format 3: key: version, lengths, partition; value: version, offset,
#: leader epoch, length of the metadata, time.
_OFFSET_KEY, _OFFSET_VALUE = 2 + 2 + 2 + 4, 2 + 8 + 4 + 2 + 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes.

    :param metadata: of one record, as it stands in the group.
    :param offset_send: of one partition in a request that sends offsets; `send_max` of them all.
    :param offset_stored: of one committed offset in __consumer_offsets.
    :param ledger_range: of a range's two records, to intend and to settle it, and of its counts;
        `ledger_block` of a receipt. Before the client's lz4.
    """

    metadata: int
    offset_send: int
    send_max: int
    offset_stored: int
    ledger_range: int
    ledger_block: int


def typical_sizes() -> Sizes:
    """Of a range in the middle of a long log."""
    block_range = Range(TopicPartition(_TOPIC, 1234), 12_345_600_000, 12_345_650_000)
    record = Record(
        Kind.INTEND, 1_234_567, 1, block_range.begin, block_range.end, "0f1e2d3c4b5a", 0,
        "AbCdEfGhIjK", "0123456789abcdef", 1, _NOW_MS,
    )  # fmt: skip
    token = block_token(
        pipeline="orders", generation=0, connector="dc1", topic_id=record.topic_id,
        block_range=block_range, entry="orders", target="shop.orders", shard="s1234", rest="",
    )  # fmt: skip
    receipt = Receipt(
        "orders", "shop.orders", "s1234", token, 50_000, 4_000_000, "0123456789abcdef",
        "http://clickhouse-1234-2.example.com:8123", 1, 123, _NOW_MS,
    )  # fmt: skip
    seconds = Stages(0.1234, 0.0123, 0.1234, 0.1234, 0.1234, 0.0, 0.4321, 0.2345)
    loaded = Loaded((receipt,), (), 50_000, 10_000_000, 0, seconds)
    background = Background({"orders/s1234": 123_456_789}, _NOW_MS, {}, 100_663_296)
    metadata = encode(record)
    names = len("sluice.orders.dc1") + len(_TOPIC)
    written = [
        sum(map(len, encode_entry("dc1", _NOW_MS, entry))) + _RECORD_FRAME
        for entry in (
            record_entry(block_range.source, record, background),
            settled_entry(block_range, record.batch, 1, loaded),
            receipt_entry(block_range, record.batch, 1, receipt),
        )
    ]
    return Sizes(
        metadata=len(metadata),
        offset_send=weight_of_offset(block_range.source, metadata),
        send_max=SEND_BYTES_MAX,
        offset_stored=_RECORD_FRAME + _OFFSET_KEY + names + _OFFSET_VALUE + len(metadata),
        ledger_range=2 * written[0] + written[1],
        ledger_block=written[2],
    )
