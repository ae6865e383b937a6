"""GROUP BY and aggregates: the inner query that groups, and what the outer one may then name."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.bind.context import Context
from tidemill.sql.bind.errors import GroupingError, unsupported
from tidemill.sql.bind.ir import Aggregate, Node, Ref, lower, lower_filter, rewrite, walk
from tidemill.sql.bind.scope import Scope
from tidemill.sql.bind.tables import aliased, subquery_as
from tidemill.types.model import Kind


def is_grouped(node: Node) -> bool:
    return any(isinstance(n, Aggregate) for n in walk(node))


class Grouping:
    """One grouped SELECT. Keys become columns g0, g1, ... of the inner query, aggregates a0, a1, ..."""

    def __init__(self, ctx: Context, scope: Scope, keys: Sequence[Node]) -> None:
        self._alias = ctx.alias()
        self._keys = {key: Ref(key.type, self._alias, f"g{i}") for i, key in enumerate(keys)}
        self._aggregates: dict[Aggregate, Ref] = {}
        visible = [v.node for item in scope.items for v in item.columns] + [v.node for v in scope.columns]
        # Spark aliases of this query's own FROM items; other references are an enclosing query's.
        self._own = {part.table for node in visible for part in walk(node) if isinstance(part, Ref)}

    def collect(self, node: Node) -> None:
        """Note the aggregates of an expression."""
        for part in walk(node):
            if isinstance(part, Aggregate) and part not in self._aggregates:
                refs = [n for n in walk(part) if isinstance(n, Ref)]
                if refs and not any(r.table in self._own for r in refs):
                    raise unsupported("an aggregate over columns of an enclosing query")
                name = f"a{len(self._aggregates)}"
                self._aggregates[part] = Ref(part.type, self._alias, name)

    def source(self, tree: exp.Expr | None, joins: Sequence[exp.Join], where: Node | None) -> exp.Expr:
        """The inner query, as the outer one's FROM item."""
        columns = [aliased(lower(key), ref.name) for key, ref in self._keys.items()]
        columns += [aliased(lower(agg), ref.name) for agg, ref in self._aggregates.items()]
        if not columns:
            # HAVING alone: one row if there is no key.
            columns = [aliased(exp.Count(this=exp.Star()), "n")]
        select = exp.Select(expressions=columns)
        if tree is not None:
            select.set("from_", exp.From(this=tree))
        if joins:
            select.set("joins", [j.copy() for j in joins])
        if where is not None:
            select.set("where", exp.Where(this=lower_filter(where)))
        if self._keys:
            keys = [_group_tree(key) for key in self._keys]
            select.set("group", exp.Group(expressions=keys))
        return subquery_as(select, self._alias)

    def finish(self, node: Node) -> Node:
        """The expression over the inner query's columns; 42803 where it names what grouping has lost."""

        def change(part: Node) -> Node | None:
            key = self._keys.get(part)
            if key is not None:
                return key
            if isinstance(part, Aggregate):
                return self._aggregates[part]
            if isinstance(part, Ref) and part.table in self._own:
                raise GroupingError(
                    f'column "{part.label}" must appear in the GROUP BY clause '
                    "or be used in an aggregate function"
                )
            return None

        return rewrite(node, change)


def _group_tree(key: Node) -> exp.Expr:
    if key.type.kind is Kind.CHAR and key.type.length is None:
        raise unsupported("GROUP BY of type character without a length")
    return lower(key)
