"""Where the tokens of SASL OAUTHBEARER come from: one source for each identity and process, which
all clients share, librdkafka's and those of the native reader."""

from __future__ import annotations

import functools
import logging
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from sluice.core.errors import ConfigurationError, SluiceError
from sluice.core.kafka_identity import (
    AwsPrincipal,
    Identity,
    OidcClient,
    identity_of,
    identity_refusals,
)
from sluice.kafka.errors import KafkaRefusedError, KafkaUnavailableError

_logger = logging.getLogger("sluice.kafka")

_ANSWER_SECONDS = 10.0
#: After a failure nobody is asked for so long; nor for another token than one this young.
REST_SECONDS = 5.0
#: Of its time, when a token is not handed out any more. Where brokers end sessions with their
#: tokens, librdkafka logs in again when 90 % of what was left are over, with a token that it asks
#: for when 80 % are: what is between has to be long enough to fetch one.
_USED_SHARE = 0.5
#: What may pass: the service is busy, or there for nobody.
_PASSING = frozenset({408, 425, 429})
_SAID_MAX = 200


@dataclass(frozen=True, slots=True)
class Token:
    """What proves to a broker who Sluice is.

    :param got_at: by this machine's clock, as all times here.
    :param expires_at: at the latest a moment before brokers think so.
    """

    value: str = field(repr=False)
    got_at: float
    expires_at: float

    @property
    def is_fresh(self) -> bool:
        """Whether it is good for a while."""
        lifetime = self.expires_at - self.got_at
        return time.time() < self.got_at + _USED_SHARE * lifetime


class TokenSource:
    """Tokens of one identity. Used from any thread."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._failure: SluiceError | None = None
        self._failed_at = 0.0

    def token(self) -> Token:
        """One that is good now. It is fetched if the last one is not fresh any more.

        :raises KafkaUnavailableError: whoever gives tokens does not answer.
        :raises TerminalError: it gives us none.
        """
        with self._lock:
            known = self._token
            if known is not None and known.is_fresh:
                return known
            if self._failure is None or time.time() - self._failed_at > REST_SECONDS:
                try:
                    self._token, self._failure = fetch(self.identity), None
                    return self._token
                except SluiceError as error:
                    self._failure, self._failed_at = error, time.time()
                    _logger.warning("%s", error)
            if known is not None and time.time() < known.expires_at:
                return known
            raise type(self._failure)(self._failure.message, self._failure.hint)

    def refused(self, token: Token) -> bool:
        """A broker does not take a token: the next one is fetched anew.

        :returns: False: it is so young that another one would be refused, too.
        """
        with self._lock:
            if self._token is token:
                if time.time() - token.got_at < REST_SECONDS:
                    return False
                self._token = None
            return True

    def for_librdkafka(self, _config: str) -> tuple[str, float, str, dict[str, str]]:
        """Its `oauth_cb`, which it calls from a thread of its own, at first and before its token
        expires. What fails is logged here; librdkafka asks again after ten seconds."""
        token = self.token()
        return token.value, token.expires_at, "", dict(self.identity.extensions)


def token_source(properties: Mapping[str, str]) -> TokenSource | None:
    """Where the tokens of a connector come from; None where it shows none, or librdkafka gets them.

    :raises ConfigurationError: the properties do not say it in full.
    """
    for name, reason in identity_refusals(properties):
        raise ConfigurationError(f'kafka."{name}" {reason}')
    identity = identity_of(properties)
    return None if identity is None else _source(identity)


@functools.cache
def _source(identity: Identity) -> TokenSource:
    return TokenSource(identity)


def fetch(identity: Identity) -> Token:
    """A new token.

    :raises SluiceError: as `TokenSource.token` says.
    """
    if isinstance(identity, AwsPrincipal):
        return _signed(identity)
    return _given(identity)


def _given(client: OidcClient) -> Token:
    """By OAuth's grant for client credentials (RFC 6749, 4.4)."""
    import httpx2

    try:
        trusted = ssl.create_default_context(cafile=client.authority or None)
    except OSError as error:
        raise ConfigurationError(
            f'kafka."https.ca.location": {client.authority} cannot be used: {error}'
        ) from None
    asked = {"grant_type": "client_credentials"} | ({"scope": client.scope} if client.scope else {})
    login = httpx2.BasicAuth(quote(client.client_id, safe=""), quote(client.secret, safe=""))
    asked_at = time.time()
    try:
        reply = httpx2.post(
            client.endpoint, data=asked, auth=login, timeout=_ANSWER_SECONDS, verify=trusted
        )
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _away(client, f"does not answer: {error or type(error).__name__}") from None
    try:
        answer = reply.json()
    except ValueError:
        answer = None
    said = answer if isinstance(answer, dict) else {}
    if reply.status_code >= 500 or reply.status_code in _PASSING:
        raise _away(client, f"answers {reply.status_code}{_words(client, said)}")
    token, seconds = said.get("access_token"), said.get("expires_in")
    if not reply.is_success:
        raise KafkaRefusedError(
            f"{client.endpoint} gives no token to the client {client.client_id}: it answers "
            f"{reply.status_code}{_words(client, said)}",
            "Check sasl.oauthbearer.client.id, client.secret, scope and token.endpoint.url.",
        )
    if not isinstance(token, str) or not isinstance(seconds, int | float) or seconds <= 0:
        raise KafkaRefusedError(
            f"{client.endpoint} answers without access_token and expires_in",
            "Check that sasl.oauthbearer.token.endpoint.url is the service's endpoint for tokens.",
        )
    # A token says its end in whole seconds.
    return Token(token, asked_at, asked_at + seconds - 1)


def _words(client: OidcClient, said: Mapping[str, object]) -> str:
    words = [str(said[name]) for name in ("error", "error_description") if said.get(name)]
    text = ": ".join(words).replace(client.secret, "***")
    return f" ({text[:_SAID_MAX]})" if text else ""


def _away(client: OidcClient, what: str) -> KafkaUnavailableError:
    return KafkaUnavailableError(
        f"{client.endpoint}, which gives tokens for Kafka, {what}",
        "Start the identity service, or check sasl.oauthbearer.token.endpoint.url and the network.",
    )


def _signed(principal: AwsPrincipal) -> Token:
    """By AWS' own signer. It asks nobody but for the credentials, where these are somewhere else
    than in the environment or in files."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider as Signer
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise ConfigurationError(
            "sasl.mechanism = AWS_MSK_IAM needs a package that is not installed",
            "pip install '.[msk]' where Sluice's source is, on the machines of the workers, too; "
            'in the image: docs/DEPLOYMENT.md, "In a container".',
        ) from None
    asked_at = time.time()
    try:
        value, expires_at_ms = Signer.generate_auth_token(principal.region)
    except (BotoCoreError, ClientError, ValueError, AttributeError) as error:
        # Without any credentials the signer asks None for them.
        why = "there are no credentials" if isinstance(error, AttributeError) else error
        raise KafkaUnavailableError(
            f"no token for Amazon MSK in {principal.region}: {why}",
            "Give Sluice's processes AWS credentials: variables, a profile, or the machine's role.",
        ) from None
    return Token(value, asked_at, expires_at_ms / 1000)
