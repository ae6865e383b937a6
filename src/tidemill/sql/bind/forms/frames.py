"""Window frames: ROWS, RANGE and GROUPS.

ROWS means the same in Spark. RANGE with distances is also Spark's, over an order key that cannot overflow.
GROUPS is a RANGE over the numbers of the peer groups (dense_rank), which `stages` computes first. EXCLUDE is
refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import InvalidValue, TidemillError
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.constant import evaluate_node
from tidemill.sql.bind.errors import WindowingError, position_of, unsupported
from tidemill.sql.functions.lattice import FLOATS, SIGNED, can_coerce
from tidemill.sql.functions.tree import cast, decimal, double
from tidemill.sql.plan.expressions import BoundNode, Op, SortKey, is_constant
from tidemill.types.model import FLOAT8, INT8, INTERVAL, NUMERIC, TIMESTAMPTZ, Kind, SqlType
from tidemill.types.wire.calendar import MICROS_PER_DAY

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


@dataclass(frozen=True, slots=True)
class Framed:
    """A window's order in the form that its frame needs, and the frame in Spark's syntax."""

    order: tuple[SortKey, ...]
    spec: exp.Expr | None
    groups: bool = False


# Spark's frame bounds have 32 bits; larger ones are unbounded.
_FAR = (1 << 31) - 1


def framed(b: Binder, spec: exp.Expr | None, order: tuple[SortKey, ...], position: int | None) -> Framed:
    if spec is None:
        return Framed(order, None)
    kind = str(spec.args.get("kind")).upper()
    exclude = spec.args.get("exclude")
    if exclude is not None and exclude.name.upper() != "NO OTHERS":
        raise unsupported(
            f"EXCLUDE {exclude.name.upper()}",
            position,
            "Take what is to be left out off the aggregate's answer.",
        )
    _check_order(spec, position)
    if kind == "GROUPS":
        if not order:
            raise WindowingError("GROUPS mode requires an ORDER BY clause", position=position)
        made = _rows(b, spec, position)
        made.set("kind", "RANGE")
        return Framed(order, made, groups=True)
    if kind == "RANGE" and any(isinstance(spec.args.get(s), exp.Expr) for s in ("start", "end")):
        return _range(b, spec, order, position)
    return Framed(order, _rows(b, spec, position))


_PLACES = ("UNBOUNDED PRECEDING", "PRECEDING", "CURRENT ROW", "FOLLOWING", "UNBOUNDED FOLLOWING")


def _place(spec: exp.Expr, side: str) -> str:
    bound, direction = spec.args.get(side), str(spec.args.get(f"{side}_side") or "").upper()
    if isinstance(bound, exp.Expr):
        return direction
    text = str(bound or "CURRENT ROW").upper()
    return f"UNBOUNDED {direction}" if text == "UNBOUNDED" else text


def _check_order(spec: exp.Expr, position: int | None) -> None:
    """A frame may not end before it starts."""
    start, end = _place(spec, "start"), _place(spec, "end")
    if start == "UNBOUNDED FOLLOWING":
        raise WindowingError("frame start cannot be UNBOUNDED FOLLOWING", position=position)
    if end == "UNBOUNDED PRECEDING":
        raise WindowingError("frame end cannot be UNBOUNDED PRECEDING", position=position)
    if _PLACES.index(start) <= _PLACES.index(end):
        return
    if spec.args.get("end") is None:
        raise WindowingError(
            "frame starting from following row cannot end with current row", position=position
        )
    shown = {"CURRENT ROW": "current row", "FOLLOWING": "following row"}[start]
    raise WindowingError(f"frame starting from {shown} cannot have preceding rows", position=position)


def _rows(b: Binder, spec: exp.Expr, position: int | None) -> exp.Expr:
    made = spec.copy()
    made.set("exclude", None)
    for side, word in (("start", "starting"), ("end", "ending")):
        bound = spec.args.get(side)
        if isinstance(bound, exp.Expr):
            count = _distance(b, bound, INT8, word)
            if count > _FAR:
                made.set(side, "UNBOUNDED")
            else:
                made.set(side, exp.Literal.number(count))
    return made


def _distance(b: Binder, bound: exp.Expr, t: SqlType, word: str) -> int:
    value = _known(b, bound, t)
    if value is None:
        raise InvalidValue(f"frame {word} offset must not be null", sqlstate="22004")
    if value < 0:
        raise InvalidValue(f"frame {word} offset must not be negative", sqlstate="22013")
    return int(value)


def _known(b: Binder, bound: exp.Expr, t: SqlType) -> Any:
    node = b.bind(bound)
    if not can_coerce(node.type, t):
        raise TidemillError(
            f"argument of ROWS must be type {t}, not type {node.type}",
            sqlstate="42804",
            position=position_of(bound),
        )
    return _value(b, to_type(b.ctx, node, t, position=position_of(bound)), position_of(bound))


def _value(b: Binder, node: BoundNode, position: int | None) -> Any:
    if not is_constant(node):
        raise unsupported("a window frame whose bound is no constant", position)
    known = evaluate_node(node, b.ctx.session)
    if known is None:
        raise unsupported("a window frame whose bound is no constant", position)
    return known.as_py() if isinstance(known, pa.Scalar) and known.is_valid else None


# --- RANGE


def _range(b: Binder, spec: exp.Expr, order: tuple[SortKey, ...], position: int | None) -> Framed:
    if len(order) != 1:
        raise WindowingError(
            "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column", position=position
        )
    key = order[0]
    kind = key.node.type.kind
    if kind in SIGNED or kind is Kind.NUMERIC:
        wide = _as(key, NUMERIC, "DECIMAL(38,18)")
        distance = INT8 if kind in SIGNED else NUMERIC
    elif kind in FLOATS:
        wide, distance = _as(key, FLOAT8, "DOUBLE"), FLOAT8
    elif kind in (Kind.DATE, Kind.TIMESTAMP):
        # The time zone of Spark's session is UTC, so the calendar is the same. Spark adds intervals only to
        # these types.
        wide, distance = _as(key, TIMESTAMPTZ, "TIMESTAMP_LTZ"), INTERVAL
    else:
        raise unsupported(f"a RANGE frame with distances over type {key.node.type}", position)
    made = spec.copy()
    made.set("exclude", None)
    for side, word in (("start", "starting"), ("end", "ending")):
        bound = spec.args.get(side)
        if isinstance(bound, exp.Expr):
            made.set(side, _range_bound(b, bound, key.node.type, distance, word))
    units = {bound.sql() for bound in made.find_all(exp.Var) if bound.name in ("MONTH", "DAY")}
    if len(units) > 1:
        raise _mixed(position)
    return Framed((wide,), made)


def _as(key: SortKey, t: SqlType, ddl: str) -> SortKey:
    if key.node.type == t:
        return key
    return replace(key, node=Op(t, f"wide {ddl}", (key.node,), lambda a: cast(a[0], ddl)))


def _range_bound(b: Binder, bound: exp.Expr, key: SqlType, t: SqlType, word: str) -> exp.Expr:
    position = position_of(bound)
    node = b.bind(bound)
    if not can_coerce(node.type, t):
        raise TidemillError(
            f"RANGE with offset PRECEDING/FOLLOWING is not supported for column type {key} "
            f"and offset type {node.type}",
            hint="Cast the offset value to an appropriate type.",
            sqlstate="0A000",
            position=position,
        )
    # A literal is first read as the type of the key.
    whole = key if node.type.kind is Kind.UNKNOWN and t is INT8 else t
    value = _value(b, to_type(b.ctx, node, whole, position=position), position)
    if value is None:
        raise InvalidValue(f"frame {word} offset must not be null", sqlstate="22004")
    if t is INTERVAL:
        return _interval(value, position)
    if value < 0:
        raise InvalidValue("invalid preceding or following size in window function", sqlstate="22013")
    return double(repr(value)) if t is FLOAT8 else decimal(str(value))


def _mixed(position: int | None) -> TidemillError:
    return unsupported("a RANGE frame over months and days", position, "Use months or days alone.")


def _interval(value: dict[str, int], position: int | None) -> exp.Expr:
    months, days, micros = (int(value[name]) for name in ("months", "days", "micros"))
    if min(months, days, micros) < 0:
        raise InvalidValue("invalid preceding or following size in window function", sqlstate="22013")
    if months and (days or micros):
        raise _mixed(position)
    # Spark requires a literal here, not a call that creates one.
    if months:
        return exp.Interval(this=exp.Literal.string(str(months)), unit=exp.Var(this="MONTH"))
    whole, rest = divmod(days * MICROS_PER_DAY + micros, MICROS_PER_DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    text = f"{whole} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    span = exp.IntervalSpan(this=exp.Var(this="DAY"), expression=exp.Var(this="SECOND"))
    return exp.Interval(this=exp.Literal.string(text), unit=span)
