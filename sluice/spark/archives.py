"""A Java program's classes, read and verified once for all later starts (class data sharing).

An archive of them is mapped into memory instead. It is named after the Java and the jars that it
was made of; Java compares it with both once more, and goes on without where they differ.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

#: Java says what it left out, or why it goes on without: for set-up that is nothing to act on.
_QUIET = ("-Xlog:cds=error", "-Xlog:cds+dynamic=error")


def path_of(program: str, folder: Path, java: Path, jars: str) -> Path:
    """Where the archive of a program is, if it was made.

    :param java: what runs the program.
    :param jars: which ones; others have other words.
    """
    name = hashlib.sha256(f"{_release_of(java)}\n{jars}".encode()).hexdigest()[:12]
    return folder / f"{program}-classes-{name}.jsa"


def _release_of(java: Path) -> str:
    """What a Java says of itself: version, vendor, build."""
    try:
        return f"{java}\n{(java.parent.parent / 'release').read_text()}"
    except OSError:
        return str(java)


def options_of(path: Path) -> list[str]:
    """Options of Java for the next start of an archive's program; none if it was not made."""
    return [f"-XX:SharedArchiveFile={path}", *_QUIET] if is_whole(path) else []


def is_whole(path: Path) -> bool:
    """Whether it is as long as when it was made: of one that was cut off Java dies [measured],
    with other damage in its head it goes on without."""
    try:
        return path.stat().st_size == int(_size_of(path).read_text())
    except (OSError, ValueError):
        return False


def _size_of(path: Path) -> Path:
    return path.with_suffix(".size")


def set_up(program: str, path: Path, run: Callable[[str], None]) -> int:
    """Make an archive unless it is there. Nothing depends on it, so nothing fails here.

    :param run: runs the program to its end, with these options of Java.
    :returns: 0, the exit status.
    """
    try:
        made = path if is_whole(path) else _make(path, run)
    except Exception as error:
        print(f"none, {program} starts without: {type(error).__name__}: {error}")
        return 0
    if made is None:
        print(f"none, {program} starts without: this Java makes none")
        return 0
    print(f"{path} ({path.stat().st_size >> 20} MiB)")
    return 0


def _make(path: Path, run: Callable[[str], None]) -> Path | None:
    """Run a program once, and keep the classes that it took.

    :returns: the archive; None if this Java makes none, as one without an archive of its own
        classes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{path.name.rpartition('-')[0]}-*"):
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        run(" ".join([f"-XX:ArchiveClassesAtExit={made}", *_QUIET]))
        if not made.is_file():
            return None
        made.chmod(0o644)
        _size_of(path).write_text(str(made.stat().st_size))
        made.replace(path)
    return path
