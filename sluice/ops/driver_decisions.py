"""A person's decisions that drivers obey while they run: freezing and resuming, values that count
instead of the configuration's, and the end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sluice.config import Configuration
from sluice.core.decided import (
    FREEZE,
    LOG_LEVEL,
    RESUME,
    Decided,
    Subject,
    Value,
    decision_entry,
    drain_entry,
    set_entry,
    why_no_value,
    why_not_said,
)
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.ledger import LedgerEntry
from sluice.driver.specs import kafka_access
from sluice.kafka.decisions import DecisionReader, write_decisions
from sluice.kafka.tail import partition_count


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
    configuration: Configuration, *, connector: str, table: str, by: str, why: str
) -> list[str]:
    """Freeze a pipeline, a connector of it, or a table entry; gives what is frozen now, in words.

    :param connector: "" for all of them.
    :param table: name of a table entry; "" for all.
    :raises ConfigurationError: there is no such connector or table entry.
    :raises DecisionRefusedError: the name or the reason is no text.
    :raises PartlyDecidedError: not all connectors could be told.
    """
    return _freeze(configuration, FREEZE, connector, table, by, why)


def resume(
    configuration: Configuration, *, connector: str, table: str, by: str, why: str
) -> list[str]:
    """Take a freeze of exactly this back; gives what is still frozen, in words.

    :raises DecisionRefusedError: nothing of it is frozen; else as `freeze`.
    """
    subject, names = _named(configuration, connector, table)
    standing = {name: read_decided(configuration, name).frozen for name in names}
    if not any(each.subject == subject for found in standing.values() for each in found):
        frozen = [
            f"{each.subject} of connector {name}" for name in names for each in standing[name]
        ]
        raise DecisionRefusedError(
            f"{subject} is not frozen",
            f"Frozen is: {', '.join(frozen)}." if frozen else "Nothing is frozen.",
        )
    return _freeze(configuration, RESUME, connector, table, by, why)


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
    _, names = _named(configuration, connector, "")
    found = _decide(configuration, f"set of {name}", names, set_entry(name, value, by, why))
    return [f"connector {name}: {each.line()}" for name in names for each in found[name].settings]


def drain(configuration: Configuration, *, by: str, why: str) -> list[str]:
    """Have the driver that runs settle what is out, and end; gives who was told, in words. One
    that is started later, or has not begun to load, goes on.

    :raises PartlyDecidedError: not all connectors could be told; the driver ends if it has heard.
    """
    _, names = _named(configuration, "", "")
    _decide(configuration, "drain", names, drain_entry(by, why))
    return [
        f"connector {name}: the driver that runs settles what is out, and ends" for name in names
    ]


def _named(
    configuration: Configuration, connector: str, table: str
) -> tuple[Subject, tuple[str, ...]]:
    """What is meant, and the connectors that it concerns.

    :raises ConfigurationError: there is no such connector or table entry.
    """
    if table:
        configuration.table(table)
    if connector:
        configuration.connector(connector)
    names = tuple(each.name for each in configuration.connectors if connector in ("", each.name))
    return Subject.named(table, connector), names


def _freeze(
    configuration: Configuration, decision: str, connector: str, table: str, by: str, why: str
) -> list[str]:
    subject, names = _named(configuration, connector, table)
    entry = decision_entry(decision, subject, by, why)
    found = _decide(configuration, f"{decision} of {subject}", names, entry)
    return [f"connector {name}: {each.line()}" for name in names for each in found[name].frozen]


def _decide(
    configuration: Configuration, what: str, names: Sequence[str], entry: LedgerEntry
) -> dict[str, Decided]:
    """Tell these connectors; gives what is decided now for each of them.

    :param what: the decision, in words.
    """
    wrong = why_not_said(entry.body["by"], entry.body["why"])
    if wrong is not None:
        raise DecisionRefusedError(f"{what} is refused: {wrong}", "Say who decides, and why.")
    failures, now = [], now_ms()
    found: dict[str, Decided] = {}
    topics = configuration.ledger_topic, configuration.decisions_topic
    for name in names:
        try:
            access, group = kafka_access(configuration, name), configuration.group(name)
            write_decisions(access, group, *topics, [entry], now)
            found[name] = read_decided(configuration, name)
        except SluiceError as error:
            failures.append(f"connector {name}: {error}")
    if failures:
        raise PartlyDecidedError(
            f"{what} reached {len(names) - len(failures)} of {len(names)} connectors: "
            f"{'; '.join(failures)}"
        )
    return found


def now_ms() -> int:
    """Wall time in milliseconds."""
    return time.time_ns() // 1_000_000
