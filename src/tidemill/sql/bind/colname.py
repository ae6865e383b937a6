"""PostgreSQL's names for output columns without an alias."""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import call_of
from tidemill.sql.bind.operators import BINARY, UNARY
from tidemill.sql.bind.typename import sql_type, written_name
from tidemill.types.model import Kind

UNNAMED = "?column?"

_FIXED: dict[type[exp.Expr], str] = {
    exp.Coalesce: "coalesce",
    exp.Nullif: "nullif",
    exp.Greatest: "greatest",
    exp.Least: "least",
    exp.Exists: "exists",
    exp.Array: "array",
    exp.List: "list",
    exp.Grouping: "grouping",
    exp.Extract: "extract",
    exp.AtTimeZone: "timezone",
    exp.Overlay: "overlay",
    exp.Overlaps: "overlaps",
    exp.CurrentDate: "current_date",
    exp.CurrentTimestamp: "now",
    exp.Localtime: "localtime",
    exp.Localtimestamp: "localtimestamp",
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentSchema: "current_schema",
    exp.CurrentSchemas: "current_schemas",
    exp.CurrentCatalog: "current_catalog",
    exp.IntDiv: "div",
}


def column_name(node: exp.Expr) -> str:
    return _name(node)[0]


def _name(node: exp.Expr) -> tuple[str, int]:
    """The name and its rank: 2 for a real name, 1 for a type's name or a default, 0 for none."""
    if isinstance(node, exp.Alias):
        return node.alias, 2
    if isinstance(node, exp.Column):
        return node.name, 2
    if isinstance(node, exp.Dot):
        if isinstance(node.expression, exp.Anonymous | exp.Func):
            return _name(node.expression)
        return node.expression.name, 2
    if isinstance(node, exp.Paren | exp.Collate | exp.Bracket | exp.Filter | exp.Window | exp.WithinGroup):
        return _name(node.this)
    if isinstance(node, exp.Cast):
        if isinstance(node.this, exp.IntDiv):
            return "div", 2
        inner, strength = _name(node.this)
        return (inner, strength) if strength > 1 else (_type_name(node.to), 1)
    if isinstance(node, exp.Case):
        default = node.args.get("default")
        name, strength = _name(default) if default is not None else ("", 0)
        return (name, strength) if strength > 1 else ("case", 1)
    if isinstance(node, exp.Subquery):
        inner_query = node.this
        while isinstance(inner_query, exp.SetOperation | exp.Subquery):
            inner_query = inner_query.this
        if isinstance(inner_query, exp.Select) and len(inner_query.expressions) == 1:
            return _name(inner_query.expressions[0])
        return UNNAMED, 0
    fixed = _FIXED.get(type(node))
    if fixed is not None:
        return fixed, 2
    if isinstance(node, exp.Pow) and "start" in node.meta:
        return power_name(node), 2
    if isinstance(node, exp.StartsWith) and "start" not in node.meta:
        # Written as the operator ^@.
        return UNNAMED, 0
    if type(node) in BINARY or type(node) in UNARY:
        return UNNAMED, 0
    call = call_of(node)
    if call is not None:
        return call.name, 2
    return UNNAMED, 0


def power_name(node: exp.Expr) -> str:
    """pow or power if written as a call; the operator ^ has no position."""
    return "pow" if node.meta["end"] - node.meta["start"] + 1 == 3 else "power"


def _type_name(node: exp.Expr) -> str:
    """Types that exist only in catalog queries keep the written name."""
    try:
        t = sql_type(node)
    except TidemillError:
        if isinstance(node, exp.DataType) and node.this is exp.DType.ARRAY:
            return _type_name(node.expressions[0])
        return "json" if node.this is exp.DType.JSON else written_name(node)
    while t.kind is Kind.ARRAY and t.element is not None:
        t = t.element
    return t.kind.value
