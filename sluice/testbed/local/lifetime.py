"""How the programs of the local stack and runs on it hold their folders, and how they end."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sluice.core.errors import ConfigurationError, TerminalError

#: Set by whoever starts a program for itself only: the program ends with that process.
PARENT_VARIABLE = "SLUICE_LOCAL_PARENT"

_LOCK_NAME = "sluice-local.lock"
_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.2


def lock_folder(data: Path) -> int:
    """Take a folder for this process; the kernel gives it back however the process ends.

    :returns: a descriptor; closing it gives the folder back.
    :raises ConfigurationError: the folder cannot be made or written.
    :raises TerminalError: another process has it.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock_fd = os.open(data / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(
            f"--data {data}: {error.strerror}", "Choose a folder that this user may write."
        ) from error
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
        os.close(lock_fd)
        raise TerminalError(
            f"the folder {data} is in use by process {owner or 'unknown'}",
            f"Stop that process (kill {owner or 'PID'}), or choose another --data folder.",
        ) from None
    os.ftruncate(lock_fd, 0)
    os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
    return lock_fd


class StopRequest:
    """SIGTERM, SIGINT, or the end of the process that this one was started for.

    To be made in the main thread, after libraries that install handlers of their own.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._parent = int(os.environ.get(PARENT_VARIABLE, "0"))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())

    @property
    def came(self) -> bool:
        """True once this process should end."""
        orphaned = self._parent and os.getppid() != self._parent
        return bool(self._stop.is_set() or orphaned)

    def wait(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Return when the process should end, or when `goes_on` says no."""
        while not self.came and goes_on():
            self._stop.wait(_LOOK_SECONDS)


#: Becomes the command that follows its parent's process id. Ignored signals would stay ignored.
_BECOME = f"""\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):  # it ended before the kernel was told
    os._exit(1)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """The command for a child that the kernel kills when the thread that started it ends.

    So a child never outlives its parent, not even one that was killed with SIGKILL. To be started
    as it is, in the parent's own process id: a `preexec_fn` would run Python in a fork of all
    that the parent has loaded, where the embedded engine of another thread waits for ever to be
    closed [measured].
    """
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(os.getpid()), *command]


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.01


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, once: what ends the run is not disturbed.

    A signal that falls into code whose exceptions Python ignores (what runs around a fork, a
    finalizer) raises again when that code has ended. SIGALRM serves for this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hook = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    def ignored(found: sys.UnraisableHookArgs) -> None:
        if found.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
        else:
            hook(found)

    before = {number: signal.signal(number, interrupt) for number in (*_SIGNALS, signal.SIGALRM)}
    sys.unraisablehook = ignored
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def working_folder(prefix: str, keep: bool) -> Iterator[Path]:
    """A new folder in the temporary one, removed at the end unless it is to stay."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
