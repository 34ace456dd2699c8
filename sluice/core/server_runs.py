"""One life of a server's process, from its start to its end.

A table that is not replicated keeps what it knows of blocks in a log that is written before the
part has its name. A server that ended in between knows, after its next start, blocks that it does
not have. So whether a known block is there is certain only as long as one process runs.
"""

from __future__ import annotations

#: The start is known to a second, since servers say for how many seconds they have been running,
#: and a clock may be set a little meanwhile. A process that has run for less when its successor
#: starts is told apart by what it drew at its start.
_STARTED_MS_MAX = 2_000

#: By shard, which process served it; see `server_run`.
ServerRuns = dict[str, str]


def server_run(drawn: str, started_ms: int) -> str:
    """How one life of a server's process is written down.

    :param drawn: what it drew at random when it started; "" if it does not say.
    :param started_ms: when it started, by its own clock.
    """
    return f"{drawn}@{started_ms}"


def is_same_run(before: str | None, now: str) -> bool:
    """Whether a server is surely the process that it was; not, where nothing was written down."""
    if not before:
        return False
    (drawn, _, started), (drawn_now, _, started_now) = before.rpartition("@"), now.rpartition("@")
    return drawn == drawn_now and abs(int(started_now) - int(started)) <= _STARTED_MS_MAX
