"""Small constructors of Spark SQL trees. The binder builds everything it sends to Spark from these.

The generator prints them unchanged: functions are plain calls (not sqlglot's function classes, whose
generator would rewrite them for Spark), and operators are always in parentheses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.expressions import DataType, Expr

from tidemill.types.model import SqlType
from tidemill.types.spark import spark_type

Tree = Expr

# A guard that needs an operand several times repeats it while it is at most this many nodes; beyond, the
# operand is bound once by a lambda. Repeating keeps Spark's code generation, but nested guards would grow as
# 3^depth.
REPEAT_NODES = 12
# As REPEAT_NODES, for what holds a subquery. Beyond, Spark refuses the lambda with the subquery in it.
QUERY_NODES = 1_000

# Errors raised inside a Spark job travel as the text of raise_error: prefix, SQLSTATE and primary text.
RAISED = "tidemill:"


def call(name: str, *args: Tree) -> Tree:
    return exp.Anonymous(this=name, expressions=list(args))


def cast(value: Tree, ddl: str) -> Tree:
    """CAST(value AS ddl); `ddl` is Spark's own spelling of a type (`types.spark.spark_type`)."""
    return exp.Cast(this=value, to=DataType(this=exp.DType.USERDEFINED, kind=ddl))


def cast_to(value: Tree, t: SqlType) -> Tree:
    return cast(value, spark_type(t))


def null() -> Tree:
    return exp.Null()


def word(text: str) -> Tree:
    """A bare key word, such as the unit of timestampdiff. Never a user's text."""
    return exp.Var(this=text)


def string(text: str) -> Tree:
    return exp.Literal.string(text)


def integer(value: int) -> Tree:
    """An INT literal, not a bare number: Spark would take a bare one in GROUP BY or ORDER BY for an
    ordinal."""
    return cast(_number(value), "INT")


def bigint(value: int) -> Tree:
    return cast(_number(value), "BIGINT")


def decimal(text: str, precision: int = 38, scale: int = 18) -> Tree:
    return cast(exp.Literal.string(text), f"DECIMAL({precision},{scale})")


def double(text: str) -> Tree:
    return cast(exp.Literal.string(text), "DOUBLE")


def boolean(value: bool) -> Tree:
    return exp.Boolean(this=value)


def column(table: str, name: str) -> Tree:
    return exp.column(name, table=table, quoted=True)


def field(value: Tree, name: str) -> Tree:
    """A struct's field. `name` is one of ours (no quoting needed), never a user's."""
    return exp.Dot(this=exp.Paren(this=value), expression=exp.to_identifier(name))


def binary(kind: type[exp.Binary], left: Tree, right: Tree) -> Tree:
    return exp.Paren(this=kind(this=left, expression=right))


def add(left: Tree, right: Tree) -> Tree:
    return binary(exp.Add, left, right)


def sub(left: Tree, right: Tree) -> Tree:
    return binary(exp.Sub, left, right)


def mul(left: Tree, right: Tree) -> Tree:
    return binary(exp.Mul, left, right)


def divide(left: Tree, right: Tree) -> Tree:
    return exp.Paren(this=exp.Div(this=left, expression=right, typed=False, safe=False))


def int_divide(left: Tree, right: Tree) -> Tree:
    """Spark's `div`: truncates toward zero, gives BIGINT."""
    return exp.Paren(this=exp.IntDiv(this=left, expression=right))


def remainder(left: Tree, right: Tree) -> Tree:
    return binary(exp.Mod, left, right)


def eq(left: Tree, right: Tree) -> Tree:
    return binary(exp.EQ, left, right)


def lt(left: Tree, right: Tree) -> Tree:
    return binary(exp.LT, left, right)


def le(left: Tree, right: Tree) -> Tree:
    return binary(exp.LTE, left, right)


def gt(left: Tree, right: Tree) -> Tree:
    return binary(exp.GT, left, right)


def ge(left: Tree, right: Tree) -> Tree:
    return binary(exp.GTE, left, right)


def and_(*terms: Tree) -> Tree:
    result = terms[0]
    for term in terms[1:]:
        result = binary(exp.And, result, term)
    return result


def or_(*terms: Tree) -> Tree:
    result = terms[0]
    for term in terms[1:]:
        result = binary(exp.Or, result, term)
    return result


def not_(value: Tree) -> Tree:
    return exp.Paren(this=exp.Not(this=value))


def one_of(value: Tree, items: Sequence[Tree]) -> Tree:
    """value IN (items)."""
    return exp.Paren(this=exp.In(this=value, expressions=list(items)))


def infinity() -> Tree:
    return double("Infinity")


def is_infinite(value: Tree) -> Tree:
    return eq(call("abs", value), infinity())


def is_null(value: Tree) -> Tree:
    return call("isnull", value)


def if_(condition: Tree, then: Tree, otherwise: Tree) -> Tree:
    return call("if", condition, then, otherwise)


def at_least(value: Tree, least: Tree) -> Tree:
    """The greater of the two; NULL where the value is (Spark's greatest gives the other then). The value is
    written twice."""
    return if_(lt(value, least), least.copy(), value.copy())


def case(*branches: tuple[Tree, Tree], otherwise: Tree | None = None) -> Tree:
    return exp.Case(
        ifs=[exp.If(this=condition, true=value) for condition, value in branches], default=otherwise
    )


def raise_error(sqlstate: str, text: Tree | str) -> Tree:
    """An expression that fails with this SQLSTATE and text when it is evaluated; `errors.map_spark_error`
    reads it back."""
    if isinstance(text, str):
        return call("raise_error", string(f"{RAISED}{sqlstate}:{text}"))
    return call("raise_error", call("concat", string(f"{RAISED}{sqlstate}:"), text))


def lambda_(parameter: str, body: Tree) -> Tree:
    return exp.Lambda(this=body, expressions=[exp.to_identifier(parameter)])


def lambda_pair(first: str, second: str, body: Tree) -> Tree:
    """A lambda of two parameters, such as an element and its index."""
    return exp.Lambda(this=body, expressions=[exp.to_identifier(first), exp.to_identifier(second)])


def variable(name: str) -> Tree:
    """A lambda's parameter."""
    return exp.column(name)


# Names of lambda parameters: nested lambdas must differ. `next` on a count is atomic between threads. A tree
# that is complete has them numbered from 1 (`number_variables`), so that one query has one text.
_fresh = itertools.count(1)


def let(value: Tree, body: Callable[[Tree], Tree]) -> Tree:
    """`body(value)`, which evaluates `value` once, even if the body uses it several times."""
    if is_small(value):
        return body(value)
    name = f"v{next(_fresh)}"
    one = call("transform", call("array", value), lambda_(name, body(variable(name))))
    return call("element_at", one, integer(1))


def let_all(values: list[Tree], body: Callable[[list[Tree]], Tree]) -> Tree:
    """`let` for several values in one lambda, so that no value is inside another's lambda (where Spark allows
    no function that runs in Python).
    """
    large = [i for i, v in enumerate(values) if not is_small(v)]
    if len(large) < 2:
        rest = list(values)

        def one(v: Tree) -> Tree:
            rest[large[0]] = v
            return body(rest)

        return let(values[large[0]], one) if large else body(rest)
    name = f"v{next(_fresh)}"
    bound = list(values)
    fields: list[Tree] = []
    for i in large:
        fields += [string(f"a{i}"), values[i]]
        bound[i] = field(variable(name), f"a{i}")
    made = call("transform", call("array", call("named_struct", *fields)), lambda_(name, body(bound)))
    return call("element_at", made, integer(1))


# What `let` gives, and `number_variables`: a tree that is built on over a numbered one stays right.
_VARIABLE = re.compile(r"[vw][0-9]+")


def number_variables(tree: Tree) -> None:
    """Number the parameters that `let` created, in the order of the tree."""
    names: dict[str, str] = {}
    found: list[exp.Identifier] = []
    for node in tree.walk(bfs=False):
        if isinstance(node, exp.Lambda):
            for parameter in node.expressions:
                if _VARIABLE.fullmatch(parameter.name):
                    names.setdefault(parameter.name, f"w{len(names) + 1}")
                    found.append(parameter)
        elif isinstance(node, exp.Column) and not node.table and _VARIABLE.fullmatch(node.name):
            found.append(node.this)
    for variable_ in found:
        variable_.set("this", names.get(variable_.name, variable_.name))


def is_small(value: Tree) -> bool:
    """Whether it may be repeated. A call that runs in Python may not: its text would double with each level,
    and a lambda cannot contain it. A subquery must be: Spark allows none inside a lambda's call, and
    evaluates equal ones once.
    """
    if value.find(exp.Query) is not None:
        return sum(1 for _ in value.walk()) < QUERY_NODES
    return all(i < REPEAT_NODES and not in_python(n) for i, n in enumerate(value.walk()))


def in_python(node: Tree) -> bool:
    """A call of one of our functions (`python`)."""
    return isinstance(node, exp.Anonymous) and str(node.this).startswith("tm_")


def sql_text(tree: Tree) -> str:
    """The tree as Spark SQL. The form of the tree prevents the generator's own rewrites."""
    return tree.sql(dialect="spark", normalize_functions=False, comments=False)


def _number(value: int) -> Tree:
    literal: Any = exp.Literal.number(abs(value))
    return exp.Neg(this=literal) if value < 0 else literal
