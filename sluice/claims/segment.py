"""One file of the local store of claims: a table in memory that processes share (table.c).

    header    one page: what the file is, and how many records it has
    index     by hash, 4 bytes a slot: which record a key has; it is as good as the memory it is in
    records   52 bytes each, in the order of their claims: key, owner, until, checksum

Records stand in their order, not where their hash puts them: so what is new since a moment is one
stretch of the file, and is on the disk soon. The index is never waited for; after a power failure
it is made anew from the records.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreRefusedError
from sluice.core.compiled import address, library

LAYOUT = 1
DAMAGED = (
    "Stop every loader that uses the directory, remove it and start them again: "
    "claims are then made anew from the tables."
)

_MAGIC = b"sluiceCL"
_HEADER_BYTES = 4096
_SLOT_BYTES, _RECORD_BYTES = 4, 52
#: Slots of an index are a power of two; a position takes 25 bits of a slot.
_SLOT_BITS_MIN, _SLOT_BITS_MAX = 16, 25
#: So many of ten slots are taken at most.
_TAKEN_MAX = 7
#: The disk is asked for so many records at a time.
_STEP = (16 << 20) // _RECORD_BYTES


class _Header(ctypes.Structure):
    """`struct header` of table.c. What stands before `check` is written once."""

    magic: bytes
    layout: int
    slot_bits: int
    created_s: int
    check: int
    index_at: int
    records_at: int
    records_max: int
    used: int
    allocated: int
    synced: int
    latest_s: int
    longest_s: int

    _fields_ = (
        ("magic", ctypes.c_char * 8),
        *((name, ctypes.c_uint32) for name in ("layout", "slot_bits", "created_s", "check")),
        *((name, ctypes.c_uint64) for name in ("index_at", "records_at", "records_max")),
        *((name, ctypes.c_uint64) for name in ("used", "allocated", "synced")),
        *((name, ctypes.c_uint32) for name in ("latest_s", "longest_s")),
    )


@cache
def _library() -> ctypes.CDLL:
    found = library(__file__, "_table")
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    found.sluice_claim.argtypes = [
        *(pointer, number, pointer, pointer, number, number, number, pointer, pointer)
    ]
    found.sluice_release.argtypes = [pointer, number, pointer, pointer, number]
    found.sluice_index.argtypes = [pointer, number]
    found.sluice_map.argtypes = [number, number]
    found.sluice_unmap.argtypes = [pointer, number]
    found.sluice_sync.argtypes = [pointer, number, number]
    for name in ("claim", "map", "unmap", "sync"):
        getattr(found, f"sluice_{name}").restype = number
    for name in ("release", "index"):
        getattr(found, f"sluice_{name}").restype = None
    return found


def _checked(result: int) -> int:
    """:raises OSError: the number says so."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def _check_of(header: _Header) -> int:
    fixed = (header.slot_bits, header.created_s, header.index_at)
    return zlib.crc32(repr((*fixed, header.records_at, header.records_max)).encode())


def slot_bits_for(records: int) -> int:
    """Of the index of a segment that is to have twice as many slots as this, within bounds."""
    return min(max((2 * records - 1).bit_length(), _SLOT_BITS_MIN), _SLOT_BITS_MAX)


class Segment:
    """A segment file, open and in memory. Who changes it has the lock of the store.

    OSErrors are the caller's; also those of a full disk, which come before anything is changed.
    """

    def __init__(self, path: Path, file: int, size: int) -> None:
        self.path = path
        self._file, self._size = file, size
        self.begin = _checked(_library().sluice_map(file, size))
        self.header = _Header.from_address(self.begin)

    @classmethod
    def create(cls, path: Path, slot_bits: int, now_s: int) -> Self:
        """A new one, whole on the disk before it has its name.

        :param now_s: when its first claims are made.
        """
        records_at = _HEADER_BYTES + (_SLOT_BYTES << slot_bits)
        header = _Header(_MAGIC, LAYOUT, slot_bits, now_s, 0, _HEADER_BYTES, records_at)
        header.records_max = (1 << slot_bits) * _TAKEN_MAX // 10
        header.check = _check_of(header)
        unfinished = path.with_suffix(".new")
        file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            os.posix_fallocate(file, 0, records_at)
            os.pwrite(file, bytes(header), 0)
            os.fsync(file)
            found = cls(path, file, records_at + header.records_max * _RECORD_BYTES)
            unfinished.rename(path)
            sync_directory(path.parent)
        except OSError:
            os.close(file)
            unfinished.unlink(missing_ok=True)
            raise
        return found

    @classmethod
    def open(cls, path: Path) -> Self:
        """One that is there.

        :raises StoreRefusedError: it is damaged, or of another layout.
        """
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            header = _Header.from_buffer_copy(os.pread(file, _HEADER_BYTES, 0).ljust(_HEADER_BYTES))
            if header.magic != _MAGIC or header.layout != LAYOUT:
                raise StoreRefusedError(
                    f"{path} is no file of claims of layout {LAYOUT}: its first bytes are "
                    f"{bytes(header)[:12]!r}",
                    DAMAGED,
                )
            if header.check != _check_of(header) or os.fstat(file).st_size < header.records_at:
                raise StoreRefusedError(f"{path} is damaged: its header or size is wrong", DAMAGED)
            return cls(path, file, header.records_at + header.records_max * _RECORD_BYTES)
        except BaseException:
            os.close(file)
            raise

    def close(self) -> None:
        """Let it go; its `header` is gone then."""
        del self.header
        _library().sluice_unmap(self.begin, self._size)
        os.close(self._file)

    def remove(self) -> None:
        """Remove the file, and let it go."""
        self.path.unlink()
        # Others have it in memory until they look again, and its room with it. Without the lock
        # they touch only its header.
        os.ftruncate(self._file, _HEADER_BYTES)
        self.close()

    def recover(self) -> None:
        """Make index and header anew from the records that the disk kept."""
        size = os.fstat(self._file).st_size
        records = (size - self.header.records_at) // _RECORD_BYTES
        _library().sluice_index(self.begin, min(records, self.header.records_max))

    def is_full(self) -> bool:
        """It takes no more claims."""
        return self.header.used == self.header.records_max

    def grow(self) -> None:
        """Have room for some more records."""
        header = self.header
        allocated = min(header.used + _STEP, header.records_max)
        begin = header.records_at + header.allocated * _RECORD_BYTES
        end = header.records_at + allocated * _RECORD_BYTES
        # A page of a file that has no room on the disk would end the process that writes to it.
        os.posix_fallocate(self._file, begin, end - begin)
        header.allocated = allocated

    def unsynced(self) -> tuple[int, int]:
        """The records that are perhaps not on the disk, half-open."""
        return self.header.synced, self.header.used

    def sync(self, begin: int, end: int) -> None:
        """Have these records on the disk, and the header. Needs no lock."""
        at = self.header.records_at
        places = (at + begin * _RECORD_BYTES, at + end * _RECORD_BYTES), (0, _HEADER_BYTES)
        for place in places:
            _checked(_library().sluice_sync(self.begin, *place))
        self.header.synced = max(self.header.synced, end)

    def used_bytes(self) -> int:
        """Of the disk."""
        return os.fstat(self._file).st_blocks * 512


def sync_directory(path: Path) -> None:
    """Have its names on the disk."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _begins(segments: Sequence[Segment]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(segments))(*(segment.begin for segment in segments))


def claim(
    segments: Sequence[Segment], keys: Keys, owners: Owners, until_s: int, now_s: int, out: Owners
) -> int:
    """Claim keys in the first of the segments, newest first, that none of them has.

    :param out: who has each; lines that are not done are undefined.
    :returns: how many were done; fewer than given where the first one has to grow.
    """
    states = np.zeros(len(keys), np.uint8)
    places = (address(keys), address(owners), len(keys), until_s, now_s)
    done: int = _library().sluice_claim(
        _begins(segments), len(segments), *places, address(states), address(out)
    )
    return done


def release(segments: Sequence[Segment], keys: Keys, owners: Owners) -> None:
    """Take back claims that these owners have; they count as unsynced."""
    _library().sluice_release(
        _begins(segments), len(segments), address(keys), address(owners), len(keys)
    )
