"""Dead letters: what a replayed message carries, and how many dead letters are too many. Pure."""

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
