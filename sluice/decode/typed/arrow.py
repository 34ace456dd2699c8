"""What the engine does not tell of files: read by pyarrow."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from typing import Any


def null_list(name: str, value: bytes, columns: list[str]) -> str:
    """The first of these columns with a list or map that is null, which the engine shows as an
    empty one; "" if there is none, or if that cannot be read.

    :param name: of the format.
    """
    import pyarrow
    from pyarrow import ipc, orc, parquet

    try:
        source = pyarrow.BufferReader(value)
        if name == "Parquet":
            read = parquet.read_table(source, columns=columns)
        elif name == "ORC":
            read = orc.read_table(source, columns=columns)
        else:
            opened = ipc.open_file(source) if name == "Arrow" else ipc.open_stream(source)
            read = opened.read_all().select(columns)
        for column in columns:
            if _has_null(read.column(column), _is_list):
                return column
    except (pyarrow.ArrowException, OSError, ValueError, KeyError):
        return ""
    return ""


def arrow_of_parquet(value: bytes, wanted: Collection[str]) -> bytes:
    """A file of Arrow with the rows of one of Parquet, if some of these columns hold a struct that
    is null, which the engine shows as one of nulls, or a time of day, which it shows as a moment
    of the year 1970; b"" if not, or if that cannot be read."""
    import pyarrow
    from pyarrow import ipc, parquet, types

    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(value))
        fields = [field for field in file.schema_arrow if field.name in wanted]
        structs = [one.name for one in fields if _holds(one.type, types.is_struct)]
        if not any(_holds(one.type, types.is_time) for one in fields):
            read = file.read(columns=structs) if structs else None
            if read is None or not any(_has_null(one, types.is_struct) for one in read.columns):
                return b""
        read = _with_uuids_as_text(file)
        out = io.BytesIO()
        with ipc.new_file(out, read.schema) as written:
            written.write_table(read)
    except (pyarrow.ArrowException, OSError, ValueError, KeyError):
        return b""
    return out.getvalue()


def _with_uuids_as_text(file: Any) -> Any:
    """Arrow has bytes for them, which nothing tells from others."""
    import uuid

    import pyarrow

    read = file.read()
    for leaf in map(file.schema.column, range(len(file.schema))):
        if leaf.logical_type.type == "UUID" and leaf.path in read.column_names:
            place = read.column_names.index(leaf.path)
            values = (
                one and str(uuid.UUID(bytes=getattr(one, "bytes", one)))
                for one in read.column(place).to_pylist()
            )
            read = read.set_column(place, leaf.path, pyarrow.array(values, pyarrow.string()))
    return read


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return any(is_it(kind) for is_it in (types.is_map, types.is_list, types.is_large_list))


def _holds(kind: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether a type is such a one, or has one in it."""
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return bool(is_it(kind)) or any(_holds(one, is_it) for one in inner)


def _has_null(values: Any, is_it: Callable[[Any], bool]) -> bool:
    """Whether a value of such a type is null, here or inside."""
    from pyarrow import types

    kind = values.type
    if is_it(kind) and values.null_count:
        return True
    for array in getattr(values, "chunks", [values]):
        if types.is_struct(kind):
            present = array.filter(array.is_valid())
            inner = [present.field(place) for place in range(kind.num_fields)]
        elif types.is_map(kind):
            inner = [array.items]
        else:
            inner = [array.flatten()] if _is_list(kind) else []
        if any(_has_null(one, is_it) for one in inner):
            return True
    return False
