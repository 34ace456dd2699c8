"""The directory of the local store: who may change it now, and which segments there are."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sluice.claims.port import StoreAwayError, StoreRefusedError
from sluice.claims.segment import DAMAGED, LAYOUT, Segment, slot_bits_for, sync_directory
from sluice.core.server_runs import server_run

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
    """What processes share, as one of them has it open. local.py says what is in the directory.

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
