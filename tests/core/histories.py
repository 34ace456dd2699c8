"""Histories of one partition, written step by step as a pipeline would, or as it must not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from sluice.core.anomalies import Acknowledged, Event, Forgotten, Instance, Place, Settled, SpecSeen
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record, encode

SOURCE = TopicPartition("orders", 3)
TABLES = ("orders", "copies")
TEXTS = ("0123456789abcdef", "fedcba9876543210")


def instance(record: Record, place: int = 0, **changes: Any) -> Instance:
    """A record as a log holds it."""
    made = Instance(
        connector="dc1",
        source=SOURCE,
        place=Place("log", 0, place),
        at_ms=1_800_000_000_000 + place,
        offset=record.begin,
        metadata=encode(record),
        record=record,
    )
    return replace(made, **changes)


@dataclass
class Writer:
    """Writes one partition's history.

    :param ledger: receipts, settles and load specs are written too.
    """

    ledger: bool
    start: int = 100
    events: list[Event] = field(default_factory=list)
    people: int = 0
    drivers: int = 1

    def __post_init__(self) -> None:
        if self.ledger:
            for spec in TEXTS:
                self.events.append(SpecSeen("dc1", self._place(), 0, spec, {SOURCE.topic: TABLES}))
        self.record = Record(
            kind=Kind.SETTLE,
            batch=1,
            attempt=0,
            begin=self.start,
            end=self.start,
            owner="run-1",
            generation=0,
            topic_id="abcdefghijk",
            spec=TEXTS[0],
            reservation=0,
            deadline_ms=0,
        )
        self.rest: dict[str, int] = {}
        self.write(self.record)

    def _place(self) -> Place:
        return Place("log", 0, 10 * len(self.events))

    def write(self, record: Record, why: str = "") -> None:
        """Commit a record, whatever it is."""
        self.record = record
        self.events.append(
            instance(
                record,
                10 * len(self.events),
                why=why if self.ledger else None,
                rest_offsets=dict(self.rest) if self.ledger and record.rest else None,
            )
        )

    def follow(self, **changes: Any) -> Record:
        """The next record, as a change of the last."""
        batch = changes.pop("batch", self.record.batch + 1)
        return replace(self.record, batch=batch, **changes)

    def loaded(self, holes: int = 0, bad: int = 0, skipped: int = 0) -> None:
        """Receipts and a settle of the range in doubt, which the next record goes past."""
        if not self.ledger:
            return
        record = self.record
        messages = max(0, record.end - record.begin - holes)
        skipped = min(skipped, messages)
        bad = min(bad, messages - skipped)
        rows = dict.fromkeys(TABLES, messages - skipped - bad)
        if record.rest:
            rows = {name: self.rest.get(name, 0) for name in TABLES}
            bad = 0
        for name, count in rows.items():
            if count:
                self.receipt(name, count)
        self.settled(messages, sum(rows.values()), skipped, {name: bad for name in TABLES if bad})

    def receipt(self, name: str, rows: int, **changes: Any) -> None:
        """One receipt."""
        record = self.record
        rest = f"/{record.rest}" if record.rest else ""
        token = f"p/0/dc1/x/{name}/s1/{record.begin}-{record.end}{rest}"
        if record.bundle:
            token = f"p/bundle/dc1/{record.bundle}/{name}/s1"
        made = Acknowledged(
            connector="dc1",
            source=SOURCE,
            place=self._place(),
            at_ms=0,
            begin=record.begin,
            end=record.end,
            batch=record.batch,
            attempt=record.attempt,
            entry=name,
            shard="s1",
            token=token,
            rows=rows,
            messages=rows,
        )
        if "rows" in changes:
            changes.setdefault("messages", changes["rows"])
        self.events.append(replace(made, **changes))

    def settled(self, messages: int, rows: int, skipped: int, bad: dict[str, int]) -> None:
        """One settle of the ledger."""
        record = self.record
        self.events.append(
            Settled(
                connector="dc1",
                source=SOURCE,
                place=self._place(),
                at_ms=0,
                begin=record.begin,
                end=record.end,
                batch=record.batch,
                messages=messages,
                rows=rows,
                skipped=skipped,
                bad=bad,
            )
        )

    # Legal steps

    def intend(self, length: int, holes: int = 0, bad: int = 0, skipped: int = 0) -> None:
        """Settle what is in doubt, and intend what comes next."""
        if self.record.in_doubt:
            self.loaded(holes, bad, skipped)
        begin = self.record.end
        spec = self.record.spec or TEXTS[0]
        self.write(
            self.follow(
                kind=Kind.INTEND,
                begin=begin,
                end=begin + length,
                attempt=1,
                reservation=4,
                deadline_ms=1,
                rest="",
                spec=spec,
            )
        )

    def settle(self, holes: int = 0, bad: int = 0) -> None:
        """Settle what is in doubt, or settle again."""
        if self.record.in_doubt:
            self.loaded(holes, bad)
        self.write(self._settle_at(self.record.end))

    def _settle_at(self, offset: int, **changes: Any) -> Record:
        made: dict[str, Any] = {
            "kind": Kind.SETTLE,
            "begin": offset,
            "end": offset,
            "attempt": 0,
            "reservation": 0,
            "deadline_ms": 0,
            "rest": "",
        }
        return self.follow(**made | changes)

    def renew(self, attempt: int = 1) -> None:
        """The same range again."""
        if self.record.in_doubt:
            attempt += self.record.attempt
            self.write(self.follow(kind=Kind.RENEW, attempt=attempt, deadline_ms=2))

    def shorten(self, by: int) -> None:
        """Too heavy, nobody inserted."""
        record = self.record
        if record.in_doubt and record.end - record.begin > 1:
            end = max(record.begin + 1, record.end - by)
            self.write(self.follow(kind=Kind.SHORTEN, end=end, rest=""))

    def probe(self, missing: int) -> None:
        """Only what is missing."""
        if self.record.in_doubt:
            missing = min(missing, self.record.end - self.record.begin)
            self.rest = {TABLES[0]: missing}
            attempt = self.record.attempt + 1
            self.write(self.follow(kind=Kind.PROBE, attempt=attempt, rest="aaaaaaaaaaaa"))

    def take_over(self, spec: str) -> None:
        """Another driver's first record; a settled partition goes on under its load spec."""
        self.drivers += 1
        owner = f"run-{self.drivers}"
        if self.record.in_doubt:
            self.write(self.follow(kind=Kind.RENEW, owner=owner, attempt=self.record.attempt + 1))
        else:
            self.write(self.follow(owner=owner, spec=spec))

    def decide(self, to: int) -> None:
        """A person goes on from an offset; then a driver takes over."""
        self.people += 1
        generation = self.record.generation + (to < self.record.end)
        owner = f"operator-{self.people}"
        self.write(self._settle_at(to, owner=owner, generation=generation), f"adopt --offset {to}")
        self.take_over(self.record.spec)

    def resolve(self, *, loaded: bool) -> None:
        """A person says what became of a range in doubt; then a driver takes over."""
        if not self.record.in_doubt:
            return
        self.people += 1
        owner = f"operator-{self.people}"
        if loaded:
            self.write(self._settle_at(self.record.end, owner=owner), "resolve --as loaded")
            self.take_over(self.record.spec)
            return
        self.rest = dict.fromkeys(TABLES, self.record.end - self.record.begin)
        self.write(
            self.follow(
                kind=Kind.PROBE,
                owner=owner,
                attempt=self.record.attempt + 1,
                deadline_ms=0,
                rest="bbbbbbbbbbbb",
            ),
            "resolve --as not-loaded",
        )
        self.drivers += 1
        self.write(
            self.follow(
                kind=Kind.RENEW,
                owner=f"run-{self.drivers}",
                attempt=self.record.attempt + 1,
                spec=TEXTS[1],
                deadline_ms=5,
            )
        )

    def forget_and_restore(self) -> None:
        """The offset expired; `adopt` brings the ledger's last record back."""
        self.events.append(Forgotten("dc1", SOURCE, self._place(), 0))
        self.people += 1
        kind = Kind.RENEW if self.record.in_doubt else Kind.SETTLE
        self.write(
            self.follow(kind=kind, owner=f"operator-{self.people}"),
            f"adopt --offset {self.record.begin}",
        )
        self.take_over(self.record.spec)


SMALL = st.integers(0, 5)
STEPS = (
    *("intend", "intend", "intend", "settle", "renew", "shorten", "probe", "take-over"),
    *("decide", "resolve", "forget"),
)


@st.composite
def legal_histories(draw: st.DrawFn, ledger: bool, min_steps: int = 0) -> Writer:
    """A history of random legal steps."""
    writer = Writer(ledger)
    for _ in range(draw(st.integers(min_steps, 30))):
        step = draw(st.sampled_from(STEPS))
        if step == "intend":
            writer.intend(draw(st.integers(1, 50)), draw(SMALL), draw(SMALL), draw(SMALL))
        elif step == "settle":
            writer.settle(draw(SMALL), draw(SMALL))
        elif step == "renew":
            writer.renew(draw(st.integers(0, 1)))
        elif step == "shorten":
            writer.shorten(draw(st.integers(1, 50)))
        elif step == "probe":
            writer.probe(draw(SMALL))
        elif step == "take-over":
            writer.take_over(draw(st.sampled_from(TEXTS)))
        elif step == "decide":
            writer.decide(draw(st.integers(0, 300)))
        elif step == "resolve":
            writer.resolve(loaded=draw(st.booleans()))
        else:
            writer.forget_and_restore()
    return writer
