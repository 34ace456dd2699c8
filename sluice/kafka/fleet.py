"""The topic of a fleet: reports of its members are written to it, and read back."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import confluent_kafka as ck

from sluice.core.errors import SluiceError, TransientError
from sluice.core.fleet.fold import Fold
from sluice.core.fleet.records import Gone, Report, UnreadableError, decode, encode, key_of
from sluice.kafka.clients import KafkaAccess, make_admin, make_reporter
from sluice.kafka.errors import kafka_error
from sluice.kafka.log import SourceLog
from sluice.kafka.tail import LogBeginLostError, Tail
from sluice.kafka.topics import FLEET_TOPIC_SETTINGS, ensure_own_topic

_logger = logging.getLogger("sluice.fleet")

#: A broker answers a fetch of a topic without news after so long.
_FETCH_WAIT_MS = 5_000
#: A topic that was just made may take a moment until it has a leader.
_LEADER_SECONDS = 15.0
#: Whether it is another topic by now is asked so often.
_IDENTIFY_SECONDS = 10.0


class Message(NamedTuple):
    """A report of this connector, or that an id is gone.

    :param append_ms: when the broker took it.
    """

    offset: int
    append_ms: int
    content: Report | Gone


class FleetTopic:
    """The topic of one connector's fleet. Not thread-safe.

    A topic that was made anew, or has lost what was to be read next, is read from its beginning.

    :param is_made: it is made, unless it is there.
    :raises SluiceError: it cannot be made or read.
    """

    def __init__(self, access: KafkaAccess, name: str, *, is_made: bool) -> None:
        self._access, self._name, self._is_made = access, name, is_made
        self._admin = make_admin(access)
        self._tail: Tail | None = None
        self._producer: ck.Producer | None = None
        self._identity, self._identified_at = "", 0.0
        self._failure: SluiceError | None = None
        #: Messages that were passed over, since this version cannot read them.
        self.unreadable = 0
        self._open()

    @property
    def caught_up(self) -> bool:
        """Whether all that was there when its end was last asked for was read."""
        return self._tail is not None and self._tail.caught_up

    @property
    def end(self) -> int:
        """Its end, as last asked for."""
        return 0 if self._tail is None else self._tail.stable_end

    def poll(self, timeout_seconds: float) -> list[Message]:
        """What has come.

        :raises SluiceError: it cannot be read, or written, now; the next call begins anew.
        """
        try:
            if self._tail is None or self._is_another():
                self._open()
            assert self._tail is not None
            found = self._tail.poll(timeout_seconds)
            if self._producer is not None:
                self._producer.poll(0)
        except LogBeginLostError as error:
            _logger.warning("%s; it is read from its beginning", error)
            self._close_tail()
            return []
        except BaseException:
            self._close_tail()
            raise
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        read = ((each, self._read(each.key, each.value)) for each in found)
        return [Message(m.offset, m.timestamp_ms, what) for m, what in read if what is not None]

    def send(self, report: Report) -> None:
        """Write a report; that it came is known when it is read back."""
        self._write(key_of(self._access.connector, report.owner), encode(report))

    def bury(self, owner: str) -> None:
        """Write that an id is gone."""
        self._write(key_of(self._access.connector, owner), None)

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until all is written; whether it is."""
        return self._producer is None or self._producer.flush(timeout_seconds) == 0

    def close(self) -> None:
        """Close the clients."""
        self._close_tail()
        self._producer = None

    def _open(self) -> None:
        self._close_tail()
        until = time.monotonic()
        if self._is_made and ensure_own_topic(self._admin, self._name, FLEET_TOPIC_SETTINGS):
            _logger.info("topic %s was made", self._name)
            until += _LEADER_SECONDS
        while self._tail is None:
            try:
                self._tail = Tail(
                    self._access, self._name, begin=0, fetch_wait_max_ms=_FETCH_WAIT_MS
                )
            except TransientError:
                if time.monotonic() >= until:
                    raise
                time.sleep(0.1)
        self._identity = self._identify()

    def _identify(self) -> str:
        self._identified_at = time.monotonic()
        found = SourceLog(self._admin).topics([self._name], partial=True)
        return found[self._name][0] if self._name in found else ""

    def _is_another(self) -> bool:
        if time.monotonic() - self._identified_at < _IDENTIFY_SECONDS:
            return False
        is_another = self._identify() != self._identity
        if is_another:
            _logger.warning("topic %s was made anew; it is read from its beginning", self._name)
        return is_another

    def _read(self, key: bytes | None, value: bytes | None) -> Report | Gone | None:
        try:
            return decode(self._access.connector, key, value)
        except UnreadableError as error:
            self.unreadable += 1
            if self.unreadable == 1:
                _logger.warning("topic %s: %s. %s", self._name, error, error.hint)
            return None

    def _write(self, key: bytes, value: bytes | None) -> None:
        try:
            if self._producer is None:
                self._producer = make_reporter(self._access)
            self._producer.produce(self._name, key=key, value=value, on_delivery=self._written)
            self._producer.poll(0)
        except ck.KafkaException as error:
            raise kafka_error(f"writing to topic {self._name}", error) from None
        except BufferError:
            _logger.debug("too much waits for topic %s", self._name)

    def _written(self, error: ck.KafkaError | None, _: ck.Message) -> None:
        if error is not None:
            self._failure = kafka_error(f"writing to topic {self._name}", error)

    def _close_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
        self._tail = None


def read_to_end(topic: FleetTopic, fold: Fold) -> None:
    """Take in all that is there now.

    :raises SluiceError: it cannot be read.
    """
    while True:
        for message in topic.poll(0.2):
            fold.take(*message)
        if topic.caught_up:
            return
