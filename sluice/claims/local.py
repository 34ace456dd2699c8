"""Claims in files of this machine, for loaders whose workers all run on it.

    lock            who claims has it; holds the generation of the list of segments
    life            JSON: layout, and one life of what is in memory: its name, boot and lock file
    segment-NUMBER  claims (segment.py): looked for in all, newest first, and made in the newest
    notes/NAME      a note each

A segment is closed when it is full or older than a share of its claims' window, and removed as a
whole when its last claim has ended: nothing is ever searched for what has ended.

The page cache is shared and survives processes, so a process that is killed loses nothing. The
machine may lose what was not synced; then the boot is another one, and so is the run. The directory
has to be on a disk of this machine: file systems of a network do not share memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from sluice.claims.directory import SharedDirectory, is_old, write
from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts
from sluice.claims.segment import Segment, claim, release
from sluice.core.claims import OWNER_BYTES

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
