"""Text input of dates, times and intervals.

Arrow reads ISO spellings by columns. All others are read one by one, by PostgreSQL's rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire.calendar import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    FIRST_DAY,
    FIRST_TIMESTAMP,
    LAST_DAY,
    LAST_TIMESTAMP,
    MICROS_PER_DAY,
    MICROS_PER_SECOND,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
)
from tidemill.types.wire.columns import decode as decode_column
from tidemill.types.wire.columns import decode_rows
from tidemill.types.wire.datetime_input import DateTime, named_zone, read_datetime, zone_offset
from tidemill.types.wire.interval_input import parse_interval

KINDS = {Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL}

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_TIMESTAMP = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_CLOCK}$"
_TIMESTAMP_UTC = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[ T]{_CLOCK}(Z|\+00(:?00)?)$"
# The names of the types in PostgreSQL's input errors.
_INPUT_NAMES = {Kind.TIMESTAMP: "timestamp", Kind.TIMESTAMPTZ: "timestamp with time zone"}
# Arrow accepts the year 0, PostgreSQL does not.
_YEAR_ZERO = "0000"


def decode(texts: pa.Array, t: SqlType, timezone: str) -> pa.Array:
    """A column of texts in storage form. A timestamptz without a zone is in `timezone`."""
    target = arrow_type(t)
    if t.kind is Kind.INTERVAL:
        return _decode_intervals(texts, target)
    storage = pa.int32() if t.kind is Kind.DATE else pa.int64()
    fast, regular = _fast_path(t, timezone)

    def numbers_of(column: pa.Array) -> pa.Array:
        return fast(column).cast(storage)

    values = decode_column(texts, storage, fast=numbers_of, regular=regular, parse=parser(t, timezone))
    return values if values.type == target else values.cast(target)


def _fast_path(t: SqlType, timezone: str) -> tuple[Callable[[pa.Array], pa.Array], str]:
    if t.kind is Kind.DATE:
        return lambda a: _refusing_year_zero(a).cast(pa.date32()), _DATE
    if t.kind is Kind.TIME:
        return _fast_time, f"^{_CLOCK}$"
    if t.kind is Kind.TIMESTAMP:
        return _fast_timestamp, _TIMESTAMP
    at_utc = timezone.upper() in ("UTC", "GMT", "Z")
    regular = f"{_TIMESTAMP}|{_TIMESTAMP_UTC}" if at_utc else _TIMESTAMP_UTC
    return partial(_fast_timestamptz, regular), regular


def _fast_time(texts: pa.Array) -> pa.Array:
    """Arrow does not read times, so they are read as timestamps of a fixed day."""
    if not pc.all(pc.match_substring_regex(texts, f"^{_CLOCK}$")).as_py():
        raise pa.ArrowInvalid("not all in ISO form")
    return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp("us"))


def _refusing_year_zero(texts: pa.Array) -> pa.Array:
    if pc.any(pc.starts_with(texts, _YEAR_ZERO)).as_py():
        raise pa.ArrowInvalid("year 0")
    return texts


def _fast_timestamp(texts: pa.Array) -> pa.Array:
    # Arrow also accepts an hour without minutes, and digits without colons.
    lengths = pc.binary_length(texts)
    if pc.any(pc.and_(pc.greater(lengths, 10), pc.less(lengths, 16))).as_py():
        raise pa.ArrowInvalid("not all in ISO form")
    return _refusing_year_zero(texts).cast(pa.timestamp("us"))


def _fast_timestamptz(regular: str, texts: pa.Array) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, regular)).as_py():
        raise pa.ArrowInvalid("not all in ISO form at UTC")
    naive = pc.replace_substring_regex(_refusing_year_zero(texts), r"(Z|\+[0-9:]*)$", "")
    return naive.cast(pa.timestamp("us"))


def parser(t: SqlType, timezone: str) -> Callable[[str], Any]:
    """PostgreSQL's rules for one value of the type. Returns its storage number."""
    if t.kind is Kind.DATE:
        return parse_date
    if t.kind is Kind.TIME:
        return parse_time
    return partial(parse_timestamp, t=t, timezone=timezone)


def parse_date(text: str) -> int:
    """Days since 1970; a time after the date is ignored."""
    found = read_datetime(text, "date")
    if found.special is not None:
        return {"epoch": 0, "infinity": DATE_INFINITY, "-infinity": DATE_MINUS_INFINITY}[found.special]
    if found.days is None:
        raise InvalidValue(f'invalid input syntax for type date: "{text}"', sqlstate="22007")
    if not FIRST_DAY <= found.days <= LAST_DAY:
        raise InvalidValue(f'date out of range: "{text}"', sqlstate="22008")
    return found.days


def parse_time(text: str) -> int:
    """Microseconds since midnight; 24:00:00 is valid."""
    found = read_datetime(text, "time")
    if found.micros is None:
        raise InvalidValue(f'invalid input syntax for type time: "{text}"', sqlstate="22007")
    return found.micros


def parse_timestamp(text: str, t: SqlType, timezone: str) -> int:
    """Microseconds since 1970. A timestamp ignores the zone, a timestamptz applies it."""
    name = _INPUT_NAMES[t.kind]
    found = read_datetime(text, name)
    if found.special is not None:
        special = {"epoch": 0, "infinity": TIMESTAMP_INFINITY, "-infinity": TIMESTAMP_MINUS_INFINITY}
        return special[found.special]
    if found.days is None:
        raise InvalidValue(f'invalid input syntax for type {name}: "{text}"', sqlstate="22007")
    micros = found.days * MICROS_PER_DAY + (found.micros or 0)
    if t.kind is Kind.TIMESTAMPTZ:
        micros -= _offset_of(found, micros, timezone) * MICROS_PER_SECOND
    if not FIRST_TIMESTAMP <= micros <= LAST_TIMESTAMP:
        raise InvalidValue(f'timestamp out of range: "{text}"', sqlstate="22008")
    return micros


def _offset_of(found: DateTime, micros: int, timezone: str) -> int:
    if found.offset is not None:
        return found.offset
    if found.zone is not None:
        return zone_offset(found.zone, micros)
    if timezone.upper() in ("UTC", "GMT", "Z"):
        return 0
    return zone_offset(named_zone(timezone), micros)


def _decode_intervals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Intervals in a column are often equal, so each spelling is read once."""
    coded = texts.dictionary_encode()
    fields = ("months", "days", "micros")
    try:
        values = decode_rows(
            coded.dictionary,
            np.arange(len(coded.dictionary)),
            lambda s: dict(zip(fields, parse_interval(s), strict=True)),
            target,
        )
    except InvalidValue:
        rows = np.flatnonzero(valid_mask(texts))
        decode_rows(texts, rows, lambda s: dict(zip(fields, parse_interval(s), strict=True)), target)
        raise
    return values.take(coded.indices)
