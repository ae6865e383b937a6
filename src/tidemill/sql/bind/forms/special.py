"""Special forms: AND, CASE, COALESCE, IN, BETWEEN, IS, LIKE, row comparison, arrays, EXTRACT and similar
forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import Internal, SyntaxError_, TidemillError, Unsupported
from tidemill.sql.bind.calls import FunctionCall, row_of
from tidemill.sql.bind.coerce import require_bool, settle, to_type, unify
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.forms import subquery
from tidemill.sql.functions import comparison
from tidemill.sql.functions.guards import case_branches, first_of
from tidemill.sql.functions.lattice import FLOATS, SIGNED, can_coerce
from tidemill.sql.functions.tree import (
    Tree,
    and_,
    call,
    case,
    cast_to,
    if_,
    integer,
    is_null,
    not_,
    or_,
    string,
)
from tidemill.sql.plan.expressions import GROUPING, BoundNode, Const, Op
from tidemill.types.model import (
    BOOL,
    INT4,
    TEXT,
    Kind,
    SqlType,
)

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


# GROUPING() accepts at most as many expressions as an integer has bits.
MAX_GROUPING = 31


def conjunction(nodes: Sequence[BoundNode]) -> BoundNode:
    """The AND of all nodes, which are booleans."""
    result: BoundNode = nodes[0] if nodes else Const(BOOL, pa.scalar(True))
    for node in nodes[1:]:
        result = Op(BOOL, "and", (result, node), lambda a: and_(*a))
    return result


def disjunction(nodes: Sequence[BoundNode]) -> BoundNode:
    result: BoundNode = nodes[0] if nodes else Const(BOOL, pa.scalar(False))
    for node in nodes[1:]:
        result = Op(BOOL, "or", (result, node), lambda a: or_(*a))
    return result


def negation(node: BoundNode) -> BoundNode:
    return Op(BOOL, "not", (node,), lambda a: not_(a[0]))


def _and(b: Binder, node: exp.Expr) -> BoundNode:
    return conjunction([b.boolean(n, "AND") for n in _flat(node, exp.And)])


def _or(b: Binder, node: exp.Expr) -> BoundNode:
    return disjunction([b.boolean(n, "OR") for n in _flat(node, exp.Or)])


def _flat(node: exp.Expr, kind: type[exp.Expr]) -> list[exp.Expr]:
    """a AND b AND c ... as a list, without recursing once per item."""
    found: list[exp.Expr] = []
    current = node
    while isinstance(current, kind):
        found.append(current.args["expression"])
        current = current.this
    found.append(current)
    return found[::-1]


def _not(b: Binder, node: exp.Expr) -> BoundNode:
    return negation(b.boolean(node.this, "NOT"))


def _is(b: Binder, node: exp.Expr) -> BoundNode:
    what = node.args["expression"]
    fields = row_of(node.this)
    if fields is not None and isinstance(what, exp.Null):
        return _row_is_null(b, fields, negate=bool(node.args.get("negate")))
    inner = b.bind(node.this)
    if isinstance(what, exp.Null):
        value = settle(b.ctx, inner)
        found: BoundNode = Op(BOOL, "isnull", (value,), lambda a: is_null(a[0]))
    else:
        truth = bool(what.this)
        clause = "IS TRUE" if truth else "IS FALSE"
        value = require_bool(b.ctx, inner, clause, position_of(node))
        found = Op(
            BOOL,
            f"is {truth}",
            (value,),
            lambda a: call("coalesce", a[0] if truth else not_(a[0]), exp.false()),
        )
    return negation(found) if node.args.get("negate") else found


def _row_is_null(b: Binder, fields: Sequence[exp.Expr], *, negate: bool) -> BoundNode:
    """A row IS NULL if all its fields are NULL, and IS NOT NULL if no field is NULL."""
    nulls = [Op(BOOL, "isnull", (settle(b.ctx, n),), lambda a: is_null(a[0])) for n in b.bind_all(fields)]
    return conjunction([negation(n) for n in nulls] if negate else list(nulls))


def _distinct_from(b: Binder, node: exp.Expr) -> BoundNode:
    rows = [row_of(node.this), row_of(node.args["expression"])]
    if rows[0] is not None and rows[1] is not None:
        if len(rows[0]) != len(rows[1]):
            raise SyntaxError_("unequal number of entries in row expressions", position=position_of(node))
        pairs = [
            _distinct_from(b, exp.NullSafeNEQ(this=x.copy(), expression=y.copy()))
            for x, y in zip(rows[0], rows[1], strict=True)
        ]
        found = disjunction(pairs)
        return negation(found) if isinstance(node, exp.NullSafeEQ) else found
    left, right = b.bind(node.this), b.bind(node.args["expression"])
    equal = b.operator("=", [left, right], position_of(node))
    assert isinstance(equal, Op)
    t = equal.args[0].type
    if isinstance(node, exp.NullSafeEQ):
        return Op(BOOL, f"same {t}", equal.args, lambda a: comparison.not_distinct_from(a[0], a[1], t))
    return Op(BOOL, f"distinct {t}", equal.args, lambda a: comparison.distinct_from(a[0], a[1], t))


def _between(b: Binder, node: exp.Expr) -> BoundNode:
    value, low, high = b.bind_all([node.this, node.args["low"], node.args["high"]])
    position = position_of(node)

    def within(lower: BoundNode, upper: BoundNode) -> BoundNode:
        return conjunction(
            [b.operator(">=", [value, lower], position), b.operator("<=", [value, upper], position)]
        )

    if node.args.get("symmetric"):
        return disjunction([within(low, high), within(high, low)])
    return within(low, high)


def _in(b: Binder, node: exp.Expr) -> BoundNode:
    query = node.args.get("query")
    if query is not None:
        return subquery.bind_in(b, node.this, query)
    items: list[exp.Expr] = list(node.expressions)
    if row_of(node.this) is not None:
        rows = [compare_rows(b, "=", node.this, item, position_of(item)) for item in items]
        return disjunction(rows)
    if any(row_of(i) is not None for i in items):
        raise unsupported("a row in this IN list", position_of(node))
    value = b.bind(node.this)
    bound = b.bind_all(items)
    # With a common type Spark can use a set, else the items are compared one by one.
    from tidemill.sql.functions.lattice import common_type

    common, _ = common_type([value.type, *(n.type for n in bound)])
    if common is not None and all(can_coerce(n.type, common) for n in (value, *bound)):
        probe = b.operator("=", [to_type(b.ctx, value, common), to_type(b.ctx, bound[0], common)], None)
        assert isinstance(probe, Op)
        t = probe.args[0].type
        nodes = (probe.args[0], *(to_type(b.ctx, to_type(b.ctx, n, common), t) for n in bound))

        def build(a: Sequence[Tree]) -> Tree:
            keys = [comparison.comparable(v, t) for v in a]
            return exp.Paren(this=exp.In(this=keys[0], expressions=keys[1:]))

        return Op(BOOL, f"in {t}", nodes, build)
    return disjunction(
        [b.operator("=", [value, n], position_of(i)) for n, i in zip(bound, items, strict=True)]
    )


def compare_rows(b: Binder, name: str, left: exp.Expr, right: exp.Expr, position: int | None) -> BoundNode:
    """(a, b) = (c, d), column by column; (a, b) < (c, d) by the first columns that differ."""
    rows = [row_of(side) for side in (left, right)]
    if rows[0] is None or rows[1] is None or name not in ("=", "<>", "<", "<=", ">", ">="):
        raise unsupported("this comparison of rows", position)
    if len(rows[0]) != len(rows[1]):
        raise SyntaxError_("unequal number of entries in row expressions", position=position)
    if not rows[0]:
        raise Unsupported("cannot compare rows of zero length", position=position)
    sides = [(b.bind(x), b.bind(y)) for x, y in zip(rows[0], rows[1], strict=True)]
    pairs = [b.operator("=", list(pair), position) for pair in sides]
    if name == "=":
        return conjunction(pairs)
    if name == "<>":
        return disjunction([negation(p) for p in pairs])
    result = b.operator(name, list(sides[-1]), position)
    for pair, equal in zip(sides[-2::-1], pairs[-2::-1], strict=True):
        # If it is unknown whether they are equal, the order is unknown, too.
        smaller = b.operator(name[0], list(pair), position)
        result = Op(BOOL, "case", (equal, result, smaller), lambda a: case((a[0], a[1]), otherwise=a[2]))
    return result


def _case(b: Binder, node: exp.Expr) -> BoundNode:
    subject = node.args.get("this")
    conditions: list[BoundNode] = []
    values: list[exp.Expr] = []
    for branch in node.args["ifs"]:
        if subject is not None:
            # The subject is bound again for each WHEN, because each comparison may give an unknown subject
            # another type.
            condition = b.operator("=", [b.bind(subject), b.bind(branch.this)], position_of(branch.this))
        else:
            condition = b.boolean(branch.this, "CASE/WHEN")
        conditions.append(condition)
        values.append(branch.args["true"])
    default = node.args.get("default")
    # PostgreSQL considers ELSE first when it determines the type.
    bound = [b.bind(default) if default is not None else Const(SqlType(Kind.UNKNOWN), None)]
    bound += b.bind_all(values)
    places = [position_of(default), *(position_of(v) for v in values)]
    results, t = unify(b.ctx, bound, "CASE", places)
    count = len(conditions)

    def build(a: Sequence[Tree]) -> Tree:
        return case_branches(a[:count], a[count : 2 * count], a[-1])

    return Op(t, "case", (*conditions, *results[1:], results[0]), build)


def _coalesce(b: Binder, node: exp.Expr) -> BoundNode:
    found = _variadic(b, [node.this, *node.expressions], "COALESCE", "coalesce")
    if not isinstance(found, Op) or found.key != "coalesce":
        return found
    return replace(found, form=lambda a: call("coalesce", *first_of(a)))


def _greatest(b: Binder, node: exp.Expr) -> BoundNode:
    name = "greatest" if isinstance(node, exp.Greatest) else "least"
    found = _variadic(b, [node.this, *node.expressions], name.upper(), name)
    if found.type.kind is Kind.ARRAY:
        comparison.check_sorted(found.type, name.upper())
    else:
        comparison.check_ordered(found.type, name.upper())
    if (
        found.type.kind in (Kind.INTERVAL, Kind.CHAR, Kind.ARRAY)
        and isinstance(found, Op)
        and len(found.args) > 1
    ):
        # Spark compares the storage forms; some equal values have different ones.
        return Op(found.type, name, found.args, comparison.extreme(found.type, largest=name == "greatest"))
    return found


def _variadic(b: Binder, items: Sequence[exp.Expr], what: str, spark: str) -> BoundNode:
    nodes, t = unify(b.ctx, b.bind_all(items), what, [position_of(i) for i in items])
    if len(nodes) == 1:
        return nodes[0]
    return Op(t, spark, tuple(nodes), lambda a: call(spark, *a))


_COMPARED_AS_THEY_ARE = (SIGNED, FLOATS, frozenset({Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}))


def _nullif(b: Binder, node: exp.Expr) -> BoundNode:
    sides = b.bind_all([node.this, node.args["expression"]])
    equal = b.operator("=", sides, position_of(node))
    assert isinstance(equal, Op)
    # PostgreSQL compares these without a cast, and the value keeps its type.
    kinds = {side.type.kind for side in sides}
    first = sides[0] if any(kinds <= family for family in _COMPARED_AS_THEY_ARE) else equal.args[0]
    t = first.type
    return Op(t, "nullif", (equal, first), lambda a: if_(a[0], cast_to(exp.Null(), t), a[1]))


def _like(b: Binder, node: exp.Expr) -> BoundNode:
    name = "~~" if isinstance(node, exp.Like) else "~~*"
    if node.args.get("negate"):
        name = f"!{name}"
    if isinstance(node.args["expression"], exp.Any | exp.All):
        return subquery.bind_quantified(b, name, node.this, node.args["expression"])
    return b.operator(name, b.bind_all([node.this, node.args["expression"]]), position_of(node))


def _escape(b: Binder, node: exp.Expr) -> BoundNode:
    """LIKE ... ESCAPE c: a constant pattern is rewritten to the default escape character."""
    if isinstance(node.this, exp.SimilarTo):
        from tidemill.sql.bind.forms.scalars import similar_escape

        return similar_escape(b, node.this, node.args["expression"])
    like, sign = node.this, b.bind(node.args["expression"])
    pattern = b.bind(like.args["expression"])
    texts = [_text(sign), _text(pattern)]
    if texts[0] is None or texts[1] is None:
        raise unsupported("ESCAPE with a pattern that is no constant", position_of(node))
    if len(texts[0]) > 1:
        raise TidemillError(
            "invalid escape string",
            hint="Escape string must be empty or one character.",
            sqlstate="22025",
            position=position_of(node),
        )
    rewritten = _with_backslash(texts[1], texts[0])
    name = "~~" if isinstance(like, exp.Like) else "~~*"
    if like.args.get("negate"):
        name = f"!{name}"
    value = Const(TEXT, pa.scalar(rewritten))
    return b.operator(name, [b.bind(like.this), value], position_of(node))


def _text(node: BoundNode) -> str | None:
    if not isinstance(node, Const) or node.value is None:
        return None
    return node.value if isinstance(node.value, str) else node.value.as_py()


def _with_backslash(pattern: str, sign: str) -> str:
    out: list[str] = []
    chars = iter(pattern)
    for ch in chars:
        if ch == sign:
            following = next(chars, None)
            if following is None:
                raise TidemillError("LIKE pattern must not end with escape character", sqlstate="22025")
            out.append(f"\\{following}" if following in "%_\\" else following)
        else:
            out.append("\\\\" if ch == "\\" else ch)
    return "".join(out)


# --- functions with arguments of any type


def output_text(b: Binder, node: BoundNode) -> BoundNode:
    """A value as output text: a boolean as t or f, where a cast gives true or false; a char(n) with its
    trailing blanks, which a cast removes."""
    if node.type == BOOL:
        return Op(TEXT, "boolout", (node,), lambda a: call("left", cast_to(a[0], TEXT), integer(1)))
    if node.type.kind is Kind.CHAR:
        return Op(TEXT, "bpcharout", (node,), lambda a: a[0])
    return to_type(b.ctx, node, TEXT)


def _concat(b: Binder, call_: FunctionCall, position: int | None) -> BoundNode:
    """concat and concat_ws convert any argument to text, and ignore NULLs."""
    args = [settle(b.ctx, a) for a in b.bind_all(call_.args)]
    if not args or (call_.name == "concat_ws" and len(args) < 2):
        raise b.no_function(call_.name, args, position)
    texts = tuple(output_text(b, a) for a in args)
    if call_.name == "concat_ws":
        return Op(TEXT, "concat_ws", texts, lambda a: call("concat_ws", *a))
    return Op(TEXT, "concat", texts, lambda a: call("concat_ws", string(""), *a))


def _row_value(_b: Binder, node: exp.Expr) -> BoundNode:
    raise _no_row_value(position_of(node))


def _row_call(_b: Binder, _call: FunctionCall, position: int | None) -> BoundNode:
    raise _no_row_value(position)


def _no_row_value(position: int | None) -> TidemillError:
    return unsupported(
        "a row as a value", position, hint="Rows can be compared with = and <>, and looked up with IN."
    )


def _grouping(b: Binder, node: exp.Expr) -> BoundNode:
    """GROUPING(a, ...), which `grouping` evaluates."""
    if not b.aggregates:
        raise TidemillError(
            f"grouping operations are not allowed in {b.clause}", sqlstate="42803", position=position_of(node)
        )
    args = tuple(settle(b.ctx, n) for n in b.bind_all(node.expressions))
    if len(args) > MAX_GROUPING:
        raise TidemillError("GROUPING must have fewer than 32 arguments", sqlstate="54023")

    def build(_args: Sequence[Tree]) -> Tree:
        raise Internal("GROUPING() outside of a grouped query")

    return Op(INT4, GROUPING, args, build)


FUNCTIONS: dict[str, Callable[[Binder, FunctionCall, int | None], BoundNode]] = {
    "concat": _concat,
    "concat_ws": _concat,
    "row": _row_call,
}

HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], BoundNode]] = {
    exp.And: _and,
    exp.Or: _or,
    exp.Not: _not,
    exp.Is: _is,
    exp.NullSafeEQ: _distinct_from,
    exp.NullSafeNEQ: _distinct_from,
    exp.Between: _between,
    exp.In: _in,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.Greatest: _greatest,
    exp.Least: _greatest,
    exp.Nullif: _nullif,
    exp.Like: _like,
    exp.ILike: _like,
    exp.Escape: _escape,
    exp.Grouping: _grouping,
    exp.Tuple: _row_value,
}
