"""Files in memory, which the engine reads and writes by their paths."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

#: Linux writes no more parts at once.
_PARTS_MAX = 1024


class MemoryFile:
    """A file that lives until it is closed, or until nobody has it any more.

    :param name: for people who look at a process.
    """

    def __init__(self, name: str) -> None:
        self.file = os.memfd_create(f"sluice-{name}", os.MFD_CLOEXEC)

    @property
    def path(self) -> str:
        """Where this process reads and writes it."""
        return f"/proc/self/fd/{self.file}"

    @property
    def size(self) -> int:
        """Its bytes."""
        return os.fstat(self.file).st_size

    def append(self, *parts: bytes | memoryview) -> None:
        """Write behind what was written here; a write may be short above 2 GiB."""
        for begin in range(0, len(parts), _PARTS_MAX):
            some = parts[begin : begin + _PARTS_MAX]
            left = sum(map(len, some)) - os.writev(self.file, some)
            rest = memoryview(b"".join(some))[-left:] if left else memoryview(b"")
            while rest:
                rest = rest[os.write(self.file, rest) :]

    def mapped(self) -> memoryview:
        """All of it, read-only. It has the memory until it is dropped, also when this is closed."""
        return memoryview(mmap.mmap(self.file, self.size, prot=mmap.PROT_READ))

    def close(self) -> None:
        """Give the memory back. Safe to repeat."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


@contextmanager
def memory_file(*parts: bytes | memoryview) -> Iterator[str]:
    """A path at which this process reads these parts, one behind the other."""
    with MemoryFile("part") as file:
        file.append(*parts)
        yield file.path
