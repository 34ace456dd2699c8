"""How every client of a connector is made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient

_logger = logging.getLogger("sluice.kafka")

#: Of consumers that read topics: librdkafka wants the name of a group, and looks for its
#: coordinator; nothing joins it or commits.
READER_GROUP = "sluice.reader"


@dataclass(frozen=True, slots=True)
class KafkaAccess:
    """How to reach one Kafka cluster. Travels to the workers; holds secrets in the clear.

    :param connector: the connector's name.
    :param properties: librdkafka properties of the user, for every client.
    :param reader: what reads the ranges, "librdkafka" or "native".
    """

    connector: str
    brokers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    reader: str = "librdkafka"

    def client(self, **own: str | int | bool) -> dict[str, str | int | bool]:
        """Properties of a client; ours win over the user's.

        Keyword names are librdkafka's with underscores for dots.
        """
        merged: dict[str, str | int | bool] = {
            "bootstrap.servers": self.brokers,
            "client.id": f"sluice.{self.connector}",
            # Without it a broker that comes back is tried again only after ten seconds.
            "reconnect.backoff.max.ms": 2000,
            **self.properties,
        }
        merged.update({name.replace("_", "."): value for name, value in own.items()})
        return merged


def _log_error(error: ck.KafkaError) -> None:
    # librdkafka repeats itself while a broker is away; the callers report what it means.
    _logger.debug("librdkafka: %s", error)


def make_admin(access: KafkaAccess) -> AdminClient:
    """A client for topics, configurations and offsets."""
    return AdminClient({**access.client(), "error_cb": _log_error, "log_level": 2})


def make_consumer(
    access: KafkaAccess, group: str = READER_GROUP, /, **own: str | int | bool
) -> ck.Consumer:
    """A consumer that never commits and never joins a group by itself.

    It reads committed data only, and an offset that is gone is an error, not a jump (H20).
    """
    return _consumer(access, group, {"isolation_level": "read_committed", **own})


def make_unstable_reader(access: KafkaAccess, group: str = READER_GROUP) -> ck.Consumer:
    """A consumer that shows committed offsets while a transaction on them is open.

    Only good for finding whom to fence; never for deciding what to load (H5).
    """
    return _consumer(access, group, {"isolation_level": "read_uncommitted"})


def _consumer(access: KafkaAccess, group: str, own: dict[str, str | int | bool]) -> ck.Consumer:
    properties = access.client(
        group_id=group,
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        auto_offset_reset="error",
        **own,
    )
    return ck.Consumer({"log_level": 2, **properties, "error_cb": _log_error})


def make_producer(access: KafkaAccess, transactional_id: str, timeout_ms: int) -> ck.Producer:
    """A transactional producer. `retry.backoff.ms` is low because a transaction that
    follows another at once otherwise waits 100 ms for the coordinator [measured].

    `linger.ms` gathers dead letters: without it the client sends them nearly one by one while
    they are made, at 11 us of its CPU each instead of 2, and as much of the broker's. A flush
    and a commit do not wait for it [measured].
    """
    properties = access.client(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        retry_backoff_ms=10,
        linger_ms=100,
        compression_type="lz4",
        message_max_bytes=16 * 1024 * 1024,
    )
    return ck.Producer({"log_level": 2, **properties, "error_cb": _log_error})


def make_reporter(access: KafkaAccess) -> ck.Producer:
    """A producer without transactions, of few small messages: each is sent at once, in its order,
    and given up when it cannot be sent in time, since the next one says more."""
    properties = access.client(
        acks="all",
        max_in_flight=1,
        linger_ms=0,
        message_timeout_ms=10_000,
    )
    return ck.Producer({"log_level": 2, **properties, "error_cb": _log_error})
