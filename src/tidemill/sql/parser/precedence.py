"""Check that a tree groups operators as PostgreSQL does.

`tree` calls `check` on sqlglot's result. sqlglot keeps parentheses as nodes, so `check` can compare every
operator and its operands with PostgreSQL's precedence table. An operand that binds more loosely than its
operator and has no parentheses is grouped differently than in PostgreSQL. sqlglot 30.30 reads `~ a + b` as
`(~a) + b` and `a ~ b || c` as `a ~ (b || c)`. It accepts `a < b = c` (not associative in PostgreSQL) and
`a = NOT b`. `check` raises an error, since a silently different answer would be worse.
"""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError, Unsupported

_NOT, _IS, _COMPARISON, _RANGE, _OTHER, _ADD, _MULTIPLY, _POWER, _AT, _COLLATE, _UNARY = range(3, 14)

_LEVELS: dict[type[exp.Expr], int] = {
    exp.Or: 1,
    exp.And: 2,
    exp.Not: _NOT,
    **dict.fromkeys((exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ), _IS),
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _COMPARISON),
    **dict.fromkeys((exp.Between, exp.In, exp.Like, exp.ILike, exp.SimilarTo), _RANGE),
    **dict.fromkeys(
        (
            exp.DPipe,
            exp.BitwiseAnd,
            exp.BitwiseOr,
            exp.BitwiseXor,
            exp.BitwiseLeftShift,
            exp.BitwiseRightShift,
            exp.BitwiseNot,
            exp.RegexpLike,
            exp.RegexpILike,
            exp.JSONExtract,
            exp.JSONExtractScalar,
            exp.JSONBExtract,
            exp.JSONBExtractScalar,
            exp.JSONBDeleteAtPath,
            exp.JSONBContainsTopKey,
            exp.JSONBContainsAnyTopKeys,
            exp.JSONBContainsAllTopKeys,
            exp.ArrayContainsAll,
            exp.ArrayContainedBy,
            exp.ArrayOverlaps,
        ),
        _OTHER,
    ),
    **dict.fromkeys((exp.Add, exp.Sub), _ADD),
    **dict.fromkeys((exp.Mul, exp.Div, exp.Mod), _MULTIPLY),
    exp.Pow: _POWER,
    exp.AtTimeZone: _AT,
    exp.Collate: _COLLATE,
    exp.Neg: _UNARY,
}
_NOT_ASSOCIATIVE = frozenset({_COMPARISON, _RANGE, _IS})
# Functions that share a node with an operator. In a call, their arguments are in parentheses in any case.
_MAYBE_CALLS = (exp.Pow, exp.Mod)


def _level(node: exp.Expr) -> int | None:
    # `a NOT IN b`, `a IS NOT TRUE`, `a !~ b` are parsed as Not around the predicate: the Not belongs to the
    # operator.
    while isinstance(node, exp.Not) and isinstance(
        node.this,
        exp.In
        | exp.Between
        | exp.Like
        | exp.ILike
        | exp.SimilarTo
        | exp.Is
        | exp.RegexpLike
        | exp.RegexpILike,
    ):
        node = node.this
    if isinstance(node, exp.Escape):
        return _RANGE
    return _LEVELS.get(type(node))


def check(node: exp.Expr) -> None:
    """Raises if an operand of `node` is grouped differently than in PostgreSQL."""
    level = _LEVELS.get(type(node))
    if level is None or isinstance(node, _MAYBE_CALLS):
        return
    left = node.args.get("this")
    right = node.args.get("expression")
    if isinstance(left, exp.Expr):
        _operand(node, level, left, strict=level in _NOT_ASSOCIATIVE and level != _IS)
    if isinstance(right, exp.Expr) and not isinstance(node, exp.AtTimeZone | exp.Collate):
        _operand(node, level, right, strict=True)


def _operand(node: exp.Expr, level: int, operand: exp.Expr, strict: bool) -> None:
    inner = _level(operand)
    if inner is None:
        return
    if isinstance(operand, exp.Neg | exp.BitwiseNot | exp.Not) and operand.arg_key == "expression":
        return  # a prefix operator as right operand needs no parentheses: a || - b, a = NOT b
    if isinstance(node, exp.Not | exp.Neg | exp.BitwiseNot):
        strict = False  # prefix operators repeat: NOT NOT a
    if inner > level or (inner == level and not strict):
        return
    raise _refusal(level, inner)


def _refusal(level: int, inner: int) -> TidemillError:
    if level == inner == _COMPARISON:
        return SyntaxError_(
            "syntax error: comparison operators do not chain",
            hint="Use parentheses to say which comes first.",
        )
    return Unsupported(
        "operators of different kinds without parentheses",
        detail="They bind from left to right in PostgreSQL, which is seldom what is meant.",
        hint="Use parentheses to say which comes first.",
    )
