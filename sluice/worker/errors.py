"""Why a task did not insert a block, or does not know whether it did; travels to the driver."""

from __future__ import annotations

from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.statements import EarlierAttemptRunsError
from sluice.core.errors import InDoubtError, SluiceError, TerminalError, TransientError
from sluice.core.receipts import NeedsReservation


class BlockRefusedError(TransientError):
    """Carries a block that can never be stored out of the table loop."""

    def __init__(self, entry: str, error: TerminalError, *, is_unstored: bool) -> None:
        super().__init__(f"{entry}: {error}")
        self.entry = entry
        self.error = error
        self.is_unstored = is_unstored
        self.inserted: tuple[str, ...] = ()


class NeedsReservationError(TransientError):
    """Carries a refused block's need out of the table loop."""

    def __init__(self, need: NeedsReservation) -> None:
        super().__init__(f"a block of {need.entry} needs {need.entries} window entries")
        self.need = need


class OtherVersionError(InDoubtError):
    """A replica of another version may not know a block that is in doubt."""

    hint = "Give all replicas of a shard the same version; the block waits for one that has it."


class ForgottenError(InDoubtError):
    """A block in doubt is not offered again, or its repeat is not believed: too much came into a
    window since, or the server is not the process any more that it was."""

    hint = "The driver looks at the windows, and probes the range if need be; no action is needed."


class QuorumGivenUpError(InDoubtError):
    """A server said OK to a block that it may not have, while the quorum of a part was given up."""

    hint = "The same block is sent again; no action is needed."


class ReplicasFrozenError(TransientError):
    """No replica of a shard may be sent blocks."""

    hint = "`sluice status` says who froze them and why; `sluice resume` lets them go on."


def took_too_long(error: SluiceError) -> bool:
    """Whether more time might have brought an answer."""
    is_silent = isinstance(error, ServerError) and (error.name, error.code) == ("SOCKET_TIMEOUT", 0)
    return isinstance(error, EarlierAttemptRunsError) or is_silent


class OutdatedTextError(TransientError):
    """The first attempt's task refused the load spec, and inserted nothing of this entry."""

    def __init__(self, entry: str, why: str) -> None:
        super().__init__(why, "The driver looks at the table; no action is needed.")
        self.entry = entry


class StructureChangedError(InDoubtError):
    """The server would not know this block again: it hashes what it stores and a column was added,
    it has another time zone, or the table is another one."""

    hint = "The driver looks at the table, and probes the range; no action is needed."


class SealedError(InDoubtError):
    """A staged block was sealed before this failed: its rows come into the target."""
