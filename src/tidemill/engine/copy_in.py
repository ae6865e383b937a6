"""COPY ... FROM STDIN: the server decodes the client's bytes into batches, this turns them into one
transaction's inserts."""

from __future__ import annotations

import pyarrow as pa

from tidemill.catalog.items import Table
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import CopyIn, Outcome
from tidemill.engine.copy_options import copy_options
from tidemill.engine.defaults import default_column
from tidemill.engine.dml import target_columns
from tidemill.engine.plan import Action, Plan
from tidemill.engine.session import EngineSession
from tidemill.engine.show import system_number
from tidemill.engine.target import Target
from tidemill.sql import ast


class TableSink:
    """Implements `api.CopySink`: rows go into the transaction; nothing is visible before it commits."""

    def __init__(self, session: EngineSession, table: Table, at: list[int]) -> None:
        self._session = session
        self._target = Target(table)
        self._at = at
        self._limit = system_number(session, "max_transaction_size")
        self._rows = 0

    async def write(self, batch: pa.RecordBatch) -> None:
        session = self._session
        session.interrupt.check()
        updates = await session.blocking(self._updates, batch)
        self._target.check_not_null(updates)
        session.current.add_write(self._target.table, updates, self._limit)
        self._rows += batch.num_rows

    def _updates(self, batch: pa.RecordBatch) -> pa.Table:
        """The rows whole: columns that the statement does not name get their defaults."""
        table = self._target.table
        given = dict(zip(self._at, batch.columns, strict=True))
        columns = [
            given[n] if n in given else default_column(self._session, table, n, batch.num_rows)
            for n in range(len(table.desc.columns))
        ]
        return self._target.updates(columns, batch.num_rows, 1)

    async def finish(self) -> str:
        self._session.interrupt.end()
        return f"COPY {self._rows}"

    async def fail(self, reason: str) -> None:
        # The statement's error rolls the transaction back; nothing else was done.
        del reason
        self._session.interrupt.end()


def plan_copy_from(s: EngineSession, statement: ast.CopyFrom, catalog: CatalogState) -> Plan:
    table = s.resolver(catalog).table(statement.table, "copy to")
    at = target_columns(table, statement.columns)
    columns = tuple(table.desc.columns[i] for i in at)
    options = copy_options(statement.options, columns)

    async def act(session: EngineSession) -> Outcome:
        session.current.will_write("COPY FROM")
        defaults: tuple[pa.Scalar | None, ...] = ()
        if options.default is not None:
            given = (None if table.defaults[i] is None else default_column(session, table, i, 1) for i in at)
            defaults = tuple(None if one is None else one[0] for one in given)
        return CopyIn(columns, options, TableSink(session, table, at), table.name, defaults)

    return Action(act)
