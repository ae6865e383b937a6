"""Special forms: AND, CASE, COALESCE, IN, BETWEEN, IS, LIKE, row comparison, arrays, EXTRACT and the like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.bind import subquery
from tidemill.sql.bind.calls import FunctionCall, row_of
from tidemill.sql.bind.coerce import explicit_cast, require_bool, settle, to_type, unify
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.ir import Const, Node, Op
from tidemill.sql.functions import comparison
from tidemill.sql.functions.lattice import can_coerce
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
    sub,
)
from tidemill.types.arrow import element_type
from tidemill.types.model import (
    BOOL,
    INT4,
    TEXT,
    Kind,
    SqlType,
    array,
)

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


def conjunction(nodes: Sequence[Node]) -> Node:
    """All of them; the nodes are booleans."""
    result = nodes[0]
    for node in nodes[1:]:
        result = Op(BOOL, "and", (result, node), lambda a: and_(*a))
    return result


def disjunction(nodes: Sequence[Node]) -> Node:
    result = nodes[0]
    for node in nodes[1:]:
        result = Op(BOOL, "or", (result, node), lambda a: or_(*a))
    return result


def negation(node: Node) -> Node:
    return Op(BOOL, "not", (node,), lambda a: not_(a[0]))


def _and(b: Binder, node: exp.Expr) -> Node:
    return conjunction([b.boolean(n, "AND") for n in _flat(node, exp.And)])


def _or(b: Binder, node: exp.Expr) -> Node:
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


def _not(b: Binder, node: exp.Expr) -> Node:
    return negation(b.boolean(node.this, "NOT"))


def _is(b: Binder, node: exp.Expr) -> Node:
    inner = b.bind(node.this)
    what = node.args["expression"]
    if isinstance(what, exp.Null):
        value = settle(b.ctx, inner)
        found: Node = Op(BOOL, "isnull", (value,), lambda a: is_null(a[0]))
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


def _distinct_from(b: Binder, node: exp.Expr) -> Node:
    left, right = b.bind(node.this), b.bind(node.args["expression"])
    equal = b.operator("=", [left, right], position_of(node))
    assert isinstance(equal, Op)
    t = equal.args[0].type
    if isinstance(node, exp.NullSafeEQ):
        return Op(BOOL, f"same {t}", equal.args, lambda a: comparison.not_distinct_from(a[0], a[1], t))
    return Op(BOOL, f"distinct {t}", equal.args, lambda a: comparison.distinct_from(a[0], a[1], t))


def _between(b: Binder, node: exp.Expr) -> Node:
    value, low, high = b.bind_all([node.this, node.args["low"], node.args["high"]])
    position = position_of(node)

    def within(lower: Node, upper: Node) -> Node:
        return conjunction(
            [b.operator(">=", [value, lower], position), b.operator("<=", [value, upper], position)]
        )

    if node.args.get("symmetric"):
        return disjunction([within(low, high), within(high, low)])
    return within(low, high)


def _in(b: Binder, node: exp.Expr) -> Node:
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
    # One common type if there is one (then Spark can use a set), else item by item.
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


def compare_rows(b: Binder, name: str, left: exp.Expr, right: exp.Expr, position: int | None) -> Node:
    """(a, b) = (c, d), column by column."""
    rows = [row_of(side) for side in (left, right)]
    if rows[0] is None or rows[1] is None or name not in ("=", "<>"):
        raise unsupported("this comparison of rows", position)
    if len(rows[0]) != len(rows[1]):
        raise SyntaxError_("unequal number of entries in row expressions", position=position)
    pairs = [b.operator("=", [b.bind(x), b.bind(y)], position) for x, y in zip(rows[0], rows[1], strict=True)]
    equal = conjunction(pairs)
    return equal if name == "=" else negation(equal)


def _case(b: Binder, node: exp.Expr) -> Node:
    subject = node.args.get("this")
    conditions: list[Node] = []
    values: list[exp.Expr] = []
    for branch in node.args["ifs"]:
        if subject is not None:
            # The subject is bound anew for each WHEN: each comparison may give an unknown one another type.
            condition = b.operator("=", [b.bind(subject), b.bind(branch.this)], position_of(branch.this))
        else:
            condition = b.boolean(branch.this, "CASE/WHEN")
        conditions.append(condition)
        values.append(branch.args["true"])
    default = node.args.get("default")
    # PostgreSQL looks at ELSE first when it settles the type.
    bound = [b.bind(default) if default is not None else Const(SqlType(Kind.UNKNOWN), None)]
    bound += b.bind_all(values)
    places = [position_of(default), *(position_of(v) for v in values)]
    results, t = unify(b.ctx, bound, "CASE", places)
    count = len(conditions)

    def build(a: Sequence[Tree]) -> Tree:
        return case(*zip(a[:count], a[count : 2 * count], strict=True), otherwise=a[-1])

    return Op(t, "case", (*conditions, *results[1:], results[0]), build)


def _coalesce(b: Binder, node: exp.Expr) -> Node:
    return _variadic(b, [node.this, *node.expressions], "COALESCE", "coalesce")


def _greatest(b: Binder, node: exp.Expr) -> Node:
    name = "greatest" if isinstance(node, exp.Greatest) else "least"
    found = _variadic(b, [node.this, *node.expressions], name.upper(), name)
    comparison.check_ordered(found.type, name.upper())
    if found.type.kind in (Kind.INTERVAL, Kind.CHAR) and isinstance(found, Op) and len(found.args) > 1:
        # Spark compares the stored forms, of which some differ and are equal.
        return Op(found.type, name, found.args, comparison.extreme(found.type, largest=name == "greatest"))
    return found


def _variadic(b: Binder, items: Sequence[exp.Expr], what: str, spark: str) -> Node:
    nodes, t = unify(b.ctx, b.bind_all(items), what, [position_of(i) for i in items])
    if len(nodes) == 1:
        return nodes[0]
    return Op(t, spark, tuple(nodes), lambda a: call(spark, *a))


def _nullif(b: Binder, node: exp.Expr) -> Node:
    equal = b.operator("=", b.bind_all([node.this, node.args["expression"]]), position_of(node))
    assert isinstance(equal, Op)
    first = equal.args[0]
    t = first.type
    return Op(t, "nullif", (equal, first), lambda a: if_(a[0], cast_to(exp.Null(), t), a[1]))


def _like(b: Binder, node: exp.Expr) -> Node:
    if isinstance(node.args["expression"], exp.Any | exp.All):
        raise unsupported("LIKE ANY", position_of(node))
    name = "~~" if isinstance(node, exp.Like) else "~~*"
    if node.args.get("negate"):
        name = f"!{name}"
    return b.operator(name, b.bind_all([node.this, node.args["expression"]]), position_of(node))


def _escape(b: Binder, node: exp.Expr) -> Node:
    """LIKE ... ESCAPE c: a constant pattern is rewritten to the default escape sign."""
    if isinstance(node.this, exp.SimilarTo):
        from tidemill.sql.bind.scalars import similar_escape

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


def _text(node: Node) -> str | None:
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


# --- arrays


def empty_array(t: SqlType) -> Node:
    return Op(t, "array", (), lambda a: cast_to(call("array"), t))


def _array(b: Binder, node: exp.Expr) -> Node:
    items = list(node.expressions)
    if len(items) == 1 and isinstance(items[0], exp.Query):
        raise unsupported("ARRAY(subquery)", position_of(node))
    if not items:
        raise TidemillError(
            "cannot determine type of empty array",
            hint="Explicitly cast to the desired type, for example ARRAY[]::integer[].",
            sqlstate="42P18",
            position=position_of(node),
        )
    nodes, t = unify(b.ctx, b.bind_all(items), "ARRAY", [position_of(i) for i in items])
    if t.kind is Kind.ARRAY:
        raise unsupported("an array of arrays", position_of(node))
    return Op(array(t), "array", tuple(nodes), lambda a: call("array", *a))


def _bracket(b: Binder, node: exp.Expr) -> Node:
    value = b.bind(node.this)
    if value.type.kind is not Kind.ARRAY:
        raise TidemillError(
            f"cannot subscript type {value.type} because it does not support subscripting",
            sqlstate="42804",
            position=position_of(node),
        )
    items = list(node.expressions)
    if len(items) != 1 or isinstance(items[0], exp.Slice):
        raise unsupported("an array slice", position_of(node))
    index = explicit_cast(b.ctx, b.bind(items[0]), INT4, position_of(items[0]))
    t = element_type(value.type)
    if _shifted(items[0]):
        return Op(t, "element", (value, index), lambda a: call("get", a[0], a[1]))
    return Op(t, "element", (value, index), lambda a: call("get", a[0], sub(a[1], integer(1))))


def _shifted(index: exp.Expr) -> bool:
    """sqlglot counts elements from 0 and takes 1 off where it sees an integer; it annotates what it looked
    at, so an index that it left alone has a type, and that is no integer's."""
    t = index.type
    return t is None or t.this in exp.DataType.INTEGER_TYPES


# --- functions with arguments of any type


def _output_text(b: Binder, node: Node) -> Node:
    """A value as it is printed: a boolean as t or f, where a cast would give true or false."""
    if node.type == BOOL:
        return Op(TEXT, "boolout", (node,), lambda a: call("left", cast_to(a[0], TEXT), integer(1)))
    return to_type(b.ctx, node, TEXT)


def _concat(b: Binder, call_: FunctionCall, position: int | None) -> Node:
    """concat and concat_ws take anything, as text, and leave out NULLs."""
    args = [settle(b.ctx, a) for a in b.bind_all(call_.args)]
    if not args or (call_.name == "concat_ws" and len(args) < 2):
        raise b.no_function(call_.name, args, position)
    texts = tuple(_output_text(b, a) for a in args)
    if call_.name == "concat_ws":
        return Op(TEXT, "concat_ws", texts, lambda a: call("concat_ws", *a))
    return Op(TEXT, "concat", texts, lambda a: call("concat_ws", string(""), *a))


def _row_value(_b: Binder, node: exp.Expr) -> Node:
    raise _no_row_value(position_of(node))


def _row_call(_b: Binder, _call: FunctionCall, position: int | None) -> Node:
    raise _no_row_value(position)


def _no_row_value(position: int | None) -> TidemillError:
    return unsupported(
        "a row as a value", position, hint="Rows can be compared with = and <>, and looked up with IN."
    )


FUNCTIONS: dict[str, Callable[[Binder, FunctionCall, int | None], Node]] = {
    "concat": _concat,
    "concat_ws": _concat,
    "row": _row_call,
}

HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Node]] = {
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
    exp.Array: _array,
    exp.Bracket: _bracket,
    exp.Tuple: _row_value,
}
