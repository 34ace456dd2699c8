"""What persons have decided for drivers that run, as the ledger and the topic of decisions have it:
what is frozen (R23), which values count instead of the configuration's, and who is to end.

Pure: `sluice.kafka.decisions` reads and writes it, `sluice.driver.deciding` hears of it, and
`sluice.driver.freezing` obeys it.

There stand versions of what a pipeline loads, too, as they were applied. Of two persons who apply
at once the log decides: a version names the one that it follows, and who reads it passes it over
where another one stands by then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from sluice.core.flights import INFLIGHT_INSERTS_LIMIT
from sluice.core.ledger import LedgerEntry
from sluice.core.moments import shown_time
from sluice.core.replicas import host_matches

#: What may be frozen. Each stands and is resumed by itself: a table that was frozen stays so when
#: its pipeline is resumed.
What = Literal["pipeline", "connector", "table", "replica", "data center"]
_WHAT: tuple[What, ...] = get_args(What)
#: What is frozen by the hosts of its servers.
_PLACES = ("replica", "data center")

#: Types of ledger entries.
FREEZE, RESUME = "freeze", "resume"

BY_MAX, WHY_MAX, ERROR_MAX = 100, 500, 2_000
HOST_MAX = 255


@dataclass(frozen=True, slots=True)
class Subject:
    """What is frozen or resumed, within one connector.

    :param name: of a table entry, a replica (host:port) or a data center.
    """

    what: What = "pipeline"
    name: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.name}" if self.name else f"the {self.what}"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Something stands still since a person said so.

    :param hosts: of the servers that get no blocks, as `core.replicas.host_matches` takes them;
        none, unless it is a replica or a data center.
    """

    subject: Subject
    by: str
    why: str
    at_ms: int
    hosts: tuple[str, ...] = ()

    def covers(self, url: str) -> bool:
        """Whether a server gets no blocks by this."""
        return any(host_matches(url, host) for host in self.hosts)

    def line(self) -> str:
        """In words."""
        return f"{self.subject} is frozen by {self.by} since {shown_time(self.at_ms)}: {self.why}"


#: Everything that is frozen in one connector, the oldest first.
Standing = tuple[Frozen, ...]


def decision_entry(
    decision: str, subject: Subject, by: str, why: str, hosts: Sequence[str] = ()
) -> LedgerEntry:
    """An entry of the ledger that freezes or resumes; `hosts` as in `Frozen`."""
    table = subject.name if subject.what == "table" else ""
    body = {"type": decision, "what": subject.what, "table": table, "by": by, "why": why}
    place = {"name": subject.name, "hosts": list(hosts)} if subject.what in _PLACES else {}
    return LedgerEntry(None, body | place)


def subject_of(entry: Mapping[str, Any]) -> Subject:
    """What an entry freezes or resumes.

    :raises KeyError, ValueError: it is no such entry.
    """
    what = entry["what"]
    if what not in _WHAT:
        raise ValueError(f"{what!r} cannot be frozen")
    name = entry["name"] if what in _PLACES else entry["table"]
    return Subject(what, printable(name, HOST_MAX) if what in _PLACES else str(name))


def standing_after(standing: Standing, entry: Mapping[str, Any]) -> Standing:
    """What is frozen after an entry of the same connector. Other entries change nothing.

    :raises KeyError, ValueError: a decision that is none.
    """
    if entry["type"] not in (FREEZE, RESUME):
        return standing
    subject = subject_of(entry)
    others = tuple(each for each in standing if each.subject != subject)
    if entry["type"] == RESUME:
        return others
    by, why = printable(entry["by"], BY_MAX), printable(entry["why"], WHY_MAX)
    hosts = tuple(str(host) for host in entry["hosts"]) if subject.what in _PLACES else ()
    if subject.what in _PLACES and not hosts:
        raise ValueError(f"{subject} has no hosts")
    return (*others, Frozen(subject, by, why, int(entry["at_ms"]), hosts))


def printable(text: object, length_max: int) -> str:
    """What a decision says of itself; who wrote it need not have been Sluice."""
    return "".join(each if each.isprintable() else " " for each in str(text))[:length_max]


def holding(
    standing: Standing, entries: Iterable[str], places: Collection[Frozen] = ()
) -> Standing:
    """What of it holds partitions whose messages go to these table entries.

    :param places: what keeps blocks of theirs from all servers that could take them.
    """
    named = set(entries)
    return tuple(
        each
        for each in standing
        if (each in places if each.hosts else each.subject.what != "table")
        or (each.subject.what == "table" and each.subject.name in named)
    )


def closed_shards(
    standing: Standing, shards: Mapping[str, Sequence[str]], *, in_part: bool = False
) -> dict[str, frozenset[Frozen]]:
    """Of each shard none of whose servers may take blocks, what keeps them from it.

    :param shards: URLs of the servers of each.
    :param in_part: of each shard of which any server may take none.
    """
    places = [each for each in standing if each.hosts]
    found: dict[str, frozenset[Frozen]] = {}
    for shard, urls in shards.items() if places else ():
        covering = [[each for each in places if each.covers(url)] for url in urls]
        if any(covering) and (in_part or all(covering)):
            found[shard] = frozenset(each for of_url in covering for each in of_url)
    return found


def why_not_said(by: str, why: str) -> str | None:
    """What is wrong with what a person says of a decision; None if nothing is."""
    for name, text, length_max in (("the name", by, BY_MAX), ("the reason", why, WHY_MAX)):
        if not text.strip():
            return f"{name} is missing"
        if len(text) > length_max:
            return f"{name} has {len(text)} characters; {length_max} are possible"
        if not text.isprintable():
            return f"{name} has characters that cannot be printed"
    return None


#: Types of ledger entries.
SET, DRAIN, RELOAD = "set", "drain", "reload"
#: What was done to dead letters; drivers that run have nothing to do about it.
REPLAY, PURGE = "replay", "purge"
#: A version of what is loaded, and what a driver made of it.
APPLY, TAKEN = "apply", "taken"
DECISIONS = (FREEZE, RESUME, SET, DRAIN, RELOAD, REPLAY, PURGE, APPLY, TAKEN)
#: Sentences that an entry holds of what was done.
STEPS_MAX = 100

#: What may be set: the level of a driver's logs, and `[clickhouse] max_inflight_inserts`.
LOG_LEVEL, MAX_INFLIGHT_INSERTS = "log_level", "max_inflight_inserts"
LOG_LEVELS = ("debug", "info", "warning", "error")

#: None: as the driver was started.
Value = int | str | None


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that counts instead of the configuration's since a person said so."""

    name: str
    value: int | str
    by: str
    why: str
    at_ms: int

    def line(self) -> str:
        """In words."""
        since = shown_time(self.at_ms)
        return f"{self.name} is {self.value} by {self.by} since {since}: {self.why}"


@dataclass(frozen=True, slots=True)
class Asked:
    """A person has asked the driver that runs for something, once.

    :param what: DRAIN: to settle what is out, and to end; RELOAD: to look at the tables' columns,
        at topics and at the replicas now.
    :param member: of a fleet that is meant, of DRAIN; "": each driver that runs.
    """

    what: str
    by: str
    why: str
    at_ms: int
    member: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """Everything that was decided for one connector and was not taken back.

    :param asked: all that was asked for. Only who runs by then does it.
    :param versions: what was applied, the oldest first.
    :param answers: what drivers made of the newest one, the last word of each.
    """

    frozen: Standing = ()
    settings: tuple[Setting, ...] = ()
    asked: frozenset[Asked] = frozenset()
    versions: tuple[Version, ...] = ()
    answers: tuple[Answer, ...] = ()

    @property
    def applied(self) -> Version | None:
        """What is loaded; None: nothing was ever applied, and drivers go by their files."""
        return self.versions[-1] if self.versions else None

    @property
    def previous(self) -> Version | None:
        """The version before what is loaded; None: there is none. What was rolled back is passed
        over: who goes back twice must not have it again."""
        found = self.applied
        while found is not None and found.again:
            found = next((v for v in self.versions if v.number == found.again), None)
        older = [v for v in self.versions if found is not None and v.number < found.number]
        return older[-1] if older else None

    def value_of(self, name: str) -> Value:
        """What a setting is; None: nothing was decided."""
        return next((each.value for each in self.settings if each.name == name), None)

    @property
    def max_inflight_inserts(self) -> int | None:
        """The limit that counts instead of the configuration's, if one does."""
        found = self.value_of(MAX_INFLIGHT_INSERTS)
        return found if isinstance(found, int) else None

    def after(self, entry: Mapping[str, Any]) -> Decided:
        """What is decided after an entry of the same connector. Other entries change nothing.

        :raises KeyError, ValueError: a decision that is none.
        """
        if entry["type"] in (APPLY, TAKEN):
            return self._after_applied(entry)
        if entry["type"] not in (SET, DRAIN, RELOAD):
            return replace(self, frozen=standing_after(self.frozen, entry))
        by, why = printable(entry["by"], BY_MAX), printable(entry["why"], WHY_MAX)
        at_ms = int(entry["at_ms"])
        if entry["type"] != SET:
            member = printable(entry["member"], HOST_MAX)
            asked = Asked(str(entry["type"]), by, why, at_ms, member)
            return replace(self, asked=self.asked | {asked})
        name, value = str(entry["name"]), entry["value"]
        wrong = why_no_value(name, value)
        if wrong is not None:
            raise ValueError(wrong)
        settings = tuple(each for each in self.settings if each.name != name)
        if value is not None:
            settings = (*settings, Setting(name, value, by, why, at_ms))
        return replace(self, settings=settings)

    def _after_applied(self, entry: Mapping[str, Any]) -> Decided:
        current = self.applied.number if self.applied else 0
        if entry["type"] == TAKEN:
            error, owner = printable(entry["error"], ERROR_MAX), printable(entry["owner"], BY_MAX)
            answer = Answer(int(entry["version"]), owner, error, int(entry["at_ms"]))
            others = tuple(each for each in self.answers if each.owner != owner)
            return replace(self, answers=(*others, answer)) if answer.number == current else self
        found = version_of(entry)
        # Who reads a topic whose first messages were removed begins with what is there.
        if self.versions and (found.base != current or found.number <= current):
            return self
        found = replace(found, by=printable(found.by, BY_MAX), why=printable(found.why, WHY_MAX))
        return replace(self, versions=(*self.versions, found), answers=())


def set_entry(name: str, value: Value, by: str, why: str) -> LedgerEntry:
    """An entry of the ledger that sets a value, or takes it back."""
    return LedgerEntry(None, {"type": SET, "name": name, "value": value, "by": by, "why": why})


def asked_entry(what: str, by: str, why: str, member: str = "") -> LedgerEntry:
    """An entry of the ledger that asks drivers that run for something; see `Asked`."""
    return LedgerEntry(None, {"type": what, "member": member, "by": by, "why": why})


def done_entry(what: str, steps: Sequence[str], by: str, why: str) -> LedgerEntry:
    """An entry of the ledger that says what is done to dead letters: REPLAY or PURGE."""
    body = {"type": what, "steps": list(steps[:STEPS_MAX]), "by": by, "why": why}
    return LedgerEntry(None, body)


def why_no_value(name: str, value: object) -> str | None:
    """What is wrong with a value of a setting; None if nothing is."""
    if name not in (LOG_LEVEL, MAX_INFLIGHT_INSERTS):
        return f"{name} cannot be set"
    if value is None:
        return None
    if name == LOG_LEVEL:
        return None if value in LOG_LEVELS else f"{name} has to be one of {', '.join(LOG_LEVELS)}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and 1 <= value <= INFLIGHT_INSERTS_LIMIT:  # type: ignore[operator]
        return None
    return f"{name} has to be a whole number from 1 to {INFLIGHT_INSERTS_LIMIT}"


#: A message of a topic of the pipeline holds it, with room.
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Version:
    """What is loaded, from when it was applied.

    :param base: the version that stood in the same topic before; 0: none.
    :param document: see `config.applied`.
    :param again: the older version that a person went back to by it; 0: it is none.
    """

    number: int
    base: int
    document: str
    by: str
    why: str
    at_ms: int
    again: int = 0

    @property
    def name(self) -> str:
        return f"version {self.number}"

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.name}, applied by {self.by} at {shown_time(self.at_ms)}{why}"

    @property
    def digest(self) -> str:
        """What it is, whatever its number."""
        return digest_of(self.document)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a driver made of a version.

    :param error: why it goes on under what it has; "": it loads by the version.
    """

    number: int
    owner: str
    error: str
    at_ms: int


def digest_of(document: str) -> str:
    """Twelve hexadecimal digits."""
    return hashlib.sha256(document.encode()).hexdigest()[:12]


def apply_entry(
    number: int, base: int, document: str, by: str, why: str, again: int = 0
) -> LedgerEntry:
    """An entry of the ledger with a version."""
    body = {"type": APPLY, "version": number, "base": base, "digest": digest_of(document)}
    body |= {"again": again} if again else {}
    return LedgerEntry(None, {**body, "document": document, "by": by, "why": why})


def taken_entry(number: int, owner: str, error: str) -> LedgerEntry:
    """An entry of the ledger with a driver's answer."""
    return LedgerEntry(None, {"type": TAKEN, "version": number, "owner": owner, "error": error})


def version_of(entry: Mapping[str, Any]) -> Version:
    """What an entry applies.

    :raises KeyError, TypeError, ValueError: it is no such entry.
    """
    number, base, document = entry["version"], entry["base"], entry["document"]
    if not (isinstance(number, int) and isinstance(base, int) and number > base >= 0):
        raise ValueError(f"version {number!r} after {base!r}")
    again = int(entry.get("again", 0))
    if again >= number:
        raise ValueError(f"version {number} is version {again} again")
    if digest_of(document) != entry["digest"] or not isinstance(json.loads(document), dict):
        raise ValueError(f"version {number} is not the text that its digest names")
    by, why = str(entry["by"]), str(entry["why"])
    return Version(number, base, document, by, why, int(entry["at_ms"]), again)
