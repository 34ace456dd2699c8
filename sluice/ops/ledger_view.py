"""The ledger for people: its entries, chosen by connector, topic, partition, table and time."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sluice.config import Configuration
from sluice.core.decided import DECISIONS
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.ledger import entries_in
from sluice.driver.specs import kafka_access
from sluice.kafka.tail import FOLLOWING_MS, LogMessage, Tail, refuse_late
from sluice.kafka.topics import partition_count

_logger = logging.getLogger("sluice.ledger")

_POLL_SECONDS = 0.2
_RETRY_SECONDS = 2.0
_PREVIEW_BYTES = 200

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LedgerSelection:
    """Which entries are wanted; None wants all.

    Texts belong to no partition, so a topic or a partition leaves them out. Records and
    settles belong to no table: a table's are those of its topics.

    :param table: name of a table entry.
    :param offset: only entries whose range has this offset.
    :param since_ms: wall time in milliseconds.
    :param until: reading is given up then, by `time.monotonic`.
    """

    connector: str | None = None
    topic: str | None = None
    partition: int | None = None
    table: str | None = None
    since_ms: int | None = None
    offset: int | None = None
    until: float | None = None


def read_ledger(
    configuration: Configuration, selection: LedgerSelection, stop: threading.Event | None = None
) -> Iterator[Entry]:
    """The chosen entries, committed ones only, each with its offset in the ledger.

    One connector's after the other's, up to the ledger's last stable offset as it is now; with
    `stop` they go on as they come until it is set, and what does not answer is asked again.

    :raises ConfigurationError: there is no such connector, topic or table.
    :raises SluiceError: a ledger cannot be read.
    """
    check(configuration, selection)
    names = [connector.name for connector in configuration.connectors]
    wanted = [name for name in names if selection.connector in (None, name)]
    if stop is not None:
        yield from _followed(configuration, selection, wanted, stop)
        return
    for name in wanted:
        tail = _open(configuration, name, selection)
        if tail is None:
            topic = configuration.ledger_topic
            _logger.warning("connector %s: there is no topic %s yet", name, topic)
            continue
        try:
            while not tail.caught_up:
                yield from _chosen(configuration, selection, name, tail)
        finally:
            tail.close()


def _followed(
    configuration: Configuration,
    selection: LedgerSelection,
    names: list[str],
    stop: threading.Event,
) -> Iterator[Entry]:
    tails: dict[str, Tail] = {}
    try:
        while not stop.is_set():
            for name in names:
                try:
                    if name not in tails:
                        tail = _open(configuration, name, selection)
                        if tail is None:
                            stop.wait(_RETRY_SECONDS)
                            continue
                        tails[name] = tail
                    yield from _chosen(configuration, selection, name, tails[name])
                except TransientError as error:
                    _logger.warning("connector %s: %s", name, error)
                    stop.wait(_RETRY_SECONDS)
    finally:
        for tail in tails.values():
            tail.close()


def check(configuration: Configuration, selection: LedgerSelection) -> None:
    """:raises ConfigurationError: the configuration has no such connector, topic or table."""
    if selection.connector is not None:
        configuration.connector(selection.connector)
    topics = sorted({t for connector in configuration.connectors for t in connector.topics})
    names = [connector.name for connector in configuration.connectors]
    if selection.topic is not None and not any(
        configuration.reads(name, selection.topic) for name in names
    ):
        raise ConfigurationError(
            f'{configuration.path}: no connector loads the topic "{selection.topic}"',
            f"Name one of: {', '.join(topics)}." if topics else "No topic_pattern takes it.",
        )
    if selection.table is not None:
        configuration.table(selection.table)


def _open(configuration: Configuration, connector: str, selection: LedgerSelection) -> Tail | None:
    access, topic = kafka_access(configuration, connector), configuration.ledger_topic
    if not partition_count(access, topic):
        return None
    # A message is stamped after the time that its entry names, so none is left out.
    return Tail(access, topic, since_ms=selection.since_ms, fetch_wait_max_ms=FOLLOWING_MS)


def _chosen(
    configuration: Configuration, selection: LedgerSelection, connector: str, tail: Tail
) -> Iterator[Entry]:
    refuse_late(configuration.ledger_topic, selection.until)
    for message in tail.poll(_POLL_SECONDS):
        for entry in _entries(message):
            if entry["connector"] == connector and is_chosen(configuration, selection, entry):
                yield entry
            elif entry["type"] == "unreadable":
                yield entry | {"connector": connector}


def _entries(message: LogMessage) -> list[Entry]:
    try:
        return [
            {
                "offset": message.offset,
                "connector": str(body["connector"]),
                "at_ms": int(body["at_ms"]),
                "type": str(body["type"]),
                **body,
            }
            for body in entries_in(json.loads(message.value or b""))
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        value = (message.value or b"")[:_PREVIEW_BYTES].decode(errors="backslashreplace")
        return [
            {
                "offset": message.offset,
                "connector": "",
                "at_ms": message.timestamp_ms,
                "type": "unreadable",
                "value": value,
            }
        ]


def is_chosen(configuration: Configuration, selection: LedgerSelection, entry: Entry) -> bool:
    """Whether an entry of the right connector is wanted."""
    if selection.since_ms is not None and entry["at_ms"] < selection.since_ms:
        return False
    if selection.topic is not None and entry.get("topic") != selection.topic:
        return False
    if selection.partition is not None and entry.get("partition") != selection.partition:
        return False
    if selection.offset is not None and not _holds(entry, selection.offset):
        return False
    if selection.table is None:
        return True
    if entry["type"] in DECISIONS:
        return bool(entry.get("table", "") in ("", selection.table))
    if entry["type"] == "receipt":
        return bool(entry.get("entry") == selection.table)
    table = configuration.table(selection.table)
    return entry["type"] == "load_spec" or table.takes(str(entry.get("topic", "")))


def _holds(entry: Entry, offset: int) -> bool:
    """Whether an entry is about this offset. Where nothing is outstanding none is."""
    return "begin" in entry and bool(entry["begin"] <= offset < entry["end"])
