"""What sqlglot's parser returned, checked and made canonical.

`glot` calls `accept` on every tree. It refuses nodes and arguments that are not PostgreSQL's (or not ours),
reserved words as names, trees that are too high, and operators grouped otherwise than in PostgreSQL. Then
it makes the tree canonical: names folded, quoted only where they must be, comments gone. So two texts of
the same meaning give equal trees, and rendered text parses back to an equal one.
"""

from __future__ import annotations

from typing import cast

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.names import RESERVED, fold, needs_quotes
from tidemill.sql.parser import precedence
from tidemill.sql.parser.depth import check_tree
from tidemill.sql.parser.lower import PLAIN_CALL

_MODIFIERS = {"with_", "joins", "order", "limit", "offset"}
# Of each structural node, the arguments that PostgreSQL's grammar has. Any other that is set is another
# dialect's.
_ARGS: dict[type[exp.Expr], set[str]] = {
    exp.Select: {"expressions", "distinct", "from_", "where", "group", "having", "windows", *_MODIFIERS},
    exp.Union: {"this", "expression", "distinct", *_MODIFIERS},
    exp.Except: {"this", "expression", "distinct", *_MODIFIERS},
    exp.Intersect: {"this", "expression", "distinct", *_MODIFIERS},
    exp.Subquery: {"this", "alias", *_MODIFIERS},
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
# Nodes that no PostgreSQL text should give; where one appears, sqlglot has read another dialect's grammar.
_FOREIGN = (
    exp.Command,
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
_WRITES = (exp.Insert, exp.Update, exp.Delete, exp.Merge)
_JOIN_METHODS = {"", "NATURAL"}
_JOIN_KINDS = {"", "CROSS", "INNER", "OUTER"}


def accept(tree: exp.Expr, position: int) -> exp.Expr:
    """`tree`, canonical, or an error; `position` (1-based) is where it starts in the text, for errors of no
    better place."""
    check_tree(tree, position)
    for node in list(tree.walk()):
        try:
            _check(node)
            precedence.check(node)
        except TidemillError as error:
            if error.position is None:
                error.position = _position(node) or position
            raise
        node.comments = None
        if isinstance(node, exp.Identifier):
            _canonical(node)
        elif isinstance(node, exp.WindowSpec):
            for key, value in node.args.items():
                if isinstance(value, str):
                    node.set(key, value.upper())
        elif isinstance(node, exp.Anonymous):
            _call(node)
        elif isinstance(node, exp.JSONExtract | exp.JSONExtractScalar):
            _arrow(node)
    return tree


def _position(node: exp.Expr) -> int | None:
    """The 1-based position of the first token below `node` that sqlglot kept the place of."""
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    return min(starts) + 1 if starts else None


def _check(node: exp.Expr) -> None:
    allowed = _ARGS.get(type(node))
    if allowed is not None:
        for key, value in node.args.items():
            if value and key == "sample":
                raise Unsupported("TABLESAMPLE is not supported")
            if value and key not in allowed:
                raise _foreign(node, key)
    if isinstance(node, _FOREIGN):
        raise _foreign(node, None)
    if isinstance(node, exp.ColumnDef):
        raise Unsupported("column definitions after a function are not supported")
    if isinstance(node, _WRITES):
        raise Unsupported("data-modifying statements in WITH are not supported")
    if isinstance(node, exp.Join):
        method = str(node.args.get("method") or "").upper()
        if method not in _JOIN_METHODS or str(node.args.get("kind") or "").upper() not in _JOIN_KINDS:
            raise _foreign(node, "kind")
    elif isinstance(node, exp.Star):
        if not isinstance(node.parent, exp.Select | exp.Column | exp.Dot | exp.Func):
            raise SyntaxError_('syntax error at or near "*"')
    elif isinstance(node, exp.Bracket):
        if len(node.expressions) != 1:
            raise SyntaxError_('syntax error at or near ","')
    elif isinstance(node, exp.Fetch):
        if not node.args.get("limit_options"):
            raise SyntaxError_("syntax error: FETCH FIRST ends with ROWS ONLY or ROWS WITH TIES")
    elif isinstance(node, exp.TableAlias):
        if not node.this and node.columns:
            raise SyntaxError_('syntax error at or near "("')
    elif isinstance(node, exp.Subquery | exp.Values):
        if node.args.get("alias") and not isinstance(
            node.parent, exp.From | exp.Join | exp.Lateral | exp.Subquery
        ):
            raise _foreign(node, "alias")
    elif isinstance(node, exp.Parameter):
        if not (isinstance(node.this, exp.Literal) and not node.this.is_string):
            raise _foreign(node, None)
    elif isinstance(node, exp.Tuple):
        if not node.expressions and not isinstance(node.parent, exp.GroupingSets):
            raise SyntaxError_('syntax error at or near ")"')
    elif isinstance(node, exp.Distinct) and len(node.expressions) > 1:
        raise Unsupported("DISTINCT with several arguments is not supported")
    elif isinstance(node, exp.Is) and not isinstance(node.expression, exp.Null | exp.Boolean):
        raise Unsupported(f"IS {node.expression.sql('postgres').upper()} is not supported")
    elif isinstance(node, exp.Rollup | exp.Cube) and not node.expressions:
        raise _foreign(node, None)
    elif (
        isinstance(node, exp.CurrentTimestamp | exp.CurrentTime | exp.Localtime | exp.Localtimestamp)
        and node.this
    ):
        raise Unsupported("the precision of the current time is not supported", hint="Use date_trunc.")
    elif isinstance(node, exp.Alias) and not isinstance(node.parent, exp.Select):
        raise SyntaxError_('syntax error at or near "AS"')
    elif isinstance(node, exp.In) and not (node.expressions or node.args.get("query")):
        raise SyntaxError_("syntax error: IN needs a list or a subquery in parentheses")


def _foreign(node: exp.Expr, key: str | None) -> SyntaxError_:
    what = (key or type(node).__name__).strip("_").replace("_", " ").upper()
    return SyntaxError_(f"syntax error: {what} as written here is not part of PostgreSQL's grammar")


def _canonical(node: exp.Identifier) -> None:
    name = cast(str, node.this)
    if not node.args.get("quoted"):
        name = fold(name)
        node.set("this", name)
        if name not in RESERVED:
            node.set("quoted", needs_quotes(name))
            return
        raise SyntaxError_(f'syntax error at or near "{name}"', position=_position(node))
    node.set("quoted", needs_quotes(name))


def _call(node: exp.Anonymous) -> None:
    """A call's name is a string, but an Identifier where it must be quoted."""
    name = node.this
    if isinstance(name, str):
        node.set("this", name.removeprefix(PLAIN_CALL))
    elif isinstance(name, exp.Identifier) and not needs_quotes(name.name):
        node.set("this", name.name)


def _arrow(node: exp.JSONExtract | exp.JSONExtractScalar) -> None:
    """Take away the parentheses that `lower` wrote around a column before `->`, and write those that the
    generator would write around an operator after it: then the tree is the one that its text gives."""
    inner = node.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Column):
        node.set("this", inner)
    if isinstance(node.expression, exp.Binary) and not isinstance(node.expression, exp.Func):
        node.set("expression", exp.Paren(this=node.expression))
