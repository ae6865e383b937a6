"""A view's query as `machine` runs it: bound again from the catalog, with the collections that it reads.

Made by `service` for each view. The query is evaluated in a session without a user (`VIEW_SESSION`): the
contents of a view must not depend on who created it or when the server was started. All calls block; for each
view, one thread at a time calls them. The protocols are what `machine` needs; its tests run it without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from tidemill.arrangements import ArrangementsOf
from tidemill.catalog.items import ItemId, MaterializedView
from tidemill.catalog.state import CatalogState
from tidemill.errors import Internal, LimitExceeded
from tidemill.inputs.collections import Collection, Collections
from tidemill.inputs.names import CatalogResolver
from tidemill.inputs.opened import QueryInputs
from tidemill.inputs.queries import QueryRuntime, answer_at, follow_query, followed_whole, is_large, write_at
from tidemill.inputs.temporal import due_followers
from tidemill.persist.holds import Hold
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.query.write import Destination
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, SessionInfo, bind_query
from tidemill.sql.parse import parse
from tidemill.subscribe.follower import Follower
from tidemill.types.model import Column
from tidemill.types.names import physical_names

# Times of day are in UTC; user, database and settings do not exist.
VIEW_SESSION = SessionInfo()


class ProgramInput(Protocol):
    """A collection that the query reads."""

    @property
    def shard(self) -> Shard:
        """Raises Unavailable while it is not open."""
        ...

    def complete(self) -> int:
        """The collection is complete before it, and all of that is in its log; 0 while it cannot be read."""
        ...

    def first(self) -> int:
        """The earliest time at which it can be read."""
        ...

    def hold(self, at: int) -> Hold:
        """Keep the collection's history from `at` on. Raises InvalidAsOf."""
        ...


class ViewQuery(Protocol):
    """A view's query. Its rows have the columns of the view under their physical names, and `mz_diff`."""

    @property
    def inputs(self) -> Sequence[ProgramInput]: ...

    @property
    def views(self) -> Sequence[ItemId]:
        """The materialized views among the inputs."""
        ...

    @property
    def ready(self) -> bool:
        """Whether queries can be run now: Spark may still be starting."""
        ...

    def now(self) -> int:
        """A query without inputs is complete before it."""
        ...

    def answer(self, at: int) -> pa.Table:
        """The rows at a time at which all inputs are complete, each once. Raises errors in the data there as
        SQL errors (`error_follower.is_of_data`)."""
        ...

    def first(self, at: int, shard: Shard, job: str) -> pa.Table | Sequence[Part]:
        """The rows at a time as `answer` returns them. If they may be more than the server should hold and
        following does not need them: parts of the view's shard with that time, written under `job` and not
        yet committed."""
        ...

    def due(self, from_: int) -> Sequence[Follower]:
        """Followers of the times from `from_` on at which the result may change although no input does.
        Raises errors in the data."""
        ...

    def follow(self, from_: int, before: Callable[[], pa.Table]) -> Follower:
        """The changes at and after `from_`; `before` returns the result at `from_ - 1`, for queries that need
        it. Raises InvalidAsOf if the inputs no longer have their history."""
        ...


def bind_view(catalog: CatalogState, item: MaterializedView) -> BoundQuery:
    """The view's query; its columns are named as the view's shard names them."""
    (parsed,) = parse(item.sql)
    query = parsed.statement
    if not isinstance(query, ast.Query):
        raise Internal(f'the text of materialized view "{item.name}" is no query')
    names = CatalogResolver(catalog, VIEW_SESSION.database, (), item.references)
    bound = bind_query(query.tree, names, session=VIEW_SESSION)
    columns = zip(physical_names(item.desc), item.desc.columns, strict=True)
    return replace(bound, columns=tuple(Column(name, c.type) for name, c in columns))


@dataclass(frozen=True, slots=True)
class ViewInput:
    """`ProgramInput` of a collection."""

    collections: Collections
    item: Collection
    arrangements: ArrangementsOf

    @property
    def shard(self) -> Shard:
        return self.collections.shard(self.item)

    def complete(self) -> int:
        return self.collections.complete(self.item)

    def first(self) -> int:
        return self.collections.first(self.item)

    def hold(self, at: int) -> Hold:
        shard = self.shard
        # What the last process has arranged stands at an earlier time than the view.
        self.arrangements.hold(shard)
        return shard.hold(at)


class ViewProgram:
    """`ViewQuery` of a view of the catalog, run by Spark."""

    def __init__(self, runtime: QueryRuntime, catalog: CatalogState, item: MaterializedView) -> None:
        own = replace(runtime.arrangements, reader=item.id)
        self._runtime = replace(runtime, arrangements=own)
        self._catalog = catalog
        self._bound = bind_view(catalog, item)
        self._items = QueryInputs.of(catalog, self._bound).items
        self._inputs = [ViewInput(runtime.collections, item, runtime.arrangements) for item in self._items]

    @property
    def inputs(self) -> Sequence[ViewInput]:
        return self._inputs

    @property
    def views(self) -> Sequence[ItemId]:
        return [item.id for item in self._items if isinstance(item, MaterializedView)]

    @property
    def ready(self) -> bool:
        return self._runtime.spark.ready

    def now(self) -> int:
        return self._runtime.oracle.read_ts() + 1

    def answer(self, at: int) -> pa.Table:
        return answer_at(self._runtime, self._catalog, self._bound, at)

    def first(self, at: int, shard: Shard, job: str) -> pa.Table | Sequence[Part]:
        runtime, catalog, bound = self._runtime, self._catalog, self._bound
        on_changes = followed_whole(catalog, bound) is None and bool(bound.inputs) and bool(bound.columns)
        if not on_changes or not is_large(runtime, catalog, bound, at):
            try:
                return self.answer(at)
            except LimitExceeded:
                if not on_changes:
                    raise
        to = Destination(shard.blobs, shard.id, shard.desc, at, job)
        return write_at(runtime, catalog, bound, at, to)

    def due(self, from_: int) -> Sequence[Follower]:
        return due_followers(self._runtime, self._catalog, self._bound, from_)

    def follow(self, from_: int, before: Callable[[], pa.Table]) -> Follower:
        return follow_query(self._runtime, self._catalog, self._bound, from_, before)
