"""Applying what a pipeline loads: the plan, the version that is written, and what drivers made of
it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.config import Configuration, load
from sluice.config.applied import differences, document_of, tables_by_written_name, under
from sluice.core.decided import (
    DOCUMENT_BYTES_MAX,
    Answer,
    Decided,
    Frozen,
    Version,
    apply_entry,
    why_not_said,
)
from sluice.core.errors import ConfigurationError, SluiceError
from sluice.driver.applying import NotWhileRunningError, refuse_what_members_cannot
from sluice.driver.specs import kafka_access, read_spec, read_today
from sluice.driver.topology import resolved
from sluice.kafka.decisions import write_decisions
from sluice.machine.clock import now_ms
from sluice.ops.doctor import Finding, examine
from sluice.ops.driver_decisions import DecisionRefusedError, read_decided
from sluice.ops.fleet import is_reporting, members_of, read_reports

ANSWER_EVERY_SECONDS = 0.2


class ApplyRefusedError(DecisionRefusedError):
    """What was to be applied is not, and nothing has changed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an apply would do.

    :param configuration: with what is to be loaded.
    :param base: what is applied now; None: nothing ever was.
    :param behind: connectors whose cluster does not have what is applied now.
    :param lines: what is added, changed and retired, in words.
    :param refusals: why it must not be.
    :param again: the older version that it is; 0: it is none.
    """

    configuration: Configuration
    base: Version | None
    number: int
    document: str
    behind: tuple[str, ...]
    lines: tuple[str, ...]
    refusals: tuple[str, ...] = ()
    again: int = 0

    @property
    def does_something(self) -> bool:
        return bool(self.lines or self.behind)


def versions(configuration: Configuration) -> Decided:
    """What was applied, as the cluster has it that decides which version is next.

    :raises SluiceError: Kafka does not answer.
    """
    decided = _decided(configuration)
    return decided[_leading(decided)]


def plan(configuration: Configuration) -> Plan:
    """What applying this configuration would do. Reads only.

    :raises SluiceError: Kafka does not answer.
    """
    document = document_of(configuration)
    decided = _decided(configuration)
    before = decided[_leading(decided)].versions
    base = before[-1] if before else None
    number = base.number if base else 0
    behind = tuple(n for n, each in decided.items() if number and _number(each) != number)
    differing = tuple(_differing(base, decided)) if base is not None else ()
    if base is not None and base.document == document and not differing:
        return Plan(configuration, base, number, document, behind, ())
    lines = *differing, *_lines(configuration, base, document)
    planned = Plan(configuration, base, number + 1, document, (), lines)
    frozen = [each for found in decided.values() for each in found.frozen]
    return replace(planned, refusals=tuple(_refusals(planned, before, frozen)))


def _differing(base: Version, decided: Mapping[str, Decided]) -> Iterator[str]:
    """What else counts under the same number: two persons who apply at once by files with different
    connectors may both be the first, each in another cluster."""
    for name, each in decided.items():
        found = each.applied
        if found and found.number == base.number and found.document != base.document:
            yield f"connector {name} has another {found}: what is applied now takes its place"


def plan_rollback(configuration: Configuration, number: int | None) -> Plan:
    """What applying an older version again would do.

    :param number: None: the one before; see `Decided.previous`.
    :raises ApplyRefusedError: there is no such version.
    """
    found = versions(configuration)
    named = [each for each in found.versions if each.number == number]
    version = found.previous if number is None else next(iter(named), None)
    if version is None:
        what = "an older version" if number is None else f"version {number}"
        raise ApplyRefusedError(
            f"{what} is not there", f"`sluice apply --list {configuration.path}` shows all."
        )
    planned = plan(under(configuration, version.document, version.name, os.environ))
    if not planned.lines:
        return planned
    return replace(planned, lines=(f"{version}, again", *planned.lines), again=version.number)


def apply(planned: Plan, *, by: str, why: str) -> Version:
    """Do it: write the version, which drivers then take up.

    :raises ApplyRefusedError: the plan says no, or somebody else applied meanwhile.
    :raises SluiceError: a cluster does not answer; doing it again goes on.
    """
    if planned.refusals:
        raise ApplyRefusedError("\n".join(planned.refusals), "Correct what each line names.")
    wrong = why_not_said(by, why or "-")
    if wrong is not None:
        raise DecisionRefusedError(f"apply is refused: {wrong}", "Say who applies.")
    decided = _decided(planned.configuration)
    leading = _leading(decided)
    base = planned.base.number if planned.base else 0
    applied = _write(planned, leading, base, by, why)
    for name in decided:
        if name != leading:
            _write(planned, name, _number(decided[name]), by, why)
    return applied


def _write(planned: Plan, name: str, base: int, by: str, why: str) -> Version:
    """In one cluster, unless it has it; the log decides whether it is the next version there."""
    configuration = planned.configuration
    entry = apply_entry(planned.number, base, planned.document, by, why, planned.again)
    topics = configuration.ledger_topic, configuration.decisions_topic
    access, group = kafka_access(configuration, name), configuration.group(name)
    if base < planned.number:
        write_decisions(access, group, *topics, [entry], now_ms())
    applied = read_decided(configuration, name).applied
    if applied is None or (applied.number, applied.document) != (planned.number, planned.document):
        raise ApplyRefusedError(
            f"connector {name}: somebody else applied meanwhile: {applied}",
            "Look at the plan again: it is another one now.",
        )
    return applied


@dataclass(frozen=True, slots=True)
class Answers:
    """What the drivers of a connector made of a version.

    :param missing: ids of members of a fleet that report, and have said nothing yet.
    """

    said: tuple[Answer, ...]
    missing: tuple[str, ...]

    @property
    def are_all(self) -> bool:
        """Whether every driver that runs has answered; without a fleet there is one."""
        return bool(self.said) and not self.missing


def answers(configuration: Configuration, number: int, seconds: float) -> dict[str, Answers]:
    """By connector; waits for the drivers for so long at most."""
    until = time.monotonic() + seconds
    found: dict[str, Answers] = {}
    while True:
        for name in _names(configuration):
            if name not in found or not found[name].are_all:
                found[name] = _answers(configuration, name, number)
        if all(each.are_all for each in found.values()) or time.monotonic() >= until:
            return found
        time.sleep(ANSWER_EVERY_SECONDS)


def _answers(configuration: Configuration, name: str, number: int) -> Answers:
    heard = read_reports(configuration, name)
    said = [e for e in read_decided(configuration, name).answers if e.number == number]
    reporting = {m.owner for m in members_of(name, heard, {}, now_ms()) if m.state == "reports"}
    return Answers(tuple(said), tuple(sorted(reporting - {each.owner for each in said})))


def apply_own_file(configuration: Configuration, *, by: str, why: str) -> list[str]:
    """Apply the file that a configuration was read from, as it is by now; gives what was done, in
    words.

    :raises ApplyRefusedError: it cannot be used, or as `apply`.
    """
    try:
        planned = plan(load(configuration.path, os.environ))
    except ConfigurationError as error:
        raise ApplyRefusedError(str(error), error.hint) from None
    if not planned.does_something:
        return [f"nothing has changed since {planned.base}"]
    version = apply(planned, by=by, why=why)
    return [str(version), *planned.lines]


class OwnFile:
    """A driver's own file, which a signal applies if it has changed. Any thread may call it.

    :param configuration: the file as the driver read it at its start.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._applying = threading.Lock()
        #: As it was read last; not if it was refused then, so that it is tried again.
        self._document = document_of(configuration)

    def apply_if_changed(self, configuration: Configuration, *, by: str) -> list[str]:
        """Apply the file, if it is new; gives what was done, in words. What was applied before and
        is not any more stays so: a person rolled back. What the file said before, too, is not
        applied over what somebody has applied since.

        :param configuration: the file as it is by now.
        :raises SluiceError: it is refused.
        """
        with self._applying:
            done = self._apply(configuration, by)
            self._document = document_of(configuration)
            return done

    def _apply(self, configuration: Configuration, by: str) -> list[str]:
        document, found = document_of(configuration), versions(configuration)
        earlier = [version for version in found.versions if version.document == document]
        is_applied = found.applied is not None and found.applied.document == document
        why = ""
        if document == self._document:
            if found.applied is None:
                return []
            why = f"has not changed since this driver read it, and {found.applied} is another one"
        elif earlier:
            why = f"is what {earlier[-1]} was, and something else was applied since"
        if why and not is_applied:
            path = configuration.path
            return [f"{path} {why}: it is not applied. Try: sluice apply {path}"]
        planned = plan(configuration)
        if not planned.does_something or (planned.lines and document == self._document):
            return []
        version = apply(planned, by=by, why=f"{configuration.path} has changed")
        return [f"{version.name}: {line}" for line in planned.lines]


def _names(configuration: Configuration) -> list[str]:
    return sorted(connector.name for connector in configuration.connectors)


def _leading(decided: Mapping[str, Decided]) -> str:
    """The connector whose cluster decides which version is next: it has the newest one, and the
    most; one that is new has none, wherever its name stands."""
    return max(decided, key=lambda name: (_number(decided[name]), len(decided[name].versions)))


def _number(decided: Decided) -> int:
    return decided.applied.number if decided.applied else 0


def _decided(configuration: Configuration) -> dict[str, Decided]:
    return {name: read_decided(configuration, name) for name in _names(configuration)}


def _lines(configuration: Configuration, base: Version | None, document: str) -> Iterator[str]:
    if base is None:
        tables = ", ".join(sorted(table.name for table in configuration.tables))
        yield (
            f"nothing was applied before: from now on drivers load by this version, whatever "
            f"tables and topics their files have: {tables}"
        )
        return
    tables_now = tables_by_written_name(configuration)
    for each in differences(base.document, document):
        line = _WORDS[each.kind, each.what].format(
            name=each.name, connector=each.connector, keys="; ".join(each.keys)
        )
        if (each.kind, each.what) == ("add", "table"):
            line += f" into {tables_now[each.name].target}"
        yield line


_WORDS: Mapping[tuple[str, str], str] = {
    ("add", "table"): "add table {name}: it is loaded from the next messages of its topics on",
    ("change", "table"): "change table {name}: {keys}. What is in doubt is finished as it was "
    "begun",
    ("remove", "table"): "retire table {name}: what is in doubt is settled, and nothing more is "
    "loaded into it; its rows stay",
    ("add", "topic"): "add topic {name} of connector {connector}: from `start` on, or from where "
    "it was settled if it was loaded before",
    ("remove", "topic"): "retire topic {name} of connector {connector}: what is in doubt is "
    "settled, then it is let go",
    ("change", "connector"): "change connector {name}: {keys}",
    ("add", "connector"): "add connector {name}: a driver has to be started with a file that has "
    "it; one that runs without it refuses this version where tables need it",
    ("remove", "connector"): "retire connector {name}: no version says any more what it loads; "
    "end its driver with `sluice drain` first",
}


def _refusals(planned: Plan, before: Sequence[Version], frozen: Sequence[Frozen]) -> Iterator[str]:
    size = len(planned.document.encode())
    if size > DOCUMENT_BYTES_MAX:
        yield f"it has {size:,} bytes, and {DOCUMENT_BYTES_MAX:,} are possible"
    yield from _other_targets(before, planned)
    yield from _frozen_targets(planned, frozen)
    yield from _not_for_members(planned.configuration)
    found = _errors(planned.configuration)
    if not found:
        return
    base = _loaded_now(planned)
    known = [] if base is None else _errors(base)
    for finding in found:
        if finding not in known:
            fix = f" Try: {finding.fix}" if finding.fix else ""
            yield f"{finding.where}: {finding.what}.{fix}"


def _loaded_now(planned: Plan) -> Configuration | None:
    """By what is applied until then; None: nothing is, or it does not fit the file by now."""
    base = planned.base
    if base is None:
        return None
    try:
        return under(planned.configuration, base.document, base.name, os.environ)
    except SluiceError:
        return None


def _other_targets(before: Sequence[Version], planned: Plan) -> Iterator[str]:
    """Drivers that run know the deduplication windows of an entry by its name (R10): what is in
    doubt in the one table would be judged by the window of the other. They know it still where it
    was retired meanwhile.

    :param before: all versions, the oldest first.
    """
    unseen = set(tables_by_written_name(planned.configuration))
    for version in reversed(before):
        found = [d for d in differences(version.document, planned.document) if d.what == "table"]
        since = "" if version == planned.base else f" since {version.name}"
        for each in found:
            for key in each.keys if each.name in unseen else ():
                if key.partition(":")[0] == "target":
                    yield (
                        f"table {each.name}: {key}{since}, and an entry keeps its table while "
                        f"drivers run. Try: give the entry another name than {each.name}; this one "
                        "is retired then, and the new one loads from the next messages on"
                    )
        unseen &= {each.name for each in found if each.kind == "add"}
        if not unseen:
            return


def _frozen_targets(planned: Plan, frozen: Sequence[Frozen]) -> Iterator[str]:
    """A freeze of a table is of the entry's name: under another one the table would be loaded."""
    held = {each.subject.name: each for each in frozen if each.subject.what == "table"}
    base = _loaded_now(planned) if held else None
    if base is None:
        return
    names = {table.name for table in base.tables}
    of_target = {table.target: held[table.name] for table in base.tables if table.name in held}
    for table in planned.configuration.tables:
        if table.name not in names and table.target in of_target:
            yield (
                f"table {table.name}: it is loaded into {table.target}, and "
                f"{of_target[table.target].line()}. Try: `sluice resume` it first"
            )


def _not_for_members(configuration: Configuration) -> Iterator[str]:
    """While members of a fleet run, each of them would refuse what only a driver alone may load;
    one that is started again would end, since it may not run beside the others."""
    sharing = [name for name in _names(configuration) if _is_shared(configuration, name)]
    if not sharing:
        return

    def has_tokens() -> bool:
        now = resolved(configuration)
        return read_today(now, [read_spec(now, name) for name in sharing]).tokens

    try:
        refuse_what_members_cannot(configuration, has_tokens)
    except NotWhileRunningError as error:
        yield (
            f"connector {', '.join(sharing)}: {error}. Try: stop all members (`sluice drain`), "
            "apply it then, and start one, which takes all partitions"
        )
    except SluiceError as error:
        yield f"nobody knows whether servers know tokens: {error}. Try: {error.hint}"


def _is_shared(configuration: Configuration, name: str) -> bool:
    heard, at_ms = read_reports(configuration, name).values(), now_ms()
    return any(is_reporting(each, at_ms) and not each.report.is_alone for each in heard)


def _errors(configuration: Configuration) -> list[Finding]:
    """What the doctor says that breaks the promise."""
    return [finding for finding in examine(configuration) if finding.level == "error"]
