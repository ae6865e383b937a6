"""Display of times in messages: milliseconds, as AS OF takes them, and a timestamp.

Called for every error, notice or EXPLAIN that names a time of the server's timeline. Times of another
timeline (WITH (TIMELINE 'name')) have the unit of their stream, and are displayed as plain numbers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

# Smaller numbers are the beginning of a history without times (0), or not a point in time.
EARLIEST_SHOWN = 10**12
# A year with five digits: not shown as a date.
_LATEST_SHOWN = 253_402_300_799_999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def show_time(ts: int, timeline: str | None = None) -> str:
    """`1795011172000 (2026-11-18 10:12:52+00)`; only the number if it is not a point in time, or is a time of
    another timeline."""
    if timeline is not None or not EARLIEST_SHOWN <= ts <= _LATEST_SHOWN:
        return str(ts)
    moment = _EPOCH + timedelta(milliseconds=ts)
    fraction = f".{moment.microsecond // 1000:03}".rstrip("0") if moment.microsecond else ""
    return f"{ts} ({moment:%Y-%m-%d %H:%M:%S}{fraction}+00)"
