"""What an experiment gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["holds", "fails", "not applicable"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server did.

    :param what: in words; of what is not applicable, why.
    """

    verdict: Verdict
    what: str


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an experiment.

    :param experiment: its name.
    :param tables: whether those it used were "Replicated" or "plain".
    :param fact: what Sluice believes, in one sentence.
    :param depends: whether a promise of Sluice does.
    :param promise: which one; or why none does.
    :param seconds: how long it took.
    """

    experiment: str
    tables: Literal["Replicated", "plain"]
    fact: str
    verdict: Verdict
    server_did: str
    depends: bool
    promise: str
    seconds: float


def judged(is_so: bool, what: str) -> Seen:
    """It holds, or it fails."""
    return Seen("holds" if is_so else "fails", what)


def not_applicable(why: str) -> Seen:
    """The server cannot do this, or need not, or it cannot be tried."""
    return Seen("not applicable", why)
