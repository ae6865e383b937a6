"""Expressions of a logical plan as Spark SQL trees."""

from __future__ import annotations

from sqlglot import exp

from tidemill.errors import Internal, Unsupported
from tidemill.sql.functions.casts import cast_tree
from tidemill.sql.functions.markers import fixed, parameter
from tidemill.sql.functions.tree import Tree, boolean, call, case, column, eq, integer, string
from tidemill.sql.functions.tree import field as field_of
from tidemill.sql.lower.literal import literal_tree
from tidemill.sql.plan.expressions import (
    Aggregate,
    BoundNode,
    BoundParam,
    Const,
    Convert,
    Op,
    Ref,
    SessionValue,
    Subquery,
    Window,
    fitted,
)
from tidemill.types.model import Kind


def lower(node: BoundNode) -> Tree:
    """The node as Spark SQL, in the storage form of its type."""
    if isinstance(node, Const):
        return literal_tree(fitted(node).value, node.type)
    if isinstance(node, Ref):
        return column(node.table, node.name) if node.table else exp.column(node.name, quoted=True)
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
        from tidemill.sql.lower.aggregate import lower_aggregate

        return lower_aggregate(node)
    if isinstance(node, Window):
        from tidemill.sql.lower.window import lower_window

        return lower_window(node)
    if isinstance(node, Subquery):
        return _lower_subquery(node)
    raise Internal(f"no Spark form for {type(node).__name__}")


def _lower_subquery(node: Subquery) -> Tree:
    if node.kind == "scalar":
        return exp.Subquery(this=_query(node))
    if node.kind == "exists":
        return exp.Exists(this=_query(node))
    return _membership_value(node)


def _query(node: Subquery) -> exp.Expr:
    from tidemill.sql.lower.queries import lower_query

    return lower_query(node.plan)


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
    rows.set("from_", exp.From(this=exp.Subquery(this=_query(node), alias=alias)))
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
    query = exp.Subquery(this=_query(node))
    operands = [lower(o) for o in node.operands]
    left = operands[0] if len(operands) == 1 else exp.Tuple(expressions=operands)
    return exp.Paren(this=exp.In(this=left, query=query))
