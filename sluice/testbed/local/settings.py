"""Configuration files for pipelines of the local stack."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

#: One worker for each core, but no more than there are partitions.
_SLOTS_MAX = 4

_SETTINGS = """\
[pipeline]
name = "{pipeline}"

[spark]
master = "local[{slots}]"
conf = {{ "spark.ui.enabled" = "false" }}

[[connector]]
name = "local"
brokers = "{brokers}"
{topics}
start = "earliest"
reader = "{reader}"

[batch]
max_messages = {max_messages}
max_delay = "{max_delay}"
lease = "1m"

[clickhouse]
database = "{database}"
shards = {{ s1 = ["{url}"] }}
user = "{user}"
{password}durability = "single"
{store}{entries}"""

_ENTRY = """
[[table]]
name = "{name}"
target = "{table}"
{topics}
format = "{format}"
lineage = true
sort = {sort}
rows = "{rows}"
options = {options}
delivery = "{delivery}"
{deduplicate}"""


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
        password = f'password = "${{{self.password_variable}}}"\n' if self.password_variable else ""
        # JSON's way to write a text is one of TOML's.
        topics = f"topics = [{json.dumps(self.topic)}]"
        if self.topic_pattern:
            topics = f"topic_pattern = {json.dumps(self.topic_pattern)}"
        options = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self.options)
        deduplicate = store = ""
        if self.deduplicate:
            store = f"\n[deduplication]\nstore = {json.dumps(self.store)}\n"
            key = json.dumps(self.deduplicate)
            deduplicate = f'deduplicate = {{ key = {key}, window = "1d" }}\n'
        entries = [
            _ENTRY.format(
                name=name,
                table=table,
                topics=topics,
                sort=str(self.sort).lower(),
                format=self.format,
                rows="many" if self.format == "SQLBatchRequest" else "one",
                options=f"{{ {options} }}",
                delivery=self.delivery,
                deduplicate=deduplicate,
            )
            for name, table in (
                (self.topic, self.table),
                *((table, table) for table in self.more_tables),
            )
        ]
        path.write_text(
            _SETTINGS.format(
                pipeline=self.pipeline,
                slots=slots(),
                brokers=self.brokers,
                topics=topics,
                reader=self.reader,
                max_messages=self.max_messages,
                max_delay=self.max_delay,
                database=self.database,
                url=self.url,
                user=self.user,
                password=password,
                store=store,
                entries="".join(entries),
            )
        )


def slots() -> int:
    """Tasks that run at once."""
    return max(1, min(_SLOTS_MAX, len(os.sched_getaffinity(0))))
