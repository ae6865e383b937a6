"""INSERT, UPDATE, DELETE, TRUNCATE: rows in, updates of one transaction out.

A statement that reads what it writes (UPDATE, DELETE, INSERT ... SELECT) reads at the transaction's time
and commits only if nothing that it read has changed since. When it is alone in its transaction it commits
here and is run again on a conflict, so that its client never sees one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidemill.catalog.items import Table
from tidemill.catalog.state import CatalogState
from tidemill.engine import reading
from tidemill.engine.api import Complete, Outcome, Rows
from tidemill.engine.defaults import default_column, default_trees
from tidemill.engine.local_rows import stream
from tidemill.engine.plan import Plan, Value
from tidemill.engine.returning import Returning, plan_returning
from tidemill.engine.select import table_tree
from tidemill.engine.session import EngineSession
from tidemill.engine.show import system_number
from tidemill.engine.turns import in_turn
from tidemill.errors import (
    NotNullViolation,
    SyntaxError_,
    UndefinedObject,
    Unsupported,
)
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_insert_source, bind_update, substitute
from tidemill.types.arrow import DIFF_COLUMN, storage_schema
from tidemill.types.identity import canonical
from tidemill.types.model import Column, Kind, SqlType
from tidemill.types.wire import format_value

# Rows that a message about a bad row shows at most this many characters of.
MAX_SHOWN_ROW = 200


@dataclass(slots=True)
class WritePlan:
    """A statement that writes to one table. `split` gives, for the rows of `source`, the rows to retract
    and those to insert."""

    verb: str
    table: Table
    catalog: CatalogState
    source: BoundQuery
    split: Callable[[pa.Table], tuple[pa.Table | None, pa.Table | None]]
    returning: Returning | None
    # Whether the statement retracts rows: then it depends on them being there.
    reads_target: bool

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.source.param_types

    @property
    def columns(self) -> tuple[Column, ...] | None:
        return None if self.returning is None else self.returning.columns

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        session.current.will_write(self.verb)
        source = self.source
        if params:
            source = await session.blocking(substitute, source, [p.scalar for p in params], session.info())
        if session.alone and self._reads():
            return await self._run_alone(session, source)
        if session.engine.turns.claimed(self.table.shard):
            # The commit would wait as well, but could not be cancelled there.
            await session.interrupt.guard(session.engine.turns.wait([self.table.shard]))
        return await self._run_once(session, source)

    def _reads(self) -> list[str]:
        """The shards whose contents the outcome depends on."""
        shards = {self.table.shard} if self.reads_target else set[str]()
        shards |= {t.shard for t in reading.table_inputs(self.catalog, self.source)}
        return sorted(shards)

    async def _run_alone(self, session: EngineSession, source: BoundQuery) -> Outcome:
        """With a commit of its own, again and again until nothing came in between."""

        async def attempt(claimed: bool) -> Outcome:
            outcome = await self._run_once(session, source)
            transaction = session.current
            try:
                if transaction.writes:
                    await session.engine.commit(transaction, claimed=claimed)
            finally:
                transaction.forget_writes()
            return outcome

        return await in_turn(session, self._reads(), attempt)

    async def _run_once(self, session: EngineSession, source: BoundQuery) -> Outcome:
        limit = system_number(session, "max_transaction_size")
        rows = await reading.collect(session, self.catalog, source, limit)
        transaction = session.current
        transaction.reads.update(self._reads())
        old, new = self.split(rows)
        if new is not None:
            check_not_null(self.table, new)
        for updates, diff in ((old, -1), (new, 1)):
            if updates is not None:
                transaction.add_write(self.table, with_diff(updates, diff), limit)
        affected = new if new is not None else old
        count = 0 if affected is None else affected.num_rows
        tag = f"INSERT 0 {count}" if self.verb == "INSERT" else f"{self.verb} {count}"
        if self.returning is None:
            return Complete(tag)
        shown = affected if affected is not None else empty_rows(self.table)
        result = await self.returning.rows(session, self.catalog, shown)
        return Rows(self.returning.columns, stream(result), tag=tag, counted=False)


def empty_rows(table: Table) -> pa.Table:
    return storage_schema(table.desc).empty_table()


def as_rows(table: Table, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    """The table's rows, under physical names. A jsonb that a query computed is text in any form: it gets
    its one form here."""
    given = list(columns)
    for n, column in enumerate(table.desc.columns):
        if _holds_jsonb(column.type):
            given[n] = canonical(given[n], column.type)
    return pa.Table.from_arrays(given, schema=storage_schema(table.desc))


def _holds_jsonb(t: SqlType) -> bool:
    if t.kind is Kind.JSONB or (t.element is not None and _holds_jsonb(t.element)):
        return True
    return any(_holds_jsonb(f.type) for f in t.fields)


# Most statements write one row; a column made anew each time costs more than the rest of them.
_ONE = {diff: pa.array([diff], pa.int64()) for diff in (1, -1)}


def with_diff(rows: pa.Table, diff: int) -> pa.Table:
    one = _ONE[diff]
    return rows.append_column(DIFF_COLUMN, one if rows.num_rows == 1 else pa.repeat(one[0], rows.num_rows))


def check_not_null(table: Table, rows: pa.Table) -> None:
    for n, column in enumerate(table.desc.columns):
        if column.nullable or not rows.column(n).null_count:
            continue
        bad = int(pc.index(rows.column(n).is_null(), True).as_py())
        values = [
            format_value(rows.column(i)[bad].as_py(), c.type) if rows.column(i)[bad].is_valid else "null"
            for i, c in enumerate(table.desc.columns)
        ]
        shown = ", ".join(str(v) for v in values)
        if len(shown) > MAX_SHOWN_ROW:
            shown = shown[:MAX_SHOWN_ROW] + "..."
        raise NotNullViolation(
            f'null value in column "{column.name}" of relation "{table.name}" violates not-null constraint',
            detail=f"Failing row contains ({shown}).",
        )


# -- INSERT ----------------------------------------------------------------------------------------


def plan_insert(
    s: EngineSession, statement: ast.Insert, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    table = s.resolver(catalog).table(statement.table, "insert into")
    target_columns(table, statement.columns)
    if isinstance(statement.source, ast.Query) and statement.source.as_of is not None:
        raise Unsupported(
            "INSERT ... SELECT cannot have AS OF", hint="It reads at the time of its transaction."
        )
    source = bind_insert_source(
        statement.source,
        table.desc.columns,
        s.resolver(catalog),
        session=s.info(),
        defaults=default_trees(table),
        columns=[c.value for c in statement.columns] or None,
        param_types=types,
    )
    returning = plan_returning(s, table, statement.table, statement.alias, statement.returning, catalog)

    def split(rows: pa.Table) -> tuple[None, pa.Table]:
        return None, as_rows(table, rows.columns)

    return WritePlan("INSERT", table, catalog, source, split, returning, reads_target=False)


def target_columns(table: Table, names: Sequence[ast.Ident]) -> list[int]:
    """Positions of the columns that are named, all of them if none are."""
    if not names:
        return list(range(len(table.desc.columns)))
    at: list[int] = []
    for name in names:
        index = column_index(table, name)
        if index in at:
            raise SyntaxError_(
                f'column "{name.value}" specified more than once', sqlstate="42701", position=name.offset + 1
            )
        at.append(index)
    return at


def column_index(table: Table, name: ast.Ident) -> int:
    for n, column in enumerate(table.desc.columns):
        if column.name == name.value:
            return n
    raise UndefinedObject(
        f'column "{name.value}" of relation "{table.name}" does not exist',
        sqlstate="42703",
        position=name.offset + 1,
    )


def complete_rows(session: EngineSession, table: Table, at: Sequence[int], rows: pa.Table) -> pa.Table:
    """Rows of the columns `at` as whole rows: the others get their defaults."""
    given = dict(zip(at, rows.columns, strict=True))
    columns = [
        given[n] if n in given else default_column(session, table, n, rows.num_rows)
        for n in range(len(table.desc.columns))
    ]
    return as_rows(table, columns)


# -- UPDATE, DELETE, TRUNCATE ----------------------------------------------------------------------


def plan_update(
    s: EngineSession, statement: ast.Update, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    table = s.resolver(catalog).table(statement.table, "update")
    if statement.from_ is not None:
        _refuse_returning("UPDATE ... FROM", statement.returning)
    assigned: dict[str, exp.Expr | None] = {}
    for assignment in statement.assignments:
        name, *others = assignment.columns
        if others:
            raise Unsupported(
                "assigning several columns from a subquery is not supported",
                hint="Assign each column from a subquery of its own.",
                position=name.offset + 1,
            )
        column_index(table, name)
        if name.value in assigned:
            raise SyntaxError_(
                f'multiple assignments to same column "{name.value}"', position=name.offset + 1
            )
        assigned[name.value] = assignment.value.tree if isinstance(assignment.value, ast.Expr) else None
    source = bind_update(
        table_tree(statement.table, statement.alias),
        assigned,
        None if statement.where is None else statement.where.tree,
        s.resolver(catalog),
        session=s.info(),
        others=None if statement.from_ is None else statement.from_.tree,
        defaults=default_trees(table),
        param_types=types,
    )
    width = len(table.desc.columns)

    def split(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        return as_rows(table, rows.columns[:width]), as_rows(table, rows.columns[width:])

    returning = plan_returning(s, table, statement.table, statement.alias, statement.returning, catalog)
    return WritePlan("UPDATE", table, catalog, source, split, returning, reads_target=True)


def plan_delete(
    s: EngineSession, statement: ast.Delete, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    if statement.using is not None:
        _refuse_returning("DELETE ... USING", statement.returning)
    return _removal(s, statement, types, catalog)


def _refuse_returning(what: str, items: Sequence[ast.Expr]) -> None:
    """There RETURNING may name the joined columns (and * means them too), which are not kept."""
    if items:
        raise Unsupported(f"RETURNING of {what} is not supported", position=items[0].offset + 1)


def _removal(
    s: EngineSession, statement: ast.Delete, types: Sequence[SqlType | None], catalog: CatalogState
) -> WritePlan:
    table = s.resolver(catalog).table(statement.table, "delete from")
    source = bind_update(
        table_tree(statement.table, statement.alias),
        {},
        None if statement.where is None else statement.where.tree,
        s.resolver(catalog),
        session=s.info(),
        others=None if statement.using is None else statement.using.tree,
        param_types=types,
    )

    def split(rows: pa.Table) -> tuple[pa.Table, None]:
        return as_rows(table, rows.columns), None

    returning = plan_returning(s, table, statement.table, statement.alias, statement.returning, catalog)
    return WritePlan("DELETE", table, catalog, source, split, returning, reads_target=True)


@dataclass(slots=True)
class TruncatePlan:
    """Every row of several tables, removed in one transaction."""

    removals: list[WritePlan]
    param_types: tuple[SqlType, ...] = ()
    columns: tuple[Column, ...] | None = None

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        session.alone = session.alone and len(self.removals) == 1
        for removal in self.removals:
            await removal.run(session, params)
        return Complete("TRUNCATE TABLE")


def plan_truncate(s: EngineSession, statement: ast.Truncate, catalog: CatalogState) -> Plan:
    return TruncatePlan([_removal(s, ast.Delete(name), (), catalog) for name in statement.tables])
