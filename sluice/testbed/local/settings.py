"""Configuration files for pipelines of the local stack."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: One worker for each core, but no more than there are partitions.
_SLOTS_MAX = 4

Section = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """One topic, or all that an expression takes, into one table, or into several: each row goes to
    each of them.

    :param topic: its name; with `topic_pattern` the first table entry's only.
    :param topic_pattern: takes the topics, in the place of the one name; "": none.
    :param password_variable: names the environment variable that holds the password.
    :param more_tables: further tables of the topic.
    :param options: of the format.
    :param deduplicate: the key by which events are known again, for a day; (): they are not.
    :param store: of their claims, as it stands in the configuration.
    :param delivery: of blocks into the tables.
    """

    pipeline: str
    brokers: str
    topic: str
    url: str
    table: str
    max_messages: int
    max_delay: str
    database: str = "default"
    user: str = "default"
    password_variable: str = ""
    more_tables: tuple[str, ...] = ()
    reader: str = "auto"
    sort: bool = False
    format: str = "JSONEachRow"
    options: tuple[tuple[str, str], ...] = ()
    topic_pattern: str = ""
    deduplicate: tuple[str, ...] = ()
    store: str = "local"
    delivery: str = "block"

    def write(self, path: Path) -> None:
        """Write the file that `sluice run` takes."""
        topics: dict[str, object] = {"topics": [self.topic]}
        if self.topic_pattern:
            topics = {"topic_pattern": self.topic_pattern}
        entry = {
            **topics,
            "format": self.format,
            "lineage": True,
            "sort": self.sort,
            "rows": "many" if self.format == "SQLBatchRequest" else "one",
            "options": dict(self.options),
            "delivery": self.delivery,
            "deduplicate": {"key": self.deduplicate, "window": "1d"} if self.deduplicate else None,
        }
        names = {self.topic: self.table, **{table: table for table in self.more_tables}}
        variable = self.password_variable
        tree: dict[str, Section | list[Section]] = {
            "pipeline": {"name": self.pipeline},
            "spark": {"master": f"local[{slots()}]", "conf": {"spark.ui.enabled": "false"}},
            "connector": [
                {
                    "name": "local",
                    "brokers": self.brokers,
                    **topics,
                    "start": "earliest",
                    "reader": self.reader,
                }
            ],
            "batch": {
                "max_messages": self.max_messages,
                "max_delay": self.max_delay,
                "lease": "1m",
            },
            "clickhouse": {
                "database": self.database,
                "shards": {"s1": [self.url]},
                "user": self.user,
                "password": f"${{{variable}}}" if variable else None,
                "durability": "single",
            },
            "deduplication": {"store": self.store} if self.deduplicate else {},
            "table": [{"name": name, "target": table, **entry} for name, table in names.items()],
        }
        path.write_text(written(tree))


def slots() -> int:
    """Tasks that run at once."""
    return max(1, min(_SLOTS_MAX, len(os.sched_getaffinity(0))))


def written(tree: Mapping[str, Section | Sequence[Section]]) -> str:
    """A configuration as TOML.

    :param tree: its sections by name; of one that is repeated, a list. What is None, and a section
        without anything in it, is left out.
    """
    sections = [
        (f"[{name}]", found) if isinstance(found, Mapping) else (f"[[{name}]]", each)
        for name, found in tree.items()
        for each in ([found] if isinstance(found, Mapping) else found)
    ]
    return "\n".join(
        "".join(f"{line}\n" for line in (heading, *_lines(section)))
        for heading, section in sections
        if section
    )


def inline(value: object) -> str:
    """A value as TOML: a text, a number, a list of these, or named values."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_lines(value))} }}"
    # JSON's way to write a text or a list is one of TOML's.
    return json.dumps(value)


def _lines(section: Section) -> Iterator[str]:
    for name, value in section.items():
        if value is not None:
            yield f"{name if name.isidentifier() else json.dumps(name)} = {inline(value)}"
