"""A real identity service (Debian's glewlwyd, OAuth2 and OIDC), and a broker that takes its
tokens."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from sluice.testbed.local.broker import PROPERTIES_VARIABLE, PROXY_VARIABLE
from sluice.testbed.local.children import Child, free_ports
from sluice.testbed.local.running import Broker, running_program
from tests.support.certificates import Authority
from tests.support.children import running

CLIENT, SECRET = "loader", "planted-secret-of-a-client"
KEY_PASSWORD = "planted-password-of-a-key"
#: What the broker wants to read in a token's `aud`: this service writes the scopes there.
AUDIENCE, OTHER_AUDIENCE = "kafka", "billing"
#: Of a token, with which the broker ends its session. Clients have a twentieth to fetch the next.
TOKEN_SECONDS = 36

_TABLES = Path("/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3")
_CONFIGURATION = """
port={port}
bind_address="127.0.0.1"
external_url="http://127.0.0.1:{port}/"
api_prefix="api"
log_mode="console"
log_level="INFO"
cookie_domain="127.0.0.1"
session_key="session"
admin_scope="g_admin"
profile_scope="g_profile"
user_module_path="/usr/lib/glewlwyd/user"
user_middleware_module_path="/usr/lib/glewlwyd/user_middleware"
client_module_path="/usr/lib/glewlwyd/client"
user_auth_scheme_module_path="/usr/lib/glewlwyd/scheme"
plugin_module_path="/usr/lib/glewlwyd/plugin"
hash_algorithm="SHA512"
database = {{ type="sqlite3" path="{folder}/database" }};
"""
_ANSWER_SECONDS_MAX = 30.0


class IdentityService(Child):
    """One client, whom it gives tokens signed with a key of its own. Started again it has the same
    key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._session = ""
        (self.port,) = free_ports(1)
        self._api = f"http://127.0.0.1:{self.port}/api"
        self.tokens, self.keys = f"{self._api}/oidc/token", f"{self._api}/oidc/jwks"

    @property
    def given(self) -> int:
        """How many tokens it gave so far."""
        return (self.folder / "log").read_text().count("Access token generated")

    def start(self) -> None:
        """Start it; the first time it learns of its client."""
        if shutil.which("glewlwyd") is None:
            raise AssertionError("needs Debian's glewlwyd: apt-get install glewlwyd")
        is_new = not (self.folder / "database").exists()
        if is_new:
            with sqlite3.connect(self.folder / "database") as database:
                database.executescript(f"PRAGMA synchronous = OFF; {_TABLES.read_text()}")
            database.close()
        file = self.folder / "configuration"
        file.write_text(_CONFIGURATION.format(port=self.port, folder=self.folder))
        self.launch(["glewlwyd", "-c", str(file)], "log")
        self._session = ""  # of before; it answers once somebody can log in
        self._log_in()
        if is_new:
            self._create()

    def _log_in(self) -> None:
        until = time.monotonic() + _ANSWER_SECONDS_MAX
        while not self._session:
            try:
                self._session = self._call("auth/", username="admin", password="password")
            except OSError:
                assert time.monotonic() < until, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.02)

    def _create(self) -> None:
        for scope in (AUDIENCE, OTHER_AUDIENCE):
            self._call("scope/", name=scope, display_name=scope, description=scope, scheme={})
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        public = serialization.PublicFormat.SubjectPublicKeyInfo
        self._call(
            "mod/plugin/",
            module="oidc",
            name="oidc",
            display_name="oidc",
            order_rank=0,
            parameters={
                "iss": "identity",
                "jwt-type": "rsa",
                "jwt-key-size": "256",
                "key": key.private_bytes(pem, form, serialization.NoEncryption()).decode(),
                "cert": key.public_key().public_bytes(pem, public).decode(),
                "access-token-duration": TOKEN_SECONDS,
                "auth-type-client-enabled": True,
                "allow-non-oidc": True,
                "jwks-show": True,
            },
        )
        self._call(
            "client/",
            client_id=CLIENT,
            password=SECRET,
            confidential=True,
            enabled=True,
            scope=[AUDIENCE, OTHER_AUDIENCE],
            authorization_type=["client_credentials"],
            token_endpoint_auth_method=["client_secret_basic"],
            redirect_uri=[],
        )

    def _call(self, path: str, **body: object) -> str:
        """:returns: the cookie that it gives."""
        headers = {"Content-Type": "application/json", "Cookie": self._session}
        request = Request(f"{self._api}/{path}", json.dumps(body).encode(), headers)
        with urlopen(request, timeout=_ANSWER_SECONDS_MAX) as reply:
            return str(reply.headers.get("Set-Cookie", "")).partition(";")[0]


class TokenBroker(Broker):
    """Its plain listener is the administrator's; the other one speaks TLS with whoever shows a
    certificate of the authority, and takes only tokens.

    :param logins: bootstrap.servers of that one.
    :param validator: the class that looks at tokens; "": Kafka's default.
    """

    def __init__(
        self, data: Path, service: IdentityService, validator: str = "BrokerJwtValidator"
    ) -> None:
        super().__init__(data)
        self._service, self._validator = service, validator
        self._authority = Authority(data / "tls")
        self._certificate, self._key = self._authority.sign("client", password=KEY_PASSWORD)
        (self._login_port,) = free_ports(1)
        self.logins = f"127.0.0.1:{self._login_port}"

    @property
    def environment(self) -> dict[str, str]:
        file, listener = self.folder / "tokens.properties", "listener.name.proxied"
        store = self.folder / "tls" / "store.pem"
        store.write_text("".join(each.read_text() for each in self._authority.sign("broker")))
        handlers = "org.apache.kafka.common.security.oauthbearer"
        # The default of Kafka 4.1.0 does not look at signatures, nor at who a token is for.
        validator = f"sasl.oauthbearer.jwt.validator.class={handlers}.{self._validator}\n"
        file.write_text(
            "listener.security.protocol.map="
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_SSL\n"
            f"{listener}.ssl.keystore.type=PEM\n{listener}.ssl.keystore.location={store}\n"
            f"{listener}.ssl.truststore.type=PEM\n"
            f"{listener}.ssl.truststore.location={self._authority.certificate}\n"
            f"{listener}.ssl.client.auth=required\n"
            f"{listener}.sasl.enabled.mechanisms=OAUTHBEARER\n"
            f"{listener}.oauthbearer.sasl.jaas.config="
            f"{handlers}.OAuthBearerLoginModule required ;\n"
            f"{listener}.oauthbearer.sasl.server.callback.handler.class="
            f"{handlers}.OAuthBearerValidatorCallbackHandler\n"
            f"{validator if self._validator else ''}"
            # A session ends with its token.
            f"{listener}.connections.max.reauth.ms=3600000\n"
            f"sasl.oauthbearer.jwks.endpoint.url={self._service.keys}\n"
            f"sasl.oauthbearer.expected.audience={AUDIENCE}\n"
            "sasl.oauthbearer.expected.issuer=identity\n"
        )
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._service.keys}"
        ports = f"{self._login_port}:{self._login_port}"
        return {
            PROXY_VARIABLE: ports,
            PROPERTIES_VARIABLE: str(file),
            "JAVA_TOOL_OPTIONS": allowed,
        }

    def login(self, **changed: str) -> dict[str, str]:
        """librdkafka's properties of who logs in; what is changed by the last word of its name."""
        properties = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._authority.certificate),
            "ssl.certificate.location": str(self._certificate),
            "ssl.key.location": str(self._key),
            "ssl.key.password": KEY_PASSWORD,
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.scope": AUDIENCE,
            "sasl.oauthbearer.token.endpoint.url": self._service.tokens,
        }
        by_word = {name.rpartition(".")[2]: name for name in properties}
        return properties | {by_word[word]: value for word, value in changed.items()}


@pytest.fixture(scope="session")
def identity() -> Iterator[IdentityService]:
    """One service for all tests of a session."""
    with running(IdentityService) as service:
        yield service


@pytest.fixture(scope="session")
def token_broker(identity: IdentityService) -> Iterator[TokenBroker]:
    """A broker that takes its tokens, for all tests of a session."""
    with (
        tempfile.TemporaryDirectory(prefix="sluice-kafka-") as folder,
        running_program(TokenBroker(Path(folder) / "kafka", identity)) as broker,
    ):
        yield broker
