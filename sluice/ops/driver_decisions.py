"""A person's decisions that drivers obey while they run: freezing and resuming, values that count
instead of the configuration's, and the end."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence

from sluice.config import Configuration
from sluice.core.decided import (
    BY_MAX,
    DRAIN,
    FREEZE,
    LOG_LEVEL,
    RELOAD,
    RESUME,
    Decided,
    Subject,
    Value,
    asked_entry,
    decision_entry,
    done_entry,
    set_entry,
    why_no_value,
    why_not_said,
)
from sluice.core.errors import ConfigurationError, SluiceError, TerminalError, TransientError
from sluice.core.ledger import LedgerEntry
from sluice.core.replicas import host_matches
from sluice.driver.specs import kafka_access
from sluice.kafka.decisions import DecisionReader, write_decisions
from sluice.kafka.topics import partition_count
from sluice.machine.clock import now_ms

#: Why something is done that a person did not explain.
BY_COMMAND_LINE = "by the command line"


class DecisionRefusedError(TerminalError):
    """This decision does not fit what Kafka holds, or is said wrong."""


class PartlyDecidedError(TransientError):
    """Some connectors know of a decision, and others could not be told."""

    hint = "Give the same command again: what is decided already stays so."


def read_decided(configuration: Configuration, connector: str) -> Decided:
    """What is decided for a connector.

    :raises SluiceError: Kafka does not answer.
    """
    access, topic = kafka_access(configuration, connector), configuration.decisions_topic
    if not partition_count(access, topic):
        return Decided()
    reader = DecisionReader(access, topic)
    try:
        return reader.read_all()
    finally:
        reader.close()


def freeze(
    configuration: Configuration, *, by: str, why: str, connector: str = "", **place: str
) -> list[str]:
    """Freeze a pipeline, a connector of it, a table entry, a replica or a data center; gives what
    is frozen now, in words.

    :param connector: "" for all of them.
    :param place: one of `table`, the name of an entry, `replica`, host:port or URL, and
        `data_center`, a name; those that are "" count as not given.
    :raises ConfigurationError: there is none of this name.
    :raises DecisionRefusedError: the name or the reason is no text, or two places are given.
    :raises PartlyDecidedError: not all connectors could be told.
    """
    subject = _subject(connector, **place)
    entry = decision_entry(FREEZE, subject, by, why, _hosts_of(configuration, subject))
    return _freeze(configuration, subject, connector, entry)


def resume(
    configuration: Configuration, *, by: str, why: str, connector: str = "", **place: str
) -> list[str]:
    """Take a freeze of exactly this back; gives what is still frozen, in words. What is frozen need
    not be configured any more.

    :raises DecisionRefusedError: nothing of it is frozen; else as `freeze`.
    """
    subject, names = _subject(connector, **place), _names(configuration, connector)
    standing = {name: read_decided(configuration, name).frozen for name in names}
    if not any(each.subject == subject for found in standing.values() for each in found):
        frozen = [
            f"{each.subject} of connector {name}" for name in names for each in standing[name]
        ]
        raise DecisionRefusedError(
            f"{subject} is not frozen",
            f"Frozen is: {', '.join(frozen)}." if frozen else "Nothing is frozen.",
        )
    return _freeze(configuration, subject, connector, decision_entry(RESUME, subject, by, why))


def set_value(
    configuration: Configuration, *, name: str, value: Value, by: str, why: str, connector: str = ""
) -> list[str]:
    """Let a value count instead of the configuration's, also in a driver that is started later;
    gives what is set now, in words.

    :param name: see `core.decided`; `value`: None takes back what was set.
    :param connector: "" for all of them; logs belong to all.
    :raises DecisionRefusedError: the value is none, or as `freeze`.
    """
    wrong = why_no_value(name, value)
    if wrong is None and connector and name == LOG_LEVEL:
        wrong = f"{name} is that of the whole driver"
    if wrong is not None:
        raise DecisionRefusedError(f"set is refused: {wrong}", "Give another value.")
    names = _names(configuration, connector)
    found = _decide(configuration, f"set of {name}", names, set_entry(name, value, by, why))
    return [f"connector {name}: {each.line()}" for name in names for each in found[name].settings]


def drain(configuration: Configuration, *, by: str, why: str, member: str = "") -> list[str]:
    """Have each driver that runs settle what is out, and end; gives who was told, in words. One
    that is started later, or has not begun to load, goes on.

    :param member: only this one of a fleet; nobody asks whether there is one.
    :raises PartlyDecidedError: not all connectors could be told; the driver ends if it has heard.
    """
    who = f"member {member}" if member else "each driver that runs"
    entry = asked_entry(DRAIN, by, why, member)
    return _ask(configuration, f"{who} settles what is out, and ends", entry)


def reload(configuration: Configuration, *, by: str, why: str) -> list[str]:
    """Have the driver that runs look at the tables' columns, at topics and at the replicas now;
    gives who was told, in words.

    :raises PartlyDecidedError: not all connectors could be told.
    """
    does = "each driver that runs looks at columns, topics and replicas"
    return _ask(configuration, does, asked_entry(RELOAD, by, why))


def _ask(configuration: Configuration, does: str, entry: LedgerEntry) -> list[str]:
    names = _names(configuration, "")
    _decide(configuration, entry.body["type"], names, entry)
    return [f"connector {name}: {does}" for name in names]


def write_done(
    configuration: Configuration,
    what: str,
    names: Sequence[str],
    steps: Sequence[str],
    *,
    by: str,
    why: str,
) -> None:
    """Write into the ledger of these connectors what is about to be done to their dead letters.

    :param what: REPLAY or PURGE of `core.decided`.
    :raises DecisionRefusedError: the name or the reason is no text.
    :raises SluiceError: it cannot be written; nothing is to be done then.
    """
    entry = done_entry(what, steps, by[:BY_MAX], why)
    _refuse_unsaid(what, entry)
    for name in names:
        _write(configuration, name, entry, now_ms())


def whoever() -> str:
    """Who runs this."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _names(configuration: Configuration, connector: str) -> tuple[str, ...]:
    """The connectors that a decision concerns.

    :raises ConfigurationError: there is no such connector.
    """
    if connector:
        return (configuration.connector(connector).name,)
    return tuple(each.name for each in configuration.connectors)


def _subject(connector: str, table: str = "", replica: str = "", data_center: str = "") -> Subject:
    """What is meant; "" was not named.

    :raises DecisionRefusedError: several things are.
    """
    # Who froze it copied its URL, or wrote host:port.
    replica = replica.rpartition("://")[2].rstrip("/").lower()
    named: list[Subject] = [
        *([Subject("table", table)] if table else []),
        *([Subject("replica", replica)] if replica else []),
        *([Subject("data center", data_center)] if data_center else []),
    ]
    if len(named) > 1:
        raise DecisionRefusedError(
            f"it is refused: {' and '.join(map(str, named))} are two decisions",
            "Give each of them by itself.",
        )
    return named[0] if named else Subject("connector" if connector else "pipeline")


def _hosts_of(configuration: Configuration, subject: Subject) -> tuple[str, ...]:
    """The hosts of the servers that get no blocks while it is frozen; none where it is no place.

    :raises ConfigurationError: it is not configured.
    """
    clickhouse = configuration.clickhouse
    if subject.what == "table":
        configuration.table(subject.name)
    if subject.what == "data center":
        if subject.name not in clickhouse.data_centers:
            raise ConfigurationError(
                f'{configuration.path}: clickhouse.data_centers has no "{subject.name}"',
                f"Name one of: {', '.join(clickhouse.data_centers) or 'none is configured'}.",
            )
        return clickhouse.data_centers[subject.name]
    if subject.what != "replica":
        return ()
    urls = [url for shard in clickhouse.shards for url in shard.replicas]
    is_one = sum(host_matches(url, subject.name) for url in urls) == 1
    # Where the servers are asked for their replicas, the file knows none.
    if any(letter in subject.name for letter in "*?") or not (is_one or clickhouse.cluster):
        raise ConfigurationError(
            f'{configuration.path}: "{subject.name}" is not one replica of clickhouse.shards',
            f"Name one of them by host:port: {', '.join(urls)}.",
        )
    return (subject.name,)


def _freeze(
    configuration: Configuration, subject: Subject, connector: str, entry: LedgerEntry
) -> list[str]:
    names = _names(configuration, connector)
    found = _decide(configuration, f"{entry.body['type']} of {subject}", names, entry)
    return [f"connector {name}: {each.line()}" for name in names for each in found[name].frozen]


def _decide(
    configuration: Configuration, what: str, names: Sequence[str], entry: LedgerEntry
) -> dict[str, Decided]:
    """Tell these connectors; gives what is decided now for each of them.

    :param what: the decision, in words.
    """
    _refuse_unsaid(what, entry)
    failures, now = [], now_ms()
    found: dict[str, Decided] = {}
    for name in names:
        try:
            _write(configuration, name, entry, now)
            found[name] = read_decided(configuration, name)
        except SluiceError as error:
            failures.append(f"connector {name}: {error}")
    if failures:
        raise PartlyDecidedError(
            f"{what} reached {len(names) - len(failures)} of {len(names)} connectors: "
            f"{'; '.join(failures)}"
        )
    return found


def _refuse_unsaid(what: str, entry: LedgerEntry) -> None:
    wrong = why_not_said(entry.body["by"], entry.body["why"])
    if wrong is not None:
        raise DecisionRefusedError(f"{what} is refused: {wrong}", "Say who decides, and why.")


def _write(configuration: Configuration, connector: str, entry: LedgerEntry, now: int) -> None:
    access, group = kafka_access(configuration, connector), configuration.group(connector)
    topics = configuration.ledger_topic, configuration.decisions_topic
    write_decisions(access, group, *topics, [entry], now)
