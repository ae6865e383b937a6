"""to_char, to_date, to_timestamp and to_number."""

from __future__ import annotations

from tidemill.sql.functions.rowwise import by_row
from tidemill.sql.scalar import read_number, read_time, show_number, show_time
from tidemill.types.model import (
    DATE,
    FLOAT4,
    FLOAT8,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
)


def _install() -> None:
    by_row("to_char", (TIMESTAMP, TEXT), TEXT, show_time.timestamp)
    by_row("to_char", (TIMESTAMPTZ, TEXT), TEXT, show_time.timestamptz, zoned=True)
    by_row("to_char", (INTERVAL, TEXT), TEXT, show_time.interval)
    by_row("to_char", (INT4, TEXT), TEXT, lambda value, template: show_number.whole(value, template, 32))
    by_row("to_char", (INT8, TEXT), TEXT, show_number.whole)
    by_row("to_char", (NUMERIC, TEXT), TEXT, show_number.numeric)
    by_row("to_char", (FLOAT4, TEXT), TEXT, show_number.single)
    by_row("to_char", (FLOAT8, TEXT), TEXT, show_number.double)
    by_row("to_date", (TEXT, TEXT), DATE, read_time.to_date)
    by_row("to_timestamp", (TEXT, TEXT), TIMESTAMPTZ, read_time.to_timestamp, zoned=True)
    by_row("to_number", (TEXT, TEXT), NUMERIC, read_number.to_number)


_install()
