"""What `doctor` asks of a target table; pure, over facts that were read. Also whether it
can have staged delivery (R21), and where that would serve one whose window does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations

from sluice.clickhouse.capabilities import Capabilities
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import why_not_staged
from sluice.clickhouse.vanishing import cleanup_settings, why_rows_go, why_tokens_go
from sluice.config import Configuration, Durability, TableConfiguration
from sluice.core.budget import WINDOW_SHARE
from sluice.core.dynamic import room_for_columns
from sluice.core.errors import SluiceError
from sluice.core.fleet.floors import FLOOR_SHARE, STARTS, most_of
from sluice.core.lease import LEASE_SHARE_OF_WINDOW, lease_seconds_max
from sluice.core.load_spec import NEEDED_LINEAGE, SOURCE, Delivery, lacking_lineage, lineage_types
from sluice.core.replicas import majority
from sluice.driver.probing import why_no_probe
from sluice.driver.record_updates import FIRST_RESERVATION
from sluice.driver.specs import add_lineage_statement, lineage_columns, require_fitting
from sluice.ops.doctor_findings import Examination

#: Kafka partitions times reservation times this: room for a range in doubt and its successor.
_ROUNDS_IN_WINDOW = 4
_WINDOW_BLOCKS_WANTED = 10_000
#: A range in doubt for longer than half a window is probed instead of replayed.
_WINDOW_SECONDS_WANTED = 24 * 3600
#: From then on asynchronous inserts into a table that is not replicated take entries of its window,
#: which its block numbers do not count [as the source says].
_ENTRIES_UNSEEN_SINCE = (26, 2)
#: MODIFY SETTING for the MergeTree family.
_MODIFY_SETTING_SINCE = (19, 14)
#: Checks of a table that only windows need.
_OF_WINDOWS = frozenset({"window", "lease", "views", "tokens", "delivery"})
_DELIVERIES: dict[Delivery, str] = {
    "block": "a repeated block is known by the window",
    "replacing": "a repeated block changes nothing that FINAL shows",
}
_MERGING = (
    "Replacing",
    "Collapsing",
    "VersionedCollapsing",
    "Summing",
    "Aggregating",
    "Graphite",
    "Coalescing",
)


@dataclass(frozen=True, slots=True)
class TableNeeds:
    """What a table is measured by.

    :param partitions: Kafka partitions whose blocks go to it, all connectors together.
    :param urls: replicas of the shard as configured.
    :param quorum: how many replicas have to have a block, with durability "quorum".
    :param is_majority: it is to be more than half of them.
    :param window: some entry's blocks have to be known again by its window; else what is asked of
        windows is of no use (R22).
    :param members_max: of a fleet, which share the window (R24); 0: there is none.
    """

    partitions: int
    lease_seconds: float
    durability: Durability
    urls: tuple[str, ...]
    quorum: int = 2
    is_majority: bool = False
    window: bool = True
    members_max: int = 0


def check_table(
    found: Examination,
    facts: TableFacts,
    capabilities: Capabilities,
    needs: TableNeeds,
    *,
    is_staged: bool = False,
) -> None:
    """Every check of one table on one server, whichever entries go to it.

    :param is_staged: all of them are; then no window matters.
    """
    _check_async(found, facts, capabilities)
    if is_staged:
        _check_engine(found, facts)
    else:
        _check_windows(found, facts, capabilities, needs)
    _check_replicas(found, facts, needs)


def _check_windows(
    found: Examination, facts: TableFacts, capabilities: Capabilities, needs: TableNeeds
) -> None:
    if not needs.window:
        _check_cleanup(found, facts, needs)
        return
    for table, view in _with_views(facts):
        _check_blocks(found, table, view, capabilities, needs)
        _check_seconds(found, table, view, capabilities, needs)
        if why := why_tokens_go(table):
            fix = set_table(table, capabilities, "remove_empty_parts", 0)
            found.error(
                "window",
                f"{why}. A repeat would be stored again{view}",
                f"{fix}; what is in doubt by then stops for `sluice resolve`",
            )
    window = f"{facts.window_blocks} blocks"
    if facts.window_seconds is not None:
        window += f" for {facts.window_seconds} s"
    found.ok("window", window)
    _check_views(found, facts, capabilities)
    _check_engine(found, facts)


def _with_views(facts: TableFacts) -> Iterator[tuple[TableFacts, str]]:
    """The table and all targets of views behind it, each with a word on who writes to it (H13)."""
    yield facts, ""
    for dependent in facts.all_dependents():
        yield dependent.target, f" (written by the view {dependent.view})"


def set_table(facts: TableFacts, capabilities: Capabilities, setting: str, value: int) -> str:
    """The statement that changes a setting of a table."""
    if capabilities.version >= _MODIFY_SETTING_SINCE:
        name = qualified(facts.database, facts.table)
        return f"ALTER TABLE {name} MODIFY SETTING {setting} = {value}"
    return (
        f"Server {capabilities.version_text} cannot alter it: re-create {facts.target} with "
        f"SETTINGS {setting} = {value}, or set it in <merge_tree> of the server's configuration"
    )


def _setting(facts: TableFacts) -> str:
    kind = "replicated" if facts.replicated else "non_replicated"
    return f"{kind}_deduplication_window"


def _check_blocks(
    found: Examination,
    facts: TableFacts,
    view: str,
    capabilities: Capabilities,
    needs: TableNeeds,
) -> None:
    name = f"{facts.target}{view}"
    if not facts.engine.endswith("MergeTree"):
        found.error(
            "window",
            f"{name} has the engine {facts.engine}, which does not deduplicate: a repeated block "
            "is stored twice there",
            "Let the view write to a table of the MergeTree family with a deduplication window.",
        )
        return
    if facts.window_blocks == 0:
        fix = set_table(facts, capabilities, _setting(facts), _WINDOW_BLOCKS_WANTED)
        if not facts.replicated and not capabilities.tokens:
            fix = "Use a ReplicatedMergeTree table, or ClickHouse 22.2 or newer."
        found.error("window", f"{name} has no deduplication window", fix)
        return
    reservation = FIRST_RESERVATION if facts.partition_key else 1
    wanted = _ROUNDS_IN_WINDOW * max(1, needs.partitions) * reservation
    larger = max(_WINDOW_BLOCKS_WANTED, wanted)
    fix = set_table(facts, capabilities, _setting(facts), larger)
    if facts.window_blocks // WINDOW_SHARE < reservation:
        found.error(
            "window",
            f"the window of {name} keeps {facts.window_blocks} blocks, of which half may be used; "
            f"one range needs {reservation}",
            fix,
        )
    elif facts.window_blocks < wanted:
        found.warning(
            "window",
            f"the window of {name} keeps {facts.window_blocks} blocks; {needs.partitions} Kafka "
            f"partitions load side by side with {wanted}",
            fix,
        )
    members = needs.members_max
    if members and most_of(facts.window_blocks, members) < reservation:
        # Alone, a member has what a driver without a fleet has; beside others it would stop.
        least = reservation * FLOOR_SHARE * STARTS * members
        found.error(
            "window",
            f"the window of {name} keeps {facts.window_blocks} blocks, of which each of up to "
            f"{members} members of a fleet may use {most_of(facts.window_blocks, members)}; one "
            f"range needs {reservation}",
            f"{set_table(facts, capabilities, _setting(facts), max(larger, least))}; or a smaller "
            "members_max in [fleet]",
        )


def _check_seconds(
    found: Examination,
    facts: TableFacts,
    view: str,
    capabilities: Capabilities,
    needs: TableNeeds,
) -> None:
    longest = lease_seconds_max(facts.window_seconds)
    if longest is None or facts.window_blocks == 0:
        return
    name = f"{facts.target}{view}"
    wanted = max(_WINDOW_SECONDS_WANTED, int(needs.lease_seconds * LEASE_SHARE_OF_WINDOW))
    fix = set_table(facts, capabilities, f"{_setting(facts)}_seconds", wanted)
    if needs.lease_seconds > longest:
        found.error(
            "lease",
            f"{name} remembers blocks for {facts.window_seconds} s; the lease of "
            f"{needs.lease_seconds:g} s may be at most a sixth of that",
            f'{fix}; or lease = "{int(longest)}s" in [batch]',
        )
    elif facts.window_seconds is not None and facts.window_seconds < _WINDOW_SECONDS_WANTED:
        found.warning(
            "window",
            f"{name} remembers blocks for {facts.window_seconds} s: a range in doubt that is "
            "older than half of that is looked for in the table instead of repeated",
            fix,
        )
    found.ok("lease", f"{needs.lease_seconds:g} s is within the window")


def _check_async(found: Examination, facts: TableFacts, capabilities: Capabilities) -> None:
    if facts.async_insert:
        found.error(
            "async-insert",
            f"{facts.target} has the setting async_insert, of its own or from <merge_tree> of the "
            "server's configuration, which overrides that of an insert",
            set_table(facts, capabilities, "async_insert", 0),
        )
    if not facts.replicated and capabilities.version >= _ENTRIES_UNSEEN_SINCE:
        found.ok(
            "async-insert",
            "no insert of Sluice's is queued. Nobody else may insert asynchronously (async_insert, "
            "on by default): each of their inserts takes an entry of the window, and the server "
            "tells of none",
        )


def _check_views(found: Examination, facts: TableFacts, capabilities: Capabilities) -> None:
    dependents = list(facts.all_dependents())
    if unseen := ", ".join(facts.all_unseen()):
        found.warning(
            "views",
            f"feeds {unseen}, and the server shows no such materialized view: this user may not "
            "see it, or it is a view of another kind; nobody knows here whether its target "
            "deduplicates",
            "GRANT SHOW TABLES ON it to this user, or look at its target yourself.",
        )
    if not dependents:
        return
    names = ", ".join(dependent.view for dependent in dependents)
    if not capabilities.feeds_views_again:
        found.error(
            "views",
            f"server {capabilities.version_text} feeds no view with a block that is repeated, so "
            f"what an insert that broke off has left out would stay missing behind {names}",
            "Use ClickHouse 20.1 or newer, or drop the views and fill their tables otherwise.",
        )
        return
    targets = Counter(dependent.target.target for dependent in dependents)
    if not capabilities.tells_views_apart and (several := [*(targets - Counter(set(targets)))]):
        found.error(
            "views",
            f"{', '.join(several)} is written by several of {names}, and server "
            f"{capabilities.version_text} takes their blocks for repeats of one: rows of all but "
            "the first are swallowed",
            "Use ClickHouse 24.8 or newer, or one view with UNION ALL, or a target for each.",
        )
        return
    found.warning(
        "views",
        f"feeds {names}: a range in doubt that left the window cannot be probed, and stops for "
        f"`sluice resolve`{_after_restart(facts)}",
        "Keep the windows large; see `window`.",
    )


def _after_restart(facts: TableFacts) -> str:
    tables = (table for table, _ in _with_views(facts))
    own = [table.target for table in tables if not table.replicated]
    return (
        f"; so does one whose server was started again meanwhile, since {', '.join(own)} may know "
        "a block then that it has lost"
        if own
        else ""
    )


def _check_cleanup(found: Examination, facts: TableFacts, needs: TableNeeds) -> None:
    """Merges that take deleted keys out for good: an older row that comes again brings one back."""
    if on := cleanup_settings(facts):
        found.warning(
            "cleanup",
            f"{facts.target} takes deleted keys out for good by itself ({', '.join(on)}): a "
            f"rewind, or an insert that comes up to {needs.lease_seconds:g} s late, brings such a "
            "key back",
            "ALTER TABLE … RESET SETTING; OPTIMIZE TABLE … FINAL CLEANUP while nothing is loaded",
        )
    found.ok("cleanup", "deleted keys stay until somebody takes them out")


def check_delivery(
    found: Examination, facts: TableFacts, configuration: Configuration, entry: TableConfiguration
) -> None:
    """Whether the table is what `delivery` says; where it is refused, whether another one fits."""
    try:
        carried = lineage_columns(entry, facts)
    except SluiceError:
        return  # `lineage` tells of it
    try:
        require_fitting(configuration, entry, facts, carried)
    except SluiceError as error:
        found.error("delivery", error.message, error.hint)
    is_refused = any(one.level == "error" and one.check in _OF_WINDOWS for one in found.findings)
    if entry.delivery == "block" and is_refused:
        with suppress(SluiceError):
            other = replace(entry, delivery="replacing")
            require_fitting(configuration, other, facts, carried)
            found.warning(
                "delivery",
                f"table entry {entry.name}: {facts.target} keeps one of equal rows, and needs no "
                "window",
                'delivery = "replacing" in its [[table]]',
            )
    found.ok("delivery", f"{entry.delivery}: {_DELIVERIES[entry.delivery]}")


def carried_by(
    found: Examination, facts: TableFacts, entry: TableConfiguration
) -> tuple[str, ...] | None:
    """The lineage columns of an entry's blocks; None, and an error in `found`: they cannot have
    those that the file asks for."""
    try:
        return lineage_columns(entry, facts)
    except SluiceError as error:
        found.error("lineage", error.message, error.hint)
        return None


def check_entry(
    found: Examination, facts: TableFacts, capabilities: Capabilities, entry: TableConfiguration
) -> None:
    """What blocks of one entry carry: for tokens' sake, for a probe's and an audit's."""
    where = f"table entry {entry.name}"
    carried = carried_by(found, facts, entry)
    if carried is None:
        return
    if entry.delivery == "replacing":
        found.ok("lineage", f"blocks of {where} carry {', '.join(carried) or 'none'}")
        return
    missing = sorted(NEEDED_LINEAGE - set(carried))
    fix = 'lineage = true in its [[table]], or "auto"'
    absent = [name for name in missing if all(c.name != name for c in facts.columns)]
    if absent:
        fix = f"{add_lineage_statement(facts, absent)}; and {fix}"
    if missing and not capabilities.tokens:
        found.error(
            "tokens",
            f"server {capabilities.version_text} knows no tokens and compares rows, and blocks of "
            f"{where} carry no {', '.join(missing)}: two equal blocks would become one",
            fix,
        )
    elif missing:
        found.warning(
            "lineage",
            f"blocks of {where} carry no {', '.join(missing)}: a range in doubt that left "
            "the window stops for `sluice resolve`, and `sluice audit` cannot look",
            fix,
        )
    else:
        _check_probe(found, facts, capabilities, entry, carried)
    how = "tokens" if capabilities.tokens else "the hash of rows that carry their offset"
    found.ok("tokens", f"blocks are known by {how}")
    found.ok("lineage", f"blocks of {where} carry {', '.join(carried)}")


def _check_probe(
    found: Examination,
    facts: TableFacts,
    capabilities: Capabilities,
    entry: TableConfiguration,
    carried: tuple[str, ...],
) -> None:
    """Whether a range in doubt that left the window could be looked for in the table."""
    why = why_no_probe(facts, carried, entry.rows)
    if why is None or facts.dependents:
        return  # Of views, `views` speaks.
    fix = "Keep the window large; or load a plain MergeTree table, and fill this one from it."
    if SOURCE not in carried:
        types = lineage_types(capabilities.version)
        fix = add_lineage_statement(facts, [SOURCE], types)
        if any(column.name == SOURCE for column in facts.columns):
            fix = f"Make {SOURCE} a plain column of type {types[SOURCE]}, without a default"
    found.warning(
        "probe",
        f"table entry {entry.name}: a range in doubt that left the window cannot be looked for, "
        f"and stops for `sluice resolve`: {why}",
        fix,
    )


def check_shared(
    found: Examination,
    facts: TableFacts,
    capabilities: Capabilities,
    loaders: Sequence[tuple[str, TableConfiguration, str]],
) -> None:
    """Whether rows can be told apart that several entries or connectors load from topics of one
    name into this table.

    :param loaders: (connector, entry, topic), all that load it.
    """
    able = [one for one in loaders if one[1].lineage is not False]
    if any(column.name == SOURCE and not column.kind for column in facts.columns):
        return
    for (connector, one, topic), (other_connector, other, other_topic) in combinations(able, 2):
        apart = one.route is not None and other.route is not None and one.route != other.route
        if topic != other_topic or (connector == other_connector and apart):
            continue
        who = f"table entries {one.name} and {other.name}"
        if one.name == other.name:
            who = f"connectors {connector} and {other_connector}"
        found.error(
            "lineage",
            f"{who} both load a topic {topic} into {facts.target}, which has no column {SOURCE}: "
            "nobody could tell whose a row is",
            f"{add_lineage_statement(facts, [SOURCE], lineage_types(capabilities.version))}; or "
            "give each a table of its own, or both entries a route",
        )
        return


def check_dynamic(found: Examination, facts: TableFacts, entry: TableConfiguration) -> None:
    """Whether there is room for columns of new fields of this entry."""
    if entry.dynamic_columns is None:
        return
    where = f"table entry {entry.name}"
    room = room_for_columns(entry.dynamic_columns, [column.name for column in facts.columns])
    if not room:
        found.warning(
            "dynamic-columns",
            f"{where}: {facts.target} has as many columns whose names the rules take as "
            f"dynamic_columns.max = {entry.dynamic_columns.columns_max} allows, so that messages "
            "with further new fields are dead letters",
            "Raise it, add the columns yourself, or deny the fields.",
        )
    found.ok("dynamic-columns", f"room for {room} columns of new fields")


def _check_engine(found: Examination, facts: TableFacts) -> None:
    kind = facts.engine.removeprefix("Replicated")
    identified = all(name in facts.sorting_key for name in NEEDED_LINEAGE)
    if kind.startswith(_MERGING) and not identified:
        found.warning(
            "engine",
            f"{facts.engine} merges rows of one sorting key; `sluice audit` counts those that "
            "are merged away as missing",
            "Load a plain MergeTree table, and fill this one by a view.",
        )
    found.ok("engine", facts.engine)


def _check_replicas(found: Examination, facts: TableFacts, needs: TableNeeds) -> None:
    replicas = facts.replicas_total
    if not facts.replicated and len(needs.urls) > 1:
        found.error(
            "replicas",
            f"{facts.engine} is not replicated, and the shard names {len(needs.urls)} servers: "
            "each would have a window of its own",
            "Make each server a shard of its own, or use a ReplicatedMergeTree table.",
        )
    if facts.is_readonly:
        return  # It cannot count its replicas either; `check_contact` says what follows.
    if needs.durability == "quorum":
        _check_quorum(found, facts, needs)
    elif needs.durability == "single" and replicas > 1:
        found.warning(
            "durability",
            f'durability = "single", though there are {replicas} replicas: rows that only one has '
            "acknowledged are lost with it",
            'durability = "quorum" in [clickhouse]',
        )
    if facts.replicas_active < replicas:
        found.warning(
            "replicas",
            f"{facts.replicas_active} of {replicas} replicas are active",
            "Bring the missing replicas back: a probe needs all of them.",
        )
    waits = f", {needs.quorum} replicas" if needs.durability == "quorum" else ""
    found.ok("durability", needs.durability + waits)
    found.ok("replicas", f"{facts.replicas_active} of {replicas} active")


def _check_quorum(found: Examination, facts: TableFacts, needs: TableNeeds) -> None:
    replicas, quorum = facts.replicas_total, needs.quorum
    if replicas < quorum:
        found.error(
            "durability",
            f'durability = "quorum" waits for {quorum} replicas, and there '
            f"{'is one' if replicas == 1 else f'are {replicas}'}",
            'durability = "single" in [clickhouse] if one copy is enough; else add replicas',
        )
    elif facts.replicas_active < quorum:
        found.error(
            "durability",
            f"{facts.replicas_active} of {replicas} replicas "
            f"{'is' if facts.replicas_active == 1 else 'are'} active, and a quorum needs {quorum}",
            "Bring the missing replicas back (system.replicas).",
        )
    elif needs.is_majority and quorum < majority(replicas):
        found.warning(
            "durability",
            f'quorum = "auto" waits for {quorum} of the {len(needs.urls)} replicas that the shard '
            f"names, and the table has {replicas}, most of which are {majority(replicas)}",
            "Name all replicas in shards, or write quorum as a number; SYSTEM DROP REPLICA takes "
            "out one that is gone for good.",
        )


#: What is wrong with these does not matter to blocks that no window has to know.
_NEEDLESS_IF_MOVED = frozenset({"window", "lease", "tokens", "views"})


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
        if any(
            each.level == "error" and each.check in _NEEDLESS_IF_MOVED for each in found.findings
        ):
            found.warning(
                "staged",
                f"table entry {entry.name}: blocks can be moved into {facts.target}, which needs "
                "no window then",
                f'delivery = "staged" in [[table]] {entry.name}',
            )
