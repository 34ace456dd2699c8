"""Every error of Sluice is one of three kinds, and the loops look at the kind only.

* Terminal: repeating cannot help; a person or a setting must change something.
* Transient: nothing happened; repeating later is right.
* In doubt: it may have happened; only the identical action may be repeated.

Every error carries a hint: what to do next. All of them survive pickling, because
they travel from Spark's workers to the driver.
"""

from __future__ import annotations

from typing import Any


class SluiceError(Exception):
    """Base of all errors that Sluice raises on purpose.

    :param message: what happened and where (topic, partition, offset, table, column).
    :param hint: what to do next, one line; the class's own hint if left out.
    """

    hint = "Run the command again with --debug and report what it prints."

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.__dict__))

    def __str__(self) -> str:
        return self.message


def _rebuild(kind: type[SluiceError], message: str, state: dict[str, Any]) -> SluiceError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class TerminalError(SluiceError):
    """Repeating cannot help."""


class TransientError(SluiceError):
    """Nothing happened; the same action may be repeated later."""


class InDoubtError(SluiceError):
    """The action may have happened; only the identical action may be repeated."""


class ConfigurationError(TerminalError):
    """The configuration cannot be used. The command ends with status 2."""

    hint = "Correct the configuration; `sluice init` writes a commented example."


class OwnerChangedError(TerminalError):
    """Another owner took these partitions over. The command ends with status 4.

    :param owner: its id, where that is known.
    """

    hint = "Another driver runs this pipeline now. Nothing to do unless that is a surprise."

    def __init__(self, message: str, hint: str | None = None, *, owner: str = "") -> None:
        super().__init__(message, hint)
        self.owner = owner


class ForeignHandsError(TerminalError):
    """A committed offset is not what this owner wrote (R5)."""

    hint = (
        "Find who commits in this consumer group, stop it, then run `sluice adopt`. (Kafka forgets "
        "what is committed of a topic that is deleted.)"
    )
