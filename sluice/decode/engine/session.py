"""The engine: one chdb connection for each thread.

Module-level `chdb.query` costs 31 ms a call and grows; one Session serialises its threads.
A process must not fork after the engine was loaded, so a child refuses to use it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from sluice.core.errors import TerminalError, TransientError

#: What every query of a decoder runs under. Order and values depend on it: part of the contract.
SETTINGS = {
    "max_threads": "1",
    "input_format_parallel_parsing": "0",
    "date_time_overflow_behavior": "'throw'",
    "date_time_input_format": "'best_effort'",
    "input_format_json_ignore_unnecessary_fields": "0",
    "input_format_json_throw_on_bad_escape_sequence": "1",
    # In a Dynamic or JSON a text stays a text: the 30th of February would be the 2nd of March.
    "input_format_try_infer_dates": "0",
    "input_format_try_infer_datetimes": "0",
    "input_format_max_block_size_bytes": "0",
    "input_format_defaults_for_omitted_fields": "1",
    # One rule for all formats: the very name, upper and lower case told apart.
    "input_format_column_name_matching_mode": "'match_case'",
    "allow_suspicious_low_cardinality_types": "1",
    "allow_suspicious_variant_types": "1",
    "schema_inference_use_cache_for_file": "0",
    "log_queries": "0",
}

#: For the engine's allocator, read when its library is loaded: freed memory of large columns
#: goes back at once instead of staying with the process. Smaller pieces are kept: pages that
#: every range asks for again would cost it a quarter of its time.
_ALLOCATOR = f"oversize_threshold:{8 << 20}"

_local = threading.local()
_loaded_in: int | None = None


def session() -> Any:
    """This thread's connection, opened by its first call (0.7 s for the first of a process).

    :raises TerminalError: the process was forked after the engine was loaded.
    """
    global _loaded_in
    if _loaded_in is not None and _loaded_in != os.getpid():
        raise TerminalError(
            f"process {os.getpid()} was forked from {_loaded_in} after the engine was loaded",
            "Start workers with spawn; the engine does not survive a fork.",
        )
    connection = getattr(_local, "connection", None)
    if connection is None:
        os.environ.setdefault("JE_MALLOC_CONF", _ALLOCATOR)
        import chdb

        _loaded_in = os.getpid()
        connection = _local.connection = chdb.connect(":memory:")
    return connection


#: Codes that no message can cause: the machine's trouble (memory, files, threads, a kill).
_MACHINE_CODES = frozenset((74, 75, 76, 95, 107, 159, 173, 202, 236, 241, 243, 298, 394, 396, 439))
#: Codes of queries that cannot be compiled, whatever the messages say.
_QUERY_CODES = frozenset((16, 42, 43, 46, 47, 60, 62, 63, 115))


class EngineError(Exception):
    """The engine refused a query because of the data it read.

    :param code: ClickHouse's error code, 0 if the text has none.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        match = re.match(r"Code: (\d+)\.", text)
        self.code = int(match[1]) if match else 0


def run(query: str, output_format: str) -> Any:
    """Run a query in this thread's session.

    :returns: chdb's result, with `bytes()` and `get_memview()`.
    :raises EngineError: data did it. Never blame a message for anything else.
    :raises TransientError: the machine did it.
    :raises TerminalError: the query cannot be compiled.
    """
    try:
        return session().query(query, output_format)
    except UnicodeDecodeError as failure:
        # The exception's text quotes invalid UTF-8 of a message.
        error = EngineError(bytes(failure.object).decode(errors="replace"))
    except RuntimeError as failure:
        error = EngineError(str(failure))
    _drain()
    if error.code in _MACHINE_CODES:
        raise TransientError(
            f"the decoding engine failed: {str(error)[:300]}",
            "Give the worker more memory, or lower [batch] max_bytes.",
        )
    if error.code in _QUERY_CODES:
        raise TerminalError(
            f"a query of the decoder cannot be compiled: {str(error)[:300]}",
            "Check the table's types, defaults and partition key against this engine's version.",
        )
    raise error


def _drain() -> None:
    """Take what the engine had written of a failed query: it would stand before the output of
    the next one [measured, chdb 4.4]."""
    with suppress(RuntimeError, UnicodeDecodeError):
        session().query("SELECT 1 WHERE 0", "Null")


def release_memory() -> None:
    """Give what the engine's allocator keeps of freed memory back to the system.

    An engine that was built with another allocator refuses, and keeps it: nothing is lost, and
    a range that is loaded must not fail for it.
    """
    if _loaded_in == os.getpid():
        with suppress(EngineError, TransientError, TerminalError):
            run("SYSTEM JEMALLOC PURGE", "Null")


def settings_clause(**more: object) -> str:
    """The SETTINGS clause: the fixed ones and these, given as SQL literals."""
    merged = SETTINGS | {name: str(value) for name, value in more.items()}
    return "SETTINGS " + ", ".join(f"{name}={value}" for name, value in merged.items())


def literal(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name: str) -> str:
    """A quoted SQL identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def declared(columns: Iterable[tuple[str, str]]) -> str:
    """Names and types as the engine's table functions, and Tuple, take them."""
    return ", ".join(f"{identifier(name)} {type_text}" for name, type_text in columns)


def unlike(name: str, others: Iterable[str]) -> str:
    """The name, made longer until it is none of the others: rows that are called like one of their
    columns would give its elements for columns."""
    taken = set(others)
    while name in taken:
        name += "_"
    return name
