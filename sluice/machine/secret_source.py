"""Where a secret is read from, while it may change: a file, or what a command prints."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from sluice.core.errors import ConfigurationError

#: A command that has not ended by then is killed, and what it started in its process group.
TIME_LIMIT_SECONDS = 10.0
#: A command whose secret is refused is run again this much later at the earliest.
REST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The first line of a file, or what a command prints, without the line break at its end.

    No error quotes what a file holds, or what a command printed.

    :param key: what it is in the configuration, for messages.
    :param command: program and arguments; no shell reads them. (): `file` it is.
    """

    key: str
    file: str = ""
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file or the program, for messages."""
        return f"the command {self.command[0]}" if self.command else self.file

    def latest(self) -> str:
        """What the file says now; what the command said when this process ran it last, and it is
        run if it never was.

        :raises ConfigurationError: the secret cannot be had.
        """
        return _said_by(self).latest() if self.command else self._first_line()

    def other_than(self, refused: str) -> str:
        """What to try next where this secret was refused; the same if there is no other yet.

        :raises ConfigurationError: the secret cannot be had.
        """
        return _said_by(self).other_than(refused) if self.command else self._first_line()

    def _first_line(self) -> str:
        try:
            text = Path(self.file).read_text(encoding="utf-8")
        except OSError as error:
            raise self._unread(f"cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise self._unread("is not UTF-8") from None
        line = text.partition("\n")[0].removesuffix("\r")
        if not line:
            raise self._unread("has an empty first line")
        return line

    def run(self) -> str:
        """Run the command.

        :raises ConfigurationError: it failed.
        """
        try:
            process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError as error:
            raise self._unread(f"cannot be run: {error.strerror}") from None
        with process:
            try:
                printed = process.communicate(timeout=TIME_LIMIT_SECONDS)[0]
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                why = f"did not end within {TIME_LIMIT_SECONDS:g} s and was killed"
                raise self._unread(why) from None
        if process.returncode:
            raise self._unread(f"ended with exit code {process.returncode}")
        try:
            text = printed.decode()
        except UnicodeDecodeError:
            raise self._unread("printed what is not UTF-8") from None
        if not (secret := text.removesuffix("\n").removesuffix("\r")):
            raise self._unread("printed nothing")
        return secret

    def _unread(self, why: str) -> ConfigurationError:
        hint = (
            "Run it by hand as Sluice's user; what it prints to stdout is the secret."
            if self.command
            else "Name a file that Sluice's user can read, with the secret in its first line."
        )
        return ConfigurationError(f"{self.key}: {self.name} {why}", hint)


@dataclass(slots=True)
class _Said:
    """What a command said last in this process. Threads that ask at once run it once."""

    source: SecretSource
    _secret: str | None = None
    _run_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def latest(self) -> str:
        with self._lock:
            return self._run() if self._secret is None else self._secret

    def other_than(self, refused: str) -> str:
        with self._lock:
            if self._secret not in (None, refused):
                return self._secret or refused
            if self._run_at and time.monotonic() - self._run_at < REST_SECONDS:
                return refused
            return self._run()

    def _run(self) -> str:
        try:
            self._secret = self.source.run()
        finally:
            self._run_at = time.monotonic()
        return self._secret


@functools.cache
def _said_by(source: SecretSource) -> _Said:
    return _Said(source)
