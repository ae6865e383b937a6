"""The system relations about secrets and connections, and those of single kinds. None of them shows the value
of a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.kind_details import detail_specs
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.sources import Rows, Spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _secrets(s: Situation) -> Rows:
    return [(i.id, item_oid(i.id), i.schema, i.name) for i in s.catalog.secrets()]


def _connections(s: Situation) -> Rows:
    return [(c.id, item_oid(c.id), c.schema, c.name, c.type) for c in s.catalog.connections()]


CONNECTION_SPECS: list[Spec] = [
    (
        "mz_catalog",
        "mz_secrets",
        columns_of("id text, oid oid, schema_id text, name text"),
        _secrets,
    ),
    (
        "mz_catalog",
        "mz_connections",
        columns_of("id text, oid oid, schema_id text, name text, type text"),
        _connections,
    ),
    *detail_specs(),
]
