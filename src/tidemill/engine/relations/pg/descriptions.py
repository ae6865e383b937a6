"""pg_description and pg_shdescription: the comments of COMMENT ON, by OID."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tidemill.catalog.items import RELATIONS, Database, Role, Schema
from tidemill.catalog.state import CatalogState
from tidemill.engine.relations.comments import column_number
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.pg.oids import class_oid
from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.engine.relations.sources import Spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def descriptions(catalog: CatalogState) -> Iterator[tuple[str, int, int, str]]:
    """(the catalog that contains the object, its OID, column or 0, text)."""
    for comment in catalog.comments():
        item = catalog.items[comment.on]
        number = 0 if comment.column is None else column_number(item, comment.column)
        if number is None:
            continue
        if isinstance(item, RELATIONS):
            yield "pg_class", item_oid(item.id), number, comment.text
        elif isinstance(item, Schema):
            yield "pg_namespace", item_oid(item.id), 0, comment.text
        elif isinstance(item, Database):
            yield "pg_database", item_oid(item.id), 0, comment.text
        elif isinstance(item, Role):
            yield "pg_authid", item_oid(item.id), 0, comment.text


def description(catalog: CatalogState, stands_in: str | None, oid: int, number: int = 0) -> str | None:
    """obj_description, col_description and shobj_description."""
    for where, found, at, text in descriptions(catalog):
        if found == oid and at == number and stands_in in (None, where):
            return text
    return None


_SHARED_CATALOGS = ("pg_database", "pg_authid")


def _rows(s: Situation) -> Iterable[Record]:
    for where, oid, number, text in descriptions(s.catalog):
        if where not in _SHARED_CATALOGS:
            yield {"objoid": oid, "classoid": class_oid(where), "objsubid": number, "description": text}


def _shared(s: Situation) -> Iterable[Record]:
    for where, oid, _, text in descriptions(s.catalog):
        if where in _SHARED_CATALOGS:
            yield {"objoid": oid, "classoid": class_oid(where), "description": text}


DESCRIPTION_SPECS: list[Spec] = [
    spec("pg_catalog", "pg_description", "objoid oid, classoid oid, objsubid int4, description text", _rows),
    spec("pg_catalog", "pg_shdescription", "objoid oid, classoid oid, description text", _shared),
]
