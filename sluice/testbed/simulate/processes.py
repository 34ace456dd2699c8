"""Drivers and workers, as far as the rest of a world looks at them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Protocol

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.driver.connector import ConnectorRun
from sluice.testbed.simulate.scheduler import Actor, Process

#: By partition, the records of what one task loads as one block: of a bundle, or of a range alone.
Records = Mapping[TopicPartition, Record]


def in_words(records: Records) -> str:
    """For a person."""
    return " and ".join(f"{source} {record}" for source, record in sorted(records.items()))


class WorkerProcess(Process):
    """A Python worker of Spark's.

    :param records: what the bundle that it loads was sent with, or the range alone.
    :param since_ms: since when that may have been inserted, as it was told.
    :param attempt: how often Spark started its task before.
    :param before_insert: what happens when its task is about to insert, once.
    :param insert_fault: what strikes its next insert; by chance if there is nothing.
    """

    def __init__(self, name: str, skew_ms: int) -> None:
        super().__init__(name, skew_ms)
        self.records: Records = {}
        self.since_ms = 0
        self.attempt = 0
        self.before_insert: Callable[[], None] | None = None
        self.insert_fault: str | None = None


class DriverProcess(Process, ABC):
    """A driver.

    :param is_in_step: it starts together with another one, and now and then lets it go first.
    :param decoder: version of the engine that it brings.
    :param fenced_at: when it last heard that its id was initialised again; 0: never, or it took it
        back since.
    :param is_inherited: another member of its fleet has fenced it.
    :param ending: how its run ended.
    """

    connector_run: ConnectorRun

    def __init__(
        self, name: str, skew_ms: int, owner: str, decoder: int, *, is_in_step: bool
    ) -> None:
        super().__init__(name, skew_ms)
        self.owner = owner
        self.decoder = decoder
        self.is_in_step = is_in_step
        #: Its name in a fleet; "" where there is none.
        self.member = ""
        self.main_actor: Actor | None = None
        self.fenced_at = 0
        self.is_inherited = False
        self.ending = ""
        self.workers: dict[WorkerProcess, None] = {}

    @abstractmethod
    def end_spark(self, *, tasks_live_on: bool) -> None:
        """It is gone; so are its workers, unless they do not know it yet."""


class Supervisor(Protocol):
    """Who hears of drivers that end."""

    def ended(self, driver: DriverProcess, *, tasks_live_on: bool) -> None:
        """A driver has ended by itself."""

    def succeed(self, driver: DriverProcess) -> None:
        """End a driver; the next one comes soon, with another engine."""
