"""What a run of the benchmark measures; the defaults measure what `make bench` always has."""

from __future__ import annotations

import math
import os
import resource
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.core.errors import ConfigurationError
from sluice.core.ranges import TopicPartition

if TYPE_CHECKING:
    from sluice.core.load_spec import Delivery
    from sluice.testbed.local.orders import Shape

COLUMNS_MIN = 9
#: The decoder's query and the server's block grow with the columns.
COLUMNS_MAX = 1_000
#: What Kafka takes without being told otherwise.
MESSAGE_BYTES_MAX = 1_000_000
#: Of all topics together.
PARTITIONS_MAX = 10_000
TABLES_MAX = 1_000

#: The one topic; several have a number each, and are taken by the expression.
TOPIC = "orders"
TOPIC_PATTERN = "orders-[0-9]+"

#: What a broker has open besides a file for each partition, generously.
_OTHER_FILES = 1_000

#: Formats that orders can be written in.
ORDER_FORMATS = (
    *("JSONEachRow", "JSONCompactEachRow", "CSV", "TSV"),
    *("RowBinary", "MsgPack", "Protobuf", "SQLBatchRequest"),
)

#: Settings that decide none of the figures, or that the output tells elsewhere.
_NOT_SHOWN = frozenset(
    {"server", "idle_seconds", "backlog_seconds", "drain", "flame", "compare", "as_json"}
)


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """The options of `sluice bench`.

    :param rows: messages of each round.
    :param server: "embedded", or the URL of a server; the database `sluice_bench` is made there
        and dropped at the end.
    :param rounds: medians are over these.
    :param replicated: into ReplicatedMergeTree tables, which need ZooKeeper there.
    :param message_bytes: of an average event; None for what the columns take.
    :param topics: that the messages go to in turn; the pipeline takes several by an expression.
    :param partitions: of each topic.
    :param tables: entries of the pipeline that load all topics; each gets every row.
    :param bad_share: share of the rounds' messages that can never become a row.
    :param range_messages: of a range at most; the ranges of a round are made equal.
    :param partial_ranges: ranges are not made equal and full; they are due after `max_delay`.
    :param deduplicate: the store of claims, as it stands in the configuration, where orders are
        known again by their id; "": they are not.
    :param delivery: how blocks come into the tables.
    :param max_delay: as it stands in the configuration.
    :param sort: workers sort the blocks.
    :param reader: what reads the ranges.
    :param format: of the messages.
    :param rates: messages a second, one measurement of the latency for each.
    :param producer_alone: whether the broker is measured when the driver is gone, too.
    :param backlog_seconds: how long the pipeline was away, for the time to drain.
    :param drain: whether draining the first rate's backlog is measured too.
    :param flame: where a flame graph of one worker goes.
    :param compare: a stored run.
    """

    rows: int = 3_000_000
    server: str = "embedded"
    rounds: int = 3
    replicated: bool = False
    message_bytes: int | None = None
    columns: int = COLUMNS_MIN
    topics: int = 1
    partitions: int = 4
    tables: int = 1
    bad_share: float = 0.0
    range_messages: int = 250_000
    partial_ranges: bool = False
    deduplicate: str = ""
    delivery: Delivery = "block"
    max_delay: str = "500ms"
    sort: bool = False
    reader: str = "auto"
    format: str = "JSONEachRow"
    rates: tuple[int, ...] = (1_000,)
    latency_seconds: float = 20.0
    #: Long enough for two of the jobs that keep idle workers warm.
    idle_seconds: float = 40.0
    producer_alone: bool = False
    backlog_seconds: float = 3_600.0
    drain: bool = False
    flame: Path | None = None
    compare: Path | None = None
    as_json: bool = False

    @property
    def shape(self) -> Shape:
        """Of the events and of the tables."""
        from sluice.testbed.local.orders import Shape

        return Shape(self.columns, self.message_bytes)

    @property
    def kind_of_events(self) -> str:
        """For people; a size is only known of events in JSON."""
        if self.format == "JSONEachRow":
            return f"of {self.shape.event_bytes} bytes"
        return f"as {self.format}"

    @property
    def topic_names(self) -> list[str]:
        """All topics of the benchmark."""
        if self.topics == 1:
            return [TOPIC]
        return [f"{TOPIC}-{number}" for number in range(1, self.topics + 1)]

    @property
    def sources(self) -> list[TopicPartition]:
        """All partitions of all topics."""
        return [
            TopicPartition(topic, number)
            for topic in self.topic_names
            for number in range(self.partitions)
        ]

    def even_range(self) -> int:
        """Messages of a range, so that a round has full ranges only: the last one would wait."""
        if self.partial_ranges:
            return self.range_messages
        of_partition = math.ceil(self.rows / (self.topics * self.partitions))
        return math.ceil(of_partition / math.ceil(of_partition / self.range_messages))

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is started.

        :raises ConfigurationError: an option is out of its bounds.
        """
        _within("--columns", self.columns, COLUMNS_MIN, COLUMNS_MAX)
        _within("--partitions", self.partitions, 1, PARTITIONS_MAX)
        _within("--topics", self.topics, 1, PARTITIONS_MAX // self.partitions)
        self._check_files()
        _within("--tables", self.tables, 1, TABLES_MAX)
        if self.message_bytes is not None:
            _within("--message-bytes", self.message_bytes, 1, MESSAGE_BYTES_MAX)
            if self.shape.padding_bytes < 0:
                least = self.message_bytes - self.shape.padding_bytes
                raise ConfigurationError(
                    f"--message-bytes {self.message_bytes}: {self.columns} columns take "
                    f"{least} bytes of JSON on average",
                    f"Ask for {least} bytes or more"
                    + (", or for fewer columns." if self.columns > COLUMNS_MIN else "."),
                )
        if self.format != "JSONEachRow" and (self.bad_share or self.message_bytes):
            raise ConfigurationError(
                f"--format {self.format} with --bad-share or --message-bytes",
                "These are for JSONEachRow only.",
            )
        for option, path in (("--flame", self.flame), ("--compare", self.compare)):
            folder = None if path is None else path.absolute().parent
            if folder is not None and not (folder.is_dir() and os.access(folder, os.X_OK)):
                raise ConfigurationError(
                    f"{option} {path}: there is no folder {folder}", "Make it, or name another."
                )

    def _check_files(self) -> None:
        """The broker's JVM raises its limit of open files to the hard one by itself."""
        needed = self.topics * self.partitions + _OTHER_FILES
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and needed > limit:
            raise ConfigurationError(
                f"--topics {self.topics:,} with --partitions {self.partitions:,}: the broker needs "
                f"about {needed:,} open files, the limit is {limit:,}",
                f"Raise the limit (ulimit -Hn {needed}), or ask for fewer.",
            )

    def as_json_settings(self) -> dict[str, Any]:
        """What decides the figures, for the machine-readable output."""
        shown = {name: value for name, value in asdict(self).items() if name not in _NOT_SHOWN}
        return shown | {"message_bytes": self.shape.event_bytes, "rates": list(self.rates)}


def _within(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigurationError(
            f"{option} {value:,} is out of bounds", f"Use {least:,} to {most:,}."
        )
