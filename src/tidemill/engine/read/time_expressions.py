"""The times of AS OF and UP TO: expressions over no table, which may contain parameters.

Planning calls `with_times` for the types of parameters that occur only in a time; execution calls
`evaluate_time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp

from tidemill.engine.api import close_batches
from tidemill.engine.read import reading
from tidemill.engine.read.reader import Reader
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Value
from tidemill.errors import InvalidValue, TidemillError, UndefinedObject
from tidemill.sql import ast
from tidemill.sql.bind import SessionInfo, bind_query
from tidemill.sql.bind.context import MAX_PARAMETERS
from tidemill.time.bounds import MAX_TIME
from tidemill.types.model import MZ_TIMESTAMP, TEXT, TIMESTAMPTZ, Kind, SqlType
from tidemill.types.wire import parse_literal


def with_times(
    view: CatalogView,
    types: Sequence[SqlType | None],
    times: Sequence[ast.Expr],
    query: ast.Query,
) -> list[SqlType | None]:
    """The parameters' types: those that the client declared, and those that follow from `times` alone. A
    parameter that also occurs in the query has its type from the query."""
    elsewhere = _numbers(query.tree)
    found = list(types)
    for time in times:
        own = _numbers(time.tree) - elsewhere
        if not own:
            continue
        if max(own) > MAX_PARAMETERS:
            raise UndefinedObject(f"there is no parameter ${max(own)}", sqlstate="42P02")
        found += [None] * (max(own) - len(found))
        # Parameters that the time does not contain are ignored here.
        given = [t if t is not None or n in own else TEXT for n, t in enumerate(found, 1)]
        select = exp.Select(expressions=[time.tree.copy()])
        bound = bind_query(select, view.resolver(), param_types=given, session=view.info())
        for number in own:
            found[number - 1] = bound.param_types[number - 1]
    return found


def _numbers(tree: exp.Expr) -> set[int]:
    """The numbers of the parameters."""
    return {int(node.name) for node in tree.find_all(exp.Parameter)}


async def evaluate_time(
    reader: Reader,
    view: CatalogView,
    time: ast.Expr,
    params: Sequence[Value] = (),
    info: SessionInfo | None = None,
    example: str = "now() - interval '1 minute'",
) -> int:
    """The time of AS OF or UP TO in milliseconds. The expression is over no table; its value is a timestamp,
    a number of milliseconds, or a text of either. `info` provides the value of `now()` if that is not the
    transaction's, and perhaps the value of `mz_now()`. The hint of the error shows `example`."""
    info = info or view.info()
    bad = InvalidValue(
        "AS OF or UP TO should be castable to a (non-null) mz_timestamp value",
        hint=f"Give milliseconds since 1970, as mz_now() shows them, or a timestamp, such as {example}.",
        sqlstate="22000",
        position=time.offset + 1,
    )
    try:
        select = exp.Select(expressions=[time.tree.copy()])
        types = [value.type for value in params]
        bound = bind_query(select, view.resolver(), param_types=types, session=info)
        if (bound.uses_mz_now and info.mz_now is None) or bound.inputs or len(bound.columns) != 1:
            raise bad
        batches = await reading.constant(reader, bound, params, info)
        batch = await anext(batches)
        await close_batches(batches)
        ms = _milliseconds(batch.column(0)[0], bound.columns[0].type, info.time_zone)
    except TidemillError as e:
        if e is not bad:
            bad.detail = e.primary
        raise bad from None
    if ms is None or not 0 <= ms <= MAX_TIME:
        raise bad
    return ms


_DAY_MS = 86_400_000


def _milliseconds(value: pa.Scalar, t: SqlType, zone: str) -> int | None:
    if not value.is_valid:
        return None
    if t.kind in (Kind.TEXT, Kind.VARCHAR, Kind.UNKNOWN):
        text = str(value.as_py()).strip()
        other = MZ_TIMESTAMP if text.isdigit() else TIMESTAMPTZ
        return _milliseconds(parse_literal(text, other, timezone=zone), other, zone)
    if t.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return int(value.cast(pa.int64()).as_py()) // 1000
    if t.kind is Kind.DATE:
        return int(value.cast(pa.int32()).as_py()) * _DAY_MS
    number = value.as_py()
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    if isinstance(number, Decimal) and number == number.to_integral_value():
        return int(number)
    return None
