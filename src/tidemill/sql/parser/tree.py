"""Validation and canonical form of sqlglot's trees.

`sqlglot_parser` calls `accept` on every tree. It refuses trees that are too deep (`depth`), that PostgreSQL's
grammar does not produce (`shape`) or that group operators differently (`precedence`). It then makes the tree
canonical: names folded, quoted only where necessary, comments removed. So two texts with the same meaning
give equal trees, and rendered text parses back to an equal tree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.names import RESERVED, RESERVED_FUNCTION_OR_TYPE, fold, needs_quotes
from tidemill.sql.parser import precedence, shape
from tidemill.sql.parser.depth import check_tree
from tidemill.sql.parser.sqlglot_tokens import GRAMMAR_CALLS, PLAIN_CALL
from tidemill.sql.tokens import syntax_error


def accept(tree: exp.Expr, text: str, position: int) -> exp.Expr:
    """`tree` in canonical form, or an error. `position` (1-based) is its start in the text, for errors
    without a better position.
    """
    check_tree(tree, position)
    for node in list(tree.walk()):
        node.comments = None
        try:
            shape.check(node)
            precedence.check(node)
            name = node.args.get("this")
            if isinstance(name, str) and name.startswith(PLAIN_CALL):
                plain = name.removeprefix(PLAIN_CALL)
                grammar = plain in RESERVED or plain in GRAMMAR_CALLS or plain != fold(plain)
                if isinstance(node, exp.Identifier):  # an alias before its columns
                    node.set("quoted", True)
                    grammar = False
                node.set("this", exp.Identifier(this=plain, quoted=True) if grammar else plain)
            if isinstance(node, exp.Func) and "start" in node.meta:
                node.meta["function"] = _written(text[node.meta["start"] : node.meta["end"] + 1])
            if isinstance(node, exp.Identifier) and "start" in node.meta:
                _check_name(text, node.meta["start"], node.meta["end"] + 1)
            canonical = _CANONICAL.get(type(node))
            if canonical is not None:
                canonical(node)
        except TidemillError as error:
            if error.position is None:
                error.position = _position(node) or position
            raise
    return tree


def _check_name(text: str, start: int, end: int) -> None:
    """sqlglot accepts strings and numbers where only a name is allowed."""
    first = text[start]
    quoted = text[start : start + 3].lower() == 'u&"' or first == '"'
    if first in "'$.0123456789" or (text[end - 1] == "'" and not quoted):
        raise syntax_error(text, start, end)


def _written(name: str) -> str:
    """A function's name as written: sqlglot gives `pow(a, b)` and `a ^ b`, or `now()` and
    `current_timestamp`, one node.
    """
    return name[1:-1].replace('""', '"') if name.startswith('"') else fold(name)


def _position(node: exp.Expr) -> int | None:
    """The 1-based position of the first token below `node` whose position sqlglot kept."""
    starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
    return min(starts) + 1 if starts else None


def _identifier(node: exp.Identifier) -> None:
    name = cast(str, node.this)
    if not node.args.get("quoted"):
        name = fold(name)
        if name in RESERVED or name in RESERVED_FUNCTION_OR_TYPE:
            raise SyntaxError_(f'syntax error at or near "{name}"')
        node.set("this", name)
    node.set("quoted", needs_quotes(name))


def _call(node: exp.Anonymous) -> None:
    """A call's name is a string, but an Identifier where it must be quoted."""
    if isinstance(node.this, exp.Identifier) and not needs_quotes(node.this.name):
        node.set("this", node.this.name)


def _arrow(node: exp.JSONExtract | exp.JSONExtractScalar) -> None:
    """Removes the parentheses that `sqlglot_tokens` wrote around a column before `->` and a literal after it.
    Adds those that the generator would write around an operator after it, so the tree equals the one of
    its text.
    """
    inner = node.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Column):
        node.set("this", inner)
    key = node.expression
    if isinstance(key, exp.Paren) and isinstance(key.this, exp.Literal):
        node.set("expression", key.this)
    if isinstance(node.expression, exp.Binary) and not isinstance(node.expression, exp.Func):
        node.set("expression", exp.Paren(this=node.expression))


def _between(node: exp.Between) -> None:
    """Removes the parentheses that `sqlglot_tokens` wrote around the lower bound."""
    if isinstance(node.args["low"], exp.Paren):
        node.set("low", node.args["low"].this)


def _trim(node: exp.Trim) -> None:
    if not node.args.get("expression") and node.args.get("position") == "BOTH":
        node.set("position", None)


def _frame(node: exp.WindowSpec) -> None:
    for key, value in node.args.items():
        if isinstance(value, str):
            node.set(key, value.upper())


_CANONICAL: dict[type[exp.Expr], Callable[[Any], None]] = {
    exp.Identifier: _identifier,
    exp.Anonymous: _call,
    exp.JSONExtract: _arrow,
    exp.JSONExtractScalar: _arrow,
    exp.Between: _between,
    exp.Trim: _trim,
    exp.WindowSpec: _frame,
}
