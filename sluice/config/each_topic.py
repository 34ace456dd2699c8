"""A [[table]] that stands for an entry of each of its topics.

`name = "shop-{table}"` with `topics = ["db.shop.orders", "db.shop.items"]` is two entries,
`shop-orders` and `shop-items`. They are written out as soon as the file is read, so all that
follows, tokens and applied versions too, knows entries only. What an entry says depends on its own
topic alone: others may be added to the list, and nothing changes for it.
"""

from __future__ import annotations

import re
from typing import Any

from sluice.config.findings import RefusedError

#: `${topic}` is a variable of the environment.
_PLACEHOLDER = re.compile(r"(?<!\$)\{(topic|table)\}")


def entries_of(entry: Any) -> list[Any]:
    """The entries that one [[table]] stands for, mostly itself.

    :raises RefusedError: it is not clear which; the text names the key.
    """
    held = [key for key in ("name", "target") if _holds_placeholder(entry, key)]
    if not held:
        return [entry]
    topics = entry.get("topics")
    if "topic_pattern" in entry or not topics or not isinstance(topics, list):
        raise RefusedError(
            f"{held[0]} holds {{topic}} or {{table}}, which stand for each topic of a list: name "
            "them in topics, and leave topic_pattern out"
        )
    if "name" not in held:
        raise RefusedError(
            "name must hold {topic} or {table}, as target does: each topic has an entry with a "
            'name of its own, like name = "shop-{table}"'
        )
    for topic in topics:
        if "${" in str(topic):
            raise RefusedError(
                f'the topic "{topic}" has a variable, which is replaced later than {{topic}} and '
                "{table}: write the topic out, or give it an entry of its own"
            )
    made = [_for_topic(entry, str(topic)) | {"topics": [topic]} for topic in topics]
    for key in ("name", "target") if "target" in entry else ("name",):
        said = [one[key] for one in made]
        for at, one in enumerate(said):
            if one in said[:at]:
                raise RefusedError(
                    f'{key} is "{one}" for the topic "{topics[said.index(one)]}" and for '
                    f'"{topics[at]}": each needs its own. (Topics of one table stand in one entry, '
                    "whose name holds neither {topic} nor {table}.)"
                )
    return made


def _holds_placeholder(entry: Any, key: str) -> bool:
    said = entry.get(key) if isinstance(entry, dict) else None
    return isinstance(said, str) and _PLACEHOLDER.search(said) is not None


def _for_topic(value: Any, topic: str) -> Any:
    """The same with placeholders replaced in each text: by the topic, or by what stands behind its
    last dot."""
    if isinstance(value, str):
        said = {"topic": topic, "table": topic.rpartition(".")[2]}
        return _PLACEHOLDER.sub(lambda match: said[match[1]], value)
    if isinstance(value, dict):
        return {key: _for_topic(item, topic) for key, item in value.items()}
    if isinstance(value, list):
        return [_for_topic(item, topic) for item in value]
    return value
