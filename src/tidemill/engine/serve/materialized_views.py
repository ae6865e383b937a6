"""Materialized views as the engine runs them: a view's query bound again from the catalog, and what its
inputs are.

The query is evaluated in a session of nobody's (`VIEW_SESSION`): what a view holds must not hang on who made
it or when the server was started last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.items import ItemId, MaterializedView
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.followed import Followable, Inputs, complete, shard_of
from tidemill.engine.read.following import answer_at, follow_query, is_large, way_of, write_at
from tidemill.engine.relations.resolver import Resolver
from tidemill.errors import Internal, LimitExceeded
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.query.write import Destination
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, SessionInfo, bind_query
from tidemill.sql.parse import parse
from tidemill.subscribe.follower import Follower
from tidemill.types.model import Column
from tidemill.types.names import physical_names

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine

# Times of day are those of UTC; there is no user, database or setting.
VIEW_SESSION = SessionInfo()


def bind_view(catalog: CatalogState, item: MaterializedView) -> BoundQuery:
    """The view's query; its columns are named as the view's shard names them."""
    (parsed,) = parse(item.sql)
    query = parsed.statement
    if not isinstance(query, ast.Query):
        raise Internal(f'the text of materialized view "{item.name}" is no query')
    names = Resolver(catalog, VIEW_SESSION.database, (), item.references)
    bound = bind_query(query.tree, names, session=VIEW_SESSION)
    columns = zip(physical_names(item.desc), item.desc.columns, strict=True)
    return replace(bound, columns=tuple(Column(name, c.type) for name, c in columns))


@dataclass(frozen=True, slots=True)
class ViewInput:
    """`views.program.Input`."""

    engine: TidemillEngine
    item: Followable

    @property
    def shard(self) -> Shard:
        return shard_of(self.engine, self.item)

    def complete(self) -> int:
        return complete(self.engine, self.item)


class ViewProgram:
    """`views.program.Program`."""

    def __init__(self, engine: TidemillEngine, catalog: CatalogState, item: MaterializedView) -> None:
        self._engine = engine
        self._catalog = catalog
        self._bound = bind_view(catalog, item)
        self._items = Inputs.of(catalog, self._bound).items
        self._inputs = [ViewInput(engine, item) for item in self._items]

    @property
    def inputs(self) -> Sequence[ViewInput]:
        return self._inputs

    @property
    def views(self) -> Sequence[ItemId]:
        return [item.id for item in self._items if isinstance(item, MaterializedView)]

    @property
    def ready(self) -> bool:
        return self._engine.spark.ready

    def now(self) -> int:
        return self._engine.oracle.read_ts() + 1

    def answer(self, at: int) -> pa.Table:
        return answer_at(self._engine, self._catalog, self._bound, at)

    def first(self, at: int, shard: Shard, job: str) -> pa.Table | Sequence[Part]:
        engine, catalog, bound = self._engine, self._catalog, self._bound
        linear = way_of(catalog, bound).because is None and bool(bound.inputs) and bool(bound.columns)
        if not linear or not is_large(engine, catalog, bound, at):
            try:
                return self.answer(at)
            except LimitExceeded:
                if not linear:
                    raise
        to = Destination(shard.blobs, shard.id, shard.desc, at, job)
        return write_at(engine, catalog, bound, at, to)

    def follow(self, from_: int, before: Callable[[], pa.Table]) -> Follower:
        return follow_query(self._engine, self._catalog, self._bound, from_, before)
