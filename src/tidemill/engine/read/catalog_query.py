"""Queries over system relations only, answered without Spark and without waiting for a time.

`plan_query` calls `plan_catalog_query` first. A query that it cannot compile is planned as any other
query.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.items import View
from tidemill.engine.api import Outcome, Rows
from tidemill.engine.read import reading
from tidemill.engine.read.local_rows import stream
from tidemill.engine.read.reader import Reader
from tidemill.engine.relations.pg.facts import PgFacts
from tidemill.engine.relations.pg.functions import catalog_functions
from tidemill.engine.relations.pg.row_cache import KeptRows
from tidemill.engine.relations.resolver import find_system_relation
from tidemill.engine.relations.system import SYSTEM_RELATIONS, SYSTEM_RELATIONS_BY_ID
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Value
from tidemill.errors import TidemillError
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_query
from tidemill.sql.local import LocalQuery, NotLocal, compile_query
from tidemill.sql.local.model import LocalTooLarge
from tidemill.types.model import Column, SqlType

# The maximum number of rows that a query with only functions in FROM may produce here; Spark is faster for
# more.
FEW_STEPS = 10_000

# Per process; the key is the catalog state itself, so that two engines in one process do not share entries.
_KEPT = KeptRows()


@dataclass(slots=True)
class CatalogQueryPlan:
    """A SELECT of system relations."""

    query: ast.Query
    local: LocalQuery
    view: CatalogView
    reader: Reader
    # Whether it names a relation; otherwise FROM has functions only.
    reads: bool
    tag: str = "SELECT"

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.local.param_types

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.local.columns

    @property
    def bound(self) -> BoundQuery:
        """For callers that need a Spark query: EXPLAIN."""
        view = self.view
        return bind_query(self.query.tree, view.resolver(), param_types=self.param_types, session=view.info())

    async def rows(self, params: Sequence[Value]) -> AsyncIterator[pa.RecordBatch]:
        try:
            return stream(await self.table(params))
        except LocalTooLarge:
            if self.reads:
                raise
        return await reading.answer(self.reader, self.view.state, self.bound, None, params)

    async def table(self, params: Sequence[Value]) -> pa.Table:
        # This is no read at the transaction's time: it neither needs nor starts a read-only transaction,
        # because drivers look up types and tables between writes. It runs on a worker thread: the largest
        # catalogs take some tenths of a second.
        execution = self.reader.execution
        return await execution.interrupt.guard(execution.blocking(self._answer, params))

    def _answer(self, params: Sequence[Value]) -> pa.Table:
        situation = self.reader.situation(self.view.state)
        return self.local.run(
            PgFacts(self.view.state, self.view.info()),
            lambda relation_id: _KEPT.rows(SYSTEM_RELATIONS_BY_ID[relation_id], situation),
            [p.scalar.as_py() for p in params],
            self.reader.execution.interrupt.check,
            None if self.reads else FEW_STEPS,
        )

    async def run(self, params: Sequence[Value]) -> Outcome:
        return Rows(self.columns, await self.rows(params), tag=self.tag)


def plan_catalog_query(
    view: CatalogView, reader: Reader, query: ast.Query, types: Sequence[SqlType | None]
) -> CatalogQueryPlan | None:
    """The plan, or None if the query reads anything but system relations or needs an expression that cannot
    be evaluated here."""
    if query.as_of is not None or not _of_the_system(view, query.tree):
        return None
    try:
        local = compile_query(
            query.tree, view.resolver(), view.info(), catalog_functions(), local_oids(), types
        )
    except NotLocal:
        return None
    reads = any(not isinstance(t.this, exp.Func) for t in query.tree.find_all(exp.Table))
    return CatalogQueryPlan(query, local, view, reader, reads)


def _of_the_system(view: CatalogView, tree: exp.Expr) -> bool:
    """Whether all relations of the query are system relations, or views that can be built on them. Checked
    before anything is compiled, so that a query over tables does not pay for it."""
    path = view.variables.search_path()
    queries = {cte.alias for cte in tree.find_all(exp.CTE)}
    for table in tree.find_all(exp.Table):
        if isinstance(table.this, exp.Func):
            continue
        parts = tuple(p.name for p in (table.args.get("catalog"), table.args.get("db"), table.this) if p)
        if parts[-1] in queries or find_system_relation(parts, path) is not None:
            continue
        try:
            found = view.state.resolve(parts, view.database, path)
        except TidemillError:
            return False
        if not isinstance(found, View):
            return False
    return True


@cache
def local_oids() -> dict[str, int]:
    """The relations that can be read here, by id, and their OIDs."""
    return {r.id: r.oid for r in SYSTEM_RELATIONS.values()}
