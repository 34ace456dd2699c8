"""The compiled parser of record batches (batches.c), called through ctypes.

The library is no Python module: it knows nothing of Python, and ctypes lets other threads
run while it works.
"""

from __future__ import annotations

import ctypes
from functools import cache

from sluice.core.errors import ConfigurationError, TerminalError
from sluice.machine import compiled

#: What `sluice_next` returns; batches.c says what to do then.
INPUT_DONE, FULL, COMPRESSED, RANGE_DONE, HEAVY, MORE = range(6)

#: `oldest_ms` while no message has a timestamp.
NO_TIMESTAMP = 2**63 - 1

#: What is wrong with a batch.
BROKEN = {
    -1: "its length is less than its header",
    -2: "its format is not version 2 (the topic was written before Kafka 0.11?)",
    -3: "its checksum (CRC-32C) does not fit its bytes",
    -4: "a record does not fit its length",
    -5: "its offsets are not ascending, or beyond its last offset",
    -6: "it does not hold as many records as it says",
}


class Parser(ctypes.Structure):
    """`struct parser` of batches.c, field by field."""

    _fields_ = [
        ("input", ctypes.c_void_p),
        ("input_bytes", ctypes.c_int64),
        ("at", ctypes.c_int64),
        ("aborted", ctypes.c_void_p),
        ("aborted_count", ctypes.c_int64),
        ("aborted_begin", ctypes.c_int64),
        ("records", ctypes.c_void_p),
        ("records_bytes", ctypes.c_int64),
        ("records_at", ctypes.c_int64),
        ("records_left", ctypes.c_int64),
        ("records_needed", ctypes.c_int64),
        ("is_whole", ctypes.c_int64),
        ("delta_min", ctypes.c_int64),
        ("base_offset", ctypes.c_int64),
        ("last_offset", ctypes.c_int64),
        ("first_ms", ctypes.c_int64),
        ("appended_ms", ctypes.c_int64),
        ("codec", ctypes.c_int64),
        ("window", ctypes.c_void_p),
        ("window_bytes", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("base", ctypes.c_int64),
        ("oldest_ms", ctypes.c_int64),
        ("bytes_max", ctypes.c_int64),
        ("messages", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("tombstones", ctypes.c_int64),
        ("addressed", ctypes.c_int64),
        ("heavy_at", ctypes.c_int64),
        ("text", ctypes.c_void_p),
        ("text_capacity", ctypes.c_int64),
        ("text_bytes", ctypes.c_int64),
        ("offsets", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("count_max", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("text_needed", ctypes.c_int64),
        ("digits", ctypes.c_int64),
        ("wanted", ctypes.c_void_p),
        ("wanted_count", ctypes.c_int64),
        ("wanted_at", ctypes.c_int64),
    ]


def address_of(memory: bytearray | memoryview) -> int:
    """Where the bytes are. The caller keeps `memory` alive and of the same size; it can be written
    to."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@cache
def library() -> ctypes.CDLL:
    """The loaded library.

    :raises ConfigurationError: it was not built, or does not fit this machine.
    """
    try:
        loaded = compiled.library(__file__, "_batches")
        if ctypes.c_int64.in_dll(loaded, "sluice_parser_bytes").value != ctypes.sizeof(Parser):
            raise ValueError("the compiled part _batches was built from another version")
    except (TerminalError, ValueError) as error:
        raise ConfigurationError(
            f'reader = "native": {error}',
            "Install Sluice again where it is to run, from source with gcc or clang, or set "
            'reader = "librdkafka".',
        ) from None
    loaded.sluice_next.argtypes = [ctypes.POINTER(Parser)]
    loaded.sluice_next.restype = ctypes.c_int64
    loaded.sluice_seal.argtypes = [ctypes.POINTER(Parser)]
    loaded.sluice_seal.restype = None
    loaded.sluice_delivered.argtypes = [ctypes.POINTER(Parser)]
    loaded.sluice_delivered.restype = None
    count = ctypes.POINTER(ctypes.c_int64)
    loaded.sluice_batches_end.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, count]
    loaded.sluice_batches_end.restype = ctypes.c_int64
    loaded.sluice_lz4_frame.argtypes = [ctypes.c_void_p, ctypes.c_int64] * 2
    loaded.sluice_lz4_frame.restype = ctypes.c_int64
    loaded.sluice_crc32c.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    loaded.sluice_crc32c.restype = ctypes.c_uint32
    return loaded
