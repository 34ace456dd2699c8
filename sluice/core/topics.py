"""Which topics an entry takes: by their names, or by a regular expression over whole names. And how
a record names a topic: by its id."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from functools import lru_cache

#: Names that no expression takes: Kafka's own topics, and those that pipelines of Sluice write by
#: default. Whoever wants one of them names it.
_RESERVED = re.compile(
    r"__.*|sluice\..+\.(ledger|dead-letters|parking|duplicates|decisions|fleet)", re.DOTALL
)


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def matches(pattern: str, topic: str) -> bool:
    """Whether the expression takes the whole name; an empty one takes none.

    :raises re.error: it is no regular expression.
    """
    return bool(pattern) and _compiled(pattern).fullmatch(topic) is not None


def takes(topics: Iterable[str], pattern: str, topic: str) -> bool:
    """Whether a topic is among the names, or taken by the expression."""
    return topic in topics or matches(pattern, topic)


def is_reserved(topic: str) -> bool:
    """Whether a topic is somebody's bookkeeping, so that only its name takes it."""
    return _RESERVED.fullmatch(topic) is not None


def short_topic_id(most: int, least: int) -> str:
    """11 characters of a topic id: its lower 64 bits, base64url without padding (H12).

    :param most: most significant 64 bits, signed as librdkafka gives them.
    :param least: least significant 64 bits, likewise.
    """
    mixed = (least ^ (most * 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF
    return base64.urlsafe_b64encode(mixed.to_bytes(8, "big")).decode().rstrip("=")


#: Of a topic on brokers that give topics no ids.
NO_TOPIC_ID = short_topic_id(0, 0)


def is_other_topic(recorded: str, told: str) -> bool:
    """Whether a topic with this id was made after one that was recorded with that one. Brokers that
    come to know ids give them to the topics that there are, and not all brokers do so at once."""
    return recorded != told and NO_TOPIC_ID not in (recorded, told)
