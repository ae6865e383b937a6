"""Guards for untaken branches: they raise no errors, even from functions that run in Python.

Spark evaluates the arguments of a Python function for every row, regardless of the expression around the
call. An argument that may fail in a branch of CASE or COALESCE is therefore evaluated only where the branch
is taken. Elsewhere the function gets NULL, and its result is ignored. Called by the binder's special forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.sql.functions.tree import Tree, case, in_python, is_null, null

# Conditions that are repeated around an argument. In a CASE with more branches, each is guarded only by its
# own condition, because the text would grow quadratically.
MOST_CONDITIONS = 12

# The total limit of these repetitions; a form that is nested deeper is evaluated without guards.
MOST_NODES = 2000

_HARMLESS = (
    exp.Column, exp.Identifier, exp.Literal, exp.Null, exp.Boolean, exp.Paren, exp.Neg, exp.DataType, exp.Var
)  # fmt: skip


def case_branches(conditions: Sequence[Tree], values: Sequence[Tree], otherwise: Tree) -> Tree:
    """CASE WHEN conditions[i] THEN values[i] ... ELSE otherwise END."""
    taken: list[Tree] = []
    tested: list[Tree] = []
    for i, (condition, value) in enumerate(zip(conditions, values, strict=True)):
        before = conditions[:i]
        tested.append(_guarded(condition, before, None) if i else condition)
        taken.append(_guarded(value, before, condition))
    return case(*zip(tested, taken, strict=True), otherwise=_guarded(otherwise, conditions, None))


def first_of(values: Sequence[Tree]) -> list[Tree]:
    """COALESCE's arguments: each is evaluated only if all previous ones are NULL."""
    return [
        _guarded(value, [exp.Not(this=exp.Paren(this=is_null(v))) for v in values[:i]], None) if i else value
        for i, value in enumerate(values)
    ]


def _guarded(tree: Tree, before: Sequence[Tree], condition: Tree | None) -> Tree:
    """`tree`, evaluated only if none of `before` holds and `condition` does."""
    calls = [n for n in tree.walk() if in_python(n)]
    if not any(_may_fail(a) for c in calls for a in c.expressions):
        return tree
    guards = [*before, *([] if condition is None else [condition])]
    if any(g.find(exp.Query) is not None for g in guards):
        return tree
    if len(guards) > MOST_CONDITIONS:
        if condition is None:
            return tree
        before = ()
        guards = [condition]
    arguments = sum(_may_fail(a) for c in calls for a in c.expressions)
    if arguments * sum(1 for g in guards for _ in g.walk()) > MOST_NODES:
        return tree

    def guard(argument: Tree) -> Tree:
        passed = [(c.copy(), null()) for c in before]
        if condition is None:
            return case(*passed, otherwise=argument)
        return case(*passed, (condition.copy(), argument))

    return _with_arguments(tree.copy(), guard)


def _with_arguments(tree: Tree, guard: Callable[[Tree], Tree]) -> Tree:
    # The innermost first: a guard around an outer call's argument then contains the inner guards unchanged.
    for found in reversed([n for n in tree.walk() if in_python(n)]):
        found.set("expressions", [guard(a.copy()) if _may_fail(a) else a for a in found.expressions])
    return tree


def _may_fail(argument: Tree) -> bool:
    """Whether it is anything but a column or literal."""
    return not all(
        isinstance(n, _HARMLESS) or (isinstance(n, exp.Cast) and isinstance(n.this, exp.Literal | exp.Null))
        for n in argument.walk()
    )
