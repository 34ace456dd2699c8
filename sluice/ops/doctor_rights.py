"""What `doctor` says of rights: which of those that `grants` lists Sluice's user lacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.config import Configuration, ConnectorConfiguration
from sluice.core.errors import ConfigurationError, SluiceError, TransientError
from sluice.driver.specs import access_of
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.errors import KafkaDeniedError
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.grants import DOCTOR, ClickHouseRight, KafkaRight, kafka_rights, kafka_user


def check_kafka_rights(
    configuration: Configuration, connector: ConnectorConfiguration, cluster: BrokerFacts
) -> list[Finding]:
    """Ask brokers what a connector's user may do; nothing is changed by it."""
    found = Examination(f"connector {connector.name}")
    rights = [
        each for each in kafka_rights(configuration, connector) if each.command in ("", DOCTOR)
    ]
    try:
        recording = _refused_of_recording(configuration.group(connector.name), cluster)
        for right, lacking in _lacking(configuration, connector, cluster, rights, recording):
            tell = found.warning if right.command else found.error
            tell(
                "rights",
                f"its user lacks {' and '.join(lacking)} on {right.shown}: {right.why}",
                right.statement(connector.brokers, kafka_user(connector), lacking),
            )
        said = "its user has all that are needed"
        if recording is None:
            said = (
                "its user has all rights on topics. Whether it may write transactions and commit "
                "cannot be asked with this login: the start of `sluice run` tells"
            )
        found.ok("rights", said)
    except SluiceError as error:
        found.failed("rights", error)
    return found.findings


def _lacking(
    configuration: Configuration,
    connector: ConnectorConfiguration,
    cluster: BrokerFacts,
    rights: Sequence[KafkaRight],
    recording: str | None,
) -> Iterator[tuple[KafkaRight, list[str]]]:
    topics = configuration.topics_of(connector.name, cluster.topics)
    own = {right.name for right in rights if right.kind == "topic" and not right.is_prefix}
    held = cluster.may({*topics, *own} - {"*"})
    for right in rights:
        if right.kind == "topic":
            lacking = _of_topic(cluster, right, held, topics)
        elif right.kind == "cluster":
            lacking = list(right.operations) if _is_denied(cluster.settings) else []
        elif right.operations == ("Describe",):
            lacking = ["Describe"] if _is_denied(partial(cluster.members, right.name)) else []
        else:
            lacking = list(right.operations) if right.kind == recording else []
        if lacking:
            yield right, lacking


def _of_topic(
    cluster: BrokerFacts,
    right: KafkaRight,
    held: dict[str, frozenset[str]],
    topics: Sequence[str],
) -> list[str]:
    """The operations that are missing, of a topic or of any whose name begins so."""
    begin = "" if right.name == "*" else right.name
    is_one = not right.is_prefix and right.name != "*"
    names = [right.name] if is_one else [name for name in topics if name.startswith(begin)]
    if right.operations == ("Create",):
        is_missing = "DESCRIBE" not in held.get(right.name, ())
        denied = is_missing and _is_denied(lambda: cluster.require_create(right.name))
        return ["Create"] if denied else []
    return [
        operation
        for operation in right.operations
        if any(name in held and _word(operation) not in held[name] for name in names)
    ]


def _word(operation: str) -> str:
    return {"DescribeConfigs": "DESCRIBE_CONFIGS"}.get(operation, operation.upper())


def _refused_of_recording(group: str, cluster: BrokerFacts) -> str | None:
    """On what the right is missing that a transaction on the group's offsets needs; "": none is.
    None: it cannot be asked, as the login is one that only librdkafka knows."""
    try:
        return cluster.refused_of_recording(f"{group}.doctor", group)
    except ConfigurationError:
        return None


def _is_denied(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except KafkaDeniedError:
        return True
    except SluiceError:
        pass  # another check tells of it
    return False


def known_tables(configuration: Configuration) -> tuple[dict[str, TableFacts], list[str]]:
    """The targets' facts, and why those of some are not known, in words."""
    found: dict[str, TableFacts] = {}
    failures: list[str] = []
    try:
        access = access_of(configuration)
    except SluiceError as error:
        return found, [error.message]
    for entry in configuration.tables:
        if entry.target in found:
            continue
        url = access.shards[configuration.shards_of(entry)[0]][0]
        try:
            with access.connect(url) as server:
                found[entry.target] = describe_table(server, entry.database, entry.table)
        except SluiceError as error:
            failures.append(error.message)
    return found, failures


def check_clickhouse_rights(
    found: Examination, server: Server, user: str, rights: Sequence[ClickHouseRight]
) -> None:
    """Ask a server what Sluice's user may do; of one that is too old to say it, or does not know
    such names, try what is tried nowhere else before a range needs it: a probe's look.

    :raises TransientError: it does not answer.
    """
    for right in rights:
        whole = _has_right(server, ", ".join(right.privileges), right.on)
        if whole is None:
            _try_looks(found, server, user, rights)
            found.ok(
                "rights",
                "this server does not say what its user may do (CHECK GRANT): only a look into the "
                "tables was tried; `sluice doctor --grants` prints all that is needed",
            )
            return
        if whole:
            continue
        for privilege in right.privileges:
            if _has_right(server, privilege, right.on) is False:
                tell = found.warning if right.command else found.error
                tell(
                    "rights",
                    f"its user lacks {privilege} on {right.on}: {right.why}",
                    right.statement(user, [privilege]),
                )
    found.ok("rights", "Sluice's user has all that are needed")


def _try_looks(
    found: Examination, server: Server, user: str, rights: Sequence[ClickHouseRight]
) -> None:
    for right in rights:
        for privilege in right.privileges:
            columns = _LOOK.fullmatch(privilege)
            if columns is None or right.command:
                continue
            try:
                server.execute(f"SELECT {columns[1]} FROM {right.on} LIMIT 0")
            except TransientError:
                raise
            except ServerError as error:
                found.error(
                    "rights",
                    f"its user cannot read {right.on}, which is needed to know {right.why}: "
                    f"{error.message}",
                    right.statement(user, [privilege]),
                )


#: The right to read columns of a table.
_LOOK = re.compile(r"SELECT\((.+)\)")


def _has_right(server: Server, privilege: str, on: str) -> bool | None:
    """Whether this user has a privilege; None where the server cannot say.

    :param privilege: several with commas between them: whether it has all of them.
    :param on: a table, or all tables whose names begin so, as GRANT has it.
    :raises TransientError: it does not answer.
    """
    try:
        said = server.execute(f"CHECK GRANT {privilege} ON {on}").strip()
    except TransientError:
        raise
    except ServerError:
        return None  # an older server has no such statement
    return {"0": False, "1": True}.get(said)
