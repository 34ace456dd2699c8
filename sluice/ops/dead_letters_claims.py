"""Claims that a dead letter's message may have: given up before the message is produced again, or
its copy would be left out as a duplicate of it (R20)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from functools import partial

from sluice.config import Configuration
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.driver.specs import read_spec, registry_access
from sluice.kafka.log import SourceLog
from sluice.ops.claims import store_of
from sluice.verify.message_keys import MessageKeys
from sluice.worker.routing import Router


class ClaimsOfLetters:
    """Of one connector. A message that was parked after an attempt has claimed for it may have
    claims; so may one that only today's table lets be a row. Others have none.

    :param log: of its topics.
    """

    def __init__(self, configuration: Configuration, connector: str, log: SourceLog) -> None:
        self._configuration = configuration
        self._connector = connector
        self._log = log
        self._entries = {t.name for t in configuration.tables if t.deduplicate is not None}
        self._spec: LoadSpec | None = None
        self._hashing: dict[str, MessageKeys] = {}

    def give_up(self, letters: Iterable[DeadLetter]) -> None:
        """Take the claims back that these messages have for the table entries that missed them.
        Those of other messages stay, whatever their keys.

        :param letters: with whole values.
        :raises SluiceError: Kafka, a server or the store does not answer; nothing else is done.
        """
        by_place: dict[tuple[str, TopicPartition], dict[int, DeadLetter]] = {}
        for letter in letters:
            if letter.table in self._entries and letter.value is not None:
                place = (letter.table, TopicPartition(letter.topic, letter.partition))
                by_place.setdefault(place, {})[letter.offset] = letter
        if not by_place:
            return
        names = sorted({source.topic for _, source in by_place})
        topic_ids = {topic: found for topic, (found, _) in self._log.topics(names).items()}
        with closing(store_of(self._configuration)) as store:
            for (entry, source), found in by_place.items():
                hashing = self._hashing_of(entry)
                if hashing is None or source.topic not in topic_ids:
                    continue
                some = [found[offset] for offset in sorted(found)]
                keyed = hashing.of(source, topic_ids[source.topic], partial(_deliver, some))
                if len(keyed.keys):
                    store.release(keyed.keys, keyed.owners)

    def _hashing_of(self, entry: str) -> MessageKeys | None:
        """What computes keys under today's load spec, under which the copy is loaded; None: the
        connector loads no such entry."""
        if entry not in self._hashing:
            if self._spec is None:
                self._spec = read_spec(self._configuration, self._connector)
            for table in self._spec.tables:
                if table.entry == entry:
                    registry = registry_access(self._configuration)
                    self._hashing[entry] = MessageKeys(self._spec, table, registry)
        return self._hashing.get(entry)


def _deliver(letters: list[DeadLetter], router: Router) -> None:
    """The messages as they stand in their dead letters, ascending."""
    router.look([(each.key, each.headers, each.timestamp_ms) for each in letters])
    values = [each.value or b"" for each in letters]
    router.deliver(values, [each.offset for each in letters])
