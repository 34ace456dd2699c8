"""Why a query may not write, or cannot go on."""

from __future__ import annotations

from sluice.core.errors import TerminalError


class OtherCheckpointError(TerminalError):
    """Another checkpoint writes under this query's name."""


class OtherTableError(TerminalError):
    """This query has written the epoch, or batch, into another table."""

    hint = (
        "Give what goes into each table a query name of its own (option `query`). If the table was "
        "renamed, name it as before until the next epoch is in it."
    )


class CheckpointSetBackError(TerminalError):
    """The checkpoint asks for an epoch that is older than what it has committed."""

    hint = (
        "The checkpoint was restored from a copy, or entries of its offsets log are gone. Start "
        "with a new checkpoint and the option `takeover`, from where the rows in the table end."
    )


class OvertakenError(TerminalError):
    """Another driver of the same query was faster."""

    hint = "Another driver runs this query now. Nothing to do unless that is a surprise."


class HalfLoadedError(TerminalError):
    """A batch without a name was sealed, and not ended: nobody else knows of it."""


class ValueRefusedError(TerminalError):
    """A value that its column cannot hold."""


class AlreadyLoadedError(TerminalError):
    """A batch of this name was loaded before."""

    hint = (
        "If it is the same batch, all is well: it is there once. Other rows need another name "
        "(option `query`)."
    )
