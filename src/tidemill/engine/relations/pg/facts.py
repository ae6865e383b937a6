"""Names and OIDs as one session sees them: input and output of `regclass` and similar types, and
visibility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.catalog.items import IMPLICIT_SCHEMAS, Relation, Role
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.procs import procs
from tidemill.engine.relations.pg.types import column_oid, format_type, io_names, types
from tidemill.engine.relations.pg.world import PgRelation, World, world
from tidemill.errors import InvalidValue, TidemillError, UndefinedObject
from tidemill.sql.bind import SessionInfo
from tidemill.sql.local import Reg
from tidemill.sql.names import fold, quote_ident, quote_name
from tidemill.types.parse_name import parse_type


@dataclass(frozen=True, slots=True)
class PgFacts:
    """`sql.local.model.SessionFacts` of one statement."""

    catalog: CatalogState
    session: SessionInfo

    @property
    def world(self) -> World:
        return world(self.catalog, self.session.database)

    # --- schemas and visibility

    def path(self) -> Sequence[str]:
        """The schemas of the search path, in order."""
        named = [s for s in self.session.schemas if s not in IMPLICIT_SCHEMAS]
        return [*IMPLICIT_SCHEMAS, *named]

    def visible(self, relation: PgRelation) -> bool:
        """Whether the bare name denotes this relation. System relations of Tidemill never count as visible:
        clients that list visible relations (`\\d`, reflection) look for the user's."""
        if relation.item is None and relation.schema != "pg_catalog":
            return False
        for schema in self.path():
            found = self.world.by_name.get((schema, relation.name))
            if found is not None:
                return found.oid == relation.oid
        return False

    def name_of(self, item: Relation) -> tuple[str, ...]:
        """The shortest name that this session resolves to the object."""
        relation = self.world.by_oid.get(item_oid(item.id))
        if relation is None:  # of another database
            return self.catalog.full_name(item)
        return (relation.name,) if self.visible(relation) else (relation.schema, relation.name)

    def is_visible(self, oid: int) -> bool | None:
        """pg_table_is_visible; NULL if the relation does not exist."""
        relation = self.world.by_oid.get(oid)
        if relation is not None:
            return self.visible(relation)
        key = self.world.keys.get(oid)
        return None if key is None else key[0].schema in self.path()

    def roles(self) -> dict[int, str]:
        return {item_oid(r.id): r.name for r in self.catalog.items.values() if isinstance(r, Role)}

    # --- regclass and similar types

    def reg_input(self, kind: Reg, text: str) -> int:
        """The OID that a text denotes: digits, or a name. Raises PostgreSQL's errors."""
        stripped = text.strip()
        if stripped.isdigit():
            return int(stripped)
        if stripped == "-":
            return 0
        found = self.find(kind, stripped)
        if found is None:
            raise _missing(kind, text)
        return found

    def find(self, kind: Reg, text: str) -> int | None:
        """The OID of the object with this name; None if it does not exist."""
        if kind is Reg.TYPE:
            return _type_named(text)
        parts = split_name(text)
        if kind is Reg.CLASS:
            return self._relation(parts)
        if kind is Reg.NAMESPACE:
            return next((o for o, n in self.world.namespaces.items() if [n] == parts), None)
        if kind is Reg.ROLE:
            return next((o for o, n in self.roles().items() if [n] == parts), None)
        if kind in (Reg.PROC, Reg.PROCEDURE):
            name = parts[-1].partition("(")[0]
            io = next((o for o, n in io_names().items() if n == name), None)
            return io if io is not None else next((o for o, p in procs().items() if p.name == name), None)
        return None

    def _relation(self, parts: Sequence[str]) -> int | None:
        names = self.world.by_name
        if len(parts) == 1:
            found = next((r for s in self.path() if (r := names.get((s, parts[0])))), None)
        elif len(parts) == 2 or parts[0] == self.session.database:
            found = names.get((parts[-2], parts[-1]))
        else:
            found = None
        if found is not None:
            return found.oid
        keys = [k for k in self.world.keys.values() if k[1].name == parts[-1]]
        return next((k.index for r, k in keys if len(parts) == 1 or r.schema == parts[-2]), None)

    def reg_output(self, kind: Reg, oid: int) -> str:
        """The object's name, qualified if the bare name would not find it; the number if the object does not
        exist."""
        if oid == 0:
            return "-"
        if kind is Reg.TYPE:
            return format_type(oid, None) or str(oid) if oid in types() else str(oid)
        if kind is Reg.CLASS:
            return self._relation_text(oid)
        if kind is Reg.NAMESPACE:
            name = self.world.namespaces.get(oid)
        elif kind is Reg.ROLE:
            name = self.roles().get(oid)
        elif kind in (Reg.PROC, Reg.PROCEDURE):
            found = procs().get(oid)
            name = io_names().get(oid) if found is None else found.name
        else:
            name = None
        return str(oid) if name is None else quote_ident(name)

    def _relation_text(self, oid: int) -> str:
        relation = self.world.by_oid.get(oid)
        if relation is None:
            key = self.world.keys.get(oid)
            return str(oid) if key is None else quote_ident(key[1].name)
        if self.visible(relation):
            return quote_ident(relation.name)
        return quote_name(relation.schema, relation.name)


def _type_named(text: str) -> int | None:
    try:
        return column_oid(parse_type(text))
    except TidemillError:
        name = split_name(text)[-1]
        return next((t.oid for t in types().values() if name in (t.name, t.sql_name)), None)


def _missing(kind: Reg, text: str) -> TidemillError:
    state = {Reg.CLASS: "42P01", Reg.PROC: "42883", Reg.PROCEDURE: "42883", Reg.NAMESPACE: "3F000"}
    what = {Reg.CLASS: "relation", Reg.PROC: "function", Reg.PROCEDURE: "function"}
    word = what.get(kind) or kind.value.removeprefix("reg").replace("namespace", "schema")
    return UndefinedObject(f'{word} "{text}" does not exist', sqlstate=state.get(kind, "42704"))


def split_name(text: str) -> list[str]:
    """The parts of `a."B c".d`, folded as identifiers are."""
    parts: list[str] = []
    text, at = text.strip(), 0
    while True:
        at = _skip_blanks(text, at)
        if text.startswith('"', at):
            end = at + 1
            while True:
                end = text.find('"', end)
                if end < 0:
                    raise InvalidValue("invalid name syntax", sqlstate="42602")
                if not text.startswith('""', end):
                    break
                end += 2
            parts.append(text[at + 1 : end].replace('""', '"'))
            at = _skip_blanks(text, end + 1)
        else:
            end = text.find(".", at)
            end = len(text) if end < 0 else end
            parts.append(fold(text[at:end].strip()))
            at = end
        if at >= len(text):
            break
        if text[at] != ".":
            raise InvalidValue("invalid name syntax", sqlstate="42602")
        at += 1
    if not all(parts):
        raise InvalidValue("invalid name syntax", sqlstate="42602")
    return parts


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
