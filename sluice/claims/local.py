"""Claims in files of this machine, for loaders whose workers all run on it.

    lock            who claims has it; holds the generation of the list of segments
    life            JSON: layout, and one life of what is in memory: its name, boot and lock file
    segment-NUMBER  claims, see below: looked for in all, newest first, and made in the newest
    notes/NAME      a note each

A segment is closed when it is full or older than a share of its claims' window, and removed as a
whole when its last claim has ended: nothing is ever searched for what has ended.

The page cache is shared and survives processes, so a process that is killed loses nothing. The
machine may lose what was not synced; then the boot is another one, and so is the run. The directory
has to be on a disk of this machine: file systems of a network do not share memory.

A segment is a table in memory that processes share (table.c).

    header    one page: what the file is, and how many records it has
    index     by hash, 4 bytes a slot: which record a key has; it is as good as the memory it is in
    records   52 bytes each, in the order of their claims: key, owner, until, checksum

Records stand in their order, not where their hash puts them: so what is new since a moment is one
stretch of the file, and is on the disk soon. The index is never waited for; after a power failure
it is made anew from the records.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import random
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts, StoreRefusedError
from sluice.core.claims import OWNER_BYTES
from sluice.core.server_runs import server_run
from sluice.machine.compiled import Library

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


_LIBRARY = Library(__file__, "_table")


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
        self.begin = _checked(_LIBRARY.call("map", file, size))
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
        _LIBRARY.call("unmap", self.begin, self._size)
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
        _LIBRARY.call("index", self.begin, min(records, self.header.records_max))

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
            _checked(_LIBRARY.call("sync", self.begin, *place))
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
    given = keys, owners, len(keys), until_s, now_s
    return _LIBRARY.call("claim", _begins(segments), len(segments), *given, states, out)


def release(segments: Sequence[Segment], keys: Keys, owners: Owners) -> None:
    """Take back claims that these owners have; they count as unsynced."""
    _LIBRARY.call("release", _begins(segments), len(segments), keys, owners, len(keys))


#: A segment takes claims for this share of its longest window: so long, about, do claims cost
#: memory that have ended.
_WINDOW_SHARE = 8
#: But for so long at least: each segment is looked into for each key.
_OPEN_SECONDS_MIN = 60
_GENERATION_BYTES = 8

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.ENAMETOOLONG, errno.EOPNOTSUPP, errno.ENODEV),
}


class SharedDirectory:
    """What processes share, as one of them has it open.

    :param boot_id: the file that names this boot of the machine.
    :param lock_seconds: so long it waits for others.
    """

    def __init__(self, path: Path, boot_id: Path, lock_seconds: float) -> None:
        self.path = path
        self.notes = path / "notes"
        self.lock_seconds = lock_seconds
        #: What is in memory, in this life of it; known under the lock.
        self.run = ""
        #: Newest first, as of the last look under the lock.
        self.segments: list[Segment] = []
        self._boot_id = boot_id
        self._lock: int | None = None
        self._process = 0
        self._generation = -1

    def close(self) -> None:
        """Let it go; who locks it opens it again."""
        for segment in self.segments:
            segment.close()
        self.segments = []
        if self._lock is not None:
            os.close(self._lock)
        self._lock, self.run, self._generation = None, "", -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else claims meanwhile, and the list of segments is what it is now."""
        with self.as_store_errors():
            if self._process != os.getpid():
                self.close()  # a lock that was opened before a fork is one with that of the parent
            if self._lock is None:
                self._open()
            assert self._lock is not None
            lock = self._lock
            self.acquire(lock)
            try:
                self._refuse_another_directory(lock)
                if not self.run:
                    self._begin()
                elif self._generation_written() != self._generation:
                    self._refresh()
                yield
            finally:
                if self._lock is not None:
                    fcntl.flock(lock, fcntl.LOCK_UN)

    @contextmanager
    def as_store_errors(self) -> Iterator[None]:
        """What the system refuses becomes a StoreAwayError or a StoreRefusedError."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.path
            if error.errno in _FULL:
                raise StoreAwayError(
                    f"{self.path} is full: {error.strerror}",
                    "Make room on the disk of this directory; ranges are sent again until then.",
                ) from error
            if error.errno in _REFUSED:
                raise StoreRefusedError(
                    f"{where} cannot be used: {error.strerror}",
                    "It has to be on a disk of this machine, where the loader may write.",
                ) from error
            raise StoreAwayError(f"{where}: {error.strerror}") from error

    def _open(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._lock_path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._process = os.getpid()

    def acquire(self, file: int) -> None:
        """Lock an open file.

        :raises StoreAwayError: another process keeps it.
        """
        end = time.monotonic() + self.lock_seconds
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # One that is stopped in the middle would hold all others for good.
                if time.monotonic() > end:
                    raise StoreAwayError(
                        f"another process has held {self.path} for {self.lock_seconds} s",
                        f"Find it (`fuser {self._lock_path()}`); if it is stopped, end it.",
                    ) from None
            time.sleep(random.uniform(0.0005, 0.003))

    def _refuse_another_directory(self, lock: int) -> None:
        """:raises StoreAwayError: the directory is not what was opened; a next call opens it."""
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), self._lock_path().stat()):
                return
        self.close()
        raise StoreAwayError(f"{self.path} was removed or replaced")

    def _begin(self) -> None:
        """Find the run of this life, or begin one."""
        path = self.path / "life"
        lock = self._lock_path().stat()
        here = {"boot": self._boot_id.read_text().strip(), "lock": [lock.st_dev, lock.st_ino]}
        life: dict[str, object] = {}
        if path.exists():
            life = _read_life(path)
        else:
            self._refuse_strangers()
        self.notes.mkdir(exist_ok=True)
        self._refresh()
        if any(life.get(name) != here[name] for name in here):
            for segment in self.segments:
                segment.recover()
            self._generation = max([self._generation, *map(_number, self.segments)])
            self._write_generation(self._generation)
            life = {"layout": LAYOUT, "run": server_run(uuid.uuid4().hex, 0), **here}
            write(path, json.dumps(life))
        self.run = str(life["run"])

    def _refuse_strangers(self) -> None:
        """:raises StoreRefusedError: the directory holds something, and is no store."""
        for path in self.path.iterdir():
            if path.name not in ("lock", "notes") and path.suffix != ".new":
                raise StoreRefusedError(
                    f"{self.path} is no store of claims: it holds {path.name}, and no file "
                    "named life",
                    "Name an empty directory, or one that is not there yet. " + DAMAGED,
                )

    def _lock_path(self) -> Path:
        return self.path / "lock"

    def _generation_written(self) -> int:
        assert self._lock is not None
        return int.from_bytes(os.pread(self._lock, _GENERATION_BYTES, 0), "little")

    def _write_generation(self, generation: int) -> None:
        assert self._lock is not None
        os.pwrite(self._lock, generation.to_bytes(_GENERATION_BYTES, "little"), 0)

    @contextmanager
    def changed(self) -> Iterator[int]:
        """Change the list of segments, as of the generation that is given. It is written before
        anything is done: who is killed in between has others look in vain, and not miss it."""
        generation = self._generation + 1
        self._write_generation(generation)
        yield generation
        self._generation = generation

    def _refresh(self) -> None:
        """Open and close segments as others made and removed them."""
        paths = {p for p in self.path.glob("segment-*") if p.suffix != ".new"}
        for segment in [segment for segment in self.segments if segment.path not in paths]:
            self.segments.remove(segment)
            segment.close()
        for path in paths - {segment.path for segment in self.segments}:
            self.segments.append(Segment.open(path))
        self.segments.sort(key=_number, reverse=True)
        self._generation = self._generation_written()

    def make_room(self, keys: int, now_s: int) -> None:
        """Have the newest segment take a claim more, or begin one that is to take so many."""
        last = self.segments[0] if self.segments else None
        if last is None or last.is_full() or is_old(last, now_s):
            bits = slot_bits_for(max(keys, last.header.used if last else 0))
            with self.changed() as generation:
                path = self.path / f"segment-{generation:012}"
                last = Segment.create(path, bits, now_s)
                self.segments.insert(0, last)
        if last.header.used == last.header.allocated:
            last.grow()


def _number(segment: Segment) -> int:
    return int(segment.path.name.removeprefix("segment-"))


def is_old(segment: Segment, now_s: int) -> bool:
    """Whether it has taken claims for its share of their window."""
    header = segment.header
    open_seconds = max(header.longest_s // _WINDOW_SHARE, _OPEN_SECONDS_MIN)
    return bool(header.used) and now_s - header.created_s > open_seconds


def _read_life(path: Path) -> dict[str, object]:
    """:raises StoreRefusedError: it is damaged, or of another layout."""
    try:
        life = json.loads(path.read_text())
        layout = life["layout"]
        if layout == LAYOUT:
            return {name: life[name] for name in ("layout", "run", "boot", "lock")}
    except (ValueError, KeyError, TypeError):
        raise StoreRefusedError(f"{path} is damaged", DAMAGED) from None
    raise StoreRefusedError(f"{path} is of layout {layout}, not {LAYOUT}", DAMAGED)


def write(path: Path, text: str) -> None:
    """A file with this text, on the disk; at any moment either that, or what was there before."""
    unfinished = path.with_name(path.name + ".new")
    with unfinished.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    sync_directory(path.parent)


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LocalStore:
    """A `ClaimStore` in a directory, which it makes. Nothing is opened before the first call.

    :param boot_id: the file that names this boot of the machine.
    :param lock_seconds: so long it waits for others that claim.
    """

    def __init__(
        self, directory: str, *, boot_id: Path = BOOT_ID, lock_seconds: float = 30.0
    ) -> None:
        self._shared = SharedDirectory(Path(directory), boot_id, lock_seconds)

    def run(self) -> str:
        """See `ClaimStore.run`. Another boot, another directory and a copy are other runs."""
        with self._shared.locked():
            return self._shared.run

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        """See `ClaimStore.claim`. StoreAwayError also where the disk is full."""
        found = np.empty((len(keys), OWNER_BYTES), np.uint8)
        done = 0
        with self._shared.locked():
            if not self._shared.segments or is_old(self._shared.segments[0], now_s):
                self._shared.make_room(len(keys), now_s)
            while True:
                left = slice(done, None)
                done += claim(
                    self._shared.segments, keys[left], owners[left], until_s, now_s, found[left]
                )
                if done == len(keys):
                    break
                self._shared.make_room(len(keys) - done, now_s)
        return found

    def release(self, keys: Keys, owners: Owners) -> None:
        """See `ClaimStore.release`. What was released is so after a power failure, too."""
        with self._shared.locked():
            if self._shared.segments:
                release(self._shared.segments, keys, owners)
            unsynced = self._unsynced()
        self._sync(unsynced)

    def keep(self, notes: Mapping[str, str], run: str) -> None:
        """See `ClaimStore.keep`."""
        with self._shared.locked():
            if run != self._shared.run:
                raise StoreAwayError(f"the store of claims is another run than {run}")
            unsynced = self._unsynced()
        self._sync(unsynced)
        for name, text in notes.items():
            self._keep(self._note_path(name), text)

    def _keep(self, path: Path, text: str) -> None:
        with self._shared.as_store_errors():
            folder = os.open(self._shared.notes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Two that keep one note would write one unfinished file.
                self._shared.acquire(folder)
                if text:
                    write(path, text)
                else:
                    path.unlink(missing_ok=True)
                    os.fsync(folder)
            finally:
                os.close(folder)

    def notes(self) -> dict[str, str]:
        """See `ClaimStore.notes`."""
        found = {}
        with self._shared.locked():
            for path in self._shared.notes.iterdir():
                if path.suffix != ".new":
                    with suppress(FileNotFoundError):
                        found[unquote(path.name)] = path.read_text()
        return found

    def sweep(self, now_s: int, seconds: float) -> int:
        """See `ClaimStore.sweep`. Claims are counted that were made, also if they were released."""
        end = time.monotonic() + seconds
        count = 0
        with self._shared.locked():
            for segment in list(self._shared.segments):
                if segment.header.latest_s < now_s and time.monotonic() < end:
                    count += segment.header.used
                    with self._shared.changed():
                        self._shared.segments.remove(segment)
                        segment.remove()
        return count

    def facts(self) -> StoreFacts:
        """See `ClaimStore.facts`: claims that were made, and of which the files are there yet."""
        with self._shared.locked():
            disk = os.statvfs(self._shared.path)
            used = sum(segment.used_bytes() for segment in self._shared.segments)
            return StoreFacts(
                run=self._shared.run,
                keys=sum(segment.header.used for segment in self._shared.segments),
                used_bytes=used,
                max_bytes=used + disk.f_bavail * disk.f_frsize,
                loses="a power failure of this machine: what was claimed since the last note",
            )

    def close(self) -> None:
        """Let it go. Harmless when repeated; the next call opens it again."""
        self._shared.close()

    def _note_path(self, name: str) -> Path:
        # A point would be taken for that of an unfinished file.
        return self._shared.notes / quote(name, safe="").replace(".", "%2E")

    def _unsynced(self) -> list[tuple[Segment, int, int]]:
        return [
            (segment, *segment.unsynced())
            for segment in self._shared.segments
            if segment.header.synced < segment.header.used
        ]

    def _sync(self, unsynced: list[tuple[Segment, int, int]]) -> None:
        with self._shared.as_store_errors():
            for segment, begin, end in unsynced:
                segment.sync(begin, end)
