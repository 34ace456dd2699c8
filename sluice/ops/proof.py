"""Continuous proof of a driver that runs: looks after the process that verifies and audits, and
says what it has found so far."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from sluice.config import Configuration
from sluice.driver.children import own_process
from sluice.machine.clock import now_ms
from sluice.verify.continuous import KINDS, Begin, Turn, What

_logger = logging.getLogger("sluice.proof")

ProofVerdict = Literal["ok", "found", "overdue", "starting"]
#: A look that has not come to its end for so many times its `every` is overdue.
OVERDUE_TURNS = 3
#: Before the process is started again.
_RESTART_SECONDS = 10.0
#: The last lines of a failure.
_LINES = 8


@dataclass(frozen=True, slots=True)
class ProofNow:
    """How the verifier or the audit gets on.

    :param age_seconds: since a look ended, or since the start before the first one.
    :param covered: entries that were judged, or offsets that were compared, since the start;
        likewise all that follows.
    :param left_out: of which there was no time for.
    :param uncounted: messages within which rows may be missing: nothing says how many they have.
    :param not_demanded: messages that no table entry loaded into a table when they were settled,
        and that those of now would load there.
    :param unrecorded: messages that were judged by the table entries of now, since the ledger does
        not say by which they were loaded.
    :param unaudited: table entries that are not compared, as the last look says.
    :param problems: by kind.
    """

    what: What
    every_seconds: float
    verdict: ProofVerdict = "starting"
    reason: str = ""
    age_seconds: float = 0.0
    ended_ms: int | None = None
    turns: int = 0
    failures: int = 0
    covered: int = 0
    left_out: int = 0
    uncounted: int = 0
    not_demanded: int = 0
    unrecorded: int = 0
    unaudited: tuple[str, ...] = ()
    problems: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Record:
    """What was told of one of them, and what it is judged by.

    :param told: nothing in it is judged yet.
    :param looked_ms: when the last look began that came to its end.
    :param found: words for the last problems, and when they were told.
    :param error: why the last look did not come to its end.
    """

    told: ProofNow
    since_ms: int
    looked_ms: int | None = None
    found: str = ""
    error: str = ""

    def take(self, turn: Turn) -> None:
        told, self.error, is_ended = self.told, turn.error, not turn.error
        found = {kind: count for kind, count in turn.problems.items() if count}
        self.told = replace(
            told,
            ended_ms=turn.ended_ms if is_ended else told.ended_ms,
            turns=told.turns + is_ended,
            failures=told.failures + (not is_ended),
            covered=told.covered + turn.covered,
            left_out=told.left_out + turn.left_out,
            uncounted=told.uncounted + turn.uncounted,
            not_demanded=told.not_demanded + turn.not_demanded,
            unrecorded=told.unrecorded + turn.unrecorded,
            unaudited=tuple(turn.unaudited) if is_ended else told.unaudited,
            problems={kind: count + found.get(kind, 0) for kind, count in told.problems.items()},
        )
        if is_ended:
            self.looked_ms = turn.began_ms
        else:
            _logger.warning("%s did not come to its end: %s", told.what, turn.error)
        if found:
            counts = ", ".join(f"{count} {kind}" for kind, count in found.items())
            self.found = f"{counts}: {'; '.join(turn.where)}"
            _logger.error("%s found %s", told.what, self.found)

    def now(self, at_ms: int) -> ProofNow:
        told = self.told
        age = max(0.0, (at_ms - (told.ended_ms or self.since_ms)) / 1000)
        verdict, reason = self._verdict(told, age)
        return replace(told, verdict=verdict, reason=reason, age_seconds=age)

    def _verdict(self, told: ProofNow, age: float) -> tuple[ProofVerdict, str]:
        why = f": {self.error}" if self.error else ""
        if self.found:
            return "found", f"{self.found}; `sluice {told.what}` says more"
        if age > OVERDUE_TURNS * told.every_seconds:
            return "overdue", f"has not come to its end for {age:.0f} s{why}"
        if told.ended_ms is None:
            return "starting", f"has not come to its end yet{why}"
        units = "entries" if told.what == "verify" else "offsets"
        left_out = f", with no time for {told.left_out:,} more" if told.left_out else ""
        limits = (
            f"; {count:,} messages {what}"
            for count, what in (
                (told.uncounted, "may lack rows within"),
                (told.not_demanded, "were settled before a table was loaded with them"),
                (told.unrecorded, "were judged by the table entries of now"),
            )
            if count
        )
        unaudited = f"; not compared: {', '.join(told.unaudited)}" if told.unaudited else ""
        wrong = f"nothing wrong in {told.covered:,} {units}{left_out}"
        return "ok", f"{wrong}{''.join(limits)}{unaudited}"


def _begun(what: What, every_seconds: float, since_ms: int) -> _Record:
    """Each kind of problem has its count from the start."""
    problems = dict.fromkeys(KINDS[what], 0)
    return _Record(ProofNow(what, every_seconds, problems=problems), since_ms)


class Proof:
    """Runs the process, and starts it again where it ends. `now` may be asked by any thread.

    It does nothing where the configuration has neither [verify] nor [audit].
    """

    def __init__(self, configuration: Configuration) -> None:
        self._path, self._began_ms = str(configuration.path), now_ms()
        self._records: dict[What, _Record] = {}
        if configuration.verify is not None:
            every = configuration.verify.every_seconds
            self._records["verify"] = _begun("verify", every, self._began_ms)
        if configuration.audit is not None:
            every = configuration.audit.every_seconds
            self._records["audit"] = _begun("audit", every, self._began_ms)
        #: Of the processes that have ended, and of the one that runs.
        self._used_before = self._used = 0.0
        self.memory_bytes = 0
        self._child: subprocess.Popen[str] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proof", daemon=True)
        if self._records:
            self._thread.start()

    @property
    def cpu_seconds(self) -> float:
        """What the process has used, as it said last."""
        return self._used_before + self._used

    def now(self) -> Sequence[ProofNow]:
        """How each of them gets on."""
        at_ms = now_ms()
        return [record.now(at_ms) for record in self._records.values()]

    def stop(self) -> None:
        """End it."""
        self._stop.set()
        if self._child is not None:
            self._child.kill()
        if self._records:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            why = self._run_once()
            if self._stop.is_set():
                return
            for what, record in self._records.items():
                record.take(Turn(what, now_ms(), error=f"its process {why}"))
            self._stop.wait(_RESTART_SECONDS)

    def _run_once(self) -> str:
        """One process, to its end; how it ended."""
        looks = {what: each.looked_ms for what, each in self._records.items() if each.looked_ms}
        begin = json.dumps(asdict(Begin(self._began_ms, looks)))
        command, environment = own_process("sluice.verify.continuous", self._path, begin)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # it ends when this process does, and with it the pipe
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
            )
        except OSError as error:
            return f"could not be started: {error}"
        self._child = child
        if self._stop.is_set():
            child.kill()
        said = deque[str](maxlen=_LINES)
        assert child.stdout is not None and child.stderr is not None
        listener = threading.Thread(target=said.extend, args=(child.stderr,), daemon=True)
        listener.start()
        for line in child.stdout:
            self._take(line)
        status = child.wait()
        listener.join()
        self._used_before, self._used = self.cpu_seconds, 0.0
        return f"ended with {status}: {' '.join(''.join(said).split())}"

    def _take(self, line: str) -> None:
        turn = Turn(**json.loads(line))
        self._used, self.memory_bytes = turn.cpu_seconds, turn.memory_bytes
        self._records[turn.what].take(turn)
