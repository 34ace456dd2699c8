"""The exit statuses of the command. They are a contract with scripts."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """What a command reports to the shell."""

    #: Everything asked for is done, and settled.
    DONE = 0
    #: A promise is broken, a partition stopped, or a person said no.
    BROKEN = 1
    #: The configuration or the command line cannot be used.
    CONFIGURATION = 2
    #: Stopped with intents in doubt, or Spark ended; the next start goes on.
    IN_DOUBT = 3
    #: Another owner took the partitions over.
    OWNER_CHANGED = 4
    #: Ended by Ctrl-C, as shells count it.
    INTERRUPTED = 130
    #: The reader of the output went away, as shells count it.
    BROKEN_PIPE = 141
