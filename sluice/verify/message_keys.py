"""The deduplication keys of messages, decoded here as a task decodes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.claims.owners import Keys, Owners, owners_of
from sluice.core.claims import KEY_BYTES, OWNER_BYTES, loader_number
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.ranges import Interval, Range, TopicPartition
from sluice.decode.formats import make_decoder
from sluice.decode.keys.hashing import RowKeys
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import TableDecoder
from sluice.decode.messages.facts import alone
from sluice.decode.messages.framing import Framing
from sluice.decode.schema.registry import UnknownSchemasError, provide
from sluice.kafka.reader import RangeReader
from sluice.kafka.registry import RegistryAccess, RegistryClient
from sluice.worker.routing import Router

_NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows that have a key.

    :param owners: what they are if they own it.
    :param offsets: of their messages.
    """

    keys: Keys
    owners: Owners
    offsets: NDArray[np.uint64]


class MessageKeys:
    """Of one table entry. Messages that make no row of it have no keys.

    :param table: of the load spec; it deduplicates.
    :param registry: how its registry is reached today.
    """

    def __init__(
        self, spec: LoadSpec, table: TableSpec, registry: RegistryAccess | None = None
    ) -> None:
        self._spec = spec
        self._table = table
        self._decoder = decoder_of(table, registry)
        #: What computes the keys.
        self.row_keys = RowKeys(table, self._decoder.columns)

    def read(
        self,
        reader: RangeReader,
        block_range: Range,
        topic_id: str,
        only: tuple[Interval, ...] | None = None,
    ) -> KeyedRows:
        """The keys of a range's messages, which are read for it; see `of`."""

        def feed(router: Router) -> None:
            look = router.look if router.looks else None
            dead = router.takes_tombstones
            reader.read(block_range, _NO_LIMIT, router.deliver, look, tombstones=dead)

        return self.of(block_range.source, topic_id, feed, only)

    def of(
        self,
        source: TopicPartition,
        topic_id: str,
        feed: Callable[[Router], object],
        only: tuple[Interval, ...] | None = None,
    ) -> KeyedRows:
        """The keys of messages of one partition.

        :param topic_id: the topic's short id when they were loaded.
        :param feed: delivers the messages.
        :param only: these offsets of them.
        :raises SluiceError: what `feed` raises; the registry does not answer.
        """
        table, origins = self._table, alone(source.topic, source.partition)
        buffers: list[MessageBuffer] = []

        def make_buffer(framing: Framing) -> MessageBuffer:
            buffer = MessageBuffer()
            buffer.clear(framing)
            buffers.append(buffer)
            return buffer

        rest = {} if only is None else {table.entry: only}
        try:
            router = Router(origins, [table], rest, make_buffer, self._spec.tables_of(source.topic))
            feed(router)
            with router.messages_of(table.entry) as buffer:
                if not buffer.messages:
                    return _nothing()
                try:
                    decoded = self._decoder.decode(buffer, origins)
                except UnknownSchemasError as error:
                    # Messages of schemas that nobody knows become dead letters, and have no rows.
                    known = replace(table, schemas=error.found.known)
                    decoded = make_decoder(known).decode(buffer, origins)
        finally:
            for buffer in buffers:
                buffer.close()
        if not decoded.rows:
            return _nothing()
        keyed = self.row_keys.of(decoded)
        loader = loader_number(self._spec.pipeline, self._spec.connector, table.entry)
        owners = owners_of([topic_id], [source.partition], 0, loader, decoded.offsets, keyed.rows)
        has_key = keyed.has_key
        return KeyedRows(
            np.ascontiguousarray(keyed.keys[has_key]),
            np.ascontiguousarray(owners[has_key]),
            decoded.offsets[has_key],
        )


def decoder_of(table: TableSpec, registry: RegistryAccess | None) -> TableDecoder:
    """The decoder of a table entry, outside of a task.

    :param registry: how its registry is reached today.
    """
    url = table.registry
    if url and registry is not None:
        provide(url, RegistryClient(registry))
    return make_decoder(table)


def _nothing() -> KeyedRows:
    return KeyedRows(
        np.zeros((0, KEY_BYTES), np.uint8),
        np.zeros((0, OWNER_BYTES), np.uint8),
        np.zeros(0, np.uint64),
    )
