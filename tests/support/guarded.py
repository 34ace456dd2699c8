"""A broker with an authorizer, and the embedded engine with roles: a user has the rights that a
test gives him, and no others. The broker takes SASL PLAIN and SCRAM."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from sluice.testbed.local.broker import PROPERTIES_VARIABLE, PROXY_VARIABLE
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.embedded.engine import CONFIGURATION_VARIABLE
from sluice.testbed.local.running import Broker, ClickHouse

USER, PASSWORD = "loader", "planted-kafka-password"
#: Logs in by SCRAM, once it has a password, and may do all.
SCRAM_USER = "scram=user,1"

_PROPERTIES = f"""
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_PLAINTEXT
listener.name.proxied.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.proxied.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.\\
PlainLoginModule required user_{USER}="{PASSWORD}";
listener.name.proxied.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.\\
ScramLoginModule required;
listener.name.proxied.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.\\
ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{SCRAM_USER}
"""

_TYPES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
    "--cluster": ResourceType.BROKER,
}
_OPERATIONS = {
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    **{name: AclOperation[name.upper()] for name in ("Read", "Write", "Create", "Delete")},
    "Describe": AclOperation.DESCRIBE,
}
_ANY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
    AclPermissionType.ANY,
)  # fmt: skip


class GuardedBroker(Broker):
    """Its plain listener is the administrator's; at the other one USER logs in.

    :param logins: bootstrap.servers of that one.
    """

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        (self._login_port,) = free_ports(1)
        self.logins = f"127.0.0.1:{self._login_port}"

    @property
    def environment(self) -> dict[str, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "guarded.properties"
        file.write_text(_PROPERTIES)
        ports = f"{self._login_port}:{self._login_port}"
        return {PROXY_VARIABLE: ports, PROPERTIES_VARIABLE: str(file)}

    @property
    def properties(self) -> str:
        """The connector's section that logs in."""
        return (
            '[connector.kafka]\n"security.protocol" = "SASL_PLAINTEXT"\n'
            f'"sasl.mechanism" = "PLAIN"\n"sasl.username" = "{USER}"\n'
            f'"sasl.password" = "{PASSWORD}"\n'
        )

    def scram_login(self, mechanism: str, password: str) -> dict[str, str]:
        """librdkafka's properties of SCRAM_USER."""
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": SCRAM_USER,
            "sasl.password": password,
        }

    def set_scram_password(self, mechanism: str, password: str) -> None:
        """SCRAM_USER's by one mechanism; whoever logs in from now on needs this one."""
        kind = ScramMechanism[mechanism.replace("-", "_")]
        credential = ScramCredentialInfo(kind, 4096)
        change = UserScramCredentialUpsertion(SCRAM_USER, credential, password.encode())
        admin = AdminClient({"bootstrap.servers": self.brokers})
        admin.alter_user_scram_credentials([change])[SCRAM_USER].result(15)
        # The answer of the controller comes before the broker has read it; this one tries again.
        login = self.scram_login(mechanism, password)
        AdminClient({"bootstrap.servers": self.logins, "log_level": 0, **login}).list_topics(
            timeout=30
        )


def bindings(commands: Iterable[str]) -> set[AclBinding]:
    """What `kafka-acls.sh --add` commands give."""
    found = set()
    for command in commands:
        words = shlex.split(command)
        kind = next(word for word in words if word in _TYPES)
        name = "kafka-cluster" if kind == "--cluster" else words[words.index(kind) + 1]
        is_prefix = "prefixed" in words
        pattern = ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL
        principal = words[words.index("--allow-principal") + 1]
        for place, word in enumerate(words):
            if word == "--operation":
                found.add(
                    AclBinding(
                        _TYPES[kind],
                        name,
                        pattern,
                        principal,
                        "*",
                        _OPERATIONS[words[place + 1]],
                        AclPermissionType.ALLOW,
                    )
                )
    return found


def give_only(broker: GuardedBroker, wanted: set[AclBinding]) -> None:
    """Exactly these rights; they are in force when it returns."""
    admin = AdminClient({"bootstrap.servers": broker.brokers})
    held = set(admin.describe_acls(_ANY, request_timeout=15).result())
    added, gone = wanted - held, held - wanted
    for future in admin.create_acls(sorted(added, key=str)).values() if added else ():
        future.result(15)
    filters = [
        AclBindingFilter(
            each.restype,
            each.name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in gone
    ]
    for future in admin.delete_acls(filters).values() if filters else ():
        future.result(15)
    while set(admin.describe_acls(_ANY, request_timeout=15).result()) != wanted:
        pass  # the answer of the controller comes before the broker has read it


class GuardedClickHouse(ClickHouse):
    """Users of these names have the rights of these statements; `default` may do all.

    `roles`: GRANT statements without a grantee, by user; those of its next start.
    `profiles`: settings by user; beside `default`, these may do all, too.
    `more`: of the server's configuration.
    """

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.roles: Mapping[str, Iterable[str]] = {}
        self.profiles: Mapping[str, Mapping[str, str]] = {}
        self.more = ""

    @property
    def environment(self) -> dict[str, str]:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        users = self.folder.parent / "users.xml"
        everybody = "".join(f"<query>GRANT {name}</query>" for name in ("everything", *self.roles))
        roles = "".join(map(_role, self.roles, self.roles.values()))
        profiles = {"default": {}, **self.profiles}
        written = "".join(map(_profile, profiles, profiles.values()))
        users.write_text(
            f"<clickhouse><profiles>{written}</profiles><quotas><default/></quotas>"
            f"<users>{''.join(_user(name, everybody) for name in profiles)}</users><roles>"
            f"{_role('everything', ['GRANT ALL ON *.*'])}{roles}</roles></clickhouse>"
        )
        file = self.folder.parent / "configuration.xml"
        file.write_text(f"<clickhouse><users_config>{users}</users_config>{self.more}</clickhouse>")
        return {CONFIGURATION_VARIABLE: str(file)}


def _profile(name: str, values: Mapping[str, str]) -> str:
    own = "".join(f"<{setting}>{value}</{setting}>" for setting, value in values.items())
    return f"<{name}>{own}</{name}>"


def _user(name: str, grants: str) -> str:
    return (
        f"<{name}><password></password><networks><ip>::/0</ip></networks><profile>{name}</profile>"
        f"<quota>default</quota><grants>{grants}</grants></{name}>"
    )


def _role(name: str, statements: Iterable[str]) -> str:
    queries = "".join(f"<query>{statement}</query>" for statement in statements)
    return f"<{name}><grants>{queries}</grants></{name}>"
