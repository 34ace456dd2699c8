"""Dead letters: what a replayed message carries, how many of them are too many, and their reasons:
short, stable codes, what each means, and what a person can do. Pure.

docs/DEAD_LETTERS.md has the reasons as a table, which `python -m sluice.core.dead_letters` prints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sluice.core.receipts import DeadLetter

#: A message with this header goes to this table entry only: it was a dead letter of that one.
TABLE_HEADER = "sluice.table"
ORIGIN_HEADER = "sluice.origin"
ORIGIN_TIMESTAMP_HEADER = "sluice.origin-timestamp"
ATTEMPT_HEADER = "sluice.attempt"
LETTER_HEADER = "sluice.letter"

#: What a replay writes into a message, beside the message's own headers.
REPLAY_HEADERS = (
    *(TABLE_HEADER, ORIGIN_HEADER, ORIGIN_TIMESTAMP_HEADER),
    *(ATTEMPT_HEADER, LETTER_HEADER),
)

#: The reason of dead letters of messages that nothing is wrong with: their table takes nothing for
#: now. They stand in the parking topic.
PARKED = "parked"
#: Of copies of messages whose event another message has already made a row of. Nothing is wrong
#: with them, and they count as duplicates, wherever their copies are.
DUPLICATE = "duplicate"
#: What is said of them beside: the values of the key, in JSON, and the place of the message that
#: has it, as topic/partition/offset; the topic by the id that `_source` of the rows names.
DUPLICATE_KEY, DUPLICATE_OF = FACTS = ("duplicate-key", "duplicate-of")

#: How many examples an error names.
_EXAMPLES_MAX = 3
_EXAMPLE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class DeadLetterLimit:
    """From when on dead letters stop their partition.

    :param max_ratio: share of the messages that may be dead letters; 1.0 never stops.
    :param min_dead_letters: fewer dead letters than these never stop.
    :param window_messages: of so many last messages, in whole ranges.
    """

    max_ratio: float = 1.0
    min_dead_letters: int = 100
    window_messages: int = 10_000

    @property
    def is_off(self) -> bool:
        """Whether nothing ever exceeds it."""
        return self.max_ratio >= 1.0


@dataclass(frozen=True, slots=True)
class Excess:
    """More dead letters of a table entry than a limit allows."""

    table: str
    dead_letters: int
    messages: int

    @property
    def ratio(self) -> float:
        """Their share."""
        return self.dead_letters / self.messages


@dataclass(frozen=True, slots=True)
class _Range:
    messages: int
    dead_letters: dict[str, int]
    passed: dict[str, int]


def _together(some: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {table: some.get(table, 0) + more.get(table, 0) for table in some.keys() | more.keys()}


#: A window has at least so many parts; ranges that are smaller share one. Of a thousand partitions
#: with two messages in a range, ten thousand messages each would be five million ranges.
_PARTS_MIN = 64


@dataclass(slots=True)
class DeadLetterWindow:
    """The last ranges of one partition: their messages, and dead letters by table entry.

    It holds whole ranges: the newest ones that have `window_messages` together, or all since
    the driver started. Small ones that follow each other come and go together.
    """

    limit: DeadLetterLimit
    messages: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    _passed: dict[str, int] = field(default_factory=dict)
    _ranges: deque[_Range] = field(default_factory=deque)

    def take(
        self,
        messages: int,
        dead_letters: Mapping[str, int],
        passed: Mapping[str, int] | None = None,
    ) -> Excess | None:
        """Take a loaded range in, unless with it a table entry exceeds the limit.

        :param passed: by table entry, messages that are for others.
        :returns: the worst table entry; the range is not taken in then.
        """
        added = _Range(messages, dict(dead_letters), dict(passed or {}))
        self._add(1, added)
        self._ranges.append(added)
        forgotten = self._forget()
        worst = self._worst()
        if worst is not None:
            self._ranges.pop()
            self._add(-1, added)
            for before in reversed(forgotten):
                self._ranges.appendleft(before)
                self._add(1, before)
        elif len(self._ranges) > 1:
            self._join(self._ranges[-2], added)
        return worst

    def _join(self, before: _Range, last: _Range) -> None:
        messages = before.messages + last.messages
        if messages <= self.limit.window_messages // _PARTS_MIN:
            self._ranges.pop()
            self._ranges[-1] = _Range(
                messages,
                _together(before.dead_letters, last.dead_letters),
                _together(before.passed, last.passed),
            )

    def messages_of(self, table: str) -> int:
        """How many of the messages a table entry was given."""
        return self.messages - self._passed.get(table, 0)

    def ratio(self, table: str) -> float:
        """Share of dead letters among the messages that a table entry was given."""
        messages = self.messages_of(table)
        return self.dead_letters.get(table, 0) / messages if messages else 0.0

    def _add(self, sign: int, added: _Range) -> None:
        self.messages += sign * added.messages
        for total, counts in (
            (self.dead_letters, added.dead_letters),
            (self._passed, added.passed),
        ):
            for table, count in counts.items():
                total[table] = total.get(table, 0) + sign * count

    def _forget(self) -> list[_Range]:
        forgotten: list[_Range] = []
        while self.messages - self._ranges[0].messages >= self.limit.window_messages:
            oldest = self._ranges.popleft()
            self._add(-1, oldest)
            forgotten.append(oldest)
        return forgotten

    def _worst(self) -> Excess | None:
        least, share = self.limit.min_dead_letters, self.limit.max_ratio
        found = [
            Excess(table, count, self.messages_of(table))
            for table, count in self.dead_letters.items()
            if count >= least and count > share * self.messages_of(table)
        ]
        return max(found, key=lambda excess: (excess.dead_letters, excess.table), default=None)


def dead_letters_by_table(dead_letters: Iterable[DeadLetter]) -> dict[str, int]:
    """How many there are of each table entry."""
    counts: dict[str, int] = {}
    for letter in dead_letters:
        counts[letter.table] = counts.get(letter.table, 0) + 1
    return counts


def examples(dead_letters: Iterable[DeadLetter], table: str) -> str:
    """The first dead letter for each of the first reasons, in words."""
    first: dict[str, DeadLetter] = {}
    for letter in dead_letters:
        if letter.table == table and letter.reason not in first:
            first[letter.reason] = letter
            if len(first) == _EXAMPLES_MAX:
                break
    return "; ".join(
        f"offset {letter.offset} {reason}: {letter.error[:_EXAMPLE_CHARACTERS_MAX]}"
        for reason, letter in first.items()
    )


@dataclass(frozen=True, slots=True)
class Reason:
    """
    :param means: what is so with the message; a sentence without its full stop.
    :param advice: what to do, in sentences.
    """

    means: str
    advice: str


#: What to do about a reason that this version does not know.
OTHER_ADVICE = "Fix what the error names, then replay."

#: By code.
REASONS = {
    "not-one-object": Reason(
        "it is not one whole JSON object", "The message is not one whole object: fix its producer."
    ),
    "not-one-row": Reason(
        'it has another number of rows than one, with `rows = "one"`',
        'The message does not hold exactly one row: fix its producer, or set rows = "many".',
    ),
    "cannot-parse": Reason(
        "a value, or the whole message, is not what its column or its format takes",
        "A value is not of its column's type: fix the producer, or change the column.",
    ),
    "out-of-range": Reason(
        "a value would be cut, wrapped or rounded in its column",
        "A value does not fit its column: widen the column, or set "
        'fractions = "cut" if only digits of a second are too many, then replay.',
    ),
    "null-in-column": Reason(
        "a null came for a column that takes none, or the key that is to be read is not there",
        "A null came for a column that takes none: make it Nullable, or set "
        'on_null = "default", then replay.',
    ),
    "unknown-field": Reason(
        'it has a field that the table does not, with `unknown_fields = "refuse"`',
        "The message has a field that the table does not: add the column, or set "
        'unknown_fields = "ignore", then replay.',
    ),
    "no-column": Reason(
        "it has no field of the table at all",
        "The message has no field of the table: fix the names, upper and lower case are told "
        "apart, or map them in [table.columns], then replay.",
    ),
    "required": Reason(
        "a column of `require`, or of the key of `deduplicate`, is absent or null",
        "A field that must be there is not: fix the producer, or take it out of require, then "
        "replay.",
    ),
    "check-failed": Reason(
        "a condition of `check` does not hold",
        "A check of the entry does not hold: fix the producer, or the check, then replay.",
    ),
    "unknown-schema": Reason(
        "the registry did not know its schema within `patience`",
        "The registry did not know the schema in time: register it, then replay.",
    ),
    "other-schema": Reason(
        "an SQLBatchRequest has another `schema_hashcode` than the option `schema_hash` lists",
        "The producer knows another structure of the table: list its number, or fix the producer, "
        "then replay.",
    ),
    "breaks-schema": Reason(
        "its schema in the registry does not allow it, with `validate`",
        "The message is not what its schema says: fix the producer, or set validate to false, then "
        "replay.",
    ),
    "cannot-decompress": Reason(
        "it is not compressed as `decompress` says, is damaged, or is too large",
        "The value is not compressed as the entry says: fix the producer, or decompress, then "
        "replay.",
    ),
    "no-row": Reason(
        "a change event has no row for the table: a truncation, or a deletion that no column tells",
        "The change event makes no row: for deletions read __op or __deleted into a column, then "
        "replay; for others nothing is to be done.",
    ),
    "unavailable-value": Reason(
        "a change event does not hold a value that did not change",
        "The database did not write a value that did not change: set REPLICA IDENTITY FULL in "
        "PostgreSQL. If the row is not complete, load it again from the database.",
    ),
    "no-route": Reason(
        "no entry of its topic takes it",
        "No table entry takes the message: add one, or a route, then replay.",
    ),
    "parked": Reason(
        "in the parking topic: its table takes nothing for now",
        "Nothing is wrong with the message: fix its table, then replay.",
    ),
    "duplicate": Reason(
        "in the topic of duplicates: another message has made the row of its event",
        "Another message has made the row of its event: nothing is to be done.",
    ),
}


def table() -> str:
    """All reasons as a table of Markdown."""
    lines = ["| reason | the message | what to do |", "|---|---|---|"]
    lines += [f"| `{code}` | {one.means} | {one.advice} |" for code, one in REASONS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
