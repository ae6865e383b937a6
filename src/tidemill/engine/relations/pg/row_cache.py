"""Rows of the large catalogs, kept between statements while nothing changes.

A `\\d` is nine statements, a reflection dozens, over the same state of the catalog. With thousands of
relations, making the rows costs more than querying them. Only relations whose rows depend on the catalog and
the database alone are kept, and of each only the rows of the latest state that was read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemill import caches
from tidemill.catalog.state import CatalogState

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation, SystemRelation

KEPT = frozenset(
    {
        *("pg_class", "pg_attribute", "pg_attrdef", "pg_type", "pg_index", "pg_constraint", "pg_namespace"),
        *("pg_proc", "pg_operator", "pg_cast", "pg_description", "pg_depend"),
    }
)
# (relation, database) pairs: the catalogs of a handful of databases. Ten thousand columns are some 5 MB.
MAX_KEPT = 64


class KeptRows:
    """Thread-safe: two threads that miss at the same time make the same rows twice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, str], tuple[CatalogState, Sequence[tuple[Any, ...]]]] = (
            OrderedDict()
        )

    def rows(self, relation: SystemRelation, situation: Situation) -> Sequence[tuple[Any, ...]]:
        if relation.schema != "pg_catalog" or relation.name not in KEPT:
            return relation.rows(situation)
        key = (relation.id, situation.database)
        with self._lock:
            found = self._rows.get(key)
            if found is not None and found[0] is situation.catalog and caches.ENABLED:
                self._rows.move_to_end(key)
                return found[1]
        made = relation.rows(situation)
        with self._lock:
            self._rows[key] = (situation.catalog, made)
            self._rows.move_to_end(key)
            while len(self._rows) > MAX_KEPT:
                self._rows.popitem(last=False)
        return made
