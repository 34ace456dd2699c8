"""What is known of one Replicated table's quorum in one shard. Facts only; `core.stuck` judges.

A block that is inserted with a quorum leaves a node in ZooKeeper until so many replicas have its
part: `quorum/status` (serial: nobody else inserts with a quorum meanwhile) or
`quorum/parallel/PART`.
"""

from __future__ import annotations

from dataclasses import dataclass

SERIAL_NODE = "status"


@dataclass(frozen=True, slots=True)
class PendingQuorum:
    """A part that not enough replicas have.

    :param node: below `<path>/quorum`: "status", or "parallel/" and the part.
    :param counted: names of the replicas that ZooKeeper counts so far.
    :param block_ids: nodes of `<path>/blocks` by which the part's block is known again.
    :param rows: what the part holds, as far as a replica told: "100 rows of orders[0], offsets
        0 to 99"; "" if unknown.
    """

    node: str
    part: str
    required: int
    counted: tuple[str, ...]
    age_seconds: int
    block_ids: tuple[str, ...] = ()
    rows: str = ""

    @property
    def is_serial(self) -> bool:
        return self.node == SERIAL_NODE


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """What a replica still has to do to get a part."""

    part: str
    tries: int = 0
    is_executing: bool = False
    exception: str = ""
    postpone_reason: str = ""


@dataclass(frozen=True, slots=True)
class OwnView:
    """What a replica's own server says.

    :param log_behind: entries of the table's log that it has not taken into its queue.
    :param entries: of its queue, for pending parts.
    :param parts_to_check: that it compares with ZooKeeper and with its disk, now or soon.
    :param stored: those of the pending parts that it has on its disk.
    :param trouble: of any entry of its queue, the oldest that failed or is put off: in words.
    """

    is_readonly: bool = False
    is_session_expired: bool = False
    delay_seconds: int = 0
    queue_size: int = 0
    log_behind: int = 0
    parts_to_check: int = 0
    entries: tuple[QueueEntry, ...] = ()
    stored: frozenset[str] = frozenset()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of the table, as ZooKeeper knows it.

    :param url: of the configured server that is this replica; "" if none that answers is.
    :param is_active: it has a session with ZooKeeper.
    :param parts: those of the pending parts that ZooKeeper says it has.
    :param own: None if its server does not answer, or is not configured.
    """

    name: str
    url: str
    is_active: bool
    parts: frozenset[str] = frozenset()
    own: OwnView | None = None

    @property
    def shown(self) -> str:
        return f"{self.name} ({self.url})" if self.url else self.name


@dataclass(frozen=True, slots=True)
class TableQuorum:
    """A Replicated table in a shard.

    :param target: database and table.
    :param view: that writes to it; "" for a table of the configuration.
    :param wanted: replicas that Sluice's inserts wait for; 1 for no quorum.
    :param failed_parts: that ClickHouse has given up.
    :param silent: configured servers that do not answer, and why.
    :param unread: why nothing is known from ZooKeeper; "" if it was read.
    """

    shard: str
    target: tuple[str, str]
    path: str
    view: str = ""
    wanted: int = 1
    pending: tuple[PendingQuorum, ...] = ()
    failed_parts: tuple[str, ...] = ()
    replicas: tuple[Replica, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()
    unread: str = ""


def parse_status(node: str, text: str, age_seconds: int) -> PendingQuorum | None:
    """The text of a status node, as 18.16 and later write it; None for another text.

    version: 1, part_name, required_number_of_replicas, actual_number_of_replicas, replicas: and
    one name a line.
    """
    lines = text.splitlines()
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        part, required = values["part_name"], int(values["required_number_of_replicas"])
        counted = tuple(line for line in lines[lines.index("replicas:") + 1 :] if line)
    except (KeyError, ValueError):
        return None
    return PendingQuorum(node, part, required, counted, age_seconds)


def covers(part: str, other: str) -> bool:
    """Whether a part is another one, or came of merging it with others.

    Names are partition_min_max_level, and a mutation's number may follow; the partition may hold
    underlines itself in tables of an old kind, whose parts are compared by name only.
    """
    if part == other:
        return True
    ours, theirs = part.split("_"), other.split("_")
    try:
        numbers, wanted = [int(n) for n in ours[1:4]], [int(n) for n in theirs[1:4]]
    except ValueError:
        return False
    if len(numbers) < 3 or len(wanted) < 3 or ours[0] != theirs[0] or len(ours) > 5:
        return False
    return numbers[0] <= wanted[0] and wanted[1] <= numbers[1] and numbers[2] > wanted[2]
