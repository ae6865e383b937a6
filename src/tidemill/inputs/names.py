"""Resolution of the names in a query to relations of the catalog.

For sessions, `engine.relations.resolver` adds the system relations. A materialized view's query is resolved
here alone. A view's names keep the meaning that they had when the view was created
(`catalog.items.Reference`), so neither a rename nor another search path changes what it reads. The resolver
records what was used, for dependencies and reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from tidemill.catalog.items import Reference, SchemaItem, SourceProgress, View
from tidemill.catalog.items import Relation as CatalogRelation
from tidemill.catalog.privileges import Privileges
from tidemill.catalog.state import CatalogState
from tidemill.errors import TidemillError, WrongObjectType
from tidemill.sql import ast
from tidemill.sql.bind import Relation
from tidemill.sql.parse import parse
from tidemill.types.arrow import TIME_COLUMN
from tidemill.types.model import MZ_TIMESTAMP, Column, RelationDesc
from tidemill.types.names import physical_names

# The read time of a progress relation; the provider of its rows returns this column with them.
PROGRESS_HIDDEN = ((Column(TIME_COLUMN, MZ_TIMESTAMP, nullable=False), TIME_COLUMN),)


class CatalogResolver:
    """`sql.bind.NameResolver` over one catalog state. `references` is a view's own table of names; without
    it names are looked up."""

    def __init__(
        self,
        catalog: CatalogState,
        database: str,
        search_path: Sequence[str],
        references: Sequence[Reference] = (),
        privileges: Privileges | None = None,
        unread: str | None = None,
    ) -> None:
        """Reads are checked against `privileges` (None: the system itself reads). `unread` is the id of a
        relation whose rows are only removed, not read."""
        self._catalog = catalog
        self._privileges = privileges
        self._unread = unread
        self._database = database
        self._search_path = list(search_path)
        self._references = {r.name: r for r in references}
        # Every catalog name that was resolved here, as it was written: the references of a new view.
        self.used: dict[tuple[str, ...], str] = {}

    def relation(self, parts: tuple[str, ...], position: int | None = None) -> Relation:
        known = self._references.get(parts)
        if known is not None:
            # The view was made when its names could be looked up; now it is its owner who reads.
            found = self._catalog.relation(known.id)
            self._check_read(found)
            # Columns in the view's text are qualified by the names of then.
            full = self._catalog.full_name(found)
            named = (*full[: max(0, len(full) - len(parts))], *parts)
            return replace(self._bound(found, position, known.width), path=named)
        system = self._system(parts)
        if system is not None:
            return system
        try:
            found = self._catalog.resolve(parts, self._database, self._search_path)
        except TidemillError as e:
            e.position = position
            raise
        self.used[parts] = found.id
        self._check_place(found)
        self._check_read(found)
        return self._bound(found, position)

    def _system(self, parts: tuple[str, ...]) -> Relation | None:
        """The system relation of that name; this resolver has none."""
        return None

    def _check_place(self, item: SchemaItem) -> None:
        if self._privileges is not None:
            self._privileges.check_place(item)

    def _check_read(self, item: CatalogRelation) -> None:
        if self._privileges is not None and item.id != self._unread:
            self._privileges.check(item, "SELECT")

    def references(self) -> tuple[Reference, ...]:
        return tuple(
            Reference(name, item_id, len(self.desc(self._catalog.relation(item_id)).columns))
            for name, item_id in self.used.items()
        )

    def desc(self, item: CatalogRelation, position: int | None = None) -> RelationDesc:
        """Its columns; a source whose rows are in tables has none."""
        if item.desc is not None:
            return item.desc
        tables = ", ".join(t.name for t in self._catalog.source_tables(item.id))
        raise WrongObjectType(
            f'source "{item.name}" has no rows of its own',
            detail="Its rows are in the tables that it feeds.",
            hint=f"Read from {tables}." if tables else f"CREATE TABLE ... FROM SOURCE {item.name} makes one.",
            position=position,
        )

    def _bound(
        self, item: CatalogRelation, position: int | None = None, width: int | None = None
    ) -> Relation:
        path = self._catalog.full_name(item)
        shown = self.desc(item, position)
        physical = tuple(physical_names(shown))
        if isinstance(item, View):
            (parsed,) = parse(item.sql)
            query = parsed.statement
            if not isinstance(query, ast.Query):
                raise WrongObjectType(f"the text of view {item.name} is no query")
            owner = None if self._privileges is None else self._privileges.of_owner(item)
            scope = type(self)(self._catalog, self._database, (), item.references, owner)
            desc, tree = item.desc, query.tree
            if width is not None and width < len(desc.columns):
                desc, tree = RelationDesc(desc.columns[:width]), _first_columns(tree, desc.names, width)
            return Relation(
                id=item.id, path=path, desc=desc, physical=physical[:width], view=tree, view_scope=scope
            )
        # Columns are only ever added behind the others.
        desc = RelationDesc(shown.columns[:width])
        hidden = PROGRESS_HIDDEN if isinstance(item, SourceProgress) else ()
        return Relation(id=item.id, path=path, desc=desc, physical=physical[:width], hidden=hidden)


def _first_columns(query: exp.Expr, names: Sequence[str], width: int) -> exp.Expr:
    """Of a view that was replaced by one with more columns, those that it had before."""
    idents = [exp.Identifier(this=n, quoted=True) for n in names]
    alias = exp.TableAlias(this=exp.Identifier(this="view", quoted=True), columns=idents)
    cut = exp.Select(expressions=[exp.Column(this=i.copy()) for i in idents[:width]])
    cut.set("from_", exp.From(this=exp.Subquery(this=query, alias=alias)))
    return cut
