"""The examples of the documents, and rows for them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from sluice.clickhouse.http import Server

_ROOT = Path(__file__).parents[2]
#: Of `write_clicks`: files, and clicks in each.
FILES, CLICKS = 3, 60


def code_of(document: str, kind: str, word: str) -> str:
    """The block of code of this kind in which the word stands."""
    blocks: list[str] = re.findall(
        rf"```{kind}\n(.*?)```", (_ROOT / document).read_text(), re.DOTALL
    )
    (found,) = (text for text in blocks if word in text)
    return found


def create_table(server: Server, document: str, word: str) -> None:
    """The table of an example, in a new database `shop`."""
    server.execute("DROP DATABASE IF EXISTS shop SYNC")
    server.execute("CREATE DATABASE shop")
    server.execute(code_of(document, "sql", word).rstrip().rstrip(";"))


def write_clicks(folder: Path) -> None:
    """Users, and files of clicks, each 20 minutes later than the one before."""
    users = [{"user": n, "country": "DE" if n % 2 else "FR"} for n in range(9)]
    _write(folder / "users", "u", users)
    for part in range(FILES):
        clicks = [
            {
                "user": n % 9,
                "at": f"2026-01-01T00:{part * 20 + n // 30:02d}:{n % 60:02d}Z",
                "amount": n / 100,
            }
            for n in range(CLICKS)
        ]
        _write(folder / "clicks", str(part), clicks)
        # Spark reads files in the order of their times, to the millisecond: an older one that it
        # reads later has late clicks only.
        os.utime(folder / "clicks" / f"{part}.json", (part + 1, part + 1))


def rows_of_clicks() -> list[tuple[str, str, int, int]]:
    """Minute, country, clicks and users of the minutes that are over after the last file."""
    found = []
    for minute in (0, 1, 20, 21):
        numbers = range(30) if minute % 20 == 0 else range(30, 60)
        for country, odd in (("DE", 1), ("FR", 0)):
            users = [n % 9 for n in numbers if n % 9 % 2 == odd]
            found.append((f"2026-01-01 00:{minute:02d}:00", country, len(users), len(set(users))))
    return found


def _write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
