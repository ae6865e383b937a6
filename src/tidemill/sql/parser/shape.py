"""Check that PostgreSQL's grammar can produce a tree.

`tree` calls `check` on every node of sqlglot's result, with three kinds of rules. Structural nodes may only
have known arguments. Some nodes may not appear at all. The remaining rules cover cases found by running
mutated statements against PostgreSQL 18 and this parser side by side. The binder, not this module, checks
whether a function or operator exists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError, Unsupported

_MODIFIERS = {"with_", "order", "limit", "offset"}
# The arguments of each structural node in PostgreSQL's grammar.
_ARGS: dict[type[exp.Expr], set[str]] = {
    exp.Select: {
        "expressions",
        "distinct",
        "from_",
        "where",
        "group",
        "having",
        "windows",
        "joins",
        *_MODIFIERS,
    },
    exp.Union: {"this", "expression", "distinct", *_MODIFIERS},
    exp.Except: {"this", "expression", "distinct", *_MODIFIERS},
    exp.Intersect: {"this", "expression", "distinct", *_MODIFIERS},
    exp.Subquery: {"this", "alias", "joins", *_MODIFIERS},
    exp.Table: {"this", "alias", "db", "catalog", "joins", "ordinality", "only"},
    exp.Join: {"this", "on", "side", "kind", "using", "method"},
    exp.Star: set(),
    exp.Column: {"this", "table", "db", "catalog"},
    exp.CTE: {"this", "alias", "materialized"},
    exp.With: {"expressions", "recursive"},
    exp.Group: {"expressions", "grouping_sets", "cube", "rollup"},
    exp.Order: {"this", "expressions"},
    exp.Ordered: {"this", "desc", "nulls_first"},
    exp.Limit: {"this", "expression"},
    exp.Offset: {"this", "expression"},
    exp.Fetch: {"direction", "count", "limit_options"},
    exp.Values: {"expressions", "alias", "order", "limit", "offset"},
    exp.Cast: {"this", "to"},
    exp.Lateral: {"this", "alias", "ordinality"},
    exp.Unnest: {"expressions", "alias", "offset"},
}
# If one of these appears, sqlglot has read another dialect's grammar.
_FOREIGN = (
    exp.Command,
    exp.Comprehension,
    exp.Placeholder,
    exp.Lambda,
    exp.Pivot,
    exp.Hint,
    exp.TryCast,
    exp.Aliases,
    exp.Struct,
    exp.Glob,
    exp.Version,
    exp.HistoricalData,
    exp.Qualify,
    exp.Into,
    exp.PropertyEQ,
    exp.Semicolon,
    exp.Use,
)
_JOIN_METHODS = {"", "NATURAL"}
_JOIN_KINDS = {"", "CROSS", "INNER", "OUTER"}

Rule = Callable[[Any], None]


def check(node: exp.Expr) -> None:
    """Raises if no PostgreSQL text produces `node` at this place."""
    allowed, rules = _rules(type(node))
    if allowed is not None:
        for key, value in node.args.items():
            if value and key not in allowed:
                raise _foreign_argument(key)
    for rule in rules:
        rule(node)


@cache
def _rules(kind: type[exp.Expr]) -> tuple[set[str] | None, tuple[Rule, ...]]:
    return _ARGS.get(kind), tuple(rule for base, rule in _RULES if issubclass(kind, base))


def _foreign_argument(key: str) -> TidemillError:
    if key == "sample":
        return Unsupported("TABLESAMPLE is not supported")
    return _foreign(key)


def _foreign(what: str) -> SyntaxError_:
    shown = what.strip("_").replace("_", " ").upper()
    return SyntaxError_(f"syntax error: {shown} as written here is not part of PostgreSQL's grammar")


def _near(text: str) -> SyntaxError_:
    return SyntaxError_(f'syntax error at or near "{text}"')


def _never(node: exp.Expr) -> None:
    raise _foreign(type(node).__name__)


def _write(node: exp.Expr) -> None:
    raise Unsupported("data-modifying statements in WITH are not supported")


def _column_def(node: exp.ColumnDef) -> None:
    raise Unsupported("column definitions after a function are not supported")


def _join(node: exp.Join) -> None:
    method = str(node.args.get("method") or "").upper()
    if method not in _JOIN_METHODS or str(node.args.get("kind") or "").upper() not in _JOIN_KINDS:
        raise _foreign("join")


def _star(node: exp.Star) -> None:
    if not isinstance(node.parent, exp.Select | exp.Column | exp.Dot | exp.Count | exp.Anonymous):
        raise _near("*")


def _bracket(node: exp.Bracket) -> None:
    if len(node.expressions) != 1:
        raise _near(",")


def _table_alias(node: exp.TableAlias) -> None:
    if any(isinstance(name, exp.ColumnDef) for name in node.columns):
        raise Unsupported("column definitions after a function are not supported")
    if not all(isinstance(name, exp.Identifier) for name in (node.this, *node.columns)):
        raise _foreign("alias")


def _window_spec(node: exp.WindowSpec) -> None:
    for side in ("start", "end"):
        bound = node.args.get(side)
        if bool(node.args.get(f"{side}_side")) != (isinstance(bound, exp.Expr) or bound == "UNBOUNDED"):
            raise _foreign(f"{side}_side")


def _bare_query(node: exp.Select | exp.SetOperation) -> None:
    parent = node.parent
    in_call = isinstance(parent, exp.Func) and not isinstance(parent, exp.Array | exp.Exists)
    if in_call or isinstance(parent, exp.From | exp.Join):
        raise SyntaxError_("syntax error: a subquery needs parentheses of its own")


def _set_operation(node: exp.SetOperation) -> None:
    for side in (node.this, node.expression):
        _holds_query(side)


def _with_query(node: exp.CTE | exp.Exists) -> None:
    if not isinstance(node.this, exp.Insert | exp.Update | exp.Delete | exp.Merge):
        _holds_query(node.this)


def _holds_query(inner: exp.Expr) -> None:
    if not isinstance(inner, exp.Query | exp.Values):
        raise SyntaxError_("syntax error: a query is missing")


def _derived(node: exp.Subquery | exp.Values) -> None:
    if not isinstance(node.parent, exp.From | exp.Join | exp.Lateral | exp.Subquery):
        for key in ("alias", "joins"):
            if node.args.get(key):
                raise _foreign(key)
    inner = node.args.get("this")
    if isinstance(inner, exp.Table) and not (inner.args.get("joins") or node.args.get("joins")):
        raise _near(")")


def _values(node: exp.Values) -> None:
    if not all(isinstance(row, exp.Tuple) for row in node.expressions):
        raise SyntaxError_("syntax error: VALUES needs rows in parentheses")


def _parameter(node: exp.Parameter) -> None:
    if not (isinstance(node.this, exp.Literal) and not node.this.is_string):
        raise _foreign("parameter")


def _tuple(node: exp.Tuple) -> None:
    if not node.expressions and not isinstance(node.parent, exp.GroupingSets | exp.Group):
        raise _near(")")


def _distinct(node: exp.Distinct) -> None:
    if len(node.expressions) > 1:
        raise Unsupported("DISTINCT with several arguments is not supported")


def _is(node: exp.Is) -> None:
    if not isinstance(node.expression, exp.Null | exp.Boolean):
        raise Unsupported(f"IS {node.expression.sql('postgres').upper()} is not supported")


def _grouping(node: exp.Rollup | exp.Cube) -> None:
    if not node.expressions:
        raise _foreign(type(node).__name__)


def _data_type(node: exp.DataType) -> None:
    if node.this is exp.DType.UNION:
        raise _near("UNION")


def _who(node: exp.Expr) -> None:
    if node.args.get("this"):
        raise _near("(")


def _now(node: exp.Expr) -> None:
    if node.args.get("this"):
        raise Unsupported("the precision of the current time is not supported", hint="Use date_trunc.")


def _alias(node: exp.Alias) -> None:
    if not isinstance(node.parent, exp.Select):
        raise _near("AS")
    if isinstance(node.this, exp.Star) or (
        isinstance(node.this, exp.Column) and isinstance(node.this.this, exp.Star)
    ):
        raise _near(node.alias)
    if not isinstance(node.args["alias"], exp.Identifier):
        raise _near(node.args["alias"].sql("postgres"))


def _in(node: exp.In) -> None:
    if not (node.expressions or node.args.get("query")):
        raise SyntaxError_("syntax error: IN needs a list or a subquery in parentheses")


_RULES: tuple[tuple[type[Any] | tuple[type[Any], ...], Rule], ...] = (
    (_FOREIGN, _never),
    ((exp.Insert, exp.Update, exp.Delete, exp.Merge), _write),
    (exp.ColumnDef, _column_def),
    (exp.Join, _join),
    (exp.Star, _star),
    (exp.Bracket, _bracket),
    (exp.TableAlias, _table_alias),
    (exp.WindowSpec, _window_spec),
    ((exp.Select, exp.SetOperation), _bare_query),
    (exp.SetOperation, _set_operation),
    ((exp.CTE, exp.Exists), _with_query),
    ((exp.Subquery, exp.Values), _derived),
    (exp.Values, _values),
    (exp.Parameter, _parameter),
    (exp.Tuple, _tuple),
    (exp.Distinct, _distinct),
    (exp.Is, _is),
    ((exp.Rollup, exp.Cube), _grouping),
    (exp.DataType, _data_type),
    ((exp.CurrentUser, exp.SessionUser, exp.CurrentSchema, exp.CurrentCatalog), _who),
    ((exp.CurrentTimestamp, exp.CurrentTime, exp.Localtime, exp.Localtimestamp), _now),
    (exp.Alias, _alias),
    (exp.In, _in),
)
