"""RETURNING: expressions over the rows that a statement wrote (or, for DELETE, removed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.items import Table
from tidemill.engine.read.over_rows import over_rows
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.select import table_tree
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Value
from tidemill.errors import Unsupported
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_query, returns_rows, substitute
from tidemill.types.model import Column, SqlType


@dataclass(frozen=True, slots=True)
class Returning:
    """`plain`: the positions of the columns if RETURNING names only columns; then no query is needed."""

    reader: Reader
    table: Table
    bound: BoundQuery
    plain: tuple[int, ...] | None

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.bound.columns

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        """The parameter types of the statement, then those that only RETURNING has."""
        return self.bound.param_types

    async def rows(self, written: pa.Table, params: Sequence[Value]) -> pa.Table:
        if self.plain is not None:
            names = [f"c{n}" for n in range(len(self.plain))]
            return pa.Table.from_arrays([written.column(i) for i in self.plain], names=names)
        bound = substitute(self.bound, [p.scalar for p in params]) if params else self.bound
        return await over_rows(self.reader, bound, written)


def plan_returning(
    view: CatalogView,
    reader: Reader,
    table: Table,
    statement: ast.Insert | ast.Update | ast.Delete,
    types: Sequence[SqlType | None],
) -> Returning | None:
    """`types` are the parameter types of the statement."""
    items = statement.returning
    if not items:
        return None
    for item in items:
        if any(True for _ in item.tree.find_all(exp.Select, exp.AggFunc, exp.Window)):
            raise Unsupported(
                "RETURNING can only use the columns of the row",
                hint="Subqueries, aggregates and window functions belong in a SELECT.",
                position=item.offset + 1,
            )
        if returns_rows(item.tree):
            raise Unsupported(
                "set-returning functions are not allowed in RETURNING", position=item.offset + 1
            )
    tree = exp.Select(expressions=[i.tree.copy() for i in items])
    tree.set("from_", exp.From(this=table_tree(statement.table, statement.alias)))
    bound = bind_query(tree, view.resolver(), session=view.info(), param_types=types)
    return Returning(reader, table, bound, _plain(table, items, len(bound.columns)))


def _plain(table: Table, items: Sequence[ast.Expr], width: int) -> tuple[int, ...] | None:
    """The named columns, if the list has only columns and `*`."""
    at: list[int] = []
    for item in items:
        tree = item.tree.this if isinstance(item.tree, exp.Alias) else item.tree
        if isinstance(tree, exp.Star) or (isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)):
            at += range(len(table.desc.columns))
        elif isinstance(tree, exp.Column) and tree.name in table.desc.names:
            at.append(table.desc.names.index(tree.name))
        else:
            return None
    return tuple(at) if len(at) == width else None
