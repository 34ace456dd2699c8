"""By what an event is known again, in a [[table]], and where that is kept: [deduplication]."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from sluice.config.findings import RefusedError
from sluice.config.secret import Secret
from sluice.config.section import Conflict, Listed, Section
from sluice.config.values import (
    FileName,
    SecretText,
    Text,
    Topic,
    a_duration,
    a_string,
    a_text,
    shown,
)
from sluice.core.claims import Deduplicate, OnNullKey, WhatOfDuplicates
from sluice.core.suggestions import suggest

LOCAL = "local"
#: The directory of the local store, beside the file, if it is not named.
LOCAL_FOLDER = "sluice-claims"
WINDOW_SECONDS_MIN = 600.0
WINDOW_SECONDS_MAX = 400 * 86_400.0
#: A range is repeated for half of the window at most, since its claims have to hold meanwhile; and
#: it may be repeated for some leases before it is loaded.
LEASES_OF_WINDOW = 12

_USER = r"(?:[A-Za-z0-9._~-]+@)?"
_SERVER = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_SERVERS = rf"{_USER}{_SERVER}(?:,{_SERVER})*"
#: What stands behind each scheme, and an example of it; with "rediss" for "redis" they mean TLS.
_STORES = {
    "redis": (rf"{_USER}{_SERVER}(?:/[0-9]*)?", "redis://host:6379/0"),
    "redis-sentinel": (
        rf"{_SERVERS}/[A-Za-z0-9._-]+(?:/[0-9]+)?",
        "redis-sentinel://one:26379,two:26379/name",
    ),
    "redis-cluster": (rf"{_SERVERS}/?", "redis-cluster://one:6379,two:6379"),
}
_TLS = "rediss"
_STORES_WRITTEN = "".join(f'"{example}", ' for _, example in _STORES.values()) + f'or "{LOCAL}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deduplicate(Section):
    """`{ key = ["source", "id"], window = "7d" }`, and what becomes of duplicates."""

    key: Listed[Text]
    window_seconds: Annotated[float, a_duration(WINDOW_SECONDS_MIN, WINDOW_SECONDS_MAX)]
    scope: Annotated[str, BeforeValidator(a_string)] = ""
    duplicates: WhatOfDuplicates = "drop"
    on_null: OnNullKey = "dead-letter"


_DEDUPLICATE = TypeAdapter(_Deduplicate)


def a_deduplication(written: object) -> Deduplicate:
    """By what events are known again; a scope that is not written is "" still."""
    read = _DEDUPLICATE.validate_python(written)
    return Deduplicate(
        read.key, round(read.window_seconds), read.scope, read.duplicates, read.on_null
    )


def _a_store(value: object) -> str:
    text = a_text(value)
    if text == LOCAL:
        return text
    scheme, _, rest = text.partition("://")
    plain = scheme.replace(_TLS, "redis", 1) if scheme.startswith(_TLS) else scheme
    if plain not in _STORES:
        near = suggest(scheme, [*_STORES, LOCAL])
        advice = near if near.startswith("did") and scheme else f"write {_STORES_WRITTEN}"
        raise RefusedError(f"{shown(value)} is no store of claims; {advice}")
    user, at, _ = rest.rpartition("@")
    if at and (":" in user or "@" in user):
        raise RefusedError(f"{shown(value)} carries a password; move it to deduplication.password")
    pattern, example = _STORES[plain]
    if not re.fullmatch(pattern, rest, re.ASCII):
        example = example.replace(plain, scheme, 1)
        raise RefusedError(f"{shown(value)} is no address of {scheme}; write it like {example}")
    return text


@dataclass(frozen=True, slots=True)
class DeduplicationConfiguration(Section):
    """Where claims are kept: which message made the row of a key.

    :param store: the URL of a Redis, or "local": a directory of this machine. "" in the file:
        "local" where the workers run on this machine, else there is none.
    :param path: the directory of the local store; "" with another.
    :param ca_file: certificates that the store's certificate is checked against; "": those that
        the machine trusts.
    :param topic: gets copies of duplicates where an entry says "topic"; "" for the default.
    """

    store: Annotated[str, BeforeValidator(_a_store)] = ""
    path: FileName = ""
    password: SecretText = field(default_factory=Secret)
    ca_file: FileName = ""
    topic: Topic = ""

    @property
    def is_local(self) -> bool:
        """Whether the store is a directory, which only processes of this machine share."""
        return self.store == LOCAL

    @property
    def url(self) -> str:
        """The store in one text, the directory of a local one included: `local:/path`."""
        return f"{LOCAL}:{self.path}" if self.is_local else self.store

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if self.store in ("", LOCAL):
            for key in ("password", "ca_file"):
                if key in written:
                    yield key, "is of no use: the local store is a directory of this machine"
            return
        if self.path:
            yield "path", f'is of no use: only store = "{LOCAL}" has a directory'
        if self.ca_file and not self.store.startswith(_TLS):
            yield "ca_file", f'is of no use without TLS; write {_TLS} for "redis" in store'
