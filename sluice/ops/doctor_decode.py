"""What only the decoding engine can tell of a table: whether its columns can be read from
messages, and whether its partition key is the same on a repetition (H11).

Runs in a process of its own (`python -m sluice.ops.doctor_decode`): the engine takes 300 MB
and its process may not fork, while the driver is about to start Spark.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from sluice.core.errors import SluiceError
from sluice.core.load_spec import Column, TableSpec, parse_spec
from sluice.core.positional import order_of_table, order_option
from sluice.driver.children import own_process
from sluice.ops.doctor_findings import Examination, Finding

_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Key:
    """A partition key on which blocks and their repetitions must agree.

    :param where: the table, and who writes to it.
    :param is_hashed: a server knows its blocks by the hash of all that is stored.
    """

    where: str
    expression: str
    columns: tuple[Column, ...]
    is_hashed: bool = False


def look_at_decoding(specs: Iterable[str], keys: Iterable[Key]) -> list[Finding]:
    """Examine canonical load specs and partition keys in a process of its own."""
    question = {"specs": list(specs), "keys": [asdict(key) for key in keys]}
    if not question["specs"] and not question["keys"]:
        return []
    command, environment = own_process("sluice.ops.doctor_decode")
    found = Examination("the decoding engine")
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(question),
            capture_output=True,
            text=True,
            check=True,
            timeout=_TIMEOUT_SECONDS,
            env=environment,
        )
        return [Finding(**finding) for finding in json.loads(ended.stdout)]
    except subprocess.TimeoutExpired:
        why = f"nothing within {_TIMEOUT_SECONDS:.0f} s"
    except subprocess.CalledProcessError as error:
        why = f"status {error.returncode}: {str(error.stderr).strip()[-300:]}"
    found.error("decoding", f"cannot be checked: {why}", "Install the package chdb as pinned.")
    return found.findings


def answer(question: dict[str, Any]) -> list[Finding]:
    """The findings about load specs and keys; loads the engine."""
    findings: list[Finding] = []
    for canonical in question["specs"]:
        spec = parse_spec(canonical)
        for table in spec.tables:
            findings += _look_at_columns(f"{spec.connector}: table entry {table.entry}", table)
    for key in question["keys"]:
        columns = tuple(Column(**column) for column in key["columns"])
        findings += _look_at_key(Key(**{**key, "columns": columns}))
    return findings


def _look_at_columns(where: str, table: TableSpec) -> list[Finding]:
    from sluice.decode.formats import make_decoder

    found = Examination(where)
    try:
        decoder = make_decoder(table)
        found.ok("decoding", f"{len(decoder.columns)} columns can be filled")
    except SluiceError as error:
        found.error("decoding", error.message, error.hint)
        return found.findings
    _look_at_constants(found, table)
    _look_at_order(found, table)
    _look_at_defaults(found, table)
    if table.sharding is not None:
        _look_at_sharding(found, table, decoder.columns)
    if table.deduplicate is not None:
        _look_at_keys(found, table, decoder.columns)
    return found.findings


def _look_at_order(found: Examination, table: TableSpec) -> None:
    """Whether an ALTER could move values into other columns."""
    if order_of_table(table):
        found.warning(
            "order",
            f"the values of a message of {table.format} go into the columns of {table.target} in "
            "their order: a column that is added or moved stops the entry while a driver runs, and "
            "changes at its next start what values mean",
            f"If that is the order of the messages, write {order_option(table)} into "
            "[table.options].",
        )


def _look_at_defaults(found: Examination, table: TableSpec) -> None:
    """Whether a worker computes what the server would: blocks carry columns with a DEFAULT."""
    from sluice.decode.engine.expressions import functions_of_who_asks

    for column in table.columns:
        asks = column.kind == "DEFAULT" and functions_of_who_asks(column.expression)
        if asks:
            found.warning(
                "defaults",
                f"column {column.name} of {table.target} is {column.expression} by default: where "
                f"a message has no value for it, the worker computes {asks[0]}, so it is the "
                "worker's value and not the server's",
                f"ALTER TABLE {table.target} MODIFY COLUMN {column.name} {column.type} "
                f"MATERIALIZED {column.expression}, if no message has it.",
            )
    found.ok("defaults", "a worker computes them as the server would")


def _look_at_constants(found: Examination, table: TableSpec) -> None:
    """Whether the columns that are always the same can be what they are to be: decodes a message of
    no fields but one that no column takes."""
    from sluice.decode.formats import make_decoder
    from sluice.decode.messages.facts import alone
    from sluice.decode.messages.views import buffer_of

    constants = tuple(one for one in table.mapping if one.by == "value")
    if not constants:
        return
    types = {column.name: column.type for column in table.columns}
    alike = TableSpec(
        entry=table.entry,
        database=table.database,
        table=table.table,
        topics=table.topics,
        format="JSONEachRow",
        columns=tuple(Column(one.column, types[one.column]) for one in constants),
        lineage=(),
        partition_key="",
        sorting_key="",
        unknown_fields="ignore",
        on_null=table.on_null,
        time_zone=table.time_zone,
        shards=table.shards,
        mapping=constants,
        fields=(("_", "UInt8"),),
        fractions=table.fractions,
    )
    with buffer_of([b'{"_":0}']) as message:
        bad = make_decoder(alike).decode(message, alone("", 0)).bad
    if bad:
        found.error(
            "constants",
            f"{bad[0].error}: every message would be a dead letter",
            f"Correct {bad[0].column} in [table.columns]; a whole number has no point and no "
            "exponent.",
        )


def _look_at_keys(found: Examination, table: TableSpec, columns: tuple[str, ...]) -> None:
    """Whether the key of an event can be told from a row."""
    from sluice.decode.keys.hashing import RowKeys

    try:
        RowKeys(table, columns)
    except SluiceError as error:
        found.error("deduplicate-key", error.message, error.hint)
        return
    assert table.deduplicate is not None
    found.ok("deduplicate-key", f"events are told apart by {', '.join(table.deduplicate.key)}")


def _look_at_sharding(found: Examination, table: TableSpec, columns: tuple[str, ...]) -> None:
    from sluice.decode.sharding.splitter import check_sharding, sharding_key

    assert table.sharding is not None
    try:
        check_sharding(table, columns)
        key = " ".join(sharding_key(table.sharding, table.columns).split())
    except SluiceError as error:
        found.error("sharding", error.message, error.hint)
        return
    found.ok(
        "sharding",
        f"rows go to the shards {', '.join(table.shards)} by {key} modulo {len(table.shards)}; a "
        "Distributed table that skips unused shards needs this key, that order and equal weights",
    )


def _look_at_key(key: Key) -> list[Finding]:
    from sluice.decode.engine.expressions import nondeterministic_functions

    found = Examination(key.where)
    shown = key.expression or "nothing"
    try:
        functions = nondeterministic_functions(key.expression, key.columns)
    except SluiceError as error:
        found.warning("partition-key", f"{shown} is not understood: {error.message}", error.hint)
        return found.findings
    if functions:
        found.error(
            "partition-key",
            f"PARTITION BY {shown} depends on {', '.join(functions)}: a repeated block would land "
            "in another partition, where its token is unknown",
            "Partition by columns that messages fill, or by a deterministic DEFAULT.",
        )
    found.ok("partition-key", f"partitioned by {shown}")
    if key.is_hashed:
        _look_at_computed(found, key)
    return found.findings


def _look_at_computed(found: Examination, key: Key) -> None:
    """What the server adds to a block is in its hash."""
    from sluice.decode.engine.expressions import computed_volatile

    try:
        volatile = computed_volatile(key.columns)
    except SluiceError as error:
        found.error("hash", f"a column's expression is not understood: {error.message}", error.hint)
        return
    for name, functions in volatile.items():
        found.error(
            "hash",
            f"column {name} is computed with {', '.join(functions)}, and the server knows blocks "
            "by the hash of all that it stores: a repeated block would be stored twice",
            f"Let messages fill {name}, or give it another expression; or use ClickHouse 22.2 or "
            "newer, which knows blocks by their tokens.",
        )
    found.ok("hash", "what the server computes for a block is the same each time")


if __name__ == "__main__":
    print(json.dumps([asdict(finding) for finding in answer(json.load(sys.stdin))]))
