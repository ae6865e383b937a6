"""Queries with ORDER BY ... LIMIT over all rows, over the collections of the catalog.

Called by `queries.follow_query`. All the query's rows are followed on changes or by keys; the first ones are
kept (`subscribe.first_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tidemill.catalog.state import CatalogState
from tidemill.inputs.incremental import counts_hold
from tidemill.persist.holds import Hold
from tidemill.sql.bind import BoundQuery
from tidemill.sql.bind.model import Lowered
from tidemill.sql.plan.explain import explain_order
from tidemill.sql.plan.expressions import Ref, SortKey
from tidemill.sql.plan.first_rows import FirstRows, first_rows
from tidemill.sql.plan.keyed import columns_of
from tidemill.sql.plan.operators import Operator, Project
from tidemill.sql.plan.reproducible import check_reproducible
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.subscribe.first_rows import MAX_FIRST, FirstRowsFollower, Wanted
from tidemill.subscribe.follower import CollectionFollower, Follower
from tidemill.subscribe.linear import told_names
from tidemill.types.model import Column


@dataclass(frozen=True, slots=True)
class FirstRowsQuery:
    """`inner` is the query of all rows."""

    inner: BoundQuery
    wanted: Wanted
    found: FirstRows

    def best(self, count: int) -> BoundQuery:
        """The first of its rows."""
        return _with(self.inner, self.found.best(count), self.inner.columns)


def first_rows_of(catalog: CatalogState, bound: BoundQuery) -> FirstRowsQuery | None:
    """None if it is another query. Raises NotIncremental if there is a reason to follow it as a whole."""
    found = first_rows(bound.plan)
    if found is None:
        return None
    if found.count + found.skipped > MAX_FIRST:
        raise NotIncremental(f"LIMIT of more than {MAX_FIRST} rows")
    if not counts_hold(catalog, bound.inputs.values()):
        # Of what is behind the first rows a negative count would not be noticed.
        raise NotIncremental("LIMIT over a source whose upstream says which rows go")
    check_reproducible(found.query)
    columns = tuple(Column(name, t) for name, t in columns_of(found.query))
    shown = found.shown or tuple(c.name for c in columns)
    if len(shown) != len(bound.columns):
        return None
    # As the query returns them.
    types = dict(zip(shown, (c.type for c in bound.columns), strict=True))
    columns = tuple(replace(c, type=types.get(c.name, c.type)) for c in columns)
    wanted = Wanted(columns, found.order, shown, found.count, found.skipped, found.ties)
    return FirstRowsQuery(_with(bound, found.query, columns), wanted, found)


def _with(bound: BoundQuery, plan: Operator, columns: tuple[Column, ...]) -> BoundQuery:
    return replace(bound, lowered=Lowered(plan), columns=columns)


def describe_first(query: FirstRowsQuery, bound: BoundQuery, inner: Sequence[str]) -> list[str]:
    """`inner`: how all rows are followed."""
    how, *more = inner
    wanted, rows = query.wanted, query.found.query
    names = dict(zip(wanted.shown, (c.name for c in bound.columns), strict=True))
    made = {o.name: o.node for o in rows.outputs} if isinstance(rows, Project) else {}

    def named(key: SortKey) -> SortKey:
        name = key.node.name if isinstance(key.node, Ref) else ""
        known = Ref(key.node.type, "", names[name]) if name in names else made.get(name, key.node)
        return replace(key, node=known)

    order = explain_order([named(key) for key in wanted.order])
    said = ["by the first rows", f"  Keeps {wanted.kept} rows in the order {order}"]
    said.append("    reads them again when fewer are left than are asked for")
    return [*said, f"  All rows: {how}", *(f"  {line}" for line in more)]


def follow_first(
    query: FirstRowsQuery,
    bound: BoundQuery,
    followers: Mapping[str, CollectionFollower],
    open_inner: Callable[[], Follower | None],
    answer: Callable[[BoundQuery, int], pa.Table],
    told: Callable[[], pa.Table],
) -> FirstRowsFollower | None:
    """`open_inner` makes of the `followers` that of all rows; None if they can only be followed as a whole.
    `answer` is that of a query at a time, `told` the query's just before."""
    holds: list[Hold] = []
    inner: Follower | None = None
    try:
        for follower in dict.fromkeys(followers.values()):
            holds.append(follower.hold())
        first = told()
        inner = open_inner()
        if inner is not None:
            names = told_names(bound.columns)
            return FirstRowsFollower(
                query.wanted,
                inner,
                lambda at, count: answer(query.best(count), at),
                lambda at: answer(bound, at),
                first,
                names,
                holds,
            )
    except BaseException:
        if inner is not None:
            inner.close()
        for hold in holds:
            hold.release()
        raise
    for hold in holds:
        hold.release()
    return None
