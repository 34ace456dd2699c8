"""Takes up what is applied while a driver runs: prepared in a thread, since tables and windows are
read for it; counted from one round of the loop on; answered, so that who applied it knows."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Mapping

from sluice.config import Configuration
from sluice.config.applied import document_of, under
from sluice.core.decided import Decided, Version, taken_entry
from sluice.core.errors import ConfigurationError, SluiceError, TransientError
from sluice.driver.fleet import why_alone
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.decisions import DecisionReader, write_decisions
from sluice.kafka.topics import partition_count

_logger = logging.getLogger("sluice.applying")

RETRY_SECONDS = 2.0


class NotWhileRunningError(ConfigurationError):
    """A version needs what this driver does not have since its start."""

    hint = "Start the driver again: it takes the version up then."


def newest_version(access: KafkaAccess, topic: str) -> Version | None:
    """What is applied; None if nothing ever was.

    :raises SluiceError: Kafka does not answer.
    """
    if not partition_count(access, topic):
        return None
    reader = DecisionReader(access, topic)
    try:
        return reader.read_all().applied
    finally:
        reader.close()


def loaded(
    configuration: Configuration, environment: Mapping[str, str], decided: Collection[str] = ()
) -> Configuration:
    """What is loaded, by the newest version; what the file says, where nothing was ever applied.

    A cluster that does not answer is logged and left out, since the others still run.

    :param decided: connectors that something is decided about by it: theirs are not left out.
    :raises ConfigurationError: the version does not fit the file.
    :raises SluiceError: nobody knows what one of those loads.
    """
    versions = list[Version]()
    for connector in configuration.connectors:
        try:
            access = kafka_access(configuration, connector.name)
            version = newest_version(access, configuration.decisions_topic)
        except SluiceError as error:
            if connector.name in decided:
                raise
            said = (connector.name, error, error.hint)
            _logger.warning("connector %s cannot say what is loaded: %s. Try: %s", *said)
        else:
            versions += [] if version is None else [version]
    newest = max(versions, key=lambda version: version.number, default=None)
    if newest is None or newest.document == document_of(configuration):
        return configuration
    _logger.warning(
        "%s has other tables or topics than %s, which is what is loaded, and what counts here",
        *(configuration.path, newest),
    )
    return under(configuration, newest.document, newest.name, environment)


def refuse_what_needs_a_start(before: Configuration, after: Configuration) -> None:
    """:raises NotWhileRunningError: a driver has to be started for it."""
    for what, then, now in (
        ("a store of claims", bool(before.deduplication), bool(after.deduplication)),
        ("the topic of duplicates", before.keeps_duplicates, after.keeps_duplicates),
    ):
        if then != now:
            raise NotWhileRunningError(f"it begins or ends to use {what}, and that needs a start")


def refuse_what_members_cannot(
    configuration: Configuration, has_tokens: Callable[[], bool]
) -> None:
    """See that the members of a fleet, which share partitions, may load by a version.

    :param has_tokens: whether all servers know tokens.
    :raises NotWhileRunningError: only a driver that has all partitions may.
    """
    why = why_alone(configuration, has_tokens, until_caught_up=False)
    if why:
        raise NotWhileRunningError(
            f"members of a fleet share the partitions, and {why}",
            "`sluice rollback` goes back to the version before. Or stop all members, and start "
            "one: it takes the version up, and all partitions.",
        )


def refuse_other_tables(entries: Collection[str]) -> None:
    """:param entries: whose windows the driver watches, of another table each.
    :raises NotWhileRunningError: there are some.
    """
    if entries:
        named = ", ".join(entries)
        raise NotWhileRunningError(
            f"table {named}: an entry keeps its table while a driver runs, and this one knows it "
            "with another",
            f"Give the entry another name than {named}, and apply that. Or start the driver again: "
            "it takes the version up then.",
        )


class Applying:
    """Takes up the versions of one connector, the newest one that it knows.

    :param version: that the driver began with; None: by its file.
    :param prepare: reads what a version needs, and puts it to the loop, which calls `taken`.
    :param answer: tells who applied a version what became of it: its number, and why not, or "".
    """

    def __init__(
        self,
        version: Version | None,
        prepare: Callable[[Version], None],
        answer: Callable[[int, str], None],
    ) -> None:
        self._number = version.number if version else 0
        self._prepare, self._answer = prepare, answer
        #: Versions to take up, and answers to give; None: the end.
        self._todo = queue.SimpleQueue[Version | tuple[int, str] | None]()
        self._thread = threading.Thread(target=self._run, name="applying", daemon=True)
        if version is not None:
            self.taken(version.number)

    def hear(self, decided: Decided) -> None:
        """What is decided now; called from any thread."""
        version = decided.applied
        if version is not None and version.number > self._number:
            self._number = version.number
            self._later(version)

    def taken(self, number: int) -> None:
        """The loop goes by this version from now on."""
        self._later((number, ""))

    def stop(self) -> None:
        """End the thread."""
        self._todo.put(None)

    def _later(self, item: Version | tuple[int, str]) -> None:
        self._todo.put(item)
        if not self._thread.is_alive() and self._thread.ident is None:
            self._thread.start()

    def _run(self) -> None:
        said, newest = "", 0
        item = self._todo.get()
        while item is not None:
            try:
                if not isinstance(item, Version):
                    self._answer(*item)
                elif item.number >= newest:  # an older one waited while an answer came
                    newest = item.number
                    self._prepare(item)
                    said = ""
            except TransientError as error:
                if str(error) != said:
                    said = str(error)
                    _logger.warning("what was applied cannot be taken up yet: %s", error)
                item = self._next(item)
                continue
            except SluiceError as error:
                self._refuse(item, error)
            except Exception as error:
                _logger.exception("taking up what was applied ends on a bug")
                self._refuse(item, error)
            item = self._todo.get()

    def _next(self, item: Version | tuple[int, str]) -> Version | tuple[int, str] | None:
        """Again after a while, unless a newer version has come; an answer comes first."""
        try:
            other = self._todo.get(timeout=RETRY_SECONDS)
        except queue.Empty:
            return item
        if isinstance(other, tuple):
            self._todo.put(item)
        return other

    def _refuse(self, item: Version | tuple[int, str], error: Exception) -> None:
        if not isinstance(item, Version):
            return
        hint = error.hint if isinstance(error, SluiceError) else ""
        _logger.error(
            "not taken up is %s; the tables and topics of before stay: %s. Try: %s",
            *(item, error, hint),
        )
        self._todo.put((item.number, str(error)))


def answer(
    configuration: Configuration, connector: str, owner: str, now_ms: int, number: int, error: str
) -> None:
    """Write what this driver made of a version; that it cannot is no reason to do anything else."""
    topics = configuration.ledger_topic, configuration.decisions_topic
    entry = taken_entry(number, owner, error)
    try:
        access, group = kafka_access(configuration, connector), configuration.group(connector)
        write_decisions(access, group, *topics, [entry], now_ms)
    except SluiceError as failure:
        _logger.warning("that version %d was answered cannot be written: %s", number, failure)
