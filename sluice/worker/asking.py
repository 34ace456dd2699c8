"""What a task refuses to insert, because the table may not be what its load spec says (R8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.clickhouse.comparing import other_table, other_zone, why_other_hash
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import read_identities, read_structures
from sluice.clickhouse.sql import split_name
from sluice.clickhouse.topology import OtherPathError, refuse_other_path
from sluice.core.dynamic import NewField, why_no_answer
from sluice.core.load_spec import TableSpec
from sluice.core.receipts import Outdated, UnknownSchemas
from sluice.core.schema_ids import shown_schema
from sluice.decode.messages.decoded import BadMessage, Decoded
from sluice.decode.messages.fault import (
    CHECK_FAILED,
    NO_COLUMN,
    NOT_ONE_ROW,
    NULL_IN_COLUMN,
    REQUIRED,
    UNAVAILABLE_VALUE,
    UNKNOWN_FIELD,
    UNKNOWN_SCHEMA,
)
from sluice.worker.bundle import Bundle
from sluice.worker.errors import BlockRefusedError, OutdatedTextError, StructureChangedError

#: Unknown schemas that a report names.
_NUMBERS_SHOWN_MAX = 5
#: Reasons whose words quote nothing of a message's values.
_WITHOUT_VALUES = (
    *(CHECK_FAILED, NO_COLUMN, NOT_ONE_ROW, NULL_IN_COLUMN, REQUIRED),
    *(UNAVAILABLE_VALUE, UNKNOWN_FIELD, UNKNOWN_SCHEMA),
)


def ask_for_fields(bundle: Bundle, table: TableSpec, decoded: Decoded) -> None:
    """Refuse a first attempt in which messages have fields that no column of the load spec has.

    Nobody else was ever allowed to insert it, so it may still be loaded under another
    load spec: the driver looks whether the table has such columns by now.

    :raises OutdatedTextError: there are such fields, and a look is worth it.
    """
    if not (bundle.looks_for_fields and bundle.is_first):
        return
    for bad in decoded.bad:
        if bad.reason == UNKNOWN_FIELD:
            where = bundle.message_at(bad.offset)
            raise OutdatedTextError(
                table.entry,
                f"{table.target} has no column {bad.column or '?'} for a field of the message at "
                f"{where}; the driver looks whether it has one by now",
            )


def asked_for_columns(
    tables: Iterable[TableSpec], fields: Mapping[str, tuple[NewField, ...]]
) -> Outdated:
    """The report of a range whose messages have fields that are to get columns (R14)."""
    refused = [table for table in tables if table.entry in fields]
    first = refused[0]
    names = ", ".join(field.name for field in fields[first.entry])
    why = f"{first.target} is to be asked for columns of new fields: {names}"
    return Outdated(first.entry, why[:300], (), fields)


def asked_for_schemas(
    tables: Iterable[TableSpec], schemas: Mapping[str, UnknownSchemas]
) -> Outdated:
    """The report of a range whose messages name schemas that the registry does not know."""
    first = next(table for table in tables if table.entry in schemas)
    found = schemas[first.entry]
    numbers = ", ".join(map(shown_schema, found.numbers[:_NUMBERS_SHOWN_MAX]))
    more = len(found.numbers) - _NUMBERS_SHOWN_MAX
    why = (
        f"table entry {first.entry}: the registry does not know schema {numbers}"
        f"{f' and {more} more' if more > 0 else ''}, which {found.messages} of {found.of} messages "
        "name"
    )
    return Outdated(first.entry, why, (), schemas=schemas)


def words_of(table: TableSpec, bad: BadMessage, masked: frozenset[str] = frozenset()) -> str:
    """Why a message makes no row, and why its field got no column, where one might have.

    :param masked: columns and fields of which no value is shown. Where they are any, nothing is
        shown either of what is not one column's: it may be theirs.
    """
    if masked and bad.column in {"", *masked} and bad.reason not in _WITHOUT_VALUES:
        at_fault = f"a value of {bad.column}" if bad.column else "what the message holds"
        return f"{at_fault} is not shown: [dead_letters] mask"
    if bad.reason != UNKNOWN_FIELD or table.dynamic is None:
        return bad.error
    columns = frozenset(column.name for column in table.columns)
    return bad.error + why_no_answer(table.dynamic, columns, bad.column)


def require_same_table(
    server: Server,
    table: TableSpec,
    shard: str,
    *,
    tokens: bool,
    zone_matters: bool,
    is_first: bool,
) -> None:
    """The server must know a block again by what it knew it before. Called directly before the
    block is sent, since a server may be started in another time zone, and a table be put in the
    place of another one or be altered, at any moment.

    :param tokens: it knows blocks by their tokens; else by a hash of all that it stores.
    :param zone_matters: see `comparing.zone_matters`.
    :param is_first: no other task was ever sent this range.
    :raises OutdatedTextError: it does not, and this is the only task that ever could insert.
    :raises StructureChangedError: it does not, and an earlier attempt may have inserted.
    :raises BlockRefusedError: this server's table is no replica of the one that the block is for,
        as where somebody has made it anew (H15).
    """
    look = _why_other_table if tokens else _why_other_hash
    try:
        why = look(server, table, shard, zone_matters)
    except OtherPathError as error:
        raise BlockRefusedError(table.entry, error, is_unstored=is_first) from None
    if why is None:
        return
    if is_first:
        raise OutdatedTextError(table.entry, why)
    raise StructureChangedError(f"{why}: this block may have been stored before that")


def _why_other_table(
    server: Server, table: TableSpec, shard: str, zone_matters: bool
) -> str | None:
    known = {name: uuid for of, name, uuid in table.uuids if of == shard}
    path = dict(table.zookeeper_paths).get(shard)
    if not (known or zone_matters or path):
        return None
    own = (table.database, table.table)
    now = read_identities(server, [own, *map(split_name, known)], [own] if path else [])
    own_uuid = now.uuids.get(table.target)
    _refuse_other_path(server, table, now.zookeeper_paths.get(table.target), own_uuid, path)
    if zone_matters and now.time_zone != table.time_zone:
        return other_zone(table.time_zone, now.time_zone)
    for name, uuid in known.items():
        found = now.uuids.get(name)
        if found is None:
            return f"{name} does not exist"
        if found != uuid:
            return other_table(name, uuid, found)
    return None


def _refuse_other_path(
    server: Server, table: TableSpec, now: str | None, uuid: str | None, path: str | None
) -> None:
    """A server that says no path may have no session with ZooKeeper, and refuses the block itself;
    or its table was made anew as one that is not replicated, and takes it.

    :param uuid: of a table that is not replicated; of others there is none.
    :param path: of the table that the block is for; None: it is not replicated.
    """
    where = f"{table.target} on {server.url}"
    if now and path:
        refuse_other_path(where, now, path)
    elif uuid and path:
        raise OtherPathError(
            f"{where} is not replicated, and the blocks are for the Replicated table at {path}"
        )


def _why_other_hash(server: Server, table: TableSpec, shard: str, zone_matters: bool) -> str | None:
    where = (table.database, table.table)
    found = read_structures(server, [where]).get(where)
    if found is None:
        return f"{table.target} does not exist"
    path = dict(table.zookeeper_paths).get(shard)
    _refuse_other_path(server, table, found.zookeeper_path, found.uuid, path)
    if zone_matters and found.time_zone != table.time_zone:
        return other_zone(table.time_zone, found.time_zone)
    return why_other_hash(table, found.columns, found.sorting_key)
