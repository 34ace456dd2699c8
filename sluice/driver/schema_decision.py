"""What becomes of a range in doubt whose tables or load spec may have changed: one pure decision.

Its blocks have to be the same blocks again (R8). So its load spec is kept, or changed where no task
can have inserted anything that another load spec would make otherwise (R13 to R15); else the range
is probed. While too little is known of the tables, it waits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sluice.clickhouse.comparing import Today, why_not_executable
from sluice.core.dynamic import answer_to
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.receipts import Outdated
from sluice.core.records import Kind, Record
from sluice.driver.effects import Wanted


@dataclass(frozen=True, slots=True)
class Keep:
    """The range may be sent again under the load spec that its record names."""


@dataclass(frozen=True, slots=True)
class Change:
    """The range may be sent again, under another load spec.

    :param kind: of the record that says so: CHANGE_SPEC or ADD_COLUMNS.
    """

    kind: Kind
    spec: LoadSpec


@dataclass(frozen=True, slots=True)
class Probe:
    """The same load spec would not make the same blocks, or they would not be known as such."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Too little is known of the tables.

    :param columns: that are asked for.
    :param reading: a reading of the tables is asked for.
    """

    columns: Wanted = field(default_factory=dict)
    reading: bool = False


Decision = Keep | Change | Probe | Wait


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a range in doubt, and of its tables.

    :param recorded: the load spec that its record names; None: it cannot be executed any more.
    :param current: the load spec of new ranges.
    :param current_digest: its name.
    :param tables: as they were read last; None: not yet.
    :param outdated: why a task refused the recorded load spec; None: none did.
    :param untouched: nobody inserted anything of the range.
    :param is_altered: the recorded load spec would not make the same blocks today, or inserts into
        an entry that is parked by now.
    :param is_read: somebody reads the tables; where nobody does, nothing waits for it.
    :param is_fresh: they were read since whatever may have altered them.
    :param are_columns_coming: were asked for that would change what the server hashes.
    """

    topic: str
    record: Record
    recorded: LoadSpec | None
    current: LoadSpec
    current_digest: str
    tables: Today | None = None
    outdated: Outdated | None = None
    untouched: bool = False
    is_altered: bool = False
    is_read: bool = True
    is_fresh: bool = True
    are_columns_coming: bool = False


def decide(facts: Facts) -> Decision:
    """Exactly one of the four; the tables are looked at before anything is judged by them."""
    if facts.is_read:
        columns = open_fields(facts)
        if columns:
            return Wait(columns=columns)
        if facts.are_columns_coming or not facts.is_fresh:
            return Wait(reading=not facts.are_columns_coming)
    widened = executable(facts)
    may_change = may_change_spec(facts, widened)
    if facts.is_altered and not may_change:
        return Probe()
    if widened is not None:
        return Change(Kind.ADD_COLUMNS, widened)
    return Change(Kind.CHANGE_SPEC, facts.current) if may_change else Keep()


def may_change_spec(facts: Facts, widened: LoadSpec | None) -> bool:
    """Whether a range whose first task refused its load spec may be loaded under another one: what
    that task inserted before it refused has to be the same under both.

    :param widened: see `executable`.
    """
    outdated, record = facts.outdated, facts.record
    if outdated is not None and outdated.schemas:
        return facts.untouched and widened is not None
    if outdated is not None and outdated.fields:
        return widened is not None
    if outdated is None or record.kind is not Kind.INTEND or record.attempt != 1:
        return False
    if facts.recorded is None or record.spec == facts.current_digest:
        return False
    then = {table.entry: table for table in facts.recorded.tables_of(facts.topic)}
    now = {table.entry: table for table in facts.current.tables_of(facts.topic)}
    if then.keys() != now.keys():
        return False
    if any(then[entry].parked and not now[entry].parked for entry in now):
        return False  # the range's reservation counts at no hold on that window (R10)
    return all(then[entry] == now[entry] for entry in outdated.inserted)


def open_fields(facts: Facts) -> Wanted:
    """Fields for which today's load spec would refuse the range, too."""
    spec = _widened(facts) or facts.recorded
    if spec is None or facts.outdated is None:
        return {}
    waiting = {}
    for table in spec.tables:
        fields = facts.outdated.fields.get(table.entry, ())
        if table.dynamic is None or table.parked:
            continue
        names = frozenset(column.name for column in table.columns)
        open_ = tuple(f for f in fields if answer_to(table.dynamic, names, f.name))
        if open_:
            waiting[table.entry] = open_
    return waiting


def executable(facts: Facts) -> LoadSpec | None:
    """The recorded load spec, with the entries that refused the range as they have to be, if that
    can be executed; None if there is nothing new. Where rows are hashed, another table of the topic
    may have more columns by now, too: then the range is probed."""
    widened = _widened(facts)
    if widened is None or facts.tables is None:
        return widened
    why = why_not_executable(widened, facts.tables, facts.topic)
    return widened if why is None else None


def _widened(facts: Facts) -> LoadSpec | None:
    """For its fields as they are today, for its schemas with those that there are. All else stays:
    what was inserted of other entries before is the same under both."""
    before, outdated = facts.recorded, facts.outdated
    if before is None or outdated is None:
        return None
    now = {table.entry: table for table in facts.current.tables}
    tables = tuple(
        _adapted(table, now.get(table.entry)) if table.entry in outdated.fields else table
        for table in before.tables
    )
    tables = tuple(
        replace(table, schemas=outdated.schemas[table.entry].known)
        if table.entry in outdated.schemas
        else table
        for table in tables
    )
    widened = replace(before, tables=tables)
    return None if widened == before else widened


def _adapted(table: TableSpec, now: TableSpec | None) -> TableSpec:
    """A recorded entry over its table of today. Where the entry loads another one, or nothing any
    more, nobody adds columns to this one: its new fields are as `unknown_fields` says."""
    if now is None or now.target != table.target:
        return replace(table, dynamic=None)
    return replace(
        table,
        columns=now.columns,
        sorting_key=now.sorting_key,
        time_zone=now.time_zone,
        parked=now.parked,
        dynamic=now.dynamic,
    )
