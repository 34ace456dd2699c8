"""The files that a configuration consists of: one, or all of a folder, or both, as one tree.

Teams own files. So nothing is taken from one file over another one: a key that two files set is an
error that names both. Entries of [[table]] stand side by side; those of [[connector]] with one
name are one connector, whose topics are joined, so that a table's file can name its topic, too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.config.each_topic import entries_of
from sluice.config.findings import Findings, RefusedError, join_path
from sluice.config.interpolation import entry_path
from sluice.core.errors import ConfigurationError

_SUFFIX = ".toml"
_PART = r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'"""
_PATH = rf"(?:{_PART})(?:\s*\.\s*(?:{_PART}))*"
_HEADER = re.compile(rf"\s*(\[\[?)\s*({_PATH})\s*\]\]?\s*(?:#.*)?")
_KEY = re.compile(rf"\s*({_PATH})\s*=")


class Written:
    """A configuration as it is written, before variables are replaced. No dataclass, so that it is
    not printed with one: a secret may stand in it.

    :param path: as the user named it.
    :param folder: that names of files in it are relative to.
    :param files: which file says it, by the path of a key; what is not in it, `path` says.
    """

    def __init__(
        self, path: Path, folder: Path, tree: dict[str, Any], files: Mapping[str, str]
    ) -> None:
        self.path, self.folder, self.tree, self.files = path, folder, tree, files

    def file_of(self, where: str) -> str:
        """The file that a key stands in, or should."""
        while where and where not in self.files:
            where = re.sub(r"\.?(\"[^\"]*\"|[^.\[\]\"]+|\[[^\]]*\])$", "", where)
        return self.files.get(where, str(self.path))


def read_written(path: Path) -> Written:
    """Read a file, and those of the folder beside it that has its name and ends in `.d`; or all
    files of a folder.

    :raises ConfigurationError: one cannot be read, or two set the same key.
    """
    is_folder = path.is_dir()
    beside = path.with_suffix(".d")
    further = _files_of(path if is_folder else beside) if is_folder or beside.is_dir() else []
    if is_folder and not further:
        raise ConfigurationError(
            f"{path}: has no file that ends in {_SUFFIX}", "Name a file, or put one there."
        )
    paths = further if is_folder else [path, *further]
    merging = _Merging(str(path))
    for each in paths:
        text = _text(each)
        merging.add(_File(str(each), _tree(each, text), text))
    merging.findings.raise_if_any()
    folder = path.absolute() if is_folder else path.absolute().parent
    return Written(path, folder, merging.tree, merging.files() if len(paths) > 1 else {})


def _files_of(folder: Path) -> list[Path]:
    found = (each for each in folder.glob(f"*{_SUFFIX}") if not each.name.startswith("."))
    return sorted(each for each in found if each.is_file())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: there is no such file", "Name the file, or write one with `sluice init`."
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 at byte {error.start}") from None


def _tree(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"{path}: is not TOML: {error}", "Correct the line that the message names."
        ) from None


@dataclass(slots=True)
class _File:
    name: str
    tree: dict[str, Any]
    text: str

    def place(self, at: str) -> str:
        """Where a key stands, or what it is written within.

        :param at: a path as `_lines` gives it.
        """
        lines = dict(_lines(self.text))
        while at and at not in lines:
            at = at.rpartition(".")[0]
        return f"{self.name}, line {lines.get(at, 1)}"


@dataclass(slots=True)
class _Merging:
    """Files that become one tree.

    :param path: what messages that name two files begin with.
    """

    path: str
    tree: dict[str, Any] = field(default_factory=dict)
    #: Which file set a key, and how the key is found there.
    _origins: dict[str, tuple[_File, str]] = field(default_factory=dict)
    findings: Findings = field(init=False)

    def __post_init__(self) -> None:
        self.findings = Findings(self.path)

    def files(self) -> dict[str, str]:
        """See `Written`."""
        return {where: file.name for where, (file, _) in self._origins.items()}

    def add(self, file: _File) -> None:
        """One more file."""
        for key, value in file.tree.items():
            if key in ("table", "connector") and isinstance(value, list):
                self._add_entries(file, key, value)
            else:
                self._add(file, self.tree, key, value, "", "")

    def _add_entries(self, file: _File, kind: str, entries: list[Any]) -> None:
        known = self.tree.setdefault(kind, [])
        if not isinstance(known, list):
            self._refuse(file, kind, f"{kind}[1]")
            return
        self._origins.setdefault(kind, (file, f"{kind}[1]"))
        named = {each.get("name"): each for each in known if isinstance(each, dict)}
        for at, entry in self._written_out(file, kind, entries):
            name = entry.get("name") if isinstance(entry, dict) else None
            before = named.get(name) if name is not None else None
            if before is None:
                known.append(entry)
                where = entry_path(kind, len(known) - 1, entry)
                self._origins[where] = file, f"{at}.name"
                for key in entry if isinstance(entry, dict) else ():
                    self._origins[join_path(where, key)] = file, f"{at}.{key}"
                continue
            where = entry_path(kind, 0, before)
            if kind == "table":
                self._refuse(file, where, f"{at}.name")
                continue
            for key, value in entry.items():
                if key == "topics":
                    self._join_topics(file, before, value, where, at)
                elif key != "name":
                    self._add(file, before, key, value, where, at)

    def _written_out(self, file: _File, kind: str, entries: list[Any]) -> Iterator[tuple[str, Any]]:
        """Each entry, and how it is found in the file."""
        for number, entry in enumerate(entries, 1):
            at = f"{kind}[{number}]"
            try:
                made = entries_of(entry) if kind == "table" else [entry]
            except RefusedError as refusal:
                self.findings.add(at, f"{refusal} ({file.place(at)})")
                continue
            yield from ((at, one) for one in made)

    def _join_topics(
        self, file: _File, connector: dict[str, Any], topics: Any, where: str, at: str
    ) -> None:
        known = connector.setdefault("topics", [])
        both = isinstance(known, list) and isinstance(topics, list)
        if not both or any(topic in known for topic in topics):
            self._refuse(file, join_path(where, "topics"), f"{at}.topics")
            return
        connector["topics"] = [*known, *topics]
        self._origins.setdefault(join_path(where, "topics"), (file, f"{at}.topics"))

    def _add(
        self, file: _File, into: dict[str, Any], key: str, value: Any, parent: str, at: str
    ) -> None:
        """Set a key that no other file sets; sections of both are joined, key by key."""
        where, at = join_path(parent, key), f"{at}.{key}" if at else key
        if key not in into:
            into[key] = value
            for each, place in _keys(value, where, at):
                self._origins[each] = file, place
        elif isinstance(into[key], dict) and isinstance(value, dict):
            for inner, item in value.items():
                self._add(file, into[key], inner, item, where, at)
        else:
            self._refuse(file, where, at)

    def _refuse(self, file: _File, where: str, at: str) -> None:
        first, there = self._origins[where]
        self.findings.add(
            where, f"is set twice: {first.place(there)}, and {file.place(at)}; keep one of them"
        )


def _keys(value: Any, where: str, at: str) -> Iterator[tuple[str, str]]:
    """A key, and all below it: their paths in the tree and in the file."""
    yield where, at
    for key, item in value.items() if isinstance(value, dict) else ():
        yield from _keys(item, join_path(where, key), f"{at}.{key}")


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """The line of each section, entry and key, as `table[2].format`; a key of a text of several
    lines may be taken for one of the file."""
    parent, counts = "", dict[str, int]()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            parts = [part.strip("\"'") for part in re.findall(_PART, header[2])]
            if header[1] == "[[" and len(parts) == 1:
                counts[parts[0]] = counts.get(parts[0], 0) + 1
            if parts[0] in counts:
                parts[0] = f"{parts[0]}[{counts[parts[0]]}]"
            parent = ".".join(parts)
            yield parent, number
        elif (key := _KEY.match(line)) is not None:
            name = ".".join(part.strip("\"'") for part in re.findall(_PART, key[1]))
            yield f"{parent}.{name}" if parent else name, number
