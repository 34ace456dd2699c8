"""What is there of a block that some attempt has sealed (R21)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import OvertakenError
from sluice.clickhouse.probe import rows_by_partition
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.staging import (
    Marker,
    StagingTable,
    read_markers,
    staging_tables,
    stored_name,
)
from sluice.clickhouse.statements import Statements
from sluice.clickhouse.vanishing import require_all_rows, require_unchanged, seeing_all
from sluice.core.errors import TerminalError
from sluice.core.ranges import Range
from sluice.worker.bundle import Bundle

#: So many looks have to miss a table before it is gone.
_LOOKS = 5


@dataclass(frozen=True, slots=True)
class Sealed:
    """Looks at a sealed block.

    :param name: of its marker.
    :param block_range: what it is of, for messages.
    """

    statements: Statements
    name: str
    block_range: Range

    def marker(self) -> Marker:
        """What the marker says now.

        :raises OvertakenError: it has gone.
        """
        database = self.statements.database
        marker = read_markers(self.statements.server, database, [self.name]).get(self.name)
        if marker is None:
            raise OvertakenError(f"the marker {self.name} has gone")
        return marker

    def targets(self, facts: TableFacts, marker: Marker) -> list[TableFacts]:
        """The tables that the block is for, in the order of their numbers.

        :param facts: of the target.
        :raises TerminalError: one is gone, or another one is in its place.
        """
        server = self.statements.server
        found = [facts]
        for database, table, _ in marker.behind:
            found.append(describe_table(server, database, table))
        uuids = (marker.uuid, *(uuid for _, _, uuid in marker.behind))
        for each, uuid in zip(found, uuids, strict=True):
            if each.uuid != uuid:
                raise TerminalError(
                    f"{each.target} on {server.url} is another table than the one that the "
                    f"block of {self.block_range} was sealed for: some of it may be in the other",
                    "Compare the table with the topic (`sluice audit`), then `sluice resolve`.",
                )
        return found

    def stored(
        self, marker: Marker, found: list[StagingTable]
    ) -> tuple[Marker, list[StagingTable]]:
        """The tables that are there yet, and the marker as it was after that look: they are
        dropped after it says that the block is moved.

        A server may list a table under neither name while it renames it [measured, 26.9]. So one is
        gone only if several looks miss it, and what ran during one has ended before the next: an
        attempt renames it once.

        :param found: by a look before `marker` was read.
        :raises TerminalError: one is gone whose rows may not be in its target.
        """
        seen = _by_number(found, marker.attempt)
        for _ in range(_LOOKS - 1):
            if marker.is_done or len(seen) > len(marker.behind):
                break
            self.statements.wait_for_others()
            found = staging_tables(self.statements.server, self.statements.database, self.name)
            seen |= _by_number(found, marker.attempt)
            marker = self.marker()
        if not (marker.is_done or len(seen) > len(marker.behind)):
            raise self._lost(marker, seen)
        return marker, [seen[number] for number in sorted(seen)]

    def _lost(self, marker: Marker, seen: Collection[int]) -> TerminalError:
        database, behind = self.statements.database, range(len(marker.behind) + 1)
        missing = (each for each in behind if each not in seen)
        names = [f"{database}.{stored_name(self.name, marker.attempt, each)}" for each in missing]
        return TerminalError(
            f"{', '.join(names)} on {self.statements.server.url}, or what it was renamed to, is "
            f"gone: the block of {self.block_range} was stored in it, and the marker "
            f"{database}.{self.name} does not say that the block was moved",
            "Did somebody drop it, or has the server lost it? Compare the target with the topic "
            "(`sluice audit`), and decide with `sluice resolve`.",
        )


def _by_number(found: list[StagingTable], attempt: str) -> dict[int, StagingTable]:
    """The tables of an attempt by what they are behind.

    :raises OvertakenError: one has two names, as while a server without UUIDs renames it.
    """
    own = [each for each in found if each.attempt == attempt]
    by_number = {each.behind: each for each in own}
    if len(by_number) < len(own):
        names = ", ".join(each.name for each in own)
        raise OvertakenError(f"a table of the block has two names at once, of {names}")
    return by_number


def rows_there(server: Server, bundle: Bundle, loader: str, facts: TableFacts) -> dict[str, int]:
    """How many rows of the block the target has, by ClickHouse partition (R11)."""
    settings = seeing_all(server)
    require_unchanged(server, facts, bundle.background.since_ms)
    require_all_rows(server, facts, settings)
    found = rows_by_partition(server, facts, bundle.first, loader, settings)
    require_unchanged(server, facts, bundle.background.since_ms)
    return found
