"""The logging of the server: for people on a terminal, for machines with `--log-format json`.

The command line calls `setup` once. All other code uses `logging.getLogger("tidemill.<layer>")` (or the
module's `__name__`) and writes one line per event. Machine-readable data goes into `extra={"fields": {...}}`.
It becomes `key=value` at the end of the line, or keys of the JSON object. The text and values of statements
are never logged above DEBUG, and secrets never at all.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from tidemill.errors import TidemillError

# Libraries whose INFO messages are noise here. py4j logs every call at DEBUG, including the secrets of its
# gateway, so it must never be set below WARNING.
_QUIET = ("py4j", "pyspark", "uvicorn", "asyncio")
_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "CRITICAL": "fatal"}
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def setup(log_format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logs of this process to `stream` (standard error). May be called again to change the
    format."""
    out: TextIO = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(out)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter(colour=log_format == "auto" and out.isatty()))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, Mapping) else {}


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


class TextFormatter(logging.Formatter):
    """`12:00:00.123 info  engine    message key=value`. A deliberate error is shown as its text, a bug with
    its traceback."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = _LEVELS.get(record.levelname, record.levelname.lower())
        name = record.name.removeprefix("tidemill.")
        parts = [
            self._paint(f"{clock}.{int(record.msecs):03d}", "2"),
            self._paint(f"{level:5}", _COLOURS.get(record.levelname, "0")),
            self._paint(f"{name:16}", "36"),
            _one_line(record.getMessage()),
        ]
        parts += [self._paint(f"{key}={_shown(value)}", "2") for key, value in _fields(record).items()]
        line = " ".join(parts)
        error = _error(record)
        if isinstance(error, TidemillError):
            return line + "".join(f"\n  {part}" for part in str(error).splitlines())
        if record.exc_info and error is not None:
            return f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts (RFC 3339, UTC), level, logger, message, then the fields, then error and
    trace."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        out: dict[str, Any] = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": _LEVELS.get(record.levelname, record.levelname.lower()),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            # A field never hides the event's own keys.
            out[key if key not in out else f"field_{key}"] = value
        error = _error(record)
        if isinstance(error, TidemillError):
            out["error"] = {
                "message": error.primary,
                "code": error.sqlstate,
                "detail": error.detail,
                "hint": error.hint,
            }
        elif record.exc_info and error is not None:
            out["error"] = {"message": f"{type(error).__name__}: {error}", "code": "XX000"}
            out["trace"] = self.formatException(record.exc_info)
        return json.dumps(out, default=str, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Escape line breaks and control characters: a message may contain text of a client, which must not forge
    log lines."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _shown(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and " " not in text and '"' not in text:
        return text
    return json.dumps(text, ensure_ascii=True)
