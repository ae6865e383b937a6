"""Followers of queries with temporal filters: their result changes by itself too.

Called by `queries.follow_query`. Filters and a projection of one relation are followed on its changes, with
the times at which each row comes and leaves. Of any other query the whole result is evaluated at each time at
which an input changes or a row of one of its filters comes or leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from tidemill.catalog.state import CatalogState
from tidemill.errors import TidemillError
from tidemill.inputs.data_errors import is_of_data
from tidemill.inputs.queries import QueryRuntime, answer_at, follow_query
from tidemill.sql.bind import BoundQuery
from tidemill.sql.bind.temporal import BoundedQuery, due_queries, on_changes
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.temporal import TemporalFollower


def follow_temporal(
    runtime: QueryRuntime,
    catalog: CatalogState,
    bound: BoundQuery,
    from_: int,
    before: Callable[[], pa.Table] | None,
) -> Follower:
    """As `follow_query`."""

    def otherwise(at: int) -> Follower:
        given = before if at == from_ else None
        due = due_followers(runtime, catalog, bound, at)
        try:
            return follow_query(runtime, catalog, bound, at, given, due=due)
        except BaseException:
            close_all(due)
            raise

    found = on_changes(bound)
    if found is None:
        return otherwise(from_)
    try:
        return _Followed(_follow(runtime, catalog, found, from_), otherwise)
    except TidemillError as e:
        if not is_of_data(e):
            raise
        return otherwise(from_)


def due_followers(
    runtime: QueryRuntime, catalog: CatalogState, bound: BoundQuery, from_: int
) -> list[Follower]:
    """Followers whose changes are at the times from `from_` on at which the query's temporal filters let a
    row come or leave."""
    followers: list[Follower] = []
    try:
        for each in due_queries(bound) if bound.uses_mz_now else ():
            followers.append(_follow(runtime, catalog, each, from_))
    except BaseException:
        close_all(followers)
        raise
    return followers


def close_all(followers: Sequence[Follower]) -> None:
    for follower in followers:
        follower.close()


def _follow(
    runtime: QueryRuntime, catalog: CatalogState, found: BoundedQuery, from_: int
) -> TemporalFollower:
    inner = follow_query(runtime, catalog, found.query, from_)
    try:
        before = answer_at(runtime, catalog, found.query, from_ - 1)
        return TemporalFollower(inner, found.symbols, before)
    except BaseException:
        inner.close()
        raise


class _Followed:
    """On changes, until an expression fails. It may have failed for a row that no filter lets through, so
    then the whole query decides."""

    def __init__(self, follower: Follower, otherwise: Callable[[int], Follower]) -> None:
        self._follower = follower
        self._otherwise: Callable[[int], Follower] | None = otherwise

    @property
    def frontier(self) -> int:
        return self._follower.frontier

    def advance(self) -> CollectionChanges | None:
        try:
            return self._follower.advance()
        except TidemillError as e:
            if self._otherwise is None or not is_of_data(e):
                raise
            otherwise, self._otherwise = self._otherwise, None
            follower = otherwise(self._follower.frontier)
            self._follower.close()
            self._follower = follower
        return self._follower.advance()

    def close(self) -> None:
        self._follower.close()
