"""The scope of expressions: the names of a query's FROM items and, after them, of enclosing queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidemill.errors import UndefinedObject
from tidemill.sql.bind.context import BindContext
from tidemill.sql.bind.errors import (
    AmbiguousColumn,
    hidden_by_alias,
    missing_from,
    undefined_column,
    unsupported,
)
from tidemill.sql.bind.suggest import column_hint
from tidemill.sql.plan.expressions import BoundNode, Ref, walk
from tidemill.types.model import SqlType


@dataclass(frozen=True, slots=True)
class Visible:
    """A column that can be named: usually a reference; for a merged USING column of a full join, an
    expression."""

    name: str
    node: BoundNode
    # Only found by name: * and NATURAL leave it out.
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One FROM item under its visible name. `qualified` is its full name if it has no alias (t can be named
    s.t)."""

    name: str
    columns: tuple[Visible, ...]
    qualified: tuple[str, ...] = ()
    # The relation's name if an alias hides it, for the error when the query uses it.
    hidden: str = ""


@dataclass(slots=True)
class Scope:
    """`items` resolve qualified names. `columns`, in order, resolve unqualified names and `*` (a USING column
    occurs only once)."""

    ctx: BindContext
    items: list[Item] = field(default_factory=list)
    columns: list[Visible] = field(default_factory=list)
    parent: Scope | None = None
    # Columns of enclosing queries that were referenced from here or from nested queries.
    outer: list[Ref] = field(default_factory=list)

    def column(self, name: str, position: int | None) -> BoundNode | None:
        """The column of this name, the nearest scope first; None if none exists."""
        found = [v for v in self.columns if v.name == name]
        if len(found) > 1:
            raise AmbiguousColumn(f'column reference "{name}" is ambiguous', position=position)
        if found:
            return self._used(found[0].node)
        return None if self.parent is None else self._from_outside(self.parent.column(name, position))

    def qualified(self, parts: Sequence[str], name: str, position: int | None) -> BoundNode:
        """parts.name. Raises if the item or its column does not exist."""
        item = self.item(parts, position)
        if item is None:
            if self.parent is None or not self.parent.reaches(parts):
                raise self._no_item(parts[-1], position)
            return self._from_outside_strict(self.parent.qualified(parts, name, position))
        found = [v for v in item.columns if v.name == name]
        if len(found) > 1:
            raise AmbiguousColumn(f'column reference "{name}" is ambiguous', position=position)
        if not found:
            error = undefined_column(name, position, item.name)
            error.hint = column_hint(name, [(item.name, v.name) for v in item.columns])
            raise error
        return self._used(found[0].node)

    def no_column(self, name: str, position: int | None) -> UndefinedObject:
        """The error for an unqualified name that no scope has."""
        error = undefined_column(name, position)
        error.hint = column_hint(name, self._all_columns())
        return error

    def _all_columns(self) -> Iterator[tuple[str, str]]:
        """(item, column), of this scope and of enclosing ones."""
        for item in self.items:
            yield from ((item.name, v.name) for v in item.columns)
        if self.parent is not None:
            yield from self.parent._all_columns()

    def reaches(self, parts: Sequence[str]) -> bool:
        """Whether the item exists here or in an enclosing scope."""
        if any(_answers(i, parts) for i in self.items):
            return True
        return self.parent is not None and self.parent.reaches(parts)

    def _no_item(self, table: str, position: int | None) -> UndefinedObject:
        scope: Scope | None = self
        while scope is not None:
            for item in scope.items:
                if item.hidden == table:
                    return hidden_by_alias(table, item.name, position)
            scope = scope.parent
        return missing_from(table, position)

    def item(self, parts: Sequence[str], position: int | None) -> Item | None:
        found = [i for i in self.items if _answers(i, parts)]
        if len(found) > 1:
            raise AmbiguousColumn(f'table reference "{parts[-1]}" is ambiguous', position=position)
        return found[0] if found else None

    def is_item(self, name: str) -> bool:
        """Whether this is the name of a FROM item (a whole row, which is not supported)."""
        if any(i.name == name for i in self.items):
            return True
        return self.parent is not None and self.parent.is_item(name)

    def use(self, visible: Visible) -> BoundNode:
        return self._used(visible.node)

    def _used(self, node: BoundNode) -> BoundNode:
        for part in walk(node):
            if isinstance(part, Ref):
                self.ctx.use(part.table, part.name)
        return node

    def _from_outside(self, node: BoundNode | None) -> BoundNode | None:
        return None if node is None else self._from_outside_strict(node)

    def _from_outside_strict(self, node: BoundNode) -> BoundNode:
        if not isinstance(node, Ref):
            raise unsupported("a reference from a subquery to a merged column of a full join")
        if node not in self.outer:
            self.outer.append(node)
        return node


def _answers(item: Item, parts: Sequence[str]) -> bool:
    if len(parts) == 1:
        return item.name == parts[0]
    return len(item.qualified) >= len(parts) and tuple(item.qualified[-len(parts) :]) == tuple(parts)


def columns_of(
    alias: str,
    label: str,
    names: Sequence[str],
    physical: Sequence[str],
    types: Sequence[SqlType],
    *,
    hidden: bool = False,
) -> tuple[Visible, ...]:
    """The columns of a FROM item whose Spark alias is `alias`."""
    return tuple(
        Visible(name, Ref(t, alias, spark_name, f"{label}.{name}" if label else name), hidden)
        for name, spark_name, t in zip(names, physical, types, strict=True)
    )
