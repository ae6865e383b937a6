"""COPY ... FROM STDIN: turns decoded batches into the inserts of one transaction. The server decodes the
bytes of the client."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from tidemill.engine.api import CopyIn, Outcome
from tidemill.engine.ddl.defaults import default_column
from tidemill.engine.dml.copy_options import copy_options
from tidemill.engine.dml.table_writer import TableWriter
from tidemill.engine.dml.writer import StatementWriter
from tidemill.engine.dml.writes import target_columns
from tidemill.engine.read.over_rows import over_rows
from tidemill.engine.read.select import table_query
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import Unsupported
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_query

# Rows that a condition is asked about at once.
ASK_BYTES = 8 << 20


class TableSink:
    """Implements `api.CopySink`. Rows belong to the transaction and are not visible before it commits."""

    def __init__(
        self,
        view: CatalogView,
        writer: StatementWriter,
        target: TableWriter,
        at: list[int],
        where: BoundQuery | None,
    ) -> None:
        """`where`: a query that selects the rows to keep."""
        self._view = view
        self._writer = writer
        self._interrupt = writer.reader.execution.interrupt
        self._target = target
        self._at = at
        self._limit = writer.limit
        self._rows = 0
        self._where = where
        # With a condition: rows that it was not asked about yet. To ask takes a job on Spark.
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0

    async def write(self, batch: pa.RecordBatch) -> None:
        self._interrupt.check()
        updates = await self._writer.reader.execution.blocking(self._updates, batch)
        if self._where is None:
            self._add(updates)
            return
        self._waiting.append(updates)
        self._waiting_bytes += updates.nbytes
        if self._waiting_bytes >= ASK_BYTES:
            await self._ask(self._where)

    def _add(self, updates: pa.Table) -> None:
        self._target.check_not_null(updates)
        self._writer.transactions.current.add_write(self._target.table, updates, self._limit)
        self._rows += updates.num_rows

    async def _ask(self, where: BoundQuery) -> None:
        rows = self._target.rows(pa.concat_tables(self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        wanted = await over_rows(self._writer.reader, where, rows)
        if wanted.num_rows:
            self._add(self._target.updates(wanted.columns, wanted.num_rows, 1))

    def _updates(self, batch: pa.RecordBatch) -> pa.Table:
        """Complete rows: columns that the statement does not name get their defaults."""
        table = self._target.table
        given = dict(zip(self._at, batch.columns, strict=True))
        columns = [
            given[n] if n in given else default_column(self._view.info(), table, n, batch.num_rows)
            for n in range(len(table.desc.columns))
        ]
        return self._target.updates(columns, batch.num_rows, 1)

    async def finish(self) -> str:
        if self._where is not None and self._waiting:
            await self._ask(self._where)
        self._interrupt.end()
        return f"COPY {self._rows}"

    async def fail(self, reason: str) -> None:
        # The statement's error rolls the transaction back; nothing else was done.
        del reason
        self._interrupt.end()


def plan_copy_from(view: CatalogView, writer: StatementWriter, statement: ast.CopyFrom) -> Plan:
    table = view.resolver().table(statement.table, "copy to")
    at = target_columns(table, statement.columns)
    columns = tuple(table.desc.columns[i] for i in at)
    options = copy_options(statement.options, columns)
    where = None if statement.where is None else _wanted(view, statement.table, statement.where)

    async def act() -> Outcome:
        writer.transactions.current.will_write("COPY FROM")
        defaults: tuple[pa.Scalar | None, ...] = ()
        if options.default is not None:
            given = (
                None if table.defaults[i] is None else default_column(view.info(), table, i, 1) for i in at
            )
            defaults = tuple(None if one is None else one[0] for one in given)
        return CopyIn(
            columns,
            options,
            TableSink(view, writer, TableWriter(table, view.state), at, where),
            table.name,
            defaults,
        )

    return Action(act)


def _wanted(view: CatalogView, name: ast.Name, condition: ast.Expr) -> BoundQuery:
    if condition.tree.find(exp.Query) is not None:
        raise Unsupported(
            "cannot use subquery in COPY FROM WHERE condition",
            hint="COPY into another table, and INSERT ... SELECT from there.",
            position=condition.offset + 1,
        )
    query = table_query(name).tree.copy()
    query.set("where", exp.Where(this=condition.tree.copy()))
    return bind_query(query, view.resolver(), session=view.info())
