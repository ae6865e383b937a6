"""Typed expressions of a logical plan.

Nodes are immutable values. Equal nodes compute the same; this is how GROUP BY expressions and ORDER BY items
are recognised. `sql.lower.expressions` turns a node into a Spark tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import Internal, InvalidValue, TidemillError
from tidemill.sql.functions.markers import Fixed
from tidemill.sql.functions.signature import Builder, Fn
from tidemill.sql.functions.tree import Tree
from tidemill.sql.plan.convert import numeric_scalar
from tidemill.types.model import Kind, SqlType, face

if TYPE_CHECKING:
    from tidemill.sql.plan.operators import Operator

# The key of the Op for GROUPING(...), which `grouping` evaluates.
GROUPING = "grouping"


@dataclass(frozen=True, slots=True)
class BoundNode:
    """Base: an expression of a known type."""

    type: SqlType


@dataclass(frozen=True, slots=True)
class Const(BoundNode):
    """A value in storage form, or the literal's text while its type is unknown. None is NULL. A number with
    more digits than a numeric holds is also a text, because it may still become a float (`fitted`)."""

    value: Any  # pa.Scalar | str | None
    position: int | None = field(default=None, compare=False)
    # 1.0 and 1.00 have one value and one type, but are not the same node: results derived from them show
    # different digits.
    shown: object = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", face(self.type))


def fitted(node: Const) -> Const:
    """Called before the value is used: a number that did not become a float is a numeric, rounded to its
    digits."""
    if node.type.kind is not Kind.NUMERIC or not isinstance(node.value, str):
        return node
    try:
        return replace(node, value=numeric_scalar(Decimal(node.value)))
    except (TidemillError, ArithmeticError):
        raise InvalidValue(
            "value overflows numeric format",
            detail="numeric holds 20 digits before and 18 behind the decimal point.",
            sqlstate="22003",
            position=node.position,
        ) from None


@dataclass(frozen=True, slots=True)
class BoundParam(BoundNode):
    """The client's parameter $index."""

    index: int
    position: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SessionValue(BoundNode):
    """A value that is fixed when the statement runs: now() or mz_now()."""

    which: Fixed


@dataclass(frozen=True, slots=True)
class Ref(BoundNode):
    """A column of a relation in scope. Aliases are unique within a statement, so a reference means the same
    at any depth."""

    # The alias of the plan's operator that gives the column; empty for an output of the operator at hand.
    table: str
    name: str
    label: str = field(default="", compare=False)  # as messages call it: t.a


@dataclass(frozen=True, slots=True)
class Op(BoundNode):
    """A function, operator or special form. `key` identifies it in comparisons. `form` is its record, if the
    tables of `sql.functions` have it; else it creates the Spark tree from the lowered args."""

    key: str
    args: tuple[BoundNode, ...]
    form: Fn | Builder = field(compare=False)

    @property
    def fn(self) -> Fn | None:
        return self.form if isinstance(self.form, Fn) else None

    @property
    def build(self) -> Builder:
        """The builder of the Spark tree."""
        form = self.form
        return form.builder([a.type for a in self.args]) if isinstance(form, Fn) else form


@dataclass(frozen=True, slots=True)
class Convert(BoundNode):
    """A cast at run time."""

    arg: BoundNode
    explicit: bool = False


@dataclass(frozen=True, slots=True)
class SortKey:
    node: BoundNode
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Aggregate(BoundNode):
    """An aggregate call; `where` is its FILTER. `direct` is the argument of an ordered-set aggregate in
    parentheses."""

    fn: Fn
    args: tuple[BoundNode, ...]
    distinct: bool = False
    where: BoundNode | None = None
    order: tuple[SortKey, ...] = ()
    direct: BoundNode | None = None


@dataclass(frozen=True, slots=True)
class Window(BoundNode):
    """A window function call. `build` creates its Spark tree from the lowered args; the frame is already in
    Spark's form. `where` is an aggregate's FILTER. `groups`: the frame counts groups of peers, and becomes a
    frame over their numbers when these are known (`stages`)."""

    key: str
    args: tuple[BoundNode, ...]
    partition: tuple[BoundNode, ...]
    order: tuple[SortKey, ...]
    frame: exp.Expr | None
    build: Callable[[Sequence[Tree]], Tree] = field(compare=False)
    where: BoundNode | None = None
    groups: bool = False


@dataclass(frozen=True, slots=True)
class FromRows(BoundNode):
    """A set-returning function in a select list, which returns one row per value (`stages` expands it).
    `build` creates the array of the values."""

    key: str
    args: tuple[BoundNode, ...]
    build: Callable[[Sequence[Tree]], Tree] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Subquery(BoundNode):
    """A subquery as a value (`scalar`), as EXISTS (`exists`) or as IN (`in`, with `operands`). `outer` are
    the columns of enclosing queries that its plan names."""

    kind: str
    plan: Operator = field(hash=False)
    outer: tuple[Ref, ...] = ()
    operands: tuple[BoundNode, ...] = ()


def children(node: BoundNode) -> Sequence[BoundNode]:
    if isinstance(node, Op | FromRows):
        return node.args
    if isinstance(node, Convert):
        return (node.arg,)
    if isinstance(node, Aggregate):
        where = () if node.where is None else (node.where,)
        return (*node.args, *where, *(k.node for k in node.order))
    if isinstance(node, Window):
        where = () if node.where is None else (node.where,)
        return (*node.args, *where, *node.partition, *(k.node for k in node.order))
    if isinstance(node, Subquery):
        return (*node.operands, *node.outer)
    return ()


def walk(node: BoundNode) -> Iterator[BoundNode]:
    yield node
    for child in children(node):
        yield from walk(child)


def rewrite(node: BoundNode, change: Callable[[BoundNode], BoundNode | None]) -> BoundNode:
    """Replaces, from the top down, every subexpression for which `change` returns another one."""
    changed = change(node)
    if changed is not None:
        return changed

    def all_(nodes: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(rewrite(n, change) for n in nodes)

    def keys(order: tuple[SortKey, ...]) -> tuple[SortKey, ...]:
        return tuple(replace(k, node=rewrite(k.node, change)) for k in order)

    if isinstance(node, Op | FromRows):
        return replace(node, args=all_(node.args))
    if isinstance(node, Convert):
        return replace(node, arg=rewrite(node.arg, change))
    if isinstance(node, Aggregate):
        where = None if node.where is None else rewrite(node.where, change)
        return replace(node, args=all_(node.args), where=where, order=keys(node.order))
    if isinstance(node, Window):
        where = None if node.where is None else rewrite(node.where, change)
        return replace(
            node, args=all_(node.args), where=where, partition=all_(node.partition), order=keys(node.order)
        )
    if isinstance(node, Subquery):
        return _rewrite_subquery(node, change)
    return node


def _rewrite_subquery(node: Subquery, change: Callable[[BoundNode], BoundNode | None]) -> Subquery:
    """Columns of enclosing queries may only become other columns: the subquery's plan names them."""
    from tidemill.sql.plan.operators import rewrite_plan

    operands = tuple(rewrite(n, change) for n in node.operands)
    renamed: dict[Ref, Ref] = {}
    for ref in node.outer:
        new = rewrite(ref, change)
        if not isinstance(new, Ref):
            raise Internal("a column of an enclosing query became an expression in a subquery")
        renamed[ref] = new
    if all(old == new for old, new in renamed.items()):
        return replace(node, operands=operands)

    def moved(part: BoundNode) -> BoundNode | None:
        return renamed.get(part) if isinstance(part, Ref) else None

    outer = tuple(renamed.values())
    return replace(node, operands=operands, plan=rewrite_plan(node.plan, moved), outer=outer)


def is_constant(node: BoundNode) -> bool:
    """Whether the node consists only of literals, parameters and session values."""
    return not any(isinstance(n, Ref | Aggregate | Window | Subquery | FromRows) for n in walk(node))


def known_parameters(scalars: Sequence[pa.Scalar]) -> Callable[[BoundNode], BoundNode | None]:
    """For `rewrite`: parameters with the values of the first ones in place."""

    def change(node: BoundNode) -> BoundNode | None:
        if isinstance(node, BoundParam) and node.index <= len(scalars):
            return Const(node.type, scalars[node.index - 1])
        return None

    return change
