"""Typed expressions: the binder's intermediate form between a parsed expression and Spark SQL.

Nodes are immutable values. Equal nodes compute the same; this is how GROUP BY expressions and ORDER BY items
are recognised. `lower` turns a node into a Spark tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from sqlglot import exp

from tidemill.errors import Internal, InvalidValue, TidemillError, Unsupported
from tidemill.sql.bind.convert import numeric_scalar
from tidemill.sql.bind.literal import literal_tree
from tidemill.sql.functions.casts import cast_tree
from tidemill.sql.functions.markers import Fixed, fixed, parameter
from tidemill.sql.functions.signature import Fn
from tidemill.sql.functions.tree import Tree, boolean, call, case, column, eq, integer, string
from tidemill.sql.functions.tree import field as field_of
from tidemill.types.model import Kind, SqlType, face

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

    table: str  # the alias in the Spark tree
    name: str  # the column's name there
    label: str = field(default="", compare=False)  # as messages call it: t.a


@dataclass(frozen=True, slots=True)
class Op(BoundNode):
    """A function, operator or special form. `key` identifies it in comparisons; `build` creates the Spark
    tree from the lowered args."""

    key: str
    args: tuple[BoundNode, ...]
    build: Callable[[Sequence[Tree]], Tree] = field(compare=False)


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
    """A subquery as a value (`scalar`), as EXISTS or as IN (with `operands`). `outer` are the columns of
    enclosing queries that its tree names."""

    kind: str
    tree: exp.Expr
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
    """Outer columns in a subquery's tree may only become other columns."""
    operands = tuple(rewrite(n, change) for n in node.operands)
    renamed: dict[tuple[str, str], Ref] = {}
    outer: list[Ref] = []
    for ref in node.outer:
        new = rewrite(ref, change)
        if not isinstance(new, Ref):
            raise Internal("an outer column of a subquery became an expression")
        outer.append(new)
        if new != ref:
            renamed[(ref.table, ref.name)] = new
    if not renamed:
        return replace(node, operands=operands)
    tree = node.tree.copy()
    for found in list(tree.find_all(exp.Column)):
        new_ref = renamed.get((found.table, found.name))
        if new_ref is not None:
            found.replace(column(new_ref.table, new_ref.name))
    return replace(node, operands=operands, tree=tree, outer=tuple(outer))


def lower(node: BoundNode) -> Tree:
    """The node as Spark SQL, in the storage form of its type."""
    if isinstance(node, Const):
        return literal_tree(fitted(node).value, node.type)
    if isinstance(node, Ref):
        return column(node.table, node.name)
    if isinstance(node, BoundParam):
        if node.type.kind is Kind.UNKNOWN:
            raise Internal(f"parameter ${node.index} was not given a type")
        return parameter(node.index, node.type)
    if isinstance(node, SessionValue):
        return fixed(node.which)
    if isinstance(node, Op):
        return node.build([lower(a) for a in node.args])
    if isinstance(node, Convert):
        return cast_tree(lower(node.arg), node.arg.type, node.type, explicit=node.explicit)
    if isinstance(node, Aggregate):
        from tidemill.sql.bind.aggregate import lower_aggregate

        return lower_aggregate(node)
    if isinstance(node, Window):
        from tidemill.sql.bind.window import lower_window

        return lower_window(node)
    if isinstance(node, Subquery):
        return _lower_subquery(node)
    raise Internal(f"no Spark form for {type(node).__name__}")


def _lower_subquery(node: Subquery) -> Tree:
    query = exp.Subquery(this=node.tree.copy())
    if node.kind == "scalar":
        return query
    if node.kind == "exists":
        return exp.Exists(this=node.tree.copy())
    return _membership_value(node)


def _membership_value(node: Subquery) -> Tree:
    """IN (subquery) as a value. Spark's IN returns false where SQL returns NULL, so the rows of the subquery
    are searched as an array, which distinguishes the two."""
    operand, *more = node.operands
    if more:
        raise Unsupported(
            "IN (subquery) of rows as a value is not supported",
            detail="Spark would answer false where SQL says NULL.",
            hint="In WHERE it may stand alone or be joined by AND and OR; elsewhere use EXISTS.",
        )
    # In structs, because collect_list ignores NULLs.
    row = call("named_struct", string("v"), exp.column("c0", quoted=True))
    rows = exp.Select(expressions=[call("collect_list", row)])
    alias = exp.TableAlias(this=exp.to_identifier("tm_in", quoted=True))
    rows.set("from_", exp.From(this=exp.Subquery(this=node.tree.copy(), alias=alias)))
    array = exp.Subquery(this=rows)
    found = call("array_contains", field_of(array, "v"), lower(operand))
    # An empty array contains nothing, not even NULL. A correlated subquery without rows returns NULL.
    empty = eq(call("coalesce", call("size", array.copy()), integer(0)), integer(0))
    return case((empty, boolean(False)), otherwise=found)


def lower_filter(node: BoundNode, *, conjunct: bool = True) -> Tree:
    """A condition of which only true matters: false and NULL are equivalent. Here Spark's IN (subquery) is
    correct: Spark turns it into a join, which does not distinguish false from NULL. Its negation is correct
    only as a separate condition (`conjunct`), for which Spark makes another join."""
    if isinstance(node, Op) and node.key in ("and", "or"):
        conjunct = conjunct and node.key == "and"
        return node.build([lower_filter(a, conjunct=conjunct) for a in node.args])
    if isinstance(node, Op) and node.key == "not" and conjunct and _is_membership(node.args[0]):
        return node.build([_lower_membership(node.args[0])])
    return _lower_membership(node) if _is_membership(node) else lower(node)


def _is_membership(node: BoundNode) -> bool:
    return isinstance(node, Subquery) and node.kind not in ("scalar", "exists")


def _lower_membership(node: BoundNode) -> Tree:
    if not isinstance(node, Subquery):
        raise Internal("no IN (subquery)")
    query = exp.Subquery(this=node.tree.copy())
    operands = [lower(o) for o in node.operands]
    left = operands[0] if len(operands) == 1 else exp.Tuple(expressions=operands)
    return exp.Paren(this=exp.In(this=left, query=query))


def is_constant(node: BoundNode) -> bool:
    """Whether the node consists only of literals, parameters and session values."""
    return not any(isinstance(n, Ref | Aggregate | Window | Subquery | FromRows) for n in walk(node))
