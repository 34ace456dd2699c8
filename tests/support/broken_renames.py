"""An embedded engine whose next part does not get its name, or which ends when it has it.

The engine writes down that it knows a block, and then renames the part; a part that is moved gets
its name in one table before it goes from the other. What happens in between is made by a small
library that is put before the C library's `rename`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sluice.testbed.local.running import ClickHouse

#: The engine is loaded so that it would not see the library: RTLD_DEEPBIND is taken away.
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void *dlopen(const char *file, int flags) {
    static void *(*real)(const char *, int);
    if (!real) real = dlsym(RTLD_NEXT, "dlopen");
    return real(file, flags & ~RTLD_DEEPBIND);
}
int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *);
    if (!real) real = dlsym(RTLD_NEXT, "rename");
    const char *order = getenv("SLUICE_TEST_RENAME");
    if (order && strstr(from, getenv("SLUICE_TEST_RENAME_OF"))) {
        static int renamed;
        char said[8] = "", what = 0;
        int file = open(order, O_RDONLY);
        if (file >= 0) {
            if (read(file, said, sizeof said - 1) > 0) what = said[0];
            close(file);
        }
        if (what && ++renamed < atoi(said + 1)) what = 0;
        if (what) { unlink(order); renamed = 0; }
        if (what == 'a') real(from, to);
        if (what == 'k' || what == 'a') { kill(getpid(), SIGKILL); pause(); }
        if (what == 'f') { errno = EIO; return -1; }
    }
    return real(from, to);
}
"""

#: "after": killed when the part has its name.
Breakage = Literal["killed", "fails", "after"]


class BreakingServer(ClickHouse):
    """`break_next` says what becomes of the next part that is to be renamed."""

    def __init__(self, folder: Path, library: Path, parts: str) -> None:
        super().__init__(folder / "data")
        self._library, self._parts = library, parts
        self._order = folder / "order"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "SLUICE_TEST_RENAME": str(self._order),
            "SLUICE_TEST_RENAME_OF": self._parts,
        }

    def break_next(self, how: Breakage, number: int = 1) -> None:
        """
        :param number: from 1 on, of those that are renamed from now on.
        """
        self._order.write_text(f"{how[0]}{number}")

    @property
    def is_broken(self) -> bool:
        """Whether that has happened."""
        return not self._order.exists()


@contextmanager
def run_breaking(folder: Path, parts: str = "tmp_insert_") -> Iterator[BreakingServer]:
    """Run it until the block ends.

    :param parts: which of them, by what they are called before.
    """
    folder.mkdir(parents=True)
    source, library = folder / "rename.c", folder / "rename.so"
    source.write_text(_SOURCE)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    server = BreakingServer(folder, library, parts)
    try:
        server.start()
        yield server
    finally:
        server.stop()
