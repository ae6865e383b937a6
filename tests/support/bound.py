"""Bound queries without a catalog: relations and views by name, for tests of what is made of a query."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import UndefinedObject
from tidemill.sql.ast import Query
from tidemill.sql.bind import BoundQuery, Relation, SessionInfo, bind_query
from tidemill.sql.parse import parse
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names


class Names:
    """Stored relations, whose ids are their names, and views by their queries."""

    def __init__(self, stored: Mapping[str, RelationDesc], views: Mapping[str, str] | None = None) -> None:
        self._stored = stored
        self._views = views or {}

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        name = parts[-1]
        if name in self._stored:
            desc = self._stored[name]
            return Relation(name, ("materialize", "public", name), desc, tuple(physical_names(desc)))
        if name in self._views:
            query = parsed(self._views[name])
            desc = RelationDesc(self.bind(self._views[name]).columns)
            return Relation(
                name, ("materialize", "public", name), desc, view=query.tree.copy(), view_scope=self
            )
        raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01", position=position)

    def bind(self, sql: str) -> BoundQuery:
        return bind_query(parsed(sql).tree, self, session=SessionInfo())


def parsed(sql: str) -> Query:
    (found,) = parse(sql)
    assert isinstance(found.statement, Query)
    return found.statement
