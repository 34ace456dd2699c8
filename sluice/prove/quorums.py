"""Experiments: inserts that wait for other replicas."""

from __future__ import annotations

from sluice.clickhouse.reactions import ServerError
from sluice.core.errors import InDoubtError
from sluice.prove.findings import Seen, judged, not_applicable
from sluice.prove.repeats import is_once
from sluice.prove.scratch import ROWS, Scratch, block

_TOO_FEW, _PREVIOUS, _UNKNOWN = 285, 286, 319
#: Replicas try to fetch again after a pause, which 18.16 makes longer each time.
_RECOVERY_SECONDS = 60.0
_ONE = not_applicable("one server was named: no insert can wait for another replica")


def quorum(scratch: Scratch) -> Seen:
    """A block with a quorum is known again at every replica."""
    if len(scratch.places) == 1:
        return _ONE
    table = scratch.table()
    for at in range(len(scratch.places)):
        scratch.insert(table, block(), "a", at=at, quorum=2)
    return is_once(scratch, table, ROWS, "one block sent to each replica with a quorum of two")


def quorum_too_few(scratch: Scratch) -> Seen:
    """A quorum for which there are too few replicas is refused with 285, and stores nothing."""
    if len(scratch.places) == 1:
        return _ONE
    table = scratch.table()
    wanted = len(scratch.places) + 1
    code = _code_of(scratch, table, block(), "a", wanted)
    stored = max(scratch.rows(table))
    return judged(
        code == _TOO_FEW and stored == 0,
        f"a quorum of {wanted} with {wanted - 1} replicas: error {code}, {stored} rows stored",
    )


def quorum_in_doubt(scratch: Scratch) -> Seen:
    """A quorum that does not come is 319; the next block is 286 on servers that take one quorum
    insert at a time, and waits by itself on others; both are stored once in the end."""
    if len(scratch.places) == 1:
        return _ONE
    table = scratch.table()
    # The other replicas do not fetch for a while, this table only.
    others = [place.server for place in scratch.places[1:]]
    for server in others:
        server.execute(f"SYSTEM STOP FETCHES {scratch.named(table)}")
    try:
        first = _code_of(scratch, table, block(), "a", 2)
        second = _code_of(scratch, table, block(ROWS), "b", 2)
    finally:
        for server in others:
            server.execute(f"SYSTEM START FETCHES {scratch.named(table)}")
    is_parallel = scratch.first.capabilities.parallel_quorums
    for native, token in ((block(), "a"), (block(ROWS), "b")):
        scratch.wait(
            _RECOVERY_SECONDS,
            lambda native=native, token=token: not _code_of(scratch, table, native, token, 2, 3.0),  # type: ignore[misc]
        )
    did = (
        f"the quorum of one block did not come (error {first}), the next block meanwhile: error "
        f"{second}; then both again"
    )
    if first != _UNKNOWN or second != (_UNKNOWN if is_parallel else _PREVIOUS):
        return judged(False, did)
    return is_once(scratch, table, 2 * ROWS, did)


def _code_of(
    scratch: Scratch, table: str, native: bytes, token: str, quorum: int, seconds: float = 1.0
) -> int:
    """The error of an insert; 0 if it is acknowledged.

    :raises SluiceError: one after which the block cannot be there.
    """
    try:
        scratch.insert(table, native, token, quorum=quorum, quorum_seconds=seconds)
    except InDoubtError as error:
        return error.code if isinstance(error, ServerError) else -1
    return 0
