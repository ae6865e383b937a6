"""Expressions and queries back to SQL text. Called by `render` and the other `render_*` modules."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ErrorLevel, UnsupportedError

from tidemill.errors import Unsupported
from tidemill.sql import ast

_DIALECT = Postgres()

# Functions that the generator writes under a name that does not exist or that changes the column's name:
# their arguments in order.
_AS_CALLED: dict[str, tuple[str, ...]] = {
    "to_hex": ("this",),
    "strpos": ("this", "substr"),
    "substr": ("this", "start", "length"),
    "ceiling": ("this",),
    "pow": ("this", "expression"),
}


def expression_sql(tree: exp.Expr) -> str:
    """A tree as PostgreSQL text, which parses back to an equal tree."""
    copy = tree.copy()
    for node in list(copy.find_all(exp.Func)):
        named = _as_written(node)
        if named is None:
            continue
        if node is copy:
            copy = named
        else:
            node.replace(named)
    for node in list(copy.find_all(exp.DataType)):
        if node.this in (exp.DType.LIST, exp.DType.MAP) and not isinstance(node.parent, exp.DataType):
            named = exp.DataType(this=exp.DType.USERDEFINED, kind=_type_sql(node))
            if node is copy:
                copy = named
            else:
                node.replace(named)
    try:
        return _DIALECT.generate(
            copy, copy=False, comments=False, normalize_functions=False, unsupported_level=ErrorLevel.RAISE
        )
    except UnsupportedError as error:
        raise Unsupported(f"this query cannot be written back as text: {error}") from None


def _as_written(node: exp.Func) -> exp.Expr | None:
    """The nodes that the generator would change; None for all others."""
    name = node.meta.get("function", "")
    if name in _AS_CALLED:
        arguments = [node.args[key] for key in _AS_CALLED[name] if node.args.get(key) is not None]
        return exp.Anonymous(this=name, expressions=arguments)
    if isinstance(node, exp.CurrentTimestamp) and isinstance(node.parent, exp.Table):
        return exp.Anonymous(this="now")
    if isinstance(node, exp.List):
        # The generator subtracts this offset: these are elements, not indexes.
        return exp.Bracket(this=exp.Var(this="LIST"), expressions=node.expressions, offset=1)
    if isinstance(node, exp.Array) and [type(e) for e in node.expressions] == [exp.Values]:
        return exp.Anonymous(this="ARRAY", expressions=node.expressions)
    return None


def _type_sql(node: exp.DataType) -> str:
    """Our own types (`int list`, `map[text=>int]`), which the generator would write in another dialect."""
    inner = [_type_sql(e) for e in node.expressions if isinstance(e, exp.DataType)]
    if node.this is exp.DType.LIST and len(inner) == 1:
        return f"{inner[0]} list"
    if node.this is exp.DType.MAP and len(inner) == 2:
        return f"map[{inner[0]}=>{inner[1]}]"
    return _DIALECT.generate(node, copy=True)


def query_sql(query: ast.Query) -> str:
    text = expression_sql(query.tree)
    if query.as_of is None:
        return text
    least = "AT LEAST " if query.as_of.at_least else ""
    return f"{text} AS OF {least}{expression_sql(query.as_of.time.tree)}"
