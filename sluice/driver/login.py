"""How servers let Sluice in: who it is, its password, and what https needs."""

from __future__ import annotations

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.password import read_password
from sluice.clickhouse.tls import Tls
from sluice.config import Configuration, Secret
from sluice.core.errors import ConfigurationError


def login_of(configuration: Configuration) -> ClickHouseAccess:
    """How to reach the servers that the configuration names, password in the clear; no server is
    asked. Shards whose replicas are to be asked have none.

    :raises ConfigurationError: the file of the password, or one of certificates, cannot be used.
    """
    clickhouse = configuration.clickhouse
    files = clickhouse.tls
    tls = Tls(files.ca, files.certificate, files.key, files.key_password.reveal())
    urls = [url for shard in clickhouse.shards for url in shard.replicas]
    if clickhouse.cluster is not None:
        urls += clickhouse.cluster.servers
    if any(url.startswith("https:") for url in urls):
        tls.context()
    return ClickHouseAccess(
        shards={shard.name: shard.replicas for shard in clickhouse.shards},
        user=clickhouse.user,
        password=password_of("clickhouse", clickhouse.password, clickhouse.password_file),
        durability=clickhouse.durability,
        password_file=clickhouse.password_file,
        tls=tls,
        quorums={shard.name: clickhouse.quorum_of(shard) for shard in clickhouse.shards},
        quorum_timeout_seconds=clickhouse.quorum_timeout_seconds,
        zookeeper=clickhouse.zookeeper,
    )


def password_of(section: str, password: Secret, name: str) -> str:
    """A password in the clear.

    :param section: of the configuration, for messages.
    :param name: of the file that holds it instead; "": none.
    :raises ConfigurationError: the file cannot be used.
    """
    if not name:
        return password.reveal()
    try:
        found = read_password(name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{section}.password_file: {name} cannot be read: {error}",
            "Name a file that holds the password in its first line, as UTF-8.",
        ) from None
    if not found:
        raise ConfigurationError(
            f"{section}.password_file: the first line of {name} is empty",
            "Write the password there; leave the key out if the user has none.",
        )
    return found
