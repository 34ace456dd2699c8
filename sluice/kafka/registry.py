"""A Confluent-compatible schema registry, asked with Confluent's own client."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from sluice.core.errors import TerminalError, TransientError
from sluice.core.schema_ids import RegisteredSchema, guid_of, shown_schema
from sluice.kafka.errors import RegistryRefusedError

_logger = logging.getLogger("sluice.registry")

#: For one request; the client tries a few times by itself.
_TIMEOUT_SECONDS = 10
_REFERENCES_MAX = 200
#: A registry's own words for "no such schema". A path that is not its, or a proxy before it, has
#: others, and says nothing about schemas.
_NOT_THERE = range(40401, 40500)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """How to reach a registry. Travels to the workers; holds secrets in the clear.

    :param url: as the configuration names it; several separated by commas are one registry.
    :param user: for basic authentication; "" for none.
    :param token: shown as a bearer token; "" for none.
    :param ca: a file of certificates to trust; "": those that the machine trusts.
    :param certificate: a file with the client's; "" for none.
    :param key: a file with the key of that certificate; "": in the same file.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)

    def settings(self) -> dict[str, Any]:
        """Of Confluent's client."""
        settings: dict[str, Any] = {
            "url": self.url,
            "timeout": _TIMEOUT_SECONDS,
            "retries.wait.ms": 100,
            "retries.max.wait.ms": 1000,
        }
        if self.user:
            settings["basic.auth.user.info"] = f"{self.user}:{self.password}"
        if self.token:
            settings["bearer.auth.credentials.source"] = "STATIC_TOKEN"
            settings["bearer.auth.token"] = self.token
            # Which cluster a token is for, Confluent's cloud alone asks.
            settings["bearer.auth.logical.cluster"] = ""
        files = {
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.key,
            "ssl.key.password": self.key_password,
        }
        return settings | {name: value for name, value in files.items() if value}


class RegistryClient:
    """Fetches schemas by number. Used from any thread."""

    def __init__(self, access: RegistryAccess) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._url = access.url
        try:
            self._client = SchemaRegistryClient(access.settings())
        except (ValueError, TypeError, OSError) as error:  # of TLS, too
            raise TerminalError(
                f"the schema registry {self._url} cannot be used: {error}",
                "Correct `url` and the files of `tls` in [registry]; the files must be readable "
                "on every machine that runs workers.",
            ) from error

    def schema(self, number: int) -> RegisteredSchema | None:
        """The schema of this number with all that it refers to; None if there is none, or a
        reference of it is not there: what is missing may be on its way.

        :param number: or what stands for a GUID.
        :raises TransientError: the registry does not answer.
        :raises RegistryRefusedError: it refuses to, or something else answers in its place.
        :raises TerminalError: it has too many references.
        """
        guid, shown = guid_of(number), shown_schema(number)
        if guid:
            question = partial(self._client.get_schema_by_guid, guid)
        else:
            question = partial(self._client.get_schema, number)
        found = self._ask(question, f"schema {shown}")
        if found is None:
            return None
        references: dict[str, str] = {}
        if not self._collect(found.references or [], references, shown):
            return None
        return RegisteredSchema(found.schema_type, found.schema_str, tuple(references.items()))

    def _collect(self, wanted: list[Any], into: dict[str, str], number: str) -> bool:
        """False if one of them is not there."""
        for reference in wanted:
            if reference.name in into:
                continue
            if len(into) >= _REFERENCES_MAX:
                raise TerminalError(
                    f"schema {number} of {self._url} refers to over {_REFERENCES_MAX} schemas",
                    "Look at its references in the registry.",
                )
            subject, version = reference.subject, reference.version
            what = f"{subject} version {version}"
            found = self._ask(
                partial(self._client.get_version, subject, version, deleted=True), what
            )
            if found is None:
                _logger.warning(
                    "schema %s of %s refers to %s, which is not there, so it counts as unknown. "
                    "Try: Restore it in the registry.",
                    *(number, self._url, what),
                )
                return False
            into[reference.name] = ""
            if not self._collect(found.schema.references or [], into, number):
                return False
            # Behind what it refers to.
            del into[reference.name]
            into[reference.name] = found.schema.schema_str
        return True

    def _ask(self, question: Callable[[], _Answer], what: str) -> _Answer | None:
        from confluent_kafka.schema_registry import SchemaRegistryError
        from confluent_kafka.schema_registry.common._httpx_compat import httpx

        try:
            return question()
        except SchemaRegistryError as error:
            status = error.http_status_code
            if status == 404 and error.error_code in _NOT_THERE:
                return None
            said = f"the schema registry {self._url} answers {status} for {what}: "
            said += str(error.error_message)[:200]
            if status in (401, 403):
                raise RegistryRefusedError(
                    said, "Check user and password, or token, in [registry]."
                ) from error
            if status in (404, 408, 429) or status >= 500:
                raise self._away(said) from error
            raise RegistryRefusedError(said, "Check that the URL is a registry's.") from error
        except httpx.HTTPError as error:
            raise self._away(
                f"the schema registry {self._url} does not answer for {what}: {error!r}"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryRefusedError(
                f"{self._url} does not answer like a schema registry: {error!r}",
                "Check that the URL is a registry's, with its path.",
            ) from error

    @staticmethod
    def _away(said: str) -> TransientError:
        return TransientError(said[:300], "Start the registry, or check its URL and the network.")
