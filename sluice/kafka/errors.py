"""What librdkafka's error codes mean for us, mapped once."""

from __future__ import annotations

import re

import confluent_kafka as ck

from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.ranges import TopicPartition

FENCED_CODES = frozenset(
    {
        ck.KafkaError._FENCED,
        ck.KafkaError.INVALID_PRODUCER_EPOCH,
        ck.KafkaError.PRODUCER_FENCED,
    }
)

#: Sluice's user lacks a right.
_RIGHTS_CODES = frozenset(
    {
        ck.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ck.KafkaError.GROUP_AUTHORIZATION_FAILED,
        ck.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        ck.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)

#: Nobody is let in as Sluice's user.
_LOGIN_CODES = frozenset(
    {
        ck.KafkaError._AUTHENTICATION,
        ck.KafkaError.SASL_AUTHENTICATION_FAILED,
        ck.KafkaError._SSL,
    }
)


class KafkaTerminalError(TerminalError):
    """Kafka refuses this for good."""

    hint = "Check brokers, credentials and access rights of the connector."


class KafkaRefusedError(KafkaTerminalError):
    """Sluice's user is not let in, or not believed. For who starts, that is for good. Who runs was
    let in before, and waits: the directory of users may be away, or one broker have a wrong
    certificate."""


class KafkaDeniedError(KafkaRefusedError):
    """Sluice's user lacks a right."""

    hint = "`sluice doctor` names the right that is missing, and `--grants` prints all of them."


class RegistryRefusedError(TerminalError):
    """The schema registry does not let Sluice in, or something else answers in its place. Where it
    has answered before, that passes: what checks passwords for it may be away, or a proxy before it
    show a page of its own."""

    hint = "Check url, user and password, or token, in [registry]."


class KafkaUnavailableError(TransientError):
    """Kafka did not answer, or cannot answer now."""

    hint = "Check that the brokers run and can be reached; `sluice run` goes on by itself."


#: What who runs waits for.
PASSING = (TransientError, KafkaRefusedError)


class FencedError(TransientError):
    """The transactional id was initialised again: by a successor, or by our own time-out (H4)."""

    hint = "The owner is read from the group to tell which."


class UnknownCommitError(InDoubtError):
    """A transaction may have been committed (H6)."""

    hint = "The committed records are read to tell; no action is needed."


class RangeVanishedError(TerminalError):
    """Offsets of a range are no longer in the log."""

    hint = "Messages expired or the log was truncated: `sluice adopt` or `sluice rewind` decides."


class RecreatedTopicError(TerminalError):
    """A topic was deleted and created again: other messages have the offsets (H12)."""

    hint = "`sluice adopt --offset 0` loads the new one from its beginning."


def recreated(source: TopicPartition, topic_id: str) -> RecreatedTopicError:
    """The error of a partition that was recorded under another id than its topic has now."""
    return RecreatedTopicError(
        f"{source}: the topic was deleted and created again (its id is {topic_id} now)"
    )


class StalledError(TransientError):
    """The offsets exist, but reading makes no progress."""

    hint = "Check the partition's leader; Sluice reads the range again."


#: What to do where a transaction that another producer left open holds messages back.
OPEN_TRANSACTION_HINT = (
    "Kafka's `kafka-transactions.sh describe-producers` with this topic and partition shows whose "
    "transaction is open, and since which offset. End that producer, or abort its transaction "
    "(`kafka-transactions.sh abort`), and begin again."
)

#: What a text says where a client connects to what the cluster itself calls a broker, and not to
#: what stands in the configuration.
_OF_THE_CLUSTER = re.compile(r"/\d+: ")
_LISTENER = (
    "The address in `brokers` of the connector expects another protocol than this client uses: set "
    'the property "security.protocol" of the connector to what that listener has, PLAINTEXT, SSL, '
    "SASL_PLAINTEXT or SASL_SSL."
)
#: Words of a reason, and what to do about it.
_REMEDIES = (
    (
        "certificate verify failed",
        'Name the authority that signed the brokers\' certificate: "ssl.ca.location" of the '
        "connector.",
    ),
    ("SSL handshake failed", _LISTENER),
    ("Invalid response size", _LISTENER),
    ("Disconnected", _LISTENER),
    ("end each connection", _LISTENER),
    (
        "Failed to resolve",
        "Correct the host in `brokers` of the connector, or let this machine resolve it.",
    ),
    (
        "Connection refused",
        "Nothing listens there: correct host and port in `brokers` of the connector, or start the "
        "broker.",
    ),
)


def unreachable(action: str, why: str) -> KafkaUnavailableError:
    """No broker was reached.

    :param why: the reason, in librdkafka's words.
    """
    hint = next((hint for words, hint in _REMEDIES if words in why), None)
    if _OF_THE_CLUSTER.search(why):
        hint = (
            "This is the address that the cluster gives to its clients (advertised.listeners): "
            "start the broker, or give it an address that can be reached from here."
        )
    return KafkaUnavailableError(f"{action}: {why}", hint)


def refused(action: str, why: str) -> KafkaRefusedError:
    """Nobody was let in.

    :param why: the reason, in librdkafka's words.
    """
    hint = next((hint for words, hint in _REMEDIES if words in why), None)
    return KafkaRefusedError(f"{action}: {why}", hint)


class UnreadRangeError(Exception):
    """One of the ranges that were to be read could not be.

    :param number: its place in their list.
    """

    def __init__(self, number: int, reason: SluiceError) -> None:
        super().__init__(str(reason))
        self.number = number
        self.reason = reason


def kafka_error(action: str, error: ck.KafkaError | Exception) -> SluiceError:
    """The typed error for what librdkafka answered to `action`."""
    inner = error.args[0] if isinstance(error, ck.KafkaException) and error.args else error
    if not isinstance(inner, ck.KafkaError):
        return KafkaUnavailableError(f"{action}: {inner}")
    text = f"{action}: {inner.name()}: {inner.str()}"
    if inner.code() in FENCED_CODES:
        return FencedError(text)
    if inner.code() in _RIGHTS_CODES:
        return KafkaDeniedError(text)
    if inner.code() in _LOGIN_CODES:
        return KafkaRefusedError(text)
    if inner.code() == ck.KafkaError._INVALID_ARG:
        return KafkaTerminalError(text)
    return KafkaUnavailableError(text)
