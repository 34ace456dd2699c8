"""Freezing and resuming: a person's decisions that drivers obey while they run."""

from __future__ import annotations

from sluice.config import Configuration
from sluice.core.errors import SluiceError, TransientError
from sluice.core.freezes import (
    FREEZE,
    RESUME,
    Standing,
    Subject,
    decision_entry,
    why_not_said,
)
from sluice.driver.specs import kafka_access
from sluice.kafka.decisions import DecisionReader, write_decisions
from sluice.kafka.tail import partition_count
from sluice.ops.deciding import DecisionRefusedError, now_ms


class PartlyDecidedError(TransientError):
    """Some connectors know of a decision, and others could not be told."""

    hint = "Give the same command again: what is frozen or resumed already stays so."


def read_frozen(configuration: Configuration, connector: str) -> Standing:
    """What is frozen in a connector.

    :raises SluiceError: Kafka does not answer.
    """
    access, topic = kafka_access(configuration, connector), configuration.decisions_topic
    if not partition_count(access, topic):
        return ()
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
    return _decide(configuration, FREEZE, connector, table, by, why)


def resume(
    configuration: Configuration, *, connector: str, table: str, by: str, why: str
) -> list[str]:
    """Take a freeze of exactly this back; gives what is still frozen, in words.

    :raises DecisionRefusedError: nothing of it is frozen; else as `freeze`.
    """
    subject, names = _named(configuration, connector, table)
    standing = {name: read_frozen(configuration, name) for name in names}
    if not any(each.subject == subject for found in standing.values() for each in found):
        frozen = [
            f"{each.subject} of connector {name}" for name in names for each in standing[name]
        ]
        raise DecisionRefusedError(
            f"{subject} is not frozen",
            f"Frozen is: {', '.join(frozen)}." if frozen else "Nothing is frozen.",
        )
    return _decide(configuration, RESUME, connector, table, by, why)


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


def _decide(
    configuration: Configuration, decision: str, connector: str, table: str, by: str, why: str
) -> list[str]:
    wrong = why_not_said(by, why)
    if wrong is not None:
        raise DecisionRefusedError(f"{decision} is refused: {wrong}", "Say who decides, and why.")
    subject, names = _named(configuration, connector, table)
    entry, failures, now = decision_entry(decision, subject, by, why), [], now_ms()
    lines: list[str] = []
    for name in names:
        topics = configuration.ledger_topic, configuration.decisions_topic
        try:
            write_decisions(kafka_access(configuration, name), *topics, [entry], now)
            standing = read_frozen(configuration, name)
            lines += [f"connector {name}: {each.line()}" for each in standing]
        except SluiceError as error:
            failures.append(f"connector {name}: {error}")
    if failures:
        raise PartlyDecidedError(
            f"{decision} of {subject} reached {len(names) - len(failures)} of {len(names)} "
            f"connectors: {'; '.join(failures)}"
        )
    return lines
