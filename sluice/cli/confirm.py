"""Asks before a command does what cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sluice.cli.arguments import UsageError


def confirm(steps: Sequence[str], is_agreed: bool) -> bool:
    """Show what will be done, and ask; on stderr, since stdout is for data.

    :param steps: a line for each thing that will be done.
    :param is_agreed: --yes was given: show, and do not ask.
    :returns: whether to go on.
    :raises UsageError: nobody can be asked, and --yes is missing.
    """
    print("This will:", file=sys.stderr)
    for step in steps:
        print(f"  - {step}", file=sys.stderr)
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "nobody can be asked: stdin is not a terminal", "Read the lines above and add --yes."
        )
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    is_yes = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not is_yes:
        print("Nothing was done.", file=sys.stderr)
    return is_yes
