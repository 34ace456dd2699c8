"""How long a loop waits for a registry that does not know a schema (R15).

A schema may be on its way to the registry that is asked, or the bytes are no header of a
registry. Nobody can tell, so it is asked again for a while; then the load spec says which schemas
there are, and messages of all others are dead letters.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.core.errors import TransientError
from sluice.core.ledger import Stored
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Outdated, UnknownSchemas
from sluice.driver.dead_letter_limiter import DeadLetterLimiter

PATIENCE_MS = 60_000
#: After a wait that was in vain, its topic waits for nothing during so many times the patience:
#: bytes that are no header name another schema in each message, so each range would wait.
REST_FACTOR = 10
#: The registry is asked again after so long at most.
AGAIN_MS_MAX = 5_000
#: So many numbers are remembered; of each table entry, those that the registry knows.
_NUMBERS_MAX = 4096


#: Why a range waits although its patience is over.
PARTLY_STORED = (
    "some rows of its messages, which may have several, are stored: only the schemas tell which "
    "are missing"
)
#: What to do where rows may be there that only the schemas explain.
WHEN_STORED = (
    "Register the schemas again under their numbers; or look at the table, and `sluice resolve`."
)


def stored_in_part(outdated: Outdated, stored: Stored) -> bool:
    """Whether a probe found some rows of an entry whose messages name unknown schemas. They were
    made when the registry knew all schemas of the range; as dead letters their messages would make
    none of these rows."""
    return any(stored.get(entry) for entry in outdated.schemas)


class UnknownSchemaError(TransientError):
    """The registry does not know a schema that messages name; nothing of the range was inserted."""

    hint = (
        "Register the schema, or look whether the registry is the right one and up to date. After "
        "[registry] patience such messages become dead letters."
    )


class SchemaPatience:
    """Judges the refusals of one connector.

    :param dead_letters: knows how many dead letters are too many.
    """

    def __init__(self, dead_letters: DeadLetterLimiter, patience_ms: int = PATIENCE_MS) -> None:
        self._dead_letters = dead_letters
        self._patience_ms = patience_ms
        self._since: dict[TopicPartition, tuple[int, int]] = {}
        self._waited_for: set[int] = set()
        self._rests_until_ms: dict[str, int] = {}
        self._known: dict[str, frozenset[int]] = {}

    def judge(self, block_range: Range, outdated: Outdated, now_ms: int) -> Outdated:
        """The refusal, if the load spec is to say by now which schemas there are.

        What it says is the same for as many ranges as possible, so that there are few load specs.

        :raises UnknownSchemaError: the registry is to be asked again.
        """
        if not self._is_over(block_range, outdated, now_ms):
            raise UnknownSchemaError(outdated.why)
        for entry, found in outdated.schemas.items():
            if self._dead_letters.would_stop(block_range.source, entry, found.messages, found.of):
                raise UnknownSchemaError(
                    f"{outdated.why}; so many dead letters are more than [dead_letters] max_ratio "
                    "allows, so the range waits",
                    "Look whether the registry has lost its schemas, or is another one. If the "
                    "messages are to become dead letters, set max_ratio higher and start again.",
                )
        self._since.pop(block_range.source, None)
        return replace(
            outdated,
            schemas={
                entry: replace(found, known=self._listed(entry, found))
                for entry, found in outdated.schemas.items()
            },
        )

    def _is_over(self, block_range: Range, outdated: Outdated, now_ms: int) -> bool:
        numbers = {n for found in outdated.schemas.values() for n in found.numbers}
        begin, since_ms = self._since.get(block_range.source, (-1, 0))
        if begin != block_range.begin or since_ms > now_ms:
            since_ms = now_ms
            self._since[block_range.source] = block_range.begin, now_ms
        rest_ms, topic = REST_FACTOR * self._patience_ms, block_range.source.topic
        is_resting = 0 < self._rests_until_ms.get(topic, 0) - now_ms <= rest_ms
        if numbers <= self._waited_for or is_resting:
            return True
        if now_ms - since_ms < self._patience_ms:
            return False
        self._rests_until_ms[topic] = now_ms + rest_ms
        if len(self._waited_for) > _NUMBERS_MAX:
            self._waited_for.clear()
        self._waited_for |= numbers
        return True

    def _listed(self, entry: str, found: UnknownSchemas) -> tuple[int, ...]:
        known = self._known.get(entry, frozenset()) | set(found.known)
        if len(known) > _NUMBERS_MAX:
            known = frozenset(found.known)
        self._known[entry] = known = frozenset(known - set(found.numbers))
        return tuple(sorted(known))
