"""How every client of a connector is made."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ClusterMetadata

from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.kafka_identity import identity_properties, wire_mechanism
from sluice.kafka.errors import kafka_error, refused, unreachable
from sluice.kafka.quotas import Slowed
from sluice.kafka.tokens import token_source

_logger = logging.getLogger("sluice.kafka")

#: Of consumers that read topics: librdkafka wants the name of a group, and looks for its
#: coordinator; nothing joins it or commits.
READER_GROUP = "sluice.reader"

_LOGIN_CODES = frozenset({ck.KafkaError._AUTHENTICATION, ck.KafkaError._SSL})
_LOST_CODES = frozenset({ck.KafkaError._TRANSPORT, ck.KafkaError._ALL_BROKERS_DOWN})
#: A connection that broke while somebody logged in, or that could not be tried since who gives out
#: tokens or tickets did not: no broker has refused anybody.
_BROKEN_LOGIN = (
    "Disconnected",
    "Broker transport failure",
    "timed out",
    "Failed to acquire SASL OAUTHBEARER token",
    "Cannot contact any KDC",
)
#: What is answered to a request that reached no broker.
_UNREACHED_CODES = frozenset({*_LOST_CODES, ck.KafkaError._TIMED_OUT})
_AFTER = re.compile(r" \(after \d+ms in state [A-Z_]+(, \d+ identical error\(s\) suppressed)?\)")
#: A login that goes on to fail is told again after so long.
_AGAIN_SECONDS = 60.0

_Client = TypeVar("_Client")


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

    def client(self, **own: str | int | bool) -> dict[str, Any]:
        """Properties of a client; ours win over the user's.

        Keyword names are librdkafka's with underscores for dots.

        :raises SluiceError: brokers want a token, and none can be had.
        """
        merged: dict[str, Any] = {
            "bootstrap.servers": self.brokers,
            "client.id": f"sluice.{self.connector}",
            # Without it a broker that comes back is tried again only after ten seconds.
            "reconnect.backoff.max.ms": 2000,
            **self.properties,
            # An admin client is a producer, and a producer that asks for a topic that is not there
            # has brokers make it, by their default, with their settings and not with ours.
            "allow.auto.create.topics": False,
        }
        merged.update({name.replace("_", "."): value for name, value in own.items()})
        source = token_source(self.properties)
        if source is not None:
            source.token()  # a client that gets none waits ten seconds, and says nothing of why
            for name in identity_properties(self.properties):
                del merged[name]
            merged |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": source.for_librdkafka}
        return merged


class _Errors:
    """What librdkafka tells of a client on its way, as its `error_cb`.

    :param lost: called when a connection to a broker ended that was not meant to, or none began.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._warned_at = -_AGAIN_SECONDS
        self.forget()

    def forget(self) -> None:
        """Of what comes next only the last reason counts."""
        #: Of a login that failed, and of a connection; "": none is known.
        self.refusal = self.reason = ""

    def __call__(self, error: ck.KafkaError) -> None:
        code, text = error.code(), _AFTER.sub("", error.str())
        if code in _LOGIN_CODES and not any(words in text for words in _BROKEN_LOGIN):
            self.refusal = text
            if time.monotonic() - self._warned_at >= _AGAIN_SECONDS:
                self._warned_at = time.monotonic()
                _logger.warning("Kafka refuses the login: %s", text)
            return
        # It repeats itself while a broker is away; the callers report what it means.
        _logger.debug("librdkafka: %s", error)
        if code != ck.KafkaError._ALL_BROKERS_DOWN:
            self.reason = text
        elif not self.reason:  # a listener that wants TLS or a login is told of by no other error
            self.reason = "the brokers end each connection, and do not say why"
        if code in _LOST_CODES:
            self._lost()


#: Of admin clients that live.
_errors: WeakKeyDictionary[AdminClient, _Errors] = WeakKeyDictionary()


def admin_error(admin: AdminClient, action: str, error: ck.KafkaException) -> SluiceError:
    """The typed error for what an admin client answered to `action`: where no broker was reached,
    with the reason, which librdkafka tells beside its answer (`begin_question` stands before it).

    :returns: a KafkaRefusedError if nobody was let in.
    """
    if error.args[0].code() in _UNREACHED_CODES and admin in _errors:
        admin.poll(0)  # takes what librdkafka has told meanwhile
        told = _errors[admin]
        if told.refusal:
            return refused(action, told.refusal)
        if told.reason:
            return unreachable(action, told.reason)
    return kafka_error(action, error)


def begin_question(admin: AdminClient) -> None:
    """Of the reasons that librdkafka tells only those count from now on that come during what is
    asked next: an admin client may live as long as its driver."""
    admin.poll(0)
    if admin in _errors:
        _errors[admin].forget()


def list_topics(
    admin: AdminClient, action: str, timeout_seconds: float, topic: str | None = None
) -> ClusterMetadata:
    """Brokers and topics of the cluster.

    :param action: what this is for, for messages.
    :param topic: only this one.
    :raises KafkaRefusedError: nobody is let in.
    :raises SluiceError: Kafka does not answer; with the reason, where it is known.
    """
    begin_question(admin)
    try:
        return admin.list_topics(topic, timeout=timeout_seconds)
    except ck.KafkaException as error:
        raise admin_error(admin, action, error) from None


def _make(
    kind: Callable[[dict[str, Any]], _Client],
    access: KafkaAccess,
    lost: Callable[[], None] = lambda: None,
    /,
    callbacks: Mapping[str, Callable[..., None]] = {},
    **own: Any,
) -> _Client:
    """A client of one kind; see `KafkaAccess.client`.

    :raises SluiceError: there can be none with these properties.
    """
    errors = _Errors(lost)
    properties = {"log_level": 2, **access.client(**own), **callbacks, "error_cb": errors}
    try:
        client = kind(properties)
        if isinstance(client, AdminClient):
            _errors[client] = errors
        return client
    except ck.KafkaException as error:
        failure = kafka_error(f"connector {access.connector}: making a client", error)
        if "No provider for SASL mechanism GSSAPI" not in failure.message:
            raise failure from None
        raise ConfigurationError(
            f"connector {access.connector}: the installed librdkafka is built without Kerberos "
            f"(sasl.mechanism = {wire_mechanism(access.properties)})",
            'Install one that has it: docs/OPERATIONS.md, "Kerberos"; or choose another mechanism.',
        ) from None


def make_admin(access: KafkaAccess) -> AdminClient:
    """A client for topics, configurations and offsets."""
    return _make(AdminClient, access)


def make_consumer(
    access: KafkaAccess,
    group: str = READER_GROUP,
    slowed: Slowed | None = None,
    /,
    **own: str | int | bool,
) -> ck.Consumer:
    """A consumer that never commits and never joins a group by itself.

    It reads committed data only, and an offset that is gone is an error, not a jump (H20).

    :param slowed: is told, from `consume` and other calls, when a broker's quota is used up.
    """
    return _consumer(access, group, {"isolation_level": "read_committed", **own}, slowed)


def make_unstable_reader(access: KafkaAccess, group: str = READER_GROUP) -> ck.Consumer:
    """A consumer that shows committed offsets while a transaction on them is open.

    Only good for finding whom to fence; never for deciding what to load (H5).
    """
    return _consumer(access, group, {"isolation_level": "read_uncommitted"})


def _consumer(
    access: KafkaAccess,
    group: str,
    own: dict[str, str | int | bool],
    slowed: Slowed | None = None,
) -> ck.Consumer:
    callbacks = {} if slowed is None else {"throttle_cb": slowed.told_by_librdkafka}
    return _make(
        ck.Consumer,
        access,
        callbacks=callbacks,
        group_id=group,
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        auto_offset_reset="error",
        **own,
    )


#: A broker that is slower than that is waited for by whoever initialises the producer.
_CONNECT_SECONDS = 1.0


def make_producer(
    access: KafkaAccess,
    transactional_id: str,
    timeout_ms: int,
    topic: str,
    lost: Callable[[], None] = lambda: None,
) -> ck.Producer:
    """A transactional producer. `retry.backoff.ms` is low because a transaction that
    follows another at once otherwise waits 100 ms for the coordinator [measured].

    `linger.ms` gathers dead letters: without it the client sends them nearly one by one while
    they are made, at 11 us of its CPU each instead of 2, and as much of the broker's. A flush
    and a commit do not wait for it [measured].

    When it is given back it has asked for a topic, and so has a connection to a broker: where it is
    initialised without one, librdkafka looks for one half a second later [2.16: six of 16 took
    510 ms, and then none more than 20; to ask takes 55].

    :param topic: that it is to write to.
    :param lost: called, from `poll` and other calls, after a connection to a broker was lost.
    """
    producer: ck.Producer = _make(
        ck.Producer,
        access,
        lost,
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        retry_backoff_ms=10,
        linger_ms=100,
        compression_type="lz4",
        message_max_bytes=16 * 1024 * 1024,
    )
    with suppress(ck.KafkaException):  # why, the next call says
        for _ in range(2):  # with the first answer it leaves the connection on which it asked
            producer.list_topics(topic, timeout=_CONNECT_SECONDS)
    return producer


def make_reporter(access: KafkaAccess) -> ck.Producer:
    """A producer without transactions, of few small messages: each is sent at once, in its order,
    and given up when it cannot be sent in time, since the next one says more."""
    return _make(
        ck.Producer,
        access,
        acks="all",
        max_in_flight=1,
        linger_ms=0,
        message_timeout_ms=10_000,
    )
