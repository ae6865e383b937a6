"""Special forms: literals, columns, casts, CASE, IN, LIKE, IS, arrays, subqueries as values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import call_of, row_of
from tidemill.sql.bind.forms.arrays import shifted
from tidemill.sql.local import operators
from tidemill.sql.local.cast import common, comparable, constant, explicit, to_type, unify, unknown
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.kinds import Category, array_element, category, kind, local_type
from tidemill.sql.local.logic import all_refs, conjunction, disjunction, negation
from tidemill.sql.local.model import Env, Level, NotLocal, Row, Run, Runtime, Typed
from tidemill.types import model
from tidemill.types.model import BOOL, INT4, INT8, NUMERIC, TEXT, Kind, SqlType

if TYPE_CHECKING:
    from tidemill.sql.local.expr import Expressions


Handler = Callable[["Expressions", exp.Expr], Typed]


def first_column(level: Level) -> Run:
    return lambda e, rt: [r[0] for r in level.once(e, rt)]


def _literal(x: Expressions, node: exp.Expr) -> Typed:
    text = str(node.this)
    if node.args.get("is_string"):
        return unknown(text)
    if text.isdigit():
        return _number(int(text))
    return constant(Decimal(text), NUMERIC)


def _number(value: int) -> Typed:
    if not -(1 << 63) <= value < 1 << 63:
        return constant(Decimal(value), NUMERIC)
    return constant(value, INT4 if -(1 << 31) <= value < 1 << 31 else INT8)


def _parameter(x: Expressions, node: exp.Expr) -> Typed:
    index = int(node.this.name)
    t = x.ctx.param(index)
    return Typed(t or model.UNKNOWN, lambda e, rt: rt.params[index - 1], param=index)


def _column(x: Expressions, node: exp.Expr) -> Typed:
    parts = [p.name for p in (node.args.get("catalog"), node.args.get("db"), node.args.get("table")) if p]
    found = x.scope.find(parts, node.name)
    if found is None:
        raise NotLocal(f"no column {node.name}")
    return found


def _cast(x: Expressions, node: exp.Expr) -> Typed:
    target = local_type(node.args["to"])
    if target is None or type(node) is not exp.Cast:
        raise NotLocal("a type that is not known here")
    inner = node.this
    if isinstance(inner, exp.Array) and not inner.expressions:
        return constant([], target)
    if target == model.CHAR and isinstance(inner, exp.Literal) and len(str(inner.this)) == 1:
        # 'f'::char, to be compared with a "char" of a catalog: one letter is one letter.
        target = model.QCHAR
    return explicit(x.ctx, x.compile(inner), target)


def _dot(x: Expressions, node: exp.Expr) -> Typed:
    """schema.f(x), and (record).field."""
    inner = node.this
    if isinstance(inner, exp.Identifier) and isinstance(node.expression, exp.Func):
        if inner.name not in ("pg_catalog", "mz_catalog", "information_schema"):
            raise NotLocal(f"schema {inner.name} has no functions")
        return x.compile(node.expression)
    record = x.compile(inner)
    name = node.expression.name
    if not isinstance(record.type, SqlType) or record.type.kind is not Kind.RECORD:
        raise NotLocal("a field of no record")
    names = [c.name for c in record.type.fields]
    if name not in names:
        raise NotLocal(f"no field {name}")
    at = names.index(name)
    run = record.run

    def field(e: Env, rt: Runtime) -> Any:
        v = run(e, rt)
        return None if v is None else v[at]

    return Typed(record.type.fields[at].type, field, record.refs)


def _collate(x: Expressions, node: exp.Expr) -> Typed:
    named = node.args["expression"]
    name = named.expression.name if isinstance(named, exp.Dot) else named.name
    if name not in ("C", "POSIX", "default", "ucs_basic"):
        raise NotLocal(f"collation {name}")
    return to_type(x.ctx, x.compile(node.this), TEXT)


def _is(x: Expressions, node: exp.Expr) -> Typed:
    what = node.args["expression"]
    if isinstance(what, exp.Null):
        value = x.compile(node.this)
        run = value.run
        found = Typed(BOOL, lambda e, rt: run(e, rt) is None, value.refs)
    elif isinstance(what, exp.Boolean):
        truth = bool(what.this)
        value = x.boolean(node.this)
        run = value.run
        found = Typed(BOOL, lambda e, rt: run(e, rt) is truth, value.refs)
    else:
        raise NotLocal("this IS")
    return negation(found) if node.args.get("negate") else found


def _distinct_from(x: Expressions, node: exp.Expr) -> Typed:
    a, b = comparable(x.ctx, x.compile(node.this), x.compile(node.args["expression"]))
    left, right = a.run, b.run
    same = Typed(BOOL, lambda e, rt: left(e, rt) == right(e, rt), a.refs | b.refs)
    return same if isinstance(node, exp.NullSafeEQ) else negation(same)


def _between(x: Expressions, node: exp.Expr) -> Typed:
    if node.args.get("symmetric"):
        raise NotLocal("BETWEEN SYMMETRIC")
    value = x.compile(node.this)
    low, high = x.compile(node.args["low"]), x.compile(node.args["high"])
    return conjunction(
        [operators.binary(x.ctx, ">=", value, low), operators.binary(x.ctx, "<=", value, high)]
    )


def _in(x: Expressions, node: exp.Expr) -> Typed:
    query = node.args.get("query")
    rows = row_of(node.this)
    if query is None:
        if rows is not None:
            made: list[Typed] = []
            for item in node.expressions:
                other = row_of(item)
                if not other or len(other) != len(rows):
                    raise NotLocal("a row in IN")
                pairs = zip(x.all(rows), x.all(other), strict=True)
                made.append(conjunction([operators.binary(x.ctx, "=", a, b) for a, b in pairs]))
            return disjunction(made)
        value = x.compile(node.this)
        return disjunction([operators.binary(x.ctx, "=", value, x.compile(i)) for i in node.expressions])
    level = x.query(query)
    operands = x.all(rows if rows is not None else [node.this])
    if not operands or len(operands) != len(level.types):
        raise NotLocal("IN over other columns")
    tests = []
    for i, (operand, t) in enumerate(zip(operands, level.types, strict=True)):
        if operand.untyped:
            operand = to_type(x.ctx, operand, t)
        left = Typed(operand.type, lambda e, rt, i=i: e[0][i])
        tests.append(operators.binary(x.ctx, "=", left, Typed(t, lambda e, rt, i=i: e[1][i])))
    equal = conjunction(tests).run
    runs = [o.run for o in operands]

    def within(e: Env, rt: Runtime) -> bool | None:
        values: Row = tuple(run(e, rt) for run in runs)
        missing = False
        for row in level.once(e, rt):
            answer = equal([values, row], rt)
            if answer:
                return True
            missing = missing or answer is None
        return None if missing else False

    return Typed(BOOL, within, level.refs | all_refs(operands))


def _case(x: Expressions, node: exp.Expr) -> Typed:
    subject = node.args.get("this")
    conditions: list[Typed] = []
    values: list[Typed] = []
    for branch in node.args["ifs"]:
        if subject is None:
            conditions.append(x.boolean(branch.this))
        else:
            conditions.append(operators.binary(x.ctx, "=", x.compile(subject), x.compile(branch.this)))
        values.append(x.compile(branch.args["true"]))
    default = node.args.get("default")
    # PostgreSQL considers ELSE first when it resolves the type.
    values.insert(0, unknown(None) if default is None else x.compile(default))
    results, t = unify(x.ctx, values)
    branches = [(c.run, r.run) for c, r in zip(conditions, results[1:], strict=True)]
    otherwise = results[0].run

    def choose(e: Env, rt: Runtime) -> Any:
        for condition, value in branches:
            if condition(e, rt):
                return value(e, rt)
        return otherwise(e, rt)

    return Typed(t, choose, all_refs(conditions) | all_refs(results))


def _coalesce(x: Expressions, node: exp.Expr) -> Typed:
    values, t = unify(x.ctx, x.all([node.this, *node.expressions]))
    runs = [v.run for v in values]

    def first(e: Env, rt: Runtime) -> Any:
        for run in runs:
            v = run(e, rt)
            if v is not None:
                return v
        return None

    return Typed(t, first, all_refs(values))


def _extreme(x: Expressions, node: exp.Expr) -> Typed:
    values, t = unify(x.ctx, x.all([node.this, *node.expressions]))
    comparable(x.ctx, values[0], values[-1])
    if category(t) is Category.ARRAY:
        raise NotLocal("the order of arrays")
    choose = max if isinstance(node, exp.Greatest) else min
    runs = [v.run for v in values]

    def extreme(e: Env, rt: Runtime) -> Any:
        return choose((v for run in runs if (v := run(e, rt)) is not None), default=None)

    return Typed(t, extreme, all_refs(values))


def _nullif(x: Expressions, node: exp.Expr) -> Typed:
    a, b = comparable(x.ctx, x.compile(node.this), x.compile(node.args["expression"]))
    if category(a.type) is not Category.STRING and common(a.type, b.type) != a.type:
        raise NotLocal("NULLIF of two types")
    left, right = a.run, b.run

    def run(e: Env, rt: Runtime) -> Any:
        v = left(e, rt)
        return None if v is None or v == right(e, rt) else v

    # varchar is compared as text, and is text then.
    t = model.TEXT if kind(a.type) is Kind.VARCHAR else a.type
    return Typed(t, run, a.refs | b.refs)


def _like(x: Expressions, node: exp.Expr) -> Typed:
    escape = None
    if isinstance(node, exp.Escape):
        sign = x.compile(node.args["expression"])
        if not sign.untyped or sign.literal is None or len(sign.literal) != 1:
            raise NotLocal("this ESCAPE")
        node, escape = node.this, sign.literal
    right = node.args["expression"]
    name = "~~" if isinstance(node, exp.Like) else "~~*"
    if isinstance(right, exp.Any | exp.All):
        raise NotLocal("LIKE ANY")
    found = operators.like(x.ctx, x.compile(node.this), x.compile(right), name == "~~*", escape or "\\")
    return negation(found) if node.args.get("negate") else found


def _array(x: Expressions, node: exp.Expr) -> Typed:
    items = list(node.expressions)
    if len(items) == 1 and isinstance(items[0], exp.Query) and not isinstance(items[0], exp.Subquery):
        level = x.query(items[0])
        if len(level.types) != 1 or not isinstance(level.types[0], SqlType):
            raise NotLocal("ARRAY(subquery) of this type")
        return Typed(model.array(level.types[0]), first_column(level), level.refs)
    if not items:
        raise NotLocal("an empty array without a type")
    values, element = unify(x.ctx, x.all(items))
    if not isinstance(element, SqlType) or element.kind is Kind.ARRAY:
        raise NotLocal("an array of these")
    runs = [v.run for v in values]
    return Typed(model.array(element), lambda e, rt: [run(e, rt) for run in runs], all_refs(values))


def _bracket(x: Expressions, node: exp.Expr) -> Typed:
    assert isinstance(node, exp.Bracket)
    value = x.compile(node.this)
    items = list(node.expressions)
    if category(value.type) is not Category.ARRAY or len(items) != 1 or isinstance(items[0], exp.Slice):
        raise NotLocal("this subscript")
    assert isinstance(value.type, SqlType)
    index = to_type(x.ctx, x.compile(items[0]), INT4)
    shift = 0 if shifted(node) else 1
    array_run, index_run = value.run, index.run

    def element(e: Env, rt: Runtime) -> Any:
        found, at = array_run(e, rt), index_run(e, rt)
        if found is None or at is None:
            return None
        at -= shift
        return found[at] if 0 <= at < len(found) else None

    return Typed(array_element(value.type), element, value.refs | index.refs)


def _scalar(x: Expressions, node: exp.Expr) -> Typed:
    level = x.query(node)
    if len(level.types) != 1:
        raise NotLocal("a subquery of several columns")

    def value(e: Env, rt: Runtime) -> Any:
        rows = level.once(e, rt)
        if len(rows) > 1:
            raise TidemillError(
                "more than one row returned by a subquery used as an expression", sqlstate="21000"
            )
        return rows[0][0] if rows else None

    return Typed(level.types[0], value, level.refs)


def _exists(x: Expressions, node: exp.Expr) -> Typed:
    level = x.query(node.this)
    return Typed(BOOL, lambda e, rt: bool(level.once(e, rt)), level.refs)


def _negative(x: Expressions, node: exp.Expr) -> Typed:
    inner = node.this
    if isinstance(inner, exp.Literal) and not inner.is_string and str(inner.this).isdigit():
        return _number(-int(str(inner.this)))
    value = x.compile(inner)
    return operators.binary(x.ctx, "-", constant(0, value.type), value)


def _session(make: Callable[[LocalContext], Typed]) -> Callable[[Expressions, exp.Expr], Typed]:
    def build(x: Expressions, node: exp.Expr) -> Typed:
        return make(x.ctx)

    return build


def _called(name: str) -> Callable[[Expressions, exp.Expr], Typed]:
    """A function with its own sqlglot node."""

    def build(x: Expressions, node: exp.Expr) -> Typed:
        from tidemill.sql.local import functions

        return functions.apply(x.ctx, name, [] if node.this is None else [x.compile(node.this)])[1]

    return build


def _flat(node: exp.Expr, kind_: type[exp.Expr]) -> list[exp.Expr]:
    found: list[exp.Expr] = []
    while isinstance(node, kind_):
        found.append(node.args["expression"])
        node = node.this
    return [node, *found[::-1]]


def _window(x: Expressions, node: exp.Expr) -> Typed:
    from tidemill.sql.local.window import compile_window

    return compile_window(x, node)


def _aggregate_filter(x: Expressions, node: exp.Expr) -> Typed:
    from tidemill.sql.local import functions

    call = call_of(node.this)
    if call is None:
        raise NotLocal("FILTER of no call")
    return functions.compile_call(x, call, node.args["expression"].this)


def _single(handler: Handler) -> Handler:
    """A form that must not contain a set-returning call: its rows would depend on the branch taken."""

    def compiled(x: Expressions, node: exp.Expr) -> Typed:
        before, x.may_series = x.may_series, False
        try:
            return handler(x, node)
        finally:
            x.may_series = before

    return compiled


HANDLERS: dict[type[exp.Expr], Handler] = {
    exp.Literal: _literal,
    exp.RawString: lambda x, n: unknown(str(n.this)),
    exp.Null: lambda x, n: unknown(None),
    exp.Boolean: lambda x, n: constant(bool(n.this), BOOL),
    exp.Parameter: _parameter,
    exp.Column: _column,
    exp.Paren: lambda x, n: x.compile(n.this),
    exp.Cast: _cast,
    exp.Dot: _dot,
    exp.Collate: _collate,
    exp.And: lambda x, n: conjunction([x.boolean(p) for p in _flat(n, exp.And)]),
    exp.Or: lambda x, n: disjunction([x.boolean(p) for p in _flat(n, exp.Or)]),
    exp.Not: lambda x, n: negation(x.boolean(n.this)),
    exp.Is: _is,
    exp.NullSafeEQ: _distinct_from,
    exp.NullSafeNEQ: _distinct_from,
    exp.Between: _between,
    exp.In: _in,
    exp.Case: _single(_case),
    exp.Coalesce: _single(_coalesce),
    exp.Greatest: _extreme,
    exp.Least: _extreme,
    exp.Nullif: _nullif,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _like,
    exp.Array: _array,
    exp.Bracket: _bracket,
    exp.Subquery: _scalar,
    exp.Exists: _exists,
    exp.Neg: _negative,
    exp.Window: _window,
    exp.Filter: _aggregate_filter,
    # At execution, not at compilation: the query may run again.
    exp.CurrentTimestamp: _called("now"),
    exp.CurrentUser: _session(lambda c: constant(c.session.user, model.NAME)),
    exp.SessionUser: _session(lambda c: constant(c.session.session_user, model.NAME)),
    exp.CurrentSchema: _called("current_schema"),
    exp.CurrentSchemas: _called("current_schemas"),
    exp.CurrentCatalog: _session(lambda c: constant(c.session.database, model.NAME)),
}
