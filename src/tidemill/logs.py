"""How the server logs: for people on a terminal, for machines with `--log-format json`.

`setup` is called once, by the command line. Everybody else takes `logging.getLogger("tidemill.<layer>")`
(the module's `__name__` will do) and writes one line per event. What matters to a machine goes into
`extra={"fields": {...}}`: it becomes `key=value` at the end of the line, or keys of the JSON object.
Statements' text and values are not logged above DEBUG, secrets never.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from tidemill.errors import TidemillError

# Libraries whose INFO is noise here. py4j logs every call at DEBUG, secrets of its gateway included: never
# below WARNING.
_QUIET = ("py4j", "pyspark", "uvicorn", "asyncio")
_LEVELS = {"DEBUG": "debug", "INFO": "info", "WARNING": "warn", "ERROR": "error", "CRITICAL": "fatal"}
_COLOURS = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}


def setup(log_format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging of this process to `stream` (standard error). May be called again to change the
    form."""
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
    """`12:00:00.123 info  engine    message key=value`; a deliberate error is shown as its text, a bug with
    its trace."""

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
    """One JSON object a line: ts (RFC 3339, UTC), level, logger, message, then the fields, then error and
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
    """A message may carry what a client sent: line breaks and control characters must not forge other log
    lines."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _shown(value: object) -> str:
    text = str(value)
    if text and text.isprintable() and " " not in text and '"' not in text:
        return text
    return json.dumps(text, ensure_ascii=True)
