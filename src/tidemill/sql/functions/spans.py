"""Functions of intervals and times: age, justify_*, make_*, date_bin, date_add."""

from __future__ import annotations

from tidemill.sql.functions.markers import zone
from tidemill.sql.functions.rowwise import by_row, by_row_operator, row_function
from tidemill.sql.functions.signature import function, operator
from tidemill.sql.scalar import making, spans
from tidemill.types.model import DATE, FLOAT8, INT4, INTERVAL, TEXT, TIME, TIMESTAMP, TIMESTAMPTZ

divided = row_function("/", (INTERVAL, FLOAT8), INTERVAL, spans.divide)


def _install() -> None:
    by_row_operator("+", (INTERVAL, INTERVAL), INTERVAL, spans.add)
    by_row_operator("-", (INTERVAL, INTERVAL), INTERVAL, spans.subtract)
    by_row_operator("-", (INTERVAL,), INTERVAL, spans.negative)
    by_row_operator("*", (INTERVAL, FLOAT8), INTERVAL, spans.multiply)
    by_row_operator("*", (FLOAT8, INTERVAL), INTERVAL, lambda factor, span: spans.multiply(span, factor))
    operator("/", (INTERVAL, FLOAT8), INTERVAL, divided)
    by_row("justify_hours", (INTERVAL,), INTERVAL, spans.justify_hours)
    by_row("justify_days", (INTERVAL,), INTERVAL, spans.justify_days)
    by_row("justify_interval", (INTERVAL,), INTERVAL, spans.justify_interval)
    by_row("age", (TIMESTAMP, TIMESTAMP), INTERVAL, spans.age)
    by_row("age", (TIMESTAMPTZ, TIMESTAMPTZ), INTERVAL, spans.age_in, zoned=True)
    for t in (TIMESTAMP, TIMESTAMPTZ):
        by_row("date_bin", (INTERVAL, t, t), t, spans.date_bin)
    parts = (INT4, INT4, INT4, INT4, INT4, INT4, FLOAT8)
    for n in range(8):
        by_row("make_interval", parts[:n], INTERVAL, spans.make_interval)
    _install_making()


def _install_making() -> None:
    by_row("make_date", (INT4, INT4, INT4), DATE, making.make_date)
    by_row("make_time", (INT4, INT4, FLOAT8), TIME, making.make_time)
    fields = (INT4, INT4, INT4, INT4, INT4, FLOAT8)
    by_row("make_timestamp", fields, TIMESTAMP, making.make_timestamp)
    by_row("make_timestamptz", fields, TIMESTAMPTZ, making.make_timestamptz, zoned=True)
    by_row("make_timestamptz", (*fields, TEXT), TIMESTAMPTZ, making.make_timestamptz)
    for name, run in (("date_add", making.add_in_zone), ("date_subtract", making.subtract_in_zone)):
        types = (TIMESTAMPTZ, INTERVAL, TEXT)
        build = row_function(name, types, TIMESTAMPTZ, run)
        function(name, types, TIMESTAMPTZ, build)
        function(name, types[:2], TIMESTAMPTZ, lambda a, b=build: b([*a, zone()]))


_install()
