"""ORDER BY: output names, ordinals, expressions; NULLs in PostgreSQL's position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.errors import AmbiguousColumn, InvalidColumnReference, position_of, unsupported
from tidemill.sql.bind.forms.aggregate import sort_direction
from tidemill.sql.functions.comparison import check_sorted
from tidemill.sql.plan.expressions import BoundNode, Ref, SortKey
from tidemill.types.model import SqlType


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """An output column: its name and its expression."""

    name: str
    node: BoundNode


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One ORDER BY item: the column to sort by, and the expression to compute for it if it is no output."""

    key: SortKey
    hidden: BoundNode | None = None


def order_output(
    order: exp.Order,
    outputs: Sequence[OutputColumn],
    bind: Callable[[exp.Expr], BoundNode] | None,
    what: str,
) -> list[OrderKey]:
    """The items of ORDER BY over the columns c0, c1, ... `bind` binds expressions over the input (None if the
    clause sees only output columns). Other expressions are the columns h0, h1, ..."""
    keys: list[OrderKey] = []
    hidden: list[BoundNode] = []
    for item in order.expressions:
        index = find_output(item.this, outputs, "ORDER BY")
        node: BoundNode | None = None
        if index is None:
            if bind is None:
                raise unsupported(
                    f"an expression in {what}", position_of(item), "Use an output column's name or number."
                )
            node = bind(item.this)
            index = next((i for i, o in enumerate(outputs) if o.node == node), None)
        if index is not None:
            t, name = outputs[index].node.type, f"c{index}"
            keys.append(OrderKey(_ordered(item, name, t)))
            continue
        assert node is not None
        name = f"h{len(hidden)}"
        hidden.append(node)
        keys.append(OrderKey(_ordered(item, name, node.type), node))
    return keys


def _ordered(item: exp.Ordered, name: str, t: SqlType) -> SortKey:
    check_sorted(t, "ORDER BY")
    return SortKey(Ref(t, "", name), *sort_direction(item))


def find_output(node: exp.Expr, outputs: Sequence[OutputColumn], clause: str) -> int | None:
    """The output column that the item names by number or by name."""
    if isinstance(node, exp.Literal):
        if node.is_string:
            raise TidemillError(
                f"non-integer constant in {clause}", sqlstate="42601", position=position_of(node)
            )
        if not str(node.this).isdigit():
            raise TidemillError(
                f"non-integer constant in {clause}", sqlstate="42601", position=position_of(node)
            )
        number = int(str(node.this))
        if not 1 <= number <= len(outputs):
            raise InvalidColumnReference(
                f"{clause} position {number} is not in select list", position=position_of(node)
            )
        return number - 1
    if isinstance(node, exp.Column) and not node.table and clause == "ORDER BY":
        found = [i for i, o in enumerate(outputs) if o.name == node.name]
        if len(found) > 1 and any(outputs[i].node != outputs[found[0]].node for i in found):
            raise AmbiguousColumn(f'ORDER BY "{node.name}" is ambiguous', position=position_of(node))
        return found[0] if found else None
    return None
