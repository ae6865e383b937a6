"""Resolution of names in a statement to relations: catalog items along the session's search path, and system
relations."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.catalog.items import IMPLICIT_SCHEMAS, MaterializedView, SchemaItem, Table, View, kind_name
from tidemill.catalog.items import Relation as CatalogRelation
from tidemill.engine.relations.system import SYSTEM_RELATIONS, SYSTEM_SCHEMAS, SystemRelation
from tidemill.errors import TidemillError, WrongObjectType
from tidemill.inputs.names import CatalogResolver
from tidemill.sql import ast
from tidemill.sql.bind import Relation
from tidemill.types.names import physical_names


class Resolver(CatalogResolver):
    """`sql.bind.NameResolver` for a session's statements."""

    def _system(self, parts: tuple[str, ...]) -> Relation | None:
        system = find_system_relation(parts, self._search_path)
        if system is None:
            return None
        return Relation(
            id=system.id,
            path=(system.schema, system.name),
            desc=system.desc,
            physical=tuple(physical_names(system.desc)),
        )

    def item(self, name: ast.Name) -> CatalogRelation:
        """The catalog's relation of that name."""
        self._refuse_system(name)
        try:
            found = self._catalog.resolve(name.parts, self._database, self._search_path)
        except TidemillError as e:
            e.position = name.offset + 1
            raise
        self._check_place(found)
        return found

    def any_item(self, name: ast.Name, kind: str = "relation") -> SchemaItem:
        """The object of any kind with that name; `kind` is the word for the error if none exists."""
        self._refuse_system(name)
        try:
            found = self._catalog.resolve_item(name.parts, self._database, self._search_path, kind)
        except TidemillError as e:
            e.position = name.offset + 1
            raise
        self._check_place(found)
        return found

    def _refuse_system(self, name: ast.Name) -> None:
        system = find_system_relation(name.parts, self._search_path)
        if system is not None:
            raise WrongObjectType(f'"{system.name}" is a system relation', sqlstate="42809")

    def table(self, name: ast.Name, verb: str) -> Table:
        """A table that can be written; anything else raises. `verb` is the action of the statement, as in
        `insert into`."""
        found = self.item(name)
        if not isinstance(found, Table):
            kind = "source" if kind_name(found) == "subsource" else kind_name(found)
            raise WrongObjectType(
                f'cannot {verb} {kind} "{found.name}"',
                detail=_why_not_written(found),
                sqlstate="55000" if isinstance(found, View) and verb in _CHANGING else "42809",
                position=name.offset + 1,
            )
        if self._privileges is not None:
            self._privileges.check(found, _NEEDED[verb])
        return found


# The privilege that each kind of write needs, by the verbs of `table`.
_CHANGING = ("insert into", "update", "delete from")
_NEEDED = {"insert into": "INSERT", "copy to": "INSERT", "update": "UPDATE", "delete from": "DELETE"}


def _why_not_written(item: CatalogRelation) -> str | None:
    if isinstance(item, View):
        return "A view is its query; it has no rows of its own."
    if isinstance(item, MaterializedView):
        return "It holds the answer of its query."
    return "Only its upstream writes to it."


def find_system_relation(parts: Sequence[str], search_path: Sequence[str]) -> SystemRelation | None:
    """`name` in the implicit schemas or a system schema of the path, `schema.name`, or
    `database.schema.name`."""
    if len(parts) == 1:
        schemas = [*IMPLICIT_SCHEMAS, *(s for s in search_path if s in SYSTEM_SCHEMAS)]
        return next((r for s in schemas if (r := SYSTEM_RELATIONS.get((s, parts[0])))), None)
    return SYSTEM_RELATIONS.get((parts[-2], parts[-1]))
