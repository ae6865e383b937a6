"""Expressions: a parsed tree in, a typed node out.

Each clause of a query has one `Binder`. It resolves columns through its scope, and functions and operators
through the allow-list. It gives every literal the type that its context requires. Special forms are in
`special`, subqueries in `subquery`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import TidemillError, UndefinedObject, Unsupported
from tidemill.sql.bind.calls import FunctionCall, call_of, row_of
from tidemill.sql.bind.coerce import explicit_cast, to_type
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.bind.digits import result_type, with_digits, written_digits
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.fold import fold
from tidemill.sql.bind.forms import (
    arrays,
    json_calls,
    ordered_sets,
    records,
    scalars,
    session,
    special,
    subquery,
)
from tidemill.sql.bind.forms.aggregate import bind_aggregate
from tidemill.sql.bind.forms.table_functions import SET_RETURNING, bind_rows
from tidemill.sql.bind.forms.window import bind_window, is_window_function
from tidemill.sql.bind.operators import BINARY, UNARY
from tidemill.sql.bind.scope import Scope
from tidemill.sql.bind.typename import sql_type
from tidemill.sql.functions import signature
from tidemill.sql.functions.lattice import STRINGS, base
from tidemill.sql.functions.resolve import (
    ResolvedFunction,
    is_ambiguous_function,
    is_ambiguous_operator,
    resolve_function,
    resolve_operator,
)
from tidemill.sql.plan.convert import integer_scalar, numeric_scalar
from tidemill.sql.plan.expressions import BoundNode, BoundParam, Const, Op
from tidemill.types.arrow import NUMERIC_SCALE
from tidemill.types.model import BOOL, NUMERIC, TEXT, UNKNOWN, Kind

if TYPE_CHECKING:
    from tidemill.sql.bind.model import NameResolver
    from tidemill.sql.bind.query import BoundParts

_NO_FUNCTION = (
    "No function matches the given name and argument types. You might need to add explicit type casts."
)
_NO_OPERATOR = (
    "No operator matches the given name and argument types. You might need to add explicit type casts."
)

# The types of keys that `map -> key` accepts.
_KEYS = (*STRINGS, Kind.UNKNOWN)
_NOT_UNIQUE = "Could not choose a best candidate {}. You might need to add explicit type casts."


@dataclass(frozen=True, slots=True)
class Env:
    """The context of an expression or query: the meaning of its names."""

    ctx: BindContext
    names: NameResolver
    # Visible WITH items, by name.
    ctes: Mapping[str, BoundParts]


class Binder:
    """Binds the expressions of one clause. `clause` is its name for errors; `aggregates` says whether it may
    contain aggregates."""

    def __init__(self, env: Env, scope: Scope, clause: str, *, aggregates: bool = False) -> None:
        self.env = env
        self.ctx = env.ctx
        self.scope = scope
        self.clause = clause
        self.aggregates = aggregates
        # An aggregate's arguments may not contain another aggregate.
        self.in_aggregate = False
        self.in_window = False
        # Set-returning functions are allowed in a select list, but not in the arguments of another one.
        self.rows_allowed = False
        self.windows: Mapping[str, exp.Window] = {}

    def bind(self, node: exp.Expr) -> BoundNode:
        """The expression as a typed node; it may still be of type unknown."""
        handler = _HANDLERS.get(type(node))
        if handler is not None:
            return handler(self, node)
        call = call_of(node)
        if call is not None:
            return self.call(call, node)
        raise Unsupported(f"{_shown(node)} is not supported", position=position_of(node))

    def bind_all(self, nodes: Sequence[exp.Expr]) -> list[BoundNode]:
        return [self.bind(n) for n in nodes]

    # --- calls

    def call(self, call: FunctionCall, node: exp.Expr) -> BoundNode:
        """A function by its PostgreSQL name."""
        name = call.name
        position = position_of(node)
        if name in special.FUNCTIONS:
            return special.FUNCTIONS[name](self, call, position)
        if name in scalars.FUNCTIONS:
            return scalars.FUNCTIONS[name](self, call, position)
        if name in session.FUNCTIONS:
            return session.FUNCTIONS[name](self, call, position)
        if name in json_calls.FUNCTIONS:
            return json_calls.FUNCTIONS[name](self, call, position)
        if name in SET_RETURNING:
            return bind_rows(self, call, position)
        if name in ordered_sets.NAMES:
            raise self.no_function(name, self.bind_all(call.args), position)
        if is_window_function(name):
            raise TidemillError(
                f"window function {name} requires an OVER clause", sqlstate="42809", position=position
            )
        if signature.is_aggregate_name(name):
            return bind_aggregate(self, call, None, position)
        if call.star or call.distinct or call.order:
            what = f"{name}(*)" if call.star else "DISTINCT" if call.distinct else "ORDER BY"
            raise UndefinedObject(
                f"{what} specified, but {name} is not an aggregate function",
                sqlstate="42809",
                position=position,
            )
        args = self.bind_all(call.args)
        return self.apply(name, args, position)

    def apply(self, name: str, args: Sequence[BoundNode], position: int | None) -> BoundNode:
        """A scalar function of already bound arguments."""
        found = resolve_function(name, [a.type for a in args])
        if found is None:
            made = scalars.type_call(self, name, args, position)
            if made is not None:
                return made
            raise self.no_function(name, args, position)
        return self.resolved(found, args, position)

    def no_function(self, name: str, args: Sequence[BoundNode], position: int | None) -> TidemillError:
        if signature.is_not_yet(name):
            return Unsupported(f"function {name}() is not supported yet", position=position)
        hint = signature.statement_call_hint(name)
        if hint is not None:
            return Unsupported(f"{name}() in this place is not supported", hint=hint, position=position)
        if name == "map_build":
            raise Unsupported(
                "function map_build() is not supported",
                hint="INCLUDE HEADER 'key' AS name gives one header of Kafka's records as a column.",
                position=position,
            )
        shown = ", ".join(str(base(a.type)) for a in args)
        if is_ambiguous_function(name, [a.type for a in args]):
            return TidemillError(
                f"function {name}({shown}) is not unique",
                hint=_NOT_UNIQUE.format("function"),
                sqlstate="42725",
                position=position,
            )
        return UndefinedObject(
            f"function {name}({shown}) does not exist", sqlstate="42883", position=position, hint=_NO_FUNCTION
        )

    def operator(self, name: str, args: Sequence[BoundNode], position: int | None) -> BoundNode:
        if name == "||" and _joins_text([a.type.kind for a in args]):
            # text || anything: the other side as text.
            args = [to_type(self.ctx, a, TEXT, position=position) for a in args]
        if name == "->" and args[0].type.kind is Kind.MAP and args[1].type.kind in _KEYS:
            return records.bind_entry(self, args[0], args[1], position)
        found = resolve_operator(name, [a.type for a in args])
        if found is None:
            shown = (
                f" {name} ".join(str(base(a.type)) for a in args)
                if len(args) == 2
                else f"{name} {base(args[0].type)}"
            )
            if is_ambiguous_operator(name, [a.type for a in args]):
                raise TidemillError(
                    f"operator is not unique: {shown}",
                    hint=_NOT_UNIQUE.format("operator"),
                    sqlstate="42725",
                    position=position,
                )
            raise UndefinedObject(
                f"operator does not exist: {shown}", sqlstate="42883", position=position, hint=_NO_OPERATOR
            )
        return self.resolved(found, args, position)

    def resolved(self, found: ResolvedFunction, args: Sequence[BoundNode], position: int | None) -> BoundNode:
        coerced = tuple(
            to_type(self.ctx, a, t, position=position) for a, t in zip(args, found.args, strict=True)
        )
        result = result_type(found.fn.name, found.fn.result, found.result, coerced)
        folded = fold(found.fn.name, result, coerced)
        if folded is not None:
            return folded
        key = f"{found.fn.name}({','.join(map(str, found.args))})"
        if found.fn.volatile:
            self.ctx.depends_on(Dependence.CHANCE, f"{found.fn.name}()")
            # Two calls are two values, so they are never merged into one expression.
            key = f"{key}#{self.ctx.alias()}"
        return Op(result, key, coerced, found.fn)

    def boolean(self, node: exp.Expr, clause: str) -> BoundNode:
        from tidemill.sql.bind.coerce import require_bool

        return require_bool(self.ctx, self.bind(node), clause, position_of(node))


def _joins_text(kinds: Sequence[Kind]) -> bool:
    """Whether `||` of these operands is that of text. Arrays have their own operator, as have bytea and jsonb
    with a literal."""
    if any(k in (Kind.ARRAY, Kind.LIST, Kind.MAP) for k in kinds):
        return False
    if any(k in STRINGS for k in kinds):
        return True
    return Kind.UNKNOWN in kinds and not any(k in (Kind.BYTEA, Kind.JSONB) for k in kinds)


def _shown(node: exp.Expr) -> str:
    if isinstance(node, exp.Func):
        # The name as written, or as in PostgreSQL's text (special syntax has no position). sqlglot's names,
        # such as `time_to_str`, mean nothing to users.
        name = node.meta.get("function") or node.sql("postgres").split("(")[0].lower()
        return f"function {name}()"
    if isinstance(node, exp.BitString | exp.HexString):
        return "a bit string"
    return f"this use of {type(node).__name__}"


def _literal(b: Binder, node: exp.Expr) -> BoundNode:
    position = position_of(node)
    text = str(node.this)
    if node.args.get("is_string"):
        return Const(UNKNOWN, text, position)
    digits = written_digits(text)
    t = with_digits(NUMERIC, digits)
    try:
        if text.isdigit():
            value, t = integer_scalar(int(text))
            return Const(t, value, position)
        if digits is not None and digits <= NUMERIC_SCALE:
            return Const(t, numeric_scalar(Decimal(text)), position)
    except (TidemillError, ArithmeticError):
        pass
    # Too large for our numeric; next to a float it becomes a float.
    return Const(t, text, position)


def _string(b: Binder, node: exp.Expr) -> BoundNode:
    return Const(UNKNOWN, str(node.this), position_of(node))


def _null(b: Binder, node: exp.Expr) -> BoundNode:
    return Const(UNKNOWN, None, position_of(node))


def _boolean(b: Binder, node: exp.Expr) -> BoundNode:
    return Const(BOOL, pa.scalar(bool(node.this)), position_of(node))


def _parameter(b: Binder, node: exp.Expr) -> BoundNode:
    index = int(node.this.name)
    t = b.ctx.param_type(index)
    return BoundParam(UNKNOWN if t is None else t, index, position_of(node))


def _column(b: Binder, node: exp.Expr) -> BoundNode:
    assert isinstance(node, exp.Column)
    position = position_of(node)
    if isinstance(node.this, exp.Star):
        raise TidemillError(
            'row expansion via "*" is not supported here', sqlstate="0A000", position=position
        )
    name = node.name
    parts = [p.name for p in (node.args.get("catalog"), node.args.get("db"), node.args.get("table")) if p]
    if parts:
        return b.scope.qualified(parts, name, position)
    found = b.scope.column(name, position)
    if found is not None:
        return found
    if b.scope.is_item(name):
        raise unsupported(f'whole-row reference to "{name}"', position)
    raise b.scope.no_column(name, position)


def _paren(b: Binder, node: exp.Expr) -> BoundNode:
    return b.bind(node.this)


def _binary(b: Binder, node: exp.Expr) -> BoundNode:
    name = BINARY[type(node)]
    left, right = node.this, node.args["expression"]
    if isinstance(right, exp.Any | exp.All):
        return subquery.bind_quantified(b, name, left, right)
    if isinstance(right, exp.Anonymous) and str(right.this).upper() == "ALL":
        # sqlglot's form of ALL (array).
        return subquery.bind_quantified(b, name, left, exp.All(this=right.expressions[0]))
    if row_of(left) is not None or row_of(right) is not None:
        return special.compare_rows(b, name, left, right, position_of(node))
    return b.operator(name, [b.bind(left), b.bind(right)], position_of(node))


def _unary(b: Binder, node: exp.Expr) -> BoundNode:
    name = UNARY[type(node)]
    inner = node.this
    if name == "-" and isinstance(inner, exp.Literal) and not inner.args.get("is_string"):
        # -9223372036854775808 is one constant: without the sign it would not fit.
        text = str(inner.this)
        position = position_of(inner)
        if text.isdigit():
            value, t = integer_scalar(-int(text))
            return Const(t, value, position)
        positive = _literal(b, inner)
        assert isinstance(positive, Const)
        if isinstance(positive.value, str):
            return Const(positive.type, f"-{positive.value}", position)
        return Const(positive.type, numeric_scalar(-positive.value.as_py()), position)
    return b.operator(name, [b.bind(inner)], position_of(node))


def _cast(b: Binder, node: exp.Expr) -> BoundNode:
    assert isinstance(node, exp.Cast)
    if isinstance(node.this, exp.IntDiv):
        # sqlglot's form of div(a, b).
        args = b.bind_all([node.this.this, node.this.expression])
        return b.apply("div", args, position_of(node))
    target = sql_type(node.to)
    empty = {exp.Array: Kind.ARRAY, exp.List: Kind.LIST}.get(type(node.this))
    if empty is target.kind and not node.this.expressions:
        return arrays.empty_array(target)
    return explicit_cast(b.ctx, b.bind(node.this), target, position_of(node))


def _dot(b: Binder, node: exp.Expr) -> BoundNode:
    """pg_catalog.f(x), and fields of records."""
    assert isinstance(node, exp.Dot)
    if isinstance(node.this, exp.Identifier) and isinstance(node.expression, exp.Func):
        if node.this.name in ("pg_catalog", "mz_catalog"):
            return b.bind(node.expression)
        call = call_of(node.expression)
        name = f"{node.this.name}.{call.name if call else '?'}"
        raise UndefinedObject(
            f"function {name}() does not exist",
            sqlstate="42883",
            position=position_of(node),
            hint=_NO_FUNCTION,
        )
    return records.bind_field(b, node)


def _window(b: Binder, node: exp.Expr) -> BoundNode:
    assert isinstance(node, exp.Window)
    return bind_window(b, node)


def _filter(b: Binder, node: exp.Expr) -> BoundNode:
    position = position_of(node)
    if isinstance(node.this, exp.WithinGroup):
        return ordered_sets.bind_ordered_set(b, node.this, node.args["expression"].this)
    call = call_of(node.this)
    if call is None or not signature.is_aggregate_name(call.name):
        raise TidemillError(
            "FILTER specified, but this is not an aggregate function", sqlstate="42809", position=position
        )
    return bind_aggregate(b, call, node.args["expression"].this, position)


def _collate(b: Binder, node: exp.Expr) -> BoundNode:
    name = node.args["expression"].name
    if name not in ("C", "POSIX", "default"):
        raise unsupported(
            f'collation "{name}"', position_of(node), 'Text compares by bytes, as with COLLATE "C".'
        )
    return b.bind(node.this)


_Handler = Callable[[Binder, exp.Expr], BoundNode]

_HANDLERS: dict[type[exp.Expr], _Handler] = {
    exp.Literal: _literal,
    exp.RawString: _string,
    exp.Null: _null,
    exp.Boolean: _boolean,
    exp.Parameter: _parameter,
    exp.Column: _column,
    exp.Paren: _paren,
    exp.Cast: _cast,
    exp.Dot: _dot,
    exp.Window: _window,
    exp.Filter: _filter,
    exp.WithinGroup: ordered_sets.bind_ordered_set,
    exp.Collate: _collate,
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(UNARY, _unary),
    **special.HANDLERS,
    **scalars.HANDLERS,
    **arrays.HANDLERS,
    **session.HANDLERS,
    **subquery.HANDLERS,
}
