"""Text output of dates, times and intervals, by columns (DateStyle ISO, IntervalStyle postgres)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from tidemill.types.columns import numbers, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.wire.calendar import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    MICROS_PER_DAY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    civil_from_days,
)
from tidemill.types.wire.datetime_input import named_zone
from tidemill.types.wire.interval_input import INFINITY, MINUS_INFINITY

# Years 1 to 9999, the range in which Arrow and PostgreSQL print the same, as days since 1970.
_FIRST_PLAIN_DAY = -719_162
_LAST_PLAIN_DAY = 2_932_896


def date_text(array: pa.Array) -> pa.Array:
    days = numbers(array, np.int64)
    odd = ((days < _FIRST_PLAIN_DAY) | (days > _LAST_PLAIN_DAY)) & valid_mask(array)
    if not bool(odd.any()):
        return array.cast(pa.string())
    plain = pa.array(np.where(odd, 0, days).astype(np.int32), pa.date32(), mask=~valid_mask(array))
    texts = [
        "infinity" if d == DATE_INFINITY else "-infinity" if d == DATE_MINUS_INFINITY else _odd_date(d)
        for d in days[odd].tolist()
    ]
    return pc.replace_with_mask(plain.cast(pa.string()), pa.array(odd), pa.array(texts, pa.string()))


def _odd_date(days: int) -> str:
    """A date before the year 1 or after 9999."""
    year, month, day = civil_from_days(days)
    if year <= 0:
        return f"{1 - year:04d}-{month:02d}-{day:02d} BC"
    return f"{year:04d}-{month:02d}-{day:02d}"


def time_text(array: pa.Array) -> pa.Array:
    """Microseconds since midnight; 24:00:00 is a separate value."""
    micros = numbers(array, np.int64)
    valid = valid_mask(array)
    midnight = valid & (micros == MICROS_PER_DAY)
    within = pa.array(np.where(valid & ~midnight, micros, 0), pa.int64(), mask=~valid)
    texts = _trim_fraction(within.cast(pa.time64("us")).cast(pa.string()))
    if bool(midnight.any()):
        texts = pc.if_else(pa.array(midnight), "24:00:00", texts)
    return texts


def timestamp_text(array: pa.Array, timezone: str | None) -> pa.Array:
    """A timestamp as it is, or a timestamptz in `timezone`, followed by the offset."""
    micros = numbers(array, np.int64)
    valid = valid_mask(array)
    offsets = np.zeros(len(array), dtype=np.int64)
    if timezone is not None and timezone.upper() not in ("UTC", "GMT", "Z"):
        finite = valid & (micros != TIMESTAMP_INFINITY) & (micros != TIMESTAMP_MINUS_INFINITY)
        offsets = _offsets(np.where(finite, micros, 0), timezone)
        micros = np.where(finite, micros + offsets, micros)
    days = micros // MICROS_PER_DAY
    odd = ((days < _FIRST_PLAIN_DAY) | (days > _LAST_PLAIN_DAY)) & valid
    plain = pa.array(np.where(odd, 0, micros), pa.int64(), mask=~valid).cast(pa.timestamp("us"))
    texts = _trim_fraction(plain.cast(pa.string()))
    if timezone is not None:
        texts = pc.binary_join_element_wise(texts, _offset_text(offsets), "")
    if not bool(odd.any()):
        return texts
    zones = _offset_text(offsets[odd]).to_pylist() if timezone is not None else [""] * int(odd.sum())
    respelt = [_odd_timestamp(m, z) for m, z in zip(micros[odd].tolist(), zones, strict=True)]
    return pc.replace_with_mask(texts, pa.array(odd), pa.array(respelt, pa.string()))


def _odd_timestamp(micros: int, zone: str) -> str:
    if micros == TIMESTAMP_INFINITY:
        return "infinity"
    if micros == TIMESTAMP_MINUS_INFINITY:
        return "-infinity"
    days, rest = divmod(micros, MICROS_PER_DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    if fraction:
        clock += f".{fraction:06d}".rstrip("0")
    date = _odd_date(days)
    if date.endswith(" BC"):
        return f"{date[:-3]} {clock}{zone} BC"
    return f"{date} {clock}{zone}"


def _offsets(micros: np.ndarray, timezone: str) -> np.ndarray:
    """The offset of the zone from UTC at each instant, in microseconds."""
    instants = pa.array(micros, pa.int64()).cast(pa.timestamp("us", timezone))
    offsets = numbers(pc.local_timestamp(instants), np.int64) - micros
    late = micros >= _UNKNOWN_FROM
    if late.any():
        zone = named_zone(timezone)
        offsets = offsets.copy()
        offsets[late] = [_late_offset(int(m), zone) for m in micros[late]]
    return offsets


# Arrow knows the transitions of time zones only up to 2037. After that, zoneinfo follows each zone's last
# rule. Such times are rare, so they are looked up one by one.
_UNKNOWN_FROM = int(np.datetime64("2037-01-01", "us").astype(np.int64))
# The range of datetime; the zone's rule does not change after it.
_LAST_YEAR_MICROS = int(np.datetime64("9999-01-01", "us").astype(np.int64))
# The calendar repeats after this period, including weekdays.
_CYCLE_MICROS = 146_097 * 86_400_000_000


def _late_offset(micros: int, zone: ZoneInfo) -> int:
    if micros >= _LAST_YEAR_MICROS:
        micros -= -(-(micros - _LAST_YEAR_MICROS + 1) // _CYCLE_MICROS) * _CYCLE_MICROS
    offset = (_EPOCH + timedelta(microseconds=micros)).astimezone(zone).utcoffset()
    return 0 if offset is None else offset // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _offset_text(offsets: np.ndarray) -> pa.Array:
    """Offsets in PostgreSQL's form: hours, then minutes and seconds if necessary. Few are distinct."""
    distinct, places = np.unique(offsets, return_inverse=True)
    texts: list[str] = []
    for micros in distinct.tolist():
        seconds = abs(micros) // 1_000_000
        text = f"{'-' if micros < 0 else '+'}{seconds // 3600:02d}"
        if seconds % 3600:
            text += f":{seconds // 60 % 60:02d}"
        if seconds % 60:
            text += f":{seconds % 60:02d}"
        texts.append(text)
    return pa.array(texts, pa.string()).take(pa.array(places))


def _trim_fraction(texts: pa.Array) -> pa.Array:
    """Texts that end in `.ffffff`, without trailing zeros."""
    return pc.ascii_rtrim(pc.ascii_rtrim(texts, "0"), ".")


def interval_text(array: pa.Array) -> pa.Array:
    """`1 year 2 mons -3 days +04:05:06.7`: a plus sign is written after a negative field."""
    months, days, micros = (numbers(array.field(i), np.int64) for i in range(3))
    infinite = (months == INFINITY[0]) & (days == INFINITY[1]) & (micros == INFINITY[2])
    infinite_past = (
        (months == MINUS_INFINITY[0]) & (days == MINUS_INFINITY[1]) & (micros == MINUS_INFINITY[2])
    )
    years, months = _truncated(months, 12)
    after_minus = np.zeros(len(array), dtype=np.bool_)
    pieces: list[pa.Array] = []
    for amount, unit in ((years, "year"), (months, "mon"), (days, "day")):
        sign = pa.array(np.where(after_minus & (amount > 0), "+", ""), pa.string())
        suffix = pa.array(np.where(amount == 1, f" {unit}", f" {unit}s"), pa.string())
        text = pc.binary_join_element_wise(sign, pa.array(amount).cast(pa.string()), suffix, "")
        pieces.append(pc.if_else(pa.array(amount != 0), text, pa.scalar(None, pa.string())))
        after_minus = np.where(amount != 0, amount < 0, after_minus)
    clock = _interval_clock(micros, after_minus)
    alone = (years == 0) & (months == 0) & (days == 0)
    pieces.append(pc.if_else(pa.array(alone | (micros != 0)), clock, pa.scalar(None, pa.string())))
    texts = pc.binary_join_element_wise(*pieces, " ", null_handling="skip")
    if bool(infinite.any() or infinite_past.any()):
        texts = pc.if_else(pa.array(infinite), "infinity", texts)
        texts = pc.if_else(pa.array(infinite_past), "-infinity", texts)
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, pa.string()))


def _interval_clock(micros: np.ndarray, after_minus: np.ndarray) -> pa.Array:
    # Unsigned magnitude, because the most negative int64 has no positive counterpart.
    size = np.where(micros < 0, np.negative(micros.astype(np.uint64)), micros.astype(np.uint64))
    sign = np.where(micros < 0, "-", np.where(after_minus, "+", ""))
    seconds, fraction = np.divmod(size, np.uint64(1_000_000))
    minutes, seconds = np.divmod(seconds, np.uint64(60))
    hours, minutes = np.divmod(minutes, np.uint64(60))

    def digits(values: np.ndarray, width: int) -> Any:
        return pc.ascii_lpad(pa.array(values).cast(pa.string()), width, "0")

    whole = pc.binary_join_element_wise(digits(hours, 2), digits(minutes, 2), digits(seconds, 2), ":")
    parts = pc.binary_join_element_wise(whole, digits(fraction, 6), ".")
    return pc.binary_join_element_wise(pa.array(sign, pa.string()), _trim_fraction(parts), "")


def _truncated(values: np.ndarray, by: int) -> tuple[np.ndarray, np.ndarray]:
    """Quotient and remainder, truncated towards zero as in C."""
    quotient = np.sign(values) * (np.abs(values) // by)
    return quotient, values - quotient * by
