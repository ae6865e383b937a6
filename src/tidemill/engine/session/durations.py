"""Durations in statements: RETAIN HISTORY FOR '1h', TIMESTAMP INTERVAL '1s', WITH (TIMEOUT = '1s')."""

from __future__ import annotations

from tidemill.errors import InvalidValue
from tidemill.reclock.boundaries import MAX_INTERVAL_MS, MIN_INTERVAL_MS
from tidemill.types.model import INTERVAL
from tidemill.types.wire import parse_literal

MICROS_PER_DAY = 86_400_000_000
MAX_HISTORY_MS = 100 * 366 * 86_400_000  # a century: anything longer is a typing mistake


def microseconds(text: str) -> int:
    """An interval's length; months have no fixed length and are refused."""
    value = parse_literal(text, INTERVAL).as_py()
    if value is None or value["months"]:
        raise InvalidValue(f'"{text}" has no fixed length', hint="Give days, hours, minutes or seconds.")
    return value["days"] * MICROS_PER_DAY + value["micros"]


def milliseconds(text: str) -> int:
    return microseconds(text) // 1000


def history_ms(text: str | None) -> int | None:
    """RETAIN HISTORY FOR; None stays None, the system's default."""
    if text is None:
        return None
    ms = milliseconds(text)
    if not 0 < ms <= MAX_HISTORY_MS:
        raise InvalidValue(
            f'cannot retain history for "{text}"', hint="Give a positive duration.", sqlstate="22023"
        )
    return ms


def timeout_ms(text: str | None) -> int | None:
    """TIMEOUT of FETCH; None stays None, no limit."""
    if text is None:
        return None
    ms = milliseconds(text)
    if ms < 0:
        raise InvalidValue(f'TIMEOUT cannot be "{text}"', hint="0 does not wait.", sqlstate="22023")
    return ms


def interval_ms(text: str) -> int:
    """TIMESTAMP INTERVAL."""
    ms = milliseconds(text)
    if not MIN_INTERVAL_MS <= ms <= MAX_INTERVAL_MS:
        raise InvalidValue(
            f'TIMESTAMP INTERVAL cannot be "{text}"',
            detail="At each interval the upstream is asked, a Spark job runs, and its rows are committed.",
            hint=f"Give {MIN_INTERVAL_MS} milliseconds to {MAX_INTERVAL_MS // 3_600_000} hours.",
            sqlstate="22023",
        )
    return ms
