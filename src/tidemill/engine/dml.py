"""INSERT, UPDATE, DELETE, TRUNCATE: rows in, updates of one transaction out.

A statement that reads what it writes (UPDATE, DELETE, INSERT ... SELECT) reads at the transaction's time and commits only if nothing that it read has
changed since. When it is alone in its transaction it commits here and is run again on a conflict, so that its client never sees one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidemill.catalog.items import Table
from tidemill.catalog.state import CatalogState
from tidemill.engine import reading
from tidemill.engine.api import Complete, Outcome, Rows
from tidemill.engine.defaults import default_column, default_scalar
from tidemill.engine.local_rows import stream
from tidemill.engine.plan import Plan, Value
from tidemill.engine.returning import Returning, plan_returning
from tidemill.engine.select import column_tree, table_tree
from tidemill.engine.session import EngineSession
from tidemill.engine.show import system_number
from tidemill.errors import NotNullViolation, SerializationFailure, SyntaxError_, Unsupported
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_into, substitute
from tidemill.types.arrow import DIFF_COLUMN, arrow_schema
from tidemill.types.model import Column, RelationDesc, SqlType
from tidemill.types.names import physical_names
from tidemill.types.wire import format_value

# Rows that a message about a bad row shows at most this many characters of.
MAX_SHOWN_ROW = 200


@dataclass(slots=True)
class WritePlan:
    """A statement that writes to one table. `make` gives, for the rows of `source` (None: no query), the rows to retract and to insert."""

    verb: str
    table: Table
    catalog: CatalogState
    source: BoundQuery | None
    make: Callable[[EngineSession, pa.Table | None], Awaitable[tuple[pa.Table | None, pa.Table | None]]]
    returning: Returning | None
    param_types: tuple[SqlType, ...]
    # Whether the statement retracts rows: then it depends on them being there.
    reads_target: bool

    @property
    def columns(self) -> tuple[Column, ...] | None:
        return None if self.returning is None else self.returning.columns

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        session.current.will_write(self.verb)
        source = self.source
        if source is not None and params:
            source = await session.blocking(substitute, source, [(p.scalar, p.type) for p in params])
        if session.alone and self._reads():
            return await self._run_alone(session, source)
        return await self._run_once(session, source)

    def _reads(self) -> list[str]:
        """The shards whose contents the outcome depends on."""
        shards = {self.table.shard} if self.reads_target else set[str]()
        if self.source is not None:
            shards |= {t.shard for t in reading.table_inputs(self.catalog, self.source)}
        return sorted(shards)

    async def _run_alone(self, session: EngineSession, source: BoundQuery | None) -> Outcome:
        """With a commit of its own, again and again until nothing came in between."""
        async with AsyncExitStack() as locks:
            for shard in self._reads():
                await session.interrupt.guard(locks.enter_async_context(session.engine.write_lock(shard)))
            for attempt in range(session.engine.max_retries):
                outcome = await self._run_once(session, source)
                transaction = session.current
                try:
                    if transaction.writes:
                        await session.engine.commit(transaction)
                    transaction.forget_writes()
                    return outcome
                except SerializationFailure:
                    transaction.forget_writes()
                    session.interrupt.check()
                    # Others are busy writing here: let them, a little longer each time.
                    await asyncio.sleep(min(0.001 * attempt, 0.05))
        raise SerializationFailure(
            "could not serialize access due to concurrent update",
            detail=f"The statement was tried {session.engine.max_retries} times.",
            hint="Run it again.",
        )

    async def _run_once(self, session: EngineSession, source: BoundQuery | None) -> Outcome:
        limit = system_number(session, "max_transaction_size")
        rows = None if source is None else await reading.collect(session, self.catalog, source, limit)
        transaction = session.current
        if self._reads():
            if transaction.read_ts is None:
                transaction.read_ts = await session.blocking(session.engine.oracle.read_ts)
            transaction.reads.update(self._reads())
        old, new = await self.make(session, rows)
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


def storage_schema_of(table: Table) -> pa.Schema:
    """The table's columns under their physical names."""
    schema = arrow_schema(table.desc)
    return pa.schema([f.with_name(n).with_nullable(True) for f, n in zip(schema, physical_names(table.desc), strict=True)])


def empty_rows(table: Table) -> pa.Table:
    return storage_schema_of(table).empty_table()


def as_rows(table: Table, columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    return pa.Table.from_arrays(list(columns), schema=storage_schema_of(table))


def with_diff(rows: pa.Table, diff: int) -> pa.Table:
    return rows.append_column(DIFF_COLUMN, pa.repeat(pa.scalar(diff, pa.int64()), rows.num_rows))


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
        raise NotNullViolation(
            f'null value in column "{column.name}" of relation "{table.name}" violates not-null constraint',
            detail=f"Failing row contains ({shown[:MAX_SHOWN_ROW]}{'...' if len(shown) > MAX_SHOWN_ROW else ''}).",
        )


# -- INSERT -------------------------------------------------------------------------------------------------------------------


def plan_insert(
    s: EngineSession, statement: ast.Insert, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    table = s.resolver(catalog).table(statement.table)
    at = target_columns(table, statement.columns)
    source = None
    if statement.source is not None:
        source, at = _insert_source(s, statement, table, at, types, catalog)

    async def make(session: EngineSession, rows: pa.Table | None) -> tuple[None, pa.Table]:
        return None, await session.blocking(complete_rows, session, table, at, rows)

    returning = plan_returning(s, table, statement.table, statement.alias, statement.returning, catalog)
    params = tuple(t for t in types if t is not None) if source is None else source.param_types
    return WritePlan("INSERT", table, catalog, source, make, returning, params, reads_target=False)


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
    raise SyntaxError_(
        f'column "{name.value}" of relation "{table.name}" does not exist',
        sqlstate="42703",
        position=name.offset + 1,
    )


def _insert_source(
    s: EngineSession,
    statement: ast.Insert,
    table: Table,
    at: list[int],
    types: Sequence[SqlType | None],
    catalog: CatalogState,
) -> tuple[BoundQuery, list[int]]:
    source = statement.source
    if isinstance(source, ast.Values):
        tree, width = _values_tree(s, table, at, source)
    elif source is not None and source.as_of is not None:
        raise Unsupported("INSERT ... SELECT cannot have AS OF", hint="It reads at the time of its transaction.")
    else:
        assert source is not None
        tree, width = source.tree, None
    if width is not None:
        at = _fit(statement, at, width)
    targets = [table.desc.columns[i] for i in at]
    bound = bind_into(
        tree,
        s.resolver(catalog),
        targets,
        param_types=types,
        session=s.info(),
        fewer=not statement.columns,
    )
    return bound, _fit(statement, at, len(bound.columns))


def _fit(statement: ast.Insert, at: list[int], width: int) -> list[int]:
    """The columns that `width` values go to; without a list of columns the first ones are enough."""
    if width > len(at):
        raise SyntaxError_("INSERT has more expressions than target columns")
    if width < len(at) and statement.columns:
        raise SyntaxError_("INSERT has more target columns than expressions")
    return at[:width]


def _values_tree(s: EngineSession, table: Table, at: list[int], values: ast.Values) -> tuple[exp.Values, int]:
    width = len(values.rows[0])
    if width > len(at):
        raise SyntaxError_("INSERT has more expressions than target columns")
    defaults: dict[int, exp.Expression] = {}

    def cell(index: int, value: ast.Expr | ast.Default) -> exp.Expression:
        if isinstance(value, ast.Expr):
            return value.tree
        if index not in defaults:
            scalar = default_scalar(s, table, at[index])
            text = format_value(scalar.as_py(), table.desc.columns[at[index]].type) if scalar.is_valid else None
            defaults[index] = exp.Null() if text is None else exp.Literal.string(text)
        return defaults[index].copy()

    rows = [exp.Tuple(expressions=[cell(n, v) for n, v in enumerate(row)]) for row in values.rows]
    return exp.Values(expressions=rows), width


def complete_rows(session: EngineSession, table: Table, at: Sequence[int], rows: pa.Table | None) -> pa.Table:
    """Rows of the columns `at` as whole rows: the others get their defaults. None: one row of defaults."""
    count = 1 if rows is None else rows.num_rows
    given = {} if rows is None else dict(zip(at, rows.columns, strict=True))
    columns = [
        given[n] if n in given else default_column(session, table, n, count)
        for n in range(len(table.desc.columns))
    ]
    return as_rows(table, columns)


# -- UPDATE, DELETE, TRUNCATE ---------------------------------------------------------------------------------------------------


def _select(
    table: Table, name: ast.Name, alias: ast.Ident | None, items: Sequence[exp.Expression], where: ast.Expr | None
) -> exp.Select:
    """SELECT every column of the table, items FROM table AS alias WHERE where."""
    known_as = alias.value if alias is not None else name.item
    old = [column_tree(c.name, known_as) for c in table.desc.columns]
    tree = exp.Select(expressions=[*old, *items])
    tree.set("from_", exp.From(this=table_tree(name, None if alias is None else alias.value)))
    if where is not None:
        tree.set("where", exp.Where(this=where.tree.copy()))
    return tree


def plan_update(
    s: EngineSession, statement: ast.Update, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    table = s.resolver(catalog).table(statement.table)
    if statement.from_ is not None:
        raise Unsupported(
            "UPDATE ... FROM is not supported", hint="Use subqueries in SET and WHERE."
        )
    assigned: dict[int, exp.Expression] = {}
    for assignment in statement.assignments:
        if len(assignment.columns) > 1:
            raise Unsupported(
                "assigning several columns from a subquery is not supported",
                hint="Assign each column from a subquery of its own.",
                position=assignment.columns[0].offset + 1,
            )
        index = column_index(table, assignment.columns[0])
        if index in assigned:
            raise SyntaxError_(
                f'multiple assignments to same column "{assignment.columns[0].value}"',
                position=assignment.columns[0].offset + 1,
            )
        assigned[index] = _assigned(s, table, index, assignment.value)
    tree = _select(table, statement.table, statement.alias, list(assigned.values()), statement.where)
    targets = [*table.desc.columns, *(table.desc.columns[i] for i in assigned)]
    bound = bind_into(tree, s.resolver(catalog), targets, param_types=types, session=s.info())
    width = len(table.desc.columns)

    async def make(session: EngineSession, rows: pa.Table | None) -> tuple[pa.Table, pa.Table]:
        del session
        assert rows is not None
        columns = rows.columns
        new = list(columns[:width])
        for n, index in enumerate(assigned):
            new[index] = columns[width + n]
        return as_rows(table, columns[:width]), as_rows(table, new)

    returning = plan_returning(s, table, statement.table, statement.alias, statement.returning, catalog)
    return WritePlan("UPDATE", table, catalog, bound, make, returning, bound.param_types, reads_target=True)


def _assigned(s: EngineSession, table: Table, index: int, value: ast.Expr | ast.Default) -> exp.Expression:
    if isinstance(value, ast.Expr):
        return value.tree.copy()
    scalar = default_scalar(s, table, index)
    if not scalar.is_valid:
        return exp.Null()
    return exp.Literal.string(str(format_value(scalar.as_py(), table.desc.columns[index].type)))


def plan_delete(
    s: EngineSession, statement: ast.Delete, types: Sequence[SqlType | None], catalog: CatalogState
) -> Plan:
    table = s.resolver(catalog).table(statement.table)
    if statement.using is not None:
        raise Unsupported("DELETE ... USING is not supported", hint="Use a subquery in WHERE.")
    returning = plan_returning(s, table, statement.table, statement.alias, statement.returning, catalog)
    return _removal(s, "DELETE", table, statement.table, statement.alias, statement.where, types, catalog, returning)


def _removal(
    s: EngineSession,
    verb: str,
    table: Table,
    name: ast.Name,
    alias: ast.Ident | None,
    where: ast.Expr | None,
    types: Sequence[SqlType | None],
    catalog: CatalogState,
    returning: Returning | None,
) -> WritePlan:
    tree = _select(table, name, alias, (), where)
    bound = bind_into(tree, s.resolver(catalog), table.desc.columns, param_types=types, session=s.info())

    async def make(session: EngineSession, rows: pa.Table | None) -> tuple[pa.Table, None]:
        del session
        assert rows is not None
        return as_rows(table, rows.columns), None

    return WritePlan(verb, table, catalog, bound, make, returning, bound.param_types, reads_target=True)


@dataclass(slots=True)
class TruncatePlan:
    """Every row of several tables, removed."""

    removals: list[WritePlan]
    param_types: tuple[SqlType, ...] = ()
    columns: tuple[Column, ...] | None = None

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        for removal in self.removals:
            await removal.run(session, params)
        return Complete("TRUNCATE TABLE")


def plan_truncate(s: EngineSession, statement: ast.Truncate, catalog: CatalogState) -> Plan:
    removals = [
        _removal(s, "DELETE", s.resolver(catalog).table(n), n, None, None, (), catalog, None) for n in statement.tables
    ]
    return TruncatePlan(removals)

