"""A member of a fleet at a real broker, with a loop in a world without servers."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

from sluice.core.fleet.fold import Fold
from sluice.core.fleet.records import Report
from sluice.core.ranges import TopicPartition
from sluice.driver.connector import patiently
from sluice.driver.fleet import FleetMember
from sluice.driver.inheriting import SharesRead
from sluice.driver.ports import Windows
from sluice.kafka.fleet import FleetTopic, read_to_end
from tests.driver.loop_world import World
from tests.support.kafka import Kafka

SILENT_SECONDS = 1.2


class Driver:
    """A member, and a loop that goes round.

    :param silent_seconds: it reports four times in them, and who is to start beside it waits for so
        long for its next report.
    """

    def __init__(
        self,
        kafka: Kafka,
        topic: str,
        name: str,
        owner: str,
        boot: str = "b1",
        why: str = "",
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        me = Report(owner, name, 0, boot, 7, 0, "east", 2, silent_seconds)
        #: What each look at the records finds; None: it does not look.
        self.finds: SharesRead | None = None
        self._stopping = threading.Event()
        self.member = FleetMember(
            *(kafka.access(), topic, me, lambda: time.time_ns() // 1_000_000),
            *(self._stopping, why),
        )
        self.world = World([TopicPartition("a", 0)])
        self.loop = self.world.loop()
        self.windows: Windows = self.world
        #: Of a round: a loop has one thread, and a test does some of its deeds.
        self._round, self._goes = threading.Lock(), True
        self._inherits = frozenset[str]()
        self._thread = threading.Thread(target=self._rounds)

    def start(self, *, looks: bool = True) -> Driver:
        patiently("a member starts", self.member.start, self._stopping)
        self.windows = self.member.begin(self.world, self.loop.planner, self.world)
        if looks:
            self.finds = SharesRead()
            self.member.took(self.finds)
        self._thread.start()
        return self

    @property
    def goes(self) -> bool:
        """Whether its loop goes round; no round is under way once it was told not to."""
        return self._goes

    @goes.setter
    def goes(self, goes: bool) -> None:
        with self._round:
            self._goes = goes

    def see(self) -> None:
        """What of a round the member is told."""
        with self._round:
            self._see()

    def took(self, read: SharesRead) -> None:
        """What a look found is the loop's."""
        with self._round:
            self._inherits = read.inherits
            self.member.took(read)

    def announce(self, *owners: str) -> None:
        """Say whom it takes over; all looks name them until `took`."""
        with self._round:
            self._inherits = frozenset(owners)
        self.member.announce(owners)

    def _rounds(self) -> None:
        while not self._stopping.wait(0.02):
            with self._round:
                if self._goes:
                    if self.finds is not None:
                        number = self.member.view().number
                        found = replace(self.finds, inherits=self._inherits, view=number)
                        self.member.took(found)
                    self._see()

    def _see(self) -> None:
        self.member.see(self.loop.states, self.loop.holds, 0, self.world.now)

    def stop(self) -> None:
        self._stopping.set()
        self.member.stop()
        for thread in (self._thread, self.member._thread):
            if thread.is_alive():
                thread.join(60)

    @property
    def living(self) -> list[str]:
        return [each.owner for each in self.member.view().living]

    @property
    def share(self) -> Any:
        [window] = self.windows.current().values()
        return window.state.share


def read(kafka: Kafka, topic: str) -> dict[str, Report]:
    """The last report of each id whose end is not in the topic."""
    found, fold = FleetTopic(kafka.access(), topic, is_made=False), Fold("")
    read_to_end(found, fold)
    found.close()
    return {owner: heard.report for owner, heard in fold.others.items()}
