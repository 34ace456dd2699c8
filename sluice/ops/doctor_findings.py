"""What an examination finds, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.kafka.errors import KafkaRefusedError

Level = Literal["error", "warning", "ok"]

#: Checks whose errors pass by themselves: something does not answer now.
AWAY_CHECKS = frozenset({"kafka", "clickhouse"})
#: What Kafka refuses whom it lets in at other times: for who starts, that is for good.
LOGIN_CHECK = "login"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    :param level: "error": exactly once cannot be promised. "warning": it can, with a limit
        that a person should know.
    :param check: what was looked at, the same word for each place.
    :param where: connector and topic, or table and server.
    :param what: what was found, one line.
    :param fix: the statement or setting that fixes it; "" if nothing is to fix.
    :param passing: an error that goes away by itself: something does not answer now.
    """

    level: Level
    check: str
    where: str
    what: str
    fix: str = ""
    passing: bool = False


class Examination:
    """Collects the findings about one place."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.findings: list[Finding] = []

    def error(self, check: str, what: str, fix: str) -> None:
        """The promise would break."""
        self._add(Finding("error", check, self.where, what, fix))

    def warning(self, check: str, what: str, fix: str) -> None:
        """The promise holds, within a limit."""
        self._add(Finding("warning", check, self.where, what, fix))

    def ok(self, check: str, what: str) -> None:
        """It is as it should be; not said beside an error or warning of the same check."""
        if all(finding.check != check for finding in self.findings):
            self.findings.append(Finding("ok", check, self.where, what))

    def _add(self, finding: Finding) -> None:
        self.findings = [
            other for other in self.findings if other.level != "ok" or other.check != finding.check
        ]
        self.findings.append(finding)

    def attempt(self, check: str, look: Callable[[], object]) -> None:
        """Make a check."""
        try:
            look()
        except SluiceError as error:
            self.failed(check, error)

    def refused(self, check: str, error: SluiceError) -> None:
        """What is checked does not work; for now, if something does not answer."""
        if isinstance(error, TransientError):
            self.failed(check, error)
        else:
            self.error(check, error.message, error.hint)

    def failed(self, check: str, error: SluiceError) -> None:
        """A check that could not be made: unknown if it is refused, an error if it broke off."""
        what = f"cannot be checked: {error.message}"
        if isinstance(error, TransientError):
            self._add(Finding("error", check, self.where, what, error.hint, passing=True))
        else:
            self.warning(check, what, error.hint)


def refusal(findings: Sequence[Finding]) -> SluiceError | None:
    """Why nothing may be loaded now; None if it may.

    :returns: a TransientError if all that is wrong is that something does not answer; a
        KafkaRefusedError if beside that only a login is refused.
    """
    errors = [finding for finding in findings if finding.level == "error"]
    if not errors:
        return None
    text = "\n".join(f"{finding.where}: {finding.what}; {finding.fix}" for finding in errors)
    stay = {each.check for each in errors if not each.passing} - AWAY_CHECKS
    is_login = stay == {LOGIN_CHECK}
    kind = KafkaRefusedError if is_login else TerminalError if stay else TransientError
    return kind(text, "`sluice doctor` shows everything that was looked at.")
