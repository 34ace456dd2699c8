"""What `doctor` says of staged delivery (R21): whether a table can have it, and where it would
serve one whose window does not."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.clickhouse.capabilities import Capabilities
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.staging import why_not_staged
from sluice.clickhouse.vanishing import why_rows_go
from sluice.config import TableConfiguration
from sluice.core.errors import SluiceError
from sluice.core.load_spec import lacking_lineage
from sluice.driver.specs import lineage_columns
from sluice.ops.doctor_findings import Examination
from sluice.ops.doctor_tables import carried_by

#: What is wrong with these does not matter to blocks that no window has to know.
_OF_WINDOWS = frozenset({"window", "lease", "async-insert", "tokens", "views"})


def check_staged(
    found: Examination, facts: TableFacts, capabilities: Capabilities, entry: TableConfiguration
) -> None:
    """What a table entry with staged delivery needs of its table."""
    where = f"table entry {entry.name}"
    carried = carried_by(found, facts, entry)
    if carried is None:
        return
    why = why_not_staged(facts, carried, entry.rows, moves=capabilities.tokens)
    if why is not None:
        found.error(
            "staged",
            f"{where}: {facts.target} cannot have staged blocks: {why}",
            'delivery = "block" in its [[table]]; or give it what it lacks.',
        )
        return
    lacking = lacking_lineage(carried, entry.rows)
    unseen = f"it has no {', '.join(lacking)}" if lacking else why_rows_go(facts)
    if unseen is not None:
        found.warning(
            "staged",
            f"{where}: a block that is moved while its server is killed stops for a person where "
            f"the parts of {facts.target} do not tell what was moved: its rows do not either, "
            f"{unseen}",
            "Nothing, if a person may be asked; or load a plain MergeTree table with the lineage "
            "columns, and fill this one from it.",
        )
    found.ok("staged", f"blocks of {where} have tables of their own, and are moved")


def propose_staged(
    found: Examination,
    facts: TableFacts,
    capabilities: Capabilities,
    entries: Iterable[TableConfiguration],
) -> None:
    """Say where staged delivery would serve a table that is refused for its window."""
    for entry in entries:
        is_possible = entry.deduplicate is None and entry.on_error != "park"
        try:
            carried = lineage_columns(entry, facts)
        except SluiceError:
            continue
        why = why_not_staged(facts, carried, entry.rows, moves=capabilities.tokens)
        if entry.delivery == "staged" or not is_possible or why is not None:
            continue
        if any(each.level == "error" and each.check in _OF_WINDOWS for each in found.findings):
            found.warning(
                "staged",
                f"table entry {entry.name}: blocks can be moved into {facts.target}, which needs "
                "no window then",
                f'delivery = "staged" in [[table]] {entry.name}',
            )
