"""Continuous proof: the verifier and the audit again and again, beside a driver.

Runs as a process of its own (`python -m sluice.verify.continuous CONFIG BEGIN`): whatever it needs
and whatever becomes of it, no round of a loop waits for it. It ends with the process that started
it, when its stdin does. For each turn it prints a line of JSON, a `Turn`.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from sluice.config import AuditConfiguration, Configuration, VerifyConfiguration, load
from sluice.core.anomalies import AnomalyKind
from sluice.core.errors import SluiceError
from sluice.driver.applying import loaded
from sluice.driver.specs import kafka_access
from sluice.kafka.ledger import last_before
from sluice.kafka.topics import partition_count
from sluice.machine.clock import now_ms
from sluice.verify.audit import RECENT_CHUNK_OFFSETS, audit
from sluice.verify.audit_source import Reached, Recent
from sluice.verify.pace import Pace
from sluice.verify.verifier import Verifier

What = Literal["verify", "audit"]
#: What a turn may find, by what it looks at.
KINDS: Mapping[What, tuple[str, ...]] = {
    "verify": tuple(kind.value for kind in AnomalyKind),
    "audit": ("missing", "doubled", "foreign"),
}

#: The verifier works for so much of the time at most.
VERIFY_SHARE = 0.1
#: What is recorded is stamped before it is committed, and by brokers as by their clocks.
_MARGIN_MS = 120_000
_EXAMPLES = 3
#: What else a report says, by the name in a `Turn`.
_COUNTS = ("covered", "left_out", "uncounted", "not_demanded", "unrecorded")
#: Of all that it may write to; what it holds is far below.
_MEMORY_BYTES_MAX = 2 << 30


@dataclass(frozen=True, slots=True)
class Turn:
    """What a look has found.

    :param error: why it did not come to its end; "" if it did.
    :param covered: entries that were judged, or offsets that were compared.
    :param left_out: offsets that there was no time for.
    :param uncounted: messages within which rows may be missing; see `AuditReport`, also of the next
        two.
    :param unaudited: table entries that were not looked at.
    :param problems: by kind.
    :param where: the first of them, in words.
    :param cpu_seconds: of the whole process so far; likewise the memory.
    """

    what: What
    began_ms: int
    ended_ms: int = 0
    error: str = ""
    covered: int = 0
    left_out: int = 0
    uncounted: int = 0
    not_demanded: int = 0
    unrecorded: int = 0
    unaudited: tuple[str, ...] = ()
    problems: dict[str, int] = field(default_factory=dict)
    where: tuple[str, ...] = ()
    cpu_seconds: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Begin:
    """Where the first looks of a process begin.

    :param driver_ms: when the driver was started.
    :param looks_ms: when the last looks began that came to their end, in a process before of this
        driver.
    """

    driver_ms: int
    looks_ms: dict[What, int] = field(default_factory=dict)


Tell = Callable[[Turn], None]


def _told(tell: Tell, what: What, began_ms: int, **found: object) -> None:
    used = {"cpu_seconds": time.process_time(), "memory_bytes": _memory_bytes()}
    tell(Turn(what, began_ms, now_ms(), **used, **found))  # type: ignore[arg-type]


def _memory_bytes() -> int:
    """The largest resident memory of this process so far. The kernel's `ru_maxrss` would begin with
    that of the process that started it [measured]."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def _in_words(error: SluiceError) -> str:
    return f"{error}. Try: {error.hint}" if error.hint else str(error)


def verify_on(
    configuration: Configuration,
    section: VerifyConfiguration,
    begin: Begin,
    stop: threading.Event,
    tell: Tell,
) -> None:
    """Judge what was recorded since the turn before, until stopped. The first turn begins a little
    before the driver; a step to what it sees first of a partition is not judged."""
    since_ms = begin.looks_ms.get("verify", begin.driver_ms) - _MARGIN_MS
    every = section.every_seconds
    verifier: Verifier | None = None
    while not stop.is_set():
        began_ms, error = now_ms(), ""
        verifier = verifier or Verifier(configuration, section.source, since_ms)
        before = sum(verifier.instances().values())
        try:
            found = verifier.look(Pace(VERIFY_SHARE, every, stop))
        except SluiceError as failure:
            _told(tell, "verify", began_ms, error=_in_words(failure))
            verifier.close()
            verifier = None
        else:
            left_out = sum(verifier.lags().values())
            if left_out:
                error = f"{left_out} messages of its logs are not read yet"
            else:
                since_ms = began_ms - _MARGIN_MS
            problems = dict.fromkeys(KINDS["verify"], 0)
            for anomaly in found:
                problems[anomaly.kind.value] += 1
            where = (f"{a.kind.value}: {a.connector} {a.source}: {a.what}" for a in found)
            found_in = {"covered": sum(verifier.instances().values()) - before, "error": error}
            _told(tell, "verify", began_ms, problems=problems, where=_first(where), **found_in)
        stop.wait(max(0.0, every - (now_ms() - began_ms) / 1000))
    if verifier is not None:
        verifier.close()


def audit_on(
    configuration: Configuration,
    section: AuditConfiguration,
    begin: Begin,
    stop: threading.Event,
    tell: Tell,
) -> None:
    """Compare what was settled since the turn before, until stopped. The first turn of a driver
    takes twice `every` before the last settle of who ran before, who may have missed some."""
    every, ledger = section.every_seconds, dict[str, Reached]()
    since_ms = begin.looks_ms.get("audit", begin.driver_ms) - _MARGIN_MS
    first_ms: Mapping[str, int] | None = {} if "audit" in begin.looks_ms else None
    while not stop.is_set():
        began_ms = now_ms()
        pace = Pace(section.share, every, stop)
        try:
            today = loaded(configuration, os.environ)
            if first_ms is None:
                first_ms = _before(today, begin.driver_ms - _MARGIN_MS, int(2000 * every))
            recent = Recent(since_ms, pace, dict(ledger), first_ms)
            report = audit(today, RECENT_CHUNK_OFFSETS, recent=recent)
        except SluiceError as failure:
            _told(tell, "audit", began_ms, error=_in_words(failure))
        else:
            since_ms, ledger, first_ms = began_ms - _MARGIN_MS, recent.ledger, {}
            problems = {kind: int(getattr(report, kind)) for kind in KINDS["audit"]}
            counts = {name: getattr(report, name) for name in _COUNTS}
            counts["unaudited"] = (*report.unaudited, *report.former)
            where = _first(report.where())
            _told(tell, "audit", began_ms, problems=problems, where=where, **counts)
        stop.wait(max(0.0, every - (now_ms() - began_ms) / 1000))


def _before(configuration: Configuration, at_ms: int, back_ms: int) -> dict[str, int]:
    """By connector, so long before its ledger had its last message before that time: however long
    nothing ran, the last that was settled is looked at."""
    found = {}
    for connector in configuration.connectors:
        access = kafka_access(configuration, connector.name)
        last_ms = None
        if partition_count(access, configuration.ledger_topic):
            last_ms = last_before(access, configuration.ledger_topic, at_ms)
        found[connector.name] = min(at_ms, last_ms or at_ms) - back_ms
    return found


def _first(where: Iterable[str]) -> tuple[str, ...]:
    return tuple(text for text, _ in zip(where, range(_EXAMPLES), strict=False))


def _be_modest() -> None:
    """Whatever else runs comes first, and if memory lacks, this ends."""
    os.nice(10)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or hard > _MEMORY_BYTES_MAX:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, hard))


def _end_with_stdin() -> None:
    while os.read(0, 1024):  # not by a file object, whose lock would break the end of a failure
        pass
    os._exit(0)


def main(path: str, begin: Begin) -> None:
    """Prove on and on; ends only as a failure, or with stdin."""
    _be_modest()
    logging.basicConfig(level=logging.ERROR)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    configuration = load(Path(path), os.environ)
    lock, failed = threading.Lock(), threading.Event()
    threads = []

    def tell(turn: Turn) -> None:
        with lock:
            print(json.dumps(asdict(turn)), flush=True)

    def run(prove: Callable[..., None], section: object) -> None:
        try:
            prove(configuration, section, begin, failed, tell)
        finally:
            failed.set()

    for prove, section in ((verify_on, configuration.verify), (audit_on, configuration.audit)):
        if section is not None:
            threads.append(threading.Thread(target=run, args=(prove, section)))
            threads[-1].start()
    for thread in threads:
        thread.join()
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], Begin(**json.loads(sys.argv[2])))
