"""Scalar functions and forms whose arguments the allow-list cannot describe.

These are format(), named arguments, keywords among arguments, SIMILAR TO, OVERLAPS and EXTRACT.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError, UndefinedObject
from tidemill.sql.bind.calls import FunctionCall, row_of
from tidemill.sql.bind.coerce import explicit_cast, settle, to_type
from tidemill.sql.bind.colname import power_name
from tidemill.sql.bind.digits import digits_of, with_digits
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.forms import session
from tidemill.sql.bind.forms.special import output_text
from tidemill.sql.bind.typename import named_type
from tidemill.sql.functions import extract as extracting
from tidemill.sql.functions import regexp
from tidemill.sql.functions.lattice import can_coerce
from tidemill.sql.functions.strings import format_call
from tidemill.sql.functions.tree import (
    Tree,
    add,
    call,
    case,
    cast,
    cast_to,
    if_,
    integer,
    is_null,
    lt,
    not_,
    null,
    or_,
)
from tidemill.sql.plan.expressions import BoundNode, Const, Convert, Op
from tidemill.types.model import (
    BOOL,
    DATE,
    FLOAT8,
    INT4,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    SqlType,
    array,
)

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder

_TIMES = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)


def _text(value: str) -> Const:
    return Const(TEXT, pa.scalar(value))


def _format(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    args = [settle(b.ctx, a) for a in b.bind_all(call_.args)]
    if not args:
        raise b.no_function("format", args, position)
    template = to_type(b.ctx, args[0], TEXT)
    texts = [output_text(b, a) for a in args[1:]]

    def build(trees: Sequence[Tree]) -> Tree:
        return format_call([trees[0], cast_to(call("array", *trees[1:]), array(TEXT))])

    return Op(TEXT, "format", (template, *texts), build)


def _num_nulls(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    args = [settle(b.ctx, a) for a in b.bind_all(call_.args)]
    if not args:
        raise b.no_function(call_.name, args, position)
    wanted = call_.name == "num_nulls"

    def build(trees: Sequence[Tree]) -> Tree:
        flags = [cast(is_null(t) if wanted else not_(is_null(t)), "INT") for t in trees]
        total = flags[0]
        for flag in flags[1:]:
            total = add(total, flag)
        return cast(total, "INT")

    return Op(INT4, call_.name, tuple(args), build)


_MAKE_INTERVAL = ("years", "months", "weeks", "days", "hours", "mins", "secs")


def _make_interval(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """Arguments may be given by name; missing ones are zero."""
    given: dict[str, BoundNode] = {}
    named = False
    for i, arg in enumerate(call_.args):
        if isinstance(arg, exp.Kwarg):
            named = True
            name = arg.this.name.lower()
            value = b.bind(arg.expression)
        else:
            if named:
                raise SyntaxError_("positional argument cannot follow named argument", position=position)
            if i >= len(_MAKE_INTERVAL):
                raise b.no_function("make_interval", b.bind_all(call_.args), position)
            name, value = _MAKE_INTERVAL[i], b.bind(arg)
        if name not in _MAKE_INTERVAL:
            raise UndefinedObject(
                f"function make_interval({name} => {value.type}) does not exist",
                sqlstate="42883",
                position=position,
                hint=f"The arguments are {', '.join(_MAKE_INTERVAL)}.",
            )
        if name in given:
            raise SyntaxError_(f'argument name "{name}" used more than once', position=position)
        given[name] = value
    last = max((_MAKE_INTERVAL.index(n) for n in given), default=-1)
    zeros = {
        n: Const(FLOAT8, pa.scalar(0.0)) if n == "secs" else Const(INT4, pa.scalar(0, pa.int32()))
        for n in _MAKE_INTERVAL
    }
    args = [given.get(n, zeros[n]) for n in _MAKE_INTERVAL[: last + 1]]
    return b.apply("make_interval", args, position)


def _quoted(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """For arguments of any type, as text."""
    args = [settle(b.ctx, a) for a in b.bind_all(call_.args)]
    if len(args) != 1:
        raise b.no_function(call_.name, args, position)
    return b.apply(call_.name, [to_type(b.ctx, args[0], TEXT, explicit=True)], position)


def _age(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """With one argument: until midnight at the start of the current day."""
    args = b.bind_all(call_.args)
    if len(args) != 1:
        return b.apply("age", args, position)
    t = TIMESTAMPTZ if args[0].type.kind in (Kind.TIMESTAMPTZ, Kind.DATE, Kind.UNKNOWN) else TIMESTAMP
    today = Convert(t, Convert(DATE, session.now_value(b, "age(timestamp)")))
    return b.apply("age", [today, args[0]], position)


def _normalize(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """The form is a keyword."""
    args = list(call_.args)
    if len(args) == 2 and isinstance(args[1], exp.Column | exp.Var):
        return b.apply("normalize", [b.bind(args[0]), _text(args[1].name)], position)
    return b.apply("normalize", b.bind_all(args), position)


def _scale(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """Known if the digits that the argument shows are known."""
    args = b.bind_all(call_.args)
    if len(args) == 1 and can_coerce(args[0].type, NUMERIC):
        value = to_type(b.ctx, args[0], NUMERIC, position=position)
        digits = digits_of(value.type)
        if digits is not None:
            return Op(
                INT4, f"scale {digits}", (value,), lambda a: if_(is_null(a[0]), null(), integer(digits))
            )
    return b.apply("scale", args, position)


def _date_part(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    args = b.bind_all(call_.args)
    if len(args) == 2 and args[1].type.kind is Kind.UNKNOWN:
        raise TidemillError(
            "function date_part(unknown, unknown) is not unique", sqlstate="42725", position=position
        )
    return b.apply("date_part", args, position)


# --- forms


def _extract(b: Binder, node: exp.Expr) -> BoundNode:
    unit = node.this.name.lower()
    value = b.bind(node.args["expression"])
    position = position_of(node)
    if value.type.kind is Kind.UNKNOWN:
        raise TidemillError(
            f"function pg_catalog.extract(unknown, {value.type}) is not unique",
            sqlstate="42725",
            position=position,
        )
    if value.type.kind not in _TIMES:
        raise b.no_function("pg_catalog.extract", [Const(SqlType(Kind.UNKNOWN), unit), value], position)
    t = value.type
    result = with_digits(NUMERIC, extracting.digits(unit, t))
    return Op(result, f"extract {t}", (_text(unit), value), lambda a: extracting.extract(a[0], a[1], t))


def _at_time_zone(b: Binder, node: exp.Expr) -> BoundNode:
    value, zone = b.bind(node.this), b.bind(node.args["zone"])
    if value.type.kind in (Kind.DATE, Kind.UNKNOWN):
        value = to_type(b.ctx, value, TIMESTAMPTZ)
    return b.apply("timezone", [zone, value], position_of(node))


def _power(b: Binder, node: exp.Expr) -> BoundNode:
    """a ^ b, or power(a, b): the parser has one node for both."""
    args = b.bind_all([node.this, node.args["expression"]])
    if "start" in node.meta:
        return b.apply(power_name(node), args, position_of(node))
    return b.operator("^", args, position_of(node))


def _overlay(b: Binder, node: exp.Expr) -> BoundNode:
    keys = ("this", "expression", "from_", "for_")
    args = [b.bind(node.args[k]) for k in keys if node.args.get(k) is not None]
    return b.apply("overlay", args, position_of(node))


def _similar(b: Binder, node: exp.Expr) -> BoundNode:
    args = b.bind_all([node.this, node.args["expression"]])
    return Op(BOOL, "similar to", tuple(to_type(b.ctx, a, TEXT) for a in args), regexp.similar)


def similar_escape(b: Binder, node: exp.Expr, escape: exp.Expr) -> BoundNode:
    """x SIMILAR TO pattern ESCAPE sign."""
    args = b.bind_all([node.this, node.args["expression"], escape])
    texts = tuple(to_type(b.ctx, a, TEXT) for a in args)
    return Op(BOOL, "similar to", texts, regexp.similar_escape)


def _overlaps(b: Binder, node: exp.Expr) -> BoundNode:
    """(start, end) OVERLAPS (start, end). An interval as the end is added to the start. If start and end are
    equal, the period is that instant; otherwise the end is not part of the period."""
    rows = [row_of(node.this), row_of(node.args["expression"])]
    position = position_of(node)
    if rows[0] is None or rows[1] is None or len(rows[0]) != 2 or len(rows[1]) != 2:
        raise SyntaxError_(
            "wrong number of parameters on either side of OVERLAPS expression", position=position
        )
    ends: list[BoundNode] = []
    bound = b.bind_all([*rows[0], *rows[1]])
    if any(n.type.kind is Kind.UNKNOWN for n in bound):
        shown = ", ".join(str(n.type) for n in bound)
        raise TidemillError(
            f"function pg_catalog.overlaps({shown}) is not unique",
            hint="Could not choose a best candidate function. You might need to add explicit type casts.",
            sqlstate="42725",
            position=position,
        )
    for start, end in (bound[:2], bound[2:]):
        if end.type.kind is Kind.INTERVAL:
            end = b.operator("+", [start, end], position)
        ends += [start, end]
    kinds = {n.type.kind for n in ends}
    t = next(
        (SqlType(k) for k in (Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE, Kind.TIME) if k in kinds), None
    )
    if t is None or not kinds <= {Kind.TIMESTAMPTZ, Kind.TIMESTAMP, Kind.DATE, Kind.TIME}:
        raise unsupported("OVERLAPS of these types", position)
    if t.kind is Kind.DATE:
        t = TIMESTAMP
    return Op(BOOL, "overlaps", tuple(to_type(b.ctx, n, t) for n in ends), _overlap_tree)


def _overlap_tree(args: Sequence[Tree]) -> Tree:
    """Like PostgreSQL's overlaps_timestamp: with the ends in order, the period that starts later must start
    before the other one ends. With a NULL end the result is unknown, unless the starts decide."""
    s1, e1, s2, e2 = args

    def ordered(s: Tree, e: Tree) -> tuple[Tree, Tree]:
        low = case((is_null(s), e), (is_null(e), s), (lt(e, s), e), otherwise=s)
        high = case((is_null(s), s), (is_null(e), e), (lt(e, s), s), otherwise=e)
        return low, high

    (a, ae), (c, ce) = ordered(s1, e1), ordered(s2, e2)
    unknown = or_(is_null(a), is_null(c))

    def later(x: Tree, other_end: Tree, own_end: Tree) -> Tree:
        # Compares the period that starts later, at x, with the end of the other.
        return case(
            (is_null(other_end), cast(null(), "BOOLEAN")),
            (lt(x, other_end), exp.true()),
            (is_null(own_end), cast(null(), "BOOLEAN")),
            otherwise=exp.false(),
        )

    equal = if_(or_(is_null(ae), is_null(ce)), cast(null(), "BOOLEAN"), exp.true())
    return case(
        (unknown, cast(null(), "BOOLEAN")),
        (lt(c, a), later(a, ce, ae)),
        (lt(a, c), later(c, ae, ce)),
        otherwise=equal,
    )


def type_call(b: Binder, name: str, args: Sequence[BoundNode], position: int | None) -> BoundNode | None:
    """A call of a type's name with one argument is a cast: date(x), int4(x)."""
    target = named_type(name)
    if target is None or len(args) != 1:
        return None
    return explicit_cast(b.ctx, args[0], target, position)


FUNCTIONS: dict[str, Callable[[Binder, FunctionCall, int | None], BoundNode]] = {
    "format": _format,
    "num_nulls": _num_nulls,
    "num_nonnulls": _num_nulls,
    "make_interval": _make_interval,
    "quote_literal": _quoted,
    "quote_nullable": _quoted,
    "age": _age,
    "normalize": _normalize,
    "date_part": _date_part,
    "scale": _scale,
}

HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], BoundNode]] = {
    exp.Extract: _extract,
    exp.AtTimeZone: _at_time_zone,
    exp.Overlay: _overlay,
    exp.Pow: _power,
    exp.SimilarTo: _similar,
    exp.Overlaps: _overlaps,
}
