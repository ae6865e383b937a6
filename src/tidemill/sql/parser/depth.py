"""Limits on the nesting depth of a statement, checked before any recursive pass.

`parse` calls `check_nesting` on the tokens of each statement, `tree` calls `check_tree` on sqlglot's result.
Both raise `TooComplex`. They keep every recursive pass (sqlglot's parser and generator, the binder) within
the stack.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sqlglot import exp

from tidemill.errors import LimitExceeded
from tidemill.sql.tokens import Token, TokenKind

# Parentheses, brackets, CASE and prefix operators within each other.
MAX_NESTING = 128
# The tree's height: `a OR b OR c ...` nests in the tree but not in the text.
MAX_TREE_DEPTH = 1000

# sqlglot's parser takes up to 40 Python frames per level (measured: 4,410 for 128 nested ANY(...)),
# recursive passes over trees up to 8 per level. These are Python-to-Python calls, which use no C stack.
_FRAMES_NEEDED = 12_000
sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES_NEEDED))

_PREFIX = frozenset({"not", "-", "+", "~"})


class TooComplex(LimitExceeded):
    """A statement that exceeds a nesting limit."""

    sqlstate = "54001"


def too_complex(position: int | None, limit: str) -> TooComplex:
    return TooComplex(
        "statement too complex",
        detail=f"It nests deeper than {limit}.",
        hint="Split the statement, use WITH for subqueries, or IN (...) for long chains of OR.",
        position=position,
    )


def check_nesting(tokens: Sequence[Token]) -> None:
    """Raises `TooComplex` if `tokens` nest deeper than `MAX_NESTING`."""
    depth = prefixes = 0
    for kind, value, start, _ in tokens:
        if kind is TokenKind.SYMBOL or kind is TokenKind.WORD:
            if value in ("(", "[", "case"):
                depth += 1
            elif value in (")", "]", "end"):
                depth = max(depth - 1, 0)
            prefixes = prefixes + 1 if value in _PREFIX else 0
            if depth + prefixes > MAX_NESTING:
                raise too_complex(start + 1, f"{MAX_NESTING} levels")
        else:
            prefixes = 0


def check_tree(tree: exp.Expr, position: int) -> None:
    """Raise `TooComplex` if `tree` is higher than `MAX_TREE_DEPTH`."""
    level: list[exp.Expr] = [tree]
    height = 0
    while level:
        height += 1
        if height > MAX_TREE_DEPTH:
            raise too_complex(position, f"{MAX_TREE_DEPTH} levels of operators")
        level = [child for node in level for child in node.iter_expressions()]
