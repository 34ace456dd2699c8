"""Logs on stderr: text on a terminal, one JSON object for each line otherwise.

Everybody logs through the standard library: the message names the event, and `extra` holds
its fields, `log.info("settled", extra={"topic": topic, "partition": 3})`. Secrets mask
themselves, since only their `str` is written.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

#: What the standard library puts on every record; all else are fields.
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


class JsonFormatter(logging.Formatter):
    """{"time", "level", "event", "logger", fields …}; time in UTC with milliseconds."""

    def __init__(self, is_debug: bool) -> None:
        super().__init__()
        self._is_debug = is_debug

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": f"{_clock(record, '%Y-%m-%dT%H:%M:%S', time.gmtime)}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            entry["error"] = f"{type(error).__name__}: {error}"
            if self._is_debug:
                entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """`12:30:01.250 settled topic=orders partition=3`, the level named from warnings on."""

    def __init__(self, is_debug: bool) -> None:
        super().__init__()
        self._is_debug = is_debug

    def format(self, record: logging.LogRecord) -> str:
        parts = [_clock(record, "%H:%M:%S", time.localtime)]
        if record.levelno != logging.INFO:
            parts.append(f"{record.levelname.lower()}:")
        parts.append(record.getMessage())
        parts += [f"{name}={_bare(value)}" for name, value in _fields(record).items()]
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            parts.append(f"error={_bare(f'{type(error).__name__}: {error}')}")
            if self._is_debug:
                parts.append("\n" + self.formatException(record.exc_info))
        return " ".join(parts)


def configure(log_format: str | None, is_debug: bool, stream: TextIO | None = None) -> None:
    """Send all logs of this process to stderr. The last call wins.

    :param log_format: "text" or "json"; None: text if the stream is a terminal.
    """
    target = sys.stderr if stream is None else stream
    is_text = log_format == "text" or (log_format is None and target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(TextFormatter(is_debug) if is_text else JsonFormatter(is_debug))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("sluice").setLevel(logging.DEBUG if is_debug else logging.INFO)


def _clock(record: logging.LogRecord, pattern: str, convert: Any) -> str:
    return f"{time.strftime(pattern, convert(record.created))}.{int(record.msecs):03d}"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: value for name, value in record.__dict__.items() if name not in _STANDARD_ATTRIBUTES
    }


def _bare(value: object) -> str:
    """Without quotes where it is one plain word."""
    text = str(value)
    is_plain = text.isprintable() and text and not any(character in text for character in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
