"""Small parts of Spark's SELECT."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.sql.functions.tree import Tree


def aliased(tree: Tree, name: str) -> exp.Alias:
    return exp.Alias(this=tree, alias=exp.to_identifier(name, quoted=True))


def subquery_as(query: exp.Expr, alias: str) -> exp.Subquery:
    """(query) AS alias. The query must have no other use."""
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))


def select_from(source: exp.Expr | None, columns: Sequence[Tree]) -> exp.Select:
    """SELECT columns AS c0, c1, ..."""
    select = exp.Select(expressions=[aliased(c, f"c{i}") for i, c in enumerate(columns)])
    if source is not None:
        select.set("from_", exp.From(this=source))
    return select
